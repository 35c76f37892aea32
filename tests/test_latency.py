"""Latency: planted costs are recovered, and what follows from them is right. The clock is planted, too."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import learned
from pico import NUM_LAYERS, pico
from selfdraft.economics import LatencyFit, Line, expected_tokens, speed_table
from selfdraft.errors import ModelError, OptionError
from selfdraft.models import latency
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.models.latency import PLAIN, WHOLE, Kind, Sample, fit_samples, fitting_length, least_squares, measure
from selfdraft.passes import PassOutput, PassRequest
from selfdraft.types import SkipSet
from tape import TapeRecorder

HALF = SkipSet.parse("a1-4,m1-4")
LAYERS = 8


@dataclasses.dataclass
class FakeRunner:
    """A model whose passes take what is planted here, by a clock that nothing else moves."""

    attention: Line = Line(2e-6, 3e-4)
    mlp: float = 5e-4
    rest: float = 2e-3
    reading: float = 1e-4
    per_column: Line = Line(1e-7, 4e-4)
    """What each column after the first adds."""
    per_prompt_token: float = 1e-5
    drift: float = 0.0
    first_seconds: float = 0.0
    """What the first pass of a kind adds."""
    num_layers: int = LAYERS
    recorded_widths: Sequence[int] = ()
    buckets: Sequence[int] = ()
    context_length: int | None = None
    vocab_size: int = 100
    now: float = 0.0

    def __post_init__(self) -> None:
        self.lengths: list[int] = []
        self.num_passes = 0
        self.known: set[Any] = set()

    def seconds(self) -> float:
        return self.now

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        smaller = [size for size in self.buckets if size < num_slots]
        return self.buckets[: len(smaller) + 1]

    def new_cache(self, num_rows: int, num_slots: int) -> Any:
        self.lengths.append(num_slots - latency.ROOM)
        return SimpleNamespace()

    def width_taken(self, width: int) -> int:
        return next((known for known in self.recorded_widths if known >= width), width) if self.buckets else width

    def pass_seconds(self, width: int, start: int, skip: SkipSet = SkipSet()) -> float:  # noqa: B008 - frozen
        attentions, mlps = self.num_layers - len(skip.attention), self.num_layers - len(skip.mlp)
        one = attentions * self.attention.at(start) + mlps * self.mlp + self.rest
        return one + (self.width_taken(width) - 1) * self.per_column.at(start)

    @property
    def is_recording(self) -> bool:
        return bool(self.buckets)

    def forward(self, request: PassRequest, cache: Any) -> PassOutput:
        tokens, starts = request.tokens, request.starts
        width = len(tokens[0])
        assert all(0 <= token < self.vocab_size for token in tokens[0])
        assert self.context_length is None or starts[0] + width <= self.context_length
        kind = request.needs_scores and width, request.skip
        if kind not in self.known:
            self.known.add(kind)
            self.now += self.first_seconds
        if not request.needs_scores:
            self.now += width * self.per_prompt_token
            return PassOutput(torch.zeros(1, 0, 1))
        self.num_passes += 1
        self.now += (1 + self.drift * self.num_passes) * self.pass_seconds(width, starts[0], request.skip)
        return PassOutput(torch.zeros(1, width, 1), read_choices=self._read)

    def _read(self) -> list[list[int]]:
        self.now += self.reading
        return [[7]]


def a_fit(**changes: Any) -> LatencyFit:
    """Attention costs as much as an MLP after 500 slots; verification hardly more than a plain pass."""
    values: dict[str, Any] = {
        "num_layers": LAYERS,
        "attention": Line(1e-6, 5e-4),
        "mlp_seconds": 1e-3,
        "rest_seconds": 1e-3,
        "plain": Line(8e-6, 13e-3),
        "widths": (1, 2, 4, 8),
        "verify": (Line(8e-6, 13e-3), Line(9e-6, 14e-3), Line(11e-6, 16e-3), Line(15e-6, 24e-3)),
    }
    return learned.latency(**{**values, **changes})


class TestMeasure:
    @pytest.mark.parametrize("lengths", [(64, 512, 2048), (16, 300), (5, 700, 100)])
    def test_planted_costs_are_recovered(self, lengths: tuple[int, ...]) -> None:
        runner = FakeRunner()
        fit = measure(runner, lengths)
        assert fit.lengths == tuple(sorted(lengths))
        assert (fit.attention.per_slot, fit.attention.base) == pytest.approx((2e-6, 3e-4))
        assert (fit.mlp_seconds, fit.rest_seconds) == pytest.approx((runner.mlp, runner.rest))
        assert (fit.max_error, fit.rms_error) == pytest.approx((0, 0), abs=1e-9)
        assert fit.clamped == ()
        assert not fit.is_recorded

    @pytest.mark.parametrize("num_context", [1, 200, 4000])
    def test_what_was_not_measured_is_predicted(self, num_context: int) -> None:
        runner = FakeRunner()
        fit = measure(runner)
        for skip in (SkipSet(), HALF, SkipSet.parse("a2"), SkipSet.parse("m0-7")):
            expected = runner.pass_seconds(1, num_context, skip)
            assert fit.at(num_context).draft(skip) == pytest.approx(expected)
        for width in (1, 2, 3, 8, 11, 32, 40):
            expected = runner.pass_seconds(width, num_context) + runner.reading * (width > 1)
            assert fit.at(num_context).verify(width) == pytest.approx(expected)
        assert fit.at(num_context).plain == pytest.approx(runner.pass_seconds(1, num_context) + runner.reading)

    def test_recorded_widths_are_measured_and_padded_to(self) -> None:
        runner = FakeRunner(recorded_widths=(1, 2, 4, 6, 64), buckets=(256, 1024, 4096))
        fit = measure(runner)
        assert fit.is_recorded
        assert fit.widths == (1, 2, 4, 6, 64)
        assert fit.at(100).verify(5) == pytest.approx(runner.pass_seconds(6, 100) + runner.reading)
        assert fit.at(100).verify(7) == pytest.approx(runner.pass_seconds(64, 100) + runner.reading)

    def test_a_runner_that_gave_up_recording_takes_the_usual_widths(self) -> None:
        fit = measure(FakeRunner(recorded_widths=(1, 64)))
        assert fit.widths == latency.WIDTHS
        assert not fit.is_recorded

    def test_a_single_length_says_nothing_of_growth(self) -> None:
        runner = FakeRunner()
        fit = measure(runner, [64])
        assert fit.attention.per_slot == 0
        parts = (fit.attention.base, fit.mlp_seconds, fit.rest_seconds)
        assert parts == pytest.approx((runner.attention.at(64), runner.mlp, runner.rest))

    def test_drift_hits_all_alike(self) -> None:
        """A machine that becomes slower all the time: the ratio of the sub-layers stays."""
        steady, slowing = measure(FakeRunner()), measure(FakeRunner(drift=2e-4))
        ratio = slowing.mlp_seconds / steady.mlp_seconds
        assert ratio > 1.04
        assert slowing.at(512).attention / steady.at(512).attention == pytest.approx(ratio, rel=0.02)

    def test_an_outlier_is_left_out(self) -> None:
        class Disturbed(FakeRunner):
            def forward(self, request: PassRequest, cache: Any) -> PassOutput:
                self.now += 0.5 * (self.num_passes == 300)
                return super().forward(request, cache)

        runner = Disturbed()
        assert measure(runner).max_error == pytest.approx(0, abs=1e-9)
        assert runner.num_passes > 600, "it came in the middle"

    def test_texts_stay_within_the_context(self) -> None:
        runner = FakeRunner(context_length=256)
        assert measure(runner).lengths == (64, 192)
        assert measure(FakeRunner(context_length=20)).widths == (1, 2, 4, 8, 16)

    def test_texts_leave_room_in_their_bucket(self) -> None:
        runner: Any = FakeRunner(buckets=(256, 1024))
        wanted = {64: 64, 192: 192, 250: 192, 256: 256, 900: 900, 1000: 960}
        assert {length: fitting_length(runner, length) for length in wanted} == wanted

    def test_the_budget_leaves_out_long_texts_and_rounds(self) -> None:
        slow, quick = FakeRunner(per_prompt_token=0.01), FakeRunner()
        assert measure(slow, (64, 512, 2048), 20.0).lengths == (64, 512)
        assert slow.lengths == [64, 512], "and never read the third"
        measure(quick, (64, 512), 5.0)
        assert slow.now < 20
        assert quick.now < 5
        assert measure(FakeRunner(), (64, 512), 0.0).lengths == (64,)

    def test_compiling_and_recording_are_not_measured(self) -> None:
        """Passes that are recorded are timed in batches, however long the first of each kind took."""
        quick = FakeRunner(recorded_widths=(1, 2, 4), buckets=(256, 1024))
        cold = FakeRunner(recorded_widths=(1, 2, 4), buckets=(256, 1024), first_seconds=3.0)
        fits = [measure(runner, (64, 512), 10.0) for runner in (quick, cold)]
        assert fits[0].lengths == fits[1].lengths == (64, 512)
        expected, found = ((fit.at(300).plain, fit.at(300).verify(4), fit.rms_error) for fit in fits)
        assert found == pytest.approx(expected, abs=1e-12)
        assert cold.now - quick.now == pytest.approx(len(cold.known) * 3.0)
        assert len(cold.known) * 3.0 > 10

    def test_progress_tells_seconds_of_the_budget(self) -> None:
        told = mock.Mock()
        measure(FakeRunner(), (64, 512), 10.0, told)
        calls = [call.args for call in told.call_args_list]
        assert calls == sorted(calls)
        assert calls[-1] == (10, 10, "measuring passes")
        assert {total for _, total, _ in calls} == {10}

    def test_what_cannot_be_measured_is_said(self) -> None:
        with pytest.raises(OptionError, match=r"texts of \[64, 0\] tokens: give lengths of at least 1"):
            measure(FakeRunner(), [64, 0])
        with pytest.raises(OptionError, match="at least 1"):
            measure(FakeRunner(), [])
        with pytest.raises(ModelError, match="single layer"):
            measure(FakeRunner(num_layers=1))


class TestRealRunners:
    def test_eager(self) -> None:
        fit = measure(EagerRunner(pico("llama")), (8, 64), 0.5)
        assert fit.lengths[0] == 8
        assert fit.widths == latency.WIDTHS
        assert min(fit.at(64).draft(SkipSet()), fit.at(64).verify(5), fit.at(64).plain) > 0
        assert fit.num_layers == NUM_LAYERS
        assert LatencyFit.from_json(json.loads(json.dumps(fit.to_json())), NUM_LAYERS) == fit

    def test_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(latency, "_BATCH_SECONDS", 0.0)
        runner = GraphRunner(pico("llama"), make_recorder=TapeRecorder)
        fit = measure(runner, (8,), 0.0)
        assert fit.is_recorded
        assert fit.widths == tuple(runner.recorded_widths)
        assert runner.num_hits > 0, "plain passes run ahead"

    def test_an_interrupt_leaves_nothing_behind(self) -> None:
        runner, caches = EagerRunner(pico("llama")), []
        honest = runner.new_cache

        def new_cache(*arguments: Any) -> Any:
            caches.append(weakref.ref(cache := honest(*arguments)))
            return cache

        runner.new_cache = new_cache
        fresh = runner.forward(PassRequest([[1, 2, 3]], [0]), runner.decoder.new_cache(1, 8)).choices()
        with pytest.raises(KeyboardInterrupt):
            measure(runner, (8, 16), 5.0, mock.Mock(side_effect=[None] * 12 + [KeyboardInterrupt]))
        gc.collect()
        assert len(caches) == 2
        assert [cache() for cache in caches] == [None, None]
        assert runner.forward(PassRequest([[1, 2, 3]], [0]), runner.decoder.new_cache(1, 8)).choices() == fresh


class TestFit:
    def samples(self, seconds: Callable[[Kind, int], float]) -> list[Sample]:
        kinds = [PLAIN, WHOLE, Kind(4), *(Kind(skip=skip) for skip in latency._skips(LAYERS))]
        return [Sample(kind, length, seconds(kind, length)) for kind in kinds for length in (64, 512)]

    def test_negative_seconds_are_clamped_and_said(self) -> None:
        """Longer texts seem to be quicker."""
        fit = fit_samples(
            self.samples(lambda kind, length: 0.02 - 0.01 * len(kind.skip) / 14 - 1e-6 * length), 8, False
        )
        assert fit.attention.per_slot == 0
        assert {"attention per slot", "plain per slot", "width 1 per slot", "width 4 per slot"} <= set(fit.clamped)
        assert fit.attention.base > 0
        assert fit.max_error > 0.005, "what was clamped is no longer explained"
        parts = (fit.attention.base, fit.mlp_seconds, fit.rest_seconds, *(line.base for line in fit.verify))
        assert min(parts) >= 0

    def test_zero_is_no_clamping(self) -> None:
        fit = measure(FakeRunner(attention=Line(0.0, 3e-4), rest=0.0))
        assert fit.clamped == ()
        assert fit.at(9999).attention == pytest.approx(3e-4)
        assert fit.mlp_seconds == pytest.approx(5e-4)

    def test_errors_are_relative(self) -> None:
        """Three lengths that are on no line."""
        kinds = [PLAIN, WHOLE, *(Kind(skip=skip) for skip in latency._skips(LAYERS))]
        bump = {64: 1.0, 512: 1.1, 960: 1.0}
        samples = [Sample(kind, length, 0.01 * factor) for kind in kinds for length, factor in bump.items()]
        small, large = (
            fit_samples([dataclasses.replace(s, seconds=s.seconds * scale) for s in samples], LAYERS, False)
            for scale in (1, 1000)
        )
        assert 0.03 < small.rms_error <= small.max_error < 0.1
        assert large.rms_error == pytest.approx(small.rms_error)

    def test_least_squares_none_negative(self) -> None:
        """Against every point of a grid."""
        shares = torch.tensor([[1.0, 2.0, 0.5], [0.5, 3.0, 1.0], [2.0, 2.5, 0.1], [1.5, 0.2, 0.7]]).double().numpy()
        found, free = least_squares(shares)
        assert (found >= 0).all()
        error = ((shares @ found - 1) ** 2).sum()
        assert error >= ((shares @ free - 1) ** 2).sum() - 1e-12
        steps = torch.linspace(0, 1.5, 31).double()
        grid = torch.cartesian_prod(steps, steps, steps)
        errors = ((grid @ torch.from_numpy(shares).T - 1) ** 2).sum(1)
        assert error <= errors.min() + 1e-12


class TestFitValue:
    def test_json_both_ways(self) -> None:
        """Older profiles do not tell the layers."""
        fit = a_fit(clamped=("mlp",))
        document = json.loads(json.dumps(fit.to_json()))
        assert LatencyFit.from_json(document, LAYERS) == fit
        assert hash(LatencyFit.from_json(document, LAYERS)) == hash(fit)
        assert document["attention"] == {"per_slot": 1e-6, "base": 5e-4}
        del document["num_layers"]
        assert LatencyFit.from_json(document, 7) == dataclasses.replace(fit, num_layers=7)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ({"mlp_seconds": -1e-3}, "not numbers of at least 0"),
            ({"rest_seconds": float("nan")}, "not numbers of at least 0"),
            ({"plain": {"per_slot": True, "base": 1.0}}, "not numbers of at least 0"),
            ({"widths": [1, 2]}, "do not fit its widths"),
            ({"verify": []}, "do not fit its widths"),
        ],
    )
    def test_damage(self, damage: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            LatencyFit.from_json({**a_fit().to_json(), **damage}, LAYERS)

    def test_a_draft_is_what_it_does_not_skip(self) -> None:
        seconds = a_fit(num_layers=4).at(500).draft(SkipSet.parse("a1-3,m2"))
        assert seconds == pytest.approx(1 * 1e-3 + 3 * 1e-3 + 1e-3)

    @pytest.mark.parametrize("is_recorded", [False, True])
    def test_widths_are_interpolated_or_where_recorded_padded(self, is_recorded: bool) -> None:
        expected = {1: (13e-3, 13e-3), 3: (15e-3, 16e-3), 5: (18e-3, 24e-3), 6: (20e-3, 24e-3), 8: (24e-3, 24e-3)}
        for width, seconds in {**expected, 9: (26e-3, 26e-3)}.items():
            assert a_fit(is_recorded=is_recorded).at(0).verify(width) == pytest.approx(seconds[is_recorded])

    def test_verification_grows_with_the_context_and_rows_are_columns_with_texts_of_their_own(self) -> None:
        costs = a_fit().at(1000)
        assert costs.verify(3) == pytest.approx(15e-3 + 10e-3)
        assert costs.verify(2, rows=4) == pytest.approx(costs.verify(8) + 3 * LAYERS * 1e-6 * 1000)
        assert a_fit().at(0).verify(2, rows=4) == a_fit().at(0).verify(8)

    def test_texts_of_about_one_length_cost_the_same(self) -> None:
        fit = a_fit()
        assert fit.about(256) == fit.about(511) == fit.at(384)
        assert fit.about(255) == fit.at(128)

    def test_a_table_holds_what_the_sets_promise(self) -> None:
        costs, skips = a_fit().at(100), [HALF, SkipSet.parse("a1-7,m1-7")]
        table = speed_table([0.6, 0.9], costs.rounds(skips, 5))
        for row, (acceptance, skip) in enumerate(zip((0.6, 0.9), skips, strict=True)):
            assert table[row].tolist() == costs.speeds(acceptance, skip, 5).tolist()

    def test_never_negative(self) -> None:
        fit = a_fit(widths=(1, 2), verify=(Line(0, 2e-3), Line(0, 1e-3)))
        assert fit.at(0).verify(9) == 0


class TestEconomics:
    def test_weights_change_as_the_context_grows(self) -> None:
        costs = [a_fit().at(num_context) for num_context in (0, 250, 500, 1500, 2500, 10**6)]
        assert [one.weights for one in costs] == [(1, 2), (3, 4), (1, 1), (2, 1), (3, 1), (8, 1)]
        assert [one.paper_weights for one in costs] == [(1, 2), (1, 1), (1, 1), (2, 1), (3, 1), (5, 1)]
        for name, largest in (("weights", 8), ("paper_weights", 5)):
            assert getattr(a_fit(mlp_seconds=0.0).at(0), name) == (largest, 1)
            assert getattr(a_fit(attention=Line(0, 0)).at(0), name) == (1, largest)
            assert getattr(a_fit(attention=Line(0, 0), mlp_seconds=0.0).at(0), name) == (1, 1)

    @pytest.mark.parametrize(("attention", "mlp", "expected"), [(22, 29, (3, 4)), (29, 31, (1, 1)), (50, 20, (5, 2))])
    def test_weights_are_small_numbers_near_the_ratio(
        self, attention: float, mlp: float, expected: tuple[int, int]
    ) -> None:
        assert a_fit(attention=Line(0, attention * 1e-6), mlp_seconds=mlp * 1e-6).at(0).weights == expected

    @pytest.mark.parametrize(("acceptance", "expected"), [(0, 1), (0.5, 1.875), (1, 4), (1 - 1e-12, 4)])
    def test_expected_tokens(self, acceptance: float, expected: float) -> None:
        found = expected_tokens([acceptance], 3)[0]
        assert found[3] == pytest.approx(expected)
        assert found[0] == 1

    def test_tokens_per_second(self) -> None:
        costs, draft = a_fit().at(500), 4 * 1e-3 + 4 * 1e-3 + 1e-3
        speeds = costs.speeds(0.5, HALF, 3)
        assert speeds[3] == pytest.approx(1.875 / (3 * draft + costs.verify(4)))
        assert speeds[0] == pytest.approx(1 / costs.plain)

    def test_off_where_drafting_cannot_pay(self) -> None:
        costs = a_fit().at(100)
        off = (0, 1 / costs.plain)
        assert costs.best_length(1.0, SkipSet(), 10) == off, "a draft as dear as the target"
        assert costs.best_length(0.0, HALF, 10) == off, "a draft that is never right"
        assert costs.best_length(1.0, HALF, 0) == off

    def test_a_draft_that_costs_nothing_pays(self) -> None:
        skip = SkipSet.parse("a1-7,m1-7")
        lengths = [a_fit().at(100).best_length(acceptance, skip, 7)[0] for acceptance in (0.1, 0.5, 0.9, 1.0)]
        assert lengths[0] == 0
        assert lengths == sorted(lengths)
        assert lengths[-1] == 7

    def test_the_length_chosen_is_the_best(self) -> None:
        speeds = a_fit().at(100).speeds(0.8, HALF, 10).tolist()
        length, speed = a_fit().at(100).best_length(0.8, HALF, 10)
        assert (length, speed) == (speeds.index(max(speeds)), max(speeds))

    def test_padded_widths_are_filled(self) -> None:
        """The next token is verified for nothing up to a recorded width."""
        fit = a_fit(is_recorded=True)
        skip = SkipSet.parse("a1-7,m1-7")
        lengths = {fit.at(0).best_length(acceptance, skip, 7)[0] for acceptance in (0.8, 1)}
        assert lengths <= {0, 1, 3, 7}
