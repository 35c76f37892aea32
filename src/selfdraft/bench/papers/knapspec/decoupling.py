"""Attention and MLP skipped one by one, or only together: as KnapSpec plans, and with the best set of either kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....types import SkipSet
from ...report import Table
from ..cells import NOT_MEASURED, figure_cell, is_faster, speed_cell, told
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..tasks import TASKS, Task
from ..workbench import Workbench
from .methods import share_cell
from .shared import (
    PAPER_MODELS,
    References,
    always,
    best_of,
    compare,
    knapspec,
    num_prompts,
    with_references,
)

DECOUPLED, BOUND = "decoupled", "bound"
KINDS: Mapping[str, bool] = {DECOUPLED: False, BOUND: True}
"""Name -> whether sub-layers of a layer are bound to each other."""
TASKS_USED, QUICK_TASKS = ("gsm8k", "cnn-dm"), ("gsm8k",)
BEST, PLANNED = "best set", "planned"


def units(bench: Workbench) -> Iterable[Unit]:
    bench = with_references(bench)
    for name in QUICK_TASKS if bench.scale.is_quick else TASKS_USED:
        yield from bench.for_each([name], lambda task: _best_sets(bench, task), prefix=f"{BEST} ")
        yield from bench.for_each([name], lambda task: _planned(bench, task), prefix=f"{PLANNED} ")


def _best_sets(bench: Workbench, task: Task) -> Values:
    """The set of each kind that promises most on a text which is not measured; it drafts whether it pays or not."""
    references = References(bench, task.learned)
    found = {kind: best_of(references.networks(is_bound=is_bound)) for kind, is_bound in KINDS.items()}
    sets = {kind: one for kind, one in found.items() if one is not None}
    ways = compare(bench, {kind: always(one.skip) for kind, one in sets.items()}, task.measured)
    return {**ways, "sets": {kind: one.to_json() for kind, one in sets.items()}, "task": task.label}


def _planned(bench: Workbench, task: Task) -> Values:
    methods = {kind: knapspec(bench.scale, bound=is_bound) for kind, is_bound in KINDS.items()}
    return {**compare(bench, methods, task.measured), "task": task.label}


# ---------------------------------------------------------------------------------------------------- the table


def show(found: Found) -> Section:
    best, planned, trends = [], [], []
    for name in TASKS_USED:
        title = TASKS[name].title
        best += [_best_row(found, f"{BEST} {name}", kind) for kind in KINDS]
        planned += [_planned_row(found, f"{PLANNED} {name}", kind) for kind in KINDS]
        trends += _trends(found, name, title)
    sets = ["task", "sub-layers", "attention", "MLP", "expected accepted", "drafts", "expected TPT"]
    reached = ["speed-up", "accepted", "TPT"]
    tables = [
        Table("best set", [*sets, *reached], [row for row in best if row]),
        Table("as planned", ["task", "sub-layers", *reached, "in the DP"], [row for row in planned if row]),
    ]
    return Section(
        tables,
        [Effort("models", 1, PAPER_MODELS), Effort("prompts a task", num_prompts(found), None)],
        told(trends),
        [
            "best set: what the knapsack of either kind finds best on a text that is not measured; it always drafts; "
            "expected: on that text, a verification at the cost of its width",
            "as planned: KnapSpec itself, planning included, which is cheaper where sub-layers are bound; it may "
            "choose not to draft, and then both kinds decode plainly",
        ],
    )


def _best_row(found: Found, unit: str, kind: str) -> list[str]:
    one = found.get(unit, "sets", kind)
    if one is None:
        return []
    skip = SkipSet.parse(one["skip"])
    expected = [f"{one['acceptance']:.1%}", f"{one['num_drafted']}", f"{one['tokens_per_time']:.2f}"]
    counts = [f"{len(skip.attention)}", f"{len(skip.mlp)}"]
    return [found.get(unit, "task"), kind, *counts, *expected, *_reached(found, unit, kind)]


def _planned_row(found: Found, unit: str, kind: str) -> list[str]:
    if found.get(unit, kind, "total") is None:
        return []
    return [found.get(unit, "task"), kind, *_reached(found, unit, kind), share_cell(found, unit, kind)]


def _reached(found: Found, unit: str, kind: str) -> list[str]:
    accepted = figure_cell(found, unit, kind, "acceptance_rate", ".1%")
    return [speed_cell(found, unit, kind), accepted, figure_cell(found, unit, kind, "tokens_per_time")]


def _trends(found: Found, name: str, title: str) -> list[Trend]:
    best, planned = f"{BEST} {name}", f"{PLANNED} {name}"
    drafted = [found.get(planned, kind, "total", "acceptance_rate") for kind in KINDS]
    claim = f"KnapSpec is faster where it may take sub-layers one by one, on {title}"
    as_planned = is_faster(claim, found, (planned, DECOUPLED), (planned, BOUND))
    if drafted == [None, None] and as_planned.because != NOT_MEASURED:
        as_planned = Trend(claim, None, f"neither drafts: {as_planned.because}")
    return [
        is_faster(f"the best set of single sub-layers is faster on {title}", found, (best, DECOUPLED), (best, BOUND)),
        as_planned,
    ]
