"""What is kept of a draft: pure functions of the draft and the target's scores."""

from __future__ import annotations

import torch

from ..types import PAD, Verdict
from .sampling import Sampler


def coupled(
    drafts: torch.Tensor,
    scores: torch.Tensor,
    sampler: Sampler,
    sequences: torch.Tensor,
    indices: torch.Tensor,
) -> list[Verdict]:
    """Keep draft tokens as long as each equals the target's own choice, then emit that choice.

    `drafts` [rows, depth], PAD-filled; `scores` [rows, depth + 1, vocab] behind the prefix rules; `sequences` and
    `indices` [rows, depth + 1] say which noise belongs to each position. Every emitted token is the target's choice
    given the emitted prefix, so the draft can change nothing but the speed.
    """
    rows, width, vocab = scores.shape
    choices = sampler.choose(scores.reshape(-1, vocab), sequences.reshape(-1), indices.reshape(-1)).view(rows, width)
    agrees = (drafts == choices[:, :-1]) & (drafts != PAD)
    num_accepted = agrees.long().cumprod(-1).sum(-1).tolist()
    return [
        Verdict(tuple(row[: accepted + 1]), accepted)
        for row, accepted in zip(choices.tolist(), num_accepted, strict=True)
    ]
