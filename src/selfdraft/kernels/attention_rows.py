"""Attention of many rows with one token each: a program goes through a span of the slots of its row.

The last program of a row to end puts the spans together, in their order. Spans are long: 32 / 64 / 128 rows of 80 to
400 slots take less than 10 / 13 / 20 us, in short splits (kernels/attention.py) 19 / 32 / 56, on an H200 with 12 heads,
and one long row among short ones does not hold the others up. The order of sums is another.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .attention import SHARED, Place, capped, old_planes, planes, read, segment_planes, store
from .features import Heads
from .heads import angles, kind_of, rotated, summed, tables
from .launch import Room, fresh, let_next_start, wait
from .quick import quick

STAGES = 3
"""How many times ahead slots are read, where the device has room for it."""
MAX_COUNTED = 1 << 16
"""Rows times key/value heads."""


@triton.jit
def _own(
    qkv_ptr, keys, values, query_low, query_high, turns, norm_ptr, head, start, scaling,
    stride, is_last, GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr,
    CAP: tl.constexpr, MEMBERS: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Store the token's own key and value; where `is_last`, the softmax begins with them, elsewhere with nothing.

    So what is read of the cache goes to the tensor cores as it is.
    """
    dims, one = tl.arange(0, DIM)[None, :], tl.arange(0, 1)
    own = one + (NUM_KV * GROUP + head) * DIM
    low, high = rotated(qkv_ptr, own, one == 0, turns, norm_ptr, DIM, KIND, DTYPE, PARTS, stride)
    value = summed(qkv_ptr + own[:, None] + NUM_KV * DIM + dims, dims >= 0, DTYPE, PARTS, stride)
    store(keys, values, start * DIM, low, high, value, is_last, DIM)
    score = tl.sum(query_low.to(tl.float32) * low + query_high.to(tl.float32) * high, axis=1)
    score = capped(score * scaling, CAP)
    nothing = tl.zeros([MEMBERS, DIM], tl.float32)
    mixed = tl.where(is_last, value.to(tl.float32), nothing)
    return tl.where(is_last, score, -1e30), tl.where(is_last, 1.0, tl.zeros([MEMBERS], tl.float32)), mixed


@triton.jit
def _go_through(
    best, total, mixed, segments_ptr, out_ptr, keys, values, query_low, query_high,
    layer, row, head, start, begin, lowest, highest, scaling,
    NUM_KV: tl.constexpr, DIM: tl.constexpr, CAP: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some more slots of a softmax, as far as they are visible: best, divisor, mixed values, not yet divided."""
    segment_keys, segment_values, segment_end = segment_planes(segments_ptr, out_ptr, layer, row, head, NUM_KV, DIM)
    for first in tl.range(lowest, highest, SLOTS, num_stages=STAGES):
        slot = first + tl.arange(0, SLOTS)
        is_seen = (slot < start) & (slot >= begin)
        old_keys, old_values = old_planes(first, keys, values, segment_keys, segment_values, segment_end)
        key_low, key_high, value = read(old_keys, old_values, slot, is_seen[:, None], DIM)
        scores = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
        scores = tl.dot(query_high, tl.trans(key_high), scores, input_precision="ieee") * scaling
        scores = tl.where(is_seen[None, :], capped(scores, CAP), float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        probs = tl.exp(scores - new_best[:, None])
        before = tl.exp(best - new_best)
        total = total * before + tl.sum(probs, axis=1)
        mixed = tl.dot(probs.to(value.dtype), value, mixed * before[:, None], input_precision="ieee")
        best = new_best
    return best, total, mixed


@triton.jit
def _put_together(
    partial_ptr, weights_ptr, lane, first, last, GROUP: tl.constexpr, MEMBERS: tl.constexpr, DIM: tl.constexpr
):
    """The softmax over all spans of a row: what other programs have just written."""
    dims, mask = tl.arange(0, DIM)[None, :], lane < GROUP
    best = tl.full([MEMBERS], -1e30, tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    mixed = tl.zeros([MEMBERS, DIM], tl.float32)
    for span in range(first, last + 1):
        place = span * GROUP + lane
        part_best = tl.load(weights_ptr + place * 2, mask=mask, other=-1e30, cache_modifier=".cg")
        part_total = tl.load(weights_ptr + place * 2 + 1, mask=mask, other=0.0, cache_modifier=".cg")
        offsets = place[:, None] * DIM + dims
        part = tl.load(partial_ptr + offsets, mask=mask[:, None], other=0.0, cache_modifier=".cg")
        new_best = tl.maximum(best, part_best)
        before, factor = tl.exp(best - new_best), tl.exp(part_best - new_best)
        total = total * before + part_total * factor
        mixed = mixed * before[:, None] + part * factor[:, None]
        best = new_best
    return mixed, total


@quick
@triton.jit(do_not_specialize=["segments_ptr", "layer", "num_positions", "num_spans"])
def _attend_rows(
    qkv_ptr, header_ptr, segments_ptr, starts_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr,
    out_ptr, partial_ptr, weights_ptr, arrived_ptr, layer, scaling, num_positions, num_spans,
    GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, MEMBERS: tl.constexpr, SPAN: tl.constexpr, SLOTS: tl.constexpr, STAGES: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One span of the slots of one row and one key/value head."""
    let_next_start(PDL)
    QKV: tl.constexpr = (GROUP + 2) * NUM_KV * DIM
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    span, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(starts_ptr + row)
    keys, values = planes(header_ptr, out_ptr, layer, row, head, NUM_KV, DIM)
    is_row = row < tl.load(header_ptr + 4)
    end, begin = (start + 1).to(tl.int32), 0
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0)
    first_span, last_span = begin // SPAN, (end - 1) // SPAN
    one = tl.arange(0, 1)
    turns = angles(start + one, one == 0, cos_ptr, sin_ptr, num_positions, DIM, KIND)  # of all heads
    wait(PDL)
    if (span < first_span) | (span > last_span):
        return
    qkv_ptr += row.to(tl.int64) * QKV
    stride = tl.num_programs(2).to(tl.int64) * QKV
    lane, dims = tl.arange(0, MEMBERS), tl.arange(0, DIM)[None, :]
    is_member, number = (lane < GROUP)[:, None], row * NUM_KV + head
    place = out_ptr + (number * GROUP + lane)[:, None] * DIM + dims
    if not is_row:  # padding: nothing, but a number
        tl.store(place, tl.zeros([MEMBERS, DIM], DTYPE), mask=is_member)
        return
    query = (head * GROUP + lane) * DIM
    query_low, query_high = rotated(
        qkv_ptr, query, lane < GROUP, turns, query_norm_ptr, DIM, KIND, DTYPE, PARTS, stride
    )
    best, total, mixed = _own(
        qkv_ptr, keys, values, query_low, query_high, turns, key_norm_ptr, head, start, scaling, stride,
        span == last_span, GROUP, NUM_KV, DIM, KIND, CAP, MEMBERS, DTYPE, PARTS,
    )  # fmt: skip
    lowest, highest = tl.maximum(begin // SLOTS * SLOTS, span * SPAN), tl.minimum(end, (span + 1) * SPAN)
    best, total, mixed = _go_through(
        best, total, mixed, segments_ptr, out_ptr, keys, values, query_low, query_high,
        layer, row, head, start, begin, lowest, highest, scaling, NUM_KV, DIM, CAP, SLOTS, STAGES,
    )  # fmt: skip
    if first_span != last_span:
        partial_ptr += number.to(tl.int64) * num_spans * GROUP * DIM
        weights_ptr += number * num_spans * GROUP * 2
        tl.store(partial_ptr + (span * GROUP + lane)[:, None] * DIM + dims, mixed, mask=is_member)
        tl.store(weights_ptr + (span * GROUP + lane) * 2, best, mask=lane < GROUP)
        tl.store(weights_ptr + (span * GROUP + lane) * 2 + 1, total, mask=lane < GROUP)
        tl.debug_barrier()  # all of it is there before others hear of it
        if tl.atomic_add(arrived_ptr + number, 1, sem="acq_rel") < last_span - first_span:
            return
        tl.store(arrived_ptr + number, 0)
        mixed, total = _put_together(partial_ptr, weights_ptr, lane, first_span, last_span, GROUP, MEMBERS, DIM)
    tl.store(place, (mixed / total[:, None]).to(DTYPE), mask=is_member)


@functools.cache
@torch.inference_mode(False)
def arrivals(device: torch.device) -> torch.Tensor:
    """Of each row and head: how many spans have ended. Every kernel leaves zeros."""
    return torch.zeros(MAX_COUNTED, dtype=torch.int32, device=device)


def span_of(num_rows: int) -> int:
    """Slots of a program: fewer where there are processors to spare."""
    return 256 if num_rows <= 32 else 512


def slots_of(dim: int) -> int:
    """Slots that are read at once: as many as a segment shares, fewer where heads are larger than usual."""
    return min(SHARED, (1 << 14) // dim)


def attend_rows(qkv: torch.Tensor, place: Place, heads: Heads, layer: int, room: Room = fresh) -> torch.Tensor:
    """As `attention.attend`, one token a row; `qkv` may come in parts, [parts, rows, ...] in float32."""
    num_parts, num_rows = len(qkv) if qkv.ndim == 3 else 1, qkv.shape[-2]
    group, span = heads.num_heads // heads.num_kv_heads, span_of(num_rows)
    num_spans = triton.cdiv(place.end, span)
    shape = (num_rows, heads.num_kv_heads, num_spans, group)
    partial = room("partial", (*shape, heads.dim), torch.float32, qkv.device)
    weights = room("weights", (*shape, 2), torch.float32, qkv.device)
    out = room("mixed", (num_rows, heads.num_heads * heads.dim), place.dtype, qkv.device)
    slots = slots_of(heads.dim)
    kernel: Any = _attend_rows
    kernel[(num_spans, heads.num_kv_heads, num_rows)](
        *(qkv, place.header, place.segments, place.starts, *tables(heads), out),
        *(partial, weights, arrivals(qkv.device), layer, heads.scaling, len(heads.rotary.cos), num_spans),
        GROUP=group,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        KIND=kind_of(heads),
        CAP=heads.softcap or 0.0,
        WINDOW=heads.window or 0,
        MEMBERS=max(16, triton.next_power_of_2(group)),
        SPAN=span,
        SLOTS=slots,
        STAGES=max(1, min(STAGES, launch.shared_bytes(qkv.device) // (2 * slots * heads.dim * out.element_size()))),
        PARTS=num_parts,
        num_warps=8,
        **launch.options(qkv.device),
    )
    return out
