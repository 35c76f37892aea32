"""Skip sets as strips, a cell for each sub-layer; and grids of numbers on shades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import SkipSet
from .panels import Number, Panel, dress_rows, interval, key, spelled
from .theme import Theme, two_lines


@dataclass(frozen=True)
class Strip:
    """One set; None: the row says `right` alone. `badge`: a number in a circle; `group`: a marker as in `Scatter`."""

    skip: SkipSet | None
    left: str = ""
    right: str = ""
    is_bold: bool = False
    badge: str = ""
    group: int | None = None


@dataclass(frozen=True)
class SkipStrips(Panel):
    """A row for each set: attention above, MLP below, pale where skipped."""

    rows: Sequence[Strip]
    num_layers: int
    x_label: str = "layer"
    title: str = ""

    def on(self, axes: Any, theme: Theme) -> None:
        attention, mlp = theme.stack[1], theme.stack[0]
        layers = range(self.num_layers)
        for place, row in enumerate(self.rows):
            if row.skip is not None:
                for offset, skipped, color in ((-0.19, row.skip.attention, attention), (0.19, row.skip.mlp, mlp)):
                    shown = [theme.skipped if layer in skipped else color for layer in layers]
                    lefts = [layer - 0.46 for layer in layers]
                    axes.barh([place + offset] * len(layers), 0.92, 0.34, lefts, color=shown)
            self._draw_words(axes, theme, place, row)
        axes.set_xlabel(self.x_label)
        axes.set_xlim(-0.6, self.num_layers - 0.4)
        axes.set_xticks(range(0, self.num_layers, max(1, round(self.num_layers / 20))))
        axes.tick_params(labelsize=8)
        dress_rows(axes, [""] * len(self.rows))
        for name, color in (("attention", attention), ("MLP", mlp), ("skipped", theme.skipped)):
            key(axes, name, color)

    def _draw_words(self, axes: Any, theme: Theme, place: int, row: Strip) -> None:
        across = axes.get_yaxis_transform()
        where = {"xycoords": across, "va": "center", "annotation_clip": False, "linespacing": 1.2}
        style = {**where, "fontsize": 9, "fontweight": "bold" if row.is_bold else "normal"}
        has_sign = any(one.badge or one.group is not None for one in self.rows)
        axes.annotate(row.left, (-0.045 if has_sign else -0.015, place), ha="right", **style)
        if row.skip is None:
            axes.annotate(row.right, (0.5, place), ha="center", **{**style, "color": theme.soft})
        else:
            axes.annotate(row.right, (1.01, place), ha="left", **{**style, "fontsize": 8.5})
        if row.badge:
            circle = {"boxstyle": "circle,pad=0.22", "facecolor": theme.ground, "edgecolor": theme.soft}
            axes.annotate(row.badge, (-0.024, place), ha="center", bbox=circle, **{**style, "fontsize": 8})
        if row.group is not None:
            color, marker = theme.style(row.group)
            axes.plot([-0.024], [place], transform=across, clip_on=False, marker=marker, markersize=7.5, color=color)


@dataclass(frozen=True)
class Grid(Panel):
    """Numbers on shades; the best of each column is bold. `cells`: row by row, None: empty."""

    cells: Sequence[Sequence[Number]]
    rows: Sequence[str]
    columns: Sequence[str]

    def on(self, axes: Any, theme: Theme) -> None:
        found = [[interval(number) for number in row] for row in self.cells]
        heights = np.array([[one[0] if one else np.nan for one in row] for row in found], dtype=float)
        shades = axes.imshow(heights, cmap="cividis", aspect="auto")
        for (row, column), value in np.ndenumerate(heights):
            if np.isfinite(value):
                weight = "bold" if value == np.nanmax(heights[:, column]) else "normal"
                style = {"ha": "center", "va": "center", "color": "white" if shades.norm(value) < 0.5 else "black"}
                axes.text(column, row, spelled(float(value), "x", ".2f"), weight=weight, **style)
        axes.set_xticks(range(len(self.columns)), [two_lines(name) for name in self.columns])
        axes.set_yticks(range(len(self.rows)), [two_lines(name) for name in self.rows])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
