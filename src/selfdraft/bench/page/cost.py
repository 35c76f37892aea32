"""Acceptance against the cost of a drafted token: every way a point, the frontier a line, the oracle a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..harness.figures import expected_speedup
from ..harness.rows import Row, interval, shown_speedup
from .chart import Chart, Missing, Theme, short
from .labels import label_points
from .result import Result

TITLE = "Acceptance against cost"
MAX_NAMED = 9
"""More points are numbered, and named beside the panel."""
SPEED_UPS = (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


def chart(result: Result) -> Chart | Missing:
    rows = [row for row in result.rows if _point(row) is not None]
    if not rows:
        return Missing(TITLE, "no way drafted anything")
    frontier = [one for one in result.document["machine"].get("frontier") or () if one.get("match") is not None]
    line = " The line is the frontier that prune found: of all its skip sets, the best match at each cost."
    bounds = [row["name"] for row in rows if row["kind"] == "bound"]
    extra = f" Outlined: {'; '.join(bounds)}, a bound that knows the text beforehand." if bounds else ""
    return Chart(
        title=TITLE,
        text="Up and to the left is better. Cost: seconds of a drafted token over those of a plain pass. Behind the "
        f"points: the speed-up to expect of rounds of {_usual_length(rows):.1f} tokens, the median here."
        + (line if frontier else "")
        + extra,
        alt=f"{len(rows)} ways by the cost of a drafted token and the share of drafted tokens accepted: "
        + "; ".join(f"{row['name']} {_cell(row)}" for row in rows),
        size=(9.6, max(5.4, 0.19 * len(rows) + 1.0)),
        draw=lambda figure, theme: _draw(figure, theme, rows, frontier),
    )


def _point(row: Row) -> tuple[float, float] | None:
    cost, alpha = row["total"]["cost_measured"], row["total"]["acceptance_rate"]
    return None if cost is None or alpha is None else (float(cost), float(alpha))


def _usual_length(rows: Sequence[Row]) -> float:
    return float(np.median([row["total"]["mean_generated_length"] or 1.0 for row in rows]))


def _cell(row: Row) -> str:
    return f"cost {row['total']['cost_measured']:.2f}, accepted {row['total']['acceptance_rate']:.0%}"


def _draw(figure: Any, theme: Theme, rows: Sequence[Row], frontier: Sequence[Mapping[str, Any]]) -> None:
    is_numbered = len(rows) > MAX_NAMED
    axes, beside = figure.subplots(1, 2, width_ratios=[1.0, 0.52]) if is_numbered else (figure.subplots(), None)
    points = [point for point in map(_point, rows) if point is not None]
    line = sorted((float(one["cost"]), float(one["match"])) for one in frontier)
    _set_limits(axes, [*points, *line])
    _draw_speed_ups(axes, theme, _usual_length(rows))
    if line:
        axes.plot(*zip(*line, strict=True), ".-", color=theme.slower, lw=1.6, markersize=4, label="frontier of prune")
    for row, point in zip(rows, points, strict=True):
        axes.plot(*point, linestyle="none", zorder=5, **_marker(row, theme))
    _add_legend(axes, theme, rows, bool(line))
    axes.set_xlabel("cost of a drafted token (plain pass = 1)")
    axes.set_ylabel("share of drafted tokens accepted")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    if beside is not None:
        _list_names(beside, theme, rows)
    names = [str(number) for number in range(1, len(rows) + 1)] if is_numbered else [short(row["name"]) for row in rows]
    label_points(axes, points, names, theme, line)


def _marker(row: Row, theme: Theme) -> dict[str, Any]:
    if row["kind"] == "bound":
        return {"marker": "D", "markersize": 7.5, "markerfacecolor": theme.ground, "markeredgecolor": theme.ink}
    return {"marker": "o", "markersize": 7, "color": theme.faster, "markeredgecolor": theme.ground}


def _set_limits(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    costs, alphas = [point[0] for point in points], [point[1] for point in points]
    left, right = min(*costs, 0.7), max(*costs, 1.0)
    low = min(*alphas, 0.8)
    axes.set_xlim(max(0.0, left - 0.08 * (right - left)), right + 0.08 * (right - left))
    axes.set_ylim(max(0.0, low - 0.1), 1.0)


def _draw_speed_ups(axes: Any, theme: Theme, length: float) -> None:
    """Curves of equal expected speed-up, named where they meet the upper edge. `length`: tokens a round."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    costs, alphas = np.linspace(left, right, 60), np.linspace(low, high, 60)
    speeds = np.array([[expected_speedup(length, alpha, cost) or 0.0 for cost in costs] for alpha in alphas])
    axes.contourf(costs, alphas, speeds, levels=[0.0, 1.0], colors=[theme.band], zorder=0)
    levels = [level for level in SPEED_UPS if speeds.min() < level < speeds.max()]
    if not levels:
        return
    axes.contour(costs, alphas, speeds, levels=levels, colors=theme.grid, linewidths=1.0, zorder=1)
    edge = speeds[-1][::-1]
    places = {level: float(np.interp(level, edge, costs[::-1])) for level in levels if edge[0] < level < edge[-1]}
    above = axes.secondary_xaxis("top")
    named = _apart(places, 0.06 * (right - left))
    above.set_xticks(list(named.values()), [f"{level:g}x" for level in named], fontsize=8)
    above.tick_params(length=3, labelcolor=theme.soft)
    above.spines["top"].set_visible(False)


def _apart(places: Mapping[float, float], least: float) -> dict[float, float]:
    named: dict[float, float] = {}
    for level, place in places.items():
        if all(abs(place - other) >= least for other in named.values()):
            named[level] = place
    return named


def _add_legend(axes: Any, theme: Theme, rows: Sequence[Row], has_line: bool) -> None:
    from matplotlib.lines import Line2D

    labels = {"ours": "selfdraft", "bound": "bound: knows the text"}
    shown = {row["kind"]: row for row in rows}
    handles = [Line2D([], [], linestyle="none", label=labels[kind], **_marker(shown[kind], theme)) for kind in shown]
    if has_line:
        handles.append(Line2D([], [], color=theme.slower, marker=".", lw=1.6, label="frontier of prune (match)"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, fontsize=9)


def _list_names(axes: Any, theme: Theme, rows: Sequence[Row]) -> None:
    axes.set_axis_off()
    step = 1 / max(len(rows), 18)
    for place, row in enumerate(rows):
        height = 1 - (place + 0.5) * step
        style = {"xycoords": "axes fraction", "va": "center", "fontsize": 8.5, "annotation_clip": False}
        axes.annotate(str(place + 1), (0.06, height), ha="right", weight="bold", **style)
        axes.annotate(short(row["name"]), (0.1, height), **style)
        value = interval(shown_speedup(row["total"])).partition(" ")[0]
        axes.annotate(value, (1.0, height), ha="right", color=theme.soft, **style)
