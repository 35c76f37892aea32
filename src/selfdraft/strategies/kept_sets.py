"""Sets that calibration keeps so that a plan need only choose: how often they match, and which few serve best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..economics import Array, PassCosts, speed_table
from ..protocols import Probe
from ..types import SkipSet
from .matching import choices

MAX_SETS = 8
"""Of what is kept: each is recorded beforehand, and scored in every plan."""
AT_ONCE = 8
"""Sets that are scored in one pass."""
_WORTH = 0.002
"""Share of speed that one more set must add."""


@dataclass(frozen=True)
class KeptSet:
    """`match`: share of the target's choices that it met, on texts it was not chosen by if there are such."""

    skip: SkipSet
    match: float

    def to_json(self) -> dict[str, Any]:
        return {"skip": str(self.skip), "match": self.match}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> KeptSet:
        match = float(kept["match"])
        if not 0 <= match <= 1:
            raise ValueError(f"a match of {match}")
        return cls(SkipSet.parse(kept["skip"]), match)


def hits_of(probe: Probe, skips: Sequence[SkipSet]) -> list[list[bool]]:
    """[sets, tokens]: whether each would have said what the target says."""
    found = []
    for first in range(0, len(skips), AT_ONCE):
        target, *said = choices(probe, [(), *(skip.numbers for skip in skips[first : first + AT_ONCE])])
        found += [(one == target).tolist() for one in said]
    return found


def rate_of(hits: Any, num_tokens: Any) -> Any:
    """An acceptance that few tokens cannot make high."""
    return (hits + 1) / (num_tokens + 2)


def best_drafting(costs: PassCosts, skips: Sequence[SkipSet], rates: Sequence[float] | Array) -> Array:
    """[sets]: how much faster than plain decoding rounds are that draft with it, at its best length of at least 1."""
    rounds = costs.rounds(skips)
    return np.asarray(speed_table(rates, rounds)[:, 1:].max(1) * rounds[0, 0])


def keep_best(
    probes: Sequence[Probe], found: Sequence[Sequence[SkipSet]], lengths: Sequence[PassCosts], limit: int
) -> list[KeptSet]:
    """Of the sets `found` on each text at most `limit`: at each length the one that promises most on all texts, then
    whichever adds most where each text takes its best.
    """
    skips = [skip for skip in dict.fromkeys(skip for one in found for skip in one) if skip]
    if not skips:
        return []
    rates = np.array([[rate_of(sum(hits), len(hits)) for hits in hits_of(probe, skips)] for probe in probes]).T
    is_own = np.array([[skip in one for one in found] for skip in skips])
    told = ~is_own | is_own.all(1, keepdims=True)
    matches = (rates * told).sum(1) / told.sum(1)
    chosen = list(dict.fromkeys(int(best_drafting(costs, skips, matches).argmax()) for costs in lengths))[:limit]
    speeds = np.array([best_drafting(costs, skips, text) for costs in lengths for text in rates.T])  # [cases, sets]
    while len(chosen) < limit:
        best = speeds[:, chosen].max(1)
        totals = np.maximum(speeds, best[:, None]).sum(0)
        if totals.max() <= (1 + _WORTH) * best.sum():
            break
        chosen.append(int(totals.argmax()))
    return [KeptSet(skips[row], float(matches[row])) for row in chosen]
