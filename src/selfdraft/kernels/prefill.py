"""What stands between the vendor's products of a prefill: rotary with the store of keys and values, and SwiGLU.

Many tokens a row, all rows from the same slot on. Attention itself is torch's flash kernel: see models/gpu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .attention import Heads, rotated
from .launch import let_next_start, wait
from .quick import quick

_BLOCK = 1024


@quick
@triton.jit(do_not_specialize=["width", "start", "first_row", "num_slots", "num_positions"])
def _rotate_and_store(
    qkv_ptr, keys_ptr, values_ptr, cos_ptr, sin_ptr, width, start, first_row, num_slots, num_positions,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr,
    ROTATED: tl.constexpr, STORED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All heads of one token: the queries are rotated where they are, keys and values go to the token's slot."""
    let_next_start(PDL)
    wait(PDL)
    HALF: tl.constexpr = DIM // 2
    row, column = tl.program_id(0) // width, tl.program_id(0) % width
    source = qkv_ptr + tl.program_id(0).to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV) * DIM)
    first_plane = (first_row + row).to(tl.int64) * NUM_KV
    head = tl.arange(0, ROTATED)
    position = start + column + head * 0
    low, high = rotated(source, head * DIM, head < NUM_HEADS + NUM_KV, position, cos_ptr, sin_ptr, num_positions, HALF)
    half, is_query = tl.arange(0, HALF)[None, :], (head < NUM_HEADS)[:, None]
    query = source + head[:, None] * DIM + half
    tl.store(query, low, mask=is_query)
    tl.store(query + HALF, high, mask=is_query)
    is_key = ((head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV))[:, None]
    key = keys_ptr + ((first_plane + head - NUM_HEADS)[:, None] * num_slots + start + column) * DIM + half
    tl.store(key, low, mask=is_key)
    tl.store(key + HALF, high, mask=is_key)
    stored, dims = tl.arange(0, STORED), tl.arange(0, DIM)[None, :]
    is_value = (stored < NUM_KV)[:, None]
    value = tl.load(source + (NUM_HEADS + NUM_KV + stored)[:, None] * DIM + dims, mask=is_value, other=0.0)
    place = values_ptr + ((first_plane + stored)[:, None] * num_slots + start + column) * DIM + dims
    tl.store(place, value, mask=is_value)


def rotate_and_store(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: tuple[torch.Tensor, torch.Tensor],
    heads: Heads,
    start: int,
    first_row: int,
) -> None:
    """`qkv` [rows, width, heads + 2 kv heads, dim]: keys and values to the slots from `start` on, queries in place.

    `keys` and `values` [cache rows, kv heads, slots, dim]; `table`: cos and sin [positions, dim / 2].
    """
    num_rows, width, _, _ = qkv.shape
    kernel: Any = _rotate_and_store
    kernel[(num_rows * width,)](
        qkv,
        keys,
        values,
        *table,
        width,
        start,
        first_row,
        keys.shape[2],
        len(table[0]),
        NUM_HEADS=heads.num_heads,
        NUM_KV=heads.num_kv_heads,
        DIM=heads.dim,
        ROTATED=triton.next_power_of_2(heads.num_heads + heads.num_kv_heads),
        STORED=triton.next_power_of_2(heads.num_kv_heads),
        num_warps=4,
        **launch.options(qkv.device),
    )


@quick
@triton.jit
def _gate(x_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    wait(PDL)
    token, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < SIZE
    gate = tl.load(x_ptr + token * 2 * SIZE + place, mask=mask, other=0.0)
    up = tl.load(x_ptr + token * 2 * SIZE + SIZE + place, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide * tl.sigmoid(wide)).to(gate.dtype)  # rounded where transformers rounds
    tl.store(out_ptr + token * SIZE + place, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=mask)


def gate(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [tokens, 2 * size] -> [tokens, size]."""
    num_tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    kernel: Any = _gate
    kernel[(num_tokens, triton.cdiv(size, _BLOCK))](
        x, out, SIZE=size, BLOCK=_BLOCK, num_warps=4, **launch.options(x.device)
    )
    return out
