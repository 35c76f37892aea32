"""Calibration on pico models: what it finds, what it keeps, and how it goes on. No pass is timed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import learned
from pico import NUM_LAYERS, letter_tokenizer, pico
from selfdraft import Engine, OptionError
from selfdraft.calibrate import calibrate as module
from selfdraft.calibrate.calibrate import CalibrateOptions, calibrate, methods_of, shortest_first, thinned, usual_skip
from selfdraft.calibrate.fit_session import EngineKit, FitSession, ScoredTexts
from selfdraft.calibrate.writing import Text, probe_text, write_texts
from selfdraft.cli import terminal
from selfdraft.cli.calibrate import advice
from selfdraft.cli.main import main
from selfdraft.cli.parsers.learn import seconds
from selfdraft.cli.profile_text import as_text
from selfdraft.measure.run import Measurement, MeasurePlan
from selfdraft.profiles.contents import KnownSet
from selfdraft.profiles.store import Store
from selfdraft.progress import no_progress
from selfdraft.prompts.arrange import hold_out, in_turn
from selfdraft.strategies.elimination import eliminate, sample
from selfdraft.strategies.prune import savings
from selfdraft.types import FrontierPoint, Prompt, SkipSet
from test_knapsack import zeroed

PROMPTS = [
    Prompt("a1", "a", tokens=(5, 6, 7, 8)),
    Prompt("a2", "a", tokens=(9, 8, 7)),
    Prompt("a3", "a", tokens=(1, 2, 3, 4, 5)),
    Prompt("b1", "b", tokens=(20, 30, 40)),
    Prompt("b2", "b", tokens=(50, 60)),
]
Watch = Callable[[Callable[[], None]], None]
QUICK = CalibrateOptions(budget_seconds=600, num_tokens=24, num_trial_prompts=0)


@pytest.fixture(autouse=True)
def short_trials(home: Path, untimed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.calibrate.calibrate.TRIAL_TOKENS", 12)


@pytest.fixture
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None, strategy="off")


def frontier_of(profile: Any) -> list[dict[str, Any]]:
    return list(profile.artefacts["prune"].values["frontier"])


def journals(home: Path) -> list[str]:
    return sorted(path.name.split("-")[1] for path in home.rglob("journal-*.json"))


# ------------------------------------------------------------------------------------------------ texts and prompts


def test_a_quarter_of_each_domain_is_held_out() -> None:
    many = [Prompt(str(n), "many", tokens=(n,)) for n in range(8)]
    alone = Prompt("alone", "alone", tokens=(99,))
    again = Prompt("again", "other", tokens=many[2].tokens)
    fitting, held_out = hold_out([*many, *PROMPTS, alone, again])
    assert [prompt.id for prompt in held_out] == ["6", "7", "a3", "b2"]
    assert {prompt.id for prompt in fitting}.isdisjoint(prompt.id for prompt in held_out)
    assert alone in fitting
    assert len(fitting) + len(held_out) == len(many) + len(PROMPTS) + 1


@pytest.mark.parametrize(("num_tokens", "each", "count"), [(33, 6, 5), (3, 1, 3)])
def test_texts_are_what_the_model_says(engine: Engine, num_tokens: int, each: int, count: int) -> None:
    told = mock.Mock()
    journal = Store().journal(engine.knowledge.key, "texts", {})
    texts = write_texts(engine, PROMPTS, num_tokens, journal, told)
    for prompt, text in zip(PROMPTS[:count], texts, strict=True):
        alone = engine.generate(prompt.tokens, max_new_tokens=each, strategy="off")
        assert text == Text((*prompt.tokens, *alone.tokens), len(prompt.tokens))
    assert told.call_args.args[:2] == (each * count, each * count)


def test_texts_are_not_written_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = mock.Mock(wraps=engine.stream)
    monkeypatch.setattr(engine, "stream", stream)
    journal = Store().journal(engine.knowledge.key, "texts", {})
    texts = write_texts(engine, PROMPTS, 30, journal, no_progress)
    assert write_texts(engine, PROMPTS, 30, journal, no_progress) == texts
    del journal.done["3"]
    assert write_texts(engine, PROMPTS, 30, journal, no_progress) == texts
    assert [len(call.args[0]) for call in stream.call_args_list] == [1, 4, 1]


@pytest.mark.parametrize("num_rows", [1, 16])
def test_texts_are_of_the_first_prompts(engine: Engine, monkeypatch: pytest.MonkeyPatch, num_rows: int) -> None:
    """Whatever an earlier run wrote, and however little time there is: fits go by the prompts in front of them."""
    monkeypatch.setattr("selfdraft.calibrate.writing.rows_at_once", lambda engine: num_rows)
    journal = Store().journal(engine.knowledge.key, "texts", {})
    write_texts(engine, PROMPTS, 30, journal, no_progress)
    for number in "0", "3":
        del journal.done[number]
    texts = write_texts(engine, PROMPTS, 30, journal, no_progress, lambda expected: False)
    assert len(texts) == 3
    for prompt, text in zip(PROMPTS, texts, strict=False):
        assert text.tokens[: text.num_prompt_tokens] == prompt.tokens


def test_a_fit_to_some_of_the_texts_is_not_complete(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that time left out are written by a later run, and fitted to."""
    monkeypatch.setattr("selfdraft.calibrate.writing.rows_at_once", lambda engine: 1)
    journals: dict[str, Any] = {}

    def journal(name: str, **question: Any) -> Any:
        return journals.setdefault(f"{name} {question}", Store().journal(engine.knowledge.key, name, question))

    session = FitSession(engine, 20, journal)
    some = session.write(PROMPTS, has_time=lambda expected: not any(one.done for one in journals.values()))
    assert [text.is_whole for text in some.texts] == [True]
    assert not session.fit("asd", {}, PROMPTS, 600, texts=some)["is_complete"]
    every = session.write(PROMPTS)
    assert len(every.texts) == len(PROMPTS)
    assert session.fit("asd", {}, PROMPTS, 600, texts=every)["is_complete"]


def test_what_was_refused_once_stays_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where there is time for a shorter step afterwards."""
    now = [0.0]
    monkeypatch.setattr("selfdraft.progress.perf_counter", lambda: now[0])
    engine.remember(learned.profile())
    journal = Store().journal(engine.knowledge.key, "asd", {})
    kit = EngineKit(FitSession(engine, 20, mock.Mock()), PROMPTS, mock.Mock(), journal, 10, "")
    now[0] = 6.0
    assert not kit.has_time()
    assert kit.has_time()
    assert kit.is_out_of_time


@pytest.mark.parametrize("num_generated", [1, 2, 9])
def test_a_look_sees_the_generated_tokens_coming(engine: Engine, num_generated: int) -> None:
    """What the target says after the probed tokens is what it generated."""
    prompt = [5, 6, 7, 8]
    generation = engine.generate(prompt, max_new_tokens=num_generated, strategy="off")
    looked = sample(probe_text(Text((*prompt, *generation.tokens), len(prompt)), engine.runner))
    assert looked.choices.tolist() == list(generation.tokens)


# ------------------------------------------------------------------------------------------------ the fit


@pytest.mark.parametrize("planted", ["a2", "m3"])
def test_what_does_nothing_goes_first(planted: str) -> None:
    skip = SkipSet.parse(planted)
    idle = Engine(zeroed(sorted(skip.attention), sorted(skip.mlp)), profile=None, strategy="off")
    profile = calibrate(idle, PROMPTS, options=QUICK)
    first, second, *_ = frontier_of(profile)
    assert (first["skip"], first["match"]) == ("", 1.0)
    assert (second["skip"], second["match"]) == (planted, 9 / 10), "eight tokens of eight are no certainty"


@pytest.mark.parametrize("planted", ["a2", "m3", "a2,m3"])
def test_knapspec_keeps_the_sets_that_promise_most(planted: str) -> None:
    """What does nothing goes in all of them."""
    skip = SkipSet.parse(planted)
    idle = Engine(zeroed(sorted(skip.attention), sorted(skip.mlp)), profile=None, strategy="off")
    profile = calibrate(idle, PROMPTS, ["knapspec"], QUICK)
    values = profile.artefacts["knapspec"].values
    known = {SkipSet.parse(one["skip"]): one["match"] for one in values["known"]}
    assert 1 <= len(known) <= 8
    assert all(skip.numbers <= one.numbers for one in known)
    assert values["is_complete"]
    told = as_text(profile, NUM_LAYERS)
    assert f"({terminal.number(len(known), 'set')} to choose among)" in told
    assert [line.split()[0] for line in told.splitlines() if line.startswith(("  64 ", "  512"))] == ["64", "512"]


def test_an_interrupted_fit_of_sets_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("knapspec", "asd"):
        whole, other = (Engine(pico("llama"), profile=None, strategy="off", name=f"{name}{n}") for n in range(2))
        expected = calibrate(whole, PROMPTS, [name], QUICK).artefacts[name].values
        Store().remove(whole.knowledge.key)
        honest, num_kept = EngineKit.keep, itertools.count()

        def keep(kit: Any, found: Any, honest: Any = honest, num_kept: Any = num_kept) -> None:
            honest(kit, found)
            if next(num_kept) == 1:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(EngineKit, "keep", keep)
            with pytest.raises(KeyboardInterrupt):
                calibrate(other, PROMPTS, [name], QUICK)
        found = calibrate(other, PROMPTS, [name], QUICK).artefacts[name].values
        assert {**found, "seconds": 0} == {**expected, "seconds": 0}


@pytest.mark.parametrize("attention", [[2], [1, 3]])
def test_asd_finds_rules_for_the_model(attention: list[int]) -> None:
    """Attentions that do nothing have a cosine of 1; skipping these and nothing else is always right, and saves."""
    idle = Engine(zeroed(attention, []), profile=None, strategy="off")
    profile = calibrate(idle, PROMPTS, ["asd"], CalibrateOptions(600, 24, 0, settings={"asd": {"every": 0, "last": 1}}))
    values = profile.artefacts["asd"].values
    assert [layer for layer, cosine in enumerate(values["cosines"]) if cosine > 1 - 1e-5] == attention
    assert (values["every"], values["last"]) == (0, 1)
    assert values["predicted"] >= 1
    told = as_text(profile, NUM_LAYERS)
    assert f"  similarity {values['similarity']:g}, every 0, last 1: match " in told
    assert f"{attention[0]:4} 1.0000" in told
    found = idle.generate([3, 1, 4, 1, 5], max_new_tokens=6, strategy="asd")
    assert set(attention) <= set(found.steps[0].plan.skip.attention), "as calibrated"
    assert (
        idle.generate([3, 1], max_new_tokens=2, strategy="asd", settings={"asd": {"every": 2}}).steps[0].plan.skip.mlp
    )


def test_what_is_kept(engine: Engine, home: Path) -> None:
    profile = calibrate(engine, PROMPTS, options=QUICK)
    values = profile.artefacts["prune"].values
    expected = {"num_texts": 3, "num_tokens": 24, "domains": ["b", "a"], "is_complete": True, "trials": []}
    assert {name: values[name] for name in expected} == expected
    assert profile.latency == json.loads(json.dumps(learned.latency().to_json()))
    assert engine.knowledge.profile_in_use is profile
    assert frontier_of(Store().load(engine.knowledge.key)) == frontier_of(profile)
    assert journals(home) == []

    fitting, _ = hold_out(PROMPTS)
    journal = Store().journal(engine.knowledge.key, "again", {})
    *chose, last = write_texts(engine, shortest_first(in_turn(fitting), 24), 24, journal, no_progress)
    choosing, held_out = ScoredTexts(engine.runner, chose), ScoredTexts(engine.runner, [last])
    seconds = savings(learned.latency())
    points = eliminate([sample(probe) for probe in choosing.probes], seconds, num_ranking=1)
    for point, known in zip(frontier_of(profile), points, strict=True):
        assert SkipSet.parse(point["skip"]).numbers == known.skipped, "the last text has not chosen it"
        match = held_out.match(SkipSet.parse(point["skip"]))
        told = (8 * match + 1) / 10 if point["skip"] else 1.0
        assert point["match"] == pytest.approx(told), "and tells how good it is, with few tokens never quite"


@pytest.fixture
def before_keeping(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Calls something before the result of each step is kept."""
    honest = EngineKit.keep

    def watch(act: Callable[[], None]) -> None:
        monkeypatch.setattr(EngineKit, "keep", lambda kit, found: (act(), honest(kit, found)))

    return watch


def interruption(number: int) -> mock.Mock:
    """Ctrl-C the n-th time."""
    return mock.Mock(side_effect=(KeyboardInterrupt if n == number else None for n in itertools.count(1)))


@pytest.mark.parametrize("number", [1, 4])
def test_an_interrupted_fit_goes_on(
    engine: Engine, number: int, home: Path, before_keeping: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_keeping(interrupted := interruption(number))
    with pytest.raises(KeyboardInterrupt):
        calibrate(engine, PROMPTS, options=QUICK)
    assert "prune" not in Store().load(engine.knowledge.key).artefacts
    assert "texts" in journals(home)

    said: list[str] = []
    resumed = calibrate(engine, PROMPTS, options=QUICK, say=said.append)
    assert journals(home) == []
    assert any(f"going on after {number - 1} steps" in line for line in said) == (number > 1)
    num_steps = interrupted.call_count - 1

    monkeypatch.setenv("SELFDRAFT_HOME", str(home / "fresh"))
    assert frontier_of(resumed) == frontier_of(calibrate(engine, PROMPTS, options=QUICK))
    assert num_steps == len(frontier_of(resumed)), "no step was done twice"


def test_another_question_begins_again(engine: Engine, before_keeping: Watch) -> None:
    before_keeping(interruption(4))
    with pytest.raises(KeyboardInterrupt):
        calibrate(engine, PROMPTS, options=QUICK)
    said: list[str] = []
    calibrate(engine, PROMPTS[1:], options=QUICK, say=said.append)
    assert not any("going on" in line for line in said)


@pytest.fixture
def clock(before_keeping: Watch, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The budget's time: it stands still, but each step that is kept takes N seconds."""
    now = [0.0]
    monkeypatch.setattr("selfdraft.progress.perf_counter", lambda: now[0])
    return lambda seconds: before_keeping(lambda: now.__setitem__(0, now[0] + seconds))


def test_the_budget_ends_a_fit_that_goes_on_later(engine: Engine, home: Path, clock: Callable[[float], None]) -> None:
    whole = frontier_of(calibrate(engine, PROMPTS, options=QUICK))
    Store().remove(engine.knowledge.key)

    clock(200)  # of the 600, 480 are for the fit: no third step would be over by then
    partial = calibrate(engine, PROMPTS, options=QUICK)
    assert partial.artefacts["prune"].values["is_complete"] is False
    assert frontier_of(partial) == whole[:2]
    assert partial.artefacts["prune"].values["seconds"] == 400
    assert journals(home) == ["prune", "texts"]

    further = calibrate(engine, PROMPTS, options=QUICK)
    assert frontier_of(further) == whole[:4]
    clock(0)
    assert frontier_of(calibrate(engine, PROMPTS, options=QUICK)) == whole
    assert journals(home) == []


def test_who_has_more_to_search_for_has_more_of_the_time(engine: Engine, clock: Callable[[float], None]) -> None:
    """`knn` has its vectors, a search for each domain and one for all."""
    said: list[str] = []
    calibrate(engine, PROMPTS, ("prune", "knn", "asd"), QUICK, say=said.append)
    num_domains = len({prompt.domain for prompt in PROMPTS})
    shares = {"prune": 1 / (num_domains + 4), "knn": (num_domains + 2) / (num_domains + 3), "asd": 1.0}
    times = [f"fitting {name}, for at most {0.8 * 600 * share:.0f} s" for name, share in shares.items()]
    assert num_domains > 1
    assert [line for line in said if line.startswith("fitting")] == times


def test_the_budget_never_costs_a_complete_result(engine: Engine, clock: Callable[[float], None]) -> None:
    whole = frontier_of(calibrate(engine, PROMPTS, options=QUICK))
    clock(200)
    said: list[str] = []
    again = calibrate(engine, PROMPTS, options=QUICK, say=said.append)
    assert frontier_of(again) == whole
    assert any("keeps the complete result" in line for line in said)


def test_a_tiny_budget_is_enough_for_a_beginning(engine: Engine, clock: Callable[[float], None]) -> None:
    """The frontier's first point skips nothing: there is nothing to try yet."""
    clock(1000)
    profile = calibrate(engine, PROMPTS, options=CalibrateOptions(600, 24))
    assert [point["skip"] for point in frontier_of(profile)] == [""]
    assert profile.artefacts["prune"].values["trials"] == []


def test_latency_is_measured_once_unless_asked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = mock.Mock(return_value=learned.latency())
    monkeypatch.setattr(module, "measure", measure)
    for options in (CalibrateOptions(50, 24, 0), QUICK, CalibrateOptions(600, 24, 0, again=True)):
        calibrate(engine, PROMPTS, options=options)
    budgets = [call.kwargs["budget_seconds"] for call in measure.call_args_list]
    assert budgets == pytest.approx([10, 30], rel=0.1), "a fifth of the budget"


@pytest.mark.parametrize("damage", ["profile", "latency"])
def test_a_damaged_profile_is_made_again_and_named(engine: Engine, damage: str) -> None:
    whole = calibrate(engine, PROMPTS, options=QUICK)
    path = Store().path_of(engine.knowledge.key)
    if damage == "profile":
        path.write_text("{", encoding="utf-8")
    else:
        Store().set_latency(engine.knowledge.key, {"mlp_seconds": "slow"})
    said: list[str] = []
    repaired = calibrate(engine, PROMPTS, options=QUICK, say=said.append)
    assert any(("could not be used" in line and str(path) in line) or "cannot be read" in line for line in said)
    assert (frontier_of(repaired), repaired.latency) == (frontier_of(whole), whole.latency)


# ------------------------------------------------------------------------------------------------ trials


def test_trials(engine: Engine) -> None:
    told = mock.Mock()
    profile = calibrate(engine, PROMPTS, ["prune", "knapspec"], CalibrateOptions(600, 24), progress=told)
    trials = profile.artefacts["prune"].values["trials"]
    assert [trial["strategy"] for trial in trials] == ["prune", *["fixed"] * 4]
    matches = {point["skip"]: point["match"] for point in frontier_of(profile)}
    for trial in trials:
        assert trial["match"] == matches[trial["skip"]]
        # what is predicted is of texts as long as those that were measured: prompts of 5 and 2 tokens, half of 12 more
        assert trial["num_context"] == round((5 + 2) / 2 + 6)
        assert (trial["predicted"] == 1.0) is not bool(trial["skip"])
        assert (trial["num_tokens"], trial["num_prompts"]) == (24, 2)
        assert trial["measured"] > 0
        assert 0 <= trial["acceptance_rate"] <= 1
        assert trial["is_faster"] is False, "two prompts are too few to be sure of anything"
        assert engine.names(**trial["method"])["strategy"] == trial["strategy"]
    assert all(trial["skip"] and trial["mean_generated_length"] > 1 for trial in trials[1:])
    assert [trial["method"].get("settings", {}).get("fixed", {}).get("skip", "") for trial in trials[1:]] == [
        trial["skip"] for trial in trials[1:]
    ]
    (knapspec,) = profile.artefacts["knapspec"].values["trials"]
    assert "frontier" not in profile.artefacts["knapspec"].values
    assert knapspec["strategy"] == "knapspec"
    percents = [done for (done, _, label), _ in told.call_args_list if label.startswith("fitting prune")]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    told.assert_any_call(2, 2, "texts measured")


def test_what_is_predicted() -> None:
    fit, skip = learned.latency(), SkipSet.parse("a1-2,m2-3")
    speeds = [KnownSet.at(fit.at(100), skip, match).predicted or 0.0 for match in (0.0, 0.7, 0.95)]
    assert 0 < speeds[0] < 1 < speeds[1] < speeds[2]


def test_the_usual_skip_set(engine: Engine) -> None:
    """That of most draft passes; none where most rounds were plain."""
    engine.remember(learned.profile())
    methods = {"a2": {"strategy": "fixed", "settings": {"fixed": {"skip": "a2"}}}}
    found = Measurement(engine, MeasurePlan(PROMPTS[:2], methods, max_new_tokens=16)).run().all_of
    drafted, plain = found.of("a2"), found.of("off")
    assert str(usual_skip(drafted)) == "a2"
    assert usual_skip([*drafted[:1], *3 * plain]) == SkipSet()


def test_fixed_sets_draft_as_the_strategy_does() -> None:
    points = [FrontierPoint(SkipSet.of(attention=range(1, count)), 0.0, 1.0) for count in range(1, 20)]
    methods = methods_of("prune", points)
    assert methods.pop("prune") == {"strategy": "prune"}
    fixed = list(methods.values())
    assert len(fixed) == 4
    assert all((method["lookahead"], method["tree"]) == ("confidence", "siblings") for method in fixed)
    assert all(method["settings"]["siblings"]["lookup"] == 2 for method in fixed)
    assert [method["settings"]["fixed"]["skip"] for method in fixed] == list(methods)


def test_thinned() -> None:
    assert thinned(range(100), 4) == [0, 33, 66, 99]
    assert thinned([1, 2], 4) == [1, 2]


@pytest.mark.parametrize("strategy", ["off", "fixed"])
def test_nothing_to_learn(engine: Engine, strategy: str) -> None:
    with pytest.raises(OptionError, match=f"nothing to learn for the strategy '{strategy}'.*prune"):
        calibrate(engine, PROMPTS, [strategy])


# ------------------------------------------------------------------------------------------------ the command


def test_the_command(folder: str, prompts: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", folder, "--prompts", prompts, "--tokens", "24", "--trial-prompts", "1"]) == 0
    output = capsys.readouterr()
    told = r"\(both over plain decoding of the same texts, 1 prompt held out from calibration, after about \d+ tokens\."
    assert re.search(told, output.out)
    assert "predicted: the same rounds, by the milliseconds of their passes alone)" in output.out
    for text in ("milliseconds", "plain pass", "skipped sub-layers", "predicted", "measured", str(home), "1 prompt "):
        assert text in output.out
    assert f'selfdraft generate --model {folder} --strategy prune "' in output.out
    assert "fitting prune" in output.err

    asked = ["--max-new-tokens", "20", "--json", "abc"]
    assert main(["generate", "--model", folder, "--strategy", "prune", "--set", "prune.always=true", *asked]) == 0
    output = capsys.readouterr()
    drafted = json.loads(output.out)
    assert drafted["stats"]["num_draft_steps"] > 0
    assert output.err.count("profile: latency, prune") == 1
    assert main(["generate", "--model", folder, "--strategy", "off", *asked]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["tokens"] == drafted["tokens"]
    assert output.err == "", "a strategy that asks for nothing uses no profile"
    measure = ["bench", folder, "--prompts", prompts, "--per-domain", "1", "--max-new-tokens", "4", "--peers", "none"]
    assert main([*measure, "--strategy", "prune"]) == 0
    assert capsys.readouterr().err.count("profile: latency, prune") == 1


def test_the_command_interrupted(
    folder: str, prompts: str, before_keeping: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["calibrate", folder, "--prompts", prompts, "--tokens", "24", "--trial-prompts", "0"]
    assert main(command) == 0
    whole = capsys.readouterr().out
    before_keeping(interruption(3))
    assert main(command) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert main(["generate", "--model", folder, "--strategy", "prune", "--max-new-tokens", "4", "abc"]) == 0, "intact"
    capsys.readouterr()
    assert main(command) == 0
    output = capsys.readouterr()
    assert "going on after 2 steps" in output.err
    rows, expected = ([line for line in text.splitlines() if "%" in line] for text in (output.out, whole))
    assert rows == expected


def test_the_command_says_that_the_budget_ended_it(
    folder: str, prompts: str, clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    clock(20)
    assert main(["calibrate", folder, "--prompts", prompts, "--tokens", "24", "--budget", "60s"]) == 0
    output = capsys.readouterr().out
    assert "prune: the budget of 60s ended the fit; the same command with a larger --budget goes on" in output
    assert "incomplete" in output


def test_without_a_profile_the_command_is_named(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", folder, "--strategy", "prune", "abc"]) == 2
    assert f"Run: selfdraft calibrate {folder} --strategy prune" in capsys.readouterr().err


def test_planning_is_told_where_it_takes_time(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["generate", "--model", folder, "--strategy", "uniform", "--max-new-tokens", "6", "abc"]
    for limit in (0.0, 1.0):
        monkeypatch.setattr("selfdraft.cli.generate.WORTH_TELLING", limit)
        assert main(asked) == 0
        assert ("planning took" in capsys.readouterr().err) == (limit == 0.0)


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5H", 5400), (" 2 h ", 7200)])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


def test_a_damaged_part_does_not_hide_the_others() -> None:
    broken = learned.profile(other={"frontier": [{"skip": "b9"}]})
    text = as_text(broken, NUM_LAYERS)
    assert "other: cannot be read" in text
    assert "1 attention, 0 MLP" in text


def test_progress_tells_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a bar, and only by what was done now."""
    now = [100.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(terminal, "_new_bar", lambda *values: None)
    with terminal.Progress(unit="") as progress:
        progress(10, 50, "fitting")
        now[0] += 60
        progress(20, 50, "fitting")
    assert capsys.readouterr().err.splitlines() == ["fitting: 10 of 50", "fitting: 20 of 50, about 3 min left"]


# ------------------------------------------------------------------------------------------------ several strategies


def test_strategies_share_the_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.progress.perf_counter", lambda: 0.0)
    said: list[str] = []
    options = CalibrateOptions(1000, 24, 0, settings={"draft-verify": {"iterations": 1, "num_tokens": 2}})
    calibrate(engine, PROMPTS, ["prune", "draft-verify"], options, say=said.append)
    assert "fitting prune, for at most 400 s" in said
    assert "fitting draft-verify, for at most 800 s" in said, "nothing was spent"


def test_without_time_nothing_is_begun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(engine, PROMPTS, ["uniform"], QUICK)  # what passes take is known then
    monkeypatch.setattr("selfdraft.progress.Budget.left", lambda budget, share=1.0: 0.0)
    said: list[str] = []
    profile = calibrate(engine, PROMPTS, ["swift", "knn"], QUICK, say=said.append)
    assert list(profile.artefacts) == ["uniform"]
    assert [text.split(";")[0] for text in said[-2:]] == ["swift: no time is left", "knn: no time is left"]


def test_prompts_come_in_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fit = "selfdraft.strategies.prune.Prune.fit"
    monkeypatch.setattr(fit, staticmethod(lambda kit, options: seen.extend(p.id for p in kit.prompts) or {}))
    calibrate(engine, PROMPTS, ["prune"], QUICK)
    assert seen == ["b1", "a1", "a2"], "but for the shortest, which comes first"


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([], ""),
        (
            [{"strategy": "prune", "is_faster": False}],
            "; of what was tried nothing was surely faster than plain decoding",
        ),
        (
            [{"strategy": "prune", "is_faster": True, "measured": 1.2, "method": {"strategy": "prune"}}],
            "; of what was tried prune was the fastest",
        ),
    ],
)
def test_what_the_default_is_now(trials: list[Any], told: str) -> None:
    known = learned.profile(prune={"frontier": learned.FRONTIER, "trials": trials})
    options = argparse.Namespace(strategy=["prune"], set=[], model=None, budget=seconds("60s"))
    lines = advice(known, options)
    assert f"`auto`, the default, drafts with the sets of `knn` from now on{told}" in lines
    assert lines[-1].startswith("use it with: ")
    without = dataclasses.replace(
        known, artefacts={name: one for name, one in known.artefacts.items() if name == "draft-verify"}
    )
    assert "`auto` stays the default" in advice(without, options)
    nothing = learned.profile(prune={"frontier": learned.FRONTIER[:1], "trials": []})
    assert not any(line.startswith("use it with: ") for line in advice(nothing, options)), "it would fail"
    alone = dataclasses.replace(nothing, artefacts={"prune": nothing.artefacts["prune"]})
    assert "`auto` stays the default" in advice(alone, options), "it has no set"
