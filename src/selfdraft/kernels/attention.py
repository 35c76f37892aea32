"""Attention of a few tokens over the slot cache: rotary, writing keys and values, and reading them, in two kernels.

The cached slots are cut into splits of fixed size, one program each, and put together afterwards; where the cuts lie
depends on the slots alone, so that a token's result does not depend on the width of its pass. What the tokens of a pass
see of each other is a bit mask per token: chains and trees are the same code and no mask is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

SPLIT = 32
"""Slots a program reads."""
_QUERIES = 16
_JOINED = 16


@dataclass(frozen=True)
class Heads:
    num_heads: int
    num_kv_heads: int
    dim: int
    scaling: float
    window: int | None = None


@dataclass(frozen=True)
class Place:
    """Where the tokens of a pass stand, on the device.

    `header`: address of the cache [layers, 2, rows, heads, slots, dim], its slots, its rows, the first row of the pass,
    the number of its rows. `starts` [rows]; `depths` and `sees` [rows, width]; `cos` and `sin` [positions, dim / 2].
    """

    header: torch.Tensor
    starts: torch.Tensor
    depths: torch.Tensor
    sees: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    end: int  # no row has more slots than this, new ones included


@triton.jit
def _rotated(ptr, row_offsets, mask, positions, cos_ptr, sin_ptr, HALF: tl.constexpr):
    """Both halves of heads [n, dim], rotated to their positions."""
    half = tl.arange(0, HALF)[None, :]
    low = tl.load(ptr + row_offsets[:, None] + half, mask=mask[:, None], other=0.0)
    high = tl.load(ptr + row_offsets[:, None] + HALF + half, mask=mask[:, None], other=0.0)
    cos = tl.load(cos_ptr + positions[:, None] * HALF + half, mask=mask[:, None], other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + positions[:, None] * HALF + half, mask=mask[:, None], other=0.0).to(tl.float32)
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    return (low * cos - high * sin).to(dtype), (high * cos + low * sin).to(dtype)


@triton.jit
def _planes(header_ptr, qkv_ptr, layer, row, head, NUM_KV: tl.constexpr, DIM: tl.constexpr):
    """Where the keys and the values of one row and head begin."""
    num_slots, cache_rows = tl.load(header_ptr + 1), tl.load(header_ptr + 2)
    cache = tl.multiple_of(tl.load(header_ptr).to(tl.pointer_type(qkv_ptr.dtype.element_ty)), 16)
    plane = num_slots * DIM
    keys = cache + ((layer * 2 * cache_rows + tl.load(header_ptr + 3) + row) * NUM_KV + head) * plane
    return keys, keys + cache_rows * NUM_KV * plane


@triton.jit
def _partial(low, high, key_low, key_high, value, visible, scaling):
    """Softmax over the visible slots of one split: the mixed values, not yet divided, the best score, the divisor."""
    scores = tl.dot(low, tl.trans(key_low), input_precision="ieee")
    scores = tl.dot(high, tl.trans(key_high), scores, input_precision="ieee") * scaling
    scores = tl.where(visible, scores, float("-inf"))
    best = tl.maximum(tl.max(scores, axis=1), -1e30)  # a split may be out of sight altogether
    probs = tl.exp(scores - best[:, None])
    return tl.dot(probs.to(value.dtype), value, input_precision="ieee"), best, tl.sum(probs, axis=1)


@triton.jit(do_not_specialize=["layer", "num_splits", "width"])
def _attend(
    qkv_ptr, header_ptr, starts_ptr, depths_ptr, sees_ptr, cos_ptr, sin_ptr, partial_ptr, weights_ptr,
    layer, scaling, num_splits, width,
    GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One split of the slots for 16 (token, head) pairs that share a key/value head."""
    HALF: tl.constexpr = DIM // 2
    QKV: tl.constexpr = (GROUP + 2) * NUM_KV * DIM
    split, row = tl.program_id(0), tl.program_id(2)
    block, head = tl.program_id(1) // NUM_KV, tl.program_id(1) % NUM_KV
    start, first = tl.load(starts_ptr + row), split * SPLIT
    if (row >= tl.load(header_ptr + 4)) | (first >= start + width):
        return
    keys, values = _planes(header_ptr, qkv_ptr, layer, row, head, NUM_KV, DIM)

    pair = block * QUERIES + tl.arange(0, QUERIES)
    token, member = pair // GROUP, pair % GROUP
    is_pair = token < width
    position = start + tl.load(depths_ptr + row * width + token, mask=is_pair, other=0)
    offset = (row * width + token) * QKV + (head * GROUP + member) * DIM
    query_low, query_high = _rotated(qkv_ptr, offset, is_pair, position, cos_ptr, sin_ptr, HALF)

    slot = (first + tl.arange(0, SPLIT)).to(tl.int64)
    column = slot - start
    is_old, is_new = slot < start, (column >= 0) & (column < width)
    half, dims, offsets = tl.arange(0, HALF)[None, :], tl.arange(0, DIM)[None, :], slot[:, None] * DIM
    key_low = tl.load(keys + offsets + half, mask=is_old[:, None], other=0.0)
    key_high = tl.load(keys + offsets + HALF + half, mask=is_old[:, None], other=0.0)
    value = tl.load(values + offsets + dims, mask=is_old[:, None], other=0.0)
    slot_position = slot
    if first + SPLIT > start:  # the tokens of this pass: rotated and stored on the way
        slot_position += tl.where(is_new, tl.load(depths_ptr + row * width + column, mask=is_new, other=0) - column, 0)
        new_offset = (row * width + column) * QKV + (NUM_KV * GROUP + head) * DIM
        new_low, new_high = _rotated(qkv_ptr, new_offset, is_new, slot_position, cos_ptr, sin_ptr, HALF)
        new_value = tl.load(qkv_ptr + new_offset[:, None] + NUM_KV * DIM + dims, mask=is_new[:, None], other=0.0)
        writes = is_new[:, None] & (block == 0)
        tl.store(keys + offsets + half, new_low, mask=writes)
        tl.store(keys + offsets + HALF + half, new_high, mask=writes)
        tl.store(values + offsets + dims, new_value, mask=writes)
        key_low = tl.where(is_new[:, None], new_low, key_low)
        key_high = tl.where(is_new[:, None], new_high, key_high)
        value = tl.where(is_new[:, None], new_value, value)

    sees = tl.load(sees_ptr + row * width + token, mask=is_pair, other=0)
    bit = (sees[:, None] >> tl.where(is_new, column, 0)[None, :]) & 1
    visible = is_old[None, :] | (is_new[None, :] & (bit == 1))
    if WINDOW > 0:
        visible = visible & (slot_position[None, :] > position[:, None] - WINDOW)
    mixed, best, total = _partial(query_low, query_high, key_low, key_high, value, visible, scaling)
    place = ((row * num_splits + split) * NUM_KV + head) * (tl.num_programs(1) // NUM_KV * QUERIES) + pair
    tl.store(partial_ptr + place[:, None].to(tl.int64) * DIM + dims, mixed, mask=is_pair[:, None])
    tl.store(weights_ptr + place * 2, best, mask=is_pair)
    tl.store(weights_ptr + place * 2 + 1, total, mask=is_pair)


@triton.jit(do_not_specialize=["num_splits", "num_pairs", "width"])
def _join(
    partial_ptr,
    weights_ptr,
    header_ptr,
    starts_ptr,
    out_ptr,
    num_splits,
    num_pairs,
    width,
    GROUP: tl.constexpr,
    NUM_KV: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    JOINED: tl.constexpr,
):
    """The softmax over all splits, for one token and head."""
    row, token = tl.program_id(0) // width, tl.program_id(0) % width
    head, member = tl.program_id(1) // GROUP, tl.program_id(1) % GROUP
    if row >= tl.load(header_ptr + 4):
        return
    used = tl.cdiv(tl.load(starts_ptr + row) + width, SPLIT)
    dims = tl.arange(0, DIM)[None, :]
    pair = token * GROUP + member
    best = tl.full([], -1e30, tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([DIM], tl.float32)
    for begin in range(0, used, JOINED):
        split = begin + tl.arange(0, JOINED)
        is_used = split < used
        place = ((row * num_splits + split) * NUM_KV + head) * num_pairs + pair
        part_best = tl.load(weights_ptr + place * 2, mask=is_used, other=-1e30)
        part_total = tl.load(weights_ptr + place * 2 + 1, mask=is_used, other=0.0)
        part = tl.load(partial_ptr + place[:, None].to(tl.int64) * DIM + dims, mask=is_used[:, None], other=0.0)
        new_best = tl.maximum(best, tl.max(part_best, axis=0))
        factor = tl.exp(part_best - new_best)
        before = tl.exp(best - new_best)
        total = total * before + tl.sum(part_total * factor, axis=0)
        mixed = mixed * before + tl.sum(part * factor[:, None], axis=0)
        best = new_best
    place = (tl.program_id(0) * NUM_KV * GROUP + tl.program_id(1)) * DIM
    tl.store(out_ptr + place + tl.arange(0, DIM), (mixed / total).to(out_ptr.dtype.element_ty))


def attend(qkv: torch.Tensor, place: Place, heads: Heads, layer: int) -> torch.Tensor:
    """`qkv` [rows * width, (heads + 2 kv heads) * dim] -> [rows * width, heads * dim]; keys and values are stored."""
    num_rows, width = place.depths.shape
    group = heads.num_heads // heads.num_kv_heads
    num_splits = triton.cdiv(place.end, SPLIT)
    num_blocks = triton.cdiv(width * group, _QUERIES)
    num_pairs = num_blocks * _QUERIES
    shape = (num_rows, num_splits, heads.num_kv_heads, num_pairs)
    partial = torch.empty(*shape, heads.dim, dtype=torch.float32, device=qkv.device)
    weights = torch.empty(*shape, 2, dtype=torch.float32, device=qkv.device)
    out = torch.empty(len(qkv), heads.num_heads * heads.dim, dtype=qkv.dtype, device=qkv.device)
    shared = {"GROUP": group, "NUM_KV": heads.num_kv_heads, "DIM": heads.dim, "SPLIT": SPLIT}
    attend_kernel: Any = _attend
    attend_kernel[(num_splits, num_blocks * heads.num_kv_heads, num_rows)](
        qkv,
        place.header,
        place.starts,
        place.depths,
        place.sees,
        place.cos,
        place.sin,
        partial,
        weights,
        layer,
        heads.scaling,
        num_splits,
        width,
        WINDOW=heads.window or 0,
        QUERIES=_QUERIES,
        num_warps=4,
        **shared,
    )
    join_kernel: Any = _join
    join_kernel[(num_rows * width, heads.num_heads)](
        partial,
        weights,
        place.header,
        place.starts,
        out,
        num_splits,
        num_pairs,
        width,
        JOINED=_JOINED,
        num_warps=2,
        **shared,
    )
    return out
