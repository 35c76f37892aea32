"""Bars: in groups with intervals, as a column of a table, and as parts of a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .panels import Number, Panel, baseline, dress, dress_rows, spelled, split, whiskers
from .theme import BLUE, Theme


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

    def on(self, axes: Any, theme: Theme) -> None:
        width, num_groups = 0.84 / max(1, len(self.series)), len(self.groups)
        for place, (name, numbers) in enumerate(self.series.items()):
            values, errors = split(numbers)
            xs = np.arange(num_groups) + (place - (len(self.series) - 1) / 2) * width
            look = {"color": theme.style(place)[0], "label": name, "zorder": 3, "error_kw": whiskers(theme)}
            bars = axes.bar(xs, values, 0.9 * width, yerr=errors, **look)
            texts = [spelled(value, self.unit, ".2f") if np.isfinite(value) else "" for value in values]
            rotation = 90 if num_groups * len(self.series) > 14 else 0
            ground = {"facecolor": theme.ground, "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
            axes.bar_label(bars, texts, padding=3, fontsize=8, rotation=rotation, zorder=6, bbox=ground)
        baseline(axes, theme, self.baseline)
        # what stands in brackets goes below: there is little room side by side
        axes.set_xticks(range(num_groups), [group.replace(" (", "\n(") for group in self.groups])
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.18)
        dress(axes, theme, "", self.y_label, self.unit)


@dataclass(frozen=True)
class StackedBars(Panel):
    """A horizontal bar for each row, made of parts: name -> a value for each row."""

    rows: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    x_label: str = ""
    unit: str = ""

    def on(self, axes: Any, theme: Theme) -> None:
        lefts = [0.0] * len(self.rows)
        longest = max((sum(values) for values in zip(*self.parts.values(), strict=True)), default=1.0)
        for (name, values), color in zip(self.parts.items(), theme.stack, strict=False):
            bars = axes.barh(range(len(self.rows)), values, 0.74, left=lefts, color=color, label=name)
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

    def on(self, axes: Any, theme: Theme) -> None:
        bars = {place: bar for place, bar in enumerate(self.bars) if bar}
        values, errors = split([bar.number for bar in bars.values()], self.longest)
        looks = [_look(theme, bar.role) for bar in bars.values()]
        colors = {"facecolor": [face for face, _ in looks], "edgecolor": [edge for _, edge in looks]}
        axes.barh(list(bars), values, 0.62, xerr=errors, zorder=2, error_kw=whiskers(theme), **colors)
        for (place, bar), value in zip(bars.items(), values, strict=True):
            where = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
            axes.annotate(bar.text or f"{value:.2f}", (0.985, place), fontsize=8.5, **where)
        for place in range(0, len(self.rows), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=theme.band, linewidth=0, zorder=0)
        axes.axvline(1.0, color=theme.ink, linestyle=(0, (3, 2)), linewidth=0.9, zorder=3)
        axes.set_xticks([])
        axes.set_xlim(0, self.longest / self.share)
        dress_rows(axes, self.rows)
        for role, label in self.legend.items():
            face, edge = _look(theme, role)
            axes.scatter([], [], 64, face, marker="s", edgecolor=edge, label=label)


def _look(theme: Theme, role: str) -> tuple[str, str]:
    """Face and edge."""
    color = theme.roles.get(role)
    return color or "none", color or theme.ink
