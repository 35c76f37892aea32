"""Strategies that choose sub-layers by calculation: what is planted is found, what does not pay is not drafted."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from learned import FRONTIER, knowledge, latency, profile
from pico import NUM_LAYERS, pico
from rounds import step_of
from selfdraft import Engine
from selfdraft.economics import LatencyFit, Line
from selfdraft.models.eager import EagerRunner
from selfdraft.passes import States
from selfdraft.protocols import PlanContext, Probe
from selfdraft.registry import resolve
from selfdraft.strategies.clasp import Clasp
from selfdraft.strategies.knapsack import solve
from selfdraft.strategies.knapspec import KnapSpec, acceptances, items, plan_seconds
from selfdraft.strategies.prune import Prune, Text
from selfdraft.types import OFF, Plan, SkipSet, StepRecord
from test_knapsack import TEXT, probe_of, zeroed

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOO_DEAR = latency(verify=(Line(5e-5, 15.5e-3), Line(2e-4, 60e-3)))
"""Verifying costs four passes: nothing pays."""
MUST_DRAFT = latency(attention=Line(0.0, 2e-3), plain=Line(0.0, 1.0))
"""Plain decoding takes forever: anything pays. Attention and MLP take the same time."""


def context(probe: Probe | None = None, length: int = len(TEXT)) -> PlanContext:
    def given(num_tokens: int) -> Probe:
        assert probe is not None
        return probe

    return PlanContext(length, 5, given)


def step(plan: Plan, num_drafted: int = 3, num_accepted: int = 2, **others: Any) -> StepRecord:
    return step_of(num_drafted, num_accepted, plan=plan, seconds=(0.01, 0.02), **others)


# -------------------------------------------------------------------------------------------------- planted structure


@pytest.mark.parametrize(("attention", "mlp"), [([2], []), ([], [3]), ([1, 3], [2])])
def test_knapspec_skips_what_does_nothing(attention: Sequence[int], mlp: Sequence[int]) -> None:
    """With as much to save as is planted, exactly that goes first."""
    planted = SkipSet.of(attention, mlp)
    share = len(planted) / (2 * NUM_LAYERS)
    knapspec = KnapSpec(KnapSpec.Options(share=share), knowledge(NUM_LAYERS, MUST_DRAFT))
    plan = knapspec.choose(context(probe_of(zeroed(attention, mlp))), 5)
    assert plan.skip == planted
    assert plan.max_draft_tokens


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_clasp_skips_the_layer_that_does_nothing(layer: int) -> None:
    clasp = Clasp(Clasp.Options(ratio=1 / NUM_LAYERS), knowledge(NUM_LAYERS))
    assert clasp.choose(context(probe_of(zeroed([layer], [layer]), 1)), 1).skip == SkipSet.of([layer], [layer])


def test_clasp_skips_as_many_layers_as_asked() -> None:
    for ratio, count in ((0.0, 0), (0.4, 2), (1.0, 3)):
        clasp = Clasp(Clasp.Options(ratio=ratio), knowledge(NUM_LAYERS))
        skip = clasp.choose(context(probe_of(pico("llama"), 1)), 1).skip
        assert skip.attention == skip.mlp
        assert len(skip.mlp) == count
        assert not {0, NUM_LAYERS - 1} & skip.mlp


# ----------------------------------------------------------------------------------------------------------- knapspec


def test_the_plan_has_the_most_tokens_per_second_of_all_candidates() -> None:
    probe, fit = probe_of(pico("llama")), latency()
    weights = fit.at(len(TEXT)).weights
    found, states = solve(probe, items(NUM_LAYERS, weights), sum(weights) * NUM_LAYERS // 2)
    rates = acceptances(probe, states)
    assert rates[0] == 6 / 7, "the target agrees with itself"
    promises = {
        SkipSet.of_numbers(one.skipped): fit.at(16).best_length(rate, SkipSet.of_numbers(one.skipped), 10)
        for one, rate in zip(found, rates, strict=True)
    }
    best = max(promises, key=lambda skip: promises[skip][1])
    plan = KnapSpec(KnapSpec.Options(), knowledge(NUM_LAYERS)).choose(context(probe), 5)
    assert plan == Plan(best, max_draft_tokens=promises[best][0])
    assert promises[best][0] > 0


def test_acceptance_counts_the_targets_choices() -> None:
    probe = probe_of(pico("llama"))
    states = probe.begin()
    for number in range(probe.num_sublayers):
        states = probe.run(number, states)
    other = States(-states.hidden)
    assert acceptances(probe, States.join([states, other])) == [6 / 7, 1 / 7]


def test_bound_layers_go_as_a_whole() -> None:
    knapspec = KnapSpec(KnapSpec.Options(bound=True), knowledge(NUM_LAYERS, MUST_DRAFT))
    skip = knapspec.choose(context(probe_of(pico("llama"))), 5).skip
    assert skip
    assert skip.attention == skip.mlp


def test_nothing_is_drafted_where_nothing_pays() -> None:
    knapspec = KnapSpec(KnapSpec.Options(), knowledge(NUM_LAYERS, TOO_DEAR))
    assert knapspec.choose(context(probe_of(pico("llama"))), 5) == OFF
    engine = Engine(pico("llama"), strategy="knapspec", profile=profile(TOO_DEAR))
    assert engine.generate(PROMPT, max_new_tokens=30).stats.num_draft_steps == 0


def test_long_texts_skip_more_attention() -> None:
    probe = probe_of(pico("llama"))
    knapspec = KnapSpec(KnapSpec.Options(), knowledge(NUM_LAYERS))
    short, long = (knapspec.choose(context(probe, length), 5).skip for length in (10, 5000))
    assert len(long.attention) > len(short.attention)


def test_the_length_found_is_used() -> None:
    engine = Engine(pico("llama"), strategy="knapspec", profile=profile(), settings={"knapspec": {"budget": 1.0}})
    steps = engine.generate(PROMPT, max_new_tokens=60, settings={"confidence": {"threshold": 0.0}}).steps
    drafted = [item for item in steps if item.draft.tokens]
    assert drafted
    assert all(item.draft.chain_length == item.plan.max_draft_tokens for item in drafted[:-1])


def test_the_same_text_gets_the_same_plans() -> None:
    settings = {"knapspec": {"budget": 1.0, "interval": 5}}
    plans = []
    for _ in range(2):
        engine = Engine(pico("llama"), strategy="knapspec", profile=profile(), settings=settings)
        found = engine.generate([PROMPT, [7]], max_new_tokens=40, temperature=0.8, seed=3)
        plans.append([[item.plan for item in generation.steps] for generation in found])
    assert plans[0] == plans[1]


# ----------------------------------------------------------------------------------------------------- when to plan


class Counting(KnapSpec):
    """Plans that tell when they were made."""

    def __init__(self, first_seconds: float = 0.0, **options: Any) -> None:
        super().__init__(KnapSpec.Options(**options), knowledge(NUM_LAYERS))
        self._account.last = first_seconds
        self.lengths: list[int] = []

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        self.lengths.append(context.num_context_tokens)
        self.num_looked_at = num_tokens
        return Plan(SkipSet.of([len(self.lengths)]))


def run_rounds(strategy: Counting, sequence_id: int, lengths: Sequence[int]) -> list[Plan]:
    strategy.begin(sequence_id, {})
    plans = []
    for length in lengths:
        plans.append(strategy.plan(sequence_id, context(length=length)))
        strategy.observe(sequence_id, step(plans[-1]))
    strategy.end(sequence_id)
    return plans


def test_a_text_is_decoded_plainly_until_there_is_something_to_look_at() -> None:
    strategy = Counting(window=3, budget=1.0)
    assert run_rounds(strategy, 0, [100] * 5)[:4] == [OFF, OFF, OFF, Plan(SkipSet.of([1]))]
    assert strategy.num_looked_at == 9, "three rounds of three tokens"


@pytest.mark.parametrize(
    ("interval", "lengths", "planned"),
    [(4, range(1000, 1010), [1001, 1005, 1009]), (1000, range(100, 200), [101, 127, 159, 199])],
    ids=["at an interval", "when a quarter longer"],
)
def test_planned_again(interval: int, lengths: range, planned: list[int]) -> None:
    strategy = Counting(window=1, interval=interval, budget=1.0)
    run_rounds(strategy, 0, lengths)
    assert strategy.lengths == planned


def test_the_next_text_begins_with_the_last_plan() -> None:
    """And gets its own as soon as there is something to look at, even if it has the same length."""
    strategy = Counting(window=2, interval=1000, budget=1.0)
    run_rounds(strategy, 0, [1000] * 4)
    assert run_rounds(strategy, 1, [500] * 3) == [*[Plan(SkipSet.of([1]))] * 2, Plan(SkipSet.of([2]))]
    assert run_rounds(strategy, 2, [500] * 3) == [*[Plan(SkipSet.of([2]))] * 2, Plan(SkipSet.of([3]))]


def test_planning_takes_its_share_of_the_time_and_no_more() -> None:
    """A round takes 0.03 s, a plan 0.3 s: one in 90 rounds is a tenth of all time. The first one is free."""
    strategy = Counting(window=1, interval=1, budget=0.1)
    strategy.begin(0, {})
    for _ in range(400):
        before = len(strategy.lengths)
        plan = strategy.plan(0, context(length=1000))
        strategy.observe(0, step(plan, optimise_seconds=0.3 if len(strategy.lengths) > before else 0.0))
    assert 3 <= len(strategy.lengths) <= 5


def test_the_first_plan_waits_until_it_can_be_afforded() -> None:
    """Expected to take 0.3 s, and rounds of 0.03 s: at a tenth, after 90 rounds."""
    strategy = Counting(first_seconds=0.3, window=1, interval=1, budget=0.1)
    plans = run_rounds(strategy, 0, [1000] * 120)
    assert plans[:89] == [OFF] * 89
    assert plans[95] != OFF
    assert plan_seconds(latency(num_layers=10), 32) == pytest.approx(5 * latency().at(0).verify(32))


def test_one_row_plans_in_a_round() -> None:
    strategy = Counting(window=1, interval=1000, budget=1.0)
    for row in range(3):
        strategy.begin(row, {})
        strategy.observe(row, step(OFF))
    for _ in range(4):
        for row in range(3):
            strategy.plan(row, context(length=1000))
        for row in range(3):
            strategy.observe(row, step(OFF))
    assert len(strategy.lengths) == 3


@pytest.mark.parametrize("strategy", ["clasp", "knapspec"])
def test_each_row_looks_at_its_own_last_tokens(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's choices there are those it made: nothing else would have its keys and values."""
    looks: list[tuple[list[int], int, list[int]]] = []
    honest = EagerRunner.probe

    def probe(runner: EagerRunner, cache: Any, tokens: Sequence[int], first: int = 0, row: int = 0) -> Any:
        found = honest(runner, cache, tokens, first, row)
        states = found.begin()
        for number in range(found.num_sublayers):
            states = found.run(number, states)
        looks.append((list(tokens), first, found.scores(states)[0].argmax(-1).tolist()))
        return found

    monkeypatch.setattr(EagerRunner, "probe", probe)
    engine = Engine(pico("llama"), strategy=strategy, profile=profile())
    settings = {"knapspec": {"budget": 1.0, "interval": 5, "min_tokens": 6}, "clasp": {"budget": 1.0, "interval": 5}}
    prompts = [PROMPT, [7], [*PROMPT, 3, 5, 8]]
    found = engine.generate(prompts, max_new_tokens=30, settings={strategy: settings[strategy]})
    texts = [[*prompt, *generation.tokens] for prompt, generation in zip(prompts, found, strict=True)]
    seen: set[int] = set()
    for tokens, first, choices in looks:
        end = first + len(tokens)
        generated = [max(0, len(prompt) - first - 1) for prompt in prompts]  # from this choice on they were made
        rows = {
            row
            for row, text in enumerate(texts)
            if text[first:end] == tokens and choices[generated[row] :] == text[first + 1 + generated[row] : end + 1]
        }
        assert rows
        assert len(tokens) == 1 if strategy == "clasp" else len(tokens) >= min(6, end)
        seen |= rows
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("strategy", ["asd", "clasp", "knapspec"])
@pytest.mark.parametrize("num_layers", [2, 3])
def test_whoever_skips_nothing_drafts_nothing(strategy: str, num_layers: int) -> None:
    engine = Engine(pico("llama", num_hidden_layers=num_layers), strategy=strategy, profile=profile())
    steps = engine.generate(PROMPT, max_new_tokens=20, settings={strategy: {}}).steps
    assert all(item.plan.skip for item in steps if item.draft.tokens)


# -------------------------------------------------------------------------------------------------------------- prune


def prune(fit: LatencyFit | None = None, **options: Any) -> Prune:
    return Prune(Prune.Options(**options), knowledge(NUM_LAYERS, fit))


def plan_of(strategy: Prune, length: int = 100, steps: Sequence[StepRecord] = ()) -> Plan:
    strategy.begin(0, {})
    plan = strategy.plan(0, context(length=length))
    for one in steps:
        strategy.observe(0, one)
        plan = strategy.plan(0, context(length=length))
    return plan


def test_prune_takes_the_set_that_promises_most() -> None:
    fit = latency()
    promises = {
        point["skip"]: fit.at(100).best_length(point["match"], SkipSet.parse(point["skip"]), 12)[1]
        for point in FRONTIER[1:]
    }
    assert str(plan_of(prune()).skip) == max(promises, key=lambda skip: promises[skip])


def test_prune_chooses_by_the_seconds_of_this_device() -> None:
    """Where attention takes no time, a set that skips more of it loses for nothing."""
    free_attention = latency(attention=Line(0.0, 1e-7), mlp_seconds=3e-3)
    assert len(plan_of(prune(free_attention)).skip.attention) <= 2
    chosen = {plan_of(prune(fit)).skip for fit in (latency(), latency(rest_seconds=8e-3))}
    assert len(chosen) == 2


def test_prune_drafts_nothing_where_nothing_pays() -> None:
    assert plan_of(prune(TOO_DEAR)) == OFF
    assert plan_of(prune(TOO_DEAR, always=True)).skip
    assert prune(TOO_DEAR).known_plans == (OFF,)


def test_a_text_whose_drafts_fail_is_decoded_plainly_and_tried_again_later() -> None:
    strategy = prune()
    drafting = plan_of(strategy)
    assert drafting != OFF
    failing = [step(drafting, num_drafted=3, num_accepted=0)] * 16
    assert plan_of(strategy, steps=failing) == OFF
    resting = [step(OFF, num_drafted=0, num_accepted=0)] * 400
    assert plan_of(strategy, steps=[*failing, *resting]) != OFF


def test_what_a_set_drafted_that_calibration_has_not_seen_says_nothing() -> None:
    strategy = prune()
    foreign = [step(Plan(SkipSet.of([1], [3])), num_drafted=3, num_accepted=0)] * 16
    assert plan_of(strategy, steps=foreign) == plan_of(strategy) != OFF


@pytest.mark.parametrize(("length", "match"), [(1, 0.5), (4, 0.8), (6, 0.7), (12, 0.9)])
def test_a_text_as_calibrated_is_believed_as_calibrated(length: int, match: float) -> None:
    """Tokens kept with probability `match` until the first refusal: nothing to correct, however long the drafts."""
    chance, text = random.Random(0), Text()
    ratios = []
    for _ in range(3000):
        num_accepted = next((depth for depth in range(length) if chance.random() > match), length)
        text.observe(step(Plan(), length, num_accepted), match)
        ratios.append(text.failure_ratio)
    assert statistics.mean(ratios) == pytest.approx(1.0, abs=0.1)


def test_no_more_tokens_are_drafted_than_allowed() -> None:
    settings = {"prune": {"always": True, "max_tokens": 2}, "confidence": {"threshold": 0.0}}
    engine = Engine(pico("llama"), strategy="prune", settings=settings, profile=profile())
    assert max(item.draft.chain_length for item in engine.generate(PROMPT, max_new_tokens=30).steps) == 2


def test_small_gains_do_not_change_the_set() -> None:
    drafting = plan_of(prune())
    some_failing = [step(drafting, num_drafted=4, num_accepted=2)] * 8
    assert plan_of(prune(gain=0.5), steps=some_failing) == drafting


# ---------------------------------------------------------------------------------------------------------- pairings


def test_a_strategy_brings_what_its_paper_uses() -> None:
    assert resolve({"strategy": "knapspec"})["settings"]["confidence"] == {"threshold": 0.7, "max_tokens": 10}
    found = resolve({"strategy": "prune"})
    assert (found["lookahead"], found["tree"]) == ("confidence", "siblings")
    assert resolve({})["tree"] == "chain"


def test_the_caller_chooses_first() -> None:
    found = resolve({"strategy": "prune", "tree": "chain"}, {"settings": {"confidence": {"max_tokens": 3}}})
    assert found["tree"] == "chain"
    assert "siblings" not in found["settings"]
    assert found["settings"]["confidence"] == {"threshold": 0.9, "max_tokens": 3}
    chosen = resolve({"strategy": "knapspec", "lookahead": "confidence"})
    assert chosen["settings"].get("confidence", {}) == {}, "who names a lookahead gets its own defaults"


def test_a_pairing_is_what_generates() -> None:
    engine = Engine(pico("llama"), profile=profile())
    steps = engine.generate(PROMPT, strategy="prune", settings={"prune": {"always": True}}, max_new_tokens=40).steps
    assert any(not item.draft.is_chain for item in steps)
    steps = engine.generate(PROMPT, strategy="prune", tree="chain", settings={"prune": {"always": True}}).steps
    assert all(item.draft.is_chain for item in steps)


def test_what_was_learned_later_is_used() -> None:
    settings = {"knapspec": {"budget": 1.0}}
    engine = Engine(pico("llama"), strategy="knapspec", settings=settings, profile=profile(TOO_DEAR))
    assert engine.generate(PROMPT, max_new_tokens=20).stats.num_draft_steps == 0
    engine.remember(profile())
    assert engine.generate(PROMPT, max_new_tokens=20).stats.num_draft_steps > 0


def test_latency_is_measured_where_no_profile_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    from selfdraft.engine import knowledge

    asked: list[Any] = []
    monkeypatch.setattr(knowledge, "measure", lambda *arguments: asked.append(arguments) or latency())
    engine = Engine(pico("llama"), strategy="knapspec", profile=None)
    engine.generate(PROMPT, max_new_tokens=12)
    engine.generate(PROMPT, max_new_tokens=12, settings={"knapspec": {"window": 2}})
    assert len(asked) == 1
