"""One data set with several kinds of problem, MATH: table 4, figures 6 and 7.

Where the prompts' domains name the kinds (algebra, geometry, ...) these are learned; else K-means finds as many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ....strategies.kmeans import choose_count
from ...charts import Bars
from ...prompts import by_domain
from ...report import Table, number
from ...search.names import GENERAL, KNN
from ..cells import FEW_PROMPTS, TOTAL, figure, from_enough, is_faster, pays, speed, speed_cell, told
from ..recipe import Effort, Found, Section, Trend, Unit, Values, bars_plot
from ..tasks import Task, Tasks
from ..workbench import Workbench
from .domains import flat_vectors, mean_count, vectors_plot
from .judged import of_part, together
from .lessons import (
    COUNTED,
    FIXED,
    MORE,
    OFF,
    WAYS,
    Taught,
    counted,
    efforts,
    knows,
    missing_units,
    route,
    set_notes,
    teach,
    ways,
)

TASK, STREAM, VECTORS = "math", "MATH stream", "MATH vectors"
NUM_KINDS, QUICK_KINDS = 7, 3
PAPER_VECTORS = 100
NO_STRUCTURE = 0.25
"""Groups whose silhouette is no larger do not stand apart, by the usual reading."""


def _num_kinds(bench: Workbench) -> int:
    return QUICK_KINDS if bench.scale.is_quick else NUM_KINDS


def _task(bench: Workbench) -> Task | None:
    """Some prompts of each kind."""
    scale, count = bench.scale, _num_kinds(bench)
    num_learned = max(MORE * scale.learned_prompts, 4 * count)
    return Tasks(bench.prompts, max(scale.prompts, FEW_PROMPTS * count), num_learned, bench.seed).find(TASK)


def _taught(bench: Workbench, task: Task) -> Taught:
    if _is_labelled(task):
        return teach(bench, "knn-ssd-math", task.learned, len(by_domain(task.learned)))
    return teach(bench, "knn-ssd-math", task.learned, _num_kinds(bench), clusters=_num_kinds(bench))


def _is_labelled(task: Task) -> bool:
    return len(by_domain(task.learned)) > 1


def stream_units(bench: Workbench) -> Iterator[Unit]:
    yield from missing_units(bench, [TASK])
    if task := _task(bench):
        yield Unit(STREAM, partial(_stream, bench, task))


def _stream(bench: Workbench, task: Task) -> Values:
    """Kind by kind, as the prompts say, else as `knn` sorts them; `ssd-fixed` has the set of the first."""
    known = _taught(bench, task)
    learned = knows(known)
    kinds = by_domain(task.measured)
    if not _is_labelled(task):
        routed = route(bench, learned, task.measured)
        kinds = by_domain(replace(one, domain=to.route) for one, to in zip(task.measured, routed, strict=True))
    order = [name for name in known.sets if name in kinds]
    prompts = [one for name in order for one in kinds[name]]
    found = bench.compare(ways(known, order[0]), prompts, knows=[learned])
    return {**found, "kinds": {name: len(kinds[name]) for name in order}, **known.figures()}


def show_stream(found: Found) -> Section:
    """Table 4."""
    if STREAM not in found.units:
        return Section([])
    rows = [[way, *counted(found, STREAM, way)] for way in (OFF, *WAYS)]
    others = [way for way in WAYS if way != KNN]
    trends = [
        *(is_faster(f"knn is faster than {way}", found, (STREAM, KNN), (STREAM, way)) for way in others),
        pays("knn is faster than plain decoding", found, STREAM, KNN),
    ]
    table = Table("MATH", ["method", *COUNTED], rows)
    return Section([table], _efforts(found), told(trends), set_notes(found))


def show_kinds(found: Found) -> Section:
    """Figure 7."""
    kinds: dict[str, int] = found.get(STREAM, "kinds") or {}
    if not kinds:
        return Section([])
    rows = [[way, *(speed_cell(found, STREAM, way, name) for name in [*kinds, TOTAL])] for way in WAYS]
    speeds = {way: [_value(found, way, name) for name in kinds] for way in WAYS}
    header = ["method", *(f"{name} ({count})" for name, count in kinds.items()), "all"]
    trends = []
    if len(kinds) > 1:
        (first, *others), by_kind = kinds, of_part(found, STREAM, list(kinds))
        both = Found({**by_kind.units, "others": together(by_kind, others, [FIXED]).units[TOTAL]})
        claim = "ssd-fixed is faster on the first kind than on the others"
        trends = [is_faster(claim, both, (first, FIXED), ("others", FIXED))]
    return Section(
        [Table("speed-up, kind by kind", header, rows)],
        _efforts(found),
        told(trends),
        [*_without_prompts(found, kinds), *set_notes(found)],
        bars_plot([Bars(list(kinds), speeds, "speed-up", "kind")], "speed-ups on MATH, kind by kind"),
    )


def _without_prompts(found: Found, kinds: Collection[str]) -> Iterator[str]:
    """Kinds that were learned, and that nothing measured is of."""
    learned = found.get(STREAM, "sets") or {}
    if empty := [name for name in learned if name not in kinds and name != GENERAL]:
        yield f"learned but without a measured prompt, and so without a column: {', '.join(empty)}"


def _efforts(found: Found) -> list[Effort]:
    return efforts(found, Effort("prompts", figure(found, STREAM, OFF, "num_prompts"), None))


def _value(found: Found, way: str, kind: str) -> float | None:
    known = speed(found, STREAM, way, kind)
    return known["value"] if known else None


# ----------------------------------------------------------------------------------------------------------- figure 6


def vector_units(bench: Workbench) -> Iterator[Unit]:
    yield from missing_units(bench, [TASK])
    if task := _task(bench):
        yield Unit(VECTORS, partial(_vectors, bench, task))


def _vectors(bench: Workbench, task: Task) -> Values:
    """`best_count`: the number of clusters that stand apart most clearly."""
    known = _taught(bench, task)
    samples = np.concatenate([one.samples for one in known.domains]).astype(np.float32)
    return {
        **flat_vectors(known.domains),
        "best_count": choose_count(samples),
        "is_labelled": _is_labelled(task),
    }


def show_vectors(found: Found) -> Section:
    values = found.units.get(VECTORS)
    if values is None:
        return Section([])
    points, is_labelled = values["points"], values["is_labelled"]
    silhouette = number(values["silhouette"], ".2f")
    because = f"they stand apart most clearly as {values['best_count']}"
    count = sum(map(len, points.values()))
    groups = Trend(f"vectors fall into {NUM_KINDS} groups", values["best_count"] == NUM_KINDS, because)
    trends = [from_enough(groups, count // NUM_KINDS)]
    kinds = "each kind of problem is a group of its own"
    if is_labelled:
        holds = None if values["silhouette"] is None else values["silhouette"] > NO_STRUCTURE
        trends.append(Trend(kinds, holds, f"silhouette of the kinds {silhouette}"))
    else:
        trends.append(Trend(kinds, None, "the prompts do not say of which kind they are: K-means sorted them"))
    rows = [[name, str(len(found_points))] for name, found_points in points.items()]
    return Section(
        [Table("vectors", ["kind" if is_labelled else "cluster", "prompts"], rows)],
        [Effort("vectors a kind", mean_count(points), PAPER_VECTORS)],
        trends,
        [
            f"the picture shows the first two principal components ({values['explained']:.0%} of the spread), the "
            f"paper's t-SNE; silhouette {silhouette} (1: apart, 0: not)"
        ],
        vectors_plot(points, {}, "vectors of MATH prompts by kind, first two principal components"),
    )
