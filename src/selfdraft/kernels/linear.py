"""Products of a few tokens with a matrix: `x @ weight.T + bias`, every weight read once.

A product of up to 64 tokens costs little more than the matrix costs to read: 64 of its rows are what the tensor cores
take at once, with any number of tokens. Where a matrix has few rows, its columns are split, too: `linear_parts` leaves
the parts to the next norm, which adds them in order. Steps and splits depend on the matrix alone, and each result is
one sum over its columns: **a token's result does not depend on how many others share its pass.**
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

_MAX_SPLITS = 16


@quick
@triton.jit(do_not_specialize=["num_tokens"])
def _linear(
    x_ptr, weight_ptr, bias_ptr, out_ptr, num_tokens, num_rows,
    SIZE: tl.constexpr, PART: tl.constexpr, IS_EVEN: tl.constexpr, HAS_BIAS: tl.constexpr, KIND: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if KIND == "":
        let_next_start(PDL)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    is_token, is_row = tokens < num_tokens, rows < num_rows
    columns = split * PART + tl.arange(0, COLUMNS)
    # Rows after the last one are read again and not stored.
    row_ptr = weight_ptr + (rows % num_rows).to(tl.int64) * SIZE
    weights = row_ptr[:, None] + columns[None, :]
    source = x_ptr + tokens[None, :] * SIZE + columns[:, None]
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + rows, mask=is_row & (split == 0), other=0.0)
    wait(PDL)
    for start in range(0, PART, COLUMNS):
        if IS_EVEN:
            weight = tl.load(weights + start)
            x = tl.load(source + start, mask=is_token[None, :], other=0.0)
        else:
            is_column = columns + start < SIZE
            weight = tl.load(weights + start, mask=is_column[None, :], other=0.0)
            x = tl.load(source + start, mask=is_token[None, :] & is_column[:, None], other=0.0)
        total = tl.dot(weight, x, total, input_precision="ieee")
    if KIND != "":  # as large as a gated product
        let_next_start(PDL)
    if HAS_BIAS:
        total += bias[:, None].to(tl.float32)
    total = activated(total, KIND)
    place = (split * num_tokens + tokens[None, :]).to(tl.int64) * num_rows + rows[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=is_token[None, :] & is_row[:, None])


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, room: Room = fresh, activation: str = ""
) -> torch.Tensor:
    """[tokens, size] -> [tokens, rows]; `weight` [rows, size]; `activation`: what is made of it, see activation.py."""
    tile = whole_tile(len(weight), len(x))
    return multiply(x, weight, bias, tile, x.dtype, room, activation=activation)[0]


def linear_parts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, room: Room = fresh
) -> torch.Tensor:
    """[tokens, size] -> [splits, tokens, rows] in float32: to be added up."""
    tile = split_tile(len(weight))
    return multiply(x, weight, bias, tile, torch.float32, room, "parts")


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tile: Tile,
    dtype: torch.dtype,
    room: Room = fresh,
    name: str = "whole",
    activation: str = "",
) -> torch.Tensor:
    """[splits, tokens, rows], the product of each part of the columns; the bias is in the first."""
    (num_tokens, size), num_rows = x.shape, len(weight)
    part, num_tile_tokens = tile.part(size), token_tile(num_tokens)
    num_splits = triton.cdiv(size, part)
    out = room(name, (num_splits, num_tokens, num_rows), dtype, x.device)
    kernel: Any = _linear
    kernel[(triton.cdiv(num_tokens, num_tile_tokens), triton.cdiv(num_rows, tile.rows), num_splits)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        num_tokens,
        num_rows,
        SIZE=size,
        PART=part,
        IS_EVEN=part * num_splits == size,
        HAS_BIAS=bias is not None,
        KIND=activation,
        TOKENS=num_tile_tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **tile.options(x),
    )
    return out


@cache
def whole_tile(num_rows: int, num_tokens: int) -> Tile:
    """Of a product that is left whole: QKV, head. A processor that has one program alone reads farther ahead.

    QKV in parts, which attention has to add up, is quicker by itself (3.2 us instead of 4.9) and makes a pass of one
    token slower (1.37 ms instead of 1.33; H200), one of 64 rows quicker (1.57 instead of 1.68).
    """
    rows = row_tile(num_rows, num_tokens)
    is_small = num_rows <= 3 * 64 * PROCESSORS
    return Tile(rows, 128, rows // 16, 3 if rows == 128 else 7 if is_small else 4)


@cache
def split_tile(num_rows: int) -> Tile:
    """Of a product that is left in parts: output, down, QKV of many rows. At most one program a processor.

    Measured on an H200 at 1536 x 1536 and 1536 x 8960: with more, 63 tokens take up to half as long again. Where that
    would leave a quarter of the processors without one, there are three times as many (4608 x 18432: 42 us instead of
    44, 5120 x 5120: 14.8 instead of 15.7).
    """
    num_programs = triton.cdiv(num_rows, 64)
    if PROCESSORS // 2 < num_programs < PROCESSORS * 3 // 4:
        return Tile(64, 128, 4, 4, 3)
    return Tile(64, 128, 4, 6, max(1, min(PROCESSORS // num_programs, _MAX_SPLITS)))
