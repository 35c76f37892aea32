"""One full pass over the drafts of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..protocols import Runner
from ..types import PAD, Draft
from .sampling import Sampler
from .state import State


@dataclass(frozen=True)
class Targets:
    """The target's word on every drafted position and the one behind it."""

    drafts: torch.Tensor  # [rows, depth], PAD-filled
    scores: torch.Tensor  # [rows, depth + 1, vocab], behind the prefix rules
    sequences: torch.Tensor  # [rows, depth + 1]
    indices: torch.Tensor  # [rows, depth + 1] position in the generated text
    captured: Mapping[str, torch.Tensor]


def verify(
    runner: Runner, state: State, drafts: Sequence[Draft], sampler: Sampler, capture: Sequence[str] = ()
) -> Targets:
    """Run each row's last token and its draft through the whole model; shorter drafts are padded and ignored."""
    depth = max(len(draft.tokens) for draft in drafts)
    padded = [[*draft.tokens, *[PAD] * (depth - len(draft.tokens))] for draft in drafts]
    draft_tokens = torch.tensor(padded, dtype=torch.long, device=runner.device).view(len(drafts), depth)
    last = torch.tensor([[sequence.tokens[-1]] for sequence in state.active], device=runner.device)
    inputs = torch.cat((last, draft_tokens.clamp(min=0)), dim=1)
    state.cache.reserve(max(state.starts) + depth + 1)
    output = runner.forward(inputs, state.starts, state.cache, capture=capture)

    offsets = torch.arange(depth + 1, device=runner.device)
    first = torch.tensor([[sequence.num_generated] for sequence in state.active], device=runner.device)
    indices = first + offsets
    sequences = torch.tensor([[sequence.noise_sequence] for sequence in state.active], device=runner.device)
    scores = output.scores
    if sampler.has_prefix_rules:
        scores = _apply_prefix_rules(scores, state, drafts, sampler, indices)
    return Targets(draft_tokens, scores, sequences.expand_as(indices), indices, output.captured)


def _apply_prefix_rules(
    scores: torch.Tensor, state: State, drafts: Sequence[Draft], sampler: Sampler, indices: torch.Tensor
) -> torch.Tensor:
    """Each position's prefix is the text with the draft tokens before it. Padded positions are left as they are."""
    scores = scores.float().clone()
    for row, (sequence, draft) in enumerate(zip(state.active, drafts, strict=True)):
        width = len(draft.tokens) + 1
        prefixes = [sequence.prefix + list(draft.tokens[:count]) for count in range(width)]
        scores[row, :width] = sampler.apply_prefix_rules(scores[row, :width], prefixes, indices[row, :width])
    return scores
