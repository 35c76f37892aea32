"""The skip sets that searches left in a profile, `draft-verify` and `knn`. Damage raises one of `contents.DAMAGE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..economics import LatencyFit
from ..types import FrontierPoint, SkipSet
from .contents import KnownSet, choice, most_promising

SURE = 0.7
"""That a domain's own sets serve it better than those of all."""


@dataclass(frozen=True)
class TimedSet:
    """A skip set that a search by tokens per second found."""

    skip: SkipSet
    tokens_per_second: float
    plain: float  # tokens per second without drafts
    num_tried: int
    is_complete: bool

    @property
    def speed_up(self) -> float:
        return self.tokens_per_second / self.plain


def timed_sets(values: Mapping[str, Any]) -> dict[str, TimedSet]:
    """By what they were calibrated on."""
    return {name: _timed_set(values["sets"][name]) for name in values["sets"]}


def _timed_set(kept: Mapping[str, Any]) -> TimedSet:
    speed, plain = float(kept["tokens_per_second"]), float(kept["plain"])
    if not (speed > 0 and plain > 0):
        raise ValueError(f"{min(speed, plain)} tokens per second")
    skip, is_complete = SkipSet.parse(kept["skip"]), bool(kept.get("is_complete", True))
    return TimedSet(skip, speed, plain, int(kept["num_tried"]), is_complete)


@dataclass(frozen=True)
class KnownDomain:
    """The set that promises most of those that a search found for one domain; `has_own`: it drafts its texts.

    An empty set: plain decoding was fastest. None: nothing was searched yet, or it takes measured seconds to say which.
    """

    name: str
    found: KnownSet | None
    is_searched: bool = True
    has_own: bool = True
    is_outdone: bool = False  # plain decoding promises more
    num_vectors: int | None = None
    threshold: float | None = None  # less similar prompts are strangers


@dataclass(frozen=True)
class KnownDomains:
    """`knn` after a text of some length."""

    domains: Sequence[KnownDomain]
    general: KnownDomain
    feature: str
    search: str
    num_context: int

    @property
    def rows(self) -> list[KnownDomain]:
        return [*self.domains, self.general]


@dataclass(frozen=True)
class Where:
    """The model and the place in a text for which sets are chosen."""

    fit: LatencyFit | None
    num_layers: int
    num_context: int

    def known(self, skip: SkipSet, match: float | None = None) -> KnownSet:
        if self.fit is None or not skip:
            return KnownSet(skip, 1.0)
        return KnownSet.at(self.fit.at(self.num_context), skip, match)


def read_domains(values: Mapping[str, Any], where: Where) -> KnownDomains:
    domains = []
    for kept in values["domains"]:
        num_vectors, threshold = int(kept["num_vectors"]), float(kept["threshold"])
        is_own = has_own(kept["found"])
        found = _found(str(kept["name"]), kept["found"], where)
        domains.append(replace(found, num_vectors=num_vectors, threshold=threshold, has_own=is_own))
    if not domains:
        raise ValueError("there is no domain")
    general = _found("general", values["general"], where)
    return KnownDomains(domains, general, str(values["feature"]), str(values["search"]), where.num_context)


def has_own(found: Mapping[str, Any]) -> bool:
    """Whether a domain drafts with what its own search found, and not as texts of no domain do."""
    return float(found.get("surety", 1.0)) >= SURE


def _found(name: str, found: Mapping[str, Any], where: Where) -> KnownDomain:
    """Of a frontier the point that promises most there; of sets by tokens per second the first."""
    if "frontier" in found:
        return _on_frontier(name, found, where)
    one = next(iter(timed_sets(found).values()), None)
    if one is None:
        raise ValueError(f"{name} has no set")
    if not one.num_tried:
        return KnownDomain(name, None, is_searched=False)
    one.skip.check(where.num_layers)
    return KnownDomain(name, replace(where.known(one.skip), measured=one.speed_up if one.skip else None))


def _on_frontier(name: str, found: Mapping[str, Any], where: Where) -> KnownDomain:
    points = {point.skip: point for point in map(FrontierPoint.from_json, found["frontier"]) if point.skip}
    for skip in points:
        skip.check(where.num_layers)
    if not points or where.fit is None:
        return KnownDomain(name, None, is_searched=bool(points))
    chosen = choice(list(points.values()), where.fit, where.num_context)
    best = points.get(chosen) or most_promising(list(points.values()), where.fit.at(where.num_context))
    assert best is not None
    return KnownDomain(name, where.known(best.skip, best.match), is_outdone=not chosen)
