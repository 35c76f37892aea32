"""Labels that do not lie upon each other: around points, and beside the ends of lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...economics import Array
from .chart import Theme

_AWAY = (3.0, 7.0, 13.0, 20.0, 29.0, 40.0, 54.0, 72.0)
"""Points between a marker and its label, the nearest that is free first."""
_ANGLES = tuple(math.radians(angle) for angle in (20, 160, -20, -160, 60, 120, -60, -120, 90, -90, 0, 180))
_MARKER = 5.0
_LEADER = 8.0
"""Points of distance from which on a line leads from the label to its marker."""
Box = tuple[Array, Array]  # middle, size


Point = tuple[float, float]


def label_points(
    axes: Any, points: Sequence[Point], texts: Sequence[str], theme: Theme, line: Sequence[Point] = ()
) -> None:
    """Beside each point, not upon another label, a marker or the line as far as there is room.

    The last thing to do to a figure.
    """
    figure = axes.figure.get_figure(root=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed where the panel is now
    axes.autoscale(False)
    scale = figure.dpi / 72
    pixels = axes.transData.transform(np.array(points, dtype=float).reshape(-1, 2))
    taken: list[Box] = [(pixel, np.full(2, 2 * _MARKER * scale)) for pixel in pixels]
    taken += [(pixel, np.full(2, 2 * scale)) for pixel in _along(axes, line)]
    inside = axes.get_window_extent()
    for pixel, text in zip(pixels, texts, strict=True):
        shown = axes.text(0, 0, text, ha="center", va="center", fontsize=8.5, color=theme.ink, zorder=6)
        size = shown.get_window_extent().size + 2 * scale
        place = _free_place(pixel, size, inside, scale, taken)
        taken.append((place, size))
        ends = axes.transData.inverted().transform([pixel, place])
        shown.set_position(ends[1])
        if np.linalg.norm(_gap(pixel, place, size)) > _LEADER * scale:
            axes.plot(*ends.T, color=theme.soft, lw=0.6, zorder=2)


def _along(axes: Any, line: Sequence[Point]) -> Array:
    """Pixels of a line of ascending points, close to each other."""
    if not line:
        return np.zeros((0, 2))
    xs = np.linspace(line[0][0], line[-1][0], 200)
    pixels: Array = axes.transData.transform(np.stack([xs, np.interp(xs, *np.array(line).T)], -1))
    return pixels


def _free_place(pixel: Array, size: Array, inside: Any, scale: float, taken: Sequence[Box]) -> Array:
    places = list(_places(pixel, size, inside, scale)) or [pixel]
    return min(places, key=lambda place: sum(_overlap(place, size, *other) for other in taken))  # the first of the best


def _places(pixel: Array, size: Array, inside: Any, scale: float) -> Iterator[Array]:
    for away, angle in itertools.product(_AWAY, _ANGLES):
        direction = np.array([math.cos(angle), math.sin(angle)])
        place = pixel + direction * (size / 2 + (_MARKER + away) * scale)
        if (place >= inside.min + size / 2).all() and (place <= inside.max - size / 2).all():
            yield place


def _gap(pixel: Array, place: Array, size: Array) -> Array:
    """Between a point and a box."""
    gap: Array = np.maximum(np.abs(pixel - place) - size / 2, 0.0)
    return gap


def _overlap(place: Array, size: Array, other: Array, other_size: Array) -> bool:
    return bool((np.abs(place - other) < (size + other_size) / 2).all())


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], theme: Theme) -> None:
    """(height, text, colour) to the right of a panel whose limits are set: a dash in its colour, then the text."""
    low, high = axes.get_ylim()
    height_points = axes.get_position().height * axes.figure.get_figure(root=True).get_figheight() * 72
    least = 13.0 / max(height_points, 1.0) * (high - low)
    order = sorted(range(len(ends)), key=lambda index: ends[index][0])
    for index, place in zip(order, spread([ends[index][0] for index in order], least, low, high), strict=True):
        value, text, color = ends[index]
        style = {"xycoords": axes.get_yaxis_transform(), "annotation_clip": False, "va": "center"}
        axes.annotate("", (1.0, value), (1.025, place), textcoords=axes.get_yaxis_transform(), arrowprops={
            "arrowstyle": "-", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}, **style)  # fmt: skip
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
