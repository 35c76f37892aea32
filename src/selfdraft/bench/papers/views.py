"""Other views of what was found: several units as one, and bars by the domains of a unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...measure.estimate import Estimate
from ...measure.figures import Measured
from ..charts import Bars, Panels
from .claims import Side, estimate_of, speedup
from .experiment import MEASURED, Found, Plot

Shown = TypeVar("Shown")
Parts = Callable[[Found], Mapping[str, str]]
"""Domains of a unit -> what they are called."""


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


def bars(
    alt: str, unit: str, parts: Parts, quantities: Sequence[str], arms: Sequence[str], x_label: str = "task"
) -> Callable[[Found], Plot | None]:
    """A panel for each quantity ("speed-up", "M", "alpha"), bars of the arms by domain."""

    def panel(found: Found, quantity: str) -> Bars:
        def value(side: Side) -> Estimate | None:
            return speedup(found, side) if quantity == "speed-up" else estimate_of(found, quantity, side)

        series = {arm: [value(Side(unit, arm, part)) for part in parts(found)] for arm in arms}
        shape: dict[str, Any] = {"unit": "x", "baseline": 1.0} if quantity == "speed-up" else {}
        return Bars(list(parts(found).values()), series, y_label=quantity, x_label=x_label, **shape)

    return lambda found: stacked([panel(found, one) for one in quantities], alt) if parts(found) else None


def stacked(panels: Sequence[Bars], alt: str) -> Plot:
    """One above the other."""
    return Plot(Panels(panels, columns=1, share_x=True), alt, (8.0, 1.0 + 3.0 * len(panels)))
