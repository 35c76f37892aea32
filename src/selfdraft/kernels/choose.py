"""From scores to choices, for all columns of a pass at once: rules, temperature, truncation, noise, the best of it.

No kernel sorts the vocabulary. What top-k and top-p keep is found digit by digit: tokens are counted (or their
probabilities added up) by the next four bits of their scores, and the digit in which the sum reaches what is wanted
goes on the threshold. So the kept set is exact, whatever its size. `choose_reference` says the same in torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..passes import SETTINGS, WORD_COUNT, WORD_EOS, WORD_PROMPT, ChoiceKind, Columns, Drawn
from .quick import quick

_BLOCK, _WARPS = 2048, 8
_LEVELS = {torch.bfloat16: 4, torch.float16: 5, torch.float32: 8}
"""Digits of four bits that tell all numbers of a type apart once they are float32: the others are the same in all."""
_ROUND, _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(place) for place in range(2, 7))
_REPETITION, _PRESENCE, _FREQUENCY, _MIN_NEW = (tl.constexpr(place) for place in range(7, 11))
_NUM_SETTINGS = tl.constexpr(len(SETTINGS))
_COUNT_BITS, _PROMPT_BIT, _EOS_BIT = tl.constexpr(WORD_COUNT), tl.constexpr(WORD_PROMPT), tl.constexpr(WORD_EOS)


@triton.jit
def _setting(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place)


@triton.jit
def _real(settings_ptr, row, place: tl.constexpr):
    return tl.load(settings_ptr + row * _NUM_SETTINGS + place).to(tl.float64, bitcast=True)


@triton.jit
def _loaded(scores_ptr, column, token, size):
    """Scores as float32; what is not a number is never chosen."""
    x = tl.load(scores_ptr + column.to(tl.int64) * size + token, mask=token < size, other=float("-inf"))
    x = x.to(tl.float32) + 0.0  # so that there is one zero
    return tl.where(x == x, x, float("-inf"))


# ------------------------------------------------------------------------------------------------------------- rules


@quick
@triton.jit(do_not_specialize=["size", "width", "num_rows", "num_words", "num_path", "num_mask_words"])
def _rules(
    scores_ptr, out_ptr, settings_ptr, indices_ptr, depths_ptr, path_ptr, on_path_ptr, first_row_ptr,
    words_ptr, biases_ptr, allowed_ptr, size, width, num_rows, num_words, num_path, num_mask_words,
    HAS_RULES: tl.constexpr, HAS_BIASES: tl.constexpr, IS_MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1)
    row = column // width
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = token < size
    x = _loaded(scores_ptr, column, token, size)
    if HAS_RULES:
        # Rows that only pad may stand after the last one.
        place = tl.minimum(tl.load(first_row_ptr) + row, num_rows - 1).to(tl.int64) * num_words + token
        word = tl.load(words_ptr + place, mask=is_token, other=0)
        count = word & _COUNT_BITS
        on_path, first_index = tl.load(on_path_ptr + column), tl.load(indices_ptr + row)
        for index in range(num_path):
            # At index 0 the pass's first token is the prompt's last.
            if (((on_path >> index) & 1) == 1) & ((index > 0) | (first_index > 0)):
                count += (token == tl.load(path_ptr + row * num_path + index)).to(tl.int32)
        is_early = first_index + tl.load(depths_ptr + column) < _setting(settings_ptr, row, _MIN_NEW)
        x = tl.where(is_early & ((word & _EOS_BIT) != 0), float("-inf"), x)
        if HAS_BIASES:
            x += tl.load(biases_ptr + place, mask=is_token, other=0.0)
        penalty = _real(settings_ptr, row, _REPETITION).to(tl.float32)
        is_seen = (count > 0) | ((word & _PROMPT_BIT) != 0)
        x = tl.where(is_seen, tl.where(x < 0, x * penalty, tl.div_rn(x, penalty)), x)
        x -= _real(settings_ptr, row, _FREQUENCY).to(tl.float32) * count.to(tl.float32)
        x -= _real(settings_ptr, row, _PRESENCE).to(tl.float32) * (count > 0).to(tl.float32)
    if IS_MASKED:
        bits = tl.load(allowed_ptr + column.to(tl.int64) * num_mask_words + token // 32, mask=is_token, other=0)
        x = tl.where(((bits >> (token % 32)) & 1) == 1, x, float("-inf"))
    tl.store(out_ptr + column.to(tl.int64) * size + token, x, mask=is_token)


def processed(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """Raw scores [columns, vocabulary] after the rules, float32; without rules as they are."""
    if not (kind.has_rules or kind.is_masked):
        return scores
    num_columns, size = scores.shape
    out = torch.empty(num_columns, size, dtype=torch.float32, device=scores.device)
    kernel: Any = _rules
    kernel[(triton.cdiv(size, _BLOCK), num_columns)](
        scores.contiguous(),
        out,
        columns.settings,
        columns.indices,
        columns.depths,
        columns.path,
        columns.on_path,
        columns.first_row,
        scores if columns.words is None else columns.words,
        scores if columns.biases is None else columns.biases,
        scores if columns.allowed is None else columns.allowed,
        size,
        columns.depths.shape[1],
        *((1, 1) if columns.words is None else columns.words.shape),
        columns.path.shape[1],
        0 if columns.allowed is None else columns.allowed.shape[-1],
        HAS_RULES=kind.has_rules,
        HAS_BIASES=columns.biases is not None,
        IS_MASKED=kind.is_masked,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return out


# ------------------------------------------------------------------------------------------------------- truncation


@triton.jit
def _order(x):
    """Unsigned 32 bits that compare as the float32 numbers do."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _warmed(x, temperature):
    """Divided by the temperature; at 0 as it is."""
    return tl.div_rn(x, tl.where(temperature > 0, temperature, 1.0).to(tl.float32))


@quick
@triton.jit(do_not_specialize=["size", "width"])
def _peaks(scores_ptr, settings_ptr, peaks_ptr, size, width, BLOCK: tl.constexpr):
    """The best score of each block, divided by the temperature."""
    block, column = tl.program_id(0), tl.program_id(1)
    x = _loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    best = _warmed(tl.max(x, axis=0), _real(settings_ptr, column // width, _TEMPERATURE))
    tl.store(peaks_ptr + column * tl.num_programs(0) + block, best)


@triton.jit
def _best_of(peaks_ptr, column, num_blocks, BLOCKS: tl.constexpr):
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
def _threshold(
    sums_ptr, begun_ptr, wanted, is_wanted, column, num_columns, num_blocks, LEVELS: tl.constexpr, BLOCKS: tl.constexpr
):
    """What `_sum` found; 0, which all scores reach, where nothing is wanted."""
    begun, _ = _found(sums_ptr, begun_ptr, wanted, column, num_columns, num_blocks, LEVELS, BLOCKS)
    return tl.where(is_wanted, begun, 0)


@triton.jit
def _top_k(settings_ptr, row):
    wanted = _setting(settings_ptr, row, _TOP_K)
    return wanted.to(tl.float64), wanted > 0


@triton.jit
def _top_p(settings_ptr, row):
    wanted = _real(settings_ptr, row, _TOP_P)
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
    x = _loaded(scores_ptr, column, block * BLOCK + tl.arange(0, BLOCK), size)
    order = _order(x)
    if IS_MASS:
        wanted, _ = _top_p(settings_ptr, row)
        best = _best_of(peaks_ptr, column, num_blocks, BLOCKS)
        weight = tl.exp(_warmed(x, _real(settings_ptr, row, _TEMPERATURE)) - best)
        if AFTER_TOP_K:
            k, has_k = _top_k(settings_ptr, row)
            least = _threshold(counts_ptr, counted_ptr, k, has_k, column, num_columns, num_blocks, LEVELS, BLOCKS)
            weight = tl.where(order >= least, weight, 0.0)
    else:
        wanted, _ = _top_k(settings_ptr, row)
        weight = tl.where(x > float("-inf"), 1.0, 0.0)
    begun, total = _found(sums_ptr, begun_ptr, wanted, column, num_columns, num_blocks, LEVEL, BLOCKS)
    if LEVEL > 0:  # noqa: SIM102 - one is known when the kernel is compiled, the other when it runs
        if block == 0:
            place = begun_ptr + ((LEVEL - 1) * num_columns + column) * 2
            tl.store(place, begun.to(tl.int64))
            tl.store(place + 1, total.to(tl.int64, bitcast=True))
    digit = tl.minimum((order - begun) >> (28 - 4 * LEVEL), 15).to(tl.int32)
    digit = tl.where(order >= begun, digit, -1)
    each = tl.arange(0, 16)
    sums = tl.sum(tl.where(digit[:, None] == each[None, :], weight[:, None], 0.0), axis=0)
    tl.store(sums_ptr + ((LEVEL * num_columns + column) * num_blocks + block) * 16 + each, sums)


@dataclass(frozen=True)
class _Search:
    """The sums [levels, columns, blocks, 16] of one truncation, and what they had told before each level."""

    sums: torch.Tensor
    begun: torch.Tensor  # [levels, columns, 2] the threshold so far, the bits of the total


def _search(
    scores: torch.Tensor, columns: Columns, peaks: torch.Tensor, is_mass: bool, counted: _Search | None = None
) -> _Search:
    num_columns, size = scores.shape
    num_blocks, levels, device = triton.cdiv(size, _BLOCK), _LEVELS[scores.dtype], scores.device
    search = _Search(
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
            BLOCK=_BLOCK,
            BLOCKS=triton.next_power_of_2(num_blocks),
            num_warps=_WARPS,
        )
    return search


# ------------------------------------------------------------------------------------------------------------ drawing


@triton.jit
def _mix(bits):
    """As `engine/sampling._mix`, in 32 bits."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _key(settings_ptr, row, stream: tl.constexpr, index, SALT: tl.constexpr):
    key = _mix(_setting(settings_ptr, row, stream).to(tl.uint32) ^ index.to(tl.uint32))
    if SALT > 0:
        key = _mix(key ^ _setting(settings_ptr, row, _ROUND).to(tl.uint32))
        key = _mix(key ^ SALT)
    return key


@triton.jit
def _gumbel(settings_ptr, row, index, token, SALT: tl.constexpr):
    """The noise of these tokens, float64."""
    first, second = _key(settings_ptr, row, 0, index, SALT), _key(settings_ptr, row, 1, index, SALT)
    bits = _mix(_mix(token.to(tl.uint32) ^ first) ^ second)
    return -tl.log(-tl.log((bits.to(tl.float64) + 0.5) / 4294967296.0))


@quick
@triton.jit(do_not_specialize=["size", "width", "num_columns"])
def _draw_blocks(
    scores_ptr, settings_ptr, indices_ptr, depths_ptr, peaks_ptr, counts_ptr, counted_ptr, masses_ptr, massed_ptr,
    values_ptr, tokens_ptr, softmax_ptr, size, width, num_columns,
    COUNT: tl.constexpr, SALT: tl.constexpr, HAS_TOP_K: tl.constexpr, HAS_TOP_P: tl.constexpr, LEVELS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The winners of one block, and what its part of the softmax before temperature comes to."""
    block, column, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    row = column // width
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = _loaded(scores_ptr, column, token, size)
    order, place = _order(x), column * num_blocks + block
    highest = tl.maximum(tl.max(x, axis=0), -1e30)
    tl.store(softmax_ptr + place * 2, highest)
    tl.store(softmax_ptr + place * 2 + 1, tl.sum(tl.exp(x - highest), axis=0))

    temperature = _real(settings_ptr, row, _TEMPERATURE)
    warm = _warmed(x, temperature)
    is_kept = x > float("-inf")
    if HAS_TOP_K:
        k, has_k = _top_k(settings_ptr, row)
        least = _threshold(counts_ptr, counted_ptr, k, has_k, column, num_columns, num_blocks, LEVELS, BLOCKS)
        is_kept &= order >= least
    if HAS_TOP_P:
        p, has_p = _top_p(settings_ptr, row)
        least = _threshold(masses_ptr, massed_ptr, p, has_p, column, num_columns, num_blocks, LEVELS, BLOCKS)
        is_kept &= order >= least
    min_p = _real(settings_ptr, row, _MIN_P)
    if min_p > 0:
        best = _best_of(peaks_ptr, column, num_blocks, BLOCKS)
        is_kept &= warm - best >= tl.log(min_p.to(tl.float32))
    value = warm.to(tl.float64)
    if temperature > 0:
        index = tl.load(indices_ptr + row) + tl.load(depths_ptr + column)
        value += _gumbel(settings_ptr, row, index, token, SALT)
    value = tl.where(is_kept, value, float("-inf"))
    for rank in tl.static_range(COUNT):
        best_value = tl.max(value, axis=0)
        winner = tl.min(tl.where((value == best_value) & (token < size), token, 2147483647), axis=0)
        tl.store(values_ptr + place * COUNT + rank, best_value)
        tl.store(tokens_ptr + place * COUNT + rank, winner.to(tl.int64))
        value = tl.where(token == winner, float("-inf"), value)


@quick
@triton.jit
def _draw_columns(
    values_ptr, tokens_ptr, softmax_ptr, best_ptr, choice_ptr, peak_ptr, num_blocks,
    COUNT: tl.constexpr, BLOCKS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """What the blocks of a column come to."""
    column = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    source = softmax_ptr + (column * num_blocks + block) * 2
    best = tl.load(source, mask=block < num_blocks, other=-1e30)
    sums = tl.load(source + 1, mask=block < num_blocks, other=0.0)
    tl.store(peak_ptr + column, 1.0 / tl.sum(sums * tl.exp(best - tl.max(best, axis=0)), axis=0))
    entry = tl.arange(0, ENTRIES)
    is_entry = entry < num_blocks * COUNT
    value = tl.load(values_ptr + column * num_blocks * COUNT + entry, mask=is_entry, other=float("-inf"))
    token = tl.load(tokens_ptr + column * num_blocks * COUNT + entry, mask=is_entry, other=9223372036854775807)
    for rank in tl.static_range(COUNT):
        best_value = tl.max(value, axis=0)
        winner = tl.min(tl.where(value == best_value, token, 9223372036854775807), axis=0)
        tl.store(best_ptr + column * COUNT + rank, best_value)
        tl.store(choice_ptr + column * COUNT + rank, winner)
        is_winner = token == winner
        value = tl.where(is_winner, float("-inf"), value)
        token = tl.where(is_winner, 9223372036854775807, token)


def draw(scores: torch.Tensor, columns: Columns, kind: ChoiceKind, count: int) -> Drawn:
    """The `count` winners of scores [columns, vocabulary] after the rules; of equal ones the lower token is first."""
    scores = scores.contiguous()
    num_columns, size = scores.shape
    num_blocks, device = triton.cdiv(size, _BLOCK), scores.device
    peaks = torch.empty(num_columns, num_blocks, dtype=torch.float32, device=device)
    peak_kernel: Any = _peaks
    width = columns.depths.shape[1]
    peak_kernel[(num_blocks, num_columns)](scores, columns.settings, peaks, size, width, BLOCK=_BLOCK, num_warps=_WARPS)
    counted = _search(scores, columns, peaks, is_mass=False) if kind.has_top_k else None
    massed = _search(scores, columns, peaks, is_mass=True, counted=counted) if kind.has_top_p else None
    none = _Search(peaks, columns.settings)
    counts, masses = counted or none, massed or none
    block_values = torch.empty(num_columns, num_blocks, count, dtype=torch.float64, device=device)
    block_tokens = torch.empty(num_columns, num_blocks, count, dtype=torch.int64, device=device)
    softmax = torch.empty(num_columns, num_blocks, 2, dtype=torch.float32, device=device)
    block_kernel: Any = _draw_blocks
    block_kernel[(num_blocks, num_columns)](
        scores,
        columns.settings,
        columns.indices,
        columns.depths,
        peaks,
        counts.sums,
        counts.begun,
        masses.sums,
        masses.begun,
        block_values,
        block_tokens,
        softmax,
        size,
        width,
        num_columns,
        COUNT=count,
        SALT=kind.salt,
        HAS_TOP_K=kind.has_top_k,
        HAS_TOP_P=kind.has_top_p,
        LEVELS=_LEVELS[scores.dtype],
        BLOCK=_BLOCK,
        BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=_WARPS,
    )
    values = torch.empty(num_columns, count, dtype=torch.float64, device=device)
    tokens = torch.empty(num_columns, count, dtype=torch.int64, device=device)
    peak = torch.empty(num_columns, dtype=torch.float32, device=device)
    column_kernel: Any = _draw_columns
    column_kernel[(num_columns,)](
        block_values,
        block_tokens,
        softmax,
        values,
        tokens,
        peak,
        num_blocks,
        COUNT=count,
        BLOCKS=triton.next_power_of_2(num_blocks),
        ENTRIES=triton.next_power_of_2(num_blocks * count),
        num_warps=4,
    )
    return Drawn(values, tokens, peak)
