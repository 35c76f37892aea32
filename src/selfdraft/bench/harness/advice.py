"""What to do with a result, in a few sentences; an output that is not that of plain decoding is said first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ...registry import AXES
from ..long_prompts import is_context
from ..report import times
from .rows import Document, Row, best_of_ours, interval, measured, shown_speedup


def advice(document: Document) -> str:
    return " ".join([*warnings(document), _choice(document)])


def warnings(document: Document) -> Iterator[str]:
    """Ours must say what plain decoding says; a peer promises nothing."""
    for row in measured(document):
        count = row["total"]["different"]
        if count and row["kind"] != "peer":
            first = next(item for item in row["differences"] if item["verdict"] == "different")
            yield (
                f"WARNING: {row['name']} DIFFERS from plain decoding in {count} of {row['total']['num_prompts']} texts "
                f"(the first: {first['prompt']}, {first['domain']}); do not use it, and report this."
            )


def method_options(method: Mapping[str, Any]) -> str:
    """As the commands take it: `--strategy prune --set confidence.threshold=0.8`."""
    words = [word for axis in AXES if method.get(axis) is not None for word in (f"--{axis}", str(method[axis]))]
    for name, values in (method.get("settings") or {}).items():
        for option, value in values.items():
            words += ["--set", f"{name}.{option}={_as_typed(value)}"]
    return shlex.join(words)


def _as_typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choice(document: Document) -> str:
    rows = [row for row in measured(document) if row["kind"] == "ours"]
    if not rows:
        return "Nothing but plain decoding was measured: there is nothing to choose from yet."
    best = best_of_ours(document)
    if best is not None:
        return _use(best)
    return _plain_is_fastest(rows[0], is_calibrated=document["machine"].get("frontier") is not None)


def _use(row: Row) -> str:
    options = method_options(row.get("asked") or row.get("method") or {})
    how = f"use it with {options}" if options else "it is the default, no option is needed"
    found = shown_speedup(row["total"])
    return (
        f"The fastest here is {row['name']}: {times(found['value'])} as fast as plain decoding (95 %: "
        f"{found['low']:.2f} to {found['high']:.2f}){_spread(row)}; {how}."
    )


def _plain_is_fastest(best: Row, is_calibrated: bool) -> str:
    speed = interval(shown_speedup(best["total"]))
    said = (
        f"Plain decoding is the fastest here: nothing is surely above 1.00x (the best, {best['name']}: {speed}). "
        "Nothing is lost with --strategy off"
    )
    if is_calibrated:
        return f"{said}."
    return f"{said}; to search for what may be skipped on this device, try selfdraft calibrate."


def _spread(row: Row) -> str:
    """On which domain it is worth least and most."""
    known = {domain: shown_speedup(one)["value"] for domain, one in row["domains"].items() if not is_context(domain)}
    ranked = sorted((value, domain) for domain, value in known.items() if value is not None)
    if len(ranked) < 2:
        return ""
    (low, worst), (high, best) = ranked[0], ranked[-1]
    return f", from {times(low)} on {worst} to {times(high)} on {best}"
