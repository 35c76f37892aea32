"""Tables and charts that experiments share: a row for each arm, its cells by the names of their columns (`CELLS`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...measure.estimate import Estimate
from ...measure.figures import Measured
from ..charts import Bars, Lines, Panel, Panels, Series
from ..tables import CELLS, Table, number
from .claims import SPEEDUP, Side, Units, estimate_of
from .experiment import MEASURED, Found, Plot

CellOf = Callable[[Found, str, str], str]
Column = str | tuple[str, CellOf]
"""One of CELLS by its name; or a heading, and the cell by unit and arm."""
Arms = Mapping[str, str] | Sequence[str]
"""Arms; or arm -> what it is called."""
Domains = Callable[[Found], Mapping[str, str]]
"""Domain -> heading."""
Places = Mapping[tuple[str, str | None], str]
"""Unit and domain -> heading."""
TableOf = Callable[[Found], Table]
Shown = TypeVar("Shown")


def cell(found: Found, unit: str, arm: str, column: Column, domain: str | None = None) -> str:
    """A figure of an arm; `-`: it was not measured."""
    if not isinstance(column, str):
        return column[1](found, unit, arm)
    figures = found.figures(unit, arm, domain)
    return CELLS[column](figures) if figures else "-"


def by_arm(
    columns: Sequence[Column], arms: Arms | None = None, *, first: str = "task", title: str = "", units: Units = None
) -> TableOf:
    """One row per unit and arm that was measured: task, method, cells.

    `arms`: None: all, plain decoding first. `first`: heading of the task's column, "": none.
    """

    def table(found: Found) -> Table:
        rows = [
            [*([found.label(unit)] if first else []), name, *(cell(found, unit, arm, column) for column in columns)]
            for unit in (found.units if units is None else units)
            for arm, name in _named(arms or found.arms(unit)).items()
            if found.figures(unit, arm)
        ]
        return Table(title, [*([first] if first else []), "method", *map(_heading, columns)], rows)

    return table


def by_unit(columns: Sequence[Column], arms: Arms, first: str = "method") -> TableOf:
    """One row per figure and arm that was measured, a column per unit."""

    def places(found: Found) -> Places:
        return {(unit, None): found.label(unit) for unit in found.units if found.measured(unit)}

    return _across(columns, arms, places, first)


def by_domain(columns: Sequence[Column], unit: str, arms: Arms, domains: Domains) -> TableOf:
    """One row per figure and arm, a column per domain of one unit, and one for all of them."""

    def places(found: Found) -> Places:
        named: Places = {(unit, domain): heading for domain, heading in domains(found).items()}
        return {**named, (unit, None): "all"}

    return _across(columns, arms, places)


def _across(columns: Sequence[Column], arms: Arms, places: Callable[[Found], Places], first: str = "method") -> TableOf:
    def name_of(arm: str, column: Column) -> str:
        return f"{arm}, {_heading(column)}" if len(columns) > 1 else arm

    def table(found: Found) -> Table:
        headings = places(found)
        rows = [
            [name_of(name, column), *(cell(found, unit, arm, column, domain) for unit, domain in headings)]
            for column in columns
            for arm, name in _named(arms).items()
            if any(found.figures(unit, arm) for unit, _ in headings)
        ]
        return Table("", [first, *headings.values()], rows)

    return table


def formatted(form: str, value: Callable[[Found, str, str], Estimate | float | None]) -> CellOf:
    def cell(found: Found, unit: str, arm: str) -> str:
        known = value(found, unit, arm)
        return number(known.value if isinstance(known, Estimate) else known, form)

    return cell


def kept(form: str, key: str, *inside: str) -> CellOf:
    """What a unit says of an arm beside its records."""
    return formatted(form, lambda found, unit, arm: found.get(unit, key, arm, *inside))


def _heading(column: Column) -> str:
    return column if isinstance(column, str) else column[0]


def _named(arms: Arms) -> Mapping[str, str]:
    return arms if isinstance(arms, Mapping) else {arm: arm for arm in arms}


# ----------------------------------------------------------------------------------------------------------- charts

ChartOf = Callable[[Found], Plot | None]
ValueOf = Callable[[Found, Side], Estimate | None]


def curves(
    quantities: Sequence[str | tuple[str, ValueOf]],
    sides: Callable[[Found], Mapping[str, Mapping[float, Side]]],
    x_label: str,
    alt: str,
    log: str = "",
) -> ChartOf:
    """A panel for each quantity; in it a line for each name, over x. On a logarithmic axis every x has a tick."""

    def panel(found: Found, label: str, value: ValueOf) -> Lines:
        lines = sides(found)
        known = {name: [(x, value(found, places[x])) for x in sorted(places)] for name, places in lines.items()}
        series = [Series(name, points) for name, points in known.items() if any(y for _, y in points)]
        ticks = {x: f"{x:g}" for places in lines.values() for x in places} if log else None
        return Lines(series, x_label, label, log=log, ticks=ticks, **_look(label))

    known = [one if isinstance(one, tuple) else (one, partial(_value, one)) for one in quantities]
    return lambda found: _plot([panel(found, *one) for one in known], alt) if found.units else None


def _value(quantity: str, found: Found, side: Side) -> Estimate | None:
    return estimate_of(found, quantity, side)


def domain_bars(quantities: Sequence[str], unit: str, arms: Arms, domains: Domains, alt: str) -> ChartOf:
    """A panel for each quantity; in it a bar for each arm in a group for each domain of one unit."""

    def panel(found: Found, quantity: str) -> Bars:
        names, known = domains(found), [arm for arm in arms if found.figures(unit, arm)]
        series = {arm: [estimate_of(found, quantity, Side(unit, arm, name)) for name in names] for arm in known}
        return Bars(list(names.values()), series, quantity, **_look(quantity))

    return lambda found: _plot([panel(found, one) for one in quantities], alt) if found.measured(unit) else None


def _look(quantity: str) -> dict[str, Any]:
    return {"unit": "x", "baseline": 1.0} if quantity == SPEEDUP else {}


def _plot(panels: Sequence[Panel], alt: str) -> Plot:
    return Plot(Panels(panels), alt, (10.0, 4.3) if len(panels) > 1 else (6.4, 4.0))


# ------------------------------------------------------------- parts of what was found alone, several units as one


def of(view: Callable[[Found], Found], *shown: Callable[[Found], Shown]) -> list[Callable[[Found], Shown]]:
    """Tables or claims of what `view` makes of what was found."""

    def bound(one: Callable[[Found], Shown]) -> Callable[[Found], Shown]:
        return lambda found: one(view(found))

    return [bound(one) for one in shown]


def only(found: Found, units: Mapping[str, Mapping[str, Any]]) -> Found:
    return replace(found, units={name: values for name, values in units.items() if values}, _measured={})


def together(found: Found, units: Iterable[str], label: str) -> dict[str, Any]:
    """The values of several units as one; nothing where none was measured.

    A prompt that is in several of them has a run in each, so that intervals count it once.
    """
    numbers: dict[str, int] = {}
    runs: Counter[tuple[str, str]] = Counter()
    records, known = [], [one for unit in units if (one := found.measured(unit))]
    for record in (record for one in known for record in one.records):
        place = numbers.setdefault(record.prompt, len(numbers))
        records.append(replace(record, number=place, run=runs[record.arm, record.prompt]))
        runs[record.arm, record.prompt] += 1
    return {MEASURED: Measured(records, known[0].machine, known[0].seed), "task": label} if known else {}


def any_value(found: Found, name: str) -> Any:
    """What is the same in all units that have it."""
    return next((values[name] for values in found.units.values() if name in values), None)
