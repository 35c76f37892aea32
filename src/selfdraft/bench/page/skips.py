"""Which sub-layers draft: the skip set that each way used most, as a strip."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ...types import SkipSet
from ..harness.rows import Row
from ..strips import beside_strip, draw_strips
from .chart import Chart, Missing, Theme
from .result import Result

TITLE = "Which sub-layers draft"
_NAME_CHARACTERS, _NAME_LINES = 34, 2


@dataclass
class Used:
    """One set, and the share of passes that each way made with it."""

    skip: SkipSet
    shares: dict[str, float] = field(default_factory=dict)


def chart(result: Result) -> Chart | Missing:
    num_layers = int(result.document["machine"]["num_layers"])
    used = most_used(result.rows, num_layers)
    if not used:
        return Missing(TITLE, "no way skipped anything")
    return Chart(
        title=TITLE,
        text="The skip set that each way used most; ways that share one stand together. Attention above, MLP below, "
        "pale where skipped.",
        alt="Skip sets by way: " + "; ".join(f"{' and '.join(one.shares)}: {_counts(one)} skipped" for one in used),
        size=(11.0, 0.95 + 0.5 * len(used)),
        draw=lambda figure, theme: _draw(figure, theme, used, num_layers),
    )


def most_used(rows: Sequence[Row], num_layers: int) -> list[Used]:
    """Sets of the fastest way first. One that cannot be read, or is of another model, is left out."""
    found: dict[SkipSet, Used] = {}
    for row in rows:
        first = next((one for one in row["skips"] if one["skip"] and one["share"] is not None), None)
        if first is None:
            continue
        try:
            skip = SkipSet.parse(first["skip"])
            skip.check(num_layers)
        except OptionError:
            continue
        found.setdefault(skip, Used(skip)).shares[row["name"]] = first["share"]
    return list(found.values())


def _draw(figure: Any, theme: Theme, used: Sequence[Used], num_layers: int) -> None:
    axes = figure.subplots()
    draw_strips(axes, [one.skip for one in used], num_layers, colors=theme.strips)
    for place, one in enumerate(used):
        beside_strip(axes, place, _names(list(one.shares)), -0.015, linespacing=1.15)
        beside_strip(axes, place, _facts(one), 1.01, fontsize=8.5, linespacing=1.2, color=theme.soft)


def _names(names: Sequence[str]) -> str:
    """As many as there is room for."""
    for count in range(len(names), 0, -1):
        more = f" + {len(names) - count} more" if count < len(names) else ""
        lines = textwrap.wrap("; ".join(names[:count]) + more, _NAME_CHARACTERS)
        if len(lines) <= _NAME_LINES:
            return "\n".join(lines)
    lines = textwrap.wrap(names[0], _NAME_CHARACTERS)[:_NAME_LINES]
    return "\n".join(lines) + (f" + {len(names) - 1} more" if names[1:] else "")


def _facts(one: Used) -> str:
    low, high = min(one.shares.values()), max(one.shares.values())
    shares = f"{high:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    return f"{_counts(one)} skipped\nin {shares} of the draft passes"


def _counts(one: Used) -> str:
    return f"{len(one.skip.attention)} attention, {len(one.skip.mlp)} MLP"
