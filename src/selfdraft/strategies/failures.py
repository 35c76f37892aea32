"""How often drafts fail, beside how often they would by what is known of their skip set."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import StepRecord

_PRIOR = 2.0
"""Failed drafts that weigh as much as all that is known of a set."""
_MEMORY = 0.98
"""What a round leaves of the weight of those before it."""
HOPE = 1 / 3
"""Drafts that end where they are unsure fail about this much as often as a match says that was counted after every
token. Without it sets that pay would never be tried.
"""


@dataclass
class Failures:
    """What is seen, and what a match lets expect. Long without drafts: as often as that says."""

    seen: float = 0.0
    expected: float = 0.0

    @classmethod
    def usual(cls, ratio: float = HOPE) -> Failures:
        """To begin with; a few drafts outweigh it."""
        return cls(seen=_PRIOR * (ratio - 1))

    def observe(self, step: StepRecord, match: float) -> None:
        """`match`: of the set that drafted. What stands after the first refusal was never judged."""
        num_accepted = min(step.verdict.num_accepted, step.draft.num_draft_steps)
        has_failed = num_accepted < step.draft.num_draft_steps
        self.seen = _MEMORY * self.seen + has_failed
        self.expected = _MEMORY * self.expected + (num_accepted + has_failed) * (1 - match)

    @property
    def ratio(self) -> float:
        return (self.seen + _PRIOR) / (self.expected + _PRIOR)
