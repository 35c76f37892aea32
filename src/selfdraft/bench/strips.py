"""Skip sets as strips, a cell for each sub-layer. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..types import SkipSet
from .plot import COLORS

BLUE, ORANGE = COLORS[:2]


@dataclass(frozen=True)
class StripColors:
    attention: str = BLUE
    mlp: str = ORANGE
    skipped: str = "#EFEFEF"
    edge: str = "#C9C9C9"


ON_WHITE = StripColors()


def draw_strips(
    axes: Any, skips: Sequence[SkipSet | None], num_layers: int, max_ticks: int = 28, colors: StripColors = ON_WHITE
) -> None:
    """A row for each set: attention above, MLP below, pale where skipped. None: the row is left free."""
    layers = range(num_layers)
    for place, skip in enumerate(skips):
        if skip is None:
            continue
        for offset, skipped, color in ((-0.19, skip.attention, colors.attention), (0.19, skip.mlp, colors.mlp)):
            shown = [colors.skipped if layer in skipped else color for layer in layers]
            axes.barh([place + offset] * len(layers), 0.92, 0.34, [layer - 0.46 for layer in layers], color=shown)
    axes.set_xlabel("layer")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set_ylim(len(skips) - 0.45, -0.55)
    axes.set_xlim(-0.6, num_layers - 0.4)
    axes.set_xticks(range(0, num_layers, max(1, round(num_layers / max_ticks))))
    axes.tick_params(axis="x", labelsize=8)
    _add_legend(axes, colors)


def beside_strip(axes: Any, place: float, text: str, x: float, is_bold: bool = False, **changed: Any) -> None:
    """To the left of row `place` where `x` < 0, of the panel's width; else to the right."""
    style = {
        "xycoords": axes.get_yaxis_transform(),
        "ha": "right" if x < 0 else "left",
        "va": "center",
        "fontsize": 9,
        "fontweight": "bold" if is_bold else "normal",
        "linespacing": 1.4,
        "annotation_clip": False,
    }
    axes.annotate(text, (x, place), **{**style, **changed})


def _add_legend(axes: Any, colors: StripColors) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colors.attention, label="attention"), Patch(color=colors.mlp, label="MLP")]
    handles.append(Patch(facecolor=colors.skipped, edgecolor=colors.edge, label="skipped"))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, borderaxespad=0.2)
