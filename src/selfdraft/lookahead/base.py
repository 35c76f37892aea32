"""What lookaheads share: nothing learned, nothing remembered."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..drafted import DraftStats
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord


class PlainLookahead:
    """A lookahead that goes by its options alone."""

    Options: ClassVar[type[Any]]
    reads_distribution: ClassVar[bool] = False

    def __init__(self, options: Any, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None) -> None:
        self.options = options
        self.max_tokens: int = options.max_tokens

    @property
    def num_changes(self) -> int:
        return 0

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        """Up to the maximum."""
        return stats.depth < self.max_tokens

    def observe(self, step: StepRecord) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def forget(self) -> None:
        """Be as if no text had been seen. Tensors stay where they are: recorded drafts read them there."""
