"""The best tokens of a row of scores and how sure the row is of the first, without sorting the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK, _BLOCK_WARPS, _ROW_WARPS = 4096, 8, 4


@triton.jit
def _rank_blocks(scores_ptr, values_ptr, tokens_ptr, sums_ptr, size, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The best of one block of the vocabulary, and its sum of exponentials."""
    row, block = tl.program_id(1), tl.program_id(0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    source = scores_ptr + row.to(tl.int64) * size
    scores = tl.load(source + token, mask=token < size, other=float("-inf")).to(tl.float32)
    scores = tl.where(scores == scores, scores, float("-inf"))  # not a number: never the best
    best = tl.maximum(tl.max(scores, axis=0), -1e30)
    place = row * tl.num_programs(0) + block
    tl.store(sums_ptr + place * 2, best)
    tl.store(sums_ptr + place * 2 + 1, tl.sum(tl.exp(scores - best), axis=0))
    for rank in tl.static_range(COUNT):
        value, index = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(values_ptr + place * COUNT + rank, value)
        tl.store(tokens_ptr + place * COUNT + rank, (block * BLOCK + index).to(tl.int64))
        scores = tl.where(token == block * BLOCK + index, float("-inf"), scores)


@triton.jit
def _rank_rows(
    values_ptr,
    tokens_ptr,
    sums_ptr,
    best_ptr,
    choice_ptr,
    confidence_ptr,
    num_blocks,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    is_block = block < num_blocks
    best = tl.load(sums_ptr + (row * num_blocks + block) * 2, mask=is_block, other=-1e30)
    sums = tl.load(sums_ptr + (row * num_blocks + block) * 2 + 1, mask=is_block, other=0.0)
    highest = tl.max(best, axis=0)
    tl.store(confidence_ptr + row, 1.0 / tl.sum(sums * tl.exp(best - highest), axis=0))
    entry = tl.arange(0, ENTRIES)
    values = tl.load(
        values_ptr + row * num_blocks * COUNT + entry, mask=entry < num_blocks * COUNT, other=float("-inf")
    )
    for rank in tl.static_range(COUNT):
        value, index = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(best_ptr + row * COUNT + rank, value)
        tl.store(choice_ptr + row * COUNT + rank, tl.load(tokens_ptr + row * num_blocks * COUNT + index))
        values = tl.where(entry == index, float("-inf"), values)


def rank(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[n, vocabulary] -> values [n, count] (float32), tokens [n, count], best first, and the softmax's peak [n].

    Of equal scores the lower token comes first.
    """
    scores = scores.contiguous()
    num_rows, size = scores.shape
    num_blocks = triton.cdiv(size, _BLOCK)
    device = scores.device
    values = torch.empty(num_rows, num_blocks, count, dtype=torch.float32, device=device)
    tokens = torch.empty(num_rows, num_blocks, count, dtype=torch.int64, device=device)
    sums = torch.empty(num_rows, num_blocks, 2, dtype=torch.float32, device=device)
    best = torch.empty(num_rows, count, dtype=torch.float32, device=device)
    choice = torch.empty(num_rows, count, dtype=torch.int64, device=device)
    confidence = torch.empty(num_rows, dtype=torch.float32, device=device)
    block_kernel: Any = _rank_blocks
    block_kernel[(num_blocks, num_rows)](
        scores, values, tokens, sums, size, COUNT=count, BLOCK=_BLOCK, num_warps=_BLOCK_WARPS
    )
    row_kernel: Any = _rank_rows
    row_kernel[(num_rows,)](
        values,
        tokens,
        sums,
        best,
        choice,
        confidence,
        num_blocks,
        COUNT=count,
        BLOCKS=triton.next_power_of_2(num_blocks),
        ENTRIES=triton.next_power_of_2(num_blocks * count),
        num_warps=_ROW_WARPS,
    )
    return best, choice, confidence
