"""What pictures of a profile have in common: colours, the page. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from ..bench import plot
from ..bench.plot import COLORS
from ..bench.strips import ON_WHITE

BLUE, ORANGE, GREEN, PINK, _, RED = COLORS[:6]
GREY, LIGHT, SKIPPED = "#5F5F5F", "#C9C9C9", ON_WHITE.skipped
_STYLE = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold"}
_DPI = 150


def require_matplotlib() -> None:
    """Refuse, before any work, when nothing can draw."""
    plot.require_matplotlib("a profile", "read it as text with: selfdraft profile show")


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


def say(axes: Any, text: str) -> None:
    """Instead of a panel that has nothing to show."""
    axes.set(xticks=[], yticks=[], xlabel="")
    axes.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", color=GREY)
