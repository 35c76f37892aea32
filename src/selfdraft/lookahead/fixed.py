"""`fixed`: always draft the same number of tokens (static lookahead)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..options import setting
from ..passes import DraftStats
from ..types import StepRecord


class Fixed:
    @dataclass(frozen=True)
    class Options:
        tokens: int = setting(5, "tokens to draft in every round", minimum=1)

    def __init__(self, options: Options) -> None:
        self.options, self.max_tokens = options, options.tokens

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return stats.depth < self.options.tokens

    def observe(self, step: StepRecord) -> None:
        pass
