"""What is known of a drafted token: by this a lookahead decides whether to draft another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch


class Outline(NamedTuple):
    """What a lookahead may want to know of a distribution beyond its best tokens."""

    top_probs: torch.Tensor  # [rows, 10] the largest probabilities, largest first, zero-filled
    entropy: torch.Tensor  # [rows] in nats

    @classmethod
    def of(cls, scores: torch.Tensor) -> Outline:
        """Of the softmax of `scores` [rows, vocabulary]. By powers of 2: a CPU is quicker at them than at e's."""
        scores = scores.float()
        exponents = (scores - scores.amax(-1, keepdim=True)).mul_(1 / math.log(2)).clamp_(min=MIN_EXPONENT)
        weights = exponents.exp2()
        total = weights.sum(-1)
        probs = _largest(weights, min(DraftStats.NUM_TOP, weights.shape[-1])) / total[:, None]
        moment = exponents.mul_(weights).sum(-1)
        return cls.filled(probs, torch.addcdiv(total.log(), moment, total, value=-math.log(2)))

    @classmethod
    def filled(cls, probs: torch.Tensor, entropy: torch.Tensor) -> Outline:
        num_missing = DraftStats.NUM_TOP - probs.shape[-1]
        return cls(torch.nn.functional.pad(probs, (0, num_missing)) if num_missing else probs, entropy)


MIN_EXPONENT = -200.0
"""Of 2: the power is 0 in float32, as it is for -inf, which times 0 would not be 0."""
BLOCK = 128
"""Tokens that `_largest` looks at together."""


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """`values.topk(count).values`, looked for in the `count` blocks with the largest maxima: a CPU's `topk` is slow."""
    size = values.shape[-1] // BLOCK * BLOCK
    if size <= count * BLOCK:
        return values.topk(count, dim=-1).values
    blocks = values[:, :size].view(len(values), -1, BLOCK)
    picks = blocks.amax(-1).topk(count, dim=-1).indices[:, :, None].expand(-1, -1, BLOCK)
    shortlist = blocks.gather(1, picks).flatten(1)
    if size < values.shape[-1]:
        shortlist = torch.cat((shortlist, values[:, size:]), dim=-1)
    return shortlist.topk(count, dim=-1).values


@dataclass(frozen=True)
class DraftStats:
    """What a lookahead may look at after a token was drafted; each value is computed when it is read.

    `scores` are the draft's after prefix-dependent processors and before temperature and truncation. A drafter
    without a distribution (prompt lookup) has none: it is a point mass, and what it believes of it is the `peak`. It
    may be asked about several depths at once, which then stand as rows of their own.
    """

    depth: torch.Tensor  # [rows] tokens drafted in this round, this one included
    index: torch.Tensor  # [rows] position of the drafted token in the generated text
    match_length: torch.Tensor  # [rows] length of the n-gram a lookup matched, else 0
    sequence_ids: torch.Tensor  # [rows]
    scores: torch.Tensor | None = None  # [rows, vocabulary]
    peak: torch.Tensor | None = None  # [rows] the largest probability, where it is known already
    token: torch.Tensor | None = None  # [rows] what was drafted
    sequences: torch.Tensor | None = None  # [rows] the caller's number of the text
    outline: Outline | None = None  # of the distribution, where it is known already

    NUM_TOP: ClassVar[int] = 10

    @cached_property
    def log_probs(self) -> torch.Tensor:
        """[rows, vocabulary], float32."""
        if self.scores is None:
            return self.confidence[:, None].log()
        return torch.log_softmax(self.scores.float(), dim=-1)

    @cached_property
    def confidence(self) -> torch.Tensor:
        """[rows] the draft's largest probability (never the drawn token's)."""
        if self.peak is not None:
            return self.peak
        if self.scores is None:
            return torch.ones(len(self.index), device=self.index.device)
        scores = self.scores.float()
        return torch.exp(scores.amax(-1) - scores.logsumexp(-1))

    @property
    def top_probs(self) -> torch.Tensor:
        """[rows, 10] the largest probabilities, largest first, zero-filled."""
        return self._outline.top_probs

    @property
    def entropy(self) -> torch.Tensor:
        """[rows] in nats; 0 of a point mass."""
        return self._outline.entropy

    @cached_property
    def _outline(self) -> Outline:
        if self.outline is not None:
            return self.outline
        if self.scores is None:
            return Outline.filled(self.confidence[:, None], torch.zeros_like(self.confidence))
        return Outline.of(self.scores)
