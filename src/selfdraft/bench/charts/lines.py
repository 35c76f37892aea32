"""Lines over x: as lines, steps, dots or bars, with intervals, bands and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .panels import Limits, Number, Panel, baseline, dress, split
from .theme import Theme

Kind = Literal["line", "dashed", "dotted", "steps", "dots", "bars"]
_CHARACTER_INCHES = 0.075  # of a band's name


@dataclass(frozen=True)
class Series:
    """`points`: (x, number), None: left out. `color`: its place among the theme's; None: its place among the series.
    Without a name it is not in the legend."""

    name: str
    points: Sequence[tuple[float, Number]]
    kind: Kind = "line"
    color: int | None = None
    is_marked: bool = True


@dataclass(frozen=True)
class Band:
    """From `first` to `last`, named above the panel. `color`: None is the theme's band."""

    name: str
    first: float
    last: float
    color: int | None = None
    strength: float = 0.14


@dataclass(frozen=True)
class Mark:
    """A dotted line upwards, named at its foot."""

    x: float
    text: str


@dataclass(frozen=True)
class Lines(Panel):
    """One line for each series. `unit`: of y, `%`: as percentages; `log`: "", "x" or "xy"; `ticks`: names on x."""

    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    unit: str = ""
    baseline: float | None = None
    x_limits: Limits = (None, None)
    y_limits: Limits = (None, None)
    log: str = ""
    ticks: Mapping[float, str] | None = None
    bands: Sequence[Band] = ()
    marks: Sequence[Mark] = ()

    def on(self, axes: Any, theme: Theme) -> int:
        for place, one in enumerate(self.series):
            _draw(axes, theme, place if one.color is None else one.color, one)
        baseline(axes, theme, self.baseline)
        dress(axes, theme, self.x_label, self.y_label, self.unit)
        self._scale(axes)
        self._draw_bands(axes, theme)
        self._draw_marks(axes, theme)
        return 2 if any(band.name for band in self.bands) else 0

    def _scale(self, axes: Any) -> None:
        if "x" in self.log:
            axes.set_xscale("log")
        if "y" in self.log:
            axes.set_yscale("log", subs=(2, 5))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        if self.ticks is not None:
            axes.set_xticks(list(self.ticks), list(self.ticks.values()), fontsize=9)
            axes.set_xticks([], minor=True)
        elif "x" not in self.log and all(float(x).is_integer() for one in self.series for x, _ in one.points):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(*self.x_limits)
        axes.set_ylim(*self.y_limits)
        axes.set_ylim(*axes.get_ylim())  # what comes now must not move it

    def _draw_bands(self, axes: Any, theme: Theme) -> None:
        """Names stand above in two rows by turns; those that are much wider than their bands are left out."""
        inches = axes.get_window_extent().width / axes.figure.get_figure(root=True).dpi
        for turn, one in enumerate(self.bands):
            shade: dict[str, Any] = {"color": theme.ground if turn % 2 else theme.band}
            if one.color is not None:
                shade = {"color": theme.style(one.color)[0], "alpha": one.strength}
            axes.axvspan(one.first, one.last, linewidth=0, zorder=0, **shade)
            first, last = max(0.0, _place(axes, one.first)), min(1.0, _place(axes, one.last))
            if (last - first) * inches > len(one.name) * _CHARACTER_INCHES / 3:
                style = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": theme.soft}
                where = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
                axes.annotate(one.name, ((first + last) / 2, 1.0), (0, 3 + 11 * (turn % 2)), **where, **style)

    def _draw_marks(self, axes: Any, theme: Theme) -> None:
        """Names stand one above the other by turns, as they might touch."""
        for turn, mark in enumerate(self.marks):
            axes.axvline(mark.x, color=theme.soft, linewidth=1, linestyle=":", zorder=1)
            is_late = _place(axes, mark.x) > 0.84
            where = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            style = {"fontsize": 8.5, "color": theme.soft, "ha": "right" if is_late else "left", "zorder": 5}
            axes.annotate(mark.text, (mark.x, 0), (-4 if is_late else 4, 5 + 13 * (turn % 5)), **where, **style)


def _place(axes: Any, x: float) -> float:
    """As a part of the panel's width."""
    (place, _) = (axes.transData - axes.transAxes).transform((x, axes.get_ylim()[0]))
    return float(place)


def _draw(axes: Any, theme: Theme, number: int, one: Series) -> None:
    known = [(x, given) for x, given in one.points if given is not None]
    xs, (values, errors) = [x for x, _ in known], split([given for _, given in known])
    color, marker = theme.style(number)
    look: dict[str, Any] = {"color": color, "label": one.name or None}
    if one.kind == "bars":
        axes.bar(xs, values, 0.9 * min(np.diff(xs), default=1.0), zorder=2, **look)
    elif one.kind == "dots":
        axes.plot(xs, values, ".", alpha=0.45, markersize=6, zorder=3, **look)
    else:
        dashes = {"dashed": "--", "dotted": ":"}.get(one.kind, "-")
        every = max(1, len(known) // 8)
        marks = {"marker": marker, "markersize": 5, "markevery": (number % every, every)} if one.is_marked else {}
        drawstyle = "steps-post" if one.kind == "steps" else "default"
        axes.plot(xs, values, linestyle=dashes, drawstyle=drawstyle, linewidth=1.8, zorder=4, **look, **marks)
        axes.errorbar(xs, values, errors, fmt="none", ecolor=color, elinewidth=1.1, alpha=0.75, zorder=3)
