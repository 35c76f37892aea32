"""What domains are told apart by and what they need: the sets on each other's tasks (figure 2), vectors (figure 5)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....calibrate.kit import ScoredTexts
from ....calibrate.texts import Told, write
from ....strategies.anchors import Domain
from ....strategies.kmeans import silhouette
from ...charts import Bars, Group, Scatter, plane
from ...prompts import BenchPrompt
from ...report import Table, number, times
from ...search import routing
from ...search.learning import as_calibration
from ...search.names import one_set
from ...search.sets import overlaps
from ..cells import TOTAL, figure, from_enough, is_faster, is_larger, speed, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values, bars_plot
from ..tasks import Task
from ..workbench import Workbench
from .judged import middle
from .lessons import (
    PAPER_VECTORS,
    TASKS,
    Taught,
    any_value,
    efforts,
    knows,
    missing_units,
    num_looked_at,
    route,
    set_notes,
    tasks_of,
    taught,
    too_few_tasks,
)

SETS, VECTORS = "sets", "vectors"
USUAL_LENGTH = 512
LENGTHS = {128: 0.025, 512: 0.0077, 1024: 0.0041}
"""New tokens -> the share of the time that the paper's decision takes."""

# ----------------------------------------------------------------------------------------------------------- figure 2


def matrix_units(bench: Workbench) -> Iterator[Unit]:
    """The set of each task on every task."""
    yield from missing_units(bench)
    if reason := too_few_tasks(bench):
        yield Unit(SETS, missing=reason)
        return
    yield Unit(SETS, lambda: _sets(bench))
    for task in tasks_of(bench, TASKS):
        yield Unit(task.name, partial(_on_task, bench, task))


def _sets(bench: Workbench) -> Values:
    known = taught(bench)
    sets = list(known.sets.values())
    figures = {one.domain: one.figures() for one in (*sets, known.general)}
    return {"figures": figures, "overlaps": overlaps(sets), **known.figures()}


def _on_task(bench: Workbench, task: Task) -> Values:
    """Sets that are the same are measured once; `match`: how often each meets the target's choice, given the text."""
    known = taught(bench)
    skips = {name: str(one.skip) for name, one in known.sets.items()}
    found = bench.compare({skip: one_set(skip) for skip in skips.values() if skip}, task.measured)
    ways = {name: found[skip] for name, skip in skips.items() if skip}
    return {**ways, "match": _matches(bench, known, task.measured), "label": task.label, **known.figures()}


def _matches(bench: Workbench, known: Taught, prompts: Sequence[BenchPrompt]) -> dict[str, float | None]:
    untold = Told(lambda done, total, label: None, 0, 0, "")
    texts = list(write(bench.engine, as_calibration(prompts, bench.engine), bench.scale.tokens, untold))
    looks = ScoredTexts(bench.engine.runner, [text for text in texts if text.num_generated])
    return {name: looks.match(one.skip) if looks.texts and one.skip else None for name, one in known.sets.items()}


def show_matrix(found: Found) -> Section:
    tasks = {name: found.units[name]["label"] for name in TASKS if name in found.units}
    sets = [name for name in (any_value(found, "sets") or {}) if name in TASKS]
    speeds = {name: [_value(speed(found, task, name)) for task in tasks] for name in sets}
    matches = {name: [found.get(task, "match", name) for task in tasks] for name in sets}
    header = ["set of", *tasks.values()]
    tables = [
        Table("speed-up", header, [[name, *map(times, values)] for name, values in speeds.items()]),
        Table(
            "share of the target's choices met",
            header,
            [[name, *(number(value, ".3f") for value in values)] for name, values in matches.items()],
        ),
    ]
    panels = [
        Bars(list(tasks.values()), {f"set of {name}": row for name, row in rows.items()}, label, "task")
        for label, rows in (("speed-up", speeds), ("choices met", matches))
    ]
    alt = "the set of each task on every task: speed-up, and the share of the target's choices that it meets"
    plot = bars_plot(panels, alt)
    trends = [_own_meets_more(found, tasks, matches), _own_is_faster(found, list(tasks), sets)]
    tables = [*(tables if tasks else []), *_sets_table(found)]
    return Section(tables, efforts(found), told(trends), set_notes(found), plot)


def _own_meets_more(found: Found, tasks: Mapping[str, str], rows: Mapping[str, Sequence[float | None]]) -> Trend:
    """By the means over all tasks: of own sets, and of the others there. A task counts that has both."""
    own: list[float] = []
    others: list[float] = []
    for place, task in enumerate(tasks):
        value = rows[task][place] if task in rows else None
        known = [row[place] for name, row in rows.items() if name != task]
        rest = [one for one in known if one is not None]
        if value is not None and rest:
            own.append(value)
            others.append(statistics.fmean(rest))
    means = [statistics.fmean(values) if values else None for values in (own, others)]
    claim = "a task's own set meets more of the target's choices than the others'"
    num_prompts = sum(figure(found, task, task, "num_prompts") or 0 for task in tasks)
    return from_enough(is_larger(claim, ("own", means[0]), ("others", means[1])), num_prompts)


def _own_is_faster(found: Found, tasks: Sequence[str], sets: Sequence[str]) -> Trend:
    """As above, by intervals."""
    pairs = [(task, name) for task in tasks if speed(found, task, task) for name in sets if speed(found, task, name)]
    groups = {"own": [pair for pair in pairs if len(set(pair)) == 1], "others": [p for p in pairs if len(set(p)) == 2]}
    whole = {
        name: {
            TOTAL: {
                "speedup": middle([one for pair in group if (one := speed(found, *pair))]),
                "num_prompts": min((figure(found, *pair, "num_prompts") or 0 for pair in group), default=0),
            }
        }
        for name, group in groups.items()
    }
    return is_faster(
        "a task's own set is faster than the others'", Found({TOTAL: whole}), (TOTAL, "own"), (TOTAL, "others")
    )


def _sets_table(found: Found) -> Iterator[Table]:
    figures, shared = found.get(SETS, "figures"), found.get(SETS, "overlaps")
    if not figures:
        return
    rows = [
        [
            name,
            str(one["attention"]),
            str(one["mlp"]),
            number(one["match"], ".3f"),
            *(number(shared.get(name, {}).get(other), ".2f") for other in shared),
            one["skip"] or "nothing",
        ]
        for name, one in figures.items()
    ]
    header = ["set of", "attention", "MLP", "match", *(f"as {name}" for name in shared), "sub-layers skipped"]
    yield Table("sets, and what two of them skip both of all that either skips", header, rows)


def _value(known: Mapping[str, float] | None) -> float | None:
    return known["value"] if known else None


# ----------------------------------------------------------------------------------------------------------- figure 5


def vector_units(bench: Workbench) -> Iterator[Unit]:
    yield from missing_units(bench)
    reason = too_few_tasks(bench)
    yield Unit(VECTORS, missing=reason) if reason else Unit(VECTORS, lambda: _vectors(bench))


def _vectors(bench: Workbench) -> Values:
    """Vectors that were learned from, and where prompts that were not are sent."""
    known = taught(bench)
    tasks = tasks_of(bench, TASKS, num_looked_at(bench))
    found = route(bench, knows(known), [one for task in tasks for one in task.measured])
    thresholds = {one.name: one.threshold for one in known.domains}
    strangers = [one.similarity is None or one.similarity < thresholds[one.route] for one in found]
    return {
        **flat_vectors(known.domains),
        "routing": routing.figures(found, [task.name for task in tasks]),
        "strangers": sum(strangers) / len(strangers),
        "token_seconds": bench.latency.plain.at(USUAL_LENGTH),
        "labels": {task.name: task.label for task in tasks},
        **known.figures(),
    }


def flat_vectors(domains: Sequence[Domain]) -> dict[str, Any]:
    """For a picture; `silhouette`: 1: domains stand apart, 0: they do not."""
    vectors = np.concatenate([one.samples for one in domains]).astype(np.float32)
    owners = [one.name for one in domains for _ in one.samples]
    labels = np.array([place for place, one in enumerate(domains) for _ in one.samples], dtype=np.int64)
    flat = plane(vectors)
    return {
        "points": {
            one.name: [
                [round(float(value), 5) for value in point]
                for point, owner in zip(flat.points, owners, strict=True)
                if owner == one.name
            ]
            for one in domains
        },
        "explained": sum(flat.shares),
        "silhouette": silhouette(vectors, labels) if len(domains) > 1 else None,
    }


def vectors_plot(points: Mapping[str, Sequence[Sequence[float]]], labels: Mapping[str, str], alt: str) -> Plot | None:
    groups = [Group(labels.get(name, name), [(x, y) for x, y in some]) for name, some in points.items()]
    chart = Scatter(groups, "first principal component", "second principal component")
    return Plot(chart, alt) if points else None


def mean_count(groups: Mapping[str, Sequence[Any]]) -> float:
    return round(sum(map(len, groups.values())) / len(groups), 1)


def show_vectors(found: Found) -> Section:
    values = found.units.get(VECTORS)
    if values is None:
        return Section([])
    labels, routed = values["labels"], values["routing"]
    own = routed["own"]
    rows = [
        [label, *(str(own["confusion"].get(name, {}).get(other, 0)) for other in labels)]
        for name, label in labels.items()
        if name in own["confusion"]
    ]
    decision, token = routed["seconds"]["median"], values["token_seconds"]
    shares = {length: _share(decision, token * length) for length in LENGTHS}
    overhead = [
        [str(length), number(None if decision is None else 1000 * decision, ".2f"), number(share, ".3%")]
        for length, share in shares.items()
    ]
    trends = [Trend("every prompt is sent to its own domain", own["accuracy"] == 1.0, f"{own['accuracy']:.1%} are")]
    known = [(length, share) for length, share in shares.items() if share is not None]
    if known:
        because = ", ".join(f"{share:.3%} of {length} tokens" for length, share in known)
        holds = all(share <= LENGTHS[length] for length, share in known)
        trends.append(Trend("deciding takes no larger part of the time than the paper's", holds, because))
    count = mean_count(values["points"])
    return Section(
        [
            Table("where prompts are sent", ["prompts of", *labels], rows),
            Table("what deciding takes", ["new tokens", "decision (ms)", "share of the time"], overhead),
        ],
        [Effort("vectors a domain", count, PAPER_VECTORS), Effort("prompts sent", own["num_prompts"], None)],
        trends,
        _vector_notes(values),
        vectors_plot(values["points"], labels, "vectors of prompts by domain, first two principal components"),
    )


def _share(part: float | None, rest: float) -> float | None:
    return None if part is None or not part + rest else part / (part + rest)


def _vector_notes(values: Values) -> list[str]:
    return [
        f"the picture shows the first two principal components ({values['explained']:.0%} of the spread), the paper's "
        f"t-SNE; silhouette of the domains {number(values['silhouette'], '.2f')} (1: apart, 0: not)",
        "a prompt's vector is the mean over its tokens, as in the paper's code; the paper says the last one",
        "the vector comes with the prefill: the decision is what it costs more; the rest of the time is that of plain "
        f"tokens behind {USUAL_LENGTH} others",
        f"with our thresholds {values['strangers']:.0%} of these prompts would be strangers and get the general set",
    ]
