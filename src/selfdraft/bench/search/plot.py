"""A document of the search benchmark as pictures: `swift`'s timeline and time, the matrix of `knn`, mixed streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..plot import COLORS, require_matplotlib
from ..ways import OFF
from .names import SWIFT, SWIFT_PAPER

BLUE, ORANGE, GREEN, PINK, SKY, RED = COLORS[:6]
_PARTS = {"optimise": ORANGE, "draft": BLUE, "verify": GREEN, "other": "#B3B3B3"}
_DARK = (BLUE, RED)
Document = Mapping[str, Any]


def draw(document: Document, folder: str | Path) -> list[Path]:
    """Needs matplotlib. One file for each part that was measured."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    found = {name: figure(document) for name, (is_there, figure) in _PICTURES.items() if is_there(document)}
    Path(folder).mkdir(parents=True, exist_ok=True)
    return [_write(document, picture, Path(folder) / f"{name}.png") for name, picture in found.items()]


def _write(document: Document, figure: Any, file: Path) -> Path:
    from matplotlib import pyplot

    figure.suptitle(f"{document['model']}, {document['dtype']}, {document['device_name']}", fontsize=11)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)
    return file


def _new(num_rows: int, num_columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    from matplotlib import pyplot

    size = (width, height)
    figure, axes = pyplot.subplots(num_rows, num_columns, figsize=size, layout="constrained", squeeze=False, **options)
    return figure, axes


def _tidy(axes: Any, grid: str | None = "y") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#E5E5E5", linewidth=0.8)


# ----------------------------------------------------------------------------------------------------------- swift


def _timeline(document: Document) -> Any:
    """A panel for each way that searches: speed-ups on the left axis, matchness on the right one."""
    found = document["swift"]
    names = list(found["timeline"])
    figure, axes = _new(len(names), 1, 9.0, 3.1 * len(names) + 0.7, sharex=True, sharey=True)
    for panel, name in zip(axes[:, 0], names, strict=True):
        _draw_timeline(panel, found, name)
    axes[-1, 0].set_xlabel(f"prompt of the stream ({found['domain']})")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _draw_timeline(axes: Any, found: Mapping[str, Any], name: str) -> None:
    own, plain, course = found["texts"][name], found["texts"][OFF], found["timeline"][name]
    places = list(range(1, len(own) + 1))
    _shade(axes, course)
    instance = [_rate(plain[:n][-1:], own[:n][-1:]) for n in places]
    overall = [_rate(plain[:n], own[:n]) for n in places]
    axes.plot(places, instance, ".", color=SKY, markersize=6, label="this prompt")
    axes.plot(places, overall, color=BLUE, linewidth=2, label="all so far")
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="plain decoding")
    axes.plot([], [], color=ORANGE, linewidth=2, label="matchness (right)")
    axes.fill_between([], [], color="#E8E8E8", label="searching")
    axes.set_ylabel("speed-up of decoding")
    axes.set_xlim(0.5, len(own) + 0.5)
    right = axes.twinx()
    known = [
        (place, one["matchness"]) for place, one in zip(places, course, strict=True) if one["matchness"] is not None
    ]
    if known:
        right.plot(*zip(*known, strict=True), color=ORANGE, linewidth=2, drawstyle="steps-post")
    right.set_ylim(0, 1.02)
    right.set_ylabel("matchness of the set in use")
    last = course[-1]
    title = f"{name}: {last['step']} steps, {overall[-1]:.2f}x in all"
    axes.set_title(title, fontsize=10, loc="left")
    _tidy(axes)
    right.spines[["top", "left"]].set_visible(False)


def _shade(axes: Any, course: Sequence[Mapping[str, Any]]) -> None:
    for place, one in enumerate(course, start=1):
        if one["phase"] == "optimise":
            axes.axvspan(place - 0.5, place + 0.5, color="#E8E8E8", linewidth=0)


def _rate(plain: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of a token, plainly, over those of this way."""
    seconds, tokens = (sum(text[key] for text in plain) for key in ("seconds", "num_tokens"))
    own_seconds, own_tokens = (sum(text[key] for text in own) for key in ("seconds", "num_tokens"))
    per_token, own_per_token = seconds / max(tokens, 1), own_seconds / max(own_tokens, 1)
    return float(per_token / own_per_token) if own_per_token else float("nan")


def _split(document: Document) -> Any:
    rows = [row for row in document["swift"]["ways"] if row["name"] in (SWIFT, SWIFT_PAPER)]
    figure, axes = _new(1, 1, 8.0, 0.75 * len(rows) + 1.5)
    panel = axes[0, 0]
    lefts = [0.0] * len(rows)
    for part, color in _PARTS.items():
        widths = [100 * max(0.0, row["split"][part] or 0.0) for row in rows]
        bars = panel.barh([row["name"] for row in rows], widths, 0.6, left=lefts, color=color, label=part)
        _label_shares(panel, bars, color in _DARK)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    panel.invert_yaxis()
    panel.set_xlim(0, max(100.0, *lefts))
    panel.set_xlabel("share of decoding, percent")
    _tidy(panel, None)
    figure.legend(loc="outside lower center", ncols=len(_PARTS), frameon=False, fontsize=9)
    return figure


def _label_shares(axes: Any, bars: Any, is_dark: bool) -> None:
    """Inside where there is room, else above."""
    for bar in bars:
        width, middle = bar.get_width(), bar.get_x() + bar.get_width() / 2
        is_wide = width > 7
        color = "white" if is_wide and is_dark else "black"
        place = bar.get_y() + bar.get_height() / 2 if is_wide else bar.get_y() - 0.02
        if width > 0.05:
            align = "center" if is_wide else "bottom"
            axes.text(middle, place, f"{width:.1f} %", ha="center", va=align, fontsize=9, color=color)


# ------------------------------------------------------------------------------------------------------------- knn


def _matrix(document: Document) -> Any:
    found = document["knn"]["matrix"]
    tasks, sets = found["tasks"], list(found["match"])
    figure, axes = _new(1, 2, 1.05 * 2 * len(tasks) + 3.4, 0.7 * len(sets) + 2.2)
    speeds = [[found["speedup"][name][task]["speedup"] for task in tasks] for name in sets]
    matches = [[found["match"][name][task] for task in tasks] for name in sets]
    _heat(axes[0, 0], speeds, tasks, sets, "speed-up as a chain", "{:.2f}x")
    _heat(axes[0, 1], matches, tasks, sets, "share of the target's choices met", "{:.3f}")
    axes[0, 1].set_ylabel("")
    return figure


def _heat(
    axes: Any,
    values: Sequence[Sequence[float | None]],
    tasks: Sequence[str],
    sets: Sequence[str],
    title: str,
    form: str,
) -> None:
    """The best of each column is framed."""
    import numpy as np

    grid = np.array([[np.nan if value is None else value for value in row] for row in values], dtype=float)
    axes.imshow(grid, cmap="cividis", aspect="auto")
    low, high = (float(bound(grid)) if np.isfinite(grid).any() else 0.0 for bound in (np.nanmin, np.nanmax))
    for row, column in np.ndindex(grid.shape):
        value = grid[row, column]
        if np.isfinite(value):
            is_dark = value < (low + high) / 2
            is_best = value == np.nanmax(grid[:, column])
            axes.text(
                column,
                row,
                form.format(value),
                ha="center",
                va="center",
                fontsize=9,
                color="white" if is_dark else "black",
                weight="bold" if is_best else "normal",
            )
    axes.set_xticks(range(len(tasks)), tasks, rotation=25, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(sets)), sets)
    axes.set_xlabel("on task")
    axes.set_ylabel("set of domain")
    axes.set_title(f"{title} (bold: best of a task)", fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _mixed(document: Document) -> Any:
    streams = document["knn"]["mixed"]
    names = [row["name"] for row in streams[0]["ways"] if row["name"] != OFF]
    figure, axes = _new(1, 1, max(7.0, 0.3 * len(names) * len(streams) + 2.2), 4.8)
    panel, width = axes[0, 0], 0.86 / len(names)
    for position, name in enumerate(names):
        found = [next(row["interval"] for row in one["ways"] if row["name"] == name) for one in streams]
        known = [(group, one) for group, one in enumerate(found) if one["speedup"] is not None]
        places = [group + (position - (len(names) - 1) / 2) * width for group, _ in known]
        heights = [one["speedup"] for _, one in known]
        errors = [[one["speedup"] - one["low"] for _, one in known], [one["high"] - one["speedup"] for _, one in known]]
        color, hatch = _style(name, names)
        bars = panel.bar(
            places, heights, width * 0.9, label=name, color=color, hatch=hatch, edgecolor="white", linewidth=0
        )
        panel.errorbar(places, heights, errors, fmt="none", ecolor="#4D4D4D", elinewidth=1.2, capsize=2)
        tops = [f"{one['speedup']:.2f}" for _, one in known]
        ink = {
            "color": "white" if color in _DARK else "black",
            "bbox": {"facecolor": color, "linewidth": 0, "pad": 1.0},
        }
        panel.bar_label(bars, tops, fontsize=8, rotation=90, label_type="center", weight="bold", **ink)
    panel.axhline(1.0, color="black", linestyle="--", linewidth=1, label="plain decoding")
    panel.set_xticks(range(len(streams)), [f"r = {one['ratio']:g}\n{one['num_prompts']} prompts" for one in streams])
    panel.set_ylabel("speed-up of decoding (bars: 95 %)")
    panel.tick_params(axis="x", length=0)
    _tidy(panel)
    figure.legend(loc="outside lower center", ncols=min(4, len(names) + 1), frameon=False, fontsize=9)
    return figure


def _style(name: str, names: Sequence[str]) -> tuple[str, str]:
    """A strategy has one colour; with its own pairing it is hatched."""
    strategy, _, pairing = name.partition(", ")
    alike = [other for other in names if ", " not in other]
    place = alike.index(strategy) if strategy in alike else len(alike)
    return (BLUE, ORANGE, GREEN, PINK, SKY, RED)[place % 6], "//" if pairing else ""


def _has_texts(document: Document) -> bool:
    return bool(document["swift"] and document["swift"]["num_prompts"] and document["swift"]["timeline"])


def _has_matrix(document: Document) -> bool:
    knn = document["knn"]
    return bool(knn and knn["matrix"] and knn["matrix"]["num_prompts"])


_PICTURES: Mapping[str, tuple[Callable[[Document], bool], Callable[[Document], Any]]] = {
    "search-swift": (_has_texts, _timeline),
    "search-split": (_has_texts, _split),
    "search-matrix": (_has_matrix, _matrix),
    "search-mixed": (lambda document: bool(document["knn"] and document["knn"]["mixed"]), _mixed),
}
