"""What top-k and top-p keep, found without sorting the vocabulary.

Digit by digit: tokens are counted (or their probabilities added up) by the next four bits of their scores, and the
digit in which the sum reaches what is wanted goes on the threshold. So the kept set is exact, whatever its size.
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
LEVELS = {torch.bfloat16: 4, torch.float16: 5, torch.float32: 8}
"""Digits of four bits that tell all numbers of a type apart once they are float32: the others are the same in all."""
_TEMPERATURE, _TOP_K, _TOP_P = (tl.constexpr(SETTINGS.index(name)) for name in ("temperature", "top_k", "top_p"))
_NUM_SETTINGS = tl.constexpr(len(SETTINGS))


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
def warmed(x, temperature):
    """Divided by the temperature; at 0 as it is."""
    return tl.div_rn(x, tl.where(temperature > 0, temperature, 1.0).to(tl.float32))


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _peaks(scores_ptr, settings_ptr, peaks_ptr, size, width, BLOCK: tl.constexpr):
    """The best score of each block, divided by the temperature."""
    block, column = tl.program_id(0), tl.program_id(1)
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    best = warmed(tl.max(x, axis=0), real(settings_ptr, column // width, _TEMPERATURE))
    tl.store(peaks_ptr + column * tl.num_programs(0) + block, best)


@triton.jit
def best_of(peaks_ptr, column, num_blocks, BLOCKS: tl.constexpr):
    block = tl.arange(0, BLOCKS)
    peaks = tl.load(peaks_ptr + column * num_blocks + block, mask=block < num_blocks, other=float("-inf"))
    return tl.maximum(tl.max(peaks, axis=0), -1e30)


@triton.jit
def _found(sums_ptr, begun_ptr, wanted, column, num_columns, num_blocks, LEVEL: tl.constexpr, BLOCKS: tl.constexpr):
    """The threshold as far as the sums up to LEVEL - 1 tell it, and the sum of all that was summed up at first.

    `wanted`: the number of tokens, or the share of that sum.
    """
    begun = tl.zeros([], tl.uint32)
    total = tl.zeros([], tl.float64)
    digit = tl.arange(0, 16)
    if LEVEL > 0:
        block = tl.arange(0, BLOCKS)[:, None]
        source = sums_ptr + (((LEVEL - 1) * num_columns + column) * num_blocks + block) * 16 + digit[None, :]
        sums = tl.sum(tl.load(source, mask=block < num_blocks, other=0.0).to(tl.float64), axis=0)
        is_above = digit[None, :] >= digit[:, None]
        reached = tl.sum(tl.where(is_above, sums[None, :], 0.0), axis=1)
        if LEVEL == 1:
            total = tl.sum(sums, axis=0)
        else:
            total = tl.load(begun_ptr + ((LEVEL - 2) * num_columns + column) * 2 + 1).to(tl.float64, bitcast=True)
            begun = tl.load(begun_ptr + ((LEVEL - 2) * num_columns + column) * 2).to(tl.uint32)
        goal = tl.where(wanted < 1.0, wanted * total, wanted)
        count = tl.sum((reached >= tl.maximum(goal, 1e-30)).to(tl.int32), axis=0)
        begun += tl.maximum(count - 1, 0).to(tl.uint32) << (32 - 4 * LEVEL)
    return begun, total


@triton.jit
def threshold(
    sums_ptr, begun_ptr, wanted, is_wanted, column, num_columns, num_blocks, LEVELS: tl.constexpr, BLOCKS: tl.constexpr
):
    """What `_sum` found; 0, which all scores reach, where nothing is wanted."""
    begun, _ = _found(sums_ptr, begun_ptr, wanted, column, num_columns, num_blocks, LEVELS, BLOCKS)
    return tl.where(is_wanted, begun, 0)


@triton.jit
def wanted_top_k(settings_ptr, row):
    wanted = setting(settings_ptr, row, _TOP_K)
    return wanted.to(tl.float64), wanted > 0


@triton.jit
def wanted_top_p(settings_ptr, row):
    wanted = real(settings_ptr, row, _TOP_P)
    return wanted, wanted < 1.0


@quick
@triton.jit(do_not_specialize=["size", "width", "num_columns"])
def _sum(
    scores_ptr, settings_ptr, peaks_ptr, counts_ptr, counted_ptr, sums_ptr, begun_ptr, size, width, num_columns,
    LEVEL: tl.constexpr, LEVELS: tl.constexpr, IS_MASS: tl.constexpr, AFTER_TOP_K: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Add up a block's tokens (IS_MASS: their probabilities) by digit LEVEL of those that agree with the threshold."""
    block, column, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row = column // width
    x = loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    order = order_of(x)
    if IS_MASS:
        wanted, _ = wanted_top_p(settings_ptr, row)
        best = best_of(peaks_ptr, column, num_blocks, BLOCKS)
        weight = tl.exp(warmed(x, real(settings_ptr, row, _TEMPERATURE)) - best)
        if AFTER_TOP_K:
            k, has_k = wanted_top_k(settings_ptr, row)
            least = threshold(counts_ptr, counted_ptr, k, has_k, column, num_columns, num_blocks, LEVELS, BLOCKS)
            weight = tl.where(order >= least, weight, 0.0)
    else:
        wanted, _ = wanted_top_k(settings_ptr, row)
        weight = tl.where(x > float("-inf"), 1.0, 0.0)
    begun, total = _found(sums_ptr, begun_ptr, wanted, column, num_columns, num_blocks, LEVEL, BLOCKS)
    if LEVEL > 0:  # noqa: SIM102 - one is known when the kernel is compiled, the other when it runs
        if block == 0:
            place = begun_ptr + ((LEVEL - 1) * num_columns + column) * 2
            tl.store(place, begun.to(tl.int64))
            tl.store(place + 1, total.to(tl.int64, bitcast=True))
    each = tl.arange(0, 16)
    sums = tl.zeros([16], tl.float32)
    if tl.max(order, axis=0) >= begun:  # most blocks are below the threshold as soon as it is roughly known
        digit = tl.minimum((order - begun) >> (28 - 4 * LEVEL), 15).to(tl.int32)
        digit = tl.where(order >= begun, digit, -1)
        sums = tl.sum(tl.where(digit[:, None] == each[None, :], weight[:, None], 0.0), axis=0)
    tl.store(sums_ptr + ((LEVEL * num_columns + column) * num_blocks + block) * 16 + each, sums)


@dataclass(frozen=True)
class Search:
    """The sums [levels, columns, blocks, 16] of one truncation, and what they had told before each level."""

    sums: torch.Tensor
    begun: torch.Tensor  # [levels, columns, 2] the threshold so far, the bits of the total


def _search(
    scores: torch.Tensor, columns: Columns, peaks: torch.Tensor, is_mass: bool, counted: Search | None = None
) -> Search:
    num_columns, size = scores.shape
    num_blocks, levels, device = triton.cdiv(size, BLOCK), LEVELS[scores.dtype], scores.device
    search = Search(
        torch.empty(levels, num_columns, num_blocks, 16, dtype=torch.float32, device=device),
        torch.empty(levels, num_columns, 2, dtype=torch.int64, device=device),
    )
    before = search if counted is None else counted
    kernel: Any = _sum
    for level in range(levels):
        kernel[(num_blocks, num_columns)](
            scores,
            columns.settings,
            peaks,
            before.sums,
            before.begun,
            search.sums,
            search.begun,
            size,
            columns.depths.shape[1],
            num_columns,
            LEVEL=level,
            LEVELS=levels,
            IS_MASS=is_mass,
            AFTER_TOP_K=counted is not None,
            BLOCK=BLOCK,
            BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=WARPS,
        )
    return search


@dataclass(frozen=True)
class Truncation:
    """What was found for each column: its best scores by block, and how far top-k and top-p go down."""

    peaks: torch.Tensor  # [columns, blocks] divided by the temperature
    counts: Search
    masses: Search

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As kernels take them."""
        return self.peaks, self.counts.sums, self.counts.begun, self.masses.sums, self.masses.begun


def truncation(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> Truncation:
    """Of scores [columns, vocabulary] after the rules."""
    num_columns, size = scores.shape
    num_blocks = triton.cdiv(size, BLOCK)
    peaks = torch.empty(num_columns, num_blocks, dtype=torch.float32, device=scores.device)
    kernel: Any = _peaks
    width = columns.depths.shape[1]
    kernel[(num_blocks, num_columns)](scores, columns.settings, peaks, size, width, BLOCK=BLOCK, num_warps=WARPS)
    counted = _search(scores, columns, peaks, is_mass=False) if kind.has_top_k else None
    massed = _search(scores, columns, peaks, is_mass=True, counted=counted) if kind.has_top_p else None
    none = Search(peaks, columns.settings)
    return Truncation(peaks, counted or none, massed or none)
