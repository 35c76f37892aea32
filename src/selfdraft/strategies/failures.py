"""How often drafts fail, beside how often they would by what is known of their skip set."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import StepRecord

_PRIOR = 2.0
"""Failed drafts that weigh as much as all that is known of a set."""
_MEMORY = 0.98
"""What a round leaves of the weight of those before it."""


@dataclass
class Failures:
    """Drafts that stop where they are unsure fail less often than a match says that was counted after every token."""

    seen: float = 0.0
    expected: float = 0.0

    def observe(self, step: StepRecord, match: float) -> None:
        """`match`: of the set that drafted. What stands after the first refusal was never judged."""
        num_accepted = min(step.verdict.num_accepted, step.draft.num_draft_steps)
        has_failed = num_accepted < step.draft.num_draft_steps
        self.seen = _MEMORY * self.seen + has_failed
        self.expected = _MEMORY * self.expected + (num_accepted + has_failed) * (1 - match)

    def carried(self) -> Failures:
        """For another text to begin with; it weighs as little as what is known of the set."""
        return Failures(seen=_PRIOR * (self.ratio - 1))

    @property
    def ratio(self) -> float:
        return (self.seen + _PRIOR) / (self.expected + _PRIOR)
