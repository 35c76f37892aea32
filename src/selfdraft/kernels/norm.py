"""What stands between the products of a pass: the last branch joins the stream, the stream is normed for the next."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .launch import Room, fresh, let_next_start, wait
from .quick import quick


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def _add_norm(
    stream_ptr, branch_ptr, weight_ptr, sum_ptr, out_ptr, eps, num_tokens,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, NUM_PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    place = tl.arange(0, BLOCK)
    mask = place < SIZE
    weight = tl.load(weight_ptr + place, mask=mask, other=0.0)
    place += tl.program_id(0).to(tl.int64) * SIZE
    wait(PDL)
    stream = tl.load(stream_ptr + place, mask=mask, other=0.0)
    # Rounded where transformers rounds: the branch, after the sum, after the scale, after the weight.
    if NUM_PARTS > 0:
        branch = tl.load(branch_ptr + place, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, NUM_PARTS):
            branch += tl.load(branch_ptr + part * num_tokens * SIZE + place, mask=mask, other=0.0)
        branch = branch.to(stream.dtype).to(tl.float32)
        stream = (stream.to(tl.float32) + branch).to(stream.dtype)
        tl.store(sum_ptr + place, stream, mask=mask)
    wide = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    normed = (wide * scale).to(stream.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + place, normed.to(stream.dtype), mask=mask)


def add_norm(
    stream: torch.Tensor, branch: torch.Tensor | None, weight: torch.Tensor, eps: float, room: Room = fresh
) -> tuple[torch.Tensor, torch.Tensor]:
    """`stream + branch` and its RMS norm; each [tokens, size].

    A branch may come in parts, [parts, tokens, size] in float32: their sum, rounded to the stream's dtype, is added.
    The room of the sum may be that of the stream.
    """
    num_tokens, size = stream.shape
    total = stream if branch is None else room("stream", stream.shape, stream.dtype, stream.device)
    out = room("normed", stream.shape, stream.dtype, stream.device)
    block = triton.next_power_of_2(size)
    # A number each thread at least: two that read the same one could read it before and after it is written in place.
    num_warps = max(1, min(16, block // 32))
    kernel: Any = _add_norm
    kernel[(num_tokens,)](
        stream,
        stream if branch is None else branch,
        weight,
        total,
        out,
        eps,
        num_tokens,
        SIZE=size,
        BLOCK=block,
        NUM_PARTS=0 if branch is None else len(branch) if branch.ndim == 3 else 1,
        num_warps=num_warps,
        **launch.options(stream.device),
    )
    return total, out
