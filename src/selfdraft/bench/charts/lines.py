"""Lines over x: as lines, steps, dots or bars, with intervals, bands and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from .panels import Limits, Number, Panel, baseline, dress, interval
from .theme import Theme, short

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
    """One line for each series, in the legend, or named at its right end (`names_at_ends`).

    `unit`: of y, `%`: as percentages; `log`: "", "x", "y" or "xy"; `ticks`: names of places on x.
    """

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
    names_at_ends: bool = False
    title: str = ""

    @property
    def num_above(self) -> int:
        return 2 if any(band.name for band in self.bands) else 0

    def on(self, axes: Any, theme: Theme) -> None:
        ends = [end for place, one in enumerate(self.series) if (end := self._draw(axes, theme, place, one))]
        baseline(axes, theme, self.baseline, "" if self.names_at_ends else "plain decoding")
        dress(axes, theme, self.x_label, self.y_label, self.unit)
        self._scale(axes)
        self._draw_bands(axes, theme)
        _draw_marks(axes, theme, self.marks)
        if self.names_at_ends:
            label_ends(axes, ends, theme)

    def _draw(self, axes: Any, theme: Theme, place: int, one: Series) -> tuple[float, str, str] | None:
        """(height, name, colour) of its end."""
        known = [(x, found) for x, number in one.points if (found := interval(number)).value is not None]
        if not known:
            return None
        number = place if one.color is None else one.color
        color, marker = theme.style(number)
        label = None if self.names_at_ends or not one.name else one.name
        xs, ys = [x for x, _ in known], [found.value for _, found in known]
        if one.kind == "bars":
            width = 0.9 * min((two - before for before, two in pairwise(xs)), default=1.0)
            axes.bar(xs, ys, width, color=color, label=label, zorder=2)
        elif one.kind == "dots":
            axes.plot(xs, ys, ".", color=color, alpha=0.45, markersize=6, label=label, zorder=3)
        else:
            dashes = {"dashed": "--", "dotted": ":"}.get(one.kind, "-")
            every = max(1, len(known) // 8)
            marks = {"marker": marker, "markersize": 5, "markevery": (number % every, every)} if one.is_marked else {}
            drawstyle = "steps-post" if one.kind == "steps" else "default"
            style = {"linestyle": dashes, "drawstyle": drawstyle, "linewidth": 1.8, "zorder": 4}
            axes.plot(xs, ys, color=color, label=label, **style, **marks)
        for x, found in known:
            if found.low is not None and found.high is not None:
                axes.plot([x, x], [found.low, found.high], color=color, linewidth=1.1, alpha=0.75, zorder=3)
        return (float(ys[-1] or 0.0), short(one.name), color) if one.name else None

    def _scale(self, axes: Any) -> None:
        if "x" in self.log:
            axes.set_xscale("log")
        if "y" in self.log:
            axes.set_yscale("log")
            _plain_ticks(axes.yaxis, self.unit)
        if self.ticks is not None:
            axes.set_xticks(list(self.ticks), list(self.ticks.values()), fontsize=9)
            axes.set_xticks([], minor=True)
        elif "x" not in self.log and all(float(x).is_integer() for one in self.series for x, _ in one.points):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(*self.x_limits)
        axes.set_ylim(*self.y_limits)
        axes.set_ylim(*axes.get_ylim())  # what comes now must not move it

    def _draw_bands(self, axes: Any, theme: Theme) -> None:
        """Names that are wider than their bands go up in turns; much too wide ones are left out."""
        inches = axes.get_window_extent().width / axes.figure.get_figure(root=True).dpi
        places = [_fractions(axes, one) for one in self.bands]
        wide = [len(one.name) * _CHARACTER_INCHES for one in self.bands]
        room = [(last - first) * inches for first, last in places]
        is_narrow = any(name > width for name, width in zip(wide, room, strict=True))
        for place, (one, (first, last)) in enumerate(zip(self.bands, places, strict=True)):
            shade: dict[str, Any] = {"color": theme.band if place % 2 == 0 else theme.ground}
            if one.color is not None:
                shade = {"color": theme.style(one.color)[0], "alpha": one.strength}
            axes.axvspan(one.first, one.last, linewidth=0, zorder=0, **shade)
            if wide[place] <= 3 * room[place]:
                lift = 3 + (11 * (place % 2) if is_narrow else 0)
                style = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": theme.soft}
                where = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
                axes.annotate(one.name, ((first + last) / 2, 1.0), (0, lift), **where, **style)


def _fractions(axes: Any, band: Band) -> tuple[float, float]:
    """Where it begins and ends, as parts of the panel's width."""
    pixels = axes.transData.transform([(band.first, axes.get_ylim()[0]), (band.last, axes.get_ylim()[0])])
    (first, _), (last, _) = axes.transAxes.inverted().transform(pixels)
    return max(0.0, float(first)), min(1.0, float(last))


def _plain_ticks(axis: Any, unit: str) -> None:
    """0.2, 3, 40 instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, place: f"{value:g}{unit}")
    axis.set_minor_formatter(NullFormatter())


def _draw_marks(axes: Any, theme: Theme, marks: Sequence[Mark]) -> None:
    """Names stand one above the other where they would touch."""
    before, height = -1.0, 0
    for mark in marks:
        axes.axvline(mark.x, color=theme.soft, linewidth=1, linestyle=":", zorder=1)
        place, _ = _fractions(axes, Band("", mark.x, mark.x))
        height = (height + 1) % 5 if place - before < 0.16 else 0
        is_late = place > 0.84
        where = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        style = {"fontsize": 8.5, "color": theme.soft, "ha": "right" if is_late else "left", "zorder": 5}
        axes.annotate(mark.text, (mark.x, 0), (-4 if is_late else 4, 5 + 13 * height), **where, **style)
        before = place


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], theme: Theme) -> None:
    """(height, text, colour) to the right of a panel whose limits are set: a dash in its colour, then the text."""
    low, high = axes.get_ylim()
    height_points = axes.get_position().height * axes.figure.get_figure(root=True).get_figheight() * 72
    least = 13.0 / max(height_points, 1.0) * (high - low)
    order = sorted(range(len(ends)), key=lambda index: ends[index][0])
    for index, place in zip(order, spread([ends[index][0] for index in order], least, low, high), strict=True):
        value, text, color = ends[index]
        where = axes.get_yaxis_transform()
        dash = {"arrowstyle": "-", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        style = {"xycoords": where, "annotation_clip": False, "va": "center"}
        axes.annotate("", (1.0, value), (1.025, place), textcoords=where, arrowprops=dash, **style)
        axes.annotate(text, (1.03, place), color=theme.ink, fontsize=9, **style)


def spread(values: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Ascending values moved apart to a distance of `least`, within `low` to `high` if that is possible at all."""
    places = list(values)
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + least)
    over = places[-1] - high if places else 0.0
    if over > 0:
        places[-1] -= over
        for index in range(len(places) - 2, -1, -1):
            places[index] = min(places[index], places[index + 1] - least)
    under = low - places[0] if places else 0.0
    return [place + max(0.0, under) for place in places]
