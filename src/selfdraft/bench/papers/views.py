"""Other views of what was found: parts of it alone, several units as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ...measure.figures import Measured
from .experiment import MEASURED, Found

Shown = TypeVar("Shown")


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
