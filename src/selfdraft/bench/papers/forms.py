"""Tables that experiments share: a row for each arm, its cells by the names of their columns (`tables.CELLS`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..tables import CELLS, Table
from .experiment import Found

CellOf = Callable[[Found, str, str], str]
Column = str | tuple[str, CellOf]
"""One of CELLS by its name; or a heading, and the cell by unit and arm."""
TableOf = Callable[[Found], Table]


def cell(found: Found, unit: str, arm: str, column: Column, domain: str | None = None) -> str:
    """A figure of an arm; `-`: it was not measured."""
    if not isinstance(column, str):
        return column[1](found, unit, arm)
    figures = found.figures(unit, arm, domain)
    return CELLS[column](figures) if figures else "-"


def by_arm(
    columns: Sequence[Column],
    arms: Mapping[str, str] | None = None,
    *,
    first: str = "task",
    title: str = "",
    units: Sequence[str] | None = None,
) -> TableOf:
    """One row per unit and arm that was measured: task, method, cells.

    `arms`: arm -> what it is called; None: all, plain decoding first. `first`: heading of the task's column, "": none.
    """

    def table(found: Found) -> Table:
        rows = [
            [*([found.label(unit)] if first else []), name, *(cell(found, unit, arm, column) for column in columns)]
            for unit in (found.units if units is None else units)
            for arm, name in (arms or {arm: arm for arm in found.arms(unit)}).items()
            if found.figures(unit, arm)
        ]
        return Table(title, [*([first] if first else []), "method", *map(_heading, columns)], rows)

    return table


def by_unit(
    column: Column,
    arms: Mapping[str, str],
    *,
    first: str = "method",
    title: str = "",
    units: Sequence[str] | None = None,
) -> TableOf:
    """One row per arm that was measured, a column per unit."""

    def table(found: Found) -> Table:
        names = [unit for unit in (found.units if units is None else units) if found.measured(unit)]
        rows = [
            [name, *(cell(found, unit, arm, column) for unit in names)]
            for arm, name in arms.items()
            if any(found.figures(unit, arm) for unit in names)
        ]
        return Table(title, [first, *map(found.label, names)], rows)

    return table


def by_domain(
    column: Column,
    unit: str,
    arms: Mapping[str, str],
    domains: Callable[[Found], Mapping[str, str]],
    *,
    first: str = "method",
    title: str = "",
) -> TableOf:
    """One row per arm, a column per domain of one unit (`domains`: domain -> heading), and one for all of them."""

    def table(found: Found) -> Table:
        headings = domains(found)
        rows = [
            [name, *(cell(found, unit, arm, column, domain) for domain in (*headings, None))]
            for arm, name in arms.items()
            if found.figures(unit, arm)
        ]
        return Table(title, [first, *headings.values(), "all"], rows)

    return table


def _heading(column: Column) -> str:
    return column if isinstance(column, str) else column[0]
