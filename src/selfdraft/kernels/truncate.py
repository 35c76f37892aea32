"""What top-k, top-p and min-p keep, found without sorting the vocabulary.

The few tokens that can be kept at all are listed first. A token below the k-th largest of the maxima of small blocks
is not among the k best; one below maxima that hold p together is not in the nucleus, nor is one less likely than
(1 - p) / vocabulary. The threshold among those listed is found by narrowing an interval: does what reaches this number
suffice? Where the list would be too long, all scores are looked at, which is slow and gives the same. Probabilities are
added up as whole numbers: no sum depends on an order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..passes import SETTINGS, ChoiceKind, Columns
from . import launch
from .launch import let_next_start, wait
from .quick import quick

BLOCK, WARPS = 2048, 8
_SMALL_BLOCK, _MAX_LISTED, _TILE = 128, 16384, 2048
_SHIFT = {torch.bfloat16: 16, torch.float16: 12, torch.float32: 0}
"""Last bits of float32 numbers that are the same in all that were of this type."""
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (
    tl.constexpr(SETTINGS.index(name)) for name in ("temperature", "top_k", "top_p", "min_p")
)
_NUM_SETTINGS = tl.constexpr(len(SETTINGS))
_MASS_UNIT = tl.constexpr(float(1 << 40))
"""Of the best token's probability."""
_NUM_PIVOTS = tl.constexpr(4)


@triton.jit
def setting(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place)


@triton.jit
def real(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place).to(tl.float64, bitcast=True)


@triton.jit
def _numbers(source_ptr, place, size):
    """Scores as float32; what is not a number is never chosen."""
    x = tl.load(source_ptr + place, mask=place < size, other=float("-inf"))
    x = x.to(tl.float32) + 0.0  # so that there is one zero
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def loaded(scores_ptr, line, token, size):
    return _numbers(scores_ptr + line.to(tl.int64) * size, token, size)


@triton.jit
def row_of(places_ptr, line, width):
    """The row of the pass that a line of scores belongs to."""
    return tl.load(places_ptr + line) // width


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
@triton.jit(do_not_specialize=["width", "num_small"])
def _maxima(
    scores_ptr, settings_ptr, places_ptr, maxima_ptr, sums_ptr, size, width, num_small,
    HAS_TOP_P: tl.constexpr, SMALL: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best score of each small block, and for top-p the sum of what its scores weigh beside it."""
    let_next_start(PDL)
    wait(PDL)
    block, line = tl.program_id(0), tl.program_id(1)
    row = row_of(places_ptr, line, width)
    x = loaded(scores_ptr, line, block * BLOCK + tl.arange(0, BLOCK), size)
    x = tl.reshape(x, [BLOCK // SMALL, SMALL])
    maxima = tl.max(x, axis=1)
    each = block * (BLOCK // SMALL) + tl.arange(0, BLOCK // SMALL)
    tl.store(maxima_ptr + line * num_small + each, maxima, mask=each < num_small)
    if HAS_TOP_P:
        highest = warmed(tl.maximum(maxima, -1e30), settings_ptr, row)
        sums = tl.sum(tl.exp(warmed(x, settings_ptr, row) - highest[:, None]), axis=1)
        tl.store(sums_ptr + line * num_small + each, sums, mask=each < num_small)


# ------------------------------------------------------------------------------------------------------- the search


@triton.jit
def _mass(x, temperature, best):
    """Probabilities in units of `_MASS_UNIT` of the best one's."""
    return (tl.exp(tl.div_rn(x, temperature) - best) * _MASS_UNIT).to(tl.int64)


@triton.jit
def _weighed(source, start, SHIFT: tl.constexpr, CHUNK: tl.constexpr):
    """Order and mass of some scores of `source`; what is impossible reaches nothing."""
    source_ptr, count, temperature, best = source
    x = _numbers(source_ptr, start + tl.arange(0, CHUNK), count)
    return tl.where(x > float("-inf"), order_of(x) >> SHIFT, 0), _mass(x, temperature, best)


@triton.jit
def _reached(source, order, weights, pivots, IS_TILE: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr):
    """For each pivot, what the weights of those come to that reach it.

    IS_TILE: `order` and `weights` are all there is. Else the source is read, and its masses are the weights, if these
    are 64 bits wide; otherwise each counts 1.
    """
    if IS_TILE:
        reached = tl.sum(tl.where(order[None, :] >= pivots[:, None], weights[None, :], 0), axis=1)
    else:
        reached = tl.zeros([_NUM_PIVOTS], weights.dtype)
        for start in range(0, source[1], CHUNK):
            order, mass = _weighed(source, start, SHIFT, CHUNK)
            share = mass if weights.dtype == tl.int64 else weights
            reached += tl.sum(tl.where(order[None, :] >= pivots[:, None], share[None, :], 0), axis=1)
    return reached


@triton.jit
def _search(
    source, order, weights, goal, low, high, IS_TILE: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The largest number such that those that reach it come to the goal. `high` does not; `low` is taken to."""
    while low + 1 < high:
        step = (high - low + _NUM_PIVOTS) // (_NUM_PIVOTS + 1)
        pivots = low + (tl.arange(0, _NUM_PIVOTS) + 1).to(tl.uint32) * step
        reached = _reached(source, order, weights, pivots, IS_TILE, SHIFT, CHUNK)
        low += step * tl.sum((reached >= goal).to(tl.uint32), axis=0)
        high = tl.minimum(high, low + step)
    return low


@quick
@triton.jit(do_not_specialize=["size", "width", "num_small"])
def _bounds(
    maxima_ptr, sums_ptr, settings_ptr, places_ptr, best_ptr, bounds_ptr, counts_ptr, masses_ptr,
    size, width, num_small,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, SMALLS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best score of a line, and a bound that all reach that the threshold depends on, and one that none reaches.

    Those are what top-k keeps. Without it, what the nucleus may hold: the mass of the others is added up by `_list`.
    Bounds need only 16 bits, rounded outwards.
    """
    let_next_start(PDL)
    wait(PDL)
    line, each = tl.program_id(0), tl.arange(0, SMALLS)
    row = row_of(places_ptr, line, width)
    maxima = tl.load(maxima_ptr + line * num_small + each, mask=each < num_small, other=float("-inf"))
    order, best = order_of(maxima) >> 16, tl.maximum(tl.max(maxima, axis=0), -1e30)
    temperature, k, high = warmth(settings_ptr, row), setting(settings_ptr, row, _TOP_K), (order_of(best) >> 16) + 1
    bound = tl.zeros([], tl.uint32)
    if HAS_TOP_P:
        p = real(settings_ptr, row, _TOP_P)
        if (p < 1.0) & (k <= 0):
            depth = temperature * tl.log(size / tl.maximum(1.0 - p, 1e-12)) * 1.00001 + 1e-3
            weights = tl.exp(warmed(maxima, settings_ptr, row) - warmed(best, settings_ptr, row))
            sums = tl.load(sums_ptr + line * num_small + each, mask=each < num_small, other=0.0)
            # A little more than p: the sums are rounded.
            goal = tl.sum(weights * sums, axis=0) * (p.to(tl.float32) * 1.00001 + 1e-5)
            low = order_of(best - depth.to(tl.float32)) >> 16
            bound = _search((), order, weights, tl.maximum(goal, 1e-30), low, high, True, 16, SMALLS)
    if HAS_TOP_K:
        low = tl.min(tl.where(each < num_small, order, 0xFFFF), axis=0)
        if (k > 0) & (k <= num_small):
            bound = _search((), order, tl.full([SMALLS], 1, tl.int32), k, low, high, True, 16, SMALLS)
    tl.store(best_ptr + line, tl.div_rn(best, temperature.to(tl.float32)))
    tl.store(bounds_ptr + line * 2, (bound << 16).to(tl.int64))
    tl.store(bounds_ptr + line * 2 + 1, (high << 16).to(tl.int64))
    tl.store(counts_ptr + line, 0)
    tl.store(masses_ptr + line, tl.zeros([], tl.int64))


@quick
@triton.jit(do_not_specialize=["width"])
def _list(
    scores_ptr, settings_ptr, places_ptr, best_ptr, bounds_ptr, counts_ptr, masses_ptr, listed_ptr, size, width,
    HAS_TOP_P: tl.constexpr, MAX_LISTED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Scores that reach the line's bound, in any order; how many there are, even if there is no room for all.

    And the mass of all scores, listed or not.
    """
    let_next_start(PDL)
    wait(PDL)
    block, line = tl.program_id(0), tl.program_id(1)
    x = loaded(scores_ptr, line, block * BLOCK + tl.arange(0, BLOCK), size)
    is_listed = (order_of(x) >= tl.load(bounds_ptr + line * 2).to(tl.uint32)) & (x > float("-inf"))
    number = is_listed.to(tl.int32)
    count = tl.sum(number, axis=0)
    if count > 0:
        place = tl.atomic_add(counts_ptr + line, count) + tl.cumsum(number, axis=0) - 1
        listed = x.to(listed_ptr.dtype.element_ty)
        tl.store(listed_ptr + line * MAX_LISTED + place, listed, mask=is_listed & (place < MAX_LISTED))
    if HAS_TOP_P:
        mass = _mass(x, warmth(settings_ptr, row_of(places_ptr, line, width)).to(tl.float32), tl.load(best_ptr + line))
        tl.atomic_add(masses_ptr + line, tl.sum(mass, axis=0))


@triton.jit
def _threshold(
    source, low, high, total, settings_ptr, row,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, IS_TILE: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The number that exactly those reach that top-k, and then top-p, keep; `total`: the mass of all scores."""
    order, mass = _weighed(source, 0, SHIFT, CHUNK)
    if HAS_TOP_K:
        k = setting(settings_ptr, row, _TOP_K)
        if k > 0:
            low = _search(source, order, tl.full([CHUNK], 1, tl.int32), k, low, high, IS_TILE, SHIFT, CHUNK)
            if HAS_TOP_P:
                pivots = tl.zeros([_NUM_PIVOTS], tl.uint32) + low
                total = tl.max(_reached(source, order, mass, pivots, IS_TILE, SHIFT, CHUNK), axis=0)
    if HAS_TOP_P:
        p = real(settings_ptr, row, _TOP_P)
        goal = tl.maximum((p * total.to(tl.float64)).to(tl.int64), 1)
        if p < 1.0:
            low = _search(source, order, mass, goal, low, high, IS_TILE, SHIFT, CHUNK)
    return low


@quick
@triton.jit(do_not_specialize=["width"])
def _thresholds(
    scores_ptr, listed_ptr, bounds_ptr, counts_ptr, masses_ptr, settings_ptr, places_ptr, best_ptr, least_ptr,
    size, width,
    HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, SHIFT: tl.constexpr, MAX_LISTED: tl.constexpr,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of what is listed, or of all scores where the list is not complete; a tile of them stays in registers."""
    let_next_start(PDL)
    wait(PDL)
    line = tl.program_id(0)
    row, count, total = row_of(places_ptr, line, width), tl.load(counts_ptr + line), tl.load(masses_ptr + line)
    low = tl.load(bounds_ptr + line * 2).to(tl.uint32) >> SHIFT
    high = tl.load(bounds_ptr + line * 2 + 1).to(tl.uint32) >> SHIFT
    temperature, best = warmth(settings_ptr, row).to(tl.float32), tl.load(best_ptr + line)
    source_ptr = listed_ptr + line.to(tl.int64) * MAX_LISTED
    if count > MAX_LISTED:
        source_ptr, count = scores_ptr + line.to(tl.int64) * size, size
    source = (source_ptr, count, temperature, best)
    keeps_all = (setting(settings_ptr, row, _TOP_K) <= 0) & (real(settings_ptr, row, _TOP_P) >= 1.0)
    if keeps_all | (count == 0):
        low = tl.zeros([], tl.uint32)
    elif count <= TILE:
        low = _threshold(source, low, high, total, settings_ptr, row, HAS_TOP_K, HAS_TOP_P, True, SHIFT, TILE)
    else:
        low = _threshold(source, low, high, total, settings_ptr, row, HAS_TOP_K, HAS_TOP_P, False, SHIFT, 2 * TILE)
    tl.store(least_ptr + line, (low << SHIFT).to(tl.int64))


@triton.jit
def is_kept(x, warm, settings_ptr, row, line, best_ptr, least_ptr, HAS_TOPS: tl.constexpr, HAS_MIN_P: tl.constexpr):
    """Whether truncation keeps these scores; `warm`: divided by the temperature."""
    keeps = x > float("-inf")
    if HAS_TOPS:
        keeps &= order_of(x) >= tl.load(least_ptr + line).to(tl.uint32)
    if HAS_MIN_P:
        share = real(settings_ptr, row, _MIN_P).to(tl.float32)
        keeps &= tl.where(share > 0, warm - tl.load(best_ptr + line) >= tl.log(share), True)
    return keeps


class Truncation(NamedTuple):
    best: torch.Tensor  # [lines] the largest score, divided by the temperature
    least: torch.Tensor  # [lines] `order_of` the smallest score that is kept


def truncation(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> Truncation:
    """Of scores [lines, vocabulary] after the rules."""
    num_lines, size = scores.shape
    num_blocks, num_small, width = triton.cdiv(size, BLOCK), triton.cdiv(size, _SMALL_BLOCK), columns.depths.shape[1]

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=scores.device)

    maxima, sums = (empty(num_lines, num_small, dtype=torch.float32) for _ in range(2))
    best, counts = empty(num_lines, dtype=torch.float32), empty(num_lines, dtype=torch.int32)
    bounds, masses, least = (empty(num_lines, number, dtype=torch.int64) for number in (2, 1, 1))
    pdl, found, how = launch.options(scores.device), (best, bounds, counts, masses), (columns.settings, columns.places)
    tops: dict[str, Any] = {"HAS_TOP_K": kind.has_top_k, "HAS_TOP_P": kind.has_top_p}
    blocks: dict[str, Any] = {"HAS_TOP_P": kind.has_top_p, "BLOCK": BLOCK, "num_warps": WARPS}
    kernel: Any = _maxima
    values: tuple[Any, ...] = (scores, *how, maxima, sums, size, width, num_small)
    kernel[(num_blocks, num_lines)](*values, SMALL=_SMALL_BLOCK, **blocks, **pdl)
    kernel = _bounds
    values = (maxima, sums, *how, *found, size, width, num_small)
    kernel[(num_lines,)](*values, **tops, SMALLS=triton.next_power_of_2(num_small), num_warps=4, **pdl)
    if kind.has_top_k or kind.has_top_p:
        listed, room = empty(num_lines, _MAX_LISTED, dtype=scores.dtype), {"MAX_LISTED": _MAX_LISTED}
        kernel = _list
        values = (scores, *how, *found, listed, size, width)
        kernel[(num_blocks, num_lines)](*values, **room, **blocks, **pdl)
        kernel = _thresholds
        values = (scores, listed, bounds, counts, masses, *how, best, least, size, width)
        shift = _SHIFT[scores.dtype]
        kernel[(num_lines,)](*values, **tops, SHIFT=shift, **room, TILE=_TILE, num_warps=8, **pdl)
    return Truncation(best, least.flatten())
