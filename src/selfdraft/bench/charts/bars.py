"""Bars: in groups with intervals, as a column of a table, and as parts of a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .panels import Number, Panel, baseline, dress, dress_rows, interval, key, spelled, whisker
from .theme import BLUE, Theme, two_lines


@dataclass(frozen=True)
class Bars(Panel):
    """A bar of each series in every group, intervals as lines; None: there is no bar.

    `unit`: after the number above each bar, `%`: as a percentage. `baseline`: a dashed line, named in the legend.
    """

    groups: Sequence[str]
    series: Mapping[str, Sequence[Number]]
    y_label: str = ""
    unit: str = ""
    baseline: float | None = None
    title: str = ""

    def on(self, axes: Any, theme: Theme) -> None:
        width = 0.84 / max(1, len(self.series))
        for place, (name, numbers) in enumerate(self.series.items()):
            shift = (place - (len(self.series) - 1) / 2) * width
            color, _ = theme.style(place)
            for group, number in enumerate(numbers):
                self._draw_bar(axes, theme, group + shift, number, 0.9 * width, color)
            key(axes, name, color)
        baseline(axes, theme, self.baseline)
        axes.set_xticks(range(len(self.groups)), [two_lines(group) for group in self.groups])
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.18)
        dress(axes, theme, "", self.y_label, self.unit)

    def _draw_bar(self, axes: Any, theme: Theme, x: float, number: Number, width: float, color: str) -> None:
        if (found := interval(number)) is None:
            return
        value, low, high = found
        axes.bar(x, value, width, color=color, zorder=3)
        if low < high:
            whisker(axes, theme, [x, x], [low, high])
        rotation = 90 if len(self.groups) * len(self.series) > 14 else 0
        ground = {"facecolor": theme.ground, "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
        style = {"ha": "center", "va": "bottom", "fontsize": 8, "rotation": rotation, "zorder": 6, "bbox": ground}
        text = spelled(value, self.unit, ".2f")
        axes.annotate(text, (x, max(value, high)), (0, 3), textcoords="offset points", **style)


@dataclass(frozen=True)
class StackedBars(Panel):
    """A horizontal bar for each row, made of parts: name -> a value for each row."""

    rows: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    x_label: str = ""
    unit: str = ""
    title: str = ""

    def on(self, axes: Any, theme: Theme) -> None:
        lefts = [0.0] * len(self.rows)
        longest = max((sum(values) for values in zip(*self.parts.values(), strict=True)), default=1.0)
        for (name, values), color in zip(self.parts.items(), theme.stack, strict=False):
            bars = axes.barh(range(len(self.rows)), values, 0.74, left=lefts, color=color)
            key(axes, name, color)
            # a small part has no room for its number
            texts = [spelled(value, self.unit, ".1f") if value >= 0.045 * longest else "" for value in values]
            axes.bar_label(bars, texts, label_type="center", fontsize=8, color="white" if color == BLUE else "black")
            lefts = [left + value for left, value in zip(lefts, values, strict=True)]
        dress(axes, theme, self.x_label, axis="x")
        dress_rows(axes, self.rows)
        axes.set_xlim(0, longest)
        axes.xaxis.set_major_formatter(lambda value, place: spelled(value, self.unit))


@dataclass(frozen=True)
class Bar:
    """`role`: of the theme, its colour; another one: an outline. `text`: instead of the value."""

    number: Number
    role: str
    text: str = ""


@dataclass(frozen=True)
class BarColumn(Panel):
    """A column of a table: a horizontal bar with its interval and its number in each row. `legend`: by role.

    Up to `longest` there is room for bars, on this `share` of the width; an interval that is longer is cut.
    """

    rows: Sequence[str]
    bars: Sequence[Bar | None]
    longest: float
    share: float
    legend: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    def on(self, axes: Any, theme: Theme) -> None:
        for place, bar in enumerate(self.bars):
            if place % 2 == 0:
                axes.axhspan(place - 0.5, place + 0.5, color=theme.band, linewidth=0, zorder=0)
            if bar and (found := interval(bar.number)):
                value, low, high = found
                axes.barh(place, value, 0.62, zorder=2, **_look(theme, bar.role))
                if low < high:
                    whisker(axes, theme, [low, min(high, self.longest)], [place, place])
                where = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
                axes.annotate(bar.text or f"{value:.2f}", (0.985, place), fontsize=8.5, **where)
        axes.axvline(1.0, color=theme.ink, linestyle=(0, (3, 2)), linewidth=0.9, zorder=3)
        axes.set_xticks([])
        axes.set_xlim(0, self.longest / self.share)
        dress_rows(axes, self.rows)
        for role, label in self.legend.items():
            look = _look(theme, role)
            key(axes, label, look["edgecolor"], look["facecolor"])


def _look(theme: Theme, role: str) -> dict[str, str]:
    color = theme.roles.get(role)
    return {"facecolor": color or "none", "edgecolor": color or theme.ink}
