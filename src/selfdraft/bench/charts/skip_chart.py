"""Skip sets as strips, a cell for each sub-layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...types import SkipSet
from .panels import Panel, dress_rows
from .theme import Theme


@dataclass(frozen=True)
class Strip:
    """One set; None: the row says `right` alone."""

    skip: SkipSet | None
    left: str = ""
    right: str = ""
    is_bold: bool = False


@dataclass(frozen=True)
class SkipStrips(Panel):
    """A row for each set: attention above, MLP below, pale where skipped."""

    rows: Sequence[Strip]
    num_layers: int
    x_label: str = "layer"

    def on(self, axes: Any, theme: Theme) -> None:
        attention, mlp = theme.stack[1], theme.stack[0]
        layers = range(self.num_layers)
        for place, row in enumerate(self.rows):
            if row.skip is not None:
                for offset, skipped, color in ((-0.19, row.skip.attention, attention), (0.19, row.skip.mlp, mlp)):
                    shown = [theme.skipped if layer in skipped else color for layer in layers]
                    lefts = [layer - 0.46 for layer in layers]
                    axes.barh([place + offset] * len(layers), 0.92, 0.34, lefts, color=shown)
            _draw_words(axes, theme, place, row)
        axes.set_xlabel(self.x_label)
        axes.set_xlim(-0.6, self.num_layers - 0.4)
        axes.set_xticks(range(0, self.num_layers, max(1, round(self.num_layers / 20))))
        axes.tick_params(labelsize=8)
        dress_rows(axes, [""] * len(self.rows))
        for name, color in (("attention", attention), ("MLP", mlp), ("skipped", theme.skipped)):
            axes.scatter([], [], 64, color, marker="s", label=name)


def _draw_words(axes: Any, theme: Theme, place: int, row: Strip) -> None:
    where = {"xycoords": axes.get_yaxis_transform(), "va": "center", "annotation_clip": False, "linespacing": 1.2}
    style = {**where, "fontsize": 9, "fontweight": "bold" if row.is_bold else "normal"}
    axes.annotate(row.left, (-0.015, place), ha="right", **style)
    if row.skip is None:
        axes.annotate(row.right, (0.5, place), ha="center", **{**style, "color": theme.soft})
    else:
        axes.annotate(row.right, (1.01, place), ha="left", **{**style, "fontsize": 8.5})
