"""What stands between the vendor's products of a prefill: rotary with the store of keys and values, attention, gating.

The tokens of several texts are packed into one vector, without padding between them. A `chunk` is what one text has of
them: its cache row is the header's, each token has a slot of its own. So texts with and without something before them
share a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .activation import activated
from .attention import capped, old_planes, planes, segment_planes
from .features import Heads
from .heads import angles, kind_of, rotated, tables
from .launch import let_next_start, wait
from .quick import quick

_BLOCK = 1024
_MAX_SPLITS = 16
LOG2_E = 1.4426950408889634


@quick
@triton.jit(do_not_specialize=["layer", "num_positions"])
def _rotate_and_store(
    qkv_ptr, header_ptr, chunks_ptr, slots_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, layer, num_positions,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr,
    ROTATED: tl.constexpr, STORED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All heads of one token: queries are rotated where they are, rotated keys and values go to the token's slot."""
    let_next_start(PDL)
    wait(PDL)
    HALF: tl.constexpr = DIM // 2
    token = tl.program_id(0)
    chunk, slot = tl.load(chunks_ptr + token), tl.load(slots_ptr + token)
    if slot < 0:  # padding: nobody reads it
        return
    source = qkv_ptr + token.to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV) * DIM)
    head, half, dims = tl.arange(0, ROTATED), tl.arange(0, HALF)[None, :], tl.arange(0, DIM)[None, :]
    is_rotated = head < NUM_HEADS + NUM_KV
    norm_ptr = tl.where((head < NUM_HEADS)[:, None], query_norm_ptr, key_norm_ptr)
    turns = angles(slot + head * 0, is_rotated, cos_ptr, sin_ptr, num_positions, DIM, KIND)
    low, high = rotated(source, head * DIM, is_rotated, turns, norm_ptr, DIM, KIND, qkv_ptr.dtype.element_ty)
    place, is_query = source + head[:, None] * DIM + half, (head < NUM_HEADS)[:, None]
    if KIND[1] or KIND[0] < HALF:
        tl.debug_barrier()  # partners were read where they stand: all of them before any is written
    tl.store(place, low, mask=is_query)
    tl.store(place + HALF, high, mask=is_query)
    is_key = (is_rotated & (head >= NUM_HEADS))[:, None]
    keys, _ = planes(header_ptr, qkv_ptr, layer, chunk, head - NUM_HEADS, NUM_KV, DIM)
    tl.store(keys[:, None] + slot * DIM + half, low, mask=is_key)
    tl.store(keys[:, None] + slot * DIM + HALF + half, high, mask=is_key)
    stored = tl.arange(0, STORED)
    is_value = (stored < NUM_KV)[:, None]
    value = tl.load(source + (NUM_HEADS + NUM_KV + stored)[:, None] * DIM + dims, mask=is_value, other=0.0)
    _, values = planes(header_ptr, qkv_ptr, layer, chunk, stored, NUM_KV, DIM)
    tl.store(values[:, None] + slot * DIM + dims, value, mask=is_value)


def rotate_and_store(
    qkv: torch.Tensor,
    header: torch.Tensor,
    chunks: torch.Tensor,
    slots: torch.Tensor,
    heads: Heads,
    layer: int,
) -> None:
    """`qkv` [tokens, (heads + 2 kv heads) * dim]: queries in place; keys and values to the layer's slots.

    `header` as in `attention.Place`, a row of it for each chunk; `chunks` and `slots` [tokens]: where each token
    belongs, slot -1: nowhere.
    """
    kernel: Any = _rotate_and_store
    kernel[(len(qkv),)](
        qkv,
        header,
        chunks,
        slots,
        *tables(heads),
        layer,
        len(heads.rotary.cos),
        NUM_HEADS=heads.num_heads,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        KIND=kind_of(heads),
        ROTATED=triton.next_power_of_2(heads.num_heads + heads.num_kv_heads),
        STORED=triton.next_power_of_2(heads.num_kv_heads),
        num_warps=4,
        **launch.options(qkv.device),
    )


@triton.jit
def _mix(
    query, keys, values, first, position, end, scale, mixed, best, total,
    DIM: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr, IS_EDGE: tl.constexpr,
):  # fmt: skip
    """The softmax so far with the slots from `first` on: values not yet divided, the best score, the divisor.

    Unless `IS_EDGE`, every query sees all of them.
    """
    slot = first + tl.arange(0, KEYS)
    place = slot[:, None] * DIM + tl.arange(0, DIM)[None, :]
    key = tl.load(keys + place, mask=(slot < end)[:, None], other=0.0) if IS_EDGE else tl.load(keys + place)
    scores = capped(tl.dot(query, tl.trans(key), input_precision="ieee") * scale, CAP)
    if IS_EDGE:
        is_seen = slot[None, :] <= position[:, None]
        if WINDOW > 0:
            is_seen = is_seen & (slot[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    probs = tl.exp2(scores - new_best[:, None])
    before = tl.exp2(best - new_best)
    value = tl.load(values + place, mask=(slot < end)[:, None], other=0.0) if IS_EDGE else tl.load(values + place)
    mixed = tl.dot(probs.to(value.dtype), value, mixed * before[:, None], input_precision="ieee")
    return mixed, new_best, total * before + tl.sum(probs, axis=1)


@triton.jit
def _attend_block(
    qkv_ptr, header_ptr, segments_ptr, entry, out_ptr, weights_ptr, layer, scale, num_tokens, head, split,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One head of a block of queries; of the slots up to its last token's, in blocks of KEYS, every SPLITS-th block."""
    STEP: tl.constexpr = KEYS * SPLITS
    start, count = tl.load(entry + 1).to(tl.int32), tl.load(entry + 3).to(tl.int32)
    lane, dims = tl.arange(0, QUERIES), tl.arange(0, DIM)[None, :]
    chunk, group = tl.load(entry), head // (NUM_HEADS // NUM_KV)
    keys, values = planes(header_ptr, qkv_ptr, layer, chunk, group, NUM_KV, DIM)
    segment_keys, segment_values, segment_end = segment_planes(segments_ptr, qkv_ptr, layer, chunk, group, NUM_KV, DIM)
    is_query = lane < count
    token = tl.load(entry + 2) + lane
    source = qkv_ptr + (token[:, None] * (NUM_HEADS + 2 * NUM_KV) + head) * DIM + dims
    query = tl.load(source, mask=is_query[:, None], other=0.0)
    position, end = start + lane, start + count
    begin, edge = 0, (start + 1) // KEYS * KEYS  # up to here everybody sees everything
    if WINDOW > 0:
        begin = tl.maximum(start + 1 - WINDOW, 0) // KEYS * KEYS
        edge = begin
    begin += (split + SPLITS - begin // KEYS % SPLITS) % SPLITS * KEYS
    mixed, total = tl.zeros([QUERIES, DIM], tl.float32), tl.zeros([QUERIES], tl.float32)
    best = tl.full([QUERIES], -1e30, tl.float32)  # a query may see nothing of the first slots
    for first in range(begin, edge, STEP):
        old_keys, old_values = old_planes(first, keys, values, segment_keys, segment_values, segment_end)
        mixed, best, total = _mix(
            query, old_keys, old_values, first, position, end, scale, mixed, best, total, DIM, CAP, WINDOW, KEYS, False
        )
    for first in range(begin + tl.cdiv(tl.maximum(edge - begin, 0), STEP) * STEP, end, STEP):
        old_keys, old_values = old_planes(first, keys, values, segment_keys, segment_values, segment_end)
        mixed, best, total = _mix(
            query, old_keys, old_values, first, position, end, scale, mixed, best, total, DIM, CAP, WINDOW, KEYS, True
        )
    place = (split * num_tokens + token) * NUM_HEADS + head
    if SPLITS == 1:
        mixed = mixed / total[:, None]
    else:
        tl.store(weights_ptr + place * 2, best, mask=is_query)
        tl.store(weights_ptr + place * 2 + 1, total, mask=is_query)
        is_query = is_query & (total > 0)  # else nothing was seen here
    tl.store(out_ptr + place[:, None] * DIM + dims, mixed.to(out_ptr.dtype.element_ty), mask=is_query[:, None])


@quick
@triton.jit(do_not_specialize=["segments_ptr", "layer", "num_tokens"])
def _attend_chunks(
    qkv_ptr, header_ptr, segments_ptr, blocks_ptr, out_ptr, weights_ptr, layer, scale, num_tokens,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The blocks that there are, one or several a program; in splits, each program has another one of each block."""
    let_next_start(PDL)
    wait(PDL)
    head, block, num_blocks = tl.program_id(1), tl.program_id(0), tl.load(header_ptr + 6).to(tl.int32)
    if block >= num_blocks:
        return
    if SPLITS == 1:
        _attend_block(
            qkv_ptr, header_ptr, segments_ptr, blocks_ptr + block * 4, out_ptr, weights_ptr,
            layer, scale, num_tokens, head, 0, NUM_HEADS, NUM_KV, DIM, CAP, WINDOW, QUERIES, KEYS, 1,
        )  # fmt: skip
    else:
        for item in range(block, num_blocks, tl.num_programs(0)):
            split = (tl.program_id(2) + item) % SPLITS
            _attend_block(
                qkv_ptr, header_ptr, segments_ptr, blocks_ptr + item * 4, out_ptr, weights_ptr,
                layer, scale, num_tokens, head, split, NUM_HEADS, NUM_KV, DIM, CAP, WINDOW, QUERIES, KEYS, SPLITS,
            )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def _join_splits(
    partial_ptr, weights_ptr, slots_ptr, out_ptr, num_tokens,
    NUM_HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The softmax over all splits, for one token and one head."""
    let_next_start(PDL)
    wait(PDL)
    token = tl.program_id(0)
    if tl.load(slots_ptr + token) < 0:  # padding: nobody reads it
        return
    dims = tl.arange(0, DIM)
    place = (tl.arange(0, SPLITS) * num_tokens + token) * NUM_HEADS + tl.program_id(1)
    best, total = tl.load(weights_ptr + place * 2), tl.load(weights_ptr + place * 2 + 1)
    factor = tl.exp2(best - tl.max(best, axis=0))
    part = tl.load(partial_ptr + place[:, None] * DIM + dims[None, :], mask=(total > 0)[:, None], other=0.0)
    mixed = tl.sum(part * factor[:, None], axis=0)
    out = out_ptr + (token * NUM_HEADS + tl.program_id(1)) * DIM + dims
    tl.store(out, (mixed / tl.sum(total * factor, axis=0)).to(out_ptr.dtype.element_ty))


def queries_of(num_tokens: int) -> int:
    """Of one block in a pass of this many tokens: few where programs are few, for each has a processor of its own."""
    return 64 if num_tokens <= 1024 else 128


def splits_of(num_tokens: int, num_heads: int) -> int:
    """Programs that share the slots of a block: two programs a processor, where tokens are too few for that.

    A token's slots are the same ones in each of them, whatever shares its pass, and whichever part of a text it is in.
    """
    num_programs = triton.cdiv(num_tokens, queries_of(num_tokens)) * num_heads
    return int(min(_MAX_SPLITS, 1 << max(2 * launch.PROCESSORS // num_programs, 1).bit_length() - 1))


def attend(
    qkv: torch.Tensor,
    header: torch.Tensor,
    segments: torch.Tensor,
    slots: torch.Tensor,
    blocks: torch.Tensor,
    heads: Heads,
    layer: int,
) -> torch.Tensor:
    """[tokens, heads * dim] of what `rotate_and_store` has left; of what only pads, anything.

    `segments` as in `attention.Place`, a row of it for each chunk. `blocks` [blocks, 4]: each has up to
    `queries_of(tokens)` queries of one chunk: the chunk, the first one's slot, its place among the tokens, and their
    number. There are as many as `header[6]` says.
    """
    num_tokens, shape = len(qkv), (len(qkv), heads.num_heads * heads.dim)
    queries, splits = queries_of(num_tokens), splits_of(num_tokens, heads.num_heads)
    out = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
    partial = out if splits == 1 else torch.empty(splits, *shape, dtype=torch.float32, device=qkv.device)
    weights = out if splits == 1 else partial.new_empty(splits, num_tokens, heads.num_heads, 2)
    options = launch.options(qkv.device)
    kernel: Any = _attend_chunks
    kernel[(len(blocks) if splits == 1 else triton.cdiv(num_tokens, queries), heads.num_heads, splits)](
        *(qkv, header, segments, blocks, partial, weights, layer, heads.scaling * LOG2_E, num_tokens),
        NUM_HEADS=heads.num_heads,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        CAP=(heads.softcap or 0.0) * LOG2_E,
        WINDOW=heads.window or 0,
        QUERIES=queries,
        KEYS=64,
        SPLITS=splits,
        num_warps=queries // 16 if heads.dim <= 128 else 8,
        num_stages=num_stages(queries, heads.dim, qkv),
        **options,
    )
    if splits > 1:
        join: Any = _join_splits
        join[(num_tokens, heads.num_heads)](
            *(partial, weights, slots, out, num_tokens),
            NUM_HEADS=heads.num_heads,
            DIM=heads.dim,
            SPLITS=splits,
            num_warps=2,
            **options,
        )
    return out


def num_stages(queries: int, dim: int, x: torch.Tensor) -> int:
    """As many as the device has room for, up to 3; this changes no result."""
    num_bytes = dim * x.element_size()
    return max(1, min(3, (launch.shared_bytes(x.device) - queries * num_bytes) // (2 * 64 * num_bytes)))


@quick
@triton.jit
def _gate(x_ptr, out_ptr, SIZE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    wait(PDL)
    token, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < SIZE
    gate = tl.load(x_ptr + token * 2 * SIZE + place, mask=mask, other=0.0)
    up = tl.load(x_ptr + token * 2 * SIZE + SIZE + place, mask=mask, other=0.0)
    factor = activated(gate.to(tl.float32), KIND).to(gate.dtype)  # rounded where transformers rounds
    tl.store(out_ptr + token * SIZE + place, (factor.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=mask)


def gate(x: torch.Tensor, kind: str = "silu") -> torch.Tensor:
    """silu(gate) * up: [tokens, 2 * size] -> [tokens, size]; `kind`: of the activation."""
    num_tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    kernel: Any = _gate
    kernel[(num_tokens, triton.cdiv(size, _BLOCK))](
        x, out, SIZE=size, KIND=kind, BLOCK=_BLOCK, num_warps=4, **launch.options(x.device)
    )
    return out
