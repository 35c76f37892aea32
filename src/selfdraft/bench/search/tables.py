"""Cells that the tables of the search benchmark share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..report import number, times, verdicts

FIGURES: Sequence[tuple[str, str, str]] = (
    ("speed-up", "interval", "interval"),
    ("drafting rounds", "drafting_share", ".0%"),
    ("cost, fit", "cost_by_seconds", ".3f"),
    ("cost, measured", "cost_measured", ".3f"),
    ("accepted", "acceptance_rate", ".1%"),
    ("length", "mean_generated_length", ".2f"),
    ("planning", "planning_share", ".1%"),
    ("recording s", "capture_seconds", ".2f"),
)


def interval(found: Mapping[str, Any]) -> str:
    """`1.20x [1.15, 1.26]`."""
    if found["speedup"] is None:
        return "-"
    return f"{times(found['speedup'])} [{found['low']:.2f}, {found['high']:.2f}]"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Of one way."""
    total = row["total"]
    shown = [interval(row[key]) if form == "interval" else number(total[key], form) for _, key, form in FIGURES]
    return [*shown, verdicts(total)]
