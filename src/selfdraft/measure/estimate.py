"""Estimates: a value and the interval that resampling its prompts gives (bootstrap, the middle 95 %).

A quantity of a record is a pair (part, whole); of many records it is all parts over all wholes. Two arms that took
turns on the same prompts are compared paired: each resample takes a prompt with both arms, or without both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from .records import Record

NUM_RESAMPLES = 1000
FEW_PROMPTS = 3  # an interval of fewer says nothing
MANY_PROMPTS = 10_000  # more than anybody measures
_MIDDLE = (0.025, 0.975)

Quantity = Callable[[Record], tuple[float, float] | None]  # (part, whole) of one record; None: it has none
TwoArms = tuple[Sequence[Record], Sequence[Record]]
Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Estimate:
    """`low` to `high`: the middle 95 % of the value over resampled prompts; `count`: prompts it is made of."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def is_of_few(self) -> bool:
        return self.count < FEW_PROMPTS

    def is_above(self, bound: float) -> bool | None:
        """None: inconclusive, as the interval holds the bound or is of too few prompts."""
        if self.is_of_few or self.low <= bound <= self.high:
            return None
        return self.value > bound

    def prompts_to_tell(self, bound: float) -> int:
        """About how many prompts would free the interval of the bound, if the value stayed what it is.

        An interval narrows with the root of their number. More than MANY_PROMPTS: MANY_PROMPTS.
        """
        reach = self.value - self.low if self.value > bound else self.high - self.value
        distance = abs(self.value - bound)
        is_many = distance * math.sqrt(MANY_PROMPTS / self.count) < reach
        return MANY_PROMPTS if is_many else self.count if not reach else math.ceil(self.count * (reach / distance) ** 2)


def _tokens_by(whole: Callable[[Record], float | None]) -> Quantity:
    return lambda record: (record.num_tokens, of) if (of := whole(record)) else None


speed = _tokens_by(lambda record: record.decode_seconds)
call_speed = _tokens_by(lambda record: record.call_seconds)  # prefill included
length = _tokens_by(lambda record: record.num_rounds)  # M: tokens that a pass of the whole model brings


def acceptance(record: Record) -> tuple[float, float] | None:
    """Share of the drafted tokens that are accepted."""
    return record.num_accepted, record.num_draft_steps


def estimate(records: Sequence[Record], quantity: Quantity, seed: int) -> Estimate | None:
    """Of one arm; None: there is nothing to divide."""
    return _summarise([_sums(zip(records, records, strict=True), quantity)], _share, seed)


def ratio(ones: Iterable[Record], others: Iterable[Record], quantity: Quantity, seed: int) -> Estimate | None:
    """One arm's quantity over another's on the same texts, paired."""
    return _summarise([_sums(pair(ones, others), quantity)], _ratio, seed)


def unpaired_ratio(one: Sequence[Record], other: Sequence[Record], quantity: Quantity, seed: int) -> Estimate | None:
    """Of two arms on different texts: each is resampled by itself."""
    sums = [_sums(zip(own, own, strict=True), quantity) for own in (one, other)]
    return _summarise(sums, lambda first, second: _share(first) / _share(second), seed)


def ratio_of_ratios(one: TwoArms, other: TwoArms, quantity: Quantity, seed: int) -> Estimate | None:
    """The same with each arm against its own baseline."""
    sums = [_sums(pair(*both), quantity) for both in (one, other)]
    return _summarise(sums, lambda first, second: _ratio(first) / _ratio(second), seed)


def mean_ratio(arms: Sequence[TwoArms], quantity: Quantity, seed: int) -> Estimate | None:
    """`ratio`, on average over several sets of texts; prompts are resampled within each."""
    sums = [_sums(pair(*both), quantity) for both in arms]
    return _summarise(sums, lambda *each: np.mean([_ratio(one) for one in each], axis=0), seed) if sums else None


def mean(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """Of plain numbers, each as one prompt."""
    return resampled([(value, 1.0) for value in values], _share, seed)


def resampled(rows: Sequence[Sequence[float]], value_of: Callable[[Floats], Floats], seed: int = 0) -> Estimate | None:
    """Of what follows from sums: `rows` hold what each prompt adds to them; `value_of` reads [resamples, sums]."""
    return _summarise([np.array(rows, dtype=float)[:, None]], value_of, seed) if rows else None


def correlation(
    values: Sequence[float], others: Sequence[float], than: Sequence[float] | None = None
) -> Estimate | None:
    """Pearson's r of two series, or by how much it is above that of `than` and `others`; their members are resampled.

    None: there are few of them, or one series is the same everywhere.
    """
    if len(values) < FEW_PROMPTS + 1:
        return None
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    rows = np.vstack([np.arange(len(values)), draws])  # the first: as they are
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _pearson(values, others, rows) - (_pearson(than, others, rows) if than is not None else 0.0)
    return _interval(float(found[0]), found[1:], len(values)) if np.isfinite(found[0]) else None


def _pearson(values: Sequence[float], others: Sequence[float], rows: npt.NDArray[np.int64]) -> Floats:
    one, other = (np.asarray(series, dtype=float)[rows] for series in (values, others))
    one, other = (series - series[:, :1] for series in (one, other))  # exactly 0 where all are the same
    one, other = (series - series.mean(1, keepdims=True) for series in (one, other))
    return np.asarray((one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1)))


def pair(ones: Iterable[Record], others: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Records of the same text."""
    known = {record.text: record for record in others}
    return [(record, known[record.text]) for record in ones if record.text in known]


# ------------------------------------------------------------------------------------------------------ resampling


def _sums(pairs: Iterable[tuple[Record, Record]], quantity: Quantity) -> Floats:
    """[prompts, runs, 4]: part and whole of both arms. The turns of a conversation are one prompt."""
    found: dict[int, dict[int, Floats]] = {}
    for one, other in pairs:
        own, theirs = quantity(one), quantity(other)
        if own is not None and theirs is not None:
            runs = found.setdefault(one.number - one.turn, {})
            runs[one.run] = runs.get(one.run, np.zeros(4)) + np.array([*own, *theirs], dtype=float)
    num_runs = max(map(len, found.values()), default=1)
    whole = [list(runs.values()) for runs in found.values() if len(runs) == num_runs]
    return np.array(whole, dtype=float).reshape(len(whole), num_runs, 4)


def _summarise(groups: Sequence[Floats], value_of: Callable[..., Floats], seed: int) -> Estimate | None:
    """Each group of prompts is resampled by itself; `value_of` reads [resamples, sums] of each."""
    if not all(map(len, groups)):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(value_of(*(sums.sum((0, 1))[None] for sums in groups))[0])
        draws = value_of(*(_resample(sums, seed + number) for number, sums in enumerate(groups)))
    return _interval(value, draws, min(map(len, groups))) if np.isfinite(value) else None


def _resample(sums: Floats, seed: int) -> Floats:
    """[resamples, quantities]: prompts are drawn with replacement and, where there are several runs, runs of each."""
    count, num_runs = sums.shape[:2]
    draw = np.random.default_rng(seed)
    picks = draw.integers(count, size=(NUM_RESAMPLES, count))
    if num_runs == 1:
        return np.asarray(sums[picks, 0].sum(1))
    runs = draw.integers(num_runs, size=(NUM_RESAMPLES, count, num_runs))
    return np.asarray(sums[picks[:, :, None], runs].sum((1, 2)))


def _interval(value: float, draws: Floats, count: int) -> Estimate:
    finite = draws[np.isfinite(draws)]
    low, high = np.quantile(finite if len(finite) else np.array([value]), _MIDDLE)
    return Estimate(value, float(low), float(high), count)


def _share(sums: Floats) -> Floats:
    return sums[:, 0] / sums[:, 1]


def _ratio(sums: Floats) -> Floats:
    return (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])


def as_json(found: Estimate | None) -> dict[str, Any]:
    return dict.fromkeys(("value", "low", "high", "count")) if found is None else vars(found)
