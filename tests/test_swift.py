"""`swift`: which tokens it scores, what it finds in planted models, what it keeps, and when it rests. Nothing is timed.

Its search alone, and the clock that it goes by, are in test_swift_search.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import learned
from cases import SAMPLED
from pico import NUM_LAYERS, pico
from rounds import step_of
from selfdraft import Engine, OptionError, ProfileError, SkipSet
from selfdraft.calibrate.calibrate import CalibrateOptions, calibrate
from selfdraft.calibrate.fit_session import FitSession
from selfdraft.profiles.store import Store
from selfdraft.protocols import PlanContext
from selfdraft.registry import resolve
from selfdraft.strategies import swift as module
from selfdraft.strategies.draft_switch import RETRY, TRIAL
from selfdraft.strategies.matching import Matched, choices, matched
from selfdraft.strategies.swift import Swift
from selfdraft.strategies.swift_search import SwiftOptions
from selfdraft.types import OFF, Plan, StepRecord
from test_calibrate import PROMPTS
from test_knapsack import TEXT, probe_of, zeroed


def round_of(num_drafted: int, num_accepted: int = 0, seconds: float = 0.01, **others: Any) -> StepRecord:
    return step_of(num_drafted, num_accepted, seconds=(0.0, seconds), **others)


EAGER = {"budget": 1.0, "always": True, "tolerance": 0.0, "enough": 1.0, "candidates": 8}
"""What it does depends on no clock, and the paper's ratio stays."""
CHAIN = {"lookahead": "confidence", "tree": "chain"}
SURE = {"confidence": {"threshold": 0.0, "max_tokens": 4}}
both = pytest.mark.parametrize("paper", [True, False], ids=["paper", "ours"])


def made(model: Any = None, profile: Any = None, **options: Any) -> Engine:
    profile = profile or learned.profile()
    return Engine(model or pico("llama"), name="pico", profile=profile, strategy="swift", settings={"swift": options})


def swift_of(engine: Engine, **method: Any) -> Swift:
    strategy = engine.method(**method).strategy
    assert isinstance(strategy, Swift)
    return strategy


def alone(known: Any = None, fit: Any = None, num_layers: int = NUM_LAYERS, **options: Any) -> Swift:
    """Without an engine, with one text begun."""
    knowledge = replace(learned.knowledge(num_layers, fit), known=lambda name: known or {})
    strategy = Swift(SwiftOptions(**options), knowledge)
    strategy.begin(0, {})
    return strategy


# ------------------------------------------------------------------------------------------------ what is scored


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_sets_beside_each_other_are_as_each_alone(family: str) -> None:
    probe = probe_of(pico(family), 12)
    texts = ["a1-3,m1-3", "", "a1,m3", "m1-2", "a1-4", "a1,m1", "m0-4"]
    skips = [SkipSet.parse(text).numbers for text in texts]
    together = choices(probe, skips)
    assert together.shape == (len(skips), 12)
    assert torch.equal(together, torch.cat([choices(probe, [skip]) for skip in skips]))
    assert len({tuple(row) for row in together.tolist()}) > 4, "they differ"
    scores = Engine(pico(family)).scores_behind(TEXT, 12)
    assert torch.equal(together[1], scores.argmax(-1))
    assert not torch.equal(together[0], scores.argmax(-1))
    wanted = torch.arange(12)
    found = matched(probe, skips, wanted.tolist())
    assert torch.equal(found.hits, together == wanted)
    assert torch.allclose(found.log_probs[1], scores.float().log_softmax(-1)[wanted, wanted], atol=1e-4)
    assert not torch.allclose(found.log_probs[0], found.log_probs[1], atol=1e-2)


def all_right(points: Sequence[Any], count: int) -> Matched:
    return Matched(torch.ones(len(points), count, dtype=torch.bool), torch.zeros(len(points), count))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens that were looked at; every set would draft the number that follows each."""
    found: list[list[int]] = []

    def counting(probe: list[int], points: Sequence[Any], wanted: Sequence[int]) -> Matched:
        assert list(wanted) == [token + 1 for token in probe]
        found.append(probe)
        return all_right(points, len(probe))

    monkeypatch.setattr(module, "matched", counting)
    return found


def context_of(num_prompt: int, num_generated: int) -> PlanContext:
    """A text that counts; the last `num_generated` tokens of it are generated."""
    tokens = list(range(num_prompt + num_generated))

    def probe(count: int, before: int = 0) -> Any:
        end = len(tokens) - before
        assert end >= count, "there are not that many tokens"
        return tokens[end - count : end]

    return PlanContext(len(tokens), num_generated, probe, tokens)


@pytest.mark.parametrize("num_prompt", [1, 5, 40])
@pytest.mark.parametrize(
    ("paper", "num_generated", "wanted"),
    [
        (True, 8, range(8)),
        (True, 9, range(8)),
        (True, 50, range(8)),  # the first ones, for ever
        (False, 8, range(8)),
        (False, 9, range(1, 9)),
        (False, 50, range(42, 50)),  # the last ones
    ],
)
def test_which_tokens_are_scored(
    looked: list[list[int]], num_prompt: int, paper: bool, num_generated: int, wanted: range
) -> None:
    strategy = (alone if paper else ranked)(window=8, paper=paper, budget=1.0, enough=1.0)
    strategy.plan(0, context_of(num_prompt, num_generated))
    assert looked == [[num_prompt + index - 1 for index in wanted]], "those in front of the wanted ones"
    (row,) = strategy.state()["steps"]
    assert row["matchness"] == strategy.state()["matchness"] == 1.0


@pytest.mark.parametrize("num_prompt", [1, 5, 40])
def test_tokens_of_the_prompt_are_scored_where_few_were_generated(looked: list[list[int]], num_prompt: int) -> None:
    """As many as a power of two, as far as the window goes."""
    strategy = alone(window=40, budget=1.0)
    strategy.plan(0, context_of(num_prompt, 32))
    last = num_prompt + 32 - 1
    assert looked == [list(range(last - (40 if last >= 64 else 32), last))]
    assert (strategy.state()["step"], strategy.state()["steps"]) == (1, []), "a ranking has no matchness"


@pytest.mark.parametrize(
    ("is_recorded", "paper", "window", "num_rows"), [(True, False, 256, 8), (False, False, 64, 5), (True, True, 32, 1)]
)
def test_windows_are_longer_where_passes_are_recorded(
    looked: list[list[int]], is_recorded: bool, paper: bool, window: int, num_rows: int
) -> None:
    fit = learned.latency(num_layers=20, is_recorded=is_recorded)
    strategy = alone(fit=fit, num_layers=20, paper=paper, budget=1.0, always=True, enough=1.0)
    assert len(strategy._search.candidates()) == num_rows
    strategy.plan(0, context_of(4, 31))
    assert looked == []
    for number, num_generated in enumerate((32, 64, 1000), 1):
        strategy.plan(0, context_of(4, num_generated))
        strategy.observe(0, round_of(1))
        assert len(looked[-1]) == min(num_generated, window)
        assert len(looked) == number


def ranked(**options: Any) -> Swift:
    """With a set that was found by what it matches."""
    strategy = alone(**{"window": 8, "budget": 1.0, "enough": 1.0, "candidates": 6, **options})
    while strategy.state().get("last_review", 0) is None:
        points = strategy._search.candidates()
        strategy._search.judge(points, all_right(points, 8), 0)
    strategy.plan(0, context_of(4, 0))
    return strategy


def test_tokens_count_as_known_once(looked: list[list[int]]) -> None:
    strategy = ranked(always=True)
    known = []
    for num_generated in (8, 9, 10, 15, 60):
        strategy.plan(0, context_of(3, num_generated))
        strategy.observe(0, round_of(1))
        (size, kept) = (strategy.state()[name] for name in ("size", "kept"))
        known.append(kept[str(size)]["num_known"])
    assert len(looked) == 4, "of nine too few are new"
    assert known == [4, 4, 6, 10, 14], "never more than are held out"


@both
@pytest.mark.parametrize("num_prompt", [1, 13])
def test_the_whole_model_matches_itself(paper: bool, num_prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine: one token off, and hardly any would match. What a set drafts there is in test_probe.py."""
    whole = [frozenset()]
    monkeypatch.setattr(module, "matched", lambda probe, points, wanted: matched(probe, whole * len(points), wanted))
    engine = made(window=4, paper=paper, **EAGER)
    engine.generate(TEXT[:num_prompt], max_new_tokens=24)
    steps = swift_of(engine).state()["steps"]
    assert len(steps) > 2
    assert {row["matchness"] for row in steps} == {1.0}


# ------------------------------------------------------------------------------------------------ planted structure


def practised(engine: Engine, prompts: Sequence[list[int]], num_tokens: int = 48, **options: Any) -> Swift:
    for prompt in prompts:
        engine.generate(prompt, max_new_tokens=num_tokens, **options)
    return swift_of(engine)


@pytest.mark.parametrize(("paper", "idle"), [(True, "a1-2,m2-3"), (False, "a2-3,m1-2")], ids=["paper", "ours"])
def test_sub_layers_that_do_nothing_are_found(paper: bool, idle: str) -> None:
    skip, share = SkipSet.parse(idle), 0.7
    shares = {"ratio": share, "min_ratio": share, "max_ratio": share}
    options = {**EAGER, "patience": 10, "max_steps": 24, **shares}
    engine = made(zeroed(sorted(skip.attention), sorted(skip.mlp)), window=16, paper=paper, **options)
    strategy = practised(engine, [TEXT, TEXT[5:]], 64)
    state = strategy.state()
    assert (state["skip"], state["phase"]) == (idle, "accelerate")
    assert state["matchness"] == pytest.approx(1.0, abs=0 if paper else 0.2)  # ours remembers the sets before
    found = engine.generate([99, 2], max_new_tokens=24, settings=SURE, **CHAIN)
    assert {step.plan for step in found.steps} == {Plan(skip)}
    assert found.stats.num_accepted == found.stats.num_draft_steps > 0


# ------------------------------------------------------------------------------------------------ lossless


@both
@pytest.mark.parametrize(
    ("acceptance", "mode"),
    [("coupled", {}), ("coupled", SAMPLED), ("rejection", {})],
    ids=["coupled-greedy", "coupled-sampled", "rejection-greedy"],
)
@pytest.mark.parametrize("prompt", [TEXT, [TEXT, [7], TEXT[3:8]]], ids=["single", "ragged"])
def test_nothing_changes_while_it_searches(paper: bool, acceptance: str, mode: Any, prompt: Any) -> None:
    engine = made(pico("qwen2"), window=4, paper=paper, **EAGER)
    method = {"acceptance": acceptance, "max_new_tokens": 16, **mode}
    found, plain = (engine.generate(prompt, **method, **other) for other in ({}, {"strategy": "off"}))
    state = swift_of(engine).state()
    assert state["step"] >= 5
    assert any(row["is_best"] for row in state["steps"]), "another set has drafted since"
    found, plain = (one if isinstance(one, list) else [one] for one in (found, plain))
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert sum(one.stats.num_draft_steps for one in found) > 0


# ------------------------------------------------------------------------------------------------ its state


DEEP = {"window": 4, "max_steps": 10**6, "patience": 10**6, **EAGER}
STREAM = [[5, 6, 7], [9, 8], [1, 2, 3, 4], [70, 71]]


@pytest.fixture
def home(home: Path, untimed: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("selfdraft.calibrate.calibrate.FitSession", partial(FitSession, text_tokens=24))
    return home


def stored(model: Any, **options: Any) -> Engine:
    """An engine that reads its profile from the store, where only the latency is known."""
    engine = Engine(model, name="pico", strategy="off")
    if Store().load(engine.knowledge.key) is None:
        Store().set_latency(engine.knowledge.key, learned.latency().to_json())
    return Engine(model, name="pico", strategy="swift", settings={"swift": options})


@both
def test_two_halves_are_one_whole(paper: bool, home: Path) -> None:
    model = pico("llama", num_hidden_layers=7)
    whole = practised(stored(model, paper=paper, **DEEP), STREAM, 12).state()
    before = stored(model, paper=paper, **DEEP)
    half = practised(before, STREAM[:2], 12).state()
    assert 0 < half["step"] < whole["step"], "it goes on from text to text"
    path = before.save()
    assert path.is_relative_to(home)
    after = stored(model, paper=paper, **DEEP)
    assert json.loads(json.dumps(swift_of(after).state())) == json.loads(json.dumps(half))
    together = practised(after, STREAM[2:], 12).state()
    names = (
        "skip",
        "step",
        "matchness",
        "snapshots",
        "num_idle",
        *(("observations",) if paper else ("losses", "kept", "path")),
    )
    assert {name: together[name] for name in names} == {name: whole[name] for name in names}
    assert [row["num_tokens"] for row in together["steps"]] == [row["num_tokens"] for row in whole["steps"]]
    assert [row["num_tokens"] for row in together["texts"]] == [12] * 4


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({"skip": "a9"}, "attention layer 9, but the model has 5 layers"),
        ({"skip": "a0"}, "a0 always runs"),
        ({"skip": "m4"}, "m4 always runs"),
        ({"skip": 7}, "AttributeError"),
        ({"losses": {"a0": 0.5}}, "ValueError"),
        ({"losses": []}, "AttributeError"),
        ({"matchness": "much"}, "ValueError"),
        ({"step": None}, "TypeError"),
        ({"ratio": []}, "TypeError"),
        ({"snapshots": []}, "AttributeError"),
        ({"texts": [{}]}, "KeyError"),
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(damage: Any, problem: str) -> None:
    state = {**alone().state(), **damage}
    with pytest.raises(ProfileError) as caught:
        alone(state)
    assert problem in str(caught.value)
    assert "selfdraft calibrate MODEL --strategy swift --again" in str(caught.value)
    assert "--set swift.saved=false" in str(caught.value)
    assert alone(state, saved=False).state()["step"] == 0


def test_what_learns_nothing_cannot_be_saved(home: Path) -> None:
    engine = Engine(pico("llama"), strategy="uniform")
    with pytest.raises(OptionError, match="'uniform' learns nothing while it generates"):
        engine.save()
    assert not any(home.rglob("*"))


# ------------------------------------------------------------------------------------------------ other texts


def drafting(strategy: Swift, num_rounds: int, num_accepted: int, other: Plan | None = None) -> None:
    """Rounds that draft ten tokens, each faster than a plain one; `other`: with that plan, not its own."""
    for _ in range(num_rounds):
        plan = strategy.plan(0, context_of(4, 0))
        strategy.observe(0, round_of(10, num_accepted, 1e-6, plan=other or plan))


OVER = {"phase": "accelerate", "step": 1000, "num_idle": 300}


def settled(**options: Any) -> Swift:
    options = {"window": 8, **options}
    known = {**ranked(**options).state(), **OVER}
    strategy = alone(known, **options)
    assert strategy.is_settled
    return strategy


@pytest.mark.parametrize(
    ("options", "then", "phase"),
    [
        ({}, 3, "optimise"),
        ({}, 6, "accelerate"),  # a little less
        ({}, 9, "accelerate"),
        ({"shift": 0.5}, 3, "accelerate"),
        ({"resume": False}, 3, "accelerate"),
        ({"paper": True}, 3, "accelerate"),
    ],
    ids=str,
)
def test_when_acceptance_falls_the_search_begins_again(options: Any, then: int, phase: str) -> None:
    strategy = settled(always=True, **options)
    skip = strategy.state()["skip"]
    drafting(strategy, 100, 7)
    assert strategy.state()["phase"] == "accelerate"
    drafting(strategy, 100, then)
    state = strategy.state()
    assert (state["phase"], state["skip"]) == (phase, skip)
    assert state["first_step"] == (state["step"] if phase == "optimise" else 0)


def test_a_search_that_ended_while_more_might_go_begins_again_too() -> None:
    known = {**ranked().state(), **OVER, "is_grown": False}
    strategy = alone(known, window=8, always=True)
    drafting(strategy, 100, 7)
    assert strategy.state()["phase"] == "accelerate"
    drafting(strategy, 100, 3)
    assert strategy.state()["phase"] == "optimise"


def test_what_another_set_drafted_says_nothing_about_its_own() -> None:
    strategy = settled(always=True)
    drafting(strategy, 100, 7)
    drafting(strategy, 100, 0, Plan(SkipSet.of([2])))
    assert strategy.state()["phase"] == "accelerate"
    drafting(strategy, 100, 0)
    assert strategy.state()["phase"] == "optimise"


def live(strategy: Swift, num_rounds: int, slow: float, num_generated: int = 0) -> list[bool]:
    """Rounds of a text that stays as it is; `slow`: seconds of a round that drafts."""
    went = []
    for _ in range(num_rounds):
        plan = strategy.plan(0, context_of(4, num_generated))
        went.append(plan != OFF)
        strategy.observe(0, round_of(2, 1, slow, plan=plan) if went[-1] else round_of(0, 0, 1.0))
    return went


# ------------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize(
    ("options", "slow", "drafts"),
    [({}, 10.0, False), ({}, 0.5, True), ({"always": True}, 10.0, True), ({"paper": True}, 10.0, True)],
    ids=str,
)
def test_it_drafts_where_that_is_faster_or_always(options: Any, slow: float, drafts: bool) -> None:
    went = live(ranked(**options), 8 * TRIAL, slow)
    assert went[: TRIAL // 2] == [True] * (TRIAL // 2)
    assert set(went[4 * TRIAL :]) == {drafts}


def test_nothing_is_drafted_before_a_set_was_found_by_what_it_matches() -> None:
    assert not any(live(alone(), 4 * TRIAL, 0.5))
    assert all(live(alone(always=True), 4 * TRIAL, 0.5)), "evenly spaced layers"


DEAR = learned.latency(verify=tuple(replace(line, base=1.0) for line in learned.latency().verify))
"""Verifying costs too much, whatever is accepted."""


@pytest.mark.parametrize("budget", [0.05, 1.0])
def test_what_could_not_pay_is_neither_searched_nor_drafted(looked: list[Any], budget: float) -> None:
    strategy = alone(fit=DEAR, budget=budget)
    assert strategy.is_settled, "calibration does not practise it"
    assert not any(live(strategy, 4 * RETRY, 0.5, num_generated=40))
    assert looked == []
    live(alone(fit=DEAR, budget=1.0, always=True), 4, 0.5, num_generated=40)
    assert looked, "unless it is asked for"


@pytest.mark.parametrize("match", [0.0, 1.0])
def test_what_seems_not_to_pay_is_looked_at_later_and_later(match: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no draft is ever right the next look, at what is kept, comes after 1024 tokens more."""
    looks: list[int] = []

    def noted(probe: list[int], points: Sequence[Any], wanted: Sequence[int]) -> Matched:
        looks.append(strategy._timeline.num_tokens)
        hits = torch.full((len(points), len(probe)), match == 1.0)
        return Matched(hits, torch.zeros(hits.shape))

    monkeypatch.setattr(module, "matched", noted)
    verify = tuple(replace(line, base=line.base + 2e-3) for line in learned.latency().verify)
    strategy = alone(fit=learned.latency(verify=verify), window=8, budget=0.9, candidates=6, enough=1.0)
    drafted = False
    for number in range(9000):
        if number % 64 == 0:
            strategy.begin(0, {})
        plan = strategy.plan(0, context_of(4, number % 64))
        drafted |= plan != OFF
        strategy.observe(0, round_of(0))
    gaps = [after - before for before, after in itertools.pairwise(looks) if after - before > 100]
    assert drafted == (match == 1.0)
    if match == 0.0:
        assert strategy.state()["is_hopeless"]
        assert strategy.is_settled
        assert gaps == pytest.approx([RETRY, 2 * RETRY, 4 * RETRY], abs=64)
        assert len(looks) == 4 + 3 * 2, "then two passes each time"
    else:
        assert gaps == []
        assert len(looks) > 100


def test_after_its_search_it_begins_again_where_drafting_is_slower(looked: list[Any]) -> None:
    for slow, phase in ((10.0, "optimise"), (0.5, "accelerate")):
        strategy = settled(window=8, budget=1.0, enough=1.0)
        live(strategy, RETRY - 4 * TRIAL, slow)
        assert strategy.state()["phase"] == "accelerate"
        live(strategy, 8 * TRIAL, slow, num_generated=40)
        assert strategy.state()["phase"] == phase


@pytest.mark.parametrize("slow", [10.0, 0.5])
def test_where_drafting_is_slower_the_search_takes_a_fifth_of_its_budget(slow: float) -> None:
    strategy = ranked(budget=0.05)
    assert strategy._budget == 0.05
    live(strategy, 8 * TRIAL, slow)
    assert strategy._budget == pytest.approx(0.01 if slow > 1 else 0.05)
    practising = ranked(budget=1.0)
    live(practising, 8 * TRIAL, slow)
    assert practising._budget == 1.0


def simulated(strategy: Swift, looked: list[Any], num_rounds: int, seconds: float) -> Iterator[float]:
    """The share of optimisation after every round; `seconds`: of a pass of scores."""
    optimising = total = 0.0
    for number in range(num_rounds):
        before = len(looked)
        plan = strategy.plan(0, context_of(4, number))
        spent = 1e-4 + seconds * (len(looked) - before)
        strategy.observe(0, round_of(2, 1, 0.02, optimise_seconds=spent, plan=plan))
        optimising, total = optimising + spent, total + spent + 0.02
        yield optimising / total


@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.2])
def test_optimisation_keeps_to_its_budget(looked: list[Any], seconds: float) -> None:
    strategy = alone(window=8, always=True, enough=1.0)
    shares = list(simulated(strategy, looked, 1000, seconds))
    assert max(shares[200:]) <= 0.1 + 0.2 / (200 * 0.02) * (seconds == 0.2), "the first pass was expected cheaper"
    assert max(shares[-300:]) <= (0.025 if seconds == 0.001 else 0.1), "less once there are sets"
    assert len(looked) > 3
    if seconds > 0.1:
        assert shares[-1] > 0.02, "and it uses it"


def test_without_a_budget_nothing_is_scored(looked: list[Any]) -> None:
    strategy = alone(window=8, budget=0.0)
    list(simulated(strategy, looked, 300, 0.001))
    assert looked == []


# ------------------------------------------------------------------------------------------------ its ratio


@pytest.mark.parametrize(("num_accepted", "ratio"), [(3, 0.4), (9, 0.45)])
def test_the_papers_ratio_falls_with_acceptance(
    num_accepted: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Matched(torch.zeros(1, 8, dtype=torch.bool), torch.zeros(1, 8))
    monkeypatch.setattr(module, "matched", lambda probe, points, wanted: nothing)
    strategy = alone(num_layers=10, window=8, paper=True, patience=10**6)
    ratios = {}
    for number in range(210):
        plan = strategy.plan(0, context_of(4, 8 + 4 * number))
        strategy.observe(0, round_of(10, num_accepted, plan=plan))
        report = strategy.report(0)
        ratios[report["step"]] = report["ratio"]
    assert {ratios[step] for step in ratios if step < 100} == {0.45}
    assert {ratios[step] for step in ratios if step >= 100} == {ratio}, "and no further"
    assert max(ratios) >= 200


def test_another_set_drafts_where_it_is_noticeably_better() -> None:
    """On the same tokens: texts that are easier for all change nothing."""
    strategy = ranked(budget=0.0, candidates=1)
    search, first = strategy._search, strategy._plan
    for total, is_changed in ((0.02, False), (0.04, True)):
        points = search.candidates()
        gained = torch.tensor([[-1.0], [-0.98]]).expand(-1, 8)
        search.judge(points, Matched(torch.ones(2, 8, dtype=torch.bool), gained), 8)
        assert search.gain == pytest.approx(total, abs=1e-6)
        assert (strategy.plan(0, context_of(4, 0)) == first) != is_changed
    assert strategy.plan(0, context_of(4, 0)) == Plan(SkipSet.of_numbers(search.skipped))
    assert search.gain == 0


def test_what_recording_a_set_takes_is_part_of_the_budget() -> None:
    strategy = alone(budget=0.05)
    seconds = 2 * strategy._account.last
    strategy.observe(0, replace(round_of(4, 4), draft_seconds=2.0, optimise_seconds=seconds, record_seconds=seconds))
    assert strategy._account.planning == seconds
    assert strategy._account.total == 2.0 + seconds + round_of(4, 4).verify_seconds


@pytest.mark.parametrize(
    "changed",
    [{"max_ratio": 0.4}, {"window": 16}, {"ratio": 0.3}, {"paper": True}, {"saved": False}],
    ids=str,
)
def test_a_state_answers_its_own_question(changed: dict[str, Any]) -> None:
    known = {**alone().state(), **OVER, "skip": "a2,m2"}
    assert alone(known).state()["skip"] == "a2,m2"
    assert alone(known, **changed).state()["step"] == 0
    assert not alone(known, patience=2000).is_settled, "more steps were asked for"
    going_on = {**known, "num_idle": 0}
    assert not alone(going_on).is_settled, "it goes on as long as it improves"
    assert alone(going_on, max_steps=1000).is_settled
    as_paper = {**alone(paper=True).state(), **OVER, "num_idle": 0}
    assert alone(as_paper, paper=True).is_settled, "after 1000 steps"


@pytest.mark.parametrize(
    ("paper", "siblings"),
    [
        (None, {"table": "swift", "lookup": 2}),
        (False, {"table": "swift", "lookup": 2}),
        (True, {"table": "swift-code"}),
        ("true", {"table": "swift-code"}),  # as a command line has it
    ],
)
def test_the_paper_has_a_pairing_of_its_own(paper: Any, siblings: dict[str, Any]) -> None:
    settings = {} if paper is None else {"swift": {"paper": paper}}
    found = resolve({"strategy": "swift", "settings": settings})
    assert (found["lookahead"], found["tree"], found["settings"]["siblings"]) == ("confidence", "siblings", siblings)
    chosen = resolve({"strategy": "swift", "settings": {**settings, "siblings": {"lookup": 1}}})
    assert chosen["settings"]["siblings"]["lookup"] == 1


# ------------------------------------------------------------------------------------------------ timeline, practice


def test_the_timeline_adds_up() -> None:
    engine = made(window=4, **EAGER)
    found = [engine.generate(prompt, max_new_tokens=20) for prompt in STREAM]
    found += engine.generate(STREAM, max_new_tokens=9)
    state = swift_of(engine).state()
    assert len(state["texts"]) == 8
    by_length = sorted(state["texts"], key=lambda row: -row["num_tokens"])
    assert [row["num_tokens"] for row in by_length] == [one.stats.num_tokens for one in found]
    for row, one in zip(state["texts"], found[:4], strict=False):
        stats = one.stats
        parts = (stats.optimise_seconds, stats.draft_seconds + stats.verify_seconds)
        assert row["optimise_seconds"] == pytest.approx(parts[0])
        assert row["seconds"] == pytest.approx(sum(parts))
    fit, last = learned.latency(), state["texts"][3]
    assert 20 * fit.at(2).plain < last["plain_seconds"] < 20 * fit.at(22).plain
    assert all(row["plain_seconds"] > 0 for row in state["texts"])
    assert [row["step"] for row in state["steps"]] == sorted({row["step"] for row in state["steps"]})
    assert state["steps"][-1]["num_tokens"] < sum(row["num_tokens"] for row in state["texts"])
    report = found[3].report
    assert report == {name: last[name] for name in ("phase", "ratio", "matchness")} | {"step": report["step"]}


SHORT = {"swift": {"window": 4, "max_steps": 12, "enough": 1.0, "always": True}}


def test_calibration_practises(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"), name="pico", profile=None, strategy="off")
    options = CalibrateOptions(600, 8, 0, settings=SHORT)
    values = calibrate(engine, PROMPTS, ["swift"], options).artefacts["swift"].values
    assert (values["phase"], values["step"], values["is_complete"]) == ("accelerate", 12, True)
    state = swift_of(engine, strategy="swift", settings=SHORT).state()
    assert (state["step"], state["skip"]) == (12, values["skip"]), "the engine goes by it"
    longer = {"swift": {**SHORT["swift"], "max_steps": 100}}
    unfinished = {**values, "phase": "optimise"}
    engine.remember(learned.profile(swift=unfinished))
    assert swift_of(engine, strategy="swift", settings=longer).progress == pytest.approx(0.12)

    texts = len(values["texts"])
    again = calibrate(engine, PROMPTS, ["swift"], options).artefacts["swift"].values
    assert (again["step"], len(again["texts"])) == (12, texts), "there was nothing left to learn"
    fresh = calibrate(engine, PROMPTS, ["swift"], replace(options, again=True)).artefacts["swift"].values
    assert (fresh["step"], fresh["losses"], len(fresh["texts"])) == (12, values["losses"], texts)
    assert fresh["texts"] != values["texts"], "seconds of its own"


def test_practice_that_is_interrupted_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pico("llama", num_hidden_layers=7)
    settings = {"swift": {**SHORT["swift"], "max_steps": 30}}
    options = CalibrateOptions(600, 8, 0, settings=settings)
    generate, count = Engine.generate, iter(range(10**6))

    def interrupted(self: Engine, *arguments: Any, **named: Any) -> Any:
        if named.get("strategy") == "swift" and next(count) == 2:
            raise KeyboardInterrupt
        return generate(self, *arguments, **named)

    engine = Engine(model, name="pico", profile=None, strategy="off")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrate(engine, PROMPTS, ["swift"], options)
    profile = Store().load(engine.knowledge.key)
    assert profile is not None
    assert "swift" not in profile.artefacts, "nothing is replaced by something that is not complete"
    (journal,) = home.rglob("journal-swift-*.json")
    kept = json.loads(journal.read_text())["artefacts"]["state"]["values"]
    assert (len(kept["texts"]), kept["is_complete"]) == (2, False)
    assert 0 < kept["step"] < 30
    values = calibrate(engine, PROMPTS, ["swift"], options).artefacts["swift"].values
    assert values["texts"][:2] == kept["texts"]
    assert values["steps"][: len(kept["steps"])] == kept["steps"]
    assert (values["is_complete"], values["step"]) == (True, 30)
