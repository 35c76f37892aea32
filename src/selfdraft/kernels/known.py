"""Attention of probed tokens: each sees the cached slots before its own position, and of the new tokens itself alone.

All rows of a probe read the same row of the cache, so queries of any rows share a program. Queries and keys are normed
and turned where they are read; nothing is written but the result.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .attention import capped, read
from .features import Heads
from .heads import angles, kind_of, rotated, tables
from .launch import let_next_start, wait
from .prefill import LOG2_E, num_stages
from .quick import quick

_QUERIES = 64


@quick
@triton.jit(do_not_specialize=["num_tokens", "width", "end", "num_positions"])
def _attend_known(
    qkv_ptr, place_ptr, keys_ptr, values_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, out_ptr,
    scale, num_slots, num_tokens, width, end, num_positions,
    GROUP: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, KIND: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some queries that share a key/value head. Their softmax begins with their own keys, so none is empty."""
    let_next_start(PDL)
    wait(PDL)
    QKV: tl.constexpr = (GROUP + 2) * NUM_KV * DIM
    DTYPE: tl.constexpr = qkv_ptr.dtype.element_ty
    head, dims = tl.program_id(1), tl.arange(0, DIM)[None, :]
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    is_query = query < num_tokens * GROUP
    query = tl.where(is_query, query, 0)
    token = query // GROUP
    position = tl.load(place_ptr + 1).to(tl.int32) + token % width
    turns = angles(position, is_query, cos_ptr, sin_ptr, num_positions, DIM, KIND)
    member, source = head * GROUP + query % GROUP, token.to(tl.int64) * QKV
    low, high = rotated(qkv_ptr, source + member * DIM, is_query, turns, query_norm_ptr, DIM, KIND, DTYPE)
    own = source + (NUM_KV * GROUP + head) * DIM
    own_low, own_high = rotated(qkv_ptr, own, is_query, turns, key_norm_ptr, DIM, KIND, DTYPE)
    products = low.to(tl.float32) * own_low.to(tl.float32) + high.to(tl.float32) * own_high.to(tl.float32)
    best, total = capped(tl.sum(products, axis=1) * scale, CAP), tl.full([QUERIES], 1.0, tl.float32)
    mixed = tl.load(qkv_ptr + own[:, None] + NUM_KV * DIM + dims, mask=is_query[:, None], other=0.0).to(tl.float32)
    plane = (tl.load(place_ptr) * NUM_KV + head) * num_slots * DIM
    begin, last = 0, tl.minimum(tl.max(position, axis=0), end)  # tokens that pad may stand after the last slot
    if WINDOW > 0:
        begin = tl.maximum(tl.min(position, axis=0) + 1 - WINDOW, 0) // KEYS * KEYS
    for first in range(begin, last, KEYS):
        slot = first + tl.arange(0, KEYS)
        key_low, key_high, value = read(keys_ptr + plane, values_ptr + plane, slot, (slot < last)[:, None], DIM)
        scores = tl.dot(low, tl.trans(key_low), input_precision="ieee")
        scores = capped(tl.dot(high, tl.trans(key_high), scores, input_precision="ieee") * scale, CAP)
        is_seen = (slot < last)[None, :] & (slot[None, :] < position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (slot[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        probs, before = tl.exp2(scores - new_best[:, None]), tl.exp2(best - new_best)
        mixed = tl.dot(probs.to(value.dtype), value, mixed * before[:, None], input_precision="ieee")
        best, total = new_best, total * before + tl.sum(probs, axis=1)
    out_ptr += (token * (NUM_KV * GROUP) + member).to(tl.int64)[:, None] * DIM + dims
    tl.store(out_ptr, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_query[:, None])


def attend_known(
    qkv: torch.Tensor,
    place: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    width: int,
    end: int,
    heads: Heads,
) -> torch.Tensor:
    """`qkv` [tokens, (heads + 2 kv heads) * dim] -> [tokens, heads * dim].

    `place`: the row of the layer's `keys` and `values` [rows, kv heads, slots, dim], and the position of the first of
    each `width` tokens. Slots from `end` on are not read.
    """
    num_tokens, num_kv, dim = len(qkv), heads.num_kv_heads, heads.dim
    group = heads.num_heads // num_kv
    out = torch.empty(num_tokens, heads.num_heads * dim, dtype=qkv.dtype, device=qkv.device)
    kernel: Any = _attend_known
    kernel[(triton.cdiv(num_tokens * group, _QUERIES), num_kv)](
        *(qkv, place, keys, values, *tables(heads), out),
        *(heads.scaling * LOG2_E, keys.shape[2], num_tokens, width, end, len(heads.rotary.cos)),
        GROUP=group,
        NUM_KV=num_kv,
        DIM=dim,
        KIND=kind_of(heads),
        CAP=(heads.softcap or 0.0) * LOG2_E,
        WINDOW=heads.window or 0,
        QUERIES=_QUERIES,
        KEYS=64,
        num_warps=4 if dim <= 128 else 8,
        num_stages=num_stages(_QUERIES, dim, qkv),
        **launch.options(qkv.device),
    )
    return out
