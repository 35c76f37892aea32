"""One text that `selfdraft generate --json` wrote, round by round: as lines of text, and as a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..explanation import NAMES
from .charts.lines import Lines, Series
from .charts.panels import Drawing, Panels

SIZE = (9.6, 6.4)
_WINDOW = 8
"""Rounds over which a speed is told."""
_SIGNS = {"off": ".", "copy": "c", "skip": "d"}
_WIDTH = 100


@dataclass(frozen=True)
class Round:
    kind: str
    num_drafted: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class Run:
    name: str
    document: Mapping[str, Any]
    rounds: Sequence[Round]

    @classmethod
    def read(cls, file: Path) -> Run | None:
        """None: it is not what `generate --json` wrote."""
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            rounds = [Round(*one) for one in document["explanation"]["rounds"]]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return cls(file.name, document, rounds)

    @property
    def plain_speed(self) -> float | None:
        """Tokens per second: of the plain text beside it, else of its own plain rounds."""
        if plain := self.document.get("plain"):
            return float(plain["stats"]["tokens_per_second"])
        seconds = self.document["explanation"]["plain_seconds"]
        return 1 / seconds if seconds else None


def as_text(run: Run) -> str:
    told, document = run.document["explanation"], run.document
    signs = "".join(_SIGNS.get(one.kind, "?") for one in run.rounds)
    strip = [signs[place : place + _WIDTH] for place in range(0, len(signs), _WIDTH)]
    legend = ", ".join(f"{sign} {NAMES[kind]}" for kind, sign in _SIGNS.items())
    counts = [f"{NAMES[one['kind']]}: {one['num_rounds']} rounds, {one['num_tokens']} tokens" for one in told["done"]]
    speed = f"{told['tokens_per_second']:.1f} tokens/s"
    beside = f", plainly {run.plain_speed:.1f}" if run.plain_speed else ""
    head = f"{run.name}: {document['model']}, strategy {document['strategy']}, {speed}{beside}"
    return "\n".join((head, *strip, legend, *counts, *told["reasons"]))


def chart(run: Run) -> Drawing:
    """Round by round: the speed of the last ones, and what each checked and emitted."""
    title = f"{run.document['strategy']}, {run.document['explanation']['tokens_per_second']:.1f} tokens/s"
    placed = list(enumerate(run.rounds, start=1))
    speeds = Series(f"the last {_WINDOW} rounds", list(enumerate(_speeds(run.rounds), start=1)), is_marked=False)
    upper = Lines([speeds], "", "tokens/s", baseline=run.plain_speed, y_limits=(0, None), title=title)
    emitted = [
        Series(f"emitted, {name}", [(x, one.num_tokens) for x, one in placed if one.kind == kind], "bars", color=color)
        for color, (kind, name) in zip((4, 2, 3), NAMES.items(), strict=True)
        if any(one.kind == kind for one in run.rounds)
    ]
    checked = Series("checked", [(x, one.num_drafted + 1) for x, one in placed], "dots", color=0)
    lower = Lines([checked, *emitted], "round", "tokens", y_limits=(0, None))
    return Panels([upper, lower], columns=1, share_x=True)


def _speeds(rounds: Sequence[Round]) -> list[float]:
    last = [rounds[max(0, end - _WINDOW) : end] for end in range(1, len(rounds) + 1)]
    return [sum(one.num_tokens for one in some) / (sum(one.seconds for one in some) or 1.0) for some in last]
