"""What the experiments of KNN-SSD share: its tasks, what `knn` learned of them, and the ways that are compared.

Every domain has one skip set, found by the same search in the same time, and all ways draft alike (chains of up to 12
tokens that stop below a confidence of 0.8), also where plain decoding would be faster: so the choice of the set is all
that differs. `ssd-fixed` has the set of the first task, `ssd-mixed` one of all tasks, `knn` that of the nearest domain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ....calibrate.kit import Workshop
from ....errors import ProfileError
from ....profiles.profile import Artefact
from ....profiles.store import Store
from ....strategies.anchors import NO_THRESHOLD, Domain, pack, unpack
from ....types import FrontierPoint, SkipSet
from ...prompts import BenchPrompt, in_turn
from ...search import routing
from ...search.names import GENERAL, KNN, SEARCH, one_set
from ...search.sets import DomainSet, sets_of
from ...selection.calibration import journal
from ...selection.methods import Method, as_all
from ..cells import figure_cell, speed_cell
from ..recipe import Effort, Found, Unit
from ..tasks import Task, Tasks
from ..workbench import Learned, Methods, Workbench

TASKS = ("cnn-dm", "gsm8k", "tinystories", "wmt", "sql")
"""A stream begins with the first."""
FIXED, MIXED, OFF = "ssd-fixed", "ssd-mixed", "off"
WAYS = (FIXED, MIXED, KNN)
MORE = 3
"""So many times the prompts of the scale are looked at: a vector takes no more than a prefill."""
LENGTH, RATE = "mean_generated_length", "acceptance_rate"
PAPER_PROMPTS, PAPER_TOKENS, PAPER_SEARCHED, PAPER_VECTORS = 40, 128, 1000, 1000

# -------------------------------------------------------------------------------------------------------------- tasks


def tasks_of(bench: Workbench, names: Iterable[str], num_measured: int | None = None) -> list[Task]:
    """Those that are there; the domain of their prompts is the task."""
    scale = bench.scale
    tasks = Tasks(bench.prompts, num_measured or scale.prompts, MORE * scale.learned_prompts, bench.seed)
    return [_labelled(task) for task in map(tasks.find, names) if task is not None]


def num_looked_at(bench: Workbench) -> int:
    """Of each task, to see where they are sent."""
    count = bench.scale.prompts
    return max(MORE, count) if bench.scale.is_quick else MORE * count


def _labelled(task: Task) -> Task:
    measured, learned = ([replace(one, domain=task.name) for one in group] for group in (task.measured, task.learned))
    return replace(task, measured=measured, learned=learned)


def missing_units(bench: Workbench, names: Iterable[str] = TASKS) -> Iterator[Unit]:
    for name in names:
        if bench.tasks.find(name) is None:
            yield Unit(name, missing=bench.tasks.why_missing(name))


def too_few_tasks(bench: Workbench) -> str | None:
    """Why there is no stream."""
    has_two = len(tasks_of(bench, TASKS)) > 1
    return None if has_two else f"it needs prompts of two at least of {', '.join(TASKS)}"


# ------------------------------------------------------------------------------------------------------------ lessons


@dataclass(frozen=True)
class Taught:
    """What `knn` learned: anchors and one set for each domain; `general`: the set of all of them together."""

    artefact: Artefact
    facts: Mapping[str, Any]
    sets: Mapping[str, DomainSet]
    general: DomainSet

    @property
    def domains(self) -> list[Domain]:
        return unpack(self.artefact.content)

    def skip_of(self, domain: str) -> str:
        return str(self.sets[domain].skip)

    def figures(self) -> dict[str, Any]:
        """For the units that went by it: the facts of the lesson, and the sets as text."""
        sets = {name: str(one.skip) for name, one in self.sets.items()}
        return {"lesson": {**self.facts, "num_sets": len(sets) + 1}, "sets": {**sets, GENERAL: str(self.general.skip)}}


def taught(bench: Workbench) -> Taught:
    """Of the five tasks."""
    tasks = tasks_of(bench, TASKS)
    return teach(bench, "knn-ssd", in_turn(one for task in tasks for one in task.learned), len(tasks))


def teach(bench: Workbench, name: str, prompts: Sequence[BenchPrompt], num_domains: int, clusters: int = 0) -> Taught:
    """Each search, the general one included, has the seconds of a lesson, and so have the vectors.

    A ProfileError where nothing was learned.
    """
    scale = bench.scale
    settings = {"search": SEARCH, "clusters": clusters, "search_prompts": max(len(TASKS), scale.learned_prompts)}
    method = {"strategy": KNN, "settings": {KNN: settings}}
    num_parts = num_domains + (num_domains > 1) + 1
    found = bench.learn(name, method, prompts, num_parts * scale.lesson_seconds, max(1, scale.lesson_tokens // 2))
    if found.facts["error"] is not None:
        raise ProfileError(f"knn learned nothing: {found.facts['error']}")
    artefact, latency = found.artefacts[KNN], bench.latency
    all_domains = {"search": SEARCH, "domains": [{"name": GENERAL, "found": artefact.values["general"]}]}
    (general,) = sets_of(all_domains, latency)
    sets = {one.domain: one for one in sets_of(artefact.content, latency)}
    return Taught(artefact, found.facts, sets, general)


def knows(known: Taught, without: Sequence[str] = ()) -> Learned:
    """As the paper has it: one set a domain, no strangers. `without`: domains that it shall not know."""
    domains = [
        replace(one, found=_only(one.found, known.sets[one.name].skip), threshold=NO_THRESHOLD)
        for one in known.domains
        if one.name not in without
    ]
    return Learned(KNN, known.facts, {KNN: Artefact.of({**known.artefact.content, **pack(domains)})})


def _only(found: Mapping[str, Any], skip: SkipSet) -> dict[str, Any]:
    """Of a frontier, the set that the domain drafts with."""
    points = [FrontierPoint.from_json(point) for point in found["frontier"]]
    return {"frontier": [point.to_json() for point in points if point.skip == skip]}


# --------------------------------------------------------------------------------------------------------------- ways


def knn_way() -> Method:
    return as_all({"strategy": KNN, "settings": {KNN: {"search": SEARCH, "always": True}}})


def ways(known: Taught, first: str) -> Methods:
    """`first`: the domain whose set `ssd-fixed` has. A domain that no set was found for decodes plainly."""
    return {FIXED: one_set(known.skip_of(first)), MIXED: one_set(str(known.general.skip)), KNN: knn_way()}


def route(bench: Workbench, known: Learned, prompts: Sequence[BenchPrompt]) -> list[routing.Routed]:
    """Where `knn` sends prompts, and how long it takes to decide."""
    engine = bench.engine.fork()
    with tempfile.TemporaryDirectory() as folder:
        pages = partial(journal, Store(Path(folder)), engine.knowledge.key)
        workshop = Workshop(engine, bench.latency, 1, pages)
        return routing.route(engine, bench.profile([known]), {"": prompts}, workshop)


# -------------------------------------------------------------------------------------------------------------- shown


def efforts(found: Found, prompts: Effort | None = None) -> list[Effort]:
    """`prompts`: None: those of a stream."""
    lesson = any_value(found, "lesson")
    known = [
        prompts or Effort("prompts a task", found.scale.get("prompts"), PAPER_PROMPTS),
        Effort("new tokens of a text", found.scale.get("tokens"), PAPER_TOKENS),
    ]
    if lesson is None or lesson["num_steps"] is None:
        return known
    count = round(lesson["num_steps"] / lesson["num_sets"], 1)
    return [*known, Effort("steps of a domain's search", count, PAPER_SEARCHED)]


def counted(found: Found, unit: str, way: str) -> list[str]:
    """M, acceptance and speed-up."""
    return [*(figure_cell(found, unit, way, name) for name in (LENGTH, RATE)), speed_cell(found, unit, way)]


COUNTED = ("M", "acceptance", "speed-up")
COST = "draft cost"


def any_value(found: Found, name: str) -> Any:
    """What is the same in all units."""
    return next((values[name] for values in found.units.values() if name in values), None)


def set_notes(found: Found) -> list[str]:
    """How sets were found, and which were not."""
    sets = any_value(found, "sets") or {}
    notes = [
        "all sets come of `prune`, a step of which drops one sub-layer more, the paper's of Bayesian optimisation, a "
        "step of which times one set; of what `prune` finds, a domain has the set that promises most behind 512 "
        "tokens, and always drafts"
    ]
    if nothing := [name for name, skip in sets.items() if not skip]:
        notes.append(f"no set was found in the time for {', '.join(nothing)}: plain decoding instead")
    return notes
