"""Bars by task, and vectors in the plane of their first two principal components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....strategies.kmeans import Vectors
from ...plot import COLORS
from ..recipe import Plot

MARKERS = "osD^vPX*"
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""Under numbers, so that no line goes through them."""
Points = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Panel:
    """`series`: name -> a value for each group, None where there is none; `line`: a dashed one (label, height)."""

    label: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    line: tuple[str, float] | None = None


def bars(panels: Sequence[Panel], alt: str, by: str = "task") -> Plot | None:
    """`by`: what the groups are. One panel above the other; None where there is nothing to draw."""
    if not any(value is not None for panel in panels for values in panel.series.values() for value in values):
        return None

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for one, panel in zip(axes, panels, strict=True):
            _draw_bars(one, panel)
        axes[-1].set_xlabel(by)
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=9)

    return Plot(draw, alt, (8.0, 1.0 + 3.0 * len(panels)))


def _draw_bars(axes: Any, panel: Panel) -> None:
    width = 0.84 / max(1, len(panel.series))
    for position, (name, values) in enumerate(panel.series.items()):
        known = [(group, value) for group, value in enumerate(values) if value is not None]
        places = [group + (position - (len(panel.series) - 1) / 2) * width for group, _ in known]
        heights = [value for _, value in known]
        drawn = axes.bar(places, heights, width * 0.9, label=name, color=COLORS[position % len(COLORS)])
        axes.bar_label(drawn, fmt="{:.2f}", padding=2, fontsize=8, rotation=90, bbox=_PAPER)
    if panel.line is not None:
        label, height = panel.line
        axes.axhline(height, color="black", linestyle="--", linewidth=1, zorder=0.5, label=label)
    axes.set_xticks(range(len(panel.groups)), [group.replace(" (", "\n(") for group in panel.groups])
    axes.set_ylabel(panel.label)
    axes.margins(y=0.2)
    axes.spines[["top", "right"]].set_visible(False)


# ------------------------------------------------------------------------------------------------------------ vectors


@dataclass(frozen=True)
class Plane:
    """`points`: in the plane of largest spread; `explained`: the share of the whole spread that it shows."""

    points: Vectors
    explained: float


def plane(vectors: Vectors) -> Plane:
    """The first two principal components, by singular values."""
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    whole = float((values**2).sum())
    flat = np.zeros((len(vectors), 2))
    flat[:, : len(axes[:2])] = centred @ axes[:2].T
    return Plane(flat, float((values[:2] ** 2).sum()) / whole if whole else 1.0)


def by_owner(points: Vectors, owners: Sequence[str]) -> dict[str, list[list[float]]]:
    """As JSON has them."""
    found: dict[str, list[list[float]]] = {}
    for owner, point in zip(owners, points.tolist(), strict=True):
        found.setdefault(owner, []).append([round(float(value), 5) for value in point])
    return found


def scatter(points: Points, labels: Mapping[str, str], alt: str) -> Plot | None:
    if not points:
        return None

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, (name, found) in enumerate(points.items()):
            xs, ys = zip(*found, strict=True)
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            axes.scatter(xs, ys, s=36, color=color, marker=marker, label=labels.get(name, name))
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second principal component")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)

    return Plot(draw, alt)
