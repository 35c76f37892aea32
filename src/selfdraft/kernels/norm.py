"""What stands between the products of a pass: the last branch joins the stream, the stream is normed for the next."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .quick import quick


@quick
@triton.jit
def _add_norm(
    stream_ptr,
    branch_ptr,
    weight_ptr,
    sum_ptr,
    out_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BRANCH: tl.constexpr,
):
    place = tl.arange(0, BLOCK)
    mask = place < SIZE
    weight = tl.load(weight_ptr + place, mask=mask, other=0.0)
    place += tl.program_id(0) * SIZE
    stream = tl.load(stream_ptr + place, mask=mask, other=0.0)
    # Rounded where transformers rounds: after the sum, after the scale, after the weight.
    if HAS_BRANCH:
        branch = tl.load(branch_ptr + place, mask=mask, other=0.0)
        stream = (stream.to(tl.float32) + branch.to(tl.float32)).to(stream.dtype)
        tl.store(sum_ptr + place, stream, mask=mask)
    wide = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    normed = (wide * scale).to(stream.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + place, normed.to(stream.dtype), mask=mask)


def add_norm(
    stream: torch.Tensor, branch: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`stream + branch` and its RMS norm; each [tokens, size]."""
    num_tokens, size = stream.shape
    total = stream if branch is None else torch.empty_like(stream)
    out = torch.empty_like(stream)
    kernel: Any = _add_norm
    kernel[(num_tokens,)](
        stream,
        stream if branch is None else branch,
        weight,
        total,
        out,
        eps,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        HAS_BRANCH=branch is not None,
        num_warps=4 if size < 4096 else 8,
    )
    return total, out
