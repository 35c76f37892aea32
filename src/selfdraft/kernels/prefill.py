"""What stands between the vendor's products of a prefill: rotary with the store of keys and values, and SwiGLU.

Many tokens a row, all rows from the same slot on. Attention itself is torch's flash kernel: see models/gpu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .attention import Heads, planes, rotated
from .launch import let_next_start, wait
from .quick import quick

_BLOCK = 1024


@quick
@triton.jit(do_not_specialize=["layer", "width", "num_positions"])
def _rotate_and_store(
    qkv_ptr, header_ptr, cos_ptr, sin_ptr, layer, width, num_positions,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr,
    ROTATED: tl.constexpr, STORED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All heads of one token: queries and keys are rotated where they are, keys and values go to the token's slot."""
    let_next_start(PDL)
    wait(PDL)
    HALF: tl.constexpr = DIM // 2
    row, slot = tl.program_id(0) // width, tl.load(header_ptr + 5) + tl.program_id(0) % width
    source = qkv_ptr + tl.program_id(0).to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV) * DIM)
    head, half, dims = tl.arange(0, ROTATED), tl.arange(0, HALF)[None, :], tl.arange(0, DIM)[None, :]
    is_rotated = head < NUM_HEADS + NUM_KV
    low, high = rotated(source, head * DIM, is_rotated, slot + head * 0, cos_ptr, sin_ptr, num_positions, HALF)
    place = source + head[:, None] * DIM + half
    tl.store(place, low, mask=is_rotated[:, None])
    tl.store(place + HALF, high, mask=is_rotated[:, None])
    is_key = (is_rotated & (head >= NUM_HEADS))[:, None]
    keys, _ = planes(header_ptr, qkv_ptr, layer, row, head - NUM_HEADS, NUM_KV, DIM)
    tl.store(keys[:, None] + slot * DIM + half, low, mask=is_key)
    tl.store(keys[:, None] + slot * DIM + HALF + half, high, mask=is_key)
    stored = tl.arange(0, STORED)
    is_value = (stored < NUM_KV)[:, None]
    value = tl.load(source + (NUM_HEADS + NUM_KV + stored)[:, None] * DIM + dims, mask=is_value, other=0.0)
    _, values = planes(header_ptr, qkv_ptr, layer, row, stored, NUM_KV, DIM)
    tl.store(values[:, None] + slot * DIM + dims, value, mask=is_value)


def rotate_and_store(
    qkv: torch.Tensor, header: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor], heads: Heads, layer: int
) -> None:
    """`qkv` [rows, width, heads + 2 kv heads, dim]: queries and keys in place; keys and values to the layer's slots.

    `header` as in `attention.Place`; its sixth number is the first slot. `table`: cos and sin [positions, dim / 2].
    """
    num_rows, width, _, _ = qkv.shape
    kernel: Any = _rotate_and_store
    kernel[(num_rows * width,)](
        qkv,
        header,
        *table,
        layer,
        width,
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
