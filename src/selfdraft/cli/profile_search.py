"""What strategies that search left in a profile, in figures: `knn`, `swift`, `draft-verify`.

What is damaged raises one of `profile_sets.DAMAGE`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..bench.search.sets import most_promising
from ..models.payoff import Array
from ..types import FrontierPoint, LatencyFit, SkipSet
from .profile_sets import KnownSet, choose, known_set

# ------------------------------------------------------------------------------------------------ draft-verify


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
    return TimedSet(_parse(kept["skip"]), speed, plain, int(kept["num_tried"]), bool(kept.get("is_complete", True)))


# ------------------------------------------------------------------------------------------------ knn


@dataclass(frozen=True)
class Domain:
    """The set that promises most of those that a search found for one domain.

    An empty set: plain decoding was fastest. None: nothing was searched yet, or it takes measured seconds to say which.
    """

    name: str
    found: KnownSet | None
    is_searched: bool = True
    is_outdone: bool = False  # plain decoding promises more
    num_vectors: int | None = None
    threshold: float | None = None  # less similar prompts are strangers


@dataclass(frozen=True)
class Domains:
    """`knn` behind a text of some length."""

    feature: str
    search: str
    domains: Sequence[Domain]
    general: Domain
    num_context: int

    @property
    def rows(self) -> list[Domain]:
        return [*self.domains, self.general]


@dataclass(frozen=True)
class Where:
    """The model and the place in a text for which sets are chosen."""

    fit: LatencyFit | None
    num_layers: int
    num_context: int


def domains(values: Mapping[str, Any], where: Where) -> Domains:
    found = [_domain(one, where) for one in values["domains"]]
    if not found:
        raise ValueError("there is no domain")
    general = _found("general", values["general"], where)
    return Domains(str(values["feature"]), str(values["search"]), found, general, where.num_context)


def _domain(kept: Mapping[str, Any], where: Where) -> Domain:
    found = _found(str(kept["name"]), kept["found"], where)
    return replace(found, num_vectors=int(kept["num_vectors"]), threshold=float(kept["threshold"]))


def _found(name: str, found: Mapping[str, Any], where: Where) -> Domain:
    """Of a frontier the point that promises most there; of sets by tokens per second the first."""
    if "frontier" in found:
        return _on_frontier(name, found, where)
    sets = timed_sets(found)
    if not sets:
        raise ValueError(f"{name} has no set")
    one = next(iter(sets.values()))
    if not one.num_tried:
        return Domain(name, None, is_searched=False)
    one.skip.check(where.num_layers)
    return Domain(name, replace(_known(one.skip, None, where), measured=one.speed_up if one.skip else None))


def _on_frontier(name: str, found: Mapping[str, Any], where: Where) -> Domain:
    points = [point for point in map(FrontierPoint.from_json, found["frontier"]) if point.skip]
    for point in points:
        point.skip.check(where.num_layers)
    if not points or where.fit is None:
        return Domain(name, None, is_searched=bool(points))
    chosen = choose(found, where.fit, where.num_layers, where.num_context)
    best = chosen or most_promising(points, where.fit, where.num_layers, where.num_context)
    assert best is not None
    match = next(point.match for point in points if point.skip == best)
    return Domain(name, _known(best, match, where), is_outdone=not chosen)


def _known(skip: SkipSet, match: float | None, where: Where) -> KnownSet:
    if where.fit is None or not skip:
        return KnownSet(skip, 1.0)
    return known_set(skip, match, where.fit, where.num_layers, where.num_context)


class Cloud(NamedTuple):
    """Vectors [vectors, hidden] and the domain of each [vectors]."""

    vectors: Array
    domains: Array

    def of(self, domain: int) -> Array:
        found: Array = self.vectors[self.domains == domain]
        return found


def clouds(content: Mapping[str, Any]) -> tuple[Cloud, Cloud]:
    """Anchors, and samples of the prompts they were chosen from."""
    num_domains = len(content["domains"])
    found = []
    for name, names in (("anchors", "anchor_domains"), ("samples", "sample_domains")):
        vectors, labels = (content[array].double().numpy() for array in (name, names))
        if vectors.ndim != 2 or labels.shape != vectors.shape[:1]:
            raise ValueError(f"{name} {vectors.shape} with {labels.shape} domains")
        if not np.isin(labels, np.arange(num_domains)).all() or not np.isfinite(vectors).all():
            raise ValueError(f"{name} belong to no domain or are no numbers")
        found.append(Cloud(vectors, labels))
    return found[0], found[1]


# ------------------------------------------------------------------------------------------------ swift


class Step(NamedTuple):
    """Candidates were scored."""

    step: int
    num_tokens: int  # generated until then
    matchness: float  # of the best of them
    best: float | None  # of the set in use behind it
    ratio: float


@dataclass(frozen=True)
class FinishedText:
    begin: int  # tokens generated before it
    end: int
    seconds: float
    optimise_seconds: float
    plain_seconds: float
    matchness: float | None
    phase: str
    ratio: float

    @property
    def speed_up(self) -> float:
        return self.plain_seconds / self.seconds


@dataclass(frozen=True)
class Search:
    """`swift`: where its search stands and how it came there."""

    phase: str
    ratio: float
    step: int
    skip: SkipSet
    matchness: float | None
    snapshots: Mapping[int, SkipSet]
    steps: Sequence[Step]
    texts: Sequence[FinishedText]

    @property
    def num_tokens(self) -> int:
        return max([0, *(step.num_tokens for step in self.steps), *(text.end for text in self.texts)])

    @property
    def optimise_share(self) -> float | None:
        """Of the seconds of finished texts."""
        seconds = sum(text.seconds for text in self.texts)
        return sum(text.optimise_seconds for text in self.texts) / seconds if seconds else None

    @property
    def overall(self) -> list[float]:
        """Speed-up up to the end of each text."""
        plain = itertools.accumulate(text.plain_seconds for text in self.texts)
        spent = itertools.accumulate(text.seconds for text in self.texts)
        return [before / after for before, after in zip(plain, spent, strict=True)]

    @property
    def in_use(self) -> list[tuple[int, float]]:
        """Tokens generated, and how well the set in use matches from there on: behind steps and behind texts."""
        changed = [(step.num_tokens, step.best) for step in self.steps if step.best is not None]
        told = [(text.end, text.matchness) for text in self.texts if text.matchness is not None]
        return sorted([*changed, *told], key=lambda point: point[0])

    def matchness_at(self, step: int) -> float | None:
        """Of the set in use behind so many steps."""
        found = [one.best for one in self.steps if one.step <= step]
        return found[-1] if found else None

    @property
    def ratios(self) -> list[tuple[int, float]]:
        """Tokens generated, and the ratio from there on: at the beginning and where it changed."""
        told = [(one.num_tokens, one.ratio) for one in self.steps] + [(text.end, text.ratio) for text in self.texts]
        told = sorted([*told, (self.num_tokens, self.ratio)], key=lambda point: point[0])
        return [point for place, point in enumerate(told) if not place or told[place - 1][1] != point[1]]

    @property
    def phases(self) -> list[tuple[int, int, str]]:
        """(first token, last token, phase), neighbours of one phase as one."""
        found: list[tuple[int, int, str]] = []
        for begin, end, phase in self._phases():
            if found and found[-1][2] == phase:
                begin = found.pop()[0]
            if end > begin:
                found.append((begin, end, phase))
        return found

    def _phases(self) -> Iterator[tuple[int, int, str]]:
        """A text is told to be in the phase it ended in; its steps tell where the phase began or ended."""
        before = "optimise"
        for text in self.texts:
            steps = [one.num_tokens for one in self.steps if text.begin <= one.num_tokens <= text.end]
            if text.phase == "optimise":
                change = min(steps, default=text.begin) if before != "optimise" else text.begin
                yield text.begin, change, before
            else:
                change = max(steps, default=text.begin) if before == "optimise" else text.begin
                yield text.begin, change, "optimise"
            yield change, text.end, text.phase
            before = text.phase
        last = self.texts[-1].end if self.texts else 0
        yield last, self.num_tokens, self.phase


def search(values: Mapping[str, Any]) -> Search:
    matchness = values.get("matchness")
    return Search(
        phase=str(values["phase"]),
        ratio=float(values["ratio"]),
        step=int(values["step"]),
        skip=_parse(values["skip"]),
        matchness=None if matchness is None else float(matchness),
        snapshots={int(step): _parse(values["snapshots"][step]) for step in sorted(values["snapshots"], key=int)},
        steps=[_step(one) for one in values["steps"]],
        texts=list(_texts(values["texts"])),
    )


def _step(kept: Mapping[str, Any]) -> Step:
    best = None if kept["best"] is None else float(kept["best"])
    return Step(int(kept["step"]), int(kept["num_tokens"]), float(kept["matchness"]), best, float(kept["ratio"]))


def _texts(kept: Sequence[Mapping[str, Any]]) -> Iterator[FinishedText]:
    end = 0
    for one in kept:
        begin, end = end, end + int(one["num_tokens"])
        seconds, optimise, plain = (float(one[name]) for name in ("seconds", "optimise_seconds", "plain_seconds"))
        if not seconds > 0:
            raise ValueError(f"a text took {seconds} seconds")
        matchness = None if one["matchness"] is None else float(one["matchness"])
        yield FinishedText(begin, end, seconds, optimise, plain, matchness, str(one["phase"]), float(one["ratio"]))


def _parse(text: Any) -> SkipSet:
    if not isinstance(text, str):
        raise TypeError("a skip set must be text")
    return SkipSet.parse(text)
