"""How far to draft: each rule by its definition, and against processes whose best rule is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import SETTINGS
from pico import pico
from replay import replay
from rounds import step_of
from selfdraft import Engine, Plan, StepRecord
from selfdraft.calibrate.traces import Trace
from selfdraft.calibrate.tuning import Replay, RoundSeconds, rank
from selfdraft.drafted import DraftStats
from selfdraft.drafters.lookup import Reliability
from selfdraft.lookahead.adaptive import Adaptive
from selfdraft.lookahead.confidence import Confidence
from selfdraft.lookahead.heuristic import NUM_PLACES, Heuristic
from selfdraft.lookahead.learned import Learned, RunningProduct
from selfdraft.lookahead.oracle import Oracle
from selfdraft.lookahead.oracle_length import OracleLength
from selfdraft.lookahead.perplexity import Perplexity
from selfdraft.lookahead.roc import Roc, best_threshold
from selfdraft.lookahead.tpt import EDGES, Chances, Costs, Tpt
from selfdraft.types import Draft, Verdict

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TEXTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5])


def stats_of(confidences: Sequence[float], depth: int = 1, text: int = 0) -> DraftStats:
    rows = torch.zeros(len(confidences), dtype=torch.long)
    return DraftStats(rows + depth, rows, rows, rows + text, torch.zeros(len(rows), 3), torch.tensor(confidences))


def length_of(lookahead: Any, text: int = 0, confidence: float = 0.9) -> int:
    """How far it drafts when every token is drafted with one confidence."""
    for depth in range(1, 100):
        if not lookahead.wants_more(stats_of([confidence], depth, text)).item():
            return depth
    raise AssertionError("it never stops")


CUT = StepRecord(0, Plan(), Draft.chain([1, 2, 3]), Verdict((1, 2), (0, 1)))
"""A stop rule struck after two tokens that were kept."""


class TestOutcomes:
    def test_the_refused_token_is_known_unless_a_stop_rule_struck(self) -> None:
        assert step_of(4, 2).chain_outcomes == (True, True, False)
        assert step_of(4, 4).chain_outcomes == (True,) * 4
        assert step_of(0, 0).chain_outcomes == ()
        assert CUT.chain_outcomes == (True, True)
        assert [step.was_cut for step in (CUT, step_of(4, 2), step_of(4, 4), step_of(0, 0))] == [True, *[False] * 3]

    def test_a_sibling_that_is_kept_means_that_the_chain_was_refused(self) -> None:
        draft = Draft((1, 2, 8, 9), (-1, 0, -1, 0), chain_length=2, num_draft_steps=2)
        assert StepRecord(0, Plan(), draft, Verdict((1, 9, 5), (0, 3))).chain_outcomes == (True, False)
        assert StepRecord(0, Plan(), draft, Verdict((8,), (2,))).chain_outcomes == (False,)


class TestLearned:
    def test_is_changed_in_place(self) -> None:
        learned = Learned([1.0, 2.0])
        with torch.inference_mode():
            tensor = learned.on(torch.device("cpu"))
        learned.set([3.0, 4.0])
        assert tensor.tolist() == [3.0, 4.0]
        assert learned.on(torch.device("cpu")) is tensor

    def test_a_looked_up_chain_may_be_shown_all_at_once(self) -> None:
        depths = torch.tensor([1, 2, 3, 1, 2, 3])
        confidence = torch.tensor([0.5] * 3 + [0.9] * 3)
        stats = DraftStats(depths, depths, depths, depths, None, confidence)
        found = RunningProduct()(stats, stats.confidence)
        assert found.tolist() == pytest.approx([0.5, 0.25, 0.125, 0.9, 0.81, 0.729])


class TestHeuristic:
    @pytest.mark.parametrize(
        ("options", "kept", "expected"),
        [
            ({}, (5, 7, 3, 7, 0), [5, 7, 9, 8, 7, 6]),
            ({"start": 2, "max_tokens": 4}, (0, 0, 0), [2, 1, 1, 1]),  # never below one
            ({"start": 2, "max_tokens": 4}, (2, 4, 4), [2, 4, 4, 4]),  # nor above its maximum
        ],
    )
    def test_two_more_or_one_less(self, options: dict[str, int], kept: Sequence[int], expected: list[int]) -> None:
        lookahead = Heuristic(Heuristic.Options(**options))
        lengths = [length_of(lookahead)]
        for num_kept in kept:
            lookahead.observe(step_of(length_of(lookahead), num_kept))
            lengths.append(length_of(lookahead))
        assert lengths == expected

    def test_texts_of_a_batch_have_lengths_of_their_own(self) -> None:
        lookahead = Heuristic(Heuristic.Options())
        for _ in range(3):
            lookahead.observe(step_of(length_of(lookahead, 0), length_of(lookahead, 0), text=0))
            lookahead.observe(step_of(length_of(lookahead, 1), 0, text=1))
        assert [length_of(lookahead, text) for text in (0, 1, 2)] == [11, 2, 5]

    @pytest.mark.parametrize(("carry", "expected"), [(True, 9), (False, 5)])
    def test_carried_to_the_next_text(self, carry: bool, expected: int) -> None:
        lookahead = Heuristic(Heuristic.Options(carry=carry))
        for kept in (5, 7):
            lookahead.observe(step_of(kept, kept))
        lookahead.end(0)
        assert [length_of(lookahead, text) for text in (0, 1, NUM_PLACES)] == [expected] * 3

    def test_rounds_that_draft_nothing_or_were_cut_change_nothing(self) -> None:
        lookahead = Heuristic(Heuristic.Options())
        lookahead.observe(step_of(0, 0))
        lookahead.observe(CUT)
        assert length_of(lookahead) == 5


class TestThresholds:
    def test_adaptive_follows_its_target(self) -> None:
        """By hand: shares 1 and 0 smoothed by a half against 0.9, steps of 0.01 smoothed by 0.9."""
        lookahead = Adaptive(Adaptive.Options())
        lookahead.observe(step_of(4, 4))  # share 0.95: down
        assert lookahead.threshold == pytest.approx(0.799)
        lookahead.observe(step_of(4, 0))  # 0.475: up
        assert lookahead.threshold == pytest.approx(0.8)
        lookahead.observe(step_of(4, 4))  # 0.7375: up still
        assert lookahead.threshold == pytest.approx(0.801)
        lookahead.observe(step_of(0, 0))
        lookahead.observe(CUT)
        lookahead.end(0)
        assert lookahead.threshold == pytest.approx(0.801), "carried to the next text"

    def test_adaptive_does_not_fall_after_the_longest_drafts(self) -> None:
        """They could not have been longer."""
        rule = Adaptive(Adaptive.Options(max_tokens=3))
        rule.observe(step_of(3, 3))
        assert rule.threshold == pytest.approx(0.8)
        rule.observe(step_of(2, 2))
        assert rule.threshold < 0.8

    def test_adaptive_stays_a_probability(self) -> None:
        lookahead = Adaptive(Adaptive.Options(threshold=0.01, step=1.0))
        for _ in range(50):
            lookahead.observe(step_of(3, 3))
        assert lookahead.threshold == 0.0
        for _ in range(500):
            lookahead.observe(step_of(3, 0))
        assert lookahead.threshold == pytest.approx(1.0)

    @pytest.mark.parametrize("kind", [Adaptive, Roc])
    def test_what_was_learned_decides(self, kind: Any) -> None:
        lookahead = kind(kind.Options(threshold=0.5))
        assert lookahead.wants_more(stats_of([0.6, 0.4])).tolist() == [True, False]
        for _ in range(300):
            lookahead.observe(step_of(2, 1, [0.95, 0.7]))
        assert 0.7 < lookahead.threshold <= 0.95
        assert lookahead.wants_more(stats_of([0.96, 0.6])).tolist() == [True, False]
        assert lookahead.wants_more(stats_of([0.96], depth=12)).tolist() == [False]

    @given(pairs=st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=2))
    def test_roc_against_a_search_over_all_thresholds(self, pairs: list[tuple[float, bool]]) -> None:
        kept = [confidence for confidence, is_kept in pairs if is_kept]
        refused = [confidence for confidence, is_kept in pairs if not is_kept]
        found = best_threshold(*(np.array(column) for column in zip(*pairs, strict=True)), weight=3.0)
        if not kept or not refused:
            assert found is None
            return
        assert found is not None

        def cost(threshold: float) -> float:
            missed = sum(confidence < threshold for confidence in kept) / len(kept)
            return sum(confidence >= threshold for confidence in refused) / len(refused) + 3 * missed

        assert cost(found) == pytest.approx(min(cost(confidence) for confidence, _ in pairs))

    def test_roc_forgets(self) -> None:
        lookahead = Roc(Roc.Options(memory=20))
        for confidences in ([0.9, 0.8], [0.3, 0.2]):
            for _ in range(20):
                lookahead.observe(step_of(2, 1, confidences))
        assert lookahead.threshold == pytest.approx(0.3)


class TestPerplexity:
    @given(values=st.lists(st.floats(0.05, 1), min_size=1, max_size=8))
    def test_is_that_of_the_whole_draft(self, values: list[float]) -> None:
        """And of no other: the product begins again with every round."""
        lookahead = Perplexity(Perplexity.Options(threshold=1.5))
        for depth, value in [*enumerate(values, start=1)] * 2:
            perplexity = math.exp(-sum(map(math.log, values[:depth])) / depth)
            found = lookahead.wants_more(stats_of([value, 1.0], depth))
            assert found[0] == (perplexity <= 1.5) or perplexity == pytest.approx(1.5)
            assert found[1]

    def test_a_certain_token_makes_up_for_an_unsure_one(self) -> None:
        lookahead = Perplexity(Perplexity.Options(threshold=1.5))
        assert length_of(lookahead, confidence=0.99) == 12
        wanted = [lookahead.wants_more(stats_of([c], d)).item() for d, c in ((1, 1.0), (2, 0.5), (3, 0.5))]
        assert wanted == [True, True, False]


class TestReliability:
    def test_begins_with_one_minus_two_to_the_minus_length(self) -> None:
        assert [Reliability().of(length) for length in (1, 2, 3, 8)] == [0.5, 0.75, 0.875, 1 - 2**-8]

    def test_is_refitted_to_what_is_seen_of_each_length(self) -> None:
        reliability = Reliability()
        for _ in range(200):
            reliability.learn(2, (True, True, True, False))
            reliability.learn(5, (False,))
        assert reliability.of(2) == pytest.approx(0.75, abs=0.02)
        assert reliability.of(5) < 0.15
        assert reliability.of(3) == 0.875

    def test_an_engine_learns_it(self) -> None:
        engine = Engine(pico("llama"), drafter="lookup", settings={"lookup": {"min_ngram": 1}})
        found = engine.generate(TEXTS[2], max_new_tokens=60)
        (drafter,) = [part for key, part in engine._parts.built.items() if key[:2] == ("drafter", "lookup")]
        assert drafter.reliability._seen
        assert not drafter._lengths, "texts that ended are forgotten"
        assert any(0 < c < 1 for step in found.steps for c in step.draft.confidences)
        engine.forget()
        assert not drafter.reliability._seen


# ------------------------------------------------------------------------------------------- known processes


def trace_of(kept: Sequence[bool] | Any, confidences: Sequence[float] | Any) -> Trace:
    count = len(kept)
    sure = torch.tensor(np.asarray(confidences, dtype=np.float32))
    top = torch.zeros(count, 10)
    top[:, 0] = sure
    zeros = torch.zeros(count)
    return Trace(
        "planted", top, zeros, sure, zeros.long(), torch.ones(count).bool(), torch.tensor(np.asarray(kept)), sure, True
    )


def improvement(acceptance: float, length: int, cost: float) -> float:
    """Equation 1 of DISCO (Leviathan et al.)."""
    return (1 - acceptance ** (length + 1)) / ((1 - acceptance) * (length * cost + 1))


def best_static(traces: Sequence[Trace], seconds: RoundSeconds, longest: int = 24) -> tuple[int, float]:
    best = rank("fixed", Replay(traces, seconds, longest))[0]
    return best.options["tokens"], best.predicted


@pytest.mark.parametrize(("acceptance", "cost"), [(0.8, 0.3), (0.6, 0.5)])
def test_tokens_kept_independently_have_a_closed_form(acceptance: float, cost: float) -> None:
    """Nothing tells one token from another, so the best length is constant: static-opt and `tpt` both find it."""
    random = np.random.default_rng(3)
    traces = [trace_of(random.random(2500) < acceptance, np.full(2500, 0.7))]
    seconds = RoundSeconds(cost, lambda num_drafted: 1.0)
    expected = max(range(1, 25), key=lambda length: improvement(acceptance, length, cost))
    length, speed = best_static(traces, seconds)
    assert improvement(acceptance, length, cost) > 0.99 * improvement(acceptance, expected, cost)
    lookahead = Tpt(Tpt.Options(max_tokens=24))
    found = replay(traces, lookahead, seconds)
    drafted = [one.drafted for one in found.rounds[len(found.rounds) // 2 :]]
    assert abs(np.median(drafted) - expected) <= 1
    assert found.tokens_per_second > 0.98 * speed
    assert found.tokens_per_second == pytest.approx(improvement(acceptance, expected, cost), rel=0.06)


def bursty(count: int = 1000, seed: int = 5) -> Trace:
    """Runs of easy tokens, of which the draft is sure and rightly so, and runs of hard ones."""
    random = np.random.default_rng(seed)
    is_easy = np.zeros(count, dtype=bool)
    position, state = 0, True
    while position < count:
        length = random.geometric(0.06 if state else 0.25)
        is_easy[position : position + length] = state
        position, state = position + length, not state
    kept = random.random(count) < np.where(is_easy, 0.98, 0.35)
    sure = np.clip(np.where(is_easy, 0.96, 0.45) + 0.03 * random.standard_normal(count), 0.05, 0.999)
    return trace_of(kept, sure)


@pytest.mark.parametrize(
    "lookahead",
    [Tpt(Tpt.Options(max_tokens=24)), Confidence(Confidence.Options(max_tokens=24)), Roc(Roc.Options(max_tokens=24))],
    ids=lambda lookahead: type(lookahead).__name__,
)
def test_where_easy_and_hard_come_in_bursts_a_dynamic_rule_beats_every_static_one(lookahead: Any) -> None:
    traces, seconds = [bursty()], RoundSeconds(0.3, lambda num_drafted: 1.0 + 0.01 * num_drafted)
    _, static = best_static(traces, seconds)
    assert replay(traces, lookahead, seconds).tokens_per_second > 1.08 * static


@pytest.mark.full
def test_tpt_does_not_mind_how_sure_a_draft_says_it_is() -> None:
    """It learns what a confidence is worth; a threshold believes it."""
    seconds = RoundSeconds(0.3, lambda num_drafted: 1.0)
    honest = bursty()
    boastful = trace_of(honest.is_kept.numpy(), 0.9 + 0.1 * honest.confidences.numpy())
    speeds = {
        name: [replay([trace], make(), seconds).tokens_per_second for trace in (honest, boastful)]
        for name, make in (
            ("tpt", lambda: Tpt(Tpt.Options(max_tokens=24))),
            ("confidence", lambda: Confidence(Confidence.Options(max_tokens=24))),
        )
    }
    assert speeds["tpt"][1] > 0.95 * speeds["tpt"][0]
    assert speeds["confidence"][1] < 0.85 * speeds["confidence"][0]


class TestTptParts:
    def test_chances_are_believed_until_more_is_known(self) -> None:
        chances = Chances()
        bounds = (0.0, *EDGES, 1.0)
        own, following = chances.table
        assert all(low < found < high for low, found, high in zip(bounds, own, bounds[1:], strict=False))
        assert len(own) == len(following) == len(bounds) - 1
        assert set(following) == {0.75}
        for _ in range(400):
            chances.learn([0.999, 0.6], [True, False])
        own, following = chances.table
        assert own[-1] == pytest.approx(1.0, abs=0.02)
        assert own[np.searchsorted(EDGES, 0.6, side="right")] < 0.05
        assert following[-1] < 0.05, "after a sure token an unsure one has always followed"
        assert following[3] == pytest.approx(0.5, abs=0.02), "of which nothing else is known: as all tokens"

    def test_what_was_seen_long_ago_is_forgotten(self) -> None:
        chances = Chances()
        for _ in range(6000):  # more than the weight of what is new may grow
            chances.learn([0.95], [True])
        for _ in range(2000):
            chances.learn([0.95], [False])
        assert chances.table[0][np.searchsorted(EDGES, 0.95, side="right")] < 0.03

    def test_one_round_that_was_held_up_does_not_count(self) -> None:
        def costs_with(*extra: StepRecord) -> float:
            costs = Costs(64)
            for step in (*extra, *[step_of(4, 2, seconds=(0.004, 0.002))] * 20):
                costs.learn(step)
            return costs.tokens_a_step

        usual = costs_with()
        assert usual == pytest.approx(0.001 * 3 / 0.006)
        assert costs_with(step_of(4, 2, seconds=(5.0, 5.0))) == pytest.approx(usual, rel=0.15)

    def test_a_wider_verification_is_part_of_the_price(self) -> None:
        costs = Costs(64)
        for drafted in (2, 8) * 10:
            costs.learn(step_of(drafted, 1, seconds=(0.001 * drafted, 0.002 + 0.0005 * drafted)))
        rate = 40 / sum(0.002 + 0.0015 * drafted for drafted in (2, 8) * 10)
        assert costs.tokens_a_step == pytest.approx(0.0015 * rate)

    def test_texts_of_a_batch_share_a_round_and_its_clock(self) -> None:
        """The round is as long as its longest draft, and counts once; a text gets its share of what is emitted."""
        alone, batch = Costs(64), Costs(64)
        for longest in (2, 8, 5) * 8:
            seconds = (0.001 * longest, 0.002)
            alone.learn(step_of(longest, 2, seconds=seconds))
            for text in range(8):
                batch.learn(step_of(longest if text == 3 else 1, 2 if text == 3 else 1, text=text, seconds=seconds))
        assert len(batch._rounds) == len(alone._rounds) == 24
        assert batch.tokens_a_step / alone.tokens_a_step == pytest.approx((2 + 1 / 8) / 3)

    def test_planning_is_time_too(self) -> None:
        quick, slow = Costs(64), Costs(64)
        for _ in range(8):
            step = step_of(4, 2, seconds=(0.004, 0.002))
            quick.learn(step)
            slow.learn(dataclasses.replace(step, optimise_seconds=0.006))
        assert slow.tokens_a_step == pytest.approx(quick.tokens_a_step / 2)

    def test_a_clock_that_stands_still_stops_nothing(self) -> None:
        lookahead = Tpt(Tpt.Options())
        for _ in range(8):
            lookahead.observe(step_of(3, 3))
        assert lookahead.bar == 0.0
        assert length_of(lookahead) == 12


# ------------------------------------------------------------------------------------------- the oracle


class TestOracle:
    @pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "sampled"])
    @pytest.mark.parametrize("drafter", ["self", "lookup", "model"])
    def test_stops_at_the_first_token_that_is_refused(self, drafter: str, options: dict[str, Any]) -> None:
        engine = Engine(pico("llama"), strategy="uniform", drafter=drafter, settings=SETTINGS)
        plain = engine.generate(list(TEXTS), strategy="off", max_new_tokens=24, **options)
        oracle = Oracle([generation.tokens for generation in plain])
        found = [  # one by one: a batch ends its drafts when most rows have stopped
            engine.generate(text, sequence=place, lookahead=oracle, max_new_tokens=24, **options)
            for place, text in enumerate(TEXTS)
        ]
        for one, other in zip(plain, found, strict=True):
            assert one.tokens == other.tokens
            for step in other.steps:
                assert all(step.chain_outcomes[:-1]), "it drafted after a refused token"
                longest = step.draft.chain_length == len(step.chain_outcomes)
                assert longest or step is other.steps[-1]
        steps = [step for generation in found for step in generation.steps]
        assert any(False in step.chain_outcomes for step in steps)
        told = OracleLength([[source == "draft" for source in generation.sources] for generation in found])
        for place, (text, other) in enumerate(zip(TEXTS, found, strict=True)):
            exact = engine.generate(text, sequence=place, lookahead=told, max_new_tokens=24, **options)
            assert exact.tokens == other.tokens
            assert exact.sources == other.sources, "it drafts what is kept"
            assert exact.stats.num_draft_steps == exact.stats.num_accepted, "and nothing else"
            assert exact.stats.num_rounds == other.stats.num_rounds
        assert drafter == "lookup" or max(step.draft.chain_length for step in steps) > 1


@pytest.mark.parametrize("lookahead", ["heuristic", "adaptive", "roc", "tpt"])
def test_what_is_learned_is_about_one_strategy_and_drafter(lookahead: str) -> None:
    engine = Engine(pico("llama"), lookahead=lookahead)
    parts = [
        engine._method(method).lookahead
        for method in ({}, {}, {"drafter": "lookup"}, {"strategy": "fixed", "settings": {"fixed": {"skip": "a1"}}})
    ]
    assert parts[0] is parts[1]
    assert len({id(part) for part in parts}) == 3
