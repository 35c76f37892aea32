"""Attention of a few tokens over the slot cache: rotary, writing keys and values, and reading them, in two kernels.

The tokens of a pass may hang together as a tree. Each sees its own path down that tree as if it were a chain: the key
of its ancestor at depth d stands where slot `start + d` would be. The slots are cut into splits of fixed size, one
program each, put together afterwards. So a token's result depends on its path alone, bit by bit: not on the width of
its pass, nor on the siblings beside it. No mask is built. Rows have as many tokens as they have: what would pad them
to the same number is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .features import Heads
from .heads import angles, kind_of, rotated, tables
from .launch import Room, fresh, let_next_start, wait
from .quick import quick

SPLIT = 32
"""Slots a program reads."""
SHARED = 128
"""Of a segment, as many slots are read together or none of them: what every kernel here and beside reads at once."""
_REGISTERS = {4: 168, 8: 128}
"""Of a thread, by warps, in passes of several tokens: three programs a processor, or two, run at once (H200, 16 tokens
of Mistral-7B: 8.5 us instead of 10.4). For one token there are fewer programs, and fewer registers make them slower."""
_JOINED = 16
MAX_PARTIAL_BYTES = 1 << 28
"""Of what all splits leave to be put together: rows that would leave more go one group after the other."""


@dataclass(frozen=True)
class Place:
    """Where the tokens of a pass stand, on the device.

    `header` [8 + rows]: address of the cache [layers, 2, rows, heads, slots, dim], its slots, its rows, a free number,
    the number of rows of the pass; from the ninth number on their cache rows. `segments` [rows, 4]: address of the
    segment [layers, 2, heads, slots, dim] that a row begins with, its slots, how many of them the row reads there and
    not in the cache (whole blocks of SHARED; 0: none), 0. `starts` [rows]; `first` and `places`: see `passes.Columns`,
    lines are tokens; `depths` and `sees` [rows, width].
    """

    header: torch.Tensor
    segments: torch.Tensor
    starts: torch.Tensor
    first: torch.Tensor
    places: torch.Tensor
    depths: torch.Tensor
    sees: torch.Tensor
    dtype: torch.dtype  # of the cache
    end: int  # no row has more slots than this, new ones included


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """CAP * tanh(scores / CAP); 0: as they are."""
    if CAP > 0:
        scores = CAP * (2 * tl.sigmoid(scores * (2 / CAP)) - 1)
    return scores


@triton.jit
def planes(header_ptr, qkv_ptr, layer, row, head, NUM_KV: tl.constexpr, DIM: tl.constexpr):
    """Where the keys and the values of one row of the pass and one head (or of several heads) begin."""
    num_slots, cache_rows = tl.load(header_ptr + 1), tl.load(header_ptr + 2)
    cache = tl.multiple_of(tl.load(header_ptr).to(tl.pointer_type(qkv_ptr.dtype.element_ty)), 16)
    plane = num_slots * DIM
    keys = cache + ((layer * 2 * cache_rows + tl.load(header_ptr + 8 + row)) * NUM_KV + head) * plane
    return keys, keys + cache_rows * NUM_KV * plane


@triton.jit
def segment_planes(segments_ptr, qkv_ptr, layer, row, head, NUM_KV: tl.constexpr, DIM: tl.constexpr):
    """The same of the segment that the row begins with, and the slot up to which they are read there."""
    segment = tl.load(segments_ptr + row * 4).to(tl.pointer_type(qkv_ptr.dtype.element_ty))
    plane = tl.load(segments_ptr + row * 4 + 1) * DIM
    keys = tl.multiple_of(segment, 16) + (layer * 2 * NUM_KV + head) * plane
    return keys, keys + NUM_KV * plane, tl.load(segments_ptr + row * 4 + 2)


@triton.jit
def old_planes(first, keys, values, segment_keys, segment_values, segment_end):
    """Where the slots from `first` on are read: those of a block are all in the segment, or none of them."""
    is_common = first < segment_end
    return tl.where(is_common, segment_keys, keys), tl.where(is_common, segment_values, values)


@triton.jit
def read(keys, values, slot, mask, DIM: tl.constexpr):
    """Both halves of the keys, and the values, of some slots."""
    half, dims, offsets = tl.arange(0, DIM // 2)[None, :], tl.arange(0, DIM)[None, :], slot[:, None].to(tl.int64) * DIM
    low = tl.load(keys + offsets + half, mask=mask, other=0.0)
    high = tl.load(keys + offsets + DIM // 2 + half, mask=mask, other=0.0)
    return low, high, tl.load(values + offsets + dims, mask=mask, other=0.0)


@triton.jit
def store(keys, values, place, low, high, value, mask, DIM: tl.constexpr):
    """Both halves of a key, and a value."""
    half, dims = tl.arange(0, DIM // 2)[None, :], tl.arange(0, DIM)[None, :]
    tl.store(keys + place + half, low, mask=mask)
    tl.store(keys + place + DIM // 2 + half, high, mask=mask)
    tl.store(values + place + dims, value, mask=mask)


@triton.jit
def _partial(low, high, key_low, key_high, value, visible, scaling, CAP: tl.constexpr):
    """Softmax over the visible slots of one split: the mixed values, not yet divided, the best score, the divisor."""
    scores = tl.dot(low, tl.trans(key_low), input_precision="ieee")
    scores = tl.dot(high, tl.trans(key_high), scores, input_precision="ieee") * scaling
    scores = tl.where(visible, capped(scores, CAP), float("-inf"))
    best = tl.maximum(tl.max(scores, axis=1), -1e30)  # a split may be out of sight altogether
    probs = tl.exp(scores - best[:, None])
    return tl.dot(probs.to(value.dtype), value, input_precision="ieee"), best, tl.sum(probs, axis=1)


@triton.jit
def _task(number, start, num_splits, width, GROUP: tl.constexpr, MEMBERS: tl.constexpr, SPLIT: tl.constexpr):
    """Of one program: whether its split holds no token of this pass, which split that is, and its block of queries.

    After the programs of these splits come those of the others, from the one of the row's first new token on: of them
    a row has as many as it has tokens.
    """
    num_blocks = tl.cdiv(width * GROUP, MEMBERS)
    rest = number - num_splits * num_blocks
    if rest < 0:
        return rest < 0, number // num_blocks, number % num_blocks
    return rest < 0, start // SPLIT + rest // width, rest % width


@triton.jit
def _is_chain(depths_ptr, num_tokens, WIDTHS: tl.constexpr):
    """Whether each token of a row follows the one before it."""
    column = tl.arange(0, WIDTHS)
    depth = tl.load(depths_ptr + column, mask=column < num_tokens, other=0)
    return tl.sum(((depth != column) & (column < num_tokens)).to(tl.int32), axis=0) == 0


@triton.jit
def _queries(block, is_packed, num_tokens, GROUP: tl.constexpr, MEMBERS: tl.constexpr):
    """The queries of one program: the token of each, its place in the group of heads, and whether there is one.

    Packed: MEMBERS queries, of tokens that see the same, or of which the last sees what the others do. Else one
    token's, as in a tree.
    """
    lane = tl.arange(0, MEMBERS)
    query = block * tl.where(is_packed, MEMBERS, GROUP) + lane
    is_query = (query < num_tokens * GROUP) & (is_packed | (lane < GROUP))
    query = tl.where(is_query, query, 0)
    return query // GROUP, query % GROUP, is_query


@triton.jit
def _ancestors(depths_ptr, sees_ptr, token, own_depth, depth, width, WIDTHS: tl.constexpr):
    """The columns of a token's path at these depths [n], its own included; 0 where it has none."""
    column = tl.arange(0, WIDTHS)
    is_seen = ((tl.load(sees_ptr + token) >> column) & 1) == 1
    depths = tl.load(depths_ptr + column, mask=column < width, other=-1)
    is_there = is_seen[None, :] & (depths[None, :] == depth[:, None])
    found = tl.sum(tl.where(is_there, column[None, :], 0), axis=1)
    return tl.where(depth == own_depth, token, found)


@quick
@triton.jit(do_not_specialize=["segments_ptr", "layer", "num_splits", "width", "num_positions", "first_row"])
def _attend(
    qkv_ptr, header_ptr, segments_ptr, starts_ptr, first_ptr, depths_ptr, sees_ptr, cos_ptr, sin_ptr,
    query_norm_ptr, key_norm_ptr, partial_ptr, weights_ptr, layer, scaling, num_splits, width, num_positions, first_row,
    GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, MEMBERS: tl.constexpr, SPLIT: tl.constexpr, WIDTHS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One split of the slots, for queries that share a key/value head: those of one token, or of several together."""
    let_next_start(PDL)
    QKV: tl.constexpr = (GROUP + 2) * NUM_KV * DIM
    DTYPE: tl.constexpr = qkv_ptr.dtype.element_ty
    head, row = tl.program_id(1), first_row + tl.program_id(2)
    start, line = tl.load(starts_ptr + row).to(tl.int32), tl.load(first_ptr + row)
    num_tokens = (tl.load(first_ptr + row + 1) - line).to(tl.int32)
    is_shared, split, block = _task(tl.program_id(0), start, num_splits, width, GROUP, MEMBERS, SPLIT)
    first = split * SPLIT
    depths_ptr, sees_ptr, qkv_ptr = depths_ptr + row * width, sees_ptr + row * width, qkv_ptr + line * QKV
    is_packed = is_shared | _is_chain(depths_ptr, num_tokens, WIDTHS)
    # The first token of the block, and the last, which sees what the others see.
    begin, end = tl.where(is_packed, block * MEMBERS // GROUP, block), block
    if is_packed:
        end = tl.maximum(0, tl.minimum((block * MEMBERS + MEMBERS - 1) // GROUP, num_tokens - 1))
    begin_depth, end_depth = tl.load(depths_ptr + begin, mask=begin < width), tl.load(depths_ptr + end)
    # Each row has as many blocks as the widest one, and one for each token also where tokens are packed.
    if (begin >= num_tokens) | (first + SPLIT > start if is_shared else first > start + end_depth):
        wait(PDL)
        return
    keys, values = planes(header_ptr, qkv_ptr, layer, row, head, NUM_KV, DIM)
    segment_keys, segment_values, segment_end = segment_planes(segments_ptr, qkv_ptr, layer, row, head, NUM_KV, DIM)
    old_keys, old_values = old_planes(first, keys, values, segment_keys, segment_values, segment_end)
    slot, dims = (first + tl.arange(0, SPLIT)).to(tl.int64), tl.arange(0, DIM)[None, :]
    depth = slot - start
    is_old, is_new = slot < start, (slot >= start) & (depth <= end_depth)
    key_low, key_high, value = read(old_keys, old_values, slot, is_old[:, None], DIM)
    token, member, is_query = _queries(block, is_packed, num_tokens, GROUP, MEMBERS)
    position = start + tl.load(depths_ptr + token)
    turns = angles(position, is_query, cos_ptr, sin_ptr, num_positions, DIM, KIND)
    # Tokens of this pass: of no split that all tokens see alike.
    column = _ancestors(depths_ptr, sees_ptr, end, end_depth, depth, width, WIDTHS)
    new_turns = angles(slot, is_new, cos_ptr, sin_ptr, num_positions, DIM, KIND)
    wait(PDL)
    query = token * QKV + (head * GROUP + member) * DIM
    query_low, query_high = rotated(qkv_ptr, query, is_query, turns, query_norm_ptr, DIM, KIND, DTYPE)
    if not is_shared:  # rotated here, and those of the block's tokens are stored
        new_offset = column * QKV + (NUM_KV * GROUP + head) * DIM
        new_low, new_high = rotated(qkv_ptr, new_offset, is_new, new_turns, key_norm_ptr, DIM, KIND, DTYPE)
        new_value = tl.load(qkv_ptr + new_offset[:, None] + NUM_KV * DIM + dims, mask=is_new[:, None], other=0.0)
        place, is_own = (start + column[:, None]) * DIM, is_new & (depth >= begin_depth)
        store(keys, values, place, new_low, new_high, new_value, is_own[:, None], DIM)
        key_low = tl.where(is_new[:, None], new_low, key_low)
        key_high = tl.where(is_new[:, None], new_high, key_high)
        value = tl.where(is_new[:, None], new_value, value)

    visible = slot[None, :] <= position[:, None]
    if WINDOW > 0:
        visible = visible & (slot[None, :] > position[:, None] - WINDOW)
    mixed, best, total = _partial(query_low, query_high, key_low, key_high, value, visible, scaling, CAP)
    place = (((tl.program_id(2) * num_splits + split) * width + token) * NUM_KV + head) * GROUP + member
    tl.store(partial_ptr + place[:, None].to(tl.int64) * DIM + dims, mixed, mask=is_query[:, None])
    tl.store(weights_ptr + place * 2, best, mask=is_query)
    tl.store(weights_ptr + place * 2 + 1, total, mask=is_query)


@quick
@triton.jit(do_not_specialize=["num_splits", "width", "first_row", "num_rows"])
def _join(
    partial_ptr, weights_ptr, starts_ptr, first_ptr, places_ptr, depths_ptr, out_ptr,
    num_splits, width, first_row, num_rows,
    NUM_HEADS: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr, JOINED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The softmax over all splits, for one token of these rows and one head."""
    let_next_start(PDL)
    column, head = tl.load(places_ptr + tl.program_id(0)).to(tl.int32), tl.program_id(1)
    row, token = column // width, column % width
    is_token = token < tl.load(first_ptr + row + 1) - tl.load(first_ptr + row)
    position = tl.load(starts_ptr + row) + tl.load(depths_ptr + column)
    row -= first_row
    wait(PDL)
    if (row < 0) | (row >= num_rows):
        return
    place = out_ptr + (tl.program_id(0) * NUM_HEADS + head) * DIM + tl.arange(0, DIM)
    if not is_token:  # padding: nothing, but a number
        tl.store(place, tl.zeros([DIM], out_ptr.dtype.element_ty))
        return
    used = position // SPLIT + 1
    dims = tl.arange(0, DIM)[None, :]
    best = tl.full([], -1e30, tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([DIM], tl.float32)
    for begin in range(0, used, JOINED):
        split = begin + tl.arange(0, JOINED)
        is_used = split < used
        source = ((row * num_splits + split) * width + token) * NUM_HEADS + head
        part_best = tl.load(weights_ptr + source * 2, mask=is_used, other=-1e30)
        part_total = tl.load(weights_ptr + source * 2 + 1, mask=is_used, other=0.0)
        part = tl.load(partial_ptr + source[:, None].to(tl.int64) * DIM + dims, mask=is_used[:, None], other=0.0)
        new_best = tl.maximum(best, tl.max(part_best, axis=0))
        factor = tl.exp(part_best - new_best)
        before = tl.exp(best - new_best)
        total = total * before + tl.sum(part_total * factor, axis=0)
        mixed = mixed * before + tl.sum(part * factor[:, None], axis=0)
        best = new_best
    tl.store(place, (mixed / total).to(out_ptr.dtype.element_ty))


def attend(qkv: torch.Tensor, place: Place, heads: Heads, layer: int, room: Room = fresh) -> torch.Tensor:
    """`qkv` [tokens, (heads + 2 kv heads) * dim] -> [tokens, heads * dim]; keys and values are stored."""
    num_rows, width = place.depths.shape
    num_splits = triton.cdiv(place.end, SPLIT)
    row_bytes = num_splits * width * heads.num_heads * heads.dim * 4
    group = min(num_rows, max(1, MAX_PARTIAL_BYTES // row_bytes))
    shape = (group, num_splits, width, heads.num_heads)
    partial = room("partial", (*shape, heads.dim), torch.float32, qkv.device)
    weights = room("weights", (*shape, 2), torch.float32, qkv.device)
    out = room("mixed", (len(qkv), heads.num_heads * heads.dim), qkv.dtype, qkv.device)
    for first_row in range(0, num_rows, group):
        rows = range(first_row, min(first_row + group, num_rows))
        _attend_rows(rows, (qkv, partial, weights, out), place, heads, layer)
    return out


def _attend_rows(rows: range, tensors: Sequence[torch.Tensor], place: Place, heads: Heads, layer: int) -> None:
    qkv, partial, weights, out = tensors
    _, num_splits, width, _ = weights.shape[:4]
    group = heads.num_heads // heads.num_kv_heads
    members, num_new = max(16, triton.next_power_of_2(group)), 1 + (SPLIT + width - 2) // SPLIT
    num_programs = num_splits * triton.cdiv(width * group, members) + num_new * width
    options, num_warps = launch.options(qkv.device), 4 if heads.dim <= 128 else 8
    attend_kernel: Any = _attend
    attend_kernel[(num_programs, heads.num_kv_heads, len(rows))](
        *(qkv, place.header, place.segments, place.starts, place.first, place.depths, place.sees),
        *(*tables(heads), partial, weights, layer, heads.scaling),
        *(num_splits, width, len(heads.rotary.cos), rows.start),
        GROUP=group,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        KIND=kind_of(heads),
        CAP=heads.softcap or 0.0,
        WINDOW=heads.window or 0,
        MEMBERS=members,
        SPLIT=SPLIT,
        WIDTHS=64,
        num_warps=num_warps,
        **(launch.limits(qkv.device, _REGISTERS[num_warps]) if width > 1 else {}),
        **options,
    )
    join_kernel: Any = _join
    join_kernel[(len(qkv), heads.num_heads)](
        *(partial, weights, place.starts, place.first, place.places, place.depths, out),
        *(num_splits, width, rows.start, len(rows)),
        NUM_HEADS=heads.num_heads,
        DIM=heads.dim,
        SPLIT=SPLIT,
        JOINED=_JOINED,
        num_warps=2,
        **options,
    )
