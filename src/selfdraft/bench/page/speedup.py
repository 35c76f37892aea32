"""Bars of speed-up with intervals: a row for each way, a column for each domain and one for all."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..harness.rows import Row, interval, is_surely_faster, is_surely_slower, shown_speedup
from .chart import Chart, Missing, Theme, short
from .result import Result

TITLE = "Speed-up"
_ALL_INCHES, _DOMAIN_INCHES, _NAME_INCHES, _ROW_INCHES = 2.7, 1.12, 2.3, 0.285
_TITLE_CHARACTERS = 13
_ALL_ROOM, _DOMAIN_ROOM = 0.5, 0.62
"""The share of a panel that bars may fill; the number stands in the rest."""


def chart(result: Result) -> Chart | Missing:
    rows = [row for row in result.rows if shown_speedup(row["total"])["value"] is not None]
    if not rows:
        return Missing(TITLE, "nothing but plain decoding was measured")
    domains = result.domains if len(result.domains) > 1 else []
    best = rows[0]
    return Chart(
        title=TITLE,
        text="Of decoding against plain decoding of the same prompts (dashed: 1.0), fastest way first; lines through "
        "the ends of bars: 95 % intervals by bootstrap over prompts. Of peers (grey) only whole calls are known.",
        alt=f"Bars of speed-up for {len(rows)} ways, over all texts and in {len(domains)} domains. Fastest over all: "
        f"{best['name']}, {interval(shown_speedup(best['total']))}.",
        size=(_NAME_INCHES + _ALL_INCHES + _DOMAIN_INCHES * len(domains), 1.25 + _ROW_INCHES * len(rows)),
        draw=lambda figure, theme: _draw(figure, theme, rows, domains),
    )


def _draw(figure: Any, theme: Theme, rows: Sequence[Row], domains: Sequence[str]) -> None:
    ratios = [_ALL_INCHES, *[_DOMAIN_INCHES] * len(domains)]
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    figure.get_layout_engine().set(w_pad=0.02, wspace=0.0)
    cells = [[row["total"], *(row["domains"].get(domain) for domain in domains)] for row in rows]
    highest = _highest(cells)
    for column, (panel, name) in enumerate(zip(panels, ["all texts", *domains], strict=True)):
        room = _DOMAIN_ROOM if column else _ALL_ROOM
        panel.set_xlim(0, highest / room)
        _draw_panel(panel, theme, rows, [line[column] for line in cells], is_whole=not column)
        panel.set_title(_wrapped(name), fontsize=9, loc="left", linespacing=1.1)
    panels[0].set_yticks(range(len(rows)), [short(row["name"]) for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    _add_legend(figure, theme, rows)


def _highest(cells: Sequence[Sequence[Mapping[str, Any] | None]]) -> float:
    """What bars must have room for. A line of few texts may be longer, and leaves its panel's room then."""
    values = [shown_speedup(cell)["value"] or 0.0 for line in cells for cell in line if cell]
    totals = [shown_speedup(line[0])["high"] or 0.0 for line in cells if line[0]]
    return max(1.1 * max(values), *totals, 1.2)


def _wrapped(domain: str) -> str:
    return "\n".join(textwrap.wrap(domain.replace("_", " "), _TITLE_CHARACTERS)[:2])


def _draw_panel(
    axes: Any, theme: Theme, rows: Sequence[Row], cells: Sequence[Mapping[str, Any] | None], is_whole: bool
) -> None:
    for place, (row, cell) in enumerate(zip(rows, cells, strict=True)):
        if place % 2 == 0:
            axes.axhspan(place - 0.5, place + 0.5, color=theme.band, lw=0, zorder=0)
        found = shown_speedup(cell) if cell else None
        if cell and found and found["value"] is not None:
            axes.barh(place, found["value"], 0.62, zorder=2, **_style(row, cell, theme))
            room = (_ALL_ROOM if is_whole else _DOMAIN_ROOM) * axes.get_xlim()[1]
            ends = [found["low"], min(found["high"] or 0.0, room)]
            axes.plot(ends, [place, place], color=theme.ground, lw=3.0, zorder=4)  # seen on any bar
            axes.plot(ends, [place, place], color=theme.ink, lw=1.4, zorder=5)
            text = interval(found) if is_whole else f"{found['value']:.2f}"
            axes.annotate(
                text, (0.985, place), xycoords=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8.5
            )
    axes.axvline(1.0, color=theme.ink, linestyle=(0, (3, 2)), lw=0.9, zorder=3)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _style(row: Row, figures: Mapping[str, Any], theme: Theme) -> dict[str, Any]:
    if row["kind"] == "bound":
        return {"facecolor": "none", "edgecolor": theme.ink, "linewidth": 1.0, "hatch": ""}
    if row["kind"] == "peer":
        return {"color": theme.peer}
    if row["kind"] == "control":
        return {"color": theme.unsure}
    if is_surely_faster(figures):
        return {"color": theme.faster}
    return {"color": theme.slower if is_surely_slower(figures) else theme.unsure}


def _add_legend(figure: Any, theme: Theme, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=theme.faster, label="faster than plain decoding"),
        Patch(color=theme.unsure, label="too close to tell"),
        Patch(color=theme.slower, label="slower"),
    ]
    kinds = {row["kind"] for row in rows}
    if "peer" in kinds:
        handles.append(Patch(color=theme.peer, label="peer, whole calls"))
    if "bound" in kinds:
        handles.append(Patch(facecolor="none", edgecolor=theme.ink, label="bound: knows the text"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=9)
