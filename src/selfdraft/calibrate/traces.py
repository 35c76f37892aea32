"""Traces: what a drafter would draft behind every prefix of a text that the target wrote, and whether it would be kept.

DISCO's features and labels (arXiv:2405.04304, appendix D): the target decodes token by token; behind each prefix the
draft proposes a single token. While a draft agrees with the target its prefix is the target's, so a trace also tells
what becomes of longer drafts, up to the first token that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..passes import DraftStats, Outline


@dataclass(frozen=True)
class Trace:
    """Of one text: row i is about the token at position i of what the target generated. On the host."""

    domain: str
    top_probs: torch.Tensor  # [tokens, 10]
    entropies: torch.Tensor  # [tokens]
    confidences: torch.Tensor  # [tokens]
    match_lengths: torch.Tensor  # [tokens]
    is_drafted: torch.Tensor  # [tokens] bool: the drafter had something to propose
    is_kept: torch.Tensor  # [tokens] bool: and it was the target's token
    overlaps: torch.Tensor  # [tokens] 1 - total variation between draft and target
    has_scores: bool  # the drafter has a distribution

    def __len__(self) -> int:
        return len(self.is_kept)

    def stats(self, index: int, depth: int, number: int = 0) -> DraftStats:
        """What a lookahead is shown behind the token at `index`, as one row; `number`: of the text."""
        row = slice(index, index + 1)
        return DraftStats(
            depth=torch.tensor([depth]),
            index=torch.tensor([index]),
            match_length=self.match_lengths[row],
            sequence_ids=torch.tensor([number]),
            scores=torch.zeros(1, 1) if self.has_scores else None,
            peak=self.confidences[row],
            outline=Outline(self.top_probs[row], self.entropies[row]),
        )
