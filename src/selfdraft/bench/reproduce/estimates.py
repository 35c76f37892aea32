"""Claims about numbers that have no interval of their own: clear is what is beyond two standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .recipe import Trend

_CLEAR = 2.0
"""Standard errors that a difference must be beyond."""
_OF_FEW = {2: 6.4, 3: 2.15, 4: 1.6, 5: 1.4, 6: 1.3, 7: 1.2}
"""Times that errors of so few values are taken, so that two of them are 95 % (Student's t)."""


@dataclass(frozen=True)
class Estimate:
    """`error`: its standard error, wider where it is of few values; None: there is too little to tell."""

    value: float
    error: float | None = 0.0

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}" if self.error else f"{self.value:.2f}"


def mean_of(values: Sequence[float]) -> Estimate:
    count = len(values)
    error = _OF_FEW.get(count, 1.0) * statistics.stdev(values) / math.sqrt(count) if count > 1 else None
    return Estimate(statistics.fmean(values), error)


def share_of(value: float, count: int) -> Estimate:
    """A share of `count` cases; that of a few cases is uncertain even where it is all or nothing of them."""
    likely = (value * count + 1) / (count + 2)
    return Estimate(value, math.sqrt(likely * (1 - likely) / (count + 2)) if count else None)


def is_above(claim: str, one: Estimate, two: Estimate) -> Trend:
    because = f"{one} and {two}"
    if one.error is None or two.error is None:
        return Trend(claim, None, f"too few: {because}")
    difference = one.value - two.value
    if abs(difference) <= _CLEAR * math.hypot(one.error, two.error):
        return Trend(claim, None, f"too close: {because}")
    return Trend(claim, difference > 0, because)
