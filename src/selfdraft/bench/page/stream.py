"""Speed-up along the run: all texts so far, where the tasks follow each other as bands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..harness.records import TextRecord
from ..harness.rows import Row
from .chart import MARKERS, Chart, Missing, Theme, short
from .labels import label_ends
from .result import Result, left_out, speedup_of

TITLE = "Speed-up along the stream"
LEAST_TEXTS = 3
MOST_WITH_DOTS = 3
"""Single texts are shown of so few ways only."""
_CHARACTER_INCHES, _WIDTH_INCHES = 0.075, 7.2


def chart(result: Result) -> Chart | Missing:
    result = result.stream
    texts = result.plain_texts
    if len(texts) < LEAST_TEXTS or not result.rows:
        return Missing(TITLE, f"too few texts to show a course, {len(texts)}")
    rows, others = result.few_rows()
    stretches = domain_stretches(texts)
    order = (
        "Bands: the domain of the texts, task by task."
        if stretches
        else "The texts of all domains are mixed, so there are no bands."
    )
    dots = " Dots: single texts." if len(rows) <= MOST_WITH_DOTS else ""
    return Chart(
        title=TITLE,
        text=f"Of all texts so far, in the order they were decoded. {order}{dots}",
        alt=f"Running speed-up over {len(texts)} texts of {'; '.join(row['name'] for row in rows)}.",
        left_out=left_out(others),
        size=(9.6, 4.8),
        draw=lambda figure, theme: _draw(figure, theme, result, rows, stretches),
    )


def domain_stretches(texts: Sequence[TextRecord]) -> list[tuple[str, int, int]]:
    """(domain, first, last) text, from 1; none where domains come again: the stream is mixed."""
    found, place = [], 1
    for domain, group in groupby(texts, key=lambda record: record.domain):
        count = len(list(group))
        found.append((domain, place, place + count - 1))
        place += count
    return found if 1 < len(found) == len({domain for domain, *_ in found}) else []


def course(result: Result, row: Row) -> list[tuple[int, float]]:
    """(number of the text from 1, speed-up of all so far)."""
    own, plain = result.texts(row["name"]), {record.number: record for record in result.plain_texts}
    places = {record.number: place for place, record in enumerate(result.plain_texts, start=1)}
    own = [record for record in own if record.number in plain]
    both = [plain[record.number] for record in own]
    found = [(places[one.number], speedup_of(row, own[:n], both[:n])) for n, one in enumerate(own, start=1)]
    return [(place, value) for place, value in found if value is not None]


def _draw(figure: Any, theme: Theme, result: Result, rows: Sequence[Row], stretches: Sequence[Any]) -> None:
    axes = figure.subplots()
    ends = []
    for number, row in enumerate(rows):
        points, color = course(result, row), theme.series[number]
        if not points:
            continue
        if len(rows) <= MOST_WITH_DOTS:
            _draw_dots(axes, result, row, color)
        every = max(1, len(points) // 8)
        style = {"color": color, "marker": MARKERS[number], "markersize": 5, "markevery": (number % every, every)}
        axes.plot(*zip(*points, strict=True), lw=1.8, zorder=4, **style)
        ends.append((points[-1][1], short(row["name"]), color))
    axes.axhline(1.0, color=theme.ink, linestyle=(0, (3, 2)), lw=0.9, zorder=2)
    axes.set_xlim(0.5, len(result.plain_texts) + 0.5)
    axes.set_xlabel("text of the run")
    axes.set_ylabel("speed-up of all texts so far")
    axes.grid(axis="y", lw=0.8)
    axes.set_ylim(*axes.get_ylim())
    _draw_bands(axes, theme, stretches, len(result.plain_texts))
    label_ends(axes, ends, theme)


def _draw_dots(axes: Any, result: Result, row: Row, color: str) -> None:
    plain = {record.number: (place, record) for place, record in enumerate(result.plain_texts, start=1)}
    texts = [record for record in result.texts(row["name"]) if record.number in plain]
    found = [(plain[one.number][0], speedup_of(row, [one], [plain[one.number][1]])) for one in texts]
    known = [(place, value) for place, value in found if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), ".", color=color, alpha=0.35, markersize=5, zorder=3)


def _draw_bands(axes: Any, theme: Theme, stretches: Sequence[tuple[str, int, int]], num_texts: int) -> None:
    """Names above the panel; where they are wider than their bands they go up in turns."""
    inches = _WIDTH_INCHES / max(num_texts, 1)
    is_narrow = any(len(name) * _CHARACTER_INCHES > (last - first + 1) * inches for name, first, last in stretches)
    for place, (name, first, last) in enumerate(stretches):
        if place % 2 == 0:
            axes.axvspan(first - 0.5, last + 0.5, color=theme.band, lw=0, zorder=0)
        lift = 4 + (11 * (place % 2) if is_narrow else 0)
        axes.annotate(
            name, ((first + last) / 2, 1.0), (0, lift), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=theme.soft,
            annotation_clip=False,
        )  # fmt: skip
