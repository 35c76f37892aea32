"""`confidence`: draft on while the draft's largest probability stays at or above a threshold.

The exit rule of Draft & Verify (arXiv:2309.08168), SWIFT (arXiv:2410.06916) and KNN-SSD (arXiv:2505.16162), whose
code stops below 0.8. The token that fell below is still verified: withdrawing it would bias the output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..drafted import DraftStats
from ..options import setting
from .base import PlainLookahead


class Confidence(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        threshold: float = setting(0.8, "stop after a token drafted with less confidence", minimum=0.0, maximum=1.0)
        max_tokens: int = setting(12, "never draft more tokens than this in a round", minimum=1)
        copies: bool = setting(False, "go on after a looked-up token whatever its confidence, as far as the plan says")

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        is_sure: torch.Tensor = stats.confidence >= self.options.threshold
        if self.options.copies and stats.scores is None:
            is_sure = is_sure | (stats.match_length > 0)
        return is_sure & (stats.depth < self.max_tokens)
