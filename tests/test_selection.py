"""Strategies that choose sub-layers by calculation: what is planted is found, what does not pay is not drafted."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learned import FRONTIER, knowledge, latency, profile
from pico import NUM_LAYERS, pico
from rounds import step_of
from selfdraft import Engine
from selfdraft.economics import LatencyFit, Line
from selfdraft.errors import ProfileError
from selfdraft.models.eager import EagerRunner
from selfdraft.passes import States
from selfdraft.profiles.contents import choice
from selfdraft.protocols import PlanContext, Probe
from selfdraft.registry import find, resolve
from selfdraft.strategies.clasp import Clasp
from selfdraft.strategies.dynamic_exit import DynamicExit, exit_after
from selfdraft.strategies.dynamic_exit import acceptances as exit_acceptances
from selfdraft.strategies.failures import Failures
from selfdraft.strategies.knapsack import solve
from selfdraft.strategies.knapspec import KnapSpec, acceptances, items, networks, paper_choice, plan_seconds
from selfdraft.strategies.matching import choices
from selfdraft.strategies.prune import KNOWN_LENGTHS, Prune, share_faster
from selfdraft.strategies.replanning import Account
from selfdraft.types import OFF, FrontierPoint, Plan, SkipSet, StepRecord
from test_knapsack import TEXT, probe_of, zeroed

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOO_DEAR = latency(verify=(Line(5e-5, 15.5e-3), Line(2e-4, 250e-3)))
"""Verifying costs sixteen passes: nothing pays."""
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
    for options, count in (({}, 1), ({"ratio": 0.0}, 0), ({"ratio": 0.4}, 2), ({"ratio": 1.0}, 3)):
        clasp = Clasp(Clasp.Options(**options), knowledge(NUM_LAYERS))
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
    assert plan == Plan(best, max_draft_tokens=10)
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
    knapspec = KnapSpec(KnapSpec.Options(share=0.6), knowledge(NUM_LAYERS))
    short, long = (knapspec.choose(context(probe, length), 5).skip for length in (10, 5000))
    assert len(long.attention) - len(long.mlp) > len(short.attention) - len(short.mlp)


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

    def __init__(self, first_seconds: float = 0.0, gain: float = 1.0, **options: Any) -> None:
        super().__init__(KnapSpec.Options(**options), knowledge(NUM_LAYERS))
        self._account.last, self._gain = first_seconds, gain
        self.lengths: list[int] = []

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        self.lengths.append(context.num_context_tokens)
        self.num_looked_at = num_tokens
        return Plan(SkipSet.of([len(self.lengths)]))


def run_rounds(strategy: Counting, sequence_id: int, lengths: Sequence[int], plan_seconds: float = 0.0) -> list[Plan]:
    """Of 0.03 s each, a tenth of the text generated; those that plan take longer."""
    strategy.begin(sequence_id, {})
    plans = []
    for length in lengths:
        num_plans = len(strategy.lengths)
        plans.append(strategy.plan(sequence_id, replace(context(length=length), num_generated_tokens=length // 10)))
        seconds = plan_seconds if len(strategy.lengths) > num_plans else 0.0
        strategy.observe(sequence_id, step(plans[-1], optimise_seconds=seconds))
    strategy.end(sequence_id)
    return plans


def test_a_text_is_decoded_plainly_until_there_is_something_to_look_at() -> None:
    strategy = Counting(window=3, budget=1.0)
    assert run_rounds(strategy, 0, [100] * 5)[:4] == [OFF, OFF, OFF, Plan(SkipSet.of([1]))]
    assert strategy.num_looked_at == 9, "three rounds of three tokens"


@pytest.mark.parametrize(
    ("options", "planned"),
    [({"interval": 4}, [1, 5, 9]), ({}, [1, 65, 129, 193]), ({"paper": True, "window": 5}, [7, 71, 135, 199])],
    ids=str,
)
def test_planned_after_an_interval(options: dict[str, Any], planned: list[int]) -> None:
    """However long the text grows. The authors' code: at the end of its step 6 (of 0, 1, ...), then of every 64th."""
    strategy = Counting(**{"window": 1, "budget": 1.0, **options})
    for number in range(2):
        run_rounds(strategy, number, range(100, 100 + (10 if planned[1] == 5 else 200)))
    assert strategy.lengths == [100 + place for place in planned] * 2


def test_the_paper_begins_each_text_with_the_whole_model() -> None:
    """But for the round that stands for the authors' prefill. Neither budget nor other rows keep it from planning."""
    strategy = Counting(first_seconds=1e9, gain=0.0, paper=True, budget=0.0)
    whole = Plan(max_draft_tokens=10)
    for number in range(2):
        plans = run_rounds(strategy, number, [0, *range(100, 108)], plan_seconds=1e9)
        assert plans == [OFF, *[whole] * 6, *[Plan(SkipSet.of([number + 1]))] * 2]
    assert strategy.num_looked_at == 15, "five rounds of three tokens"


def test_the_paper_counts_hits_and_takes_the_most_tokens_per_time() -> None:
    probe = probe_of(pico("llama"))
    options = KnapSpec.Options(paper=True)
    costs = latency(attention=Line(0.0, 1.4e-3)).at(0)
    skips, rates = networks(probe, costs, options)
    found, states = solve(probe, items(NUM_LAYERS, (1, 1)), NUM_LAYERS)
    assert skips == [SkipSet.of_numbers(one.skipped) for one in found[1:]]
    assert rates == pytest.approx([5 * (rate * 7 - 1) / 25 for rate in acceptances(probe, states)][1:])
    assert costs.weights == (2, 3)

    def by_hand(skip: SkipSet, rate: float) -> float:
        num_attentions, num_mlps = NUM_LAYERS - len(skip.attention), NUM_LAYERS - len(skip.mlp)
        seconds = [
            1.4e-3 * (num_attentions * length + NUM_LAYERS) + 2e-3 * (num_mlps * length + NUM_LAYERS)
            for length in range(18)
        ]
        tokens = [sum(rate**place for place in range(length + 1)) for length in range(18)]
        return max(one / other for one, other in zip(tokens, seconds, strict=True))

    best = max(zip(skips, rates, strict=True), key=lambda one: by_hand(*one))[0]
    assert paper_choice(costs, skips, rates) == best
    assert paper_choice(costs, [], []) == SkipSet()


def test_the_next_text_begins_with_the_last_plan() -> None:
    """And gets its own as soon as there is something to look at, even if it has the same length."""
    strategy = Counting(window=2, interval=1000, budget=1.0)
    run_rounds(strategy, 0, [1000] * 4)
    assert run_rounds(strategy, 1, [500] * 3) == [*[Plan(SkipSet.of([1]))] * 2, Plan(SkipSet.of([2]))]
    assert run_rounds(strategy, 2, [500] * 3) == [*[Plan(SkipSet.of([2]))] * 2, Plan(SkipSet.of([3]))]


def test_planning_takes_its_share_of_the_time_and_no_more() -> None:
    """A round takes 0.03 s, a plan 0.3 s: one in 90 rounds is a tenth of all time. The first one is free."""
    strategy = Counting(window=1, interval=1, budget=0.1)
    run_rounds(strategy, 0, [1000] * 400, plan_seconds=0.3)
    assert 3 <= len(strategy.lengths) <= 5


def test_the_first_plan_waits_until_it_can_be_afforded() -> None:
    """Expected to take 0.3 s, and rounds of 0.03 s: at a tenth, after 90 rounds."""
    strategy = Counting(first_seconds=0.3, window=1, interval=1, budget=0.1)
    plans = run_rounds(strategy, 0, [1000] * 120)
    assert plans[:89] == [OFF] * 89
    assert plans[95] != OFF
    for largest, num_rows in ((8, 7.5), (1, 5)):  # weights 1 : 2 and 1 : 1
        seconds = plan_seconds(latency(num_layers=10), 32, KnapSpec.Options(max_weight=largest))
        assert seconds == pytest.approx(num_rows * latency().at(0).verify(32))


def test_a_plan_must_pay_by_the_tokens_still_to_come() -> None:
    """Tokens of 10 ms, a plan of 0.3 s that brings 10 %: for 300 tokens, as many as there are, or usually are."""
    strategy = Counting(first_seconds=0.3, gain=0.1, window=1, interval=1000, budget=0.99)
    run_rounds(strategy, 0, range(1000, 4000, 10), plan_seconds=0.3)
    assert strategy.lengths == [3000], "a tenth of it generated"
    strategy.lengths.clear()
    run_rounds(strategy, 1, range(1000, 1010))
    assert strategy.lengths == [1001], "texts have 900 tokens usually"
    hopeless = Counting(first_seconds=1e-9, gain=0.0, window=1)
    assert set(run_rounds(hopeless, 0, range(1000, 9000, 10))) == {OFF}


def test_what_a_plan_promises_is_told() -> None:
    found = Engine(pico("llama"), profile=profile()).generate(
        PROMPT, max_new_tokens=30, strategy="knapspec", settings={"knapspec": {"budget": 1.0}}
    )
    assert found.report["plans"] >= 1
    assert found.report["drafts"].startswith("without a")
    assert found.report["promised"] > 1
    found = Engine(pico("llama"), profile=profile(TOO_DEAR)).generate(
        PROMPT, max_new_tokens=30, strategy="knapspec", settings={"knapspec": {"budget": 1.0}}
    )
    assert found.report["drafts"] == "nothing: plain decoding promises more"
    assert Engine(pico("llama"), profile=profile(TOO_DEAR)).generate(
        PROMPT, max_new_tokens=30, strategy="knapspec"
    ).report == {"plans": 0, "drafts": "nothing: no plan has paid so far"}


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


@pytest.mark.parametrize("strategy", ["clasp", "dynamic-exit", "knapspec"])
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
    usual, looks_at = {"budget": 1.0, "interval": 5}, {} if strategy == "clasp" else {"min_tokens": 6}
    prompts = [PROMPT, [7], [*PROMPT, 3, 5, 8]]
    found = engine.generate(prompts, max_new_tokens=30, settings={strategy: {**usual, **looks_at}})
    texts = [[*prompt, *generation.tokens] for prompt, generation in zip(prompts, found, strict=True)]
    seen: set[int] = set()
    for tokens, first, said in looks:
        end = first + len(tokens)
        generated = [max(0, len(prompt) - first - 1) for prompt in prompts]  # from this choice on they were made
        rows = {
            row
            for row, text in enumerate(texts)
            if text[first:end] == tokens and said[generated[row] :] == text[first + 1 + generated[row] : end + 1]
        }
        assert rows
        assert len(tokens) == 1 if strategy == "clasp" else len(tokens) >= min(6, end)
        seen |= rows
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("strategy", ["asd", "clasp", "dynamic-exit", "knapspec"])
@pytest.mark.parametrize("num_layers", [2, 3])
def test_whoever_skips_nothing_drafts_nothing(strategy: str, num_layers: int) -> None:
    engine = Engine(pico("llama", num_hidden_layers=num_layers), strategy=strategy, profile=profile())
    steps = engine.generate(PROMPT, max_new_tokens=20, settings={strategy: {}}).steps
    assert all(item.plan.skip for item in steps if item.draft.tokens)


KNOWN = {"known": [{"skip": "a1", "match": 0.9}, {"skip": "a2,m3", "match": 0.8}, {"skip": "a1-3,m1-3", "match": 0.8}]}


def known_sets(fit: LatencyFit | None = None, **options: Any) -> KnapSpec:
    return KnapSpec(KnapSpec.Options(**options), replace(knowledge(NUM_LAYERS, fit), known=lambda name: KNOWN))


def test_a_text_begins_with_the_set_that_calibration_promises() -> None:
    """Nothing has been seen of it; and all sets are recorded beforehand."""
    fit, strategy = latency(), known_sets()
    best = max(KNOWN["known"], key=lambda one: fit.at(100).best_length(one["match"], SkipSet.parse(one["skip"]), 10)[1])
    strategy.begin(0, {})
    plan = strategy.plan(0, context(length=100))
    assert (str(plan.skip), strategy.report(0)["plans"]) == (best["skip"], 0)
    assert [str(one.skip) for one in strategy.known_plans] == [one["skip"] for one in KNOWN["known"]]
    for other in (known_sets(saved=False), known_sets(paper=True)):
        assert other.known_plans == ()
    strategy = known_sets(latency(verify=(Line(5e-5, 15.5e-3), Line(2e-4, 300e-3))))
    strategy.begin(0, {})
    assert strategy.plan(0, context(length=100)) == OFF


@pytest.mark.parametrize("planted", ["a1", "a2,m3", "a1-3,m1-3"])
def test_a_plan_chooses_among_known_sets_with_one_pass(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By how often each is right on the text's last tokens, drawn towards what calibration says by 8 tokens."""
    skip, fit = SkipSet.parse(planted), latency()
    probe = probe_of(zeroed(sorted(skip.attention), sorted(skip.mlp)))
    sets = {SkipSet.parse(one["skip"]): one["match"] for one in KNOWN["known"]}
    said = choices(probe, [(), *(one.numbers for one in sets)])
    hits = (said[1:] == said[0]).sum(1).tolist()
    assert hits[list(sets).index(skip)] == 5
    promises = {
        one: fit.at(16).best_length((count + 8 * match) / 13, one, 10)
        for (one, match), count in zip(sets.items(), hits, strict=True)
    }
    monkeypatch.setattr("selfdraft.strategies.knapspec.solve", None)
    best = max(promises, key=lambda one: promises[one][1])
    strategy = known_sets(fit)
    plan = strategy.choose(context(probe), 5)
    assert plan == (Plan(best, max_draft_tokens=10) if promises[best][0] else OFF)
    assert strategy._current.promise == pytest.approx(promises[best][1] * fit.at(16).plain)


def test_known_sets_draft_the_targets_text() -> None:
    engine = Engine(pico("llama"), profile=profile(knapspec=KNOWN))
    settings = {"knapspec": {"budget": 1.0, "interval": 3}}
    for options in ({}, {"temperature": 0.8, "seed": 2}):
        plain = engine.generate([PROMPT, [7]], strategy="off", max_new_tokens=25, **options)
        found = engine.generate([PROMPT, [7]], strategy="knapspec", settings=settings, max_new_tokens=25, **options)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
    skips = {str(step.plan.skip) for step in engine.generate(PROMPT, strategy="knapspec", max_new_tokens=25).steps}
    assert skips <= {"", *(one["skip"] for one in KNOWN["known"])}


@pytest.mark.parametrize(
    ("name", "content"), [("knapspec", {"known": [{"skip": "a99", "match": 1}]}), ("asd", {"every": "x"})]
)
def test_what_calibration_kept_and_cannot_be_read_is_named(name: str, content: Any) -> None:
    kind = find("strategy", name)
    with pytest.raises(ProfileError, match=f"cannot be read.*selfdraft calibrate MODEL --strategy {name}"):
        kind(kind.Options(), replace(knowledge(NUM_LAYERS), known=lambda name: content))


# ------------------------------------------------------------------------------------------------------- dynamic-exit


def test_each_layer_is_judged_by_what_the_head_reads_after_it() -> None:
    """A model whose last two layers do nothing says after the others what it says at its end."""
    probe = probe_of(zeroed([3, 4], [3, 4]))
    rates = exit_acceptances(probe)
    states = probe.begin()
    for number in range(4):
        states = probe.run(number, states)
    early = probe.scores(states)[0].argmax(-1)
    for number in range(4, 10):
        states = probe.run(number, states)
    hits = int((early == probe.scores(states)[0].argmax(-1)).sum())
    assert rates[1:] == [(hits + 1) / 7, 6 / 7, 6 / 7]
    strategy = DynamicExit(DynamicExit.Options(), knowledge(NUM_LAYERS, MUST_DRAFT))
    plan = strategy.choose(context(probe), 5)
    assert plan.reuse
    assert plan.skip in (exit_after(3, NUM_LAYERS), exit_after(2, NUM_LAYERS), exit_after(1, NUM_LAYERS))
    hopeless = latency(verify=(Line(5e-5, 15.5e-3), Line(2e-4, 300e-3)))
    for always in (False, True):
        strategy = DynamicExit(DynamicExit.Options(always=always), knowledge(NUM_LAYERS, hopeless))
        assert (strategy.choose(context(probe), 5) == OFF) is not always


def test_an_exit_that_must_draft_does_so_in_short_texts() -> None:
    """With half of the layers, as long as looking at the text does not pay."""
    for always in (False, True):
        engine = Engine(pico("llama"), strategy="dynamic-exit", profile=profile(TOO_DEAR))
        found = engine.generate(PROMPT, max_new_tokens=8, settings={"dynamic-exit": {"always": always}})
        assert {item.plan.skip for item in found.steps} == {
            exit_after(NUM_LAYERS // 2, NUM_LAYERS) if always else SkipSet()
        }
        assert bool(found.stats.num_draft_steps) is always
        assert found.tokens == engine.generate(PROMPT, max_new_tokens=8, strategy="off").tokens


# -------------------------------------------------------------------------------------------------------------- prune


def prune(fit: LatencyFit | None = None, **options: Any) -> Prune:
    return Prune(Prune.Options(**options), knowledge(NUM_LAYERS, fit))


def test_how_surely_sets_are_faster_is_told_by_resampled_texts() -> None:
    """By hand: of two texts both are drawn in half of the cases, and each twice in a quarter."""
    costs, alike = latency(num_layers=NUM_LAYERS).at(512), [SkipSet.parse(text) for text in ("m1", "m2")]
    num_tokens = np.array([100, 100])
    cases = {((90, 80), (90, 80)): 1.0, ((80, 90), (80, 90)): 0.0, ((80, 80), (80, 80)): 0.0}
    cases |= {((90, 80), (80, 85)): 0.75, ((90, 80), (70, 85)): 0.25}
    for hits, share in cases.items():
        assert share_faster(alike, np.array(hits), num_tokens, costs) == pytest.approx(share, abs=0.06), hits
    cheaper = [SkipSet.parse(text) for text in ("a1-2,m1-2", "m1")]
    assert share_faster(cheaper, np.array([(80, 80), (80, 80)]), num_tokens, costs) == 1.0


def plan_of(strategy: Prune, length: int = 100, steps: Sequence[StepRecord] = ()) -> Plan:
    strategy.begin(0, {})
    plan = strategy.plan(0, context(length=length))
    for one in steps:
        strategy.observe(0, one)
        strategy.meanwhile()
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


@pytest.mark.parametrize("fit", [latency(), latency(rest_seconds=8e-3), TOO_DEAR])
def test_a_profile_tells_what_prune_begins_with(fit: LatencyFit) -> None:
    points = [FrontierPoint.from_json(point) for point in FRONTIER]
    told = [choice(points, fit, length) for length in KNOWN_LENGTHS]
    assert [plan.skip for plan in prune(fit).known_plans] == list(dict.fromkeys(told))


def test_a_text_whose_drafts_fail_is_decoded_plainly_and_tried_again_later() -> None:
    strategy = prune()
    drafting = plan_of(strategy)
    assert drafting != OFF
    failing = [step(drafting, num_drafted=3, num_accepted=0)] * 16
    assert plan_of(strategy, steps=failing) == OFF
    resting = [step(OFF, num_drafted=0, num_accepted=0)] * 400
    assert plan_of(strategy, steps=[*failing, *resting]) != OFF


def test_the_next_text_begins_with_how_often_the_last_one_failed() -> None:
    """Short texts learn nothing by themselves; a few rounds of a text that fares better outweigh it."""
    strategy = prune()
    drafting = plan_of(strategy)
    failing, faring = (step(drafting, num_drafted=6, num_accepted=count) for count in (0, 6))
    plan_of(strategy, steps=[failing] * 16)
    strategy.end(0)
    assert plan_of(strategy) == OFF
    assert plan_of(strategy, steps=[step(OFF, num_drafted=0, num_accepted=0)] * 200) != OFF
    strategy.end(0)
    plan_of(strategy, steps=[faring] * 16)
    strategy.end(0)
    assert plan_of(strategy) != OFF


@pytest.mark.parametrize(("length", "pays"), [(1, True), (12, False)])
def test_drafts_are_held_to_be_as_long_as_they_are(length: int, pays: bool) -> None:
    """Of the tokens that were judged as many are refused as calibration says: short drafts pay, long ones do not."""
    strategy = prune()
    drafting = plan_of(strategy)
    accepted = [1, 1, 0] if length == 1 else [2]
    steps = [step(drafting, length, accepted[number % len(accepted)]) for number in range(72)]
    assert (plan_of(strategy, steps=steps) != OFF) == pays


def test_what_building_kernels_takes_is_not_held_against_plans() -> None:
    """Else no other would be made for minutes. What takes a little longer each time counts."""
    account, found = Account(last=0.01), []
    for seconds in (2.0, 0.02, 0.04):
        account.is_planning = True
        account.add(replace(step(OFF, num_drafted=0, num_accepted=0), optimise_seconds=seconds))
        found.append(account.last)
    assert found == [0.08, 0.02, 0.04]
    assert account.planning == pytest.approx(0.14)


def test_what_a_set_drafted_that_calibration_has_not_seen_says_nothing() -> None:
    strategy = prune()
    foreign = [step(Plan(SkipSet.of([1], [3])), num_drafted=3, num_accepted=0)] * 16
    assert plan_of(strategy, steps=foreign) == plan_of(strategy) != OFF


@pytest.mark.parametrize(("length", "match"), [(1, 0.5), (4, 0.8), (6, 0.7), (12, 0.9)])
def test_a_text_as_calibrated_is_believed_as_calibrated(length: int, match: float) -> None:
    """Tokens kept with probability `match` until the first refusal: nothing to correct, however long the drafts."""
    chance, failures = random.Random(0), Failures()
    ratios = []
    for _ in range(3000):
        num_accepted = next((depth for depth in range(length) if chance.random() > match), length)
        failures.observe(step(Plan(), length, num_accepted), match)
        ratios.append(failures.ratio)
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
    paper = resolve({"strategy": "knapspec", "settings": {"knapspec": {"paper": True}}})
    assert (paper["tree"], paper["settings"]["confidence"]) == ("chain", {"threshold": 0.7, "max_tokens": 10})
    for name in ("prune", "knapspec"):
        found = resolve({"strategy": name})
        assert (found["lookahead"], found["tree"]) == ("confidence", "siblings")
    assert resolve({"strategy": "uniform"})["tree"] == "chain"


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
