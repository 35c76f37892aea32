"""What pictures of a profile have in common: colours, the page, strips of sub-layers. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

from ..bench.plot import COLORS
from ..errors import MissingExtraError
from ..types import SkipSet

BLUE, ORANGE, GREEN, PINK, _, RED = COLORS[:6]
GREY, LIGHT, SKIPPED = "#5F5F5F", "#C9C9C9", "#EFEFEF"
_STYLE = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold"}
_DPI = 150


def require_matplotlib() -> None:
    """Refuse, before any work, when nothing can draw."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            "drawing a profile needs matplotlib. Install with: pip install matplotlib. Or read it as text with: "
            "selfdraft profile show"
        )


def page(width: float, height: float, title: str, draw: Callable[[Any], None]) -> bytes:
    """A PNG of so many inches, filled by `draw(figure)`."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure = pyplot.figure(figsize=(width, height), dpi=_DPI, layout="constrained")
        try:
            figure.suptitle(title, fontsize=11)
            figure.get_layout_engine().set(h_pad=0.08, w_pad=0.1)
            draw(figure)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=_DPI)
        finally:
            pyplot.close(figure)
    return buffer.getvalue()


def title_strips(axes: Any, title: str) -> None:
    """At the left edge of the part of the page, whatever stands between it and the panel."""
    text = axes.annotate(
        title, (0.008, 1), (0, 7), xycoords=("subfigure fraction", "axes fraction"), textcoords="offset points",
        fontsize="large", fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    text.set_in_layout(False)


def draw_strips(axes: Any, skips: Sequence[SkipSet | None], num_layers: int, max_ticks: int = 28) -> None:
    """A row for each set: attention above, MLP below, pale where skipped. None: the row is left free."""
    layers = range(num_layers)
    for place, skip in enumerate(skips):
        if skip is None:
            continue
        for offset, skipped, color in ((-0.19, skip.attention, BLUE), (0.19, skip.mlp, ORANGE)):
            colors = [SKIPPED if layer in skipped else color for layer in layers]
            axes.barh([place + offset] * len(layers), 0.92, 0.34, [layer - 0.46 for layer in layers], color=colors)
    axes.set_xlabel("layer")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set_ylim(len(skips) - 0.45, -0.55)
    axes.set_xlim(-0.6, num_layers - 0.4)
    axes.set_xticks(range(0, num_layers, max(1, round(num_layers / max_ticks))))
    axes.tick_params(axis="x", labelsize=8)
    _add_legend(axes)


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


def _add_legend(axes: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=BLUE, label="attention"), Patch(color=ORANGE, label="MLP")]
    handles.append(Patch(facecolor=SKIPPED, edgecolor=LIGHT, label="skipped"))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, borderaxespad=0.2)


def say(axes: Any, text: str) -> None:
    """Instead of a panel that has nothing to show."""
    axes.set(xticks=[], yticks=[], xlabel="")
    axes.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", color=GREY)
