"""Latency: the seconds of a pass, measured on the runner's own path and fitted (economics.LatencyFit).

Passes of one token after texts of several lengths: with nothing skipped, without half of the attentions, of the MLPs,
of both, and without all but one layer. What is missing tells what a sub-layer takes, what is left the rest, and the
lengths how attention grows. Whole passes of several widths give verification, and passes that are read and fed back
give plain decoding. All of them take turns in short batches, so that a machine that slows down slows all of them; the
median of its batches stands for each. Least squares of the relative errors give the seconds, none of them negative.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..economics import LatencyFit, Line
from ..errors import ModelError, OptionError
from ..passes import PassRequest
from ..progress import Progress
from ..protocols import Runner
from ..types import SkipSet

Array = npt.NDArray[np.float64]

LENGTHS = (64, 512, 2048, 8192)
BUDGET_SECONDS = 30.0
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Measured where the runner records none, and shown in tables."""
ROOM = 64
"""Slots after a text, for the passes that are timed."""
_CHUNK = 512
_MAX_ROUNDS = 15
_BATCH_SECONDS = 0.03
_MIN_PASSES, _MAX_PASSES = 2, ROOM - 2
_SHARE_OF_TEXTS = 0.5
_LEAST_PASSES = 160
"""Plain ones that a budget must have time for: measuring after one text takes half of them."""
_ROUNDING = 1e-6
"""A negative part of a pass smaller than this share of it is 0, and no news."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """What is timed. `is_plain`: token by token, each read and fed to the next pass."""

    width: int = 1
    skip: SkipSet = SkipSet()
    is_plain: bool = False


WHOLE, PLAIN = Kind(), Kind(is_plain=True)


@dataclass(frozen=True)
class Sample:
    """What a pass of a kind took after this many slots (a mean, where the text grew meanwhile)."""

    kind: Kind
    num_slots: float
    seconds: float


def measure(
    runner: Runner,
    lengths: Sequence[int] = LENGTHS,
    budget_seconds: float = BUDGET_SECONDS,
    progress: Progress | None = None,
) -> LatencyFit:
    """Measure after texts of these lengths, as far as the model's context goes.

    Where reading the texts and warming up after them would take half of the budget, the longest are left out; one is
    measured in any case. Where passes are so slow that warming up takes all of it, that is the measurement. Where they
    are recorded, warming up is compiling and recording, which the budget does not pay for.
    `progress` is told seconds. What this needs of the runner is given back when it ends, however it ends.
    """
    if not lengths or min(lengths) < 1:
        raise OptionError(f"cannot measure after texts of {list(lengths)} tokens: give lengths of at least 1")
    if runner.num_layers < 2:
        raise ModelError("the model has a single layer: nothing can be skipped, so there is nothing to measure")
    clock = _Clock(runner, budget_seconds, progress)
    if not runner.is_recording:
        clock.start()
    cells = _prepare(runner, sorted({fitting_length(runner, length) for length in lengths}), clock)
    if runner.is_recording:
        clock.start()
    for _ in range(_MAX_ROUNDS):
        began = clock.spent()
        for cell in cells:
            if clock.is_over and all(one.batches for one in cells):
                break
            cell.run_batch(is_short=clock.is_over)
            clock.tell()
        if 2 * clock.spent() - began > budget_seconds:
            break
    clock.tell(is_done=True)
    return fit_samples([cell.sample for cell in cells], runner.num_layers, runner.is_recording)


def fitting_length(runner: Runner, length: int) -> int:
    """Shorter where the model's context, or the recordings of passes after `length` slots, leave too little room."""
    limits = [*runner.recorded_slots(length + 1)[-1:], *filter(None, [runner.context_length])]
    return max(1, min([length, *(limit - ROOM for limit in limits)]))


class _Clock:
    """What of the budget is spent; nothing before it starts."""

    def __init__(self, runner: Runner, budget_seconds: float, progress: Progress | None) -> None:
        self._seconds, self._budget, self._progress = runner.seconds, budget_seconds, progress
        self._began: float | None = None

    def start(self) -> None:
        self._began = self._seconds()

    def spent(self) -> float:
        return 0.0 if self._began is None else self._seconds() - self._began

    @property
    def is_over(self) -> bool:
        return self.spent() > self._budget

    def tell(self, is_done: bool = False) -> None:
        if self._progress is not None:
            total = max(1, round(self._budget))
            self._progress(total if is_done else min(total, int(self.spent())), total, "measuring passes")

    def allows_text(self, seconds: float) -> bool:
        return self.spent() + seconds <= _SHARE_OF_TEXTS * self._budget


def _prepare(runner: Runner, lengths: Sequence[int], clock: _Clock) -> list[_Cell]:
    """Every kind after every text, warmed up; as many texts as there is time to read, the first in any case."""
    cells: list[_Cell] = []
    seconds_per_token = warming_up = 0.0
    for length in lengths:
        if cells and not clock.allows_text(length * seconds_per_token + warming_up):
            _LOGGER.info("no time to measure after %d tokens and more", length)
            break
        began = clock.spent()
        text = _Text(runner, length)
        read = clock.spent()
        seconds_per_token = (read - began) / length
        for kind in _kinds(runner, length):
            if clock.is_over and kind.width > 2 and not runner.is_recording:  # wider ones are extrapolated
                break
            cells.append(_Cell(text, kind))
            clock.tell()
        warming_up = clock.spent() - read
    return cells


def check_budget(runner: Runner, seconds: float) -> None:
    """Raise where not even passes after one text can be measured and something be made of it."""
    text = _Text(runner, 1)
    text.seconds(PLAIN, 1)  # warms up
    each = text.seconds(PLAIN, 1)
    least = _LEAST_PASSES * each
    if seconds < least:
        raise OptionError(
            f"{max(0.0, round(seconds, 1)):g} s are too few: a pass takes {each:.2g} s here, and measuring passes "
            f"alone takes about {round(least / 2, 1):g} s. Give a budget of at least {math.ceil(least)} s"
        )


def _kinds(runner: Runner, length: int) -> list[Kind]:
    widths = runner.recorded_widths if runner.is_recording else WIDTHS
    room = ROOM if runner.context_length is None else runner.context_length - length
    wider = [Kind(width) for width in widths if 1 < width <= room]
    return [PLAIN, WHOLE, *(Kind(skip=skip) for skip in _skips(runner.num_layers)), *wider]


def _skips(num_layers: int) -> tuple[SkipSet, ...]:
    """About as much as drafts leave out, spread evenly; and everything but layer 0."""
    half, most = range(1, num_layers, 2), range(1, num_layers)
    return SkipSet.of(half), SkipSet.of(mlp=half), SkipSet.of(half, half), SkipSet.of(most, most)


class _Text:
    """A text in a cache, and passes after it."""

    def __init__(self, runner: Runner, length: int) -> None:
        self._runner, self._length = runner, length
        self._cache = runner.new_cache(1, length + ROOM)
        for start in range(0, length, _CHUNK):
            tokens = self._tokens(min(_CHUNK, length - start))
            runner.forward(PassRequest(tokens, [start], needs_scores=False), self._cache)

    def _tokens(self, width: int) -> list[list[int]]:
        return [[token % self._runner.vocab_size for token in range(1, width + 1)]]

    def seconds(self, kind: Kind, count: int) -> float:
        """Of one pass, the mean of `count` in a row."""
        return (self._plain_seconds(count) if kind.is_plain else self._pass_seconds(kind, count)) / count

    def num_slots(self, kind: Kind, count: int) -> float:
        """In front of these passes, on average."""
        return self._length + (count + 1) / 2 if kind.is_plain else self._length

    def _plain_seconds(self, count: int) -> float:
        """As decoding goes: the next pass may be under way before its token is asked for."""
        runner, first = self._runner, self._length
        tokens = runner.forward(PassRequest(self._tokens(1), [first], run_ahead=True), self._cache).choices()
        began = runner.seconds()
        for start in range(first + 1, first + 1 + count):
            tokens = runner.forward(PassRequest(tokens, [start], run_ahead=True), self._cache).choices()
        return runner.seconds() - began

    def _pass_seconds(self, kind: Kind, count: int) -> float:
        """What is verified is read each time, as acceptance does; what is drafted is not."""
        runner, tokens = self._runner, self._tokens(kind.width)
        began = runner.seconds()
        for _ in range(count):
            output = runner.forward(PassRequest(tokens, [self._length], skip=kind.skip), self._cache)
            if kind.width > 1:
                output.choices()
        return runner.seconds() - began


@dataclass
class _Cell:
    """One kind of pass after one text: what its batches took."""

    text: _Text
    kind: Kind
    batches: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text.seconds(self.kind, 1)  # warms up, and records where passes are recorded
        self._first = self.text.seconds(self.kind, 1)
        self.num_passes = min(max(_MIN_PASSES, round(_BATCH_SECONDS / max(self._first, 1e-6))), _MAX_PASSES)

    def run_batch(self, is_short: bool = False) -> None:
        """Short: the pass that was timed while warming up."""
        self.batches.append(self._first if is_short else self.text.seconds(self.kind, self.num_passes))

    @property
    def sample(self) -> Sample:
        return Sample(self.kind, self.text.num_slots(self.kind, self.num_passes), statistics.median(self.batches))


# --------------------------------------------------------------------------------------------------------- the fit


def fit_samples(samples: Sequence[Sample], num_layers: int, is_recorded: bool) -> LatencyFit:
    """What explains the samples best: pure."""
    fits = _Fits()
    drafts = [sample for sample in samples if sample.kind.width == 1 and not sample.kind.is_plain]
    per_slot, base, mlp, rest = fits.fit(
        ("attention per slot", "attention", "mlp", "rest"), drafts, lambda sample: _parts_of(sample, num_layers)
    )
    plain = fits.line("plain", [sample for sample in samples if sample.kind.is_plain])
    whole = [sample for sample in samples if not (sample.kind.skip or sample.kind.is_plain)]
    widths = tuple(sorted({sample.kind.width for sample in whole}))
    verify = [fits.line(f"width {width}", [s for s in whole if s.kind.width == width]) for width in widths]
    return LatencyFit(
        num_layers=num_layers,
        attention=Line(per_slot, base),
        mlp_seconds=mlp,
        rest_seconds=rest,
        plain=plain,
        widths=widths,
        verify=tuple(verify),
        is_recorded=is_recorded,
        lengths=tuple(sorted({int(sample.num_slots) for sample in drafts})),
        rms_error=float(np.sqrt(np.mean(np.square(fits.errors)))),
        max_error=float(np.max(np.abs(fits.errors))),
        clamped=tuple(fits.clamped),
    )


def _parts_of(sample: Sample, num_layers: int) -> tuple[float, ...]:
    """What the pass consists of: slots attended to, attentions, MLPs, the rest."""
    skip = sample.kind.skip
    num_attentions, num_mlps = num_layers - len(skip.attention), num_layers - len(skip.mlp)
    return num_attentions * sample.num_slots, num_attentions, num_mlps, 1


class _Fits:
    """Fits one after the other, with the relative errors of all, and what was clamped."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.clamped: list[str] = []

    def line(self, name: str, samples: Sequence[Sample]) -> Line:
        return Line(*self.fit((f"{name} per slot", name), samples, lambda sample: (sample.num_slots, 1)))

    def fit(
        self, names: Sequence[str], samples: Sequence[Sample], parts_of: Callable[[Sample], Iterable[float]]
    ) -> list[float]:
        """The seconds of each part; the first of them grows with the slots."""
        seconds = np.maximum([sample.seconds for sample in samples], 1e-12)
        shares = np.array([list(parts_of(sample)) for sample in samples]) / seconds[:, None]
        if len({sample.num_slots for sample in samples}) == 1:
            shares[:, 0] = 0  # looks the same as what does not grow
        found, free = least_squares(shares)
        self.errors += (shares @ found - 1).tolist()
        for name, contribution in zip(names, free * shares.mean(0), strict=True):
            if contribution < -_ROUNDING:
                self.clamped.append(name)
                _LOGGER.info("the measurements give %s negative seconds, so 0 is taken", name)
        return [float(value) for value in found]


def least_squares(shares: Array) -> tuple[Array, Array]:
    """Factors that bring the columns' sums closest to 1 in all rows: with none negative, and as they come.

    The few columns allow to try every choice of those that are 0.
    """
    columns = range(shares.shape[1])
    choices = [kept for size in reversed(range(len(columns) + 1)) for kept in itertools.combinations(columns, size)]
    solutions = [_solve(shares, kept) for kept in choices]
    allowed = [solution for solution in solutions if (solution >= 0).all()]
    return min(allowed, key=lambda solution: float(np.square(shares @ solution - 1).sum())), solutions[0]


def _solve(shares: Array, kept: Sequence[int]) -> Array:
    solution = np.zeros(shares.shape[1])
    if kept:
        solution[list(kept)] = np.linalg.lstsq(shares[:, list(kept)], np.ones(len(shares)), rcond=None)[0]
    return solution
