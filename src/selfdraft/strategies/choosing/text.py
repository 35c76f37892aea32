"""What the default knows of one text, and of its last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...types import OFF, Plan, StepRecord
from .company import Choice, Company, Kind, Tally
from .copies import MAX_TOKENS, CopiedText

_GAIN_MEMORY = 0.9
"""What a round leaves of what copies promised a text before, where it shares its rounds."""
_LIKENESS = 0.5
"""What a text says of the next one of its domain."""


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


@dataclass
class Text:
    """Its copies, how the skipped self fares in it, what the next round does and what rounds did."""

    copied: CopiedText
    skipped: Tally = field(default_factory=Company.new_text)
    choice: Choice = field(default_factory=Choice)
    last: Kind | None = None  # what its last round was
    told: Told = field(default_factory=Told)
    inner: Plan = OFF
    num_asked: int = 0
    num_rows: int = 1  # that its round is said to have
    gains: list[float] = field(default_factory=lambda: [0.0] * MAX_TOKENS)  # what copies promised of late, by length
    num_context: int = 0  # tokens of it before its round
    domain: str = ""  # that its prompt is near to, where the profile has domains

    def promise(self, chances: Sequence[float]) -> None:
        padded = [*chances, *[0.0] * MAX_TOKENS]
        pairs = zip(self.gains, padded, strict=False)
        self.gains = [_GAIN_MEMORY * old + (1 - _GAIN_MEMORY) * new for old, new in pairs]

    @property
    def shown(self) -> Sequence[float]:
        """How drafts of the skipped self and copies fared."""
        skipped, copied = self.skipped, self.copied
        return skipped.rounds, skipped.tokens, skipped.seconds, copied.refused, copied.expected

    def expect(self, shown: Sequence[float]) -> None:
        """About what another text of its domain has `shown`."""
        rounds, tokens, seconds, self.copied.refused, self.copied.expected = (_LIKENESS * one for one in shown)
        self.skipped.rounds, self.skipped.tokens, self.skipped.seconds = rounds, tokens, seconds


class Ended(NamedTuple):
    """A text's round, what was chosen for it, and what its round before was."""

    step: StepRecord
    text: Text
    choice: Choice
    last: Kind | None
