"""A result as the charts see it: the document and the records that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...registry import DEFAULTS
from ..harness.figures import document as make_document
from ..harness.records import Head, TextRecord, always_run, complete_prompts
from ..harness.rows import Row, best_of_ours, is_of_calls, measured
from ..long_prompts import is_context
from ..ways import OFF

MAX_LINES = 6
"""This number of methods can be told apart as lines of one chart."""


@dataclass(frozen=True)
class Result:
    document: dict[str, Any]
    records: Sequence[TextRecord]

    @classmethod
    def of(cls, head: Head, records: Sequence[TextRecord]) -> Result:
        """Of prompts that all methods have finished: the file may be of a run that goes on."""
        begun = {record.way for record in records}
        whole = complete_prompts(records, [name for name in always_run(head.ways) if name in begun])
        return cls(make_document(head, whole), sorted(whole, key=lambda record: record.number))

    @property
    def rows(self) -> list[Row]:
        """The fastest first, plain decoding left out."""
        return measured(self.document)

    @property
    def domains(self) -> list[str]:
        """Without prompts that were made long, where there are others."""
        found = list(self.document["prompts_of"])
        return [domain for domain in found if not is_context(domain)] or found

    @property
    def stream(self) -> Result:
        """Of these domains alone."""
        return replace(self, records=[record for record in self.records if record.domain in self.domains])

    def texts(self, way: str) -> list[TextRecord]:
        """In the order of the run."""
        return [record for record in self.records if record.way == way]

    @property
    def plain_texts(self) -> list[TextRecord]:
        return self.texts(OFF)

    def few_rows(self) -> tuple[list[Row], list[str]]:
        """For lines: the best, the default, those that learn most while they decode, then the fastest; (others)."""
        best = best_of_ours(self.document)
        learning = sorted(filter(_learns, self.rows), key=lambda row: -(row["total"]["split"]["optimise"] or 0.0))
        wanted = [*([best] if best else []), *filter(is_default, self.rows), *learning[:3], *self.rows]
        wanted = [row for row in wanted if row["kind"] != "control"]
        names = list(dict.fromkeys(row["name"] for row in wanted))[:MAX_LINES]
        return [row for row in self.rows if row["name"] in names], [
            row["name"] for row in self.rows if row["name"] not in names
        ]


def is_default(row: Row) -> bool:
    method = row.get("method") or {}
    return row["kind"] == "ours" and all(method.get(axis, name) == name for axis, name in DEFAULTS.items())


def _learns(row: Row) -> bool:
    return (row["total"]["split"]["optimise"] or 0.0) > 0.005


def seconds_of(row: Row, records: Iterable[TextRecord]) -> float:
    """Of decoding; where that is not known, of whole calls."""
    is_call = is_of_calls(row["total"])
    return sum(record.call_seconds if is_call else record.decode_seconds or 0.0 for record in records)


def speedup_of(row: Row, records: Sequence[TextRecord], plain: Sequence[TextRecord]) -> float | None:
    """`plain`: the same prompts."""
    tokens, plain_tokens = (sum(record.num_tokens for record in texts) for texts in (records, plain))
    seconds, plain_seconds = seconds_of(row, records), seconds_of(row, plain)
    if not (tokens and plain_tokens and seconds and plain_seconds):
        return None
    return (tokens / seconds) / (plain_tokens / plain_seconds)


def left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"Left out, so that lines can be told apart: {'; '.join(names)}."
