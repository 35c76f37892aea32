"""Log-probabilities of what was emitted, by the model's own scores: before penalties, bias, temperature, truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..kernels.top import logprobs
from ..types import TokenLogprobs, Verdict
from .accept import Targets


def emitted_logprobs(
    targets: Targets, verdicts: Sequence[Verdict], count: int | None
) -> list[tuple[TokenLogprobs, ...]]:
    """Of each row's emitted tokens, with the `count` likeliest; None: not asked for."""
    if count is None:
        return [()] * len(verdicts)
    read = targets.output.read_logprobs
    if read is None:
        found = _computed(targets, verdicts, count)
    else:
        found = [[row[column] for column in verdict.columns] for row, verdict in zip(read(), verdicts, strict=True)]
    return [tuple(map(_of_token, verdict.tokens, row)) for verdict, row in zip(verdicts, found, strict=True)]


def _computed(targets: Targets, verdicts: Sequence[Verdict], count: int) -> list[list[list[float]]]:
    """Where the runner did not choose, now that the tokens are known."""
    scores = torch.cat([targets.scores[row, verdict.columns] for row, verdict in enumerate(verdicts)])
    tokens = torch.tensor([token for verdict in verdicts for token in verdict.tokens], device=scores.device)
    found = iter(logprobs(scores, tokens, count).tolist())
    return [[next(found) for _ in verdict.tokens] for verdict in verdicts]


def _of_token(token: int, numbers: Sequence[float]) -> TokenLogprobs:
    """`numbers`: see `kernels/top.logprobs`."""
    own, *best = numbers
    count = len(best) // 2
    return TokenLogprobs(token, own, tuple(zip(map(int, best[count:]), best[:count], strict=True)))
