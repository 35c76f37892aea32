"""Tables and charts that experiments share: a row for each arm, its cells by the names of their columns (`CELLS`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...measure.estimate import Estimate
from ..charts import Bars, Lines, Panel, Panels, Series
from ..tables import CELLS, Table
from .claims import Side, estimate_of, speedup
from .experiment import Found, Plot

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


# ----------------------------------------------------------------------------------------------------------- charts

SPEEDUP = "speed-up"
ChartOf = Callable[[Found], Plot | None]


def value_of(found: Found, quantity: str, side: Side) -> Estimate | None:
    """A speed-up, or one of `claims.QUANTITIES`."""
    return speedup(found, side) if quantity == SPEEDUP else estimate_of(found, quantity, side)


def curves(
    quantities: Sequence[str], sides: Callable[[Found], Mapping[str, Mapping[float, Side]]], x_label: str, alt: str
) -> ChartOf:
    """A panel for each quantity; in it a line for each name, over x."""

    def panel(found: Found, quantity: str) -> Lines:
        series = [
            Series(name, [(x, value_of(found, quantity, side)) for x, side in sorted(places.items())])
            for name, places in sides(found).items()
        ]
        return Lines(series, x_label, quantity, **_look(quantity))

    return lambda found: _plot([panel(found, quantity) for quantity in quantities], alt) if found.units else None


def domain_bars(
    quantities: Sequence[str], unit: str, arms: Sequence[str], domains: Callable[[Found], Mapping[str, str]], alt: str
) -> ChartOf:
    """A panel for each quantity; in it a bar for each arm in a group for each domain of one unit."""

    def panel(found: Found, quantity: str) -> Bars:
        names, known = domains(found), [arm for arm in arms if found.figures(unit, arm)]
        series = {arm: [value_of(found, quantity, Side(unit, arm, name)) for name in names] for arm in known}
        return Bars(list(names.values()), series, quantity, **_look(quantity))

    return lambda found: _plot([panel(found, one) for one in quantities], alt) if found.measured(unit) else None


def _look(quantity: str) -> dict[str, Any]:
    return {"unit": "x", "baseline": 1.0} if quantity == SPEEDUP else {}


def _plot(panels: Sequence[Panel], alt: str) -> Plot:
    return Plot(Panels(panels), alt, (10.0, 4.3) if len(panels) > 1 else (6.4, 4.0))
