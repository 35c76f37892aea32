"""Drafts tested by rejection: all levels of a row's tree in one program. `reject_reference` says the same in torch.

A token that is kept costs two scores; one that is refused a run over the vocabulary, as what is left of the target's
distribution must be normalised. What is left is written, so that siblings and the last word find it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from ..noise import REST, TEST
from ..passes import SETTINGS, ChoiceKind, Columns
from .choose import draw_columns, gumbel, uniform
from .quick import quick
from .truncate import (
    BLOCK,
    LEVELS,
    WARPS,
    best_of,
    loaded,
    order_of,
    real,
    setting,
    threshold,
    truncation,
    wanted_top_k,
    wanted_top_p,
    warmed,
)

_TEMPERATURE, _MIN_P, _NUM_NODES, _NUM_DRAWN = (
    tl.constexpr(SETTINGS.index(name)) for name in ("temperature", "min_p", "num_nodes", "num_drawn")
)
_TEST, _REST = tl.constexpr(TEST), tl.constexpr(REST)
_WALK_BLOCK, _WALK_WARPS = 4096, 16


@triton.jit
def _bar(settings_ptr, row):
    """How far below the best a warm score may be."""
    min_p = real(settings_ptr, row, _MIN_P).to(tl.float32)
    return tl.where(min_p > 0, tl.log(tl.maximum(min_p, 1e-38)), float("-inf"))


@triton.jit
def _kept(x, warm, best, bar, least):
    return (x > float("-inf")) & (order_of(x) >= least) & (warm - best >= bar)


@quick
@triton.jit(do_not_specialize=["size", "width", "num_columns"])
def _measure(
    scores_ptr, settings_ptr, peaks_ptr, counts_ptr, counted_ptr, masses_ptr, massed_ptr, sums_ptr, least_ptr,
    size, width, num_columns,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A block's part of what its column's softmax is divided by, and the least score that truncation leaves."""
    block, column, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row = column // width
    least = tl.zeros([], tl.uint32)
    if HAS_TOP_K:
        k, has_k = wanted_top_k(settings_ptr, row)
        found = threshold(counts_ptr, counted_ptr, k, has_k, column, num_columns, num_blocks, LEVELS, BLOCKS)
        least = tl.maximum(least, found.to(tl.uint32))
    if HAS_TOP_P:
        p, has_p = wanted_top_p(settings_ptr, row)
        found = threshold(masses_ptr, massed_ptr, p, has_p, column, num_columns, num_blocks, LEVELS, BLOCKS)
        least = tl.maximum(least, found.to(tl.uint32))
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    warm, best = warmed(x, real(settings_ptr, row, _TEMPERATURE)), best_of(peaks_ptr, column, num_blocks, BLOCKS)
    weight = tl.where(_kept(x, warm, best, _bar(settings_ptr, row), least), tl.exp(warm - best), 0.0)
    tl.store(sums_ptr + column * num_blocks + block, tl.sum(weight, axis=0))
    if block == 0:
        tl.store(least_ptr + column, least.to(tl.int64))


@triton.jit
def _measured(peaks_ptr, sums_ptr, least_ptr, column, num_blocks, BLOCKS: tl.constexpr):
    """Of a column: its best warm score, the sum of its softmax, the least score that counts."""
    block = tl.arange(0, BLOCKS)
    sums = tl.load(sums_ptr + column * num_blocks + block, mask=block < num_blocks, other=0.0)
    least = tl.load(least_ptr + column).to(tl.uint32)
    return best_of(peaks_ptr, column, num_blocks, BLOCKS), tl.sum(sums, axis=0), least


@triton.jit
def _probs(x, temperature, best, bar, least, peak, total):
    """Probabilities of scores: `best` is what min-p goes by, `peak` and `total` belong to what is left."""
    warm = warmed(x, temperature)
    return tl.where(_kept(x, warm, best, bar, least), tl.exp(warm - peak) / tl.maximum(total, 1e-30), 0.0)


@triton.jit
def _refuse(
    target_ptr, draft_ptr, left_ptr, column, level, row, token, is_drawn, temperature, bar, best, total, least,
    highest, floor, peak, sum_left, side, scale, size, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write what is left of the target's distribution, and take `token` out of the draft's.

    Returns where that stands and its factor, then `peak` and `sum_left` of what is left of the draft's.
    """
    other = tl.where(side < 0, 0, 1 - side)
    total_left = tl.zeros([], tl.float64)
    next_peak, next_sum = tl.zeros([], tl.float32) - 1e30, tl.zeros([], tl.float32)
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        if side < 0:
            before = loaded(target_ptr, column, tokens, size)
            before = _probs(before, temperature, best, bar, least, best, total)
        else:
            place = left_ptr + (row * 2 + side).to(tl.int64) * size + tokens
            before = tl.load(place, mask=tokens < size, other=0.0) * scale
        x = loaded(draft_ptr, level, tokens, size)
        drawn_from = _probs(x, temperature, highest, bar, floor, peak, sum_left)
        offered = tl.where(is_drawn, drawn_from, (tokens == token).to(tl.float32))
        after = tl.maximum(before - offered, 0.0)
        tl.store(left_ptr + (row * 2 + other).to(tl.int64) * size + tokens, after, mask=tokens < size)
        total_left += tl.sum(after, axis=0).to(tl.float64)

        warm = warmed(x, temperature)
        is_left = _kept(x, warm, highest, bar, floor) & (tokens != token)
        higher = tl.maximum(next_peak, tl.max(tl.where(is_left, warm, -1e30), axis=0))
        weights = tl.where(is_left, tl.exp(warm - higher), 0.0)
        next_sum = next_sum * tl.exp(next_peak - higher) + tl.sum(weights, axis=0)
        next_peak = higher
    if total_left > 0:  # else rounding left nothing: it stays as it was
        side, scale = other, (1.0 / total_left).to(tl.float32)
    tl.debug_barrier()  # all threads have read it
    tl.store(draft_ptr + level.to(tl.int64) * size + token, float("-inf"))
    tl.debug_barrier()
    return side, scale, next_peak, next_sum


@quick
@triton.jit(do_not_specialize=["size", "width", "num_depths", "num_blocks"])
def _walk(
    target_ptr, draft_ptr, left_ptr, settings_ptr, indices_ptr, tokens_ptr, sees_ptr,
    target_peaks_ptr, target_sums_ptr, target_least_ptr, draft_peaks_ptr, draft_sums_ptr, draft_least_ptr,
    verdicts_ptr, ends_ptr, size, width, num_depths, num_blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Column by column: one that continues the last one kept is tested.

    `left` [rows, 2, vocabulary]: what is left of the target's distribution, on one side as it is, on the other as it
    was. `ends` [rows, 2]: the last column kept, and the side; -1: all is left.
    """
    row = tl.program_id(0)
    temperature, bar = real(settings_ptr, row, _TEMPERATURE), _bar(settings_ptr, row)
    num_nodes, num_drawn = setting(settings_ptr, row, _NUM_NODES), setting(settings_ptr, row, _NUM_DRAWN)
    at, num_kept, rank, side = row * 0, row * 0, row * 0, row * 0 - 1
    scale = tl.zeros([], tl.float32) + 1.0
    level = row * num_depths
    best, total, least = _measured(target_peaks_ptr, target_sums_ptr, target_least_ptr, row * width, num_blocks, BLOCKS)
    highest, sum_left, floor = _measured(draft_peaks_ptr, draft_sums_ptr, draft_least_ptr, level, num_blocks, BLOCKS)
    peak = highest
    for column in range(1, num_nodes.to(tl.int32) + 1):
        bit = tl.full([], 1, tl.int64) << column
        if tl.load(sees_ptr + row * width + column) == (tl.load(sees_ptr + row * width + at) | bit):
            token = tl.load(tokens_ptr + row * width + column).to(tl.int32)
            if side < 0:
                p = loaded(target_ptr, row * width + at, token, size)
                p = _probs(p, temperature, best, bar, least, best, total)
            else:
                p = tl.load(left_ptr + (row * 2 + side).to(tl.int64) * size + token) * scale
            q = _probs(loaded(draft_ptr, level, token, size), temperature, highest, bar, floor, peak, sum_left)
            q = tl.where(column <= num_drawn, q, 1.0)
            chance = uniform(settings_ptr, row, tl.load(indices_ptr + row) + num_kept, rank, _TEST)
            rank += 1
            if chance * q.to(tl.float64) < p.to(tl.float64):
                at, num_kept, rank, side = row * 0 + column, num_kept + 1, row * 0, row * 0 - 1
                tl.store(verdicts_ptr + row * (width + 1) + num_kept, at.to(tl.int64))
                level = row * num_depths + tl.minimum(num_kept, num_depths - 1)
                best, total, least = _measured(
                    target_peaks_ptr, target_sums_ptr, target_least_ptr, row * width + at, num_blocks, BLOCKS
                )
                highest, sum_left, floor = _measured(
                    draft_peaks_ptr, draft_sums_ptr, draft_least_ptr, level, num_blocks, BLOCKS
                )
                peak = highest
            else:
                side, scale, peak, sum_left = _refuse(
                    target_ptr, draft_ptr, left_ptr, row * width + at, level, row, token, column <= num_drawn,
                    temperature, bar, best, total, least, highest, floor, peak, sum_left, side, scale, size, BLOCK,
                )  # fmt: skip
    tl.store(verdicts_ptr + row * (width + 1), num_kept.to(tl.int64))
    tl.store(ends_ptr + row * 2, at.to(tl.int64))
    tl.store(ends_ptr + row * 2 + 1, side.to(tl.int64))


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _last_words(
    target_ptr, left_ptr, settings_ptr, indices_ptr, depths_ptr, peaks_ptr, least_ptr, ends_ptr,
    values_ptr, tokens_ptr, softmax_ptr, size, width, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The winner of one block, drawn from what is left where the row's walk ended."""
    block, row, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    token = block * BLOCK + tl.arange(0, BLOCK)
    at, side = tl.load(ends_ptr + row * 2).to(tl.int32), tl.load(ends_ptr + row * 2 + 1)
    column = row * width + at
    if side < 0:
        x = loaded(target_ptr, column, token, size)
        warm, best = warmed(x, real(settings_ptr, row, _TEMPERATURE)), best_of(peaks_ptr, column, num_blocks, BLOCKS)
        is_kept = _kept(x, warm, best, _bar(settings_ptr, row), tl.load(least_ptr + column).to(tl.uint32))
        value = tl.where(is_kept, warm, float("-inf")).to(tl.float64)
    else:
        left = tl.load(left_ptr + (row * 2 + side) * size + token, mask=token < size, other=0.0).to(tl.float64)
        value = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)), float("-inf"))
    index = tl.load(indices_ptr + row) + tl.load(depths_ptr + column)
    value += gumbel(settings_ptr, row, index, token, _REST)
    best_value = tl.max(value, axis=0)
    winner = tl.min(tl.where((value == best_value) & (token < size), token, 2147483647), axis=0)
    place = row * num_blocks + block
    tl.store(values_ptr + place, best_value)
    tl.store(tokens_ptr + place, winner.to(tl.int64))
    tl.store(softmax_ptr + place * 2, 0.0)  # nobody asks for the distribution's peak
    tl.store(softmax_ptr + place * 2 + 1, 1.0)


@dataclass(frozen=True)
class Measures:
    """Of columns: best warm scores [columns, blocks], sums [columns, blocks], least scores that count [columns]."""

    peaks: torch.Tensor
    sums: torch.Tensor
    least: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> Measures:
        found, (num_columns, size) = truncation(scores, columns, kind), scores.shape
        sums, least = torch.empty_like(found.peaks), torch.empty(num_columns, dtype=torch.int64, device=scores.device)
        num_blocks = found.peaks.shape[1]
        kernel: Any = _measure
        kernel[(num_blocks, num_columns)](
            scores,
            columns.settings,
            *found.tensors,
            sums,
            least,
            size,
            columns.depths.shape[1],
            num_columns,
            HAS_TOP_K=kind.has_top_k,
            HAS_TOP_P=kind.has_top_p,
            LEVELS=LEVELS[scores.dtype],
            BLOCK=BLOCK,
            BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=WARPS,
        )
        return cls(found.peaks, sums, least)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As kernels take them."""
        return self.peaks, self.sums, self.least


def reject(scores: torch.Tensor, drawn_from: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """See `top.reject`. `drawn_from` is used up: tokens that were refused are taken out of it."""
    (num_rows, width), size, device = columns.depths.shape, scores.shape[-1], scores.device
    num_blocks, num_depths = triton.cdiv(size, BLOCK), drawn_from.shape[1]
    scores, offered = scores.contiguous(), drawn_from.view(num_rows * num_depths, size)
    nothing = columns.depths.new_empty(num_rows, num_depths)
    target, draft = Measures.of(scores, columns, kind), Measures.of(offered, replace(columns, depths=nothing), kind)
    left = torch.empty(num_rows, 2, size, dtype=torch.float32, device=device)
    verdicts, ends = columns.depths.new_zeros(num_rows, width + 1), columns.depths.new_empty(num_rows, 2)
    blocks = triton.next_power_of_2(num_blocks)
    walk: Any = _walk
    walk[(num_rows,)](
        scores,
        offered,
        left,
        columns.settings,
        columns.indices,
        columns.path,
        columns.on_path,
        *target.tensors,
        *draft.tensors,
        verdicts,
        ends,
        size,
        width,
        num_depths,
        num_blocks,
        BLOCK=_WALK_BLOCK,
        BLOCKS=blocks,
        num_warps=_WALK_WARPS,
    )
    values = torch.empty(num_rows, num_blocks, 1, dtype=torch.float64, device=device)
    tokens = torch.empty(num_rows, num_blocks, 1, dtype=torch.int64, device=device)
    softmax = torch.empty(num_rows, num_blocks, 2, dtype=torch.float32, device=device)
    last: Any = _last_words
    last[(num_blocks, num_rows)](
        scores,
        left,
        columns.settings,
        columns.indices,
        columns.depths,
        target.peaks,
        target.least,
        ends,
        values,
        tokens,
        softmax,
        size,
        width,
        BLOCK=BLOCK,
        BLOCKS=blocks,
        num_warps=WARPS,
    )
    verdicts[:, -1:].copy_(draw_columns(values, tokens, softmax).tokens)
    return verdicts
