"""How the figures of SWIFT are drawn. Needs matplotlib, where it is drawn at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...page.chart import BLUE, GREEN, MARKERS, ORANGE, PINK, RED, SKY
from .figures_common import OURS
from .methods import SELF_SD, SWIFT

SERIES = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
PART_COLORS = {"optimise": ORANGE, "draft": BLUE, "verify": GREEN, "other": "#C3C9CF"}
OWN_COLORS = {SWIFT: BLUE, OURS: GREEN, SELF_SD: RED}
"""The same in every figure."""
Point = tuple[float, float]


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)


def color_of(name: str, place: int) -> str:
    return OWN_COLORS.get(name, SERIES[place % len(SERIES)])


def add_legend(axes: Any, num_columns: int = 2) -> None:
    """Above the panel, where nothing is drawn."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, ncols=num_columns, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def in_two_lines(label: str) -> str:
    """What stands in for a task below its name: there is little room side by side."""
    return label.replace(" (", "\n(")


def draw_lines(axes: Any, lines: Mapping[str, Iterable[Point]], x_label: str, y_label: str) -> None:
    """One for each name."""
    for place, (name, points) in enumerate(lines.items()):
        known = sorted(points)
        if known:
            style = {"color": color_of(name, place), "marker": MARKERS[place % len(MARKERS)], "markersize": 5}
            axes.plot(*zip(*known, strict=True), linewidth=1.8, label=name, **style)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    tidy(axes)
    add_legend(axes)


def draw_plain(axes: Any) -> None:
    """Plain decoding, to hold speed-ups against."""
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="plain decoding")


def draw_groups(axes: Any, groups: Sequence[str], bars: Mapping[str, Sequence[float | None]], y_label: str) -> None:
    """A bar of each name in every group; None: there is none."""
    width = 0.84 / max(1, len(bars))
    for place, (name, values) in enumerate(bars.items()):
        shift = (place - (len(bars) - 1) / 2) * width
        known = [(group + shift, value) for group, value in enumerate(values) if value is not None]
        if known:
            drawn = axes.bar(*zip(*known, strict=True), width * 0.9, color=color_of(name, place), label=name)
            axes.bar_label(drawn, fmt="{:.2f}", fontsize=8)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(y_label)
    tidy(axes)
    add_legend(axes)


def draw_split(axes: Any, split: Mapping[str, Mapping[str, float]]) -> None:
    """Of each way its milliseconds of a token, part by part."""
    lefts = [0.0] * len(split)
    for part, color in PART_COLORS.items():
        widths = [parts[part] for parts in split.values()]
        axes.barh(list(split), widths, 0.6, left=lefts, color=color, label=part)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a token")
    axes.spines[["top", "right"]].set_visible(False)
    add_legend(axes, num_columns=4)


def draw_matrix(
    axes: Any, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]]
) -> None:
    """Speed-ups as numbers on shades; the best of each column is bold."""
    import numpy as np

    grid = np.array([[np.nan if value is None else value for value in row] for row in values], dtype=float)
    axes.imshow(grid, cmap="cividis", aspect="auto")
    known = grid[np.isfinite(grid)]
    middle = (known.min() + known.max()) / 2 if known.size else 0.0
    for row, column in np.ndindex(grid.shape):
        value = grid[row, column]
        if np.isfinite(value):
            ink = "white" if value < middle else "black"
            weight = "bold" if value == np.nanmax(grid[:, column]) else "normal"
            axes.text(column, row, f"{value:.2f}x", ha="center", va="center", color=ink, weight=weight)
    axes.set_xticks(range(len(columns)), [f"on {name}" for name in columns])
    axes.set_yticks(range(len(rows)), [f"set of {name}" for name in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
