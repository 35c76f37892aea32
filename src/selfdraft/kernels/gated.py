"""The first half of a gated MLP: two products with one matrix and the activation between them, in one kernel.

Decoding reads every weight once a pass, whatever the number of tokens: up to 64 of them fill one tile of the tensor
cores, so that a wide verification costs what one token costs. The order of every sum depends on the matrix alone:
**a token's result does not depend on how many others share its pass.**
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from .activation import activated
from .launch import PROCESSORS, Room, Tile, fresh, let_next_start, row_tile, token_tile, wait
from .quick import quick


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def _gated(
    x_ptr, weight_ptr, bias_ptr, out_ptr, num_tokens, num_rows, SIZE: tl.constexpr, HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_token = tokens < num_tokens
    columns = tl.arange(0, COLUMNS)
    source = x_ptr + tokens[None, :] * SIZE + columns[:, None]
    # Rows after the last one are read again and not stored.
    row_ptr = weight_ptr + (rows % num_rows).to(tl.int64) * SIZE
    up_offset = num_rows.to(tl.int64) * SIZE
    gate_rows = row_ptr[:, None] + columns[None, :]
    up_rows = gate_rows + up_offset
    gate = tl.zeros([ROWS, TOKENS], tl.float32)
    up = tl.zeros([ROWS, TOKENS], tl.float32)
    wait(PDL)
    for start in range(0, SIZE, COLUMNS):
        x = tl.load(source + start, mask=is_token[None, :], other=0.0)
        gate = tl.dot(tl.load(gate_rows + start), x, gate, input_precision="ieee")
        up = tl.dot(tl.load(up_rows + start), x, up, input_precision="ieee")
    let_next_start(PDL)
    if HAS_BIAS:
        gate += tl.load(bias_ptr + rows % num_rows)[:, None].to(tl.float32)
        up += tl.load(bias_ptr + num_rows + rows % num_rows)[:, None].to(tl.float32)
    mask = is_token[None, :] & (rows < num_rows)[:, None]
    out = (activated(gate, KIND) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + tokens[None, :] * num_rows + rows[:, None], out, mask=mask)


def gated(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, kind: str = "silu", room: Room = fresh
) -> torch.Tensor:
    """silu(x @ gate.T) * (x @ up.T): [tokens, size] -> [tokens, rows]; `weight` holds gate and up, [2 * rows, size].

    `kind`: of the activation, see activation.py.
    """
    num_tokens, size = x.shape
    num_rows = weight.shape[0] // 2
    out = room("gated", (num_tokens, num_rows), x.dtype, x.device)
    tile, num_tile_tokens = gated_tile(num_rows, num_tokens), token_tile(num_tokens)
    kernel: Any = _gated
    kernel[(triton.cdiv(num_tokens, num_tile_tokens), triton.cdiv(num_rows, tile.rows))](
        *(x, weight, x if bias is None else bias, out, num_tokens, num_rows),
        SIZE=size,
        HAS_BIAS=bias is not None,
        KIND=kind,
        TOKENS=num_tile_tokens,
        ROWS=tile.rows,
        COLUMNS=next(step for step in (tile.columns, 64, 32, 16) if size % step == 0),
        **tile.options(x, num_matrices=2),
    )
    return out


@cache
def gated_tile(num_rows: int, num_tokens: int) -> Tile:
    """As many stages as leave room for all programs at once: up to three a processor.

    Measured on an H200: 1536 x 17920 16 us a product of up to 16 tokens, 3.5 TB/s; 5120 x 35840 94 instead of 100.
    """
    rows = row_tile(num_rows, num_tokens)
    num_together = triton.cdiv(num_rows, rows * PROCESSORS)
    return Tile(rows, 64, rows // 16, max(4, 7 - num_together) if rows == 64 else 4)
