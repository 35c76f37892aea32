"""Rows of a document: which were measured, which is faster. Of a peer only whole calls can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..report import times
from ..ways import OFF

Row = Mapping[str, Any]
Document = Mapping[str, Any]

FEW_PROMPTS = 4


def measured(document: Document) -> list[Row]:
    """Those with figures, the fastest first; plain decoding, which all are held against, is none of them."""
    rows = [row for row in document["ways"] if "total" in row and row["name"] != OFF]
    return sorted(rows, key=lambda row: -(shown_speedup(row["total"])["value"] or 0.0))


def failed(document: Document) -> list[Row]:
    return [row for row in document["ways"] if row.get("error")]


def shown_speedup(figures: Mapping[str, Any]) -> Mapping[str, float | None]:
    """`value`, `low`, `high` of decoding; where that is not known, of whole calls."""
    found: Mapping[str, float | None] = figures["call_speedup" if is_of_calls(figures) else "speedup"]
    return found


def interval(found: Mapping[str, float | None]) -> str:
    """`1.20x [1.15, 1.26]`."""
    if found["value"] is None:
        return "-"
    return f"{times(found['value'])} [{found['low']:.2f}, {found['high']:.2f}]"


def is_of_calls(figures: Mapping[str, Any]) -> bool:
    return figures["speedup"]["value"] is None


def is_surely_faster(figures: Mapping[str, Any]) -> bool:
    """Of very few prompts an interval says nothing."""
    return figures["num_prompts"] >= FEW_PROMPTS and (shown_speedup(figures)["low"] or 0.0) > 1.0


def is_surely_slower(figures: Mapping[str, Any]) -> bool:
    high = shown_speedup(figures)["high"]
    return figures["num_prompts"] >= FEW_PROMPTS and high is not None and high < 1.0


def best_of_ours(document: Document) -> Row | None:
    """The fastest that anybody can use, surely faster than plain decoding, and that said the same."""
    good = (
        row
        for row in measured(document)
        if row["kind"] == "ours" and is_surely_faster(row["total"]) and not row["total"]["different"]
    )
    return next(good, None)
