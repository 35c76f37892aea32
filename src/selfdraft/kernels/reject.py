"""Drafts tested by rejection, without the host. `reject_reference` says the same in torch.

When draws from q were refused, what is left of p is max(p - t q, 0), divided by its sum. The number t is a sum over
these draws: what was left of p / what was left of q before each. So nothing needs to be written on the way, and the
sums do not depend on the walk, as draws continue the chain alone: p stands in column d for the draft's level d. Many
programs add them up. The walk then reads a few numbers a token. Each program walks, before it turns to its block of
what is left in the end: the last word is drawn from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from ..noise import REST, TEST
from ..passes import SETTINGS, ChoiceKind, Columns
from .choose import draw, uniform
from .quick import quick
from .truncate import BLOCK, WARPS, Truncation, is_kept, loaded, row_of, setting, truncation, warmed, warmth

_NUM_NODES, _NUM_DRAWN = (tl.constexpr(SETTINGS.index(name)) for name in ("num_nodes", "num_drawn"))
_TEST = tl.constexpr(TEST)
_FREE = ["size", "width", "num_depths", "num_columns", "num_blocks", "num_rivals", "num_refused"]
_WIDTH = tl.constexpr(64)


@triton.jit
def _children(sees_ptr, row, at, after, last, width):
    """Which columns after `after`, up to `last`, continue the column `at`."""
    column = tl.arange(0, _WIDTH)
    sees = tl.load(sees_ptr + row * width + column, mask=column < width, other=0)
    bit = tl.full([_WIDTH], 1, tl.int64) << column.to(tl.int64)
    return (sees == (tl.load(sees_ptr + row * width + at) | bit)) & (column > after) & (column <= last)


@quick
@triton.jit(do_not_specialize=_FREE)
def _sums(
    scores_ptr, settings_ptr, best_ptr, least_ptr, places_ptr, tokens_ptr, sees_ptr, sums_ptr,
    size, width, num_depths, num_columns, num_rivals, TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block's part of its line's softmax: the best warm score, and what all weigh beside it.

    Of a draft's level also without the first token drawn from it, without the first two, and so on.
    """
    block, line = tl.program_id(0), tl.program_id(1)
    row = row_of(places_ptr, line, width)
    depth = tl.where(line < num_columns, -1, (line - num_columns) % num_depths)
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = loaded(scores_ptr, line, token, size)
    warm = warmed(x, settings_ptr, row)
    keeps = is_kept(x, warm, settings_ptr, row, line, best_ptr, least_ptr, TOPS, MIN_P)
    at = tl.minimum(tl.maximum(depth, 0), width - 1)
    last = tl.where(depth < 0, 0, setting(settings_ptr, row, _NUM_DRAWN))
    for rank in range(tl.where(depth < 0, 1, num_rivals + 1)):
        if rank > 0:
            is_child = _children(sees_ptr, row, at, at, last, width)
            drawn = tl.load(tokens_ptr + row * width + tl.arange(0, _WIDTH), mask=is_child, other=-1)
            number = tl.cumsum(is_child.to(tl.int32), axis=0)
            keeps &= token != tl.max(tl.where(is_child & (number == rank), drawn, -1), axis=0)
        peak = tl.max(tl.where(keeps, warm, -1e30), axis=0)
        place = sums_ptr + ((line * (num_rivals + 1) + rank) * tl.num_programs(0) + block) * 2
        tl.store(place, peak)
        tl.store(place + 1, tl.sum(tl.where(keeps, tl.exp(warm - peak), 0.0), axis=0))


@triton.jit
def _softmax(sums_ptr, place, num_blocks, BLOCKS: tl.constexpr):
    """The best warm score, and what the softmax is divided by."""
    block = tl.arange(0, BLOCKS)
    source = sums_ptr + (place * num_blocks + block) * 2
    peaks = tl.load(source, mask=block < num_blocks, other=-1e30)
    sums = tl.load(source + 1, mask=block < num_blocks, other=0.0)
    peak = tl.max(peaks, axis=0)
    return peak, tl.maximum(tl.sum(sums * tl.exp(peaks - peak), axis=0), 1e-30)


@triton.jit
def _left_after(lefts_ptr, level, num_refused, num_blocks, num_rivals, BLOCKS: tl.constexpr):
    """The sum of what was left of the target's distribution when this many draws of a level were refused."""
    block = tl.arange(0, BLOCKS)
    source = lefts_ptr + (level * num_rivals + num_refused - 1) * num_blocks + block
    left = tl.sum(tl.load(source, mask=(block < num_blocks) & (num_refused > 0), other=0.0), axis=0)
    return tl.where(num_refused > 0, tl.maximum(left, 1e-30), 1.0)


@triton.jit
def _weights(scores_ptr, settings_ptr, best_ptr, least_ptr, row, line, token, peak, size, TOPS, MIN_P):
    """What scores weigh beside one of `peak`."""
    x = loaded(scores_ptr, line, token, size)
    warm = warmed(x, settings_ptr, row)
    keeps = is_kept(x, warm, settings_ptr, row, line, best_ptr, least_ptr, TOPS, MIN_P)
    return tl.where(keeps, tl.exp(warm - peak), 0.0)


@triton.jit
def _left(
    scores_ptr, settings_ptr, best_ptr, least_ptr, sums_ptr, lefts_ptr, row, at, depth, num_refused, token,
    size, num_depths, num_columns, num_blocks, num_rivals,
    TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Probabilities of the line `at`, and what refused draws have left of them; not normalised."""
    peak, total = _softmax(sums_ptr, at * (num_rivals + 1), num_blocks, BLOCKS)
    p = _weights(scores_ptr, settings_ptr, best_ptr, least_ptr, row, at, token, peak, size, TOPS, MIN_P) / total
    left = p
    if num_refused > 0:
        line = num_columns + row * num_depths + depth
        peak, share = tl.zeros([], tl.float32) + 1e30, tl.zeros([], tl.float32)
        for rank in range(num_refused):
            before = _left_after(lefts_ptr, row * num_depths + depth, rank, num_blocks, num_rivals, BLOCKS)
            next_peak, total = _softmax(sums_ptr, line * (num_rivals + 1) + rank, num_blocks, BLOCKS)
            share = share * tl.exp(next_peak - peak) + before / total  # peaks fall: nothing leaves the numbers' range
            peak = next_peak
        q = _weights(scores_ptr, settings_ptr, best_ptr, least_ptr, row, line, token, peak, size, TOPS, MIN_P)
        left = tl.maximum(p - q * share, 0.0)
    return p, left


@quick
@triton.jit(do_not_specialize=_FREE)
def _lefts(
    scores_ptr, settings_ptr, best_ptr, least_ptr, first_ptr, sums_ptr, lefts_ptr,
    size, width, num_depths, num_columns, num_blocks, num_rivals, num_refused,
    TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block's part of what is left, of each level, when this many draws are refused."""
    block, level = tl.program_id(0), tl.program_id(1)
    row, depth = level // num_depths, level % num_depths
    at = tl.minimum(tl.load(first_ptr + row) + tl.minimum(depth, width - 1), num_columns - 1)
    _, left = _left(
        scores_ptr, settings_ptr, best_ptr, least_ptr, sums_ptr, lefts_ptr, row, at, depth,
        num_refused, block * BLOCK + tl.arange(0, BLOCK), size, num_depths, num_columns, num_blocks, num_rivals,
        TOPS, MIN_P, BLOCKS,
    )  # fmt: skip
    tl.store(lefts_ptr + (level * num_rivals + num_refused - 1) * num_blocks + block, tl.sum(left, axis=0))


@quick
@triton.jit(do_not_specialize=_FREE)
def _walk(
    scores_ptr, settings_ptr, best_ptr, least_ptr, first_ptr, sums_ptr, lefts_ptr, indices_ptr, tokens_ptr, sees_ptr,
    rest_ptr, verdicts_ptr, depths_ptr, size, width, num_depths, num_columns, num_blocks, num_rivals,
    TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From child to child of the last column kept; then a block of `rest` [rows, vocabulary]: scores of what is left.

    `depths` [rows, width]: where those stand, in column 0.
    """
    block, row = tl.program_id(0), tl.program_id(1)
    line = tl.minimum(tl.load(first_ptr + row), num_columns - 1)  # of column 0; rows that only pad may have none
    each, none = tl.arange(0, _WIDTH), tl.zeros([], tl.int32)
    num_nodes = setting(settings_ptr, row, _NUM_NODES).to(tl.int32)
    num_drawn = setting(settings_ptr, row, _NUM_DRAWN).to(tl.int32)
    at, num_kept, num_tested, num_refused = none, none, none, none  # the last two: after `at`; the last one: of draws
    gone = tl.zeros([], tl.float64)  # with refused guesses, of what draws have left
    column = tl.min(tl.where(_children(sees_ptr, row, at, at, num_nodes, width), each, _WIDTH), axis=0)
    while column < _WIDTH:
        token, depth = tl.load(tokens_ptr + row * width + column).to(tl.int32), tl.minimum(num_kept, num_depths - 1)
        _, p = _left(
            scores_ptr, settings_ptr, best_ptr, least_ptr, sums_ptr, lefts_ptr, row, line + at, depth, num_refused,
            token, size, num_depths, num_columns, num_blocks, num_rivals, TOPS, MIN_P, BLOCKS,
        )  # fmt: skip
        p /= _left_after(lefts_ptr, row * num_depths + depth, num_refused, num_blocks, num_rivals, BLOCKS)
        chance = uniform(settings_ptr, row, tl.load(indices_ptr + row) + num_kept, num_tested, _TEST)
        is_drawn, level = column <= num_drawn, num_columns + row * num_depths + depth
        if is_drawn:
            peak, total = _softmax(sums_ptr, level * (num_rivals + 1) + num_refused, num_blocks, BLOCKS)
            q = _weights(scores_ptr, settings_ptr, best_ptr, least_ptr, row, level, token, peak, size, TOPS, MIN_P)
            chance *= (q / total).to(tl.float64)
        if chance * (1.0 - gone) < p.to(tl.float64):
            at, num_kept, num_tested, num_refused, gone = column, num_kept + 1, none, none, gone * 0.0
            tl.store(verdicts_ptr + row * (width + 1) + num_kept, at.to(tl.int64), mask=block == 0)
        else:
            num_tested += 1
            num_refused += is_drawn.to(tl.int32)
            gone += tl.where(is_drawn, 0.0, p.to(tl.float64))
        follows = _children(sees_ptr, row, at, column, num_nodes, width)
        column = tl.min(tl.where(follows, each, _WIDTH), axis=0)
    tl.store(verdicts_ptr + row * (width + 1), num_kept.to(tl.int64), mask=block == 0)
    tl.store(depths_ptr + row * width, num_kept.to(tl.int64), mask=block == 0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    p, left = _left(
        scores_ptr, settings_ptr, best_ptr, least_ptr, sums_ptr, lefts_ptr, row, line + at, num_kept, num_refused,
        token, size, num_depths, num_columns, num_blocks, num_rivals, TOPS, MIN_P, BLOCKS,
    )  # fmt: skip
    # Where rounding has left nothing at all, it is drawn from p: noise is never as large.
    score = tl.where(left > 0, tl.log(tl.maximum(left, 1e-45)), tl.log(tl.maximum(p, 1e-45)) - 1000.0)
    score = tl.where(p > 0, score * warmth(settings_ptr, row).to(tl.float32), float("-inf"))  # a draw divides by it
    rest_ptr += row.to(tl.int64) * size
    tl.store(rest_ptr + token, score, mask=token < size)
    guessed = tl.load(tokens_ptr + row * width + each, mask=each < width, other=-1)
    is_guess = _children(sees_ptr, row, at, tl.maximum(at, num_drawn), num_nodes, width)
    tl.debug_barrier()  # the scores are written
    tl.store(rest_ptr + guessed, float("-inf"), mask=is_guess & (guessed // BLOCK == block))


def reject(scores: torch.Tensor, drawn_from: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """See `top.reject`."""
    (num_rows, width), (num_columns, size), num_depths = columns.depths.shape, scores.shape, drawn_from.shape[1]
    # One after the other they are truncated at once, which takes longer than a copy.
    scores, device = torch.cat((scores, drawn_from.flatten(0, 1))), scores.device
    begins = torch.arange(0, num_rows * width, width, device=device)
    places = torch.cat((columns.places, begins[:, None].expand(num_rows, num_depths).flatten()))
    found, count = Truncation(columns.settings, columns.settings), kind.num_rivals  # nothing is read there
    if kind.has_top_k or kind.has_top_p or kind.has_min_p:
        found = truncation(scores, replace(columns, places=places), kind)
    num_blocks = triton.cdiv(size, BLOCK)
    sums = torch.empty(len(scores), count + 1, num_blocks, 2, dtype=torch.float32, device=device)
    lefts = torch.empty(num_rows * num_depths, max(count, 1), num_blocks, dtype=torch.float32, device=device)
    rest = torch.empty(num_rows, size, dtype=torch.float32, device=device)
    verdicts, depths = columns.depths.new_zeros(num_rows, width + 1), torch.empty_like(columns.depths)
    known, sizes = (scores, columns.settings, *found), (size, width, num_depths, num_columns)
    drafted = (columns.path, columns.on_path)
    fixed = {"TOPS": kind.has_top_k or kind.has_top_p, "MIN_P": kind.has_min_p}
    across = {"BLOCKS": triton.next_power_of_2(num_blocks), "BLOCK": BLOCK, "num_warps": WARPS}
    kernel: Any = _sums
    values = (*known, places, *drafted, sums, *sizes, count)
    kernel[(num_blocks, len(scores))](*values, **fixed, BLOCK=BLOCK, num_warps=WARPS)
    kernel, grid = _lefts, (num_blocks, num_rows * num_depths)
    for num_refused in range(1, count + 1):
        kernel[grid](*known, columns.first, sums, lefts, *sizes, num_blocks, count, num_refused, **fixed, **across)
    kernel, others = _walk, (columns.first, sums, lefts, columns.indices, *drafted, rest, verdicts, depths)
    kernel[(num_blocks, num_rows)](*known, *others, *sizes, num_blocks, count, **fixed, **across)
    last = draw(rest, replace(columns, depths=depths, places=begins), ChoiceKind(is_drawn=True, salt=REST), 1)
    verdicts[:, -1:].copy_(last.tokens)
    return verdicts
