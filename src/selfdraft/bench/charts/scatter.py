"""Points in a plane, in groups, with names that do not lie upon each other and lines of equal height behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .panels import Later, Limits, Panel, dress
from .theme import Theme, short

Array = npt.NDArray[np.float64]
Point = tuple[float, float]
LEVELS = (0.8, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
_AWAY = (3.0, 7.0, 13.0, 20.0, 29.0, 40.0, 54.0, 72.0)
"""Points between a marker and its label, the nearest that is free first."""
_ANGLES = tuple(math.radians(angle) for angle in (20, 160, -20, -160, 60, 120, -60, -120, 90, -90, 0, 180))
_MARKER = 5.0
_LEADER = 8.0
"""Points of distance from which on a line leads from the label to its marker."""


@dataclass(frozen=True)
class Group:
    """Points of one colour and marker. `labels`: one for each, or a single one for all of them.

    `look`: "full", "pale" (small, unlabelled crowds), "outline".
    """

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
    title: str = ""

    @property
    def num_above(self) -> int:
        return int(self.field is not None)

    def on(self, axes: Any, theme: Theme) -> Later | None:
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
        named = list(self._labels())
        return (lambda: label_points(axes, named, self._crowd(), theme, self.line)) if named else None

    def _labels(self) -> Iterator[tuple[Point, str]]:
        for group in self.groups:
            if len(group.labels) == 1 < len(group.points):
                x, y = np.median(np.array(group.points), 0)
                yield (float(x), float(y)), group.labels[0]
            else:
                yield from zip(group.points, group.labels, strict=False)

    def _crowd(self) -> Array:
        points = [point for group in self.groups if group.look != "pale" for point in group.points]
        return np.array(points, dtype=float).reshape(-1, 2)


def _draw_group(axes: Any, theme: Theme, place: int, group: Group) -> None:
    color, marker = theme.style(place)
    looks: dict[str, dict[str, Any]] = {
        "full": {"s": 48, "color": color, "edgecolors": theme.ground, "linewidths": 0.8, "zorder": 5},
        "pale": {"s": 14, "color": color, "alpha": 0.35, "linewidths": 0, "zorder": 2},
        "outline": {"s": 56, "facecolors": theme.ground, "edgecolors": theme.ink, "linewidths": 1.2, "zorder": 5},
    }
    xs, ys = zip(*group.points, strict=True) if group.points else ((), ())
    axes.scatter(xs, ys, marker=marker, clip_on=False, label=group.name or None, **looks[group.look])


# ------------------------------------------------------------------------------------------------ equal heights


def _draw_field(axes: Any, theme: Theme, field: Callable[[Array, Array], Array]) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    xs, ys = np.linspace(left, right, 120), np.linspace(low, high, 120)
    heights = field(xs, ys)
    axes.contourf(xs, ys, heights, levels=[-1.0, 1.0], colors=[theme.band], zorder=0)
    levels = [level for level in LEVELS if heights.min() < level < heights.max()]
    if levels:
        shades = [theme.soft if level == 1 else theme.grid for level in levels]
        axes.contour(xs, ys, heights, levels=levels, colors=shades, linewidths=1.0, zorder=1)
    edge = heights[-1][::-1]  # ascending from right to left
    places = {level: float(np.interp(level, edge, xs[::-1])) for level in levels if edge[0] < level < edge[-1]}
    named: list[float] = []
    for level, place in places.items():
        if all(abs(place - other) >= 0.06 * (right - left) for other in named):
            named.append(place)
            style = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "color": theme.soft}
            axes.annotate(f"{level:g}x", (place, 1.0), (0, 2), ha="center", va="bottom", fontsize=8, **style)


# ------------------------------------------------------------------------------------------------ labels


def label_points(
    axes: Any, named: Sequence[tuple[Point, str]], crowd: Array, theme: Theme, line: Sequence[Point] = ()
) -> None:
    """Beside each point, not upon another label, a marker or the line as far as there is room. The layout is known."""
    axes.autoscale(False)
    scale = axes.figure.dpi / 72
    to_pixels = axes.transData.transform
    middles = [*to_pixels(crowd), *to_pixels(_along(line))]
    sizes = [np.full(2, 2 * _MARKER * scale)] * len(crowd) + [np.full(2, 2 * scale)] * (len(middles) - len(crowd))
    inside = axes.get_window_extent()
    for point, text in named:
        pixel = to_pixels(point)
        shown = axes.text(0, 0, text, ha="center", va="center", fontsize=8.5, color=theme.ink, zorder=6)
        size = shown.get_window_extent().size + 2 * scale
        place = _free_place(pixel, size, inside, scale, np.array(middles), np.array(sizes))
        middles.append(place)
        sizes.append(size)
        ends = axes.transData.inverted().transform([pixel, place])
        shown.set_position(ends[1])
        if np.linalg.norm(np.maximum(np.abs(pixel - place) - size / 2, 0.0)) > _LEADER * scale:
            axes.plot(*ends.T, color=theme.soft, linewidth=0.6, zorder=2)


def _along(line: Sequence[Point]) -> Array:
    """A line of ascending points as many, close to each other."""
    if not line:
        return np.zeros((0, 2))
    xs = np.linspace(line[0][0], line[-1][0], 200)
    return np.stack([xs, np.interp(xs, *np.array(line).T)], -1)


def _free_place(pixel: Array, size: Array, inside: Any, scale: float, middles: Array, sizes: Array) -> Array:
    """The first of those inside with the fewest things below it."""
    directions = [(away, np.array([math.cos(angle), math.sin(angle)])) for away in _AWAY for angle in _ANGLES]
    places = [pixel + direction * (size / 2 + (_MARKER + away) * scale) for away, direction in directions]
    low, high = inside.min + size / 2, inside.max - size / 2
    free = [place for place in places if (place >= low).all() and (place <= high).all()] or [pixel]
    return min(free, key=lambda place: int((np.abs(place - middles) < (size + sizes) / 2).all(-1).sum()))


# ------------------------------------------------------------------------------------------------ vectors


class Plane(NamedTuple):
    """`points`: in the plane of largest spread; `shares`: of the whole spread, along its two axes."""

    points: Array
    shares: tuple[float, float]


def plane(vectors: npt.NDArray[Any]) -> Plane:
    """The first two principal components."""
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    flat[:, : len(axes[:2])] = centred @ axes[:2].T
    first, second = np.append(sizes**2, [0.0, 0.0])[:2] / max(float((sizes**2).sum()), 1e-12)
    return Plane(flat, (float(first), float(second)))


@dataclass(frozen=True)
class Names(Panel):
    """What the numbers in the panel beside it stand for: (name, note), from 1."""

    rows: Sequence[tuple[str, str]]

    def on(self, axes: Any, theme: Theme) -> None:
        axes.set_axis_off()
        step = 1 / max(len(self.rows), 18)
        style = {"xycoords": "axes fraction", "va": "center", "fontsize": 8.5, "annotation_clip": False}
        for place, (name, note) in enumerate(self.rows):
            height = 1 - (place + 0.5) * step
            axes.annotate(str(place + 1), (0.06, height), ha="right", weight="bold", **style)
            axes.annotate(short(name), (0.1, height), **style)
            axes.annotate(note, (1.0, height), ha="right", color=theme.soft, **style)
