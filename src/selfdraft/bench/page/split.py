"""Where decoding spends its time: a bar of parts for each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..harness.rows import Row
from ..harness.table import PARTS
from .chart import Chart, Missing, Theme, short
from .result import Result

TITLE = "Where the time goes"
_LEAST_NAMED = 0.045
"""A smaller share has no room for its number."""


def chart(result: Result) -> Chart | Missing:
    rows = [row for row in result.rows if None not in row["total"]["split"].values()]
    if not rows:
        return Missing(TITLE, "no way says how its time is spent; of peers only whole calls are known")
    shares = "; ".join(f"{row['name']} {_told(row)}" for row in rows)
    return Chart(
        title=TITLE,
        text="Shares of decoding, fastest way first. Optimise: searching and planning what to skip; other: what stands "
        "between the passes.",
        alt=f"Bars of the time spent: {shares}.",
        size=(9.6, 1.1 + 0.27 * len(rows)),
        draw=lambda figure, theme: _draw(figure, theme, rows),
    )


def _told(row: Row) -> str:
    return ", ".join(f"{part} {row['total']['split'][part]:.0%}" for part in PARTS)


def _draw(figure: Any, theme: Theme, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    lefts = [0.0] * len(rows)
    for part in PARTS:
        shares = [max(0.0, row["total"]["split"][part]) for row in rows]
        axes.barh(range(len(rows)), shares, 0.74, left=lefts, color=theme.parts[part], label=part)
        for place, (left, share) in enumerate(zip(lefts, shares, strict=True)):
            if share >= _LEAST_NAMED:
                ink = ink_on(theme.parts[part])
                axes.text(left + share / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=8, color=ink)
        lefts = [left + share for left, share in zip(lefts, shares, strict=True)]
    axes.set_yticks(range(len(rows)), [short(row["name"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(1.0, *lefts))
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside upper left", ncols=len(PARTS), fontsize=9)


def ink_on(color: str) -> str:
    """Black or white, whichever is easier to read on it."""
    from matplotlib.colors import to_rgb

    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
    return "black" if luminance > 0.179 else "white"
