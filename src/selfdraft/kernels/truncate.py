"""What top-k, top-p and min-p keep, found without sorting the vocabulary.

The few tokens that can be kept at all are listed first. A token below the k-th largest of the maxima of small blocks
is not among the k best; one below maxima that hold p together is not in the nucleus, nor is one less likely than
(1 - p) / vocabulary. The threshold among those listed is found bit by bit: does what reaches it suffice? Where the list
would be too long, all scores are looked at, which is slow and gives the same. Probabilities are added up as whole
numbers: no sum depends on an order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..passes import SETTINGS, ChoiceKind, Columns
from .quick import quick

BLOCK, WARPS = 2048, 8
_SMALL_BLOCK, _MAX_LISTED = 128, 4096
_BITS = {torch.bfloat16: 16, torch.float16: 20, torch.float32: 32}
"""Of float32 numbers that were of this type: the others are the same in all."""
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (
    tl.constexpr(SETTINGS.index(name)) for name in ("temperature", "top_k", "top_p", "min_p")
)
_NUM_SETTINGS = tl.constexpr(len(SETTINGS))
_MASS_UNIT = tl.constexpr(float(1 << 40))
"""Of the best token's probability."""


@triton.jit
def setting(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place)


@triton.jit
def real(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place).to(tl.float64, bitcast=True)


@triton.jit
def loaded(scores_ptr, column, token, size):
    """Scores as float32; what is not a number is never chosen."""
    x = tl.load(scores_ptr + column.to(tl.int64) * size + token, mask=token < size, other=float("-inf"))
    x = x.to(tl.float32) + 0.0  # so that there is one zero
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def order_of(x):
    """Unsigned 32 bits that compare as the float32 numbers do."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def warmth(settings_ptr, row):
    """The temperature; 1 instead of 0."""
    temperature = real(settings_ptr, row, _TEMPERATURE)
    return tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def warmed(x, settings_ptr, row):
    """Divided by the temperature; at 0 as it is."""
    return tl.div_rn(x, warmth(settings_ptr, row).to(tl.float32))


@quick
@triton.jit(do_not_specialize=["size", "width", "num_small"])
def _maxima(
    scores_ptr, settings_ptr, maxima_ptr, sums_ptr, size, width, num_small, SMALL: tl.constexpr, BLOCK: tl.constexpr
):
    """The best score of each small block, and the sum of what its scores weigh beside it."""
    block, column = tl.program_id(0), tl.program_id(1)
    row = column // width
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    x = tl.reshape(x, [BLOCK // SMALL, SMALL])
    maxima = tl.max(x, axis=1)
    highest = warmed(tl.maximum(maxima, -1e30), settings_ptr, row)
    sums = tl.sum(tl.exp(warmed(x, settings_ptr, row) - highest[:, None]), axis=1)
    each = block * (BLOCK // SMALL) + tl.arange(0, BLOCK // SMALL)
    tl.store(maxima_ptr + column * num_small + each, maxima, mask=each < num_small)
    tl.store(sums_ptr + column * num_small + each, sums, mask=each < num_small)


@triton.jit
def _reaching(order, weights, goal, BITS: tl.constexpr):
    """The largest number such that the weights of those that reach it come to the goal; 0 where they never do."""
    found, bit = tl.zeros([], tl.uint32), tl.full([], 0x80000000, tl.uint32)
    for _ in range(BITS):
        found = tl.where(tl.sum(tl.where(order >= found + bit, weights, 0.0), axis=0) >= goal, found + bit, found)
        bit = bit >> 1
    return found


@quick
@triton.jit(do_not_specialize=["size", "width", "num_small"])
def _bounds(
    maxima_ptr, sums_ptr, settings_ptr, best_ptr, bounds_ptr, counts_ptr, masses_ptr, size, width, num_small,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, BITS: tl.constexpr, SMALLS: tl.constexpr,
):  # fmt: skip
    """The best score of a column, and one that all reach that the threshold depends on.

    Those are what top-k keeps. Without it, what the nucleus may hold: the mass of the others is added up by `_list`.
    """
    column, each = tl.program_id(0), tl.arange(0, SMALLS)
    row = column // width
    maxima = tl.load(maxima_ptr + column * num_small + each, mask=each < num_small, other=float("-inf"))
    order, best = order_of(maxima), tl.maximum(tl.max(maxima, axis=0), -1e30)
    temperature = warmth(settings_ptr, row)
    bound = tl.zeros([], tl.uint32)
    if HAS_TOP_P:
        p = real(settings_ptr, row, _TOP_P)
        depth = temperature * tl.log(size / tl.maximum(1.0 - p, 1e-12)) * 1.00001 + 1e-3
        found = order_of(best - depth.to(tl.float32))
        weights = tl.exp(warmed(maxima, settings_ptr, row) - warmed(best, settings_ptr, row))
        sums = tl.load(sums_ptr + column * num_small + each, mask=each < num_small, other=0.0)
        # A little more than p: the sums are rounded.
        goal = tl.sum(weights * sums, axis=0) * (p.to(tl.float32) * 1.00001 + 1e-5)
        found = tl.maximum(found, _reaching(order, weights, goal, BITS))
        bound = tl.where(p < 1.0, found, bound)
    if HAS_TOP_K:
        k = setting(settings_ptr, row, _TOP_K)
        found = _reaching(order, tl.full([SMALLS], 1.0, tl.float32), tl.maximum(k, 1).to(tl.float32), BITS)
        bound = tl.where(k > 0, found, bound)
    tl.store(best_ptr + column, tl.div_rn(best, temperature.to(tl.float32)))
    tl.store(bounds_ptr + column, bound.to(tl.int64))
    tl.store(counts_ptr + column, 0)
    tl.store(masses_ptr + column, tl.zeros([], tl.int64))


@triton.jit
def _mass(x, temperature, best):
    """Probabilities in units of `_MASS_UNIT` of the best one's."""
    return (tl.exp(tl.div_rn(x, temperature) - best) * _MASS_UNIT).to(tl.int64)


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _list(
    scores_ptr, settings_ptr, best_ptr, bounds_ptr, counts_ptr, masses_ptr, listed_ptr, size, width,
    HAS_TOP_P: tl.constexpr, MAX_LISTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores that reach the column's bound, in any order; how many there are, even if there is no room for all.

    And the mass of all scores, listed or not.
    """
    block, column = tl.program_id(0), tl.program_id(1)
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    is_listed = (order_of(x) >= tl.load(bounds_ptr + column).to(tl.uint32)) & (x > float("-inf"))
    number = is_listed.to(tl.int32)
    count = tl.sum(number, axis=0)
    if count > 0:
        place = tl.atomic_add(counts_ptr + column, count) + tl.cumsum(number, axis=0) - 1
        tl.store(listed_ptr + column * MAX_LISTED + place, x, mask=is_listed & (place < MAX_LISTED))
    if HAS_TOP_P:
        mass = _mass(x, warmth(settings_ptr, column // width).to(tl.float32), tl.load(best_ptr + column))
        tl.atomic_add(masses_ptr + column, tl.sum(mass, axis=0))


@triton.jit
def _reached(
    source_ptr, column, count, stride, least, threshold, best, temperature, IS_MASS: tl.constexpr, CHUNK: tl.constexpr
):
    """How many scores reach both numbers; IS_MASS: their mass."""
    total = tl.zeros([], tl.int64)
    for start in range(0, count, CHUNK):
        place = start + tl.arange(0, CHUNK)
        x = loaded(source_ptr + column.to(tl.int64) * (stride - count), column, place, count)
        order = order_of(x)
        is_there = (order >= threshold) & (order >= least) & (x > float("-inf"))
        share = _mass(x, temperature, best) if IS_MASS else tl.full([CHUNK], 1, tl.int64)
        total += tl.sum(tl.where(is_there, share, 0), axis=0)
    return total


@triton.jit
def _threshold(
    source_ptr, column, count, stride, settings_ptr, row, best, temperature, total,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The number that exactly those reach that top-k, and then top-p, keep; `total`: the mass of all scores."""
    least = tl.zeros([], tl.uint32)
    if HAS_TOP_K:
        k = setting(settings_ptr, row, _TOP_K)
        found, bit = tl.zeros([], tl.uint32), tl.full([], 0x80000000, tl.uint32)
        for _ in range(BITS):
            reached = _reached(source_ptr, column, count, stride, least, found + bit, best, temperature, False, CHUNK)
            found = tl.where(reached >= tl.maximum(k, 1), found + bit, found)
            bit = bit >> 1
        least = tl.where(k > 0, found, least)
        if HAS_TOP_P & (k > 0):
            total = _reached(source_ptr, column, count, stride, least, least, best, temperature, True, CHUNK)
    if HAS_TOP_P:
        p = real(settings_ptr, row, _TOP_P)
        goal = tl.maximum((p * total.to(tl.float64)).to(tl.int64), 1)
        found, bit = tl.zeros([], tl.uint32), tl.full([], 0x80000000, tl.uint32)
        for _ in range(BITS):
            reached = _reached(source_ptr, column, count, stride, least, found + bit, best, temperature, True, CHUNK)
            found = tl.where(reached >= goal, found + bit, found)
            bit = bit >> 1
        least = tl.where(p < 1.0, tl.maximum(least, found), least)
    return least


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _thresholds(
    source_ptr, counts_ptr, masses_ptr, settings_ptr, best_ptr, least_ptr, size, width,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, BITS: tl.constexpr,
    MAX_LISTED: tl.constexpr, IS_LIST: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of the columns whose list is complete (IS_LIST, and this is it), or of the others: then of all scores."""
    column = tl.program_id(0)
    row, count, best = column // width, tl.load(counts_ptr + column), tl.load(best_ptr + column)
    keeps_all = (setting(settings_ptr, row, _TOP_K) <= 0) & (real(settings_ptr, row, _TOP_P) >= 1.0)
    if keeps_all:
        tl.store(least_ptr + column, 0)
    elif (count <= MAX_LISTED) == IS_LIST:
        stride = MAX_LISTED if IS_LIST else size
        least = _threshold(
            source_ptr, column, count if IS_LIST else size, stride, settings_ptr, row, best,
            warmth(settings_ptr, row).to(tl.float32), tl.load(masses_ptr + column), HAS_TOP_K, HAS_TOP_P, BITS, CHUNK,
        )  # fmt: skip
        tl.store(least_ptr + column, least.to(tl.int64))


@triton.jit
def is_kept(x, warm, settings_ptr, row, column, best_ptr, least_ptr, HAS_TOPS: tl.constexpr, HAS_MIN_P: tl.constexpr):
    """Whether truncation keeps these scores; `warm`: divided by the temperature."""
    keeps = x > float("-inf")
    if HAS_TOPS:
        keeps &= order_of(x) >= tl.load(least_ptr + column).to(tl.uint32)
    if HAS_MIN_P:
        share = real(settings_ptr, row, _MIN_P).to(tl.float32)
        keeps &= tl.where(share > 0, warm - tl.load(best_ptr + column) >= tl.log(share), True)
    return keeps


@dataclass(frozen=True)
class Truncation:
    best: torch.Tensor  # [columns] the largest score, divided by the temperature
    least: torch.Tensor  # [columns] `order_of` the smallest score that is kept


def truncation(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> Truncation:
    """Of scores [columns, vocabulary] after the rules."""
    num_columns, size = scores.shape
    num_blocks, num_small, width = triton.cdiv(size, BLOCK), triton.cdiv(size, _SMALL_BLOCK), columns.depths.shape[1]

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=scores.device)

    maxima, sums = (empty(num_columns, num_small, dtype=torch.float32) for _ in range(2))
    best, counts = empty(num_columns, dtype=torch.float32), empty(num_columns, dtype=torch.int32)
    bounds, masses, least = (empty(num_columns, dtype=torch.int64) for _ in range(3))
    tops: dict[str, Any] = {"HAS_TOP_K": kind.has_top_k, "HAS_TOP_P": kind.has_top_p, "BITS": _BITS[scores.dtype]}
    kernel: Any = _maxima
    blocks: dict[str, Any] = {"SMALL": _SMALL_BLOCK, "BLOCK": BLOCK, "num_warps": WARPS}
    kernel[(num_blocks, num_columns)](scores, columns.settings, maxima, sums, size, width, num_small, **blocks)
    kernel = _bounds
    smalls = triton.next_power_of_2(num_small)
    found = (best, bounds, counts, masses)
    kernel[(num_columns,)](
        maxima, sums, columns.settings, *found, size, width, num_small, **tops, SMALLS=smalls, num_warps=4
    )
    if kind.has_top_k or kind.has_top_p:
        listed = empty(num_columns, _MAX_LISTED, dtype=torch.float32)
        kernel = _list
        kernel[(num_blocks, num_columns)](
            *(scores, columns.settings, *found, listed, size, width),
            HAS_TOP_P=kind.has_top_p,
            MAX_LISTED=_MAX_LISTED,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
        kernel = _thresholds
        for source, is_list, chunk, num_warps in ((listed, True, 1024, 4), (scores, False, 8192, 32)):
            kernel[(num_columns,)](
                source,
                counts,
                masses,
                columns.settings,
                best,
                least,
                size,
                width,
                **tops,
                MAX_LISTED=_MAX_LISTED,
                IS_LIST=is_list,
                CHUNK=chunk,
                num_warps=num_warps,
            )
    return Truncation(best, least)
