"""Attention of many rows with one token each: a program goes through all slots of its row, as many as it has.

There are programs enough without cutting rows into splits (kernels/attention.py), so nothing has to be put together:
22 us instead of 43 for 128 rows of 330 slots, 41 instead of 81 for 256 (H200, 12 heads). The order of sums is another.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .attention import SHARED, Heads, Place, old_planes, planes, read, rotated, segment_planes
from .launch import Room, fresh, let_next_start, wait
from .quick import quick

SLOTS, STAGES = SHARED, 3
"""Slots that are read at once, and how many times ahead."""


@quick
@triton.jit(do_not_specialize=["segments_ptr", "layer", "num_positions"])
def _attend_rows(
    qkv_ptr, header_ptr, segments_ptr, starts_ptr, cos_ptr, sin_ptr, out_ptr, layer, scaling, num_positions,
    GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr,
    MEMBERS: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All slots of one row and one key/value head."""
    let_next_start(PDL)
    HALF: tl.constexpr = DIM // 2
    QKV: tl.constexpr = (GROUP + 2) * NUM_KV * DIM
    head, row = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + row)
    keys, values = planes(header_ptr, qkv_ptr, layer, row, head, NUM_KV, DIM)
    segment_keys, segment_values, segment_end = segment_planes(segments_ptr, qkv_ptr, layer, row, head, NUM_KV, DIM)
    is_row = row < tl.load(header_ptr + 4)
    wait(PDL)
    qkv_ptr += row.to(tl.int64) * QKV
    lane = tl.arange(0, MEMBERS)
    half, dims = tl.arange(0, HALF)[None, :], tl.arange(0, DIM)[None, :]
    place = out_ptr + ((row * NUM_KV + head) * GROUP + lane)[:, None] * DIM + dims
    if not is_row:  # padding: nothing, but a number
        tl.store(place, tl.zeros([MEMBERS, DIM], out_ptr.dtype.element_ty), mask=(lane < GROUP)[:, None])
        return
    query_low, query_high = rotated(
        qkv_ptr, (head * GROUP + lane) * DIM, lane < GROUP, start + lane * 0, cos_ptr, sin_ptr, num_positions, HALF
    )
    one = tl.arange(0, 1)
    own = one + (NUM_KV * GROUP + head) * DIM
    new_low, new_high = rotated(qkv_ptr, own, one == 0, start + one, cos_ptr, sin_ptr, num_positions, HALF)
    new_value = tl.load(qkv_ptr + own[:, None] + NUM_KV * DIM + dims)
    tl.store(keys + start * DIM + half, new_low)
    tl.store(keys + start * DIM + HALF + half, new_high)
    tl.store(values + start * DIM + dims, new_value)
    best = tl.full([MEMBERS], -1e30, tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    mixed = tl.zeros([MEMBERS, DIM], tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(start - WINDOW + 1, 0).to(tl.int32) // SLOTS * SLOTS
    for first in tl.range(begin, (start + 1).to(tl.int32), SLOTS, num_stages=STAGES):
        slot = first + tl.arange(0, SLOTS)
        is_old, is_new = (slot < start)[:, None], (slot == start)[:, None]
        old_keys, old_values = old_planes(first, keys, values, segment_keys, segment_values, segment_end)
        old_low, old_high, old_value = read(old_keys, old_values, slot, is_old, DIM)
        key_low, key_high = tl.where(is_new, new_low, old_low), tl.where(is_new, new_high, old_high)
        value = tl.where(is_new, new_value, old_value)
        scores = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
        scores = tl.dot(query_high, tl.trans(key_high), scores, input_precision="ieee") * scaling
        visible = (slot <= start)[None, :]
        if WINDOW > 0:
            visible = visible & (slot > start - WINDOW)[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        probs = tl.exp(scores - new_best[:, None])
        before = tl.exp(best - new_best)
        total = total * before + tl.sum(probs, axis=1)
        mixed = tl.dot(probs.to(value.dtype), value, mixed * before[:, None], input_precision="ieee")
        best = new_best
    tl.store(place, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=(lane < GROUP)[:, None])


def attend_rows(qkv: torch.Tensor, place: Place, heads: Heads, layer: int, room: Room = fresh) -> torch.Tensor:
    """As `attention.attend`, one token a row."""
    group = heads.num_heads // heads.num_kv_heads
    out = room("mixed", (len(qkv), heads.num_heads * heads.dim), qkv.dtype, qkv.device)
    kernel: Any = _attend_rows
    kernel[(heads.num_kv_heads, len(qkv))](
        qkv,
        place.header,
        place.segments,
        place.starts,
        place.cos,
        place.sin,
        out,
        layer,
        heads.scaling,
        len(place.cos),
        GROUP=group,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        WINDOW=heads.window or 0,
        MEMBERS=max(16, triton.next_power_of_2(group)),
        SLOTS=SLOTS,
        STAGES=STAGES,
        num_warps=8,
        **launch.options(qkv.device),
    )
    return out
