"""What rounds of one text did, and what was expected of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .company import Choice


@dataclass
class Told:
    """By what rounds did: how many there were, their tokens and seconds, and those that were expected."""

    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, choice: Choice, num_tokens: int, seconds: float) -> None:
        sums = self.sums.setdefault(choice.kind, [0.0] * 5)
        for place, value in enumerate((1, num_tokens, seconds, choice.tokens, choice.seconds)):
            sums[place] += value

    def to_json(self) -> Mapping[str, Any]:
        names = ("rounds", "tokens", "seconds", "expected_tokens", "expected_seconds")
        return {kind: dict(zip(names, sums, strict=True)) for kind, sums in self.sums.items()}
