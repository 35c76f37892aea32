"""Log-probabilities of what was emitted, by the model's own scores: before penalties, bias, temperature, truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..types import TokenLogprobs, Verdict
from .accept import Targets


def emitted_logprobs(
    targets: Targets, verdicts: Sequence[Verdict], count: int | None
) -> list[tuple[TokenLogprobs, ...]]:
    """Of each row's emitted tokens, with the `count` likeliest; None: not asked for."""
    if count is None:
        return [()] * len(verdicts)
    parts = [targets.scores[row, verdict.columns] for row, verdict in enumerate(verdicts)]
    found = iter(logprobs_of(torch.cat(parts), [token for verdict in verdicts for token in verdict.tokens], count))
    return [tuple(next(found) for _ in verdict.tokens) for verdict in verdicts]


def logprobs_of(scores: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """`scores` [n, vocabulary]: raw, those that `tokens` [n] were chosen by."""
    logprobs = torch.log_softmax(scores.float(), dim=-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(count, scores.shape[-1]), dim=-1)
    tops = (tuple(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return [TokenLogprobs(*one) for one in zip(tokens, own, tops, strict=True)]
