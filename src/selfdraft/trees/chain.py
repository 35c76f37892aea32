"""`chain`: verify what the drafter proposes and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..options import NoOptions
from ..protocols import Path


class Chain:
    Options = NoOptions
    max_candidates = 1
    max_nodes = None

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def num_candidates(self, confidence: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(confidence, dtype=torch.long)

    def branches(self, committed: Sequence[int]) -> Sequence[Path]:
        return ()
