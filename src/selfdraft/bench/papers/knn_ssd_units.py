"""What is measured of KNN-SSD: its tasks, the fits of `knn`, the methods that are compared, and all units.

Every domain has one skip set, found by the same search in the same time, and all methods draft alike (chains of up to
12 tokens that stop below a confidence of 0.8), also where plain decoding would be faster: only the choice of the set
differs. `ssd-fixed` has the set of the first task, `ssd-mixed` one of all tasks, `knn` that of the nearest domain.
Sets are those of `prune`; in the unit of the paper's search they are Bayesian (`knn.paper`), all three from one fit.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...calibrate.fit_once import Fitted
from ...calibrate.fit_session import ScoredTexts
from ...engine.prefill import read_prompt
from ...errors import ProfileError
from ...measure.estimate import FEW_PROMPTS
from ...measure.figures import Measured, share
from ...measure.records import OFF
from ...profiles.profile import Artefact
from ...profiles.searches import Where, read_domains
from ...prompts.arrange import by_domain, in_turn, mixed_prompts
from ...prompts.tokens import encode
from ...strategies.anchors import NO_THRESHOLD, Domain, pack, unpack
from ...strategies.kmeans import MAX_COUNT, kmeans, silhouettes
from ...strategies.knn import Knn
from ...types import Prompt, SkipSet
from ..charts import plane
from .experiment import MEASURED, Unit, Values
from .workbench import Methods, Task, UnitsOf, Workbench, labels, why_missing

TASKS = ("cnn-dm", "gsm8k", "tinystories", "wmt", "sql")
"""A stream begins with the first."""
NEW_TASKS: Mapping[str, str | None] = {"xsum": "cnn-dm", "math": "gsm8k", "alpaca": None}
"""Data set -> the task that is most like it."""
FIXED, MIXED, KNN, OWN, GENERAL = "ssd-fixed", "ssd-mixed", "knn", "own set", "general"
PAPERS_SEARCH, VECTORS, MATH_STREAM, MATH_VECTORS = "Bayesian r=1.0", "vectors", "MATH stream", "MATH vectors"
WITHOUT = "without "
RATIOS_IN_TURN = (0.0, 1.0, 0.3, 0.7)
"""A quick run has the ends alone: what is between them is the same prompts in another order."""
NUM_CLUSTERS, MIN_CLUSTERED, NUM_SUBTOPICS, QUICK_SUBTOPICS = (1, 3, 5, 7), 8, 7, 3
MORE = 3
"""Times the prompts of the scale are looked at: a vector takes no more than a prefill."""
SEARCH, USUAL_LENGTH = "prune", 512


def tasks_of(bench: Workbench, names: Iterable[str] = TASKS, num_measured: int | None = None) -> list[Task]:
    """Those that are there; the domain of their prompts is the task."""
    found = (bench.task(name, num_measured, MORE * bench.scale.fit_prompts) for name in names)
    return [_as_one_domain(task) for task in found if task is not None]


def _as_one_domain(task: Task) -> Task:
    measured, fitting = ([replace(one, domain=task.name) for one in group] for group in (task.measured, task.fitting))
    return replace(task, measured=measured, fitting=fitting)


def missing_units(bench: Workbench, names: Iterable[str]) -> list[Unit]:
    return [Unit(name, missing=why_missing(name)) for name in names if bench.task(name) is None]


def of_tasks(name: str, units: UnitsOf, names: Iterable[str] = TASKS) -> UnitsOf:
    """`units`, if there are two of the five tasks at least; else `name` is missing."""
    too_few = Unit(name, missing=f"it needs prompts of two at least of {', '.join(TASKS)}")
    return lambda bench: [*missing_units(bench, names), *(units(bench) if len(tasks_of(bench)) > 1 else [too_few])]


# ------------------------------------------------------------------------------------------------ fits and methods


@dataclass(frozen=True)
class Domains:
    """What `knn` was fitted to. `sets`: of each domain, then the general one; "": none was found."""

    fitted: Fitted
    domains: Sequence[Domain]
    sets: Mapping[str, str]

    @property
    def values(self) -> dict[str, Any]:
        """For the units that went by it."""
        return {"fit": {**self.fitted.facts, "num_sets": len(self.sets)}, "sets": self.sets}

    @property
    def equal_sets(self) -> dict[str, str]:
        """One of each domain that has any, all of about the usual size: else sizes would decide, not domains."""
        found = {one.name: [SkipSet.parse(point["skip"]) for point in one.found["frontier"]] for one in self.domains}
        known = {name: skips for name, skips in found.items() if any(skips)}
        usual = statistics.median_low([len(SkipSet.parse(self.sets[name])) for name in known]) if known else 0
        size = min([usual, *(max(map(len, skips)) for skips in known.values())])
        return {name: str(min(skips, key=lambda skip: abs(len(skip) - size))) for name, skips in known.items()}

    def knows(self, without: str = "") -> Fitted:
        """As the paper has it: one set a domain, no strangers. `without`: a domain that it shall not know."""
        domains = []
        for one in self.domains:
            points = [point for point in one.found.get("frontier", ()) if point["skip"] == self.sets[one.name]]
            if one.name != without:
                found = {**one.found, **({"frontier": points} if points else {})}
                domains.append(replace(one, found=found, threshold=NO_THRESHOLD))
        content = {**self.fitted.artefacts[KNN].content, **pack(domains)}
        return replace(self.fitted, artefacts={KNN: Artefact.of(content)})


def fit_tasks(bench: Workbench, **options: Any) -> Domains:
    tasks = tasks_of(bench)
    name = "-".join(["knn-ssd", *options])
    return fit(bench, name, in_turn(one for task in tasks for one in task.fitting), len(tasks), **options)


def fit(bench: Workbench, name: str, prompts: Sequence[Prompt], num_domains: int, **options: Any) -> Domains:
    """Each search, the general one included, has the seconds of a fit, and so have the vectors."""
    scale = bench.scale
    settings = {"search_prompts": max(len(TASKS), scale.fit_prompts), **options}
    seconds = Knn.num_searches(Knn.Options(**settings), num_domains) * scale.fit_seconds
    found = bench.fit(name, {"strategy": KNN, "settings": {KNN: settings}}, prompts, seconds)
    if found.facts["error"] is not None:
        raise ProfileError(f"knn could not be fitted: {found.facts['error']}")
    own = _own_sets(found)
    return Domains(own, unpack(own.artefacts[KNN].content), _sets(bench, own.values))


def _own_sets(found: Fitted) -> Fitted:
    """As the paper has it: each domain drafts with what its own search found, whatever those of all promise."""
    content = found.artefacts[KNN].content
    parts = [
        replace(one, found={key: value for key, value in one.found.items() if key != "surety"})
        for one in unpack(content)
    ]
    return replace(found, artefacts={KNN: Artefact.of({**content, **pack(parts)})})


def expect(bench: Workbench, num_methods: int, prompts: Sequence[Prompt]) -> None:
    """Methods and plain decoding, by sets that a plan does not know."""
    bench.expect((1 + num_methods) * len(prompts) * bench.scale.runs, bench.scale.tokens)


def _sets(bench: Workbench, found: Mapping[str, Any]) -> dict[str, str]:
    """Of frontiers what promises most; of Bayesian sets the fastest that drafts."""
    if found["search"] == SEARCH:
        rows = read_domains(found, Where(bench.latency, bench.engine.runner.num_layers, USUAL_LENGTH)).rows
        return {one.name: str(one.found.skip) if one.found else "" for one in rows}
    return {name: one["skip"] or "" for name, one in _tried(found).items()}


def _tried(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Of each Bayesian search: the fastest set that drafts, its speed and the plain one, and how many were tried."""
    parts = {**{one["name"]: one["found"] for one in found["domains"]}, GENERAL: found["general"]}
    known = {name: part["sets"]["mixed"] for name, part in parts.items()}
    nothing = {"skip": None, "tokens_per_second": None}
    return {
        name: {**(one["drafting"] or nothing), "plain": one["plain"], "num_steps": one["num_tried"]}
        for name, one in known.items()
    }


def _alike(strategy: str, **options: Any) -> dict[str, Any]:
    settings = {strategy: options, "confidence": {"threshold": 0.8}}
    return {"strategy": strategy, "lookahead": "confidence", "drafter": "self", "tree": "chain", "settings": settings}


KNN_METHOD, BAYESIAN = _alike(KNN, search=SEARCH, always=True), _alike(KNN, paper=True)


def one_set(skip: str | None) -> dict[str, Any]:
    """Nothing to skip: plain decoding."""
    return _alike("fixed", skip=skip) if skip else {"strategy": OFF}


def three_methods(known: Domains, first: str, knn: Mapping[str, Any] = KNN_METHOD) -> Methods:
    """`first`: the domain whose set `ssd-fixed` has."""
    return {FIXED: one_set(known.sets[first]), MIXED: one_set(known.sets[GENERAL]), KNN: knn}


def route(bench: Workbench, knows: Fitted, prompts: Sequence[Prompt]) -> list[tuple[str, float]]:
    """Where `knn` sends each prompt, and the seconds of the decision, without the prefill."""
    engine = bench.fork([knows])
    runner, strategy = engine.runner, engine.method(**KNN_METHOD).strategy
    routed = []
    for place, prompt in enumerate(prompts):
        seconds = read_prompt(runner, strategy, place, encode(prompt, engine))
        routed.append((str(strategy.report(place)["domain"]), seconds))
        strategy.end(place)
    return routed


def routes(bench: Workbench, knows: Fitted, prompts: Sequence[Prompt]) -> dict[str, int]:
    return dict(Counter(domain for domain, _ in route(bench, knows, prompts)))


# ------------------------------------------------------------------------- streams: tables 1, 2, 3 and 7, figures 1, 4


def stream_units(ratios: Sequence[float] = RATIOS_IN_TURN) -> UnitsOf:
    def units(bench: Workbench) -> list[Unit]:
        wanted = ratios[:2] if bench.scale.is_quick else ratios
        return [Unit(f"r={ratio}", partial(_stream, bench, ratio)) for ratio in wanted]

    return of_tasks("streams", units)


def _stream(bench: Workbench, ratio: float) -> Values:
    tasks = tasks_of(bench)
    prompts = mixed_prompts([one for task in tasks for one in task.measured], ratio, bench.seed)
    expect(bench, 3, prompts)
    known = fit_tasks(bench)
    found = bench.compare(three_methods(known, tasks[0].name), prompts, knows=[known.knows()])
    changes = [after.domain != before.domain for before, after in itertools.pairwise(prompts)]
    return {**found, "changes": share(sum(changes), len(changes)), "labels": labels(tasks), **known.values}


def papers_search_unit(bench: Workbench) -> list[Unit]:
    """The paper's search finds nothing in the seconds of a quick run."""
    has_more = not bench.scale.is_quick and len(tasks_of(bench)) > 1
    return [Unit(PAPERS_SEARCH, partial(_by_papers_search, bench))] if has_more else []


def _by_papers_search(bench: Workbench) -> Values:
    tasks = tasks_of(bench)
    stream = mixed_prompts([one for task in tasks for one in task.measured], 1.0, bench.seed)
    expect(bench, 3, stream)
    known = fit_tasks(bench, paper=True)
    methods = {bayesian(arm): one for arm, one in three_methods(known, tasks[0].name, BAYESIAN).items()}
    return {**bench.compare(methods, stream, knows=[known.knows()]), "tried": _tried(known.fitted.values)}


def bayesian(arm: str) -> str:
    return f"{arm}, Bayesian"


# ----------------------------------------------------------------------------------------- domains: figures 2 and 5


def each_task(measure: Callable[[Workbench, Task], Values], prefix: str = "", names: Iterable[str] = TASKS) -> UnitsOf:
    return lambda bench: [Unit(prefix + one.name, partial(measure, bench, one)) for one in tasks_of(bench, names)]


def on_task(bench: Workbench, task: Task) -> Values:
    """An arm by the name of each set, all of one size; sets that are the same are measured once.

    `match`: how often each meets the target's choice, given the text.
    """
    expect(bench, len(tasks_of(bench)), task.measured)
    known = fit_tasks(bench)
    skips = known.equal_sets
    compared = bench.compare({skip: one_set(skip) for skip in skips.values()}, task.measured)
    found: Measured = compared[MEASURED]
    named = [replace(record, arm=name) for name, skip in skips.items() for record in found.of(skip)]
    texts = [text for text in bench.write(task.measured, bench.scale.tokens) if text.num_generated]
    scored = ScoredTexts(bench.engine.runner, texts)
    match = {name: scored.match(SkipSet.parse(skip)) for name, skip in skips.items() if scored.texts}
    measured = Measured([*found.of(OFF), *named], found.machine, found.seed)
    return {**compared, MEASURED: measured, "task": task.label, "match": match, **known.values, "sets": skips}


def num_routed(bench: Workbench) -> int:
    """Prompts of a task, to see where they are sent."""
    return max(MORE, bench.scale.prompts) if bench.scale.is_quick else MORE * bench.scale.prompts


def vectors(bench: Workbench) -> Values:
    """Vectors that were fitted to, and where other prompts are sent. The first decision has something to set up."""
    known, tasks = fit_tasks(bench), tasks_of(bench, num_measured=num_routed(bench))
    prompts = [one for task in tasks for one in task.measured]
    routed = route(bench, known.knows(), prompts)
    sent: dict[str, Counter[str]] = {task.name: Counter() for task in tasks}
    for prompt, (domain, _) in zip(prompts, routed, strict=True):
        sent[prompt.domain][domain] += 1
    return {
        **flat_vectors(known.domains),
        "routes": sent,
        "decision_seconds": [seconds for _, seconds in routed[1:]],
        "token_seconds": bench.latency.at(USUAL_LENGTH).plain,
        "labels": labels(tasks),
        **known.values,
    }


def flat_vectors(domains: Sequence[Domain]) -> dict[str, Any]:
    """For a picture; `silhouettes`: of each vector, 1: domains stand apart, 0: they do not."""
    vectors = np.concatenate([one.samples for one in domains]).astype(np.float32)
    owners = np.repeat(np.arange(len(domains)), [len(one.samples) for one in domains])
    flat, explained = plane(vectors)
    points = {one.name: flat[owners == place].round(5).tolist() for place, one in enumerate(domains)}
    apart = silhouettes(vectors, owners).tolist() if len(domains) > 1 else []
    return {"points": points, "explained": sum(explained), "silhouettes": apart}


# -------------------------------------------------------------------------- unseen prompts and clusters: tables 5, 6


def new_task(bench: Workbench, task: Task) -> Values:
    expect(bench, 2, task.measured)
    known = fit_tasks(bench)
    methods = {MIXED: one_set(known.sets[GENERAL]), KNN: KNN_METHOD}
    (more,) = tasks_of(bench, [task.name], num_routed(bench))
    sent = routes(bench, known.knows(), more.measured)
    return {**bench.measure(task, methods, knows=[known.knows()]), "routes": sent, **known.values}


def left_out(bench: Workbench, task: Task) -> Values:
    """`knn` without the task's anchors and set; `ssd-fixed`: the set of the first other task."""
    expect(bench, 3, task.measured)
    known = fit_tasks(bench)
    knows, other = known.knows(task.name), next(one.name for one in known.domains if one.name != task.name)
    methods = {FIXED: one_set(known.sets[other]), KNN: KNN_METHOD, OWN: one_set(known.sets[task.name])}
    found = bench.measure(task, methods, "left out", knows=[knows])
    return {**found, "routes": routes(bench, knows, task.measured), **known.values}


def clusters_name(count: int) -> str:
    return "1 cluster" if count == 1 else f"{count} clusters"


def cluster_units(bench: Workbench) -> list[Unit]:
    scale = bench.scale
    task = bench.task("alpaca", 2 * scale.prompts, max(MIN_CLUSTERED, 2 * MORE * scale.fit_prompts))
    if task is None:
        return missing_units(bench, ["alpaca"])
    counts = NUM_CLUSTERS[:2] if scale.is_quick else NUM_CLUSTERS
    return [Unit(clusters_name(count), partial(_clustered, bench, _as_one_domain(task), count)) for count in counts]


def _clustered(bench: Workbench, task: Task, count: int) -> Values:
    """One cluster: the set of all prompts, which comes with every number of clusters."""
    num_domains = max(count, NUM_CLUSTERS[1])
    expect(bench, 1, task.measured)
    known = fit(bench, f"knn-ssd-chat-{num_domains}", task.fitting, num_domains, clusters=num_domains)
    method = KNN_METHOD if count > 1 else one_set(known.sets[GENERAL])
    found = bench.compare({KNN: method}, task.measured, knows=[known.knows()])
    sizes = [one.num_vectors for one in known.domains]
    return {**found, "sizes": sizes if count > 1 else [sum(sizes)], **known.values}


# ---------------------------------------------------------------------- MATH and its subtopics: table 4, figures 6, 7


def math_units(name: str, measure: Callable[[Workbench, Task, Domains], Values]) -> UnitsOf:
    """Subtopics are the prompts' domains where these name them (algebra, geometry, ...); else K-means finds as many."""

    def units(bench: Workbench) -> list[Unit]:
        count = QUICK_SUBTOPICS if bench.scale.is_quick else NUM_SUBTOPICS
        num_fit = max(MORE * bench.scale.fit_prompts, 2 * MORE * count)
        task = bench.task("math", max(bench.scale.prompts, FEW_PROMPTS * count), num_fit)
        if task is None:
            return missing_units(bench, ["math"])
        count, clusters = (len(by_domain(task.fitting)), 0) if is_labelled(task) else (count, count)
        known = partial(fit, bench, "knn-ssd-math", task.fitting, count, clusters=clusters)
        return [Unit(name, lambda: measure(bench, task, known()))]

    return units


def is_labelled(task: Task) -> bool:
    return len(by_domain(task.fitting)) > 1


def math_stream(bench: Workbench, task: Task, known: Domains) -> Values:
    """Subtopic by subtopic, as the prompts say, else as `knn` sorts them; `ssd-fixed` has the set of the first."""
    prompts = task.measured
    if not is_labelled(task):
        routed = route(bench, known.knows(), prompts)
        prompts = [replace(one, domain=domain) for one, (domain, _) in zip(prompts, routed, strict=True)]
    found = by_domain(prompts)
    order = [one.name for one in known.domains if one.name in found]
    stream = [one for name in order for one in found[name]]
    measured = bench.compare(three_methods(known, order[0]), stream, knows=[known.knows()])
    return {**measured, "subtopics": {name: len(found[name]) for name in order}, **known.values}


def math_vectors(bench: Workbench, task: Task, known: Domains) -> Values:
    """`apart_by_count`: silhouettes of the vectors in each number of clusters."""
    vectors = np.concatenate([one.samples for one in known.domains]).astype(np.float32)
    counts = range(2, min(MAX_COUNT, len(np.unique(vectors, axis=0)) - 1) + 1)
    apart = {str(count): silhouettes(vectors, kmeans(vectors, count).labels).tolist() for count in counts}
    return {**flat_vectors(known.domains), "apart_by_count": apart, "is_labelled": is_labelled(task)}
