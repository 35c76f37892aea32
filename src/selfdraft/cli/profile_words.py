"""How figures of a profile are written: counts of sub-layers, speed-ups, tables."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import SkipSet


def counts(skip: SkipSet) -> str:
    return f"{len(skip.attention)} attention, {len(skip.mlp)} MLP" if skip else "none: decodes plainly"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = (
        [f"{row[0]:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in (header, *rows)
    )
    return "\n".join("  ".join(line) for line in lines)
