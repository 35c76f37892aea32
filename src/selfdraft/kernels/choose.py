"""From scores to choices, for all columns of a pass at once: rules, temperature, truncation, noise, the best of it.

Scores come in lines: `passes.Columns` says which column a line belongs to. `choose_reference` says the same in torch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..passes import SETTINGS, WORD_COUNT, WORD_EOS, WORD_PROMPT, ChoiceKind, Columns, Drawn
from . import launch
from .launch import let_next_start, wait
from .quick import quick
from .truncate import BLOCK, WARPS, Truncation, is_kept, loaded, real, setting, truncation, warmed

_ROUND, _TEMPERATURE = (tl.constexpr(SETTINGS.index(name)) for name in ("round", "temperature"))
_REPETITION, _PRESENCE, _FREQUENCY, _MIN_NEW = (
    tl.constexpr(SETTINGS.index(name)) for name in ("repetition", "presence", "frequency", "min_new_tokens")
)
_COUNT_BITS, _PROMPT_BIT, _EOS_BIT = tl.constexpr(WORD_COUNT), tl.constexpr(WORD_PROMPT), tl.constexpr(WORD_EOS)


# ------------------------------------------------------------------------------------------------------------- rules


@quick
@triton.jit(do_not_specialize=["size", "width", "num_words", "num_path", "num_mask_words"])
def _rules(
    scores_ptr, out_ptr, settings_ptr, indices_ptr, depths_ptr, path_ptr, on_path_ptr, rows_ptr, places_ptr,
    words_ptr, biases_ptr, allowed_ptr, size, width, num_words, num_path, num_mask_words,
    HAS_RULES: tl.constexpr, HAS_BIASES: tl.constexpr, IS_MASKED: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    let_next_start(PDL)
    wait(PDL)
    line = tl.program_id(1)
    column = tl.load(places_ptr + line)
    row = column // width
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = token < size
    x = loaded(scores_ptr, line, token, size)
    if HAS_RULES:
        place = tl.load(rows_ptr + row) * num_words + token
        word = tl.load(words_ptr + place, mask=is_token, other=0)
        count = word & _COUNT_BITS
        on_path, first_index = tl.load(on_path_ptr + column), tl.load(indices_ptr + row)
        for index in range(num_path):
            # At index 0 the pass's first token is the prompt's last.
            if (((on_path >> index) & 1) == 1) & ((index > 0) | (first_index > 0)):
                count += (token == tl.load(path_ptr + row * num_path + index)).to(tl.int32)
        is_early = first_index + tl.load(depths_ptr + column) < setting(settings_ptr, row, _MIN_NEW)
        x = tl.where(is_early & ((word & _EOS_BIT) != 0), float("-inf"), x)
        if HAS_BIASES:
            x += tl.load(biases_ptr + place, mask=is_token, other=0.0)
        penalty = real(settings_ptr, row, _REPETITION).to(tl.float32)
        is_seen = (count > 0) | ((word & _PROMPT_BIT) != 0)
        x = tl.where(is_seen, tl.where(x < 0, x * penalty, tl.div_rn(x, penalty)), x)
        x -= real(settings_ptr, row, _FREQUENCY).to(tl.float32) * count.to(tl.float32)
        x -= real(settings_ptr, row, _PRESENCE).to(tl.float32) * (count > 0).to(tl.float32)
    if IS_MASKED:
        bits = tl.load(allowed_ptr + column * num_mask_words + token // 32, mask=is_token, other=0)
        x = tl.where(((bits >> (token % 32)) & 1) == 1, x, float("-inf"))
    tl.store(out_ptr + line.to(tl.int64) * size + token, x, mask=is_token)


def processed(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """Raw scores [lines, vocabulary] after the rules, float32; without rules as they are."""
    if not (kind.has_rules or kind.is_masked):
        return scores
    num_lines, size = scores.shape
    out = torch.empty(num_lines, size, dtype=torch.float32, device=scores.device)
    kernel: Any = _rules
    optional = (scores if part is None else part for part in (columns.words, columns.biases, columns.allowed))
    kernel[(triton.cdiv(size, BLOCK), num_lines)](
        *(scores.contiguous(), out, columns.settings, columns.indices, columns.depths, columns.path, columns.on_path),
        *(columns.rows, columns.places, *optional, size, columns.depths.shape[1]),
        1 if columns.words is None else columns.words.shape[1],
        columns.path.shape[1],
        0 if columns.allowed is None else columns.allowed.shape[-1],
        HAS_RULES=kind.has_rules,
        HAS_BIASES=columns.biases is not None,
        IS_MASKED=kind.is_masked,
        BLOCK=BLOCK,
        num_warps=WARPS,
        **launch.options(scores.device),
    )
    return out


# ------------------------------------------------------------------------------------------------------------ drawing


@triton.jit
def _mix(bits):
    """As `engine/sampling._mix`, in 32 bits."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _key(settings_ptr, row, stream: tl.constexpr, index, SALT: tl.constexpr):
    key = _mix(setting(settings_ptr, row, stream).to(tl.uint32) ^ index.to(tl.uint32))
    if SALT > 0:
        key = _mix(key ^ setting(settings_ptr, row, _ROUND).to(tl.uint32))
        key = _mix(key ^ SALT)
    return key


@triton.jit
def _bits(settings_ptr, row, index, number, SALT: tl.constexpr):
    first, second = _key(settings_ptr, row, 0, index, SALT), _key(settings_ptr, row, 1, index, SALT)
    return _mix(_mix(number.to(tl.uint32) ^ first) ^ second)


@triton.jit
def uniform(settings_ptr, row, index, number, SALT: tl.constexpr):
    """As `noise.uniform_at`."""
    return (_bits(settings_ptr, row, index, number, SALT).to(tl.float64) + 0.5) / 4294967296.0


@triton.jit
def _rough_gumbel(bits):
    """Noise from its bits in float32, wrong by less than 1e-4.

    `-log(u)` is wrong by 1e-5 of itself at most: near u = 1 it is a series in 1 - u, which is known to float32's last
    bit (left out: a fifth of its fourth power); elsewhere it is 0.06 or more, and logarithms are right to 1e-6.
    """
    u = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = ((bits ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = rest * (1.0 + rest * (0.5 + rest * (0.33333333 + rest * 0.25)))
    return -tl.log(tl.where(rest < 0.0625, series, -tl.log(u)))


@triton.jit
def _winner(
    warm, noise, scores_ptr, settings_ptr, row, line, index, token, first_token, is_drawn, size, SALT: tl.constexpr
):  # fmt: skip
    """The largest value, float64, and its token: the lower of equal ones.

    Values are looked at closely where the rough ones, in float32 beside the best score, are near the highest. These are
    wrong by 2e-4 at most where it matters, so 1e-3 is enough; 27 below the best score no noise helps. (Of equal scores
    above 1e12 any may win: noise is lost in them.)
    """
    shift = tl.minimum(tl.maximum(tl.max(warm, axis=0), -3.4028234663852886e38), 3.4028234663852886e38)
    rough = warm - tl.where(is_drawn, shift, 0.0) + noise
    contends = (rough >= tl.max(rough, axis=0) - tl.where(is_drawn, 1e-3, 0.0)) & (rough > float("-inf"))
    contender = tl.min(tl.where(contends, token, 2147483647), axis=0)
    best_value, winner = tl.full([], float("-inf"), tl.float64), first_token
    while contender < 2147483647:
        value = warmed(loaded(scores_ptr, line, contender, size), settings_ptr, row).to(tl.float64)
        u = uniform(settings_ptr, row, index, contender, SALT)
        value += tl.where(is_drawn, -tl.log(-tl.log(u)), 0.0)
        winner = tl.where(value > best_value, contender, winner)
        best_value = tl.maximum(best_value, value)
        following = tl.min(tl.where(contends & (token > contender), token, 2147483647), axis=0)
        contender = tl.where(is_drawn, following, 2147483647)  # without noise the first is as good as the others
    return best_value, winner


@quick
@triton.jit(do_not_specialize=["width"])
def _draw_blocks(
    scores_ptr, settings_ptr, indices_ptr, depths_ptr, places_ptr, best_ptr, least_ptr,
    values_ptr, tokens_ptr, softmax_ptr, size, width, COUNT: tl.constexpr, SALT: tl.constexpr,
    HAS_TOPS: tl.constexpr, HAS_MIN_P: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The winners of one block, and what its part of the softmax before temperature comes to."""
    let_next_start(PDL)
    wait(PDL)
    block, line, num_blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    column = tl.load(places_ptr + line)
    row = column // width
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = loaded(scores_ptr, line, token, size)
    place, highest = line * num_blocks + block, tl.maximum(tl.max(x, axis=0), -1e30)
    tl.store(softmax_ptr + place * 2, highest)
    tl.store(softmax_ptr + place * 2 + 1, tl.sum(tl.exp(x - highest), axis=0))

    is_drawn = real(settings_ptr, row, _TEMPERATURE) > 0
    index = tl.load(indices_ptr + row) + tl.load(depths_ptr + column)
    warm = warmed(x, settings_ptr, row)
    keeps = is_kept(x, warm, settings_ptr, row, line, best_ptr, least_ptr, HAS_TOPS, HAS_MIN_P)
    noise = tl.where(keeps, 0.0, 1.0)  # not plain zeros: these would lie in other registers than the scores
    # Of a truncated distribution, most blocks hold nothing.
    if is_drawn & (tl.max(keeps.to(tl.int32), axis=0) > 0):
        noise = _rough_gumbel(_bits(settings_ptr, row, index, token, SALT))
    warm = tl.where(keeps, warm, float("-inf"))
    for rank in tl.static_range(COUNT):
        best_value, winner = _winner(
            warm, noise, scores_ptr, settings_ptr, row, line, index, token, block * BLOCK, is_drawn, size, SALT
        )  # fmt: skip
        tl.store(values_ptr + place * COUNT + rank, best_value)
        tl.store(tokens_ptr + place * COUNT + rank, winner.to(tl.int64))
        warm = tl.where(token == winner, float("-inf"), warm)


@quick
@triton.jit
def _draw_lines(
    values_ptr, tokens_ptr, softmax_ptr, best_ptr, choice_ptr, peak_ptr, num_blocks,
    COUNT: tl.constexpr, BLOCKS: tl.constexpr, ENTRIES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What the blocks of a line come to."""
    let_next_start(PDL)
    wait(PDL)
    line = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    source = softmax_ptr + (line * num_blocks + block) * 2
    best = tl.load(source, mask=block < num_blocks, other=-1e30)
    sums = tl.load(source + 1, mask=block < num_blocks, other=0.0)
    tl.store(peak_ptr + line, 1.0 / tl.sum(sums * tl.exp(best - tl.max(best, axis=0)), axis=0))
    entry = tl.arange(0, ENTRIES)
    is_entry = entry < num_blocks * COUNT
    value = tl.load(values_ptr + line * num_blocks * COUNT + entry, mask=is_entry, other=float("-inf"))
    token = tl.load(tokens_ptr + line * num_blocks * COUNT + entry, mask=is_entry, other=9223372036854775807)
    for rank in tl.static_range(COUNT):
        best_value = tl.max(value, axis=0)
        winner = tl.min(tl.where(value == best_value, token, 9223372036854775807), axis=0)
        tl.store(best_ptr + line * COUNT + rank, best_value)
        tl.store(choice_ptr + line * COUNT + rank, winner)
        is_winner = token == winner
        value = tl.where(is_winner, float("-inf"), value)
        token = tl.where(is_winner, 9223372036854775807, token)


def draw(scores: torch.Tensor, columns: Columns, kind: ChoiceKind, count: int) -> Drawn:
    """The `count` winners of scores [lines, vocabulary] after the rules; of equal ones the lower token is first."""
    scores = scores.contiguous()
    num_lines, size = scores.shape
    num_blocks, width, device = triton.cdiv(size, BLOCK), columns.depths.shape[1], scores.device
    truncated = Truncation(columns.settings, columns.settings)  # nothing is read there
    if kind.has_top_k or kind.has_top_p or kind.has_min_p:
        truncated = truncation(scores, columns, kind)
    block_values = torch.empty(num_lines, num_blocks, count, dtype=torch.float64, device=device)
    block_tokens = torch.empty(num_lines, num_blocks, count, dtype=torch.int64, device=device)
    softmax = torch.empty(num_lines, num_blocks, 2, dtype=torch.float32, device=device)
    block_kernel: Any = _draw_blocks
    block_kernel[(num_blocks, num_lines)](
        *(scores, columns.settings, columns.indices, columns.depths, columns.places, *truncated),
        *(block_values, block_tokens, softmax, size, width),
        COUNT=count,
        SALT=kind.salt,
        HAS_TOPS=kind.has_top_k or kind.has_top_p,
        HAS_MIN_P=kind.has_min_p,
        BLOCK=BLOCK,
        num_warps=WARPS,
        **launch.options(scores.device),
    )
    values = torch.empty(num_lines, count, dtype=torch.float64, device=device)
    tokens = torch.empty(num_lines, count, dtype=torch.int64, device=device)
    peak = torch.empty(num_lines, dtype=torch.float32, device=device)
    line_kernel: Any = _draw_lines
    line_kernel[(num_lines,)](
        *(block_values, block_tokens, softmax, values, tokens, peak, num_blocks),
        COUNT=count,
        BLOCKS=triton.next_power_of_2(num_blocks),
        ENTRIES=triton.next_power_of_2(num_blocks * count),
        num_warps=4,
        **launch.options(device),
    )
    return Drawn(values, tokens, peak)
