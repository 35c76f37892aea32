"""Claims that `cells` has no words for: a speed that should not be larger, and several speeds as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..cells import TOTAL, figure, has_few_prompts, is_faster, speed
from ..recipe import Found, Trend

ALIKE = 0.05
"""Speeds that are nearer, as a share, are the same."""

Interval = Mapping[str, float]


def gains_nothing(claim: str, found: Found, first: tuple[str, str], second: tuple[str, str]) -> Trend:
    """That a way (unit, way) is not faster than another by more than 5 %."""
    trend = is_faster(claim, found, first, second)
    one, two = speed(found, *first), speed(found, *second)
    if one is None or two is None or has_few_prompts(found, *first):
        return trend
    limit, because = (1 + ALIKE) * two["value"], trend.because.removeprefix("too close: ")
    is_close = one["low"] <= limit <= one["high"]
    return Trend(claim, None if is_close else one["high"] < limit, f"too close: {because}" if is_close else because)


def middle(known: Sequence[Interval]) -> Interval | None:
    """Of several speeds: the mean of values and of both ends, which is no narrower than the mean's own interval."""
    if not known:
        return None
    return {name: sum(one[name] for one in known) / len(known) for name in ("value", "low", "high")}


def together(found: Found, units: Sequence[str], ways: Iterable[str]) -> Found:
    """One unit, `total`: the middle of what each way reached in several, with as many prompts as the least of them."""
    whole = {}
    for way in ways:
        speeds = [one for unit in units if (one := speed(found, unit, way))]
        counts = [figure(found, unit, way, "num_prompts") or 0 for unit in units]
        whole[way] = {TOTAL: {"speedup": middle(speeds), "num_prompts": min(counts, default=0)}}
    return Found({TOTAL: whole})


def of_part(found: Found, unit: str, parts: Sequence[str]) -> Found:
    """The domains of a unit as if each were one: so their claims are judged as others are."""
    ways = {way: values["domains"] for way, values in found.units.get(unit, {}).items() if _has_domains(values)}
    return Found({part: {way: {TOTAL: own[part]} for way, own in ways.items() if part in own} for part in parts})


def _has_domains(values: object) -> bool:
    return isinstance(values, Mapping) and "domains" in values
