"""The best tokens of a distribution: Triton's kernel where it can run, torch everywhere else."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def top(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """[rows, vocabulary] -> values and tokens [rows, count], best first; the softmax's peak [rows] if it came along."""
    count = min(count, scores.shape[-1])
    if runs_triton(scores):
        from .rank import rank

        return rank(scores, count)
    if count == 1:
        best = scores.max(-1, keepdim=True)
        return best.values, best.indices, None
    values, tokens = scores.topk(count, dim=-1)
    return values, tokens, None


def runs_triton(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
