"""Queries and keys as attention takes them: put together from parts, normed head by head, turned by their angles."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .features import Heads


@triton.jit
def summed(ptr, mask, DTYPE: tl.constexpr, PARTS: tl.constexpr, stride):
    """What a product left in parts, each `stride` after the one before, rounded as if it had been whole."""
    total = tl.load(ptr, mask=mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(ptr + part * stride, mask=mask, other=0.0)
    return total.to(DTYPE)


def kind_of(heads: Heads) -> tuple[Any, ...]:
    """What `rotated` does, as a constant: how many pairs turn, which; eps of the norms (0: none), offset, rounding."""
    norm, rotary = heads.query_norm, heads.rotary
    kinds = [one and (one.eps, one.offset, one.rounds_first) for one in (norm, heads.key_norm)]
    assert kinds[0] == kinds[1], "queries and keys are normed alike"
    assert norm is None or not (norm.is_centred or norm.bias is not None)
    return rotary.cos.shape[1], rotary.is_interleaved, *(kinds[0] or (0.0, 0.0, False))


def tables(heads: Heads) -> tuple[torch.Tensor, ...]:
    """cos, sin, and the weights of the norms of queries and keys; something in their place where there are none."""
    cos, norms = heads.rotary.cos, (heads.query_norm, heads.key_norm)
    return cos, heads.rotary.sin, *(cos if norm is None else norm.weight for norm in norms)


@triton.jit
def _scaled(x, scale, weight_ptr, dim, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """The numbers `dim` of heads, normed."""
    x = x.to(tl.float32) * scale
    if KIND[4]:
        x = x.to(DTYPE).to(tl.float32)
    return (x * (tl.load(weight_ptr + dim).to(tl.float32) + KIND[3])).to(DTYPE)


@triton.jit
def _angles(dim, place, mask, cos_ptr, sin_ptr, KIND: tl.constexpr):
    """cos and sin of the numbers `dim` of heads; what does not turn: 1 and 0."""
    place, mask = place + (dim // 2 if KIND[1] else dim % KIND[0]), mask & (dim < 2 * KIND[0])
    return tl.load(cos_ptr + place, mask=mask, other=1.0), tl.load(sin_ptr + place, mask=mask, other=0.0)


@triton.jit
def angles(positions, mask, cos_ptr, sin_ptr, num_positions, DIM: tl.constexpr, KIND: tl.constexpr):
    """Of the low halves of heads, and of the high ones; what pads may stand after the last position."""
    half, place = tl.arange(0, DIM // 2)[None, :], tl.minimum(positions, num_positions - 1)[:, None] * KIND[0]
    cos, sin = _angles(half, place, mask[:, None], cos_ptr, sin_ptr, KIND)
    if KIND[1] or KIND[0] < DIM // 2:
        high_cos, high_sin = _angles(half + DIM // 2, place, mask[:, None], cos_ptr, sin_ptr, KIND)
        return cos, sin, high_cos, high_sin
    return cos, sin, cos, sin


@triton.jit
def _turned(
    x, ptr, dim, mask, cos, sin, weight_ptr, scale,
    KIND: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr, stride,
):  # fmt: skip
    """The numbers `dim` of heads, each turned with its partner, wherever that stands; those that have none stay."""
    PAIRS: tl.constexpr = KIND[0]
    is_first, partner = dim < PAIRS, tl.where(dim < PAIRS, PAIRS, -PAIRS)
    if KIND[1]:
        is_first, partner = dim % 2 == 0, 1 - dim % 2 * 2
    other = summed(ptr + partner, mask & (dim < 2 * PAIRS), DTYPE, PARTS, stride)
    if KIND[2] > 0:
        other = _scaled(other, scale, weight_ptr, dim + partner, KIND, DTYPE)
    sin = sin.to(tl.float32)
    return (x.to(tl.float32) * cos.to(tl.float32) + other.to(tl.float32) * tl.where(is_first, -sin, sin)).to(DTYPE)


@triton.jit
def rotated(
    ptr, row_offsets, mask, turns, weight_ptr,
    DIM: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr = 1, stride=0,
):  # fmt: skip
    """Both halves of heads [n, dim], normed, and turned by their angles."""
    HALF: tl.constexpr = DIM // 2
    half, scale, mask = tl.arange(0, HALF)[None, :], 1.0, mask[:, None]
    ptr += row_offsets[:, None] + half
    low = summed(ptr, mask, DTYPE, PARTS, stride)
    high = summed(ptr + HALF, mask, DTYPE, PARTS, stride)
    if KIND[2] > 0:
        squares = low.to(tl.float32) * low.to(tl.float32) + high.to(tl.float32) * high.to(tl.float32)
        scale = tl.rsqrt(tl.sum(squares, axis=1)[:, None] / DIM + KIND[2])
        low = _scaled(low, scale, weight_ptr, half, KIND, DTYPE)
        high = _scaled(high, scale, weight_ptr, half + HALF, KIND, DTYPE)
    if KIND[1] or KIND[0] < HALF:
        low = _turned(low, ptr, half, mask, turns[0], turns[1], weight_ptr, scale, KIND, DTYPE, PARTS, stride)
        ptr, half = ptr + HALF, half + HALF
        return low, _turned(high, ptr, half, mask, turns[2], turns[3], weight_ptr, scale, KIND, DTYPE, PARTS, stride)
    cos, sin = turns[0].to(tl.float32), turns[1].to(tl.float32)
    low, high = low.to(tl.float32), high.to(tl.float32)
    return (low * cos - high * sin).to(DTYPE), (high * cos + low * sin).to(DTYPE)
