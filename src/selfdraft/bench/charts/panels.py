"""What charts are made of: numbers with intervals, panels and their arrangement, legends, axes; and files of charts."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import MissingExtraError
from ...measure.estimate import Estimate
from .theme import LIGHT, Theme, short

Array = npt.NDArray[np.float64]
Number = float | Estimate | None
Limits = tuple[float | None, float | None]
_DPI = 150
_CHARACTER_INCHES = 0.078  # of a legend's text


def split(numbers: Sequence[Number], most: float = np.inf) -> tuple[Array, Array]:
    """[numbers] values, and [2, numbers] how far intervals reach below and above them, up to `most`; NaN: nothing."""
    found = [(one.value, one.low, one.high) if isinstance(one, Estimate) else (one, None, None) for one in numbers]
    values, lows, highs = np.array(found, dtype=float).reshape(-1, 3).T
    return values, np.maximum([values - lows, np.minimum(highs, most) - values], 0.0)


def whiskers(theme: Theme) -> dict[str, Any]:
    """How intervals look."""
    return {"ecolor": theme.ink, "elinewidth": 1.4, "zorder": 5}


class Drawing:
    """Base of what draws onto an empty figure."""

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Panel(Drawing):
    """Base of charts with one pair of axes. A new kind is a frozen dataclass with `on`."""

    title: str = field(default="", kw_only=True)

    def on(self, axes: Any, theme: Theme) -> int | None:
        """Draw; artists with a label come into the legend. Returns how many lines of text stand above the axes."""
        raise NotImplementedError

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None:
        axes = figure.subplots()
        _add_head(axes, self.title, self.on(axes, theme))


@dataclass(frozen=True)
class Panels(Drawing):
    """Panels side by side, or in `columns`; one legend where all have the same, one each otherwise."""

    panels: Sequence[Panel]
    columns: int | None = None
    heights: Sequence[float] | None = None
    widths: Sequence[float] | None = None
    share_x: bool = False
    share_y: bool = False

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None:
        columns = self.columns or len(self.panels)
        rows = -(-len(self.panels) // columns)
        shape = {"sharex": self.share_x, "sharey": self.share_y}
        ratios = {"height_ratios": self.heights, "width_ratios": self.widths}
        grid = list(figure.subplots(rows, columns, squeeze=False, **shape, **ratios).flat)
        for axes in grid[len(self.panels) :]:
            axes.set_visible(False)
        above = [panel.on(axes, theme) for axes, panel in zip(grid, self.panels, strict=False)]
        handles, labels = grid[0].get_legend_handles_labels()
        is_shared = all(axes.get_legend_handles_labels()[1] == labels for axes in grid[: len(self.panels)])
        if is_shared and labels:
            figure.legend(handles, labels, loc="outside lower left", ncols=_num_columns(figure, labels), fontsize=9)
        for axes, panel, lines in zip(grid, self.panels, above, strict=False):
            _add_head(axes, panel.title, lines, columns, has_legend=not is_shared)
            if self.share_x or self.share_y:
                axes.label_outer()


@dataclass(frozen=True)
class Stack(Drawing):
    """Drawings one above the other, or side by side; each is laid out by itself."""

    parts: Sequence[Drawing]
    sizes: Sequence[float]
    is_row: bool = False

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None:
        shape = {"width_ratios" if self.is_row else "height_ratios": self.sizes}
        rows, columns = (1, len(self.parts)) if self.is_row else (len(self.parts), 1)
        for place, part in zip(figure.subfigures(rows, columns, squeeze=False, **shape).flat, self.parts, strict=True):
            part(place, theme)


# ------------------------------------------------------------------------------------------------ files


PLOT_EXTRA = 'pip install "selfdraft[plot]"'


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib(what: str, instead: str) -> None:
    """Refuse, before any work, when nothing can draw."""
    if not can_draw():
        raise MissingExtraError(f"drawing {what} needs matplotlib. Install with: {PLOT_EXTRA}. Or {instead}")


def render(
    draw: Drawing, size: tuple[float, float], *, theme: Theme = LIGHT, form: str = "png", title: str = ""
) -> bytes:
    """`size`: inches; `form`: svg or png. The same drawing gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with rc_context(_style(theme)):
        figure = Figure(figsize=size, layout="constrained")
        if title:
            figure.suptitle(title, fontsize=9, color=theme.soft)
        draw(figure, theme)
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _style(theme: Theme) -> dict[str, Any]:
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), theme.ink)
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), theme.grid)
    grounds = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.ground)
    legend = {"legend.frameon": False, "legend.borderaxespad": 0.4}
    text = {"font.size": 9.5, "font.family": "DejaVu Sans", "svg.hashsalt": "selfdraft", "svg.fonttype": "path"}
    return {**inks, **lines, **grounds, **legend, **text}


# ------------------------------------------------------------------------------------------------ parts of panels


def _add_head(axes: Any, title: str, above: int | None, num_beside: int = 1, has_legend: bool = True) -> None:
    """Over the lines above the axes: the legend, then the title. `num_beside`: panels that share the width."""
    lines = 1.3 * (above or 0)
    handles, labels = axes.get_legend_handles_labels()
    if labels and has_legend:
        columns = _num_columns(axes.figure, labels, num_beside)
        place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.4 + lines}
        axes.legend(handles, labels, ncols=columns, fontsize=9, **place)
        lines += 1.9 * -(-len(labels) // columns)
    if title:
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=6 + 9 * lines)


def _num_columns(figure: Any, labels: Sequence[str], num_beside: int = 1) -> int:
    inches = figure.bbox.width / figure.get_figure(root=True).dpi / num_beside - 0.9
    return max(1, min(len(labels), int(inches / (_CHARACTER_INCHES * (max(map(len, labels)) + 6)))))


def dress(axes: Any, theme: Theme, x_label: str = "", y_label: str = "", unit: str = "", axis: str = "y") -> None:
    """Names and a grid along one axis; `unit`: % or what stands after each number."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis=axis, color=theme.grid, linewidth=0.8)
    if unit:
        axes.yaxis.set_major_formatter(lambda value, place: spelled(value, unit))


def dress_rows(axes: Any, names: Sequence[str]) -> None:
    """Rows from above, each with its name, and nothing around them."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def spelled(value: float, unit: str, digits: str = "g") -> str:
    return f"{value:.0%}" if unit == "%" else f"{value:{digits}}{unit}"


def baseline(axes: Any, theme: Theme, height: float | None) -> None:
    """A dashed line to hold values against."""
    if height is not None:
        style = {"color": theme.ink, "linestyle": (0, (3, 2)), "linewidth": 0.9, "zorder": 2}
        axes.axhline(height, label="plain decoding", **style)
