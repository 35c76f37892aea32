"""`perplexity`: draft on while the draft's perplexity, over what it has drafted in this round, stays below a threshold.

A rule that DISCO (arXiv:2405.04304, table 2) is held against; the threshold is tuned on other prompts, by `selfdraft
calibrate --lookahead perplexity`. The paper does not define it: here it is of the draft's best tokens, not the drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..drafted import DraftStats
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from .base import PlainLookahead
from .learned import RunningProduct

MIN_CONFIDENCE = 1e-6


class Perplexity(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        threshold: float = setting(1.3, "stop when the draft's perplexity is above it", minimum=1.0)
        max_tokens: int = setting(12, "never draft more tokens than this in a round", minimum=1)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        super().__init__(options)
        self._likelihood = RunningProduct()

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        likelihood = self._likelihood(stats, stats.confidence.clamp(min=MIN_CONFIDENCE))
        is_sure: torch.Tensor = likelihood >= self.options.threshold ** -stats.depth.float()
        return is_sure & (stats.depth < self.max_tokens)
