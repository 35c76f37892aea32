"""A document of the lookahead benchmark as a picture: speed-ups below the oracle's, and how far the oracle drafts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..plot import COLORS, require_matplotlib
from .lengths import NUM_BUCKETS
from .report import rows_to_show
from .rows import ORACLE

_LINES = [color for color in COLORS if color != "#F0E442"] + ["#882255", "#117733", "#999933"]
"""Yellow is too faint for lines."""
_MARKERS = "osD^vPX*<>"
_BARS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_TEXT = {"fontsize": 8, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}}
_MAX_LENGTH = 24
"""Longer drafts share the last place of the histogram."""


def draw(document: Mapping[str, Any], file: str | Path) -> None:
    """Needs matplotlib. The panels below are there where the oracle was measured; they show the first temperature."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not document["temperatures"]:
        return
    oracle = document["temperatures"][0]["oracle"]
    layout = [["speed", "speed"], ["histogram", "course"]] if oracle else [["speed", "speed"]]
    figure, panels = pyplot.subplot_mosaic(
        layout, figsize=(11.0, 8.4 if oracle else 4.4), layout="constrained", height_ratios=[1.1, 1][: len(layout)]
    )
    _draw_speeds(panels["speed"], document)
    if oracle:
        temperature = document["temperatures"][0]["temperature"]
        _draw_histogram(panels["histogram"], oracle, temperature)
        _draw_course(panels["course"], oracle, temperature)
        handles, labels = panels["course"].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=9)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    figure.suptitle(f"{document['model']}, {document['dtype']}, {document['device_name']}", fontsize=12)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


def _draw_speeds(axes: Any, document: Mapping[str, Any]) -> None:
    """Over all prompts, a bar for each temperature; the oracle as a line that none can pass."""
    found = document["temperatures"]
    width = 0.84 / len(found)
    names = [row["name"] for row in rows_to_show(found[0])]
    for position, one in enumerate(found):
        color = _BARS[position % len(_BARS)]
        heights = [row["total"]["speedup"] or 0.0 for row in rows_to_show(one)]
        places = [index + (position - (len(found) - 1) / 2) * width for index in range(len(heights))]
        label = f"temperature {one['temperature']:g}"
        bars = axes.bar(places, heights, width * 0.92, color=color, label=label)
        axes.bar_label(bars, fmt="{:.2f}", padding=2, zorder=3, **_TEXT)
        bound = next((row["total"]["speedup"] for row in one["rows"] if row["name"] == ORACLE), None)
        if bound is not None:
            axes.axhline(bound, color=color, linestyle="--", linewidth=1.2, zorder=0, label=f"its oracle: {bound:.2f}")
    axes.axhline(1.0, color="black", linewidth=0.8, label="plain decoding")
    axes.set_xticks(range(len(names)), names, rotation=18, ha="right")
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("speed-up of decoding")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.06)
    counts = ", ".join(f"{domain} {count}" for domain, count in document["prompts"].items())
    axes.set_title(f"All prompts ({counts})", fontsize=11)
    axes.legend(fontsize=8, frameon=False, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_histogram(axes: Any, oracle: Mapping[str, Any], temperature: float) -> None:
    longest = min(max(len(found["histogram"]) for found in oracle.values()) - 1, _MAX_LENGTH)
    for index, found in enumerate(oracle.values()):
        counts = found["histogram"]
        counts = [*counts, *[0] * (longest + 1 - len(counts))]
        folded = [*counts[:longest], sum(counts[longest:])]
        shares = [count / max(1, found["num_rounds"]) for count in folded]
        axes.plot(range(longest + 1), shares, markersize=4, linewidth=1.4, **_style(index))
    axes.set_xlabel(f"tokens kept in a round{f', {_MAX_LENGTH} and more at the end' if longest == _MAX_LENGTH else ''}")
    axes.set_ylabel("share of the rounds")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_title(f"How far the oracle drafts, temperature {temperature:g}", fontsize=11)


def _draw_course(axes: Any, oracle: Mapping[str, Any], temperature: float) -> None:
    middles = [(bucket + 0.5) / NUM_BUCKETS for bucket in range(NUM_BUCKETS)]
    for index, (domain, found) in enumerate(oracle.items()):
        known = [(x, mean) for x, mean in zip(middles, found["course"], strict=True) if mean is not None]
        label = f"{domain} ({found['mean']:.1f} ± {found['std']:.1f})"
        axes.plot(*zip(*known, strict=True), markersize=4, linewidth=1.4, label=label, **_style(index))
    axes.set_xlabel("place of the round in its text, from its first to its last")
    axes.set_ylabel("mean of tokens kept in a round")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#E5E5E5", linewidth=0.8)
    axes.set_title(f"The same over the generation, temperature {temperature:g}", fontsize=11)


def _style(index: int) -> dict[str, Any]:
    """Of a domain, in both panels."""
    return {"color": _LINES[index % len(_LINES)], "marker": _MARKERS[index % len(_MARKERS)]}
