"""What charts are made of: numbers with intervals, panels and their arrangement, legends, axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .theme import LIGHT, Theme

_CHARACTER_INCHES = 0.078  # of a legend's text


class Valued(Protocol):
    """A value and its interval, as `Estimate` has them."""

    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


@dataclass(frozen=True)
class Interval:
    value: float | None
    low: float | None = None
    high: float | None = None


Number = float | Valued | None
Limits = tuple[float | None, float | None]
Later = Callable[[], None]
"""Places labels, once the layout is known."""


def interval(number: Number) -> Interval:
    if number is None or isinstance(number, float | int):
        return Interval(number)
    return Interval(number.value, number.low, number.high)


class Drawing:
    """Base of what draws: `lay` draws all but what needs to know the layout, which it returns."""

    def lay(self, figure: Any, theme: Theme) -> list[Later]:
        raise NotImplementedError

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None:
        later = self.lay(figure, theme)
        if later:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # labels are placed where the panels are now
        for place in later:
            place()


class Panel(Drawing):
    """Base of charts with one pair of axes. A new kind is a frozen dataclass with `on`."""

    title: str = ""

    @property
    def num_above(self) -> int:
        """Lines of text that the panel itself has above it."""
        return 0

    def on(self, axes: Any, theme: Theme) -> Later | None:
        """Draw; artists with a label come into the legend."""
        raise NotImplementedError

    def lay(self, figure: Any, theme: Theme) -> list[Later]:
        axes = figure.subplots()
        later = self.on(axes, theme)
        add_head(axes, self)
        return [later] if later else []


@dataclass(frozen=True)
class Panels(Drawing):
    """Panels side by side, or in `columns`; one legend where all have the same, one each otherwise."""

    panels: Sequence[Panel]
    columns: int | None = None
    heights: Sequence[float] | None = None
    share_x: bool = False
    share_y: bool = False

    def lay(self, figure: Any, theme: Theme) -> list[Later]:
        columns = self.columns or len(self.panels)
        rows = -(-len(self.panels) // columns)
        shape = {"sharex": self.share_x, "sharey": self.share_y, "height_ratios": self.heights}
        grid = figure.subplots(rows, columns, squeeze=False, **shape)
        for axes in grid.flat[len(self.panels) :]:
            axes.set_visible(False)
        all_axes = list(grid.flat[: len(self.panels)])
        later = [panel.on(axes, theme) for axes, panel in zip(all_axes, self.panels, strict=True)]
        handles, labels = all_axes[0].get_legend_handles_labels()
        is_shared = all(axes.get_legend_handles_labels()[1] == labels for axes in all_axes)
        if is_shared and labels:
            figure.legend(handles, labels, loc="outside lower left", ncols=num_columns(figure, labels), fontsize=9)
        for axes, panel in zip(all_axes, self.panels, strict=True):
            add_head(axes, panel, columns, has_legend=not is_shared)
            if self.share_x and axes.get_subplotspec().rowspan.stop < rows:
                axes.set_xlabel("")
            if self.share_y and axes.get_subplotspec().colspan.start > 0:
                axes.set_ylabel("")
        return [place for place in later if place]


@dataclass(frozen=True)
class Stack(Drawing):
    """Drawings one above the other, or side by side; each is laid out by itself."""

    parts: Sequence[Drawing]
    sizes: Sequence[float]
    is_row: bool = False

    def lay(self, figure: Any, theme: Theme) -> list[Later]:
        shape = {"width_ratios" if self.is_row else "height_ratios": self.sizes}
        count = len(self.parts)
        places = figure.subfigures(*((1, count) if self.is_row else (count, 1)), squeeze=False, **shape).flat
        return [later for place, part in zip(places, self.parts, strict=True) for later in part.lay(place, theme)]


# ------------------------------------------------------------------------------------------------ parts of panels


def add_head(axes: Any, panel: Panel, num_beside: int = 1, has_legend: bool = True) -> None:
    """Above what the panel has there: the legend, then the title. `num_beside`: panels that share the width."""
    lines = 1.3 * panel.num_above
    handles, labels = axes.get_legend_handles_labels()
    if labels and has_legend:
        columns = num_columns(axes.figure, labels, num_beside)
        place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.4 + lines}
        axes.legend(handles, labels, ncols=columns, fontsize=9, **place)
        lines += 1.9 * -(-len(labels) // columns)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold", pad=6 + 9 * lines)


def num_columns(figure: Any, labels: Sequence[str], num_beside: int = 1) -> int:
    root = figure.get_figure(root=True)
    inches = figure.bbox.width / root.dpi / num_beside - 0.9
    return max(1, min(len(labels), int(inches / (_CHARACTER_INCHES * (max(map(len, labels)) + 6)))))


def key(axes: Any, label: str, color: str, is_hollow: bool = False) -> None:
    """An entry of the legend for what has no artist of its own."""
    face = "none" if is_hollow else color
    axes.plot([], [], "s", label=label, color=color, markersize=8, markerfacecolor=face, markeredgecolor=color)


def whisker(axes: Any, theme: Theme, xs: Sequence[float], ys: Sequence[float]) -> None:
    """An interval that is seen on any bar."""
    axes.plot(xs, ys, color=theme.ground, linewidth=3.0, zorder=4)
    axes.plot(xs, ys, color=theme.ink, linewidth=1.4, zorder=5)


def dress(axes: Any, theme: Theme, x_label: str = "", y_label: str = "", unit: str = "", axis: str = "y") -> None:
    """Names and a grid along one axis; `unit`: % or what stands after each number."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis=axis, color=theme.grid, linewidth=0.8)
    if unit:
        axes.yaxis.set_major_formatter(lambda value, place: spelled(value, unit))


def spelled(value: float, unit: str, digits: str = "g") -> str:
    return f"{value:.0%}" if unit == "%" else f"{value:{digits}}{unit}"


def baseline(axes: Any, theme: Theme, height: float | None, name: str) -> None:
    """A dashed line to hold values against."""
    if height is not None:
        axes.axhline(height, color=theme.ink, linestyle=(0, (3, 2)), linewidth=0.9, zorder=2, label=name)
