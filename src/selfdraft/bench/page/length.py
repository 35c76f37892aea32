"""Speed-up against the length of the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..harness.figures import interval
from ..harness.records import TextRecord
from ..harness.rows import Row, is_of_calls
from .chart import MARKERS, Chart, Missing, Theme, short
from .labels import label_ends
from .result import Result, left_out

TITLE = "Speed-up against context length"
LEAST_SPREAD = 4.0
"""Texts whose lengths differ by less than this factor say nothing about length."""
LEAST_TEXTS = 2


def chart(result: Result) -> Chart | Missing:
    lengths = [record.num_prompt_tokens for record in result.plain_texts]
    if not lengths or not result.rows:
        return Missing(TITLE, "nothing but plain decoding was measured" if lengths else "no text was measured")
    shortest, longest = min(lengths), max(lengths)
    edges = bins(lengths)
    if longest < LEAST_SPREAD * max(shortest, 1) or len(edges) < 3:
        why = f"all prompts are of similar length, {shortest} to {longest} tokens; longer ones are needed as well"
        return Missing(TITLE, why)
    rows, others = result.few_rows()
    return Chart(
        title=TITLE,
        text="Texts by the tokens of their prompt; the number of texts stands below. Lines at the points: 95 % "
        "intervals.",
        alt=f"Speed-up of {'; '.join(row['name'] for row in rows)} for prompts of {shortest} to {longest} tokens.",
        left_out=left_out(others),
        size=(9.6, 4.6),
        draw=lambda figure, theme: _draw(figure, theme, result, rows, edges),
    )


def bins(lengths: Sequence[int]) -> list[int]:
    """Edges, powers of two but for the last; between two of them lie at least `LEAST_TEXTS` lengths."""
    edges = [2 ** int(math.log2(max(min(lengths), 1)))]
    top = max(lengths) + 1
    while edges[-1] < top:
        edge = edges[-1] * 2
        while edge < top and _between(lengths, edges[-1], edge) < LEAST_TEXTS:
            edge *= 2
        edges.append(min(edge, top))
    if len(edges) > 2 and _between(lengths, edges[-2], edges[-1]) < LEAST_TEXTS:
        del edges[-2]
    return edges


def _between(lengths: Sequence[int], low: int, high: int) -> int:
    return sum(low <= length < high for length in lengths)


def _draw(figure: Any, theme: Theme, result: Result, rows: Sequence[Row], edges: Sequence[int]) -> None:
    axes = figure.subplots()
    lengths = [record.num_prompt_tokens for record in result.plain_texts]
    places = range(len(edges) - 1)
    ends = []
    for number, row in enumerate(rows):
        color = theme.series[number]
        found = [_interval(result, row, low, high) for low, high in pairwise(edges)]
        shift = 0.05 * (number - (len(rows) - 1) / 2)
        known = [
            (place + shift, one["value"], one)
            for place, one in zip(places, found, strict=True)
            if one["value"] is not None
        ]
        style = {"color": color, "marker": MARKERS[number], "markersize": 5.5, "lw": 1.8, "zorder": 4}
        axes.plot([place for place, *_ in known], [value for _, value, _ in known], **style)
        for place, _, one in known:
            axes.plot([place, place], [one["low"], one["high"]], color=color, lw=1.1, alpha=0.75, zorder=3)
        if known:
            ends.append((known[-1][1], short(row["name"]), color))
    axes.axhline(1.0, color=theme.ink, linestyle=(0, (3, 2)), lw=0.9, zorder=2)
    names = [
        f"{_length(low)} to {_length(high)}\n{_between(lengths, low, high)} texts" for low, high in pairwise(edges)
    ]
    axes.set_xticks(places, names, fontsize=9)
    axes.set_xlim(-0.3, len(places) - 0.7)
    axes.set_xlabel("tokens of the prompt")
    axes.set_ylabel("speed-up")
    axes.grid(axis="y", lw=0.8)
    axes.set_ylim(*axes.get_ylim())
    label_ends(axes, ends, theme)


def _length(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def _interval(result: Result, row: Row, low: int, high: int) -> dict[str, float | None]:
    plain = {record.number: record for record in result.plain_texts}
    texts = [record for record in result.texts(row["name"]) if low <= record.num_prompt_tokens < high]
    both = [(text, plain[text.number]) for text in texts if text.number in plain]
    is_call = is_of_calls(row["total"])

    def seconds(record: TextRecord) -> float | None:
        return record.call_seconds if is_call else record.decode_seconds

    return interval([one for one, _ in both], [two for _, two in both], seconds, int(result.document["seed"]))
