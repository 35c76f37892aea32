"""What stands between the products of a pass: the last branch joins the stream, the stream is normed for the next."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .features import Norm
from .launch import Room, fresh, let_next_start, wait
from .quick import quick


def kind_of(norm: Norm | None) -> int:
    """What `normed` does, as a constant; 0: nothing."""
    if norm is None:
        return 0
    return 1 + 2 * norm.is_centred + 4 * norm.rounds_first + 8 * (norm.bias is not None)


def _values(norm: Norm | None, unused: torch.Tensor) -> tuple[Any, ...]:
    """Weight, bias, eps and offset; something in their place where there are none."""
    if norm is None:
        return unused, unused, 0.0, 0.0
    return norm.weight, unused if norm.bias is None else norm.bias, norm.eps, float(norm.offset)


@triton.jit
def _weights(weight_ptr, bias_ptr, offset, place, mask, KIND: tl.constexpr):
    """In float32; something in the place of what there is not.

    The offset is added also where it is 0: of a weight that may be anything in float32, no compiler makes a product in
    half precision, which it would join with a sum that follows and not round between them.
    """
    weight = place.to(tl.float32)
    bias = weight
    if KIND & 1:
        weight = tl.load(weight_ptr + place, mask=mask, other=0.0).to(tl.float32) + offset
    if KIND & 8:
        bias = tl.load(bias_ptr + place, mask=mask, other=0.0).to(tl.float32)
    return weight, bias


@triton.jit
def _normed(x, weight, bias, eps, mask, size, KIND: tl.constexpr):
    """Rounded as transformers rounds it; `x` is 0 outside of the mask."""
    if KIND & 1:
        wide = x.to(tl.float32)
        if KIND & 2:
            wide = tl.where(mask, wide - tl.sum(wide, axis=0) / size, 0.0)
        wide = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
        if KIND & 4:
            wide = wide.to(x.dtype).to(tl.float32)
        wide = wide * weight
        if KIND & 8:
            wide += bias
        x = wide.to(x.dtype)
    return x


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def _add_norm(
    stream_ptr, branch_ptr, sum_ptr, out_ptr, weight_ptr, bias_ptr, eps, offset,
    after_weight_ptr, after_bias_ptr, after_eps, after_offset, multiplier, num_tokens,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, NUM_PARTS: tl.constexpr, KIND: tl.constexpr, AFTER: tl.constexpr,
    IS_MULTIPLIED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    place = tl.arange(0, BLOCK)
    mask = place < SIZE
    weight, bias = _weights(weight_ptr, bias_ptr, offset, place, mask, KIND)
    after_weight, after_bias = _weights(after_weight_ptr, after_bias_ptr, after_offset, place, mask, AFTER)
    place += tl.program_id(0).to(tl.int64) * SIZE
    wait(PDL)
    stream = tl.load(stream_ptr + place, mask=mask, other=0.0)
    # Rounded where transformers rounds: the branch, normed, multiplied, and after the sum.
    if NUM_PARTS > 0:
        branch = tl.load(branch_ptr + place, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, NUM_PARTS):
            branch += tl.load(branch_ptr + part * num_tokens * SIZE + place, mask=mask, other=0.0)
        branch = _normed(branch.to(stream.dtype), after_weight, after_bias, after_eps, mask, SIZE, AFTER)
        branch = branch.to(tl.float32)
        if IS_MULTIPLIED:
            branch = (branch * multiplier).to(stream.dtype).to(tl.float32)
        stream = (stream.to(tl.float32) + branch).to(stream.dtype)
        tl.store(sum_ptr + place, stream, mask=mask)
    if KIND:
        tl.store(out_ptr + place, _normed(stream, weight, bias, eps, mask, SIZE, KIND), mask=mask)


def add_norm(
    stream: torch.Tensor,
    branch: torch.Tensor | None,
    norm: Norm | None,
    after: Norm | None = None,
    multiplier: float = 1.0,
    room: Room = fresh,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`stream + multiplier * after(branch)`, and the norm of that sum, or None: the sum itself; each [tokens, size].

    A branch may come in parts, [parts, tokens, size] in float32: their sum, rounded to the stream's dtype, is added.
    The room of the sum may be that of the stream.
    """
    num_tokens, size = stream.shape
    total = stream if branch is None else room("stream", stream.shape, stream.dtype, stream.device)
    out = total if norm is None else room("normed", stream.shape, stream.dtype, stream.device)
    if branch is None and norm is None:
        return total, out
    kernel: Any = _add_norm
    kernel[(num_tokens,)](
        *(stream, stream if branch is None else branch, total, out),
        *(*_values(norm, stream), *_values(None if branch is None else after, stream), float(multiplier), num_tokens),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        NUM_PARTS=0 if branch is None else len(branch) if branch.ndim == 3 else 1,
        KIND=kind_of(norm),
        AFTER=0 if branch is None else kind_of(after),
        IS_MULTIPLIED=multiplier != 1 and branch is not None,
        num_warps=_num_warps(size),
        **launch.options(stream.device),
    )
    return total, out


def _num_warps(size: int) -> int:
    """A number each thread at least: two that read the same one could read it before and after it is written."""
    return int(max(1, min(16, triton.next_power_of_2(size) // 32)))


@quick
@triton.jit
def _norm_heads(
    qkv_ptr, query_weight_ptr, key_weight_ptr, eps, offset,
    TOTAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """All queries of a token, or all its keys."""
    let_next_start(PDL)
    place, is_key = tl.arange(0, BLOCK), tl.program_id(1) == 1
    size = tl.where(is_key, KEYS, QUERIES)
    mask = place < size
    weight_ptr = tl.where(is_key, key_weight_ptr, query_weight_ptr)
    weight, bias = _weights(weight_ptr, weight_ptr, offset, place, mask, KIND)
    qkv_ptr += tl.program_id(0).to(tl.int64) * TOTAL + tl.where(is_key, QUERIES, 0)
    wait(PDL)
    x = tl.load(qkv_ptr + place, mask=mask, other=0.0)
    tl.store(qkv_ptr + place, _normed(x, weight, bias, eps, mask, size, KIND), mask=mask)


def norm_heads(qkv: torch.Tensor, query_norm: Norm | None, key_norm: Norm | None) -> None:
    """In place: the queries of each token [tokens, all], all heads together, and its keys; norms differ in weights."""
    if query_norm is None or key_norm is None:
        return
    kind, sizes = kind_of(query_norm), (len(query_norm.weight), len(key_norm.weight))
    assert (kind, query_norm.eps, query_norm.offset) == (kind_of(key_norm), key_norm.eps, key_norm.offset)
    assert query_norm.bias is None
    kernel: Any = _norm_heads
    kernel[(len(qkv), 2)](
        *(qkv, query_norm.weight, key_norm.weight, query_norm.eps, float(query_norm.offset)),
        TOTAL=qkv.shape[1],
        QUERIES=sizes[0],
        KEYS=sizes[1],
        BLOCK=triton.next_power_of_2(max(sizes)),
        KIND=kind,
        num_warps=_num_warps(max(sizes)),
        **launch.options(qkv.device),
    )
