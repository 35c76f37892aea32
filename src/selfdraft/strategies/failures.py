"""How drafts fare, beside how they would by what is known of their skip set."""

from __future__ import annotations

from dataclasses import dataclass

from ..economics import USUAL_DRAFTED
from ..types import StepRecord

_PRIOR = 2.0
"""Failed drafts that weigh as much as all that is known of a set."""
_MEMORY = 0.98
"""What a round leaves of the weight of those before it."""


@dataclass
class Failures:
    """What is seen, over what a match lets expect; `usual`: their ratio at first, and after long without drafts."""

    usual: float = 1.0
    seen: float = 0.0
    expected: float = 0.0
    drafts: float = _PRIOR
    drafted: float = _PRIOR * USUAL_DRAFTED

    def carried(self) -> Failures:
        """For another text to begin with; a few drafts outweigh it."""
        return Failures(self.usual, seen=_PRIOR * (self.ratio - self.usual), drafted=_PRIOR * self.length)

    def observe(self, step: StepRecord, match: float) -> None:
        """`match`: of the set that drafted. What stands after the first refusal was never judged."""
        num_accepted = min(step.verdict.num_accepted, step.draft.num_draft_steps)
        has_failed = num_accepted < step.draft.num_draft_steps
        self.seen = _MEMORY * self.seen + has_failed
        self.expected = _MEMORY * self.expected + (num_accepted + has_failed) * (1 - match)
        if step.draft.num_draft_steps:
            self.drafts = _MEMORY * self.drafts + 1
            self.drafted = _MEMORY * self.drafted + step.draft.num_draft_steps

    @property
    def ratio(self) -> float:
        return (self.seen + _PRIOR * self.usual) / (self.expected + _PRIOR)

    @property
    def length(self) -> float:
        """Tokens of a draft, on average."""
        return self.drafted / self.drafts
