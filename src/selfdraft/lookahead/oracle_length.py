"""`oracle-length`: draft the tokens that will be kept and no other, or nothing. A bound, not a method.

The other reading of DISCO's oracle (arXiv:2405.04304), which nothing can beat by length alone: it is told, by a run of
`oracle`, which tokens are drafted and kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..drafted import DraftStats
from .oracle import Oracle


class OracleLength(Oracle):
    """Its `continuations` are 1 where a token is drafted and kept, else 0."""

    def tell(self, continuations: Sequence[Sequence[int]]) -> None:
        super().tell(continuations)
        self._kept = continuations

    def pauses(self, sequence: int, index: int) -> bool:
        """Nothing would be kept of a round that begins there."""
        return not any(self._kept[sequence - self._first][index : index + 1])

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return (self._at(stats, 1) == 1) & (stats.depth < self.max_tokens)
