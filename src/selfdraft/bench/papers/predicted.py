"""Predicted: the speed-up that a paper's published acceptance would bring with the costs of our passes at its size.

What was published is read from published/*.json. A row needs M, alpha and the share r of the sub-layers skipped; what
a paper does not publish is not made up: `LEFT_OUT` says what that leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...economics import LatencyFit, PassCosts
from ...strategies.uniform import spread
from ...types import SkipSet
from ..tables import Table, times
from .recipes import PublishedTable, published

SHAPES = {
    "Llama-2-13B": "llama-2-13b",
    "Llama-2-13B-Chat": "llama-2-13b",
    "CodeLlama-13B": "llama-2-13b",  # but for 16 more tokens in its vocabulary
    "CodeLlama-34B": "codellama-34b",
    "Llama-2-70B": "llama-2-70b",
}
"""A paper's model -> the shape that is timed for it."""
WIDEST = 32


@dataclass(frozen=True)
class Reading:
    """How a published table is read. What its columns do not say stands in the paper elsewhere: `ratio_source`."""

    paper: str
    table: str
    model: str = ""
    ratios: Mapping[str, float] = field(default_factory=dict)  # model -> r
    ratio_source: str = ""
    methods: tuple[str, ...] = ()  # none: all
    tasks: tuple[str, ...] = ()  # where each has columns of its own: "TASK M", then alpha
    speeds: str = ""  # the table that has their speed-ups


_SWIFT_RATIOS = {
    **dict.fromkeys(("Llama-2-13B", "Llama-2-13B-Chat", "CodeLlama-13B"), 0.45),
    **dict.fromkeys(("CodeLlama-34B", "Llama-2-70B"), 0.5),
}
_KNN_RATIOS = {"Llama-2-13B": 0.45}
_SWIFT_SOURCE, _KNN_SOURCE = "appendix B.2", "appendix C.2, its example for this model"
_TASKS = ("CNN/DM", "GSM8K", "TinyStories")
READINGS = (
    Reading("swift", "table-4", "", _SWIFT_RATIOS, _SWIFT_SOURCE, tasks=_TASKS, speeds="table-2"),
    Reading("swift", "table-3", "", _SWIFT_RATIOS, _SWIFT_SOURCE),
    Reading("swift", "table-10", "Llama-2-13B"),
    Reading("swift", "table-12", "Llama-2-13B"),
    Reading("knn-ssd", "table-3", "", _KNN_RATIOS, _KNN_SOURCE, methods=("knn",)),
    Reading("knn-ssd", "table-4", "Llama-2-13B", _KNN_RATIOS, _KNN_SOURCE, methods=("knn",)),
)
LEFT_OUT = (
    "KNN-SSD on Llama-2-13B-Chat and Qwen-2.5-14B, and its Self-SD baselines: no share of skipped layers is published",
    "KnapSpec: neither M nor the share of skipped layers stands in the summary that its numbers are from",
    "Draft on the Fly: neither M nor alpha is published",
    "DISCO: it drafts with another model, and neither M nor alpha is published",
)


class PublishedRun(NamedTuple):
    """One method of a paper on one task."""

    source: str
    model: str
    task: str
    method: str
    ratio: float
    ratio_source: str
    length: float  # M
    acceptance: float  # alpha
    speedup: str


def speedup(costs: PassCosts, skip: SkipSet, length: float, acceptance: float, width: int | None = None) -> float:
    """Tokens a round over (draft passes x their cost + a verification), against plain decoding.

    `width`: of the verification, where it is not the drafted tokens and one more.
    """
    num_drafts = (length - 1) / acceptance
    verification = costs.verify(width or 1 + math.ceil(num_drafts))
    return length * costs.plain / (num_drafts * costs.draft(skip) + verification)


def published_runs() -> Iterator[PublishedRun]:
    for reading in READINGS:
        paper = published(reading.paper).tables
        yield from _runs(reading, paper[reading.table], paper.get(reading.speeds))


def _runs(reading: Reading, table: PublishedTable, speeds: PublishedTable | None) -> Iterator[PublishedRun]:
    columns = list(table.columns)
    for row in table.rows:
        cells: dict[str, Any] = dict(zip(columns, row, strict=True))
        model, method = cells.get("model", reading.model), cells["method"]
        ratio = cells.get("r", reading.ratios.get(model))
        if ratio is None or (reading.methods and method not in reading.methods):
            continue
        for task in reading.tasks or (cells.get("task", ""),):
            place = columns.index(f"{task} M" if reading.tasks else "M")
            length, acceptance, gained = row[place], row[place + 1], cells.get("speed-up")
            if speeds is not None:
                (same,) = (one for one in speeds.rows if list(one[:2]) == [model, method])
                gained = same[list(speeds.columns).index(task)]
            if acceptance is not None:  # plain decoding has none
                named = f"{reading.paper} {', '.join(one.source for one in (table, speeds) if one)}"
                numbers = (float(ratio), reading.ratio_source, float(length or 0), float(acceptance))
                yield PublishedRun(named, str(model), str(task), str(method), *numbers, str(gained))


def predictions(figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """`figures`: of shapes by name, as `bench passes` keeps them. A row for each published run at their sizes."""
    rows = []
    for run in published_runs():
        if found := figures.get(SHAPES[run.model]):
            fit = LatencyFit.from_json(found["latency"], found["latency"]["num_layers"])
            costs, layers = fit.at(found["context"]), spread(fit.num_layers, run.ratio)
            skip = SkipSet.of(layers, layers)
            predicted = (speedup(costs, skip, run.length, run.acceptance, width) for width in (None, WIDEST))
            where = f" ({run.ratio_source})" if run.ratio_source else ""
            numbers = (f"{run.ratio:.2f}{where}", f"{run.length:.2f}", f"{run.acceptance:.2f}")
            c = f"{costs.draft(skip) / costs.plain:.2f}"
            rows.append([run.source, run.model, run.task, run.method, *numbers, run.speedup, c, *map(times, predicted)])
    header = ["published in", "model", "task", "method", "r", "M", "alpha", "published", "c", "predicted", "32 wide"]
    return Table("predicted", header, rows)
