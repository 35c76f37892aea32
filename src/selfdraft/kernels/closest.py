"""The step of a dynamic programme over skipped weights: of streams that ran an item and such that skipped it, those
that are closest to the first one, the target's own.

What it computes is in strategies/knapsack.py; here in two launches, with each stream read once or twice.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import launch
from .launch import let_next_start, wait
from .quick import quick


@quick
@triton.jit(do_not_specialize=["num_tokens", "width"])
def _cosines(
    run_ptr, skipped_ptr, shares_ptr, out_ptr, num_tokens, width,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of one token of one row, with the target's: times its share of all tokens."""
    let_next_start(PDL)
    wait(PDL)
    token, place = tl.program_id(0), tl.arange(0, BLOCK)
    mask, column = place < SIZE, token % width
    stream_ptr = tl.where(tl.program_id(1) == 1, skipped_ptr, run_ptr)
    stream = tl.load(stream_ptr + token.to(tl.int64) * SIZE + place, mask=mask, other=0.0).to(tl.float32)
    target = tl.load(run_ptr + column * SIZE + place, mask=mask, other=0.0).to(tl.float32)
    lengths = tl.sqrt(tl.sum(stream * stream, axis=0)) * tl.sqrt(tl.sum(target * target, axis=0))
    cosine = tl.sum(stream * target, axis=0) / tl.maximum(lengths, 1e-12)
    tl.store(out_ptr + tl.program_id(1) * num_tokens + token, cosine * tl.load(shares_ptr + column))


@triton.jit
def _option(parts_ptr, known_ptr, source, before, least, width, WIDTH: tl.constexpr):
    """How close the stream of this row is; -inf: there is none, or none that is close enough."""
    column = tl.arange(0, WIDTH)
    is_there = (source >= 0) & (source < before)
    parts = tl.load(parts_ptr + source * width + column, mask=is_there & (column < width), other=0.0)
    known = tl.load(known_ptr + source, mask=is_there, other=float("-inf"))
    cosine = tl.sum(parts, axis=0)
    return tl.where((known > float("-inf")) & (cosine >= least), cosine, float("-inf"))


@quick
@triton.jit(do_not_specialize=["before", "width", "weight"])
def _choose(
    run_ptr, skipped_ptr, parts_ptr, known_ptr, out_ptr, facts_ptr, min_cosine, before, width, weight,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, IS_PINNED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token of the stream of one weight."""
    let_next_start(PDL)
    wait(PDL)
    row, column, place = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    least = tl.where(row == 0, float("-inf"), min_cosine)
    best, source, is_skipped = _option(parts_ptr, known_ptr, row, before, least, width, WIDTH), row, row < 0
    if not IS_PINNED:
        other = _option(parts_ptr + before * width, known_ptr, row - weight, before, least, width, WIDTH)
        is_skipped = other > best  # of equals the one that runs it
        best, source = tl.maximum(best, other), tl.where(is_skipped, row - weight, row)
    mask, source = place < SIZE, tl.minimum(source, before - 1)
    stream_ptr = tl.where(is_skipped, skipped_ptr, run_ptr)
    stream = tl.load(stream_ptr + (source * width + column).to(tl.int64) * SIZE + place, mask=mask)
    tl.store(out_ptr + (row * width + column).to(tl.int64) * SIZE + place, stream, mask=mask)
    tl.store(facts_ptr + row, is_skipped.to(tl.float32), mask=column == 0)
    tl.store(facts_ptr + tl.num_programs(0) + row, best, mask=column == 0)


def closest(
    run: torch.Tensor,
    skipped: torch.Tensor | None,
    known: torch.Tensor,
    shares: torch.Tensor,
    num_rows: int,
    weight: int,
    min_cosine: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Streams [num_rows, tokens, size], their cosines, and 1 where the item was skipped; float32 [num_rows] both.

    `run` and `skipped` [rows, tokens, size] by what was skipped before; None: nobody may. `known`: their cosines then.
    """
    run, other = run.contiguous(), run if skipped is None else skipped.contiguous()
    before, width, size = run.shape
    parts, facts = shares.new_empty(2, before, width), shares.new_empty(2, num_rows)
    out = run.new_empty(num_rows, width, size)
    options = {"SIZE": size, "BLOCK": triton.next_power_of_2(size), "num_warps": 4, **launch.options(run.device)}
    cosines: Any = _cosines
    cosines[(before * width, 1 if skipped is None else 2)](run, other, shares, parts, before * width, width, **options)
    choose: Any = _choose
    choose[(num_rows, width)](
        *(run, other, parts, known, out, facts, float(min_cosine), before, width, weight),
        WIDTH=triton.next_power_of_2(width),
        IS_PINNED=skipped is None,
        **options,
    )
    return out, facts[1], facts[0]
