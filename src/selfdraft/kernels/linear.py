"""Products of a few tokens with a large matrix, norm before and residual behind them in the same kernel.

Decoding reads every weight once a pass, whatever the number of tokens: what counts is that the bytes flow without a
pause. Up to 16 (or 32) tokens fill one tile of the tensor cores, so a wide verification costs what one token costs, and
**a token's result does not depend on how many others share its pass**: tile shapes and the order of every sum depend
on the matrix alone. That is why drafting changes no bit of the output, in half precision too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


OVERLAPS = False


@dataclass(frozen=True)
class Tile:
    """How one matrix is cut: rows a program, columns a step, and what Triton is told about it."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int
    fetched: int = 0


def tile_for(num_rows: int, num_columns: int, is_gated: bool) -> Tile:
    """Measured on an H200: small matrices want many programs, large ones long steps."""
    columns = next(size for size in (256, 128, 64, 32, 16) if num_columns % size == 0)
    if is_gated:
        return Tile(16, min(columns, 256), 4, 4)
    if num_rows > 16384:
        return Tile(64, min(columns, 128), 4, 4)
    return Tile(16, columns, 4, 4)


@triton.jit
def _normed(x, scale, norm_ptr, k):
    """As transformers rounds it: once behind the scale, once behind the weight."""
    weight = tl.load(norm_ptr + k)
    return ((x.to(tl.float32) * scale[:, None]).to(x.dtype).to(tl.float32) * weight[None, :].to(tl.float32)).to(x.dtype)


@triton.jit
def _fetch(weight_ptr, rows, SIZE: tl.constexpr, LINES: tl.constexpr):
    """Ask for the first cache lines of these rows: weights depend on no earlier kernel."""
    line = tl.minimum(tl.arange(0, LINES), SIZE // 64 - 1)
    place = (weight_ptr + rows[:, None].to(tl.int64) * SIZE + line[None, :] * 64).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [place], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _linear(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    num_tokens,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM_COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
    FETCHED: tl.constexpr,
):
    """out = residual + norm(x) @ weight.T + bias; gated: silu(norm(x) @ gate.T) * (norm(x) @ up.T)."""
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_token = tokens < num_tokens
    source = x_ptr + tokens[:, None] * SIZE
    k = tl.arange(0, COLUMNS)
    # Rows behind the last one are read again and not stored.
    weight_rows = weight_ptr + (rows % num_rows)[None, :].to(tl.int64) * SIZE + k[:, None]
    up_rows = weight_rows + num_rows.to(tl.int64) * SIZE

    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        if FETCHED > 0:
            _fetch(weight_ptr, rows % num_rows, SIZE, FETCHED)
            if IS_GATED:
                _fetch(weight_ptr, num_rows + rows % num_rows, SIZE, FETCHED)
        tl.extra.cuda.gdc_wait()

    scale = tl.zeros([TOKENS], tl.float32)
    if HAS_NORM:
        total = tl.zeros([TOKENS], tl.float32)
        for start in range(0, SIZE, NORM_COLUMNS):
            part = start + tl.arange(0, NORM_COLUMNS)
            x = tl.load(source + part[None, :], mask=is_token[:, None] & (part < SIZE)[None, :], other=0.0)
            total += tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)
        scale = tl.rsqrt(total / SIZE + eps)

    result = tl.zeros([TOKENS, ROWS], tl.float32)
    up = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in range(0, SIZE, COLUMNS):
        x = tl.load(source + (start + k)[None, :], mask=is_token[:, None], other=0.0)
        if HAS_NORM:
            x = _normed(x, scale, norm_ptr, start + k)
        result = tl.dot(x, tl.load(weight_rows + start), result, input_precision="ieee")
        if IS_GATED:
            up = tl.dot(x, tl.load(up_rows + start), up, input_precision="ieee")

    dtype = out_ptr.dtype.element_ty
    if HAS_BIAS:
        result += tl.load(bias_ptr + rows % num_rows)[None, :].to(tl.float32)
        if IS_GATED:
            up += tl.load(bias_ptr + num_rows + rows % num_rows)[None, :].to(tl.float32)
    if IS_GATED:
        gate = result.to(dtype).to(tl.float32)
        result = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    mask = is_token[:, None] & (rows < num_rows)[None, :]
    place = tokens[:, None].to(tl.int64) * num_rows + rows[None, :]
    if HAS_RESIDUAL:
        before = tl.load(residual_ptr + place, mask=mask, other=0.0)
        result = result.to(dtype).to(tl.float32) + before.to(tl.float32)
    tl.store(out_ptr + place, result.to(dtype), mask=mask)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """[tokens, size] -> [tokens, rows]; with `is_gated` the weight holds gate and up, one behind the other."""
    num_tokens, size = x.shape
    num_rows = weight.shape[0] // 2 if is_gated else weight.shape[0]
    tile = tile or tile_for(num_rows, size, is_gated)
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    num_tile_tokens = 16 if num_tokens <= 16 else 32
    grid = (triton.cdiv(num_rows, tile.rows), triton.cdiv(num_tokens, num_tile_tokens))
    kernel: Any = _linear
    kernel[grid](
        x,
        x if norm is None else norm,
        weight,
        x if bias is None else bias,
        x if residual is None else residual,
        out,
        num_tokens,
        num_rows,
        eps,
        SIZE=size,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        IS_GATED=is_gated,
        TOKENS=num_tile_tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        NORM_COLUMNS=min(triton.next_power_of_2(size), 1024),
        OVERLAPS=OVERLAPS,
        FETCHED=tile.fetched,
        **({"launch_pdl": True} if OVERLAPS else {}),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out
