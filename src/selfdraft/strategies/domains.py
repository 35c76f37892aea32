"""What `knn` is fitted by: the prompts' vectors, the domains among them, and a search for each domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import OptionError
from ..fitting import Kit
from ..types import Prompt, SkipSet
from .anchors import NO_THRESHOLD, POINT, Domain, condense, pack, representatives, threshold_of, unpack, vector_of
from .kept_sets import MAX_SETS
from .kmeans import Vectors, choose_count, kmeans
from .prune import num_fitting

UNLABELLED = "all"
"""The domain of prompts that nobody has sorted."""
GENERAL = "general"
MAX_SAMPLES = 64
"""Vectors of a domain that are kept to be looked at."""
DAMAGE = (LookupError, TypeError, ValueError, AttributeError)
_CLUSTER = "cluster-"
_SHARE_OF_VECTORS = 0.25
"""Of the time: what looking at prompts may take, once each domain has enough of them to be searched on."""

Found = Mapping[str, Any]
Search = Callable[[Kit], Found]


@dataclass(frozen=True)
class Group:
    """The prompts of one domain, and their vectors."""

    name: str
    prompts: Sequence[Prompt]
    vectors: Vectors

    def rows(self, count: int, options: Any) -> list[int]:
        """Of those that stand for all."""
        return representatives(self.vectors, count, options.representatives, options.seed)

    def to_search(self, count: int, options: Any) -> list[Prompt]:
        return [self.prompts[row] for row in sorted(self.rows(count, options))]

    def anchors(self, options: Any) -> Vectors:
        """As the authors' code has them, the centres themselves; else prompts."""
        if options.paper:
            return kmeans(self.vectors, options.anchors, options.seed).centroids
        return self.vectors[self.rows(options.anchors, options)]


def fit_domains(kit: Kit, options: Any, search: Search) -> dict[str, Any]:
    """The artefact. What is known of domains that are not among the prompts stays as it is, the general set with it."""
    prompts, vectors = look_at_prompts(kit, options)
    known = read_known(kit.known)
    groups = group(prompts, vectors, options)
    kept = _kept(known, groups, {prompt.domain for prompt in prompts})
    _check_alike(kit.known, kept, options)
    jobs = {one.name: one.to_search(options.search_prompts, options) for one in groups}
    searches = Searches(kit, search, options.search)
    general = kit.known["general"] if kept else None
    if general is None and len(groups) > 1:
        judging = {prompt for own in jobs.values() for prompt in own[num_fitting(len(own)) :]}
        of_all = [prompt for prompt in prompts if prompt not in judging]  # as `prune` has them
        (general,) = searches.run({GENERAL: of_all}, num_later=len(jobs))
    told = {one.name for one in known} if kept else set()  # their prompts may have chosen the general sets
    others = some_sets(general) if general else []
    found = searches.run(jobs, {name: others for name in jobs if name not in told})
    return {
        "feature": options.feature,
        "search": options.search,
        "paper": options.paper,
        **pack([*kept, *_domains(groups, found, kept, options)]),
        "general": general or found[0],
        "is_complete": searches.are_complete and (not kept or bool(kit.known.get("is_complete", True))),
    }


# ------------------------------------------------------------------------------------------------ prompts and vectors


def look_at_prompts(kit: Kit, options: Any) -> tuple[list[Prompt], Vectors]:
    """Up to `max_vectors` prompts of each domain, those that have a vector."""
    counts: Counter[str] = Counter()
    clock = kit.among(kit.prompts, "vectors", _SHARE_OF_VECTORS)
    prompts, vectors = [], []
    for number, prompt in enumerate(kit.prompts, start=1):
        limit = options.max_vectors if clock.has_time() else options.search_prompts
        is_wanted = counts[prompt.domain] < limit
        vector = vector_of(kit.hidden(prompt, (POINT,), condense(options.feature))) if is_wanted else None
        if vector is not None:
            counts[prompt.domain] += 1
            prompts.append(prompt)
            vectors.append(vector)
        kit.progress(_SHARE_OF_VECTORS * number / len(kit.prompts))
    if not prompts:
        raise OptionError("knn needs prompts of at least two tokens to tell domains apart, and there are none")
    return prompts, np.stack(vectors)


def group(prompts: Sequence[Prompt], vectors: Vectors, options: Any) -> list[Group]:
    """By their labels, unless clusters are asked for or there are none."""
    labels = [prompt.domain for prompt in prompts]
    if options.clusters or set(labels) == {UNLABELLED}:
        count = options.clusters or choose_count(vectors, seed=options.seed)
        numbers = kmeans(vectors, count, options.seed).labels.tolist()
        order = list(dict.fromkeys(numbers))
        labels = [f"{_CLUSTER}{order.index(number) + 1}" for number in numbers]
    return [_members(name, labels, prompts, vectors) for name in dict.fromkeys(labels)]


def _members(name: str, labels: Sequence[str], prompts: Sequence[Prompt], vectors: Vectors) -> Group:
    rows = [row for row, label in enumerate(labels) if label == name]
    return Group(name, [prompts[row] for row in rows], vectors[rows])


# ------------------------------------------------------------------------------------------------ domains


def read_known(artefact: Mapping[str, Any]) -> list[Domain]:
    """Nothing where it is damaged: it is being made again."""
    try:
        some_sets(artefact["general"])
        return unpack(artefact)
    except (*DAMAGE, OptionError):
        return []


def _kept(known: Sequence[Domain], groups: Sequence[Group], labels: set[str]) -> list[Domain]:
    """Clusters were a stopgap: others, or labels, take their place."""
    gone = labels | {one.name for one in groups}
    return [one for one in known if one.name not in gone and not one.name.startswith(_CLUSTER)]


def _check_alike(known: Mapping[str, Any], kept: Sequence[Domain], options: Any) -> None:
    for option, made, asked in differing(known, options) if kept else ():
        names = ", ".join(domain.name for domain in kept)
        raise OptionError(
            f"the profile's domains {names} were found with knn.{option}={made}, not {asked}, and the prompts have "
            f"none of them. Say --set knn.{option}={made}, or name prompts of these domains, too"
        )


def differing(artefact: Mapping[str, Any], options: Any) -> Iterator[tuple[str, str, str]]:
    """Options that a fit and the use of it must share, as the artefact has them and as they are now. `paper` decides
    about the others.
    """
    for name in ("paper", "feature", "search"):
        made, asked = (str(one).lower() for one in (artefact.get(name, False), getattr(options, name)))
        if made != asked:
            yield name, made, asked


def _domains(groups: Sequence[Group], found: Sequence[Found], kept: Sequence[Domain], options: Any) -> list[Domain]:
    """A domain of too few vectors to tell how far they spread gets the lowest threshold of the others."""
    thresholds = [threshold_of(one.vectors, one.rows(options.anchors, options)) for one in groups]
    told = [*(one.threshold for one in kept), *(value for value in thresholds if value is not None)]
    lowest = min(told, default=NO_THRESHOLD)
    return [
        Domain(
            one.name,
            len(one.prompts),
            lowest if threshold is None else threshold,
            own,
            one.anchors(options),
            one.vectors[:: -(-len(one.vectors) // MAX_SAMPLES)],
        )
        for one, own, threshold in zip(groups, found, thresholds, strict=True)
    ]


# ------------------------------------------------------------------------------------------------ searches


@dataclass(frozen=True)
class Job:
    """What one search is asked."""

    name: str
    prompts: Sequence[Prompt]
    others: Sequence[SkipSet] = ()

    @property
    def question(self) -> dict[str, Any]:
        ids = [prompt.id for prompt in self.prompts]
        return {"domain": self.name, "prompts": ids, "others": [str(skip) for skip in self.others]}


class Searches:
    """A fit for each domain inside the kit's own. What an earlier run did is not done again: an interrupted one is gone
    on with after its last search, one that the budget ended with each search that was not complete.
    """

    def __init__(self, kit: Kit, search: Search, name: str) -> None:
        self._kit, self._search, self._name = kit, search, name
        self.are_complete = True

    def run(
        self,
        prompts: Mapping[str, Sequence[Prompt]],
        others: Mapping[str, Sequence[SkipSet]] | None = None,
        num_later: int = 0,
    ) -> list[Found]:
        """Each gets an even part of the time that is left. `others`: sets that a domain's search judges, too;
        `num_later`: searches that are still to come.
        """
        jobs = [Job(name, own, (others or {}).get(name, ())) for name, own in prompts.items()]
        known = [self._known(job) for job in jobs]
        turn = min((len(steps) for steps in known if not _is_complete(steps)), default=0)
        is_done = [_is_complete(steps) or len(steps) > turn for steps in known]
        results: list[Found] = []
        for number, (job, steps) in enumerate(zip(jobs, known, strict=True)):
            num_left = is_done[number:].count(False) + num_later
            step = steps[-1] if is_done[number] else self._run(job, 1 / num_left)
            self.are_complete &= step["is_complete"]
            results.append(step["found"])
            self._kit.progress(_SHARE_OF_VECTORS + (1 - _SHARE_OF_VECTORS) * (number + 1) / (len(jobs) + num_later))
        return results

    def _known(self, job: Job) -> list[Mapping[str, Any]]:
        return [step for step in self._kit.done if {**step, **job.question} == step]

    def _run(self, job: Job, share: float) -> Mapping[str, Any]:
        inner = self._kit.among(job.prompts, f"{self._name} of {job.name}", share, job.others)
        found = self._search(inner)
        step = {**job.question, "found": found, "is_complete": not inner.is_out_of_time}
        self._kit.keep(step)
        return step


def some_sets(found: Found) -> list[SkipSet]:
    """Of all sizes."""
    skips = [SkipSet.parse(point["skip"]) for point in found.get("frontier", ()) if point["skip"]]
    return skips[:: -(-len(skips) // MAX_SETS) or 1]


def _is_complete(steps: Sequence[Mapping[str, Any]]) -> bool:
    return bool(steps) and bool(steps[-1]["is_complete"])
