"""Each paper's own method on each task of its main tables: published, measured before, measured now, and the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..tables import CELLS, Table, times
from .experiment import Found, Recipe
from .recipes import PublishedTable

BEFORE = 4
"""The column."""
SPEEDS = ("speed-up", "expected speed-up")
"""How papers call the column, where it is none for each task."""


def headlines(recipe: Recipe, table: PublishedTable, now: Found, before: Found | None) -> Iterator[list[str]]:
    """A row for each of the recipe's own arms that was measured."""
    for unit in now.units:
        label = now.label(unit)
        oracle = now.figures(unit, recipe.oracle) if recipe.oracle else None
        for arm in recipe.own:
            if (figures := now.figures(unit, arm)) is None:
                continue
            earlier = before.figures(unit, arm) if before else None
            bound = CELLS["x"](oracle) if oracle else times(figures.ideal_speedup)
            told = [CELLS["speed-up"](one) if one else "-" for one in (earlier, figures)]
            yield [recipe.name, label, arm, published_speed(table, label, arm), *told, bound]


def published_speed(table: PublishedTable, label: str, arm: str) -> str:
    """What the paper has for this method on this task; `a / b`: of one model and of another."""
    if not table.rows:
        return "-"
    folded, _ = table.folded()
    names = {arm, arm.split(",")[0], label, label.split(" (")[0], *label.split(", ")}
    columns = [name for name in folded.header[table.num_keys :] if name in (*names, *SPEEDS)]
    for row in folded.rows:
        if columns and names.issuperset(row[: table.num_keys]):
            return str(row[list(folded.header).index(columns[0])])
    return "-"


def headline_table(rows: Sequence[list[str]], commits: str) -> Table:
    """`commits`: of what was measured before, if anything."""
    header = ["paper", "task", "method", "published", f"before ({commits})", "now", "bound"]
    if commits:
        return Table("", header, rows)
    header[BEFORE + 1] = "ours"
    shown = [row[:BEFORE] + row[BEFORE + 1 :] for row in (header, *rows)]
    return Table("", shown[0], shown[1:])
