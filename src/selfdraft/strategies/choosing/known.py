"""What a calibration has found out about rounds on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...economics import LatencyFit
from ...protocols import Knowledge
from ..prune import USUAL_LENGTH
from .company import Arm, Company
from .costs import KNOTS
from .numbers import bounded

_LEAST = 0.5
"""Of a plain round: whatever a profile says, a pass of more columns takes as long."""


@dataclass(frozen=True)
class Known:
    """`promised`: tokens of a round that the skipped self drafted, and its speed in that of plain rounds."""

    latency: LatencyFit
    promised: tuple[float, float] | None

    @classmethod
    def of(cls, knowledge: Knowledge, name: str) -> Known:
        """`name`: of the strategy whose trial counts."""
        try:
            trial = next(one for one in knowledge.known(name)["trials"] if one["strategy"] == name)
            found = bounded(trial["mean_generated_length"], 1.0), bounded(trial["measured"], 0.01)
        except (StopIteration, LookupError, TypeError, ValueError, OverflowError):  # none, or damaged
            return cls(knowledge.latency(), None)
        return cls(knowledge.latency(), found)

    @property
    def guess(self) -> Sequence[float]:
        """Seconds by columns, in plain rounds."""
        costs = self.latency.at(USUAL_LENGTH)
        return [max(costs.verify(width) / costs.plain if width > 1 and costs.plain else 1.0, _LEAST) for width in KNOTS]

    def tell(self, company: Company) -> None:
        """Of single texts."""
        if (plain := self.latency.at(USUAL_LENGTH).plain) > 0 and self.promised:
            company.costs.begin(plain)
            company.skipping = Arm.promised(*self.promised)

    def stretch(self, num_context: int) -> float:
        """Seconds of a plain round after so long a text, over those after a usual one."""
        usual = self.latency.at(USUAL_LENGTH).plain
        return self.latency.about(num_context).plain / usual if usual > 0 else 1.0
