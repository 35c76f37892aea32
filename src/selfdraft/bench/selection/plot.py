"""A document of the selection benchmark as a picture: acceptance against cost, and speed-up against length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..plot import COLORS, require_matplotlib
from ..ways import OFF

_MARKERS = "osD^vPX*<>"
_COLORS = [color for color in COLORS if color != "#F0E442"] + ["#882255", "#117733", "#999933"]
"""Yellow is too faint for lines and small marks."""
_FADED = "#8C8C8C"


def draw(document: Mapping[str, Any], file: str | Path) -> None:
    """Needs matplotlib. The second panel is there where long texts were measured."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [_draw_costs] * bool(document["ways"]) + [_draw_contexts] * bool(document["contexts"])
    if not panels:
        return
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6.4 * len(panels) + 0.6, 5.2), layout="constrained", squeeze=False
    )
    styles = _styles(document)
    for panel, place in zip(panels, axes[0], strict=True):
        panel(place, document, styles)
        place.spines[["top", "right"]].set_visible(False)
        place.grid(color="#E5E5E5", linewidth=0.8)
        place.set_axisbelow(True)
    figure.suptitle(f"{document['model']}, {document['dtype']}, {document['device_name']}", fontsize=12)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


def _styles(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """One look for each strategy in both panels."""
    rows = [*document["ways"], *(row for context in document["contexts"] for row in context["ways"])]
    wanted = {row["name"]: row for row in rows if row["name"] in document["tables"]["A"] or row not in document["ways"]}
    names = [name for name, row in wanted.items() if name != OFF and _skips(row)]
    return {
        name: {"color": _COLORS[index % len(_COLORS)], "marker": _MARKERS[index % len(_MARKERS)]}
        for index, name in enumerate(names)
    }


def _skips(row: Mapping[str, Any]) -> bool:
    """What drafts without the model has no place among sub-layers."""
    return bool(row["method"].get("drafter", "self") == "self")


def _draw_costs(axes: Any, document: Mapping[str, Any], styles: Mapping[str, dict[str, Any]]) -> None:
    """Table A. Up and to the left is better; the frontier is what a fixed set of `prune` would meet."""
    points = document["held_out"]["points"]
    axes.plot(
        [point["cost_by_seconds"] for point in points],
        [point["match"] for point in points],
        color=_FADED,
        linewidth=1.5,
        marker=".",
        markersize=4,
        label="prune's frontier, match",
    )
    ways = {row["name"]: row["total"] for row in document["ways"]}
    for label, name in document["tables"]["A"].items():
        if label not in styles:
            continue
        total = ways[name]
        if total["acceptance_rate"] is None or total["cost_by_seconds"] is None:
            axes.plot([], [], linestyle="", label=f"{label} (did not draft)", **styles[label])
            continue
        text = f"{label} ({total['speedup']:.2f}x)"
        place = [total["cost_by_seconds"]], [total["acceptance_rate"]]
        axes.plot(*place, linestyle="", markersize=9, markeredgecolor="white", label=text, **styles[label])
    axes.set_xlabel("cost of a drafted token, share of a plain pass (fitted seconds)")
    axes.set_ylabel("accepted share of drafted tokens; match of the frontier")
    axes.set_ylim(0, 1.03)
    axes.set_title("Table A: held-out prompts (in brackets: speed-up)", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="lower right", ncols=1)


def _draw_contexts(axes: Any, document: Mapping[str, Any], styles: Mapping[str, dict[str, Any]]) -> None:
    contexts = document["contexts"]
    lengths = [context["length"] for context in contexts]
    totals = [{row["name"]: row["total"] for row in context["ways"]} for context in contexts]
    for name in totals[0]:
        if name in styles:
            heights = [total[name]["speedup"] for total in totals]
            axes.plot(lengths, heights, label=name, linewidth=1.5, markersize=7, **styles[name])
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="plain decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [_tick(context) for context in contexts])
    axes.set_xlabel("length of the text (KnapSpec's weights of attention : MLP)")
    axes.set_ylabel("speed-up of decoding")
    axes.set_title(f"Long texts, {document['options']['context_tokens']} new tokens", fontsize=11)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left")
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.35 * (high - low), high)  # room for the legend


def _tick(context: Mapping[str, Any]) -> str:
    weights = context["weights"]
    return f"{context['length']}\n({weights['attention']}:{weights['mlp']})"
