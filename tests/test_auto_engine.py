"""`auto` with a model: exact whatever it chooses; what it learned is kept, without text; it says what it did."""

from __future__ import annotations

import gc
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cases import MODES
from learned import FRONTIER, profile
from pico import pico
from selfdraft import Engine, Generation, OptionError
from selfdraft.engine.worth import Worth
from selfdraft.profiles import learned
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import Artefact, Profile
from selfdraft.strategies.auto import MAX_ROWS, Auto
from selfdraft.strategies.choosing.company import Company
from selfdraft.strategies.choosing.text import Text
from selfdraft.strategies.knn import Knn
from selfdraft.strategies.swift import Swift
from test_graphs import new_engine

REPEATS = [2, 7, 1, 8, 2, 8, 1, 8, 2, 7, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5, 2, 7, 1]
PROMPTS = (REPEATS, [7], [16, 18, 3, 16, 18])
NUM_TOKENS = 26
KINDS = {"eager": Engine, "recorded": new_engine}


def strategy_of(engine: Engine, **method: Any) -> Auto:
    found = engine.method(**method).strategy
    assert isinstance(found, Auto)
    return found


def texts(engine: Engine, rows: int, mode: str, **options: Any) -> list[Generation]:
    """Several texts one after the other, so that it has learned something; then all at once."""
    options |= {"max_new_tokens": NUM_TOKENS, **MODES[mode]}
    alone = [engine.generate(prompt, sequence=row, **options) for row, prompt in enumerate(PROMPTS[:rows])]
    return [*alone, *(engine.generate(list(PROMPTS[:rows]), **options) if rows > 1 else [])]


@pytest.mark.parametrize("always", [False, True], ids=["as it likes", "always"])
@pytest.mark.parametrize("known", [True, False], ids=["profile", "no profile"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mode", "acceptance"), [*itertools.product(MODES, ["coupled"]), ("greedy", "rejection")], ids=str
)
def test_texts_are_those_of_plain_decoding(mode: str, acceptance: str, kind: str, known: bool, always: bool) -> None:
    """No axis is named, so that it chooses all of them; alone, then together."""
    settings = {"auto": {"always": always, "budget": 1.0}}
    engine = KINDS[kind](
        pico("llama"),
        strategy="auto",
        profile=profile() if known else None,
        settings=settings,
        acceptance=acceptance,
    )
    plain = texts(engine, len(PROMPTS), mode, strategy="off")
    found = texts(engine, len(PROMPTS), mode)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    done = {kind for one in found for kind, *_ in one.explain().rounds}
    assert done == {"copy", "skip", "off"} if always and known else done >= {"copy"}


@pytest.mark.parametrize(
    "fixed", [{"drafter": "self"}, {"drafter": "lookup"}, {"tree": "chain"}, {"lookahead": "fixed"}]
)
def test_what_is_named_stays(fixed: dict[str, str]) -> None:
    engine = Engine(pico("llama"), profile=profile(), settings={"auto": {"always": True}})
    found = engine.generate(REPEATS, max_new_tokens=NUM_TOKENS, **fixed)
    assert found.tokens == engine.generate(REPEATS, max_new_tokens=NUM_TOKENS, strategy="off").tokens
    drafting = [step for step in found.steps if step.draft.tokens]
    drafters = {step.plan.drafter for step in drafting}
    if "drafter" in fixed:
        assert drafters == ({"lookup"} if fixed["drafter"] == "lookup" else {None})
    elif "tree" in fixed:
        assert all(step.draft.is_chain for step in drafting)
    else:
        assert max(step.draft.num_draft_steps for step in drafting) == 5, "as the lookahead says, and no longer"


def test_many_texts_at_once_are_decoded_plainly_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"), profile=profile(), settings={"auto": {"always": True}})
    prompts = [REPEATS] * (MAX_ROWS + 1)
    monkeypatch.setattr(Auto, "plan", None)
    monkeypatch.setattr(Auto, "observe", None)
    found = engine.generate(prompts, max_new_tokens=10)
    assert not any(one.stats.num_draft_steps for one in found)


def test_texts_that_share_a_pass_share_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worth, "of", lambda worth, state: None)
    engine = Engine(pico("llama"), profile=profile())
    asked: list[int] = []
    choose = Company.choose
    monkeypatch.setattr(Company, "choose", lambda *args, **options: asked.append(1) or choose(*args, **options))
    found = engine.generate([REPEATS] * 4, max_new_tokens=NUM_TOKENS)
    assert len(asked) == found[0].stats.num_rounds
    kinds = [[kind for kind, *_ in one.explain().rounds] for one in found]
    assert kinds[0] == kinds[1], "equal texts"


def test_without_a_clock_a_command_decides_the_same_each_time() -> None:
    def drafts() -> list[list[tuple[int, ...]]]:
        engine = Engine(pico("llama"), profile=None, settings={"auto": {"clock": False}})
        found = [engine.generate([prompt[0], *REPEATS], max_new_tokens=60) for prompt in PROMPTS]
        company = strategy_of(engine)._company(1)
        assert company.costs.seconds(1) == 1.0, "in plain rounds, whatever the machine took"
        assert strategy_of(engine).state() == {}, "what is not kept cannot change the next time"
        return [[step.draft.tokens for step in one.steps] for one in found]

    first = drafts()
    assert first == drafts()
    assert all(any(one) for one in first), "it copies in every text"


# ------------------------------------------------------------------------------------------------ sets found on the way


def test_sets_are_looked_for_where_no_profile_has_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.engine.knowledge.shares", lambda decoder: (0.1, 0.09))  # a small head, so it can pay
    engine = Engine(pico("llama"), profile=None, settings={"auto": {"budget": 1.0}})
    for number in range(8):
        options: dict[str, Any] = {"max_new_tokens": 100, "temperature": 1.0, "seed": number}  # so it repeats little
        found = engine.generate([3, 1, 4], **options)
        assert found.tokens == engine.generate([3, 1, 4], strategy="off", **options).tokens
    search = strategy_of(engine)._inner
    assert isinstance(search, Swift)
    assert search._search.step > 3
    known = strategy_of(engine).state()["search"]
    again = Engine(pico("llama"), profile=None, settings={"auto": {"budget": 1.0}})
    auto = strategy_of(again)
    auto._searched = json.loads(json.dumps(known))
    again.generate([3, 1, 4], max_new_tokens=60, temperature=1.0)
    assert isinstance(auto._inner, Swift)
    assert auto._inner._search.step >= search._search.step, "it goes on"
    damaged = Engine(pico("llama"), profile=None, settings={"auto": {"budget": 1.0}})
    auto = strategy_of(damaged)
    auto._searched = {**known, "losses": "?"}
    damaged.generate([3, 1, 4], max_new_tokens=60, temperature=1.0)
    assert isinstance(auto._inner, Swift), "it begins again"


def test_no_time_for_a_search_means_none() -> None:
    engine = Engine(pico("llama"), profile=None, settings={"auto": {"budget": 0.0}})
    engine.generate([3, 1, 4], max_new_tokens=120)
    assert not isinstance(strategy_of(engine)._inner, Swift)


# ------------------------------------------------------------------------------------------------ the next process


@pytest.fixture
def keeps(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(learned.SWITCH, "on")
    return home / "learned"


def test_what_was_learned_is_kept_without_text(keeps: Path) -> None:
    engine = Engine(pico("llama"), name="pico")
    assert not keeps.exists()
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    state = json.loads(json.dumps(strategy_of(engine).state()))
    del engine
    gc.collect()
    (file,) = keeps.iterdir()
    document = json.loads(file.read_text())
    assert document["strategies"] == {"auto": state}
    assert str(REPEATS[:3])[1:-1] not in file.read_text(), "no text"
    second = Engine(pico("llama"))
    assert strategy_of(second)._copies.state() == state["copies"]
    assert strategy_of(second)._company(1).costs.is_known
    assert strategy_of(second).state() == {}, "it has learned nothing yet, so nothing is written"
    assert engine_state(Engine(pico("llama"), profile=None)) != state["copies"]
    assert engine_state(second.fork()) != state["copies"], "a fork has seen no text"


def engine_state(engine: Engine) -> Any:
    return strategy_of(engine)._copies.state()


def test_save_writes_at_once(keeps: Path) -> None:
    engine = Engine(pico("llama"))
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    assert engine.save() == learned.path_of(ProfileKey.of(engine.model))
    assert engine.save().is_file()


def prune_alone(*trials: dict[str, Any]) -> Profile:
    known = profile(prune={"frontier": FRONTIER, "trials": list(trials)})
    return replace(known, artefacts={"prune": known.artefacts["prune"]})


def test_what_other_sets_brought_is_not_taken_over(keeps: Path) -> None:
    """Seconds and copies stay known; how the skipped self fares is begun again once the profile has sets for it."""
    engine = Engine(pico("llama"), settings={"auto": {"budget": 0.0}})
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    state = strategy_of(engine).state()
    state["companies"]["0"]["skipping"] |= {"rounds": 9.0, "tokens": 9.0, "seconds": 30.0, "is_hopeless": True}
    knowledge = Engine(pico("llama"), profile=prune_alone()).knowledge.for_methods
    for sets, is_same in (("prune", True), ("swift", False)):
        kept = {**state, "sets": sets}
        company = Auto(Auto.Options(), replace(knowledge, learned=lambda name, kept=kept: kept))._company(1)
        assert company.skipping.is_hopeless == is_same
        assert company.costs.state()["logs"] == state["companies"]["0"]["costs"]["logs"]


def test_a_calibration_tells_how_the_skipped_self_fares() -> None:
    """By its own trial, not by those of other sets; so it is no trial for `auto`, and plain rounds are known."""
    other = {"strategy": "fixed", "mean_generated_length": 9.0, "measured": 9.0}
    own = {"strategy": "prune", "mean_generated_length": 2.5, "measured": 1.25}
    company = strategy_of(Engine(pico("llama"), profile=prune_alone(other, own)))._company(1)
    assert company.skipping.total.rate == pytest.approx(1.25)
    assert company.costs.is_known
    choice = company.choose((), can_skip=True)
    assert (choice.kind, choice.is_trial) == ("skip", False)
    untried = strategy_of(Engine(pico("llama"), profile=prune_alone(other)))._company(1)
    assert not untried.skipping.is_known
    assert not untried.costs.is_known


@pytest.mark.parametrize(
    "trials",
    [
        [{"strategy": "prune", "mean_generated_length": 2.5, "measured": "fast"}],
        [{"strategy": "prune", "mean_generated_length": 10**400, "measured": 1.0}],
        [{"strategy": "prune", "mean_generated_length": 2.5}],
        [5],
        "abc",
        {"a": 1},
    ],
    ids=str,
)
def test_a_damaged_trial_is_as_if_it_were_not_there(trials: Any) -> None:
    """The sets are good all the same."""
    known = prune_alone()
    known = replace(known, artefacts={"prune": Artefact({"frontier": FRONTIER, "trials": trials})})
    engine = Engine(pico("llama"), profile=known)
    assert type(strategy_of(engine)._inner).__name__ == "Prune"
    assert not strategy_of(engine)._company(1).skipping.is_known
    assert engine.generate(REPEATS, max_new_tokens=9).finish_reason == "length"


def test_without_a_clock_nothing_is_tried() -> None:
    """A trial's seconds would be guessed."""
    slow = {"strategy": "prune", "mean_generated_length": 1.2, "measured": 0.6}
    engine = Engine(pico("llama"), profile=prune_alone(slow), settings={"auto": {"clock": False}})
    company = strategy_of(engine)._company(1)
    company.skipping.num_since = 1e9
    assert company.choose((), can_skip=True).kind == "off"
    assert company.skipping.is_known


def test_rows_that_were_told_to_be_alone_teach_nothing_together() -> None:
    """Where rejection tests what was drawn, each text decides as if it were alone."""
    engine = Engine(pico("llama"), profile=prune_alone(), acceptance="rejection")
    engine.generate([REPEATS] * 12, max_new_tokens=9, temperature=0.8)
    assert set(strategy_of(engine)._companies) == {0}
    assert not strategy_of(engine)._company(1).costs.num_rounds


def test_texts_of_one_domain_tell_about_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what the last one has shown, of drafts and of copies."""
    monkeypatch.setattr(Knn, "report", lambda self, sequence_id: {"domain": "rhymes"})
    engine = Engine(pico("llama"), profile=profile(), settings={"auto": {"always": True}})
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    shown = strategy_of(engine)._shown["rhymes"]
    assert shown[0] > 0
    begun: list[Any] = []
    expect = Text.expect
    monkeypatch.setattr(Text, "expect", lambda self, known: (expect(self, known), begun.append(self.shown)))
    engine.generate(PROMPTS[1], max_new_tokens=3)
    assert begun == [tuple(one / 2 for one in shown)]


@pytest.mark.parametrize("content", ["{", "[]", "[" * 200_000, '{"selfdraft_learned": 1, "strategies": null}', "\x00"])
def test_what_is_no_document_is_as_if_it_were_not_there(content: str, keeps: Path) -> None:
    keeps.mkdir(parents=True)
    learned.path_of(ProfileKey.of(pico("llama"))).write_text(content)
    assert Engine(pico("llama")).generate(REPEATS, max_new_tokens=9).finish_reason == "length"


DAMAGE: dict[str, Any] = {
    "copies": {},
    "search": 5,
    "rounds": -1,
    "companies": [],
    "companies.0": {},
    "companies.1000000000000": {},
    "companies.0.costs.scale": 1e9,
    "companies.0.costs.scale ": float("nan"),
    "companies.0.costs.logs": [1e5] * 11,
    "companies.0.costs.counts": [-1] * 11,
    "companies.0.skipping.retry": float("inf"),
    "companies.0.skipping.rounds": -5,
    "companies.0.skipping.rounds ": 9.0,
    "copies.kept": [[10**400] * 4] * 8,
}


@pytest.mark.parametrize("place", DAMAGE)
def test_what_cannot_be_read_is_learned_again(place: str, keeps: Path) -> None:
    engine = Engine(pico("llama"))
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    file = engine.save()
    document = json.loads(file.read_text())
    within, names = document["strategies"]["auto"], place.strip().split(".")
    for name in names[:-1]:
        within = within[name]
    within[names[-1]] = DAMAGE[place]
    file.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="`auto` starts again, for what was kept cannot be read"):
        again = Engine(pico("llama"))
    assert again.generate(REPEATS, max_new_tokens=9).explain().lines


def test_who_names_an_axis_later_loses_nothing(keeps: Path) -> None:
    engine = Engine(pico("llama"))
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    engine.generate(REPEATS, max_new_tokens=4, drafter="lookup")
    rounds = strategy_of(engine).state()["rounds"]
    other = Engine(pico("llama"), settings={"auto": {"saved": False}})
    other.generate(REPEATS, max_new_tokens=4)
    less = Engine(pico("llama"))
    less.generate(REPEATS, max_new_tokens=4)
    del engine, other, less
    gc.collect()
    (file,) = keeps.iterdir()
    assert json.loads(file.read_text())["strategies"]["auto"]["rounds"] >= rounds


def test_what_there_is_to_save(keeps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"))
    with pytest.raises(OptionError, match="'auto' has learned nothing yet, so there is nothing to save"):
        engine.save()
    engine.generate(REPEATS, max_new_tokens=9)
    with pytest.raises(OptionError, match="nothing is kept with a profile of your own, with profile=None"):
        Engine(pico("llama"), profile=None).save()
    engine.save()
    engine.forget()
    assert not strategy_of(engine)._company(1).costs.is_known, "what was kept is not read again"
    monkeypatch.setenv(learned.SWITCH, "off")
    with pytest.raises(OptionError, match="SELFDRAFT_LEARNED=off"):
        Engine(pico("llama")).save()


def test_the_skipped_self_without_a_profile_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.engine.knowledge.measure", None)
    engine = Engine(pico("llama"), profile=None, drafter="self")
    assert engine.generate(REPEATS, max_new_tokens=NUM_TOKENS).explain().done
    with pytest.raises(OptionError, match="unknown drafter 'bogus'"):
        Engine(pico("llama"), settings={"auto": {"drafter": "bogus"}})


def test_texts_that_share_rounds_are_explained_one_by_one() -> None:
    engine = Engine(pico("llama"), profile=profile(), economics=False, settings={"auto": {"always": True}})
    for one in engine.generate(list(PROMPTS[:3]), max_new_tokens=60):
        told = one.explain()
        assert all(done.expected_tokens is not None and done.expected_tokens >= done.num_rounds for done in told.done)


def test_a_folder_that_cannot_be_written_stops_nobody(keeps: Path) -> None:
    keeps.parent.mkdir(parents=True)
    keeps.write_text("a file where the folder should be")
    engine = Engine(pico("llama"))
    engine.generate(REPEATS, max_new_tokens=9)
    del engine
    gc.collect()
    assert keeps.is_file()


def test_a_named_axis_teaches_nothing_about_the_others(keeps: Path) -> None:
    engine = Engine(pico("llama"), drafter="lookup")
    engine.generate(REPEATS, max_new_tokens=NUM_TOKENS)
    del engine
    gc.collect()
    assert not keeps.exists()


# ------------------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize("method", [{}, {"strategy": "uniform"}, {"strategy": "off"}, {"drafter": "lookup"}], ids=str)
def test_explain_tells_every_round(method: dict[str, str]) -> None:
    engine = Engine(pico("llama"), profile=profile())
    found = engine.generate(REPEATS, max_new_tokens=NUM_TOKENS, **method)
    told = found.explain()
    assert told.num_tokens == len(found.tokens) == sum(tokens for _, _, tokens, _ in told.rounds)
    assert len(told.rounds) == found.stats.num_rounds == sum(one.num_rounds for one in told.done)
    assert told.seconds == pytest.approx(found.stats.draft_seconds + found.stats.verify_seconds)
    assert 2 <= len(told.lines) <= 6
    assert str(told).startswith(f"{NUM_TOKENS} tokens in {found.stats.num_rounds} rounds, ")
    assert json.loads(json.dumps(told.to_dict()))["tokens_per_second"] == told.tokens_per_second
    is_auto = "strategy" not in method
    assert (told.expected_tokens_per_second is not None) == is_auto
    assert all((one.expected_tokens is not None) == is_auto for one in told.done)


@pytest.mark.parametrize("known", [True, False], ids=["profile", "no profile"])
def test_what_it_may_do_is_recorded_beforehand(known: bool) -> None:
    engine = new_engine(pico("llama"), strategy="auto", profile=profile() if known else None)
    engine.prepare(64)
    before = set(engine.runner.graph_keys)
    found = engine.generate(REPEATS, max_new_tokens=30)
    assert found.explain().done
    assert before
    assert set(engine.runner.graph_keys) == before
