"""The sets that `knn` found for its domains: which sub-layers, how well they match, how alike they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...economics import LatencyFit
from ...errors import ProfileError
from ...profiles.contents import most_promising
from ...protocols import Knowledge, PlanContext
from ...registry import find, options_for
from ...types import FrontierPoint, Plan, SkipSet

USUAL_LENGTH = 512


@dataclass(frozen=True)
class DomainSet:
    """`match`: on the texts it was found with, where the search tells; `is_planned`: the search itself would draft
    with it behind a text of usual length; else it is the one that promises most of those it found.
    """

    domain: str
    skip: SkipSet
    match: float | None
    is_planned: bool
    num_vectors: int | None = None

    def figures(self) -> dict[str, Any]:
        return {
            "skip": str(self.skip),
            "attention": len(self.skip.attention),
            "mlp": len(self.skip.mlp),
            "match": self.match,
            "is_planned": self.is_planned,
            "num_vectors": self.num_vectors,
        }


def sets_of(artefact: Mapping[str, Any], latency: LatencyFit) -> list[DomainSet]:
    """Of what `knn` learned."""
    search = artefact["search"]
    found = [(domain["name"], domain["found"], domain.get("num_vectors")) for domain in artefact["domains"]]
    return [_set_of(name, search, content, count, latency) for name, content, count in found]


def _set_of(
    domain: str, search: str, found: Mapping[str, Any], num_vectors: int | None, latency: LatencyFit
) -> DomainSet:
    points = [FrontierPoint.from_json(point) for point in found.get("frontier", ())]
    planned = _planned(search, found, latency)
    skip = planned.skip if planned is not None else SkipSet()
    is_planned = bool(skip)
    if not skip:
        best = most_promising(points, latency.at(USUAL_LENGTH))
        skip = best.skip if best else _any_set(found)
    match = next((point.match for point in points if point.skip == skip), None)
    return DomainSet(domain, skip, match, is_planned, num_vectors)


def _planned(search: str, found: Mapping[str, Any], latency: LatencyFit) -> Plan | None:
    """What the search strategy would do with it; None: it cannot go by it."""
    knowledge = Knowledge(latency.num_layers, lambda: latency, lambda name, *told: found, known=lambda name: found)
    try:
        strategy = find("strategy", search)(options_for("strategy", search, {}), knowledge)
    except (ProfileError, LookupError):
        return None
    strategy.begin(0, {})
    plan: Plan = strategy.plan(0, PlanContext(USUAL_LENGTH, 0, _no_look))
    return plan


def _no_look(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("what was learned offline needs no look at a text")


def _any_set(found: Mapping[str, Any]) -> SkipSet:
    return next((SkipSet.parse(one["skip"]) for one in found.get("sets", {}).values()), SkipSet())


def overlaps(sets: Sequence[DomainSet]) -> dict[str, dict[str, float]]:
    """Of each pair: what both skip, of all that either skips (Jaccard)."""
    found: dict[str, dict[str, float]] = {one.domain: {one.domain: 1.0} for one in sets}
    for one, other in itertools.combinations(sets, 2):
        either = one.skip.numbers | other.skip.numbers
        share = len(one.skip.numbers & other.skip.numbers) / len(either) if either else 1.0
        found[one.domain][other.domain] = found[other.domain][one.domain] = share
    return found
