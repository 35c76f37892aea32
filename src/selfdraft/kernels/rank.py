"""The best tokens of a row of scores and how sure the row is of the first, without sorting the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..drafted import DraftStats, Outline
from .quick import quick

_BLOCK, _BLOCK_WARPS, _ROW_WARPS = 4096, 8, 4


@quick
@triton.jit
def _rank_blocks(
    scores_ptr, values_ptr, tokens_ptr, sums_ptr, size,
    COUNT: tl.constexpr, NUM_TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best of one block of the vocabulary, and its sums: of exponentials, and of exponentials times exponents."""
    row, block = tl.program_id(1), tl.program_id(0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    source = scores_ptr + row.to(tl.int64) * size
    scores = tl.load(source + token, mask=token < size, other=float("-inf")).to(tl.float32)
    scores = tl.where(scores == scores, scores, float("-inf"))  # not a number: never the best
    best = tl.maximum(tl.max(scores, axis=0), -1e30)
    place = row * tl.num_programs(0) + block
    weights = tl.exp(scores - best)
    tl.store(sums_ptr + place * 3, best)
    tl.store(sums_ptr + place * 3 + 1, tl.sum(weights, axis=0))
    if NUM_TOP > 0:
        exponents = tl.where(weights > 0, scores - best, 0.0)  # the limit of x log x is 0
        tl.store(sums_ptr + place * 3 + 2, tl.sum(weights * exponents, axis=0))
    for rank in tl.static_range(COUNT):
        value, index = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(values_ptr + place * COUNT + rank, value)
        tl.store(tokens_ptr + place * COUNT + rank, (block * BLOCK + index).to(tl.int64))
        scores = tl.where(token == block * BLOCK + index, float("-inf"), scores)


@quick
@triton.jit
def _rank_rows(
    values_ptr, tokens_ptr, sums_ptr, best_ptr, choice_ptr, confidence_ptr, probs_ptr, entropy_ptr, num_blocks,
    KEPT: tl.constexpr, COUNT: tl.constexpr, NUM_TOP: tl.constexpr, BLOCKS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """What the blocks of a row come to. The first KEPT are told by token, the first NUM_TOP by probability."""
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    is_block = block < num_blocks
    source = sums_ptr + (row * num_blocks + block) * 3
    best = tl.load(source, mask=is_block, other=-1e30)
    sums = tl.load(source + 1, mask=is_block, other=0.0)
    highest = tl.max(best, axis=0)
    factors = tl.exp(best - highest)
    total = tl.sum(sums * factors, axis=0)
    tl.store(confidence_ptr + row, 1.0 / total)
    if NUM_TOP > 0:
        moments = tl.load(source + 2, mask=is_block, other=0.0)
        moment = tl.sum((moments + sums * (best - highest)) * factors, axis=0)
        tl.store(entropy_ptr + row, tl.log(total) - moment / total)
    entry = tl.arange(0, ENTRIES)
    values = tl.load(
        values_ptr + row * num_blocks * COUNT + entry, mask=entry < num_blocks * COUNT, other=float("-inf")
    )
    for rank in tl.static_range(COUNT):
        value, index = tl.max(values, axis=0, return_indices=True, return_indices_tie_break_left=True)
        if rank < KEPT:
            tl.store(best_ptr + row * KEPT + rank, value)
            tl.store(choice_ptr + row * KEPT + rank, tl.load(tokens_ptr + row * num_blocks * COUNT + index))
        if rank < NUM_TOP:
            tl.store(probs_ptr + row * NUM_TOP + rank, tl.exp(value - highest) / total)
        values = tl.where(entry == index, float("-inf"), values)
    for rank in tl.static_range(COUNT, NUM_TOP):
        tl.store(probs_ptr + row * NUM_TOP + rank, 0.0)


Ranked = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rank(scores: torch.Tensor, count: int) -> Ranked:
    """[n, vocabulary] -> values [n, count] (float32), tokens [n, count], best first, and the softmax's peak [n].

    Of equal scores the lower token comes first.
    """
    return _rank(scores, count, count, 0)[0]


def rank_and_outline(scores: torch.Tensor, count: int) -> tuple[Ranked, Outline]:
    """As `rank`, and the softmax's outline from the same two kernels."""
    num_top = DraftStats.NUM_TOP
    return _rank(scores, count, min(max(count, num_top), scores.shape[-1]), num_top)


def _rank(scores: torch.Tensor, num_kept: int, count: int, num_top: int) -> tuple[Ranked, Outline]:
    """`count` are ranked; without `num_top` there is nothing in the outline."""
    scores = scores.contiguous()
    num_rows, size = scores.shape
    num_blocks = triton.cdiv(size, _BLOCK)
    device = scores.device
    values = torch.empty(num_rows, num_blocks, count, dtype=torch.float32, device=device)
    tokens = torch.empty(num_rows, num_blocks, count, dtype=torch.int64, device=device)
    sums = torch.empty(num_rows, num_blocks, 3, dtype=torch.float32, device=device)
    best = torch.empty(num_rows, num_kept, dtype=torch.float32, device=device)
    choice = torch.empty(num_rows, num_kept, dtype=torch.int64, device=device)
    confidence = torch.empty(num_rows, dtype=torch.float32, device=device)
    probs = torch.empty(num_rows, num_top, dtype=torch.float32, device=device)
    entropy = torch.empty(num_rows, dtype=torch.float32, device=device)
    block_kernel: Any = _rank_blocks
    block_kernel[(num_blocks, num_rows)](
        scores, values, tokens, sums, size, COUNT=count, NUM_TOP=num_top, BLOCK=_BLOCK, num_warps=_BLOCK_WARPS
    )
    row_kernel: Any = _rank_rows
    row_kernel[(num_rows,)](
        *(values, tokens, sums, best, choice, confidence, probs, entropy, num_blocks),
        KEPT=num_kept,
        COUNT=count,
        NUM_TOP=num_top,
        BLOCKS=triton.next_power_of_2(num_blocks),
        ENTRIES=triton.next_power_of_2(num_blocks * count),
        num_warps=_ROW_WARPS,
    )
    return (best, choice, confidence), Outline(probs, entropy)
