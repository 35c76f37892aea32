"""Points in a plane, in groups, with names that do not lie upon each other and lines of equal height below them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .panels import Array, Limits, Panel, dress
from .theme import Theme, short

Point = tuple[float, float]
LEVELS = (0.8, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
_MARKER = 5.0
_AWAY = (3, 7, 13, 20, 29, 40, 54, 72)
"""Points between a marker and its label, the nearest that is free first."""
_ANGLES = np.radians([20, 160, -20, -160, 60, 120, -60, -120, 90, -90, 0, 180])
_DIRECTIONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], -1)


@dataclass(frozen=True)
class Group:
    """Points of one colour and marker, with `labels`. `look`: "full", "pale" (small, for crowds), "outline"."""

    name: str
    points: Sequence[Point]
    labels: Sequence[str] = ()
    color: int | None = None
    look: str = "full"


@dataclass(frozen=True)
class Scatter(Panel):
    """`field(xs, ys)`: heights over the panel, a row for each y; drawn as lines that end at the upper edge, where
    they are named, and shaded below 1. `line`: joined points. `unit`: of y."""

    groups: Sequence[Group]
    x_label: str = ""
    y_label: str = ""
    unit: str = ""
    line: Sequence[Point] = ()
    line_name: str = ""
    field: Callable[[Array, Array], Array] | None = None
    x_limits: Limits = (None, None)
    y_limits: Limits = (None, None)

    def on(self, axes: Any, theme: Theme) -> int:
        for place, group in enumerate(self.groups):
            _draw_group(axes, theme, place if group.color is None else group.color, group)
        if self.line:
            style = {"color": theme.roles["slower"], "linewidth": 1.6, "markersize": 4, "label": self.line_name or None}
            axes.plot(*zip(*self.line, strict=True), ".-", zorder=3, **style)
        dress(axes, theme, self.x_label, self.y_label, self.unit, axis="both")
        if self.field is None:
            axes.margins(0.1)
        axes.set_xlim(*self.x_limits)
        axes.set_ylim(*self.y_limits)
        if self.field is not None:
            axes.grid(visible=False)
            _draw_field(axes, theme, self.field)
        named = [one for group in self.groups for one in zip(group.points, group.labels, strict=False)]
        crowd = [point for group in self.groups if group.look != "pale" for point in group.points]
        _draw_labels(axes, theme, named, [*self.line, *crowd])
        return int(self.field is not None)


def _draw_group(axes: Any, theme: Theme, place: int, group: Group) -> None:
    color, marker = theme.style(place)
    looks: dict[str, dict[str, Any]] = {
        "full": {"s": 48, "color": color, "edgecolors": theme.ground, "linewidths": 0.8, "zorder": 5},
        "pale": {"s": 14, "color": color, "alpha": 0.35, "linewidths": 0, "zorder": 2},
        "outline": {"s": 56, "facecolors": theme.ground, "edgecolors": theme.ink, "linewidths": 1.2, "zorder": 5},
    }
    xs, ys = zip(*group.points, strict=True) if group.points else ((), ())
    axes.scatter(xs, ys, marker=marker, clip_on=False, label=group.name or None, **looks[group.look])


def _draw_field(axes: Any, theme: Theme, field: Callable[[Array, Array], Array]) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    xs, ys = np.linspace(left, right, 120), np.linspace(low, high, 120)
    heights = field(xs, ys)
    axes.contourf(xs, ys, heights, levels=[-1.0, 1.0], colors=[theme.band], zorder=0)
    levels = [level for level in LEVELS if heights.min() < level < heights.max()]
    if levels:
        shades = [theme.soft if level == 1 else theme.grid for level in levels]
        axes.contour(xs, ys, heights, levels=levels, colors=shades, linewidths=1.0, zorder=1)
    edge, named = heights[-1][::-1], math.inf  # ascending from right to left
    for level in levels:
        place = float(np.interp(level, edge, xs[::-1]))
        if edge[0] < level < edge[-1] and named - place >= 0.06 * (right - left):
            named = place
            style = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "color": theme.soft}
            axes.annotate(f"{level:g}x", (place, 1.0), (0, 2), ha="center", va="bottom", fontsize=8, **style)


def _draw_labels(axes: Any, theme: Theme, named: Sequence[tuple[Point, str]], crowd: Sequence[Point]) -> None:
    """Beside each point, not upon another label or marker as far as there is room."""
    if not named:
        return
    axes.autoscale(False)
    axes.figure.get_figure(root=True).draw_without_rendering()  # from now on it is known where panels are, about
    scale, to_pixels = axes.figure.dpi / 72, axes.transData.transform
    taken = [(place, np.full(2, _MARKER * scale)) for place in to_pixels(crowd)]
    for point, text in named:
        half = np.array([2.6 * len(text), 5.0]) * scale
        offset = _free_place(to_pixels(point), half, axes.get_window_extent(), scale, taken)
        taken.append((to_pixels(point) + offset, half))
        style = {"ha": "center", "va": "center", "fontsize": 8.5, "color": theme.ink, "zorder": 6}
        leader = {"arrowstyle": "-", "color": theme.soft, "linewidth": 0.6, "shrinkA": 0, "shrinkB": _MARKER}
        axes.annotate(text, point, offset / scale, textcoords="offset points", arrowprops=leader, **style)


def _free_place(middle: Array, half: Array, inside: Any, scale: float, taken: Sequence[tuple[Array, Array]]) -> Array:
    """How far from `middle`: the nearest place inside with the fewest things below it."""

    def badness(offset: Array) -> tuple[bool, int]:
        place = middle + offset
        is_outside = bool((place - half < inside.min).any() or (place + half > inside.max).any())
        return is_outside, sum(bool((abs(place - other) < half + size).all()) for other, size in taken)

    offsets = [direction * (half + (_MARKER + away) * scale) for away in _AWAY for direction in _DIRECTIONS]
    return min(offsets, key=badness)


# ------------------------------------------------------------------------------------------------ vectors, names


def plane(vectors: npt.NDArray[Any]) -> tuple[Array, tuple[float, float]]:
    """Points in the plane of largest spread (principal components), and the shares of the spread along its axes."""
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    flat[:, : len(axes[:2])] = centred @ axes[:2].T
    first, second = np.append(sizes**2, [0.0, 0.0])[:2] / max(float((sizes**2).sum()), 1e-12)
    return flat, (float(first), float(second))


@dataclass(frozen=True)
class Names(Panel):
    """What the numbers in the panel beside it stand for: (name, note), from 1."""

    rows: Sequence[tuple[str, str]]

    def on(self, axes: Any, theme: Theme) -> None:
        axes.set_axis_off()
        lines = [f"{place:>2}  {short(name):<38} {note:>6}" for place, (name, note) in enumerate(self.rows, start=1)]
        axes.text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=7.5, linespacing=1.6, in_layout=False)
