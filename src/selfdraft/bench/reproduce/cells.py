"""Cells of tables, and claims about two speeds, from what units found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..report import number, times
from .recipe import Found, Trend

TOTAL = "total"
NOT_MEASURED = "it was not measured"
"""Why a claim cannot be told of which there are no figures."""
FEW_PROMPTS = 3
"""Of fewer an interval says nothing."""
DRAFT_COST = "draft cost: seconds of a draft step over those of a plain token"
TOO_FEW = "too few prompts"
CLOSE = 0.03
"""Figures without an interval that are nearer, as a share, are not told apart."""


def speed(found: Found, unit: str, way: str, part: str = TOTAL) -> Mapping[str, float] | None:
    """`value`, `low` and `high` of a speed-up; None where it was not measured. `part`: `total`, or a domain."""
    path = (part,) if part == TOTAL else ("domains", part)
    figures = found.get(unit, way, *path, "speedup")
    return figures if isinstance(figures, Mapping) and figures.get("value") is not None else None


def speed_cell(found: Found, unit: str, way: str, part: str = TOTAL) -> str:
    known = speed(found, unit, way, part)
    return times(known["value"]) if known else "-"


def figure_cell(found: Found, unit: str, way: str, name: str, form: str = ".2f") -> str:
    return number(figure(found, unit, way, name), form)


def figure(found: Found, unit: str, way: str, name: str) -> Any:
    """Of a way's total: acceptance_rate, mean_generated_length, tokens_per_second, ..."""
    return found.get(unit, way, TOTAL, name)


def has_few_prompts(found: Found, unit: str, way: str) -> bool:
    count = figure(found, unit, way, "num_prompts")
    return count is None or count < FEW_PROMPTS


def spread(known: Mapping[str, float]) -> str:
    """`1.20x [1.15, 1.26]`."""
    return f"{times(known['value'])} [{known['low']:.2f}, {known['high']:.2f}]"


@dataclass(frozen=True)
class Speed:
    """A speed-up, and the interval that other prompts like these would give."""

    label: str
    value: float
    low: float
    high: float
    num_prompts: int

    def __str__(self) -> str:
        return f"{self.label} {spread({'value': self.value, 'low': self.low, 'high': self.high})}"

    def overlaps(self, other: Speed) -> bool:
        return self.low <= other.high and other.low <= self.high


def speed_of(found: Found, unit: str, way: str, part: str = TOTAL, label: str | None = None) -> Speed | None:
    """Of a way, or of its part: a domain. None: it was not measured."""
    known = speed(found, unit, way, part)
    if known is None:
        return None
    path = (part,) if part == TOTAL else ("domains", part)
    count = found.get(unit, way, *path, "num_prompts")
    return Speed(label or way, known["value"], known["low"], known["high"], count or 0)


def faster(claim: str, one: Speed | None, other: Speed | None) -> Trend:
    """Where their intervals overlap it cannot be told."""
    if one is None or other is None:
        return Trend(claim, None, NOT_MEASURED)
    because = f"{one}, {other}"
    if min(one.num_prompts, other.num_prompts) < FEW_PROMPTS:
        return Trend(claim, None, f"{TOO_FEW}: {because}")
    if one.overlaps(other):
        return Trend(claim, None, f"too close: {because}")
    return Trend(claim, one.value > other.value, because)


def faster_than_plain(claim: str, one: Speed | None) -> Trend:
    if one is None:
        return Trend(claim, None, NOT_MEASURED)
    if one.num_prompts < FEW_PROMPTS:
        return Trend(claim, None, f"{TOO_FEW}: {one}")
    is_clear = one.low > 1.0 or one.high < 1.0
    return Trend(claim, one.value > 1.0 if is_clear else None, str(one))


def is_faster(claim: str, found: Found, first: tuple[str, str], second: tuple[str, str]) -> Trend:
    """`faster` of two ways (unit, way); where it is one way in two units, these are named."""
    named = 1 if first[1] != second[1] else 0
    one, other = (speed_of(found, *place, label=place[named]) for place in (first, second))
    return faster(claim, one, other)


def is_larger(
    claim: str, first: tuple[str, float | None], second: tuple[str, float | None], margin: float = CLOSE
) -> Trend:
    """(name, figure) of both; `margin`: what is nearer, as a share, cannot be told."""
    one, two = first[1], second[1]
    if one is None or two is None:
        return Trend(claim, None, NOT_MEASURED)
    because = f"{first[0]} {one:.2f}, {second[0]} {two:.2f}"
    is_close = abs(one - two) <= margin * max(abs(one), abs(two))
    return Trend(claim, None if is_close else one > two, f"too close: {because}" if is_close else because)


def from_enough(trend: Trend, num_prompts: int | None) -> Trend:
    """Told only where there are some prompts to tell it by."""
    if trend.holds is None or (num_prompts or 0) >= FEW_PROMPTS:
        return trend
    return Trend(trend.claim, None, f"{TOO_FEW}: {trend.because}")


def has_larger_figure(claim: str, found: Found, name: str, first: tuple[str, str], second: tuple[str, str]) -> Trend:
    """That a figure without an interval (M, acceptance) of a way (unit, way) is above another's."""
    one, two = (figure(found, *place, name) for place in (first, second))
    counts = [figure(found, *place, "num_prompts") or 0 for place in (first, second)]
    return from_enough(is_larger(claim, (first[1], one), (second[1], two)), min(counts))


def pays(claim: str, found: Found, unit: str, way: str) -> Trend:
    """That a way is faster than plain decoding."""
    return faster_than_plain(claim, speed_of(found, unit, way))


def told(trends: Iterable[Trend]) -> list[Trend]:
    """Without those of which nothing was measured."""
    return [trend for trend in trends if trend.because != NOT_MEASURED]
