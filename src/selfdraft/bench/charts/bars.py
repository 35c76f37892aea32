"""Bars: in groups with intervals, as a table of rows, and as parts of a whole."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .panels import Drawing, Later, Number, Panel, baseline, dress, interval, key, num_columns, spelled, whisker
from .theme import Theme, ink_on, short, two_lines


@dataclass(frozen=True)
class Bars(Panel):
    """A bar of each series in every group, intervals as lines; None: there is no bar.

    `unit`: after the number above each bar, `%`: as a percentage. `baseline`: a dashed line, named in the legend.
    """

    groups: Sequence[str]
    series: Mapping[str, Sequence[Number]]
    y_label: str = ""
    x_label: str = ""
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
        baseline(axes, theme, self.baseline, "plain decoding")
        axes.set_xticks(range(len(self.groups)), [two_lines(group) for group in self.groups])
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.18)
        dress(axes, theme, self.x_label, self.y_label, self.unit)

    def _draw_bar(self, axes: Any, theme: Theme, x: float, number: Number, width: float, color: str) -> None:
        found = interval(number)
        if found.value is None:
            return
        axes.bar(x, found.value, width, color=color, zorder=3)
        if found.low is not None and found.high is not None:
            whisker(axes, theme, [x, x], [found.low, found.high])
        rotation = 90 if len(self.groups) * len(self.series) > 14 else 0
        ground = {"facecolor": theme.ground, "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
        style = {"ha": "center", "va": "bottom", "fontsize": 8, "rotation": rotation, "zorder": 6, "bbox": ground}
        place = x, max(found.value, found.high or 0.0)
        axes.annotate(spelled(found.value, self.unit, ".2f"), place, (0, 3), textcoords="offset points", **style)


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
            axes.barh(range(len(self.rows)), values, 0.74, left=lefts, color=color)
            key(axes, name, color)
            for place, (left, value) in enumerate(zip(lefts, values, strict=True)):
                if value >= 0.045 * longest:  # a smaller part has no room for its number
                    text = spelled(value, self.unit, ".1f")
                    style = {"ha": "center", "va": "center", "fontsize": 8, "color": ink_on(color)}
                    axes.text(left + value / 2, place, text, **style)
            lefts = [left + value for left, value in zip(lefts, values, strict=True)]
        dress(axes, theme, self.x_label, axis="x")
        axes.set_yticks(range(len(self.rows)), [short(row) for row in self.rows])
        axes.set_ylim(len(self.rows) - 0.5, -0.5)
        axes.set_xlim(0, longest)
        axes.xaxis.set_major_formatter(lambda value, place: spelled(value, self.unit))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


@dataclass(frozen=True)
class Bar:
    """`role`: of the theme, its colour; another one: an outline. `text`: instead of the value."""

    number: Number
    role: str
    text: str = ""


@dataclass(frozen=True)
class BarTable(Drawing):
    """Rows of horizontal bars with intervals, a panel for each column; the first is wider. `legend`: by role."""

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[Bar | None]]
    legend: Mapping[str, str] = field(default_factory=dict)

    def lay(self, figure: Any, theme: Theme) -> list[Later]:
        ratios = [2.7, *[1.12] * (len(self.columns) - 1)]
        panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
        figure.get_layout_engine().set(w_pad=0.02, wspace=0.0)
        highest = self._highest()
        for column, (axes, name) in enumerate(zip(panels, self.columns, strict=True)):
            room = 0.62 if column else 0.5  # bars fill this share of a panel; numbers stand in the rest
            axes.set_xlim(0, highest / room)
            self._draw_column(axes, theme, [row[column] for row in self.cells], highest)
            title = "\n".join(textwrap.wrap(name.replace("_", " "), 13)[:2])
            axes.set_title(title, fontsize=9, loc="left", linespacing=1.1)
        panels[0].set_yticks(range(len(self.rows)), [short(row) for row in self.rows])
        panels[0].set_ylim(len(self.rows) - 0.5, -0.5)
        for role, label in self.legend.items():
            key(panels[0], label, theme.roles.get(role, theme.ink), is_hollow=role not in theme.roles)
        columns = num_columns(figure, list(self.legend.values()) or [""])
        figure.legend(loc="outside lower left", ncols=columns, fontsize=9)
        return []

    def _highest(self) -> float:
        """What bars must have room for. A line of few texts may be longer; it is cut."""
        values = [interval(cell.number).value or 0.0 for row in self.cells for cell in row if cell]
        wholes = [interval(row[0].number).high or 0.0 for row in self.cells if row[0]]
        return max(1.1 * max(values, default=0.0), *wholes, 1.2)

    def _draw_column(self, axes: Any, theme: Theme, cells: Sequence[Bar | None], highest: float) -> None:
        for place, cell in enumerate(cells):
            if place % 2 == 0:
                axes.axhspan(place - 0.5, place + 0.5, color=theme.band, linewidth=0, zorder=0)
            found = interval(cell.number if cell else None)
            if cell is None or found.value is None:
                continue
            outline = {"facecolor": "none", "edgecolor": theme.ink, "linewidth": 1.0}
            style = {"color": theme.roles[cell.role]} if cell.role in theme.roles else outline
            axes.barh(place, found.value, 0.62, zorder=2, **style)
            if found.low is not None and found.high is not None:
                whisker(axes, theme, [found.low, min(found.high, highest)], [place, place])
            text, where = cell.text or f"{found.value:.2f}", axes.get_yaxis_transform()
            axes.annotate(text, (0.985, place), xycoords=where, ha="right", va="center", fontsize=8.5)
        axes.axvline(1.0, color=theme.ink, linestyle=(0, (3, 2)), linewidth=0.9, zorder=3)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
