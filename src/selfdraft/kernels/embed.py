"""The embeddings of the tokens that a pass computes: its first kernel, launched the usual way (see `launch`)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .launch import Room, fresh
from .quick import quick


@quick
@triton.jit
def _embed(
    table_ptr, tokens_ptr, places_ptr, out_ptr, scale,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_SCALED: tl.constexpr,
):  # fmt: skip
    line, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    token = tl.load(tokens_ptr + tl.load(places_ptr + line))
    vector = tl.load(table_ptr + token * SIZE + place, mask=place < SIZE, other=0.0)
    if IS_SCALED:
        vector = (vector.to(tl.float32) * scale).to(vector.dtype)
    tl.store(out_ptr + line * SIZE + place, vector, mask=place < SIZE)


def embed(
    table: torch.Tensor, tokens: torch.Tensor, places: torch.Tensor, scale: float = 1.0, room: Room = fresh
) -> torch.Tensor:
    """`table` [vocabulary, size] -> [lines, size], of the tokens at these places of all `tokens`, times `scale`."""
    size = table.shape[1]
    out = room("stream", (len(places), size), table.dtype, table.device)
    kernel: Any = _embed
    kernel[(len(places),)](
        *(table, tokens, places, out, float(scale)),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        IS_SCALED=scale != 1,
        num_warps=4 if size < 4096 else 8,
    )
    return out
