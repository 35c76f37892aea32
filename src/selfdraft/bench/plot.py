"""A benchmark's document as bars: tokens per second of each way, by domain. Needs matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from .report import label

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart; beyond eight rows hatches help."""
MAX_INCHES = 16.0
_GREYS = ("#4D4D4D", "#8C8C8C", "#B3B3B3", "#D9D9D9")
_HATCHES = ("", "//", "..", "xx")


ELSEWHERE = "keep the figures with --output and draw them elsewhere: selfdraft bench table FILE --plot FILE.png"


def require_matplotlib(what: str = "a plot", instead: str = ELSEWHERE) -> None:
    """Refuse, before any work, when nothing can draw."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(f"drawing {what} needs matplotlib. Install with: pip install matplotlib. Or {instead}")


def draw(document: Mapping[str, Any], file: str | Path) -> None:
    """Peers in grey, ours in colour; the baseline is hatched and a dashed line continues it across its group."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in document["rows"] if not row["error"]]
    domains = [*document["prompts"], "all"]
    width = min(max(7.0, 0.36 * len(rows) * len(domains) + 1.5), MAX_INCHES)
    figure, axes = pyplot.subplots(figsize=(width, 5.0), layout="constrained")
    styles = _styles(rows, document["baseline"])
    for position, (row, style) in enumerate(zip(rows, styles, strict=True)):
        _draw_row(axes, row, domains, position, len(rows), {"label": label(document, row), **style})
    _draw_baseline(axes, rows, domains, document["baseline"])
    axes.set_xticks(range(len(domains)), domains)
    axes.set_ylabel("tokens per second, whole calls")
    axes.margins(y=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    axes.set_title(f"{document['model']}, {document['dtype']}, {document['device_name']}", fontsize=11)
    figure.legend(loc="outside lower center", ncols=min(3, len(rows)), frameon=False, fontsize=9)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


def _styles(rows: list[Mapping[str, Any]], baseline: str | None) -> list[dict[str, Any]]:
    counts = {"peer": 0, "ours": 0}
    styles = []
    for row in rows:
        palette = _GREYS if row["kind"] == "peer" else COLORS
        index = counts[row["kind"]]
        counts[row["kind"]] += 1
        hatch = "///" if _is_baseline(row, baseline) else _HATCHES[index // len(palette) % len(_HATCHES)]
        styles.append({"color": palette[index % len(palette)], "hatch": hatch})
    return styles


def _draw_row(
    axes: Any, row: Mapping[str, Any], domains: list[str], position: int, num_rows: int, style: dict[str, Any]
) -> None:
    width = 0.84 / num_rows
    places = [group + (position - (num_rows - 1) / 2) * width for group in range(len(domains))]
    heights = [_speed(row, domain) for domain in domains]
    bars = axes.bar(places, heights, width * 0.9, edgecolor="white", linewidth=0, **style)
    axes.bar_label(bars, fmt="{:.0f}", padding=4, fontsize=8, rotation=90)


def _draw_baseline(axes: Any, rows: list[Mapping[str, Any]], domains: list[str], baseline: str | None) -> None:
    row = next((row for row in rows if _is_baseline(row, baseline)), None)
    if row is not None:
        for group, domain in enumerate(domains):
            name = f"baseline: {row['label']}" if not group else None
            height = _speed(row, domain)
            axes.plot([group - 0.45, group + 0.45], [height, height], "--", color="black", linewidth=1, label=name)


def _is_baseline(row: Mapping[str, Any], baseline: str | None) -> bool:
    return bool(row["kind"] == "peer" and row["name"] == baseline)


def _speed(row: Mapping[str, Any], domain: str) -> float:
    figures = row["total"] if domain == "all" else row["domains"].get(domain, {})
    return figures.get("tokens_per_second") or 0.0
