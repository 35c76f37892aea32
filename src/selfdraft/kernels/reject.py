"""Drafts tested by rejection: all levels of a row's tree in one program. `reject_reference` says the same in torch.

A token that is kept costs two scores; one that is refused a run over the vocabulary, as what is left of the target's
distribution must be normalised. What is left is written, so that siblings find it; the last word is drawn from it.
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
from .truncate import BLOCK, WARPS, is_kept, loaded, setting, truncation, warmed, warmth

_NUM_NODES, _NUM_DRAWN = (tl.constexpr(SETTINGS.index(name)) for name in ("num_nodes", "num_drawn"))
_TEST = tl.constexpr(TEST)
_WALK_BLOCK, _WALK_WARPS = 4096, 16


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _sums(
    scores_ptr, settings_ptr, best_ptr, least_ptr, sums_ptr, size, width,
    HAS_TOPS: tl.constexpr, HAS_MIN_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block's part of what its column's softmax is divided by."""
    block, column = tl.program_id(0), tl.program_id(1)
    row = column // width
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    warm = warmed(x, settings_ptr, row)
    keeps = is_kept(x, warm, settings_ptr, row, column, best_ptr, least_ptr, HAS_TOPS, HAS_MIN_P)
    weight = tl.where(keeps, tl.exp(warm - tl.load(best_ptr + column)), 0.0)
    tl.store(sums_ptr + column * tl.num_programs(0) + block, tl.sum(weight, axis=0))


@triton.jit
def _softmax(best_ptr, sums_ptr, column, num_blocks, BLOCKS: tl.constexpr):
    """The best warm score of a column, and what its softmax is divided by."""
    block = tl.arange(0, BLOCKS)
    sums = tl.load(sums_ptr + column * num_blocks + block, mask=block < num_blocks, other=0.0)
    return tl.load(best_ptr + column), tl.sum(sums, axis=0)


@triton.jit
def _probs(x, settings_ptr, row, column, best_ptr, least_ptr, peak, total, TOPS: tl.constexpr, MIN_P: tl.constexpr):
    """Probabilities of scores, by the best warm one and the sum of those that are left."""
    warm = warmed(x, settings_ptr, row)
    keeps = is_kept(x, warm, settings_ptr, row, column, best_ptr, least_ptr, TOPS, MIN_P)
    return tl.where(keeps, tl.exp(warm - peak) / tl.maximum(total, 1e-30), 0.0)


@triton.jit
def _place(row, side, size):
    """Of a row in `left`."""
    return (side * tl.num_programs(0) + row).to(tl.int64) * size


@triton.jit
def _left(
    target_ptr, left_ptr, settings_ptr, row, column, token, best_ptr, least_ptr, peak, total, side, scale, size,
    TOPS: tl.constexpr, MIN_P: tl.constexpr,
):  # fmt: skip
    """What is left of the target's probabilities after `column`."""
    if side < 0:
        p = loaded(target_ptr, column, token, size)
        p = _probs(p, settings_ptr, row, column, best_ptr, least_ptr, peak, total, TOPS, MIN_P)
    else:
        place = _place(row, side, size) + token
        p = tl.load(left_ptr + place, mask=token < size, other=0.0) * scale
    return p


@triton.jit
def _refuse(
    target_ptr, best_ptr, least_ptr, peak, total, draft_ptr, draft_best_ptr, draft_least_ptr, draft_peak, draft_total,
    left_ptr, settings_ptr, row, column, level, refused, is_drawn, side, scale, size,
    TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what is left of the target's distribution, and take the token `refused` out of the draft's.

    Returns where that stands and its factor, then the best warm score and the sum of what is left of the draft's.
    """
    other = tl.where(side < 0, 0, 1 - side)
    total_left = tl.zeros([], tl.float64)
    next_peak, next_total = tl.zeros([], tl.float32) - 1e30, tl.zeros([], tl.float32)
    for start in range(0, size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        before = _left(
            target_ptr, left_ptr, settings_ptr, row, column, token, best_ptr, least_ptr, peak, total, side, scale, size,
            TOPS, MIN_P,
        )  # fmt: skip
        x = loaded(draft_ptr, level, token, size)
        warm = warmed(x, settings_ptr, row)
        keeps = is_kept(x, warm, settings_ptr, row, level, draft_best_ptr, draft_least_ptr, TOPS, MIN_P)
        drawn_from = tl.where(keeps, tl.exp(warm - draft_peak) / tl.maximum(draft_total, 1e-30), 0.0)
        after = tl.maximum(before - tl.where(is_drawn, drawn_from, (token == refused).to(tl.float32)), 0.0)
        tl.store(left_ptr + _place(row, other, size) + token, after, mask=token < size)
        total_left += tl.sum(after, axis=0).to(tl.float64)

        keeps &= token != refused
        higher = tl.maximum(next_peak, tl.max(tl.where(keeps, warm, -1e30), axis=0))
        weights = tl.where(keeps, tl.exp(warm - higher), 0.0)
        next_total = next_total * tl.exp(next_peak - higher) + tl.sum(weights, axis=0)
        next_peak = higher
    if total_left > 0:  # else rounding left nothing: it stays as it was
        side, scale = other, (1.0 / total_left).to(tl.float32)
    tl.debug_barrier()  # all threads have read it
    tl.store(draft_ptr + level.to(tl.int64) * size + refused, float("-inf"))
    tl.debug_barrier()
    return side, scale, next_peak, next_total


@quick
@triton.jit(do_not_specialize=["size", "width", "num_depths", "num_blocks"])
def _walk(
    target_ptr, best_ptr, least_ptr, sums_ptr, draft_ptr, draft_best_ptr, draft_least_ptr, draft_sums_ptr, left_ptr,
    settings_ptr, indices_ptr, tokens_ptr, sees_ptr, verdicts_ptr, depths_ptr, size, width, num_depths, num_blocks,
    TOPS: tl.constexpr, MIN_P: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Column by column: one that continues the last one kept is tested.

    `left` [2, rows, vocabulary]: what is left of the target's distribution, on one side as it is, on the other as it
    was; in the end, on the first, scores of it. `depths` [rows]: where those stand.
    """
    row = tl.program_id(0)
    num_nodes, num_drawn = setting(settings_ptr, row, _NUM_NODES), setting(settings_ptr, row, _NUM_DRAWN)
    at, num_kept, rank, side = row * 0, row * 0, row * 0, row * 0 - 1  # side -1: all is left
    scale, level = tl.zeros([], tl.float32) + 1.0, row * num_depths
    peak, total = _softmax(best_ptr, sums_ptr, row * width, num_blocks, BLOCKS)
    draft_peak, draft_total = _softmax(draft_best_ptr, draft_sums_ptr, level, num_blocks, BLOCKS)
    for column in range(1, num_nodes.to(tl.int32) + 1):
        bit = tl.full([], 1, tl.int64) << column
        if tl.load(sees_ptr + row * width + column) == (tl.load(sees_ptr + row * width + at) | bit):
            token = tl.load(tokens_ptr + row * width + column).to(tl.int32)
            p = _left(
                target_ptr, left_ptr, settings_ptr, row, row * width + at, token, best_ptr, least_ptr, peak, total,
                side, scale, size, TOPS, MIN_P,
            )  # fmt: skip
            q = _probs(
                loaded(draft_ptr, level, token, size), settings_ptr, row, level, draft_best_ptr, draft_least_ptr,
                draft_peak, draft_total, TOPS, MIN_P,
            )  # fmt: skip
            chance = uniform(settings_ptr, row, tl.load(indices_ptr + row) + num_kept, rank, _TEST)
            rank += 1
            if chance * tl.where(column <= num_drawn, q, 1.0).to(tl.float64) < p.to(tl.float64):
                at, num_kept, rank, side = row * 0 + column, num_kept + 1, row * 0, row * 0 - 1
                level = row * num_depths + tl.minimum(num_kept, num_depths - 1)
                tl.store(verdicts_ptr + row * (width + 1) + num_kept, at.to(tl.int64))
                peak, total = _softmax(best_ptr, sums_ptr, row * width + at, num_blocks, BLOCKS)
                draft_peak, draft_total = _softmax(draft_best_ptr, draft_sums_ptr, level, num_blocks, BLOCKS)
            else:
                side, scale, draft_peak, draft_total = _refuse(
                    target_ptr, best_ptr, least_ptr, peak, total, draft_ptr, draft_best_ptr, draft_least_ptr,
                    draft_peak, draft_total, left_ptr, settings_ptr, row, row * width + at, level, token,
                    column <= num_drawn, side, scale, size, TOPS, MIN_P, BLOCK,
                )  # fmt: skip
    tl.store(verdicts_ptr + row * (width + 1), num_kept.to(tl.int64))
    tl.store(depths_ptr + row, num_kept.to(tl.int64))
    for start in range(0, size, BLOCK):
        token = start + tl.arange(0, BLOCK)
        p = _left(
            target_ptr, left_ptr, settings_ptr, row, row * width + at, token, best_ptr, least_ptr, peak, total,
            side, scale, size, TOPS, MIN_P,
        )  # fmt: skip
        # A draw divides them by the temperature.
        score = tl.where(p > 0, tl.log(tl.maximum(p, 1e-45)) * warmth(settings_ptr, row).to(tl.float32), float("-inf"))
        tl.debug_barrier()  # all threads have read it
        tl.store(left_ptr + _place(row, 0, size) + token, score, mask=token < size)


def _measured(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> tuple[torch.Tensor, ...]:
    """Of scores [columns, vocabulary]: the best, the least that is kept, and the sum of the softmax by blocks."""
    (num_columns, size), found = scores.shape, truncation(scores, columns, kind)
    num_blocks = triton.cdiv(size, BLOCK)
    sums = torch.empty(num_columns, num_blocks, dtype=torch.float32, device=scores.device)
    kernel: Any = _sums
    values = (scores, columns.settings, found.best, found.least, sums, size, columns.depths.shape[1])
    tops: dict[str, Any] = {"HAS_TOPS": kind.has_top_k or kind.has_top_p, "HAS_MIN_P": kind.has_min_p}
    kernel[(num_blocks, num_columns)](*values, **tops, BLOCK=BLOCK, num_warps=WARPS)
    return found.best, found.least, sums


def reject(scores: torch.Tensor, drawn_from: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """See `top.reject`. `drawn_from` is used up: tokens that were refused are taken out of it."""
    (num_rows, width), size, num_depths = columns.depths.shape, scores.shape[-1], drawn_from.shape[1]
    scores, offered, num_blocks = scores.contiguous(), drawn_from.flatten(0, 1), triton.cdiv(size, BLOCK)
    verdicts, depths = columns.depths.new_zeros(num_rows, width + 1), columns.depths.new_empty(num_rows, 1)
    left = torch.empty(2, num_rows, size, dtype=torch.float32, device=scores.device)
    levels = replace(columns, depths=depths.expand(num_rows, num_depths))
    kernel: Any = _walk
    kernel[(num_rows,)](
        scores,
        *_measured(scores, columns, kind),
        offered,
        *_measured(offered, levels, kind),
        left,
        *(columns.settings, columns.indices, columns.path, columns.on_path),
        *(verdicts, depths, size, width, num_depths, num_blocks),
        TOPS=kind.has_top_k or kind.has_top_p,
        MIN_P=kind.has_min_p,
        BLOCK=_WALK_BLOCK,
        BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=_WALK_WARPS,
    )
    last = draw(left[0], replace(columns, depths=depths), ChoiceKind(is_drawn=True, salt=REST), 1)
    verdicts[:, -1:].copy_(last.tokens)
    return verdicts
