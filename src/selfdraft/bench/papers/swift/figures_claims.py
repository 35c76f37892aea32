"""Shares with what is known of their spread, claims that compare them, and the texts of a stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ...bootstrap import Pair, speed_up
from ...harness.records import TextRecord
from ...totals import ratio
from ...ways import OFF
from ..cells import NOT_MEASURED, Speed
from ..recipe import Found, Trend

_TEXT = (
    *("domain", "num_tokens", "decode_seconds", "optimise_seconds", "draft_seconds", "verify_seconds"),
    *("num_draft_steps", "num_accepted"),
)
PARTS = ("optimise", "draft", "verify")
_SEARCHING = 0.02
"""Of a text's time, from which on it was searched on; counting what became of drafts takes less."""

# --------------------------------------------------------------------------------------------------------- shares


@dataclass(frozen=True)
class Share:
    """So many of so many; `bounds`: about 95 % (Agresti and Coull)."""

    hits: int
    count: int

    @property
    def value(self) -> float | None:
        return ratio(self.hits, self.count)

    @property
    def bounds(self) -> tuple[float, float]:
        middle = (min(self.hits, self.count) + 2) / (self.count + 4)
        margin = 2 * math.sqrt(middle * (1 - middle) / (self.count + 4))
        return middle - margin, middle + margin

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.2f} of {self.count}"


NONE = Share(0, 0)


def is_above(claim: str, share: Share, bound: float) -> Trend:
    if not share.count:
        return Trend(claim, None, NOT_MEASURED)
    low, high = share.bounds
    return Trend(claim, low > bound if low > bound or high < bound else None, str(share))


def is_more(claim: str, one: Share, other: Share) -> Trend:
    if not one.count or not other.count:
        return Trend(claim, None, NOT_MEASURED)
    is_clear = one.bounds[0] > other.bounds[1] or one.bounds[1] < other.bounds[0]
    return Trend(claim, one.bounds[0] > other.bounds[1] if is_clear else None, f"{one} and {other}")


# ----------------------------------------------------------------------------------------------- texts of a stream

Row = Mapping[str, Any]


def text_rows(records: Sequence[TextRecord]) -> dict[str, list[dict[str, Any]]]:
    """By way, in the order of the stream: what figures that follow it are made of."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record.number):
        rows.setdefault(record.way, []).append({name: getattr(record, name) for name in _TEXT})
    return rows


@dataclass(frozen=True)
class Course:
    """A way's texts in the order of the stream, and the same texts plainly."""

    label: str
    own: Sequence[Row]
    plain: Sequence[Row]

    @classmethod
    def of(cls, found: Found, unit: str, way: str) -> Course | None:
        own, plain = found.get(unit, "texts", way), found.get(unit, "texts", OFF)
        return cls(way, own, plain) if own and plain else None

    def __len__(self) -> int:
        return len(self.own)

    @property
    def without_search(self) -> Course:
        """As if scoring candidates took no time."""
        own = [{**row, "decode_seconds": row["decode_seconds"] - row["optimise_seconds"]} for row in self.own]
        return replace(self, own=own)

    def called(self, label: str) -> Course:
        return replace(self, label=label)

    def part(self, wanted: Sequence[bool]) -> Course:
        own, plain = (
            [row for row, is_in in zip(rows, wanted, strict=True) if is_in] for rows in (self.own, self.plain)
        )
        return replace(self, own=own, plain=plain)

    def between(self, first: int, last: int) -> Course:
        return self.part([first <= place < last for place in range(len(self))])

    def of_tasks(self, names: Sequence[str]) -> Course:
        return self.part([row["domain"] in names for row in self.own])

    @property
    def is_searching(self) -> list[bool]:
        """Of each text."""
        return [row["optimise_seconds"] > _SEARCHING * row["decode_seconds"] for row in self.own]

    @property
    def _pairs(self) -> list[Pair]:
        """Of texts that took some time."""
        both = zip(self.own, self.plain, strict=True)
        found = [
            Pair(one["num_tokens"], one["decode_seconds"], two["num_tokens"], two["decode_seconds"])
            for one, two in both
        ]
        return [pair for pair in found if all(pair)]

    @property
    def speed(self) -> Speed | None:
        known = speed_up(self._pairs, seed=0)
        return None if known is None else Speed(self.label, *known, num_prompts=len(self._pairs))

    @property
    def single(self) -> list[float]:
        """Of each text."""
        return [_speed(pair) for pair in self._pairs]

    @property
    def running(self) -> list[float]:
        """Of all texts so far."""
        return [_speed(pair) for pair in accumulate(self._pairs, Pair.joined)]

    @property
    def acceptance(self) -> Share:
        return Share(self._sum("num_accepted"), self._sum("num_draft_steps"))

    @property
    def split(self) -> dict[str, float]:
        """Milliseconds of a token; `other`: what stands between the passes."""
        per_token = 1000 / max(1, self._sum("num_tokens"))
        parts = {part: per_token * self._sum(f"{part}_seconds") for part in PARTS}
        return {**parts, "other": max(0.0, per_token * self._sum("decode_seconds") - sum(parts.values()))}

    def _sum(self, name: str) -> Any:
        return sum(row[name] for row in self.own)


def _speed(pair: Pair) -> float:
    return (pair.num_tokens / pair.seconds) / (pair.plain_tokens / pair.plain_seconds)
