"""What a pass chose, fed to the next one in one kernel: drafted tokens, which are noted, and plain ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from .quick import quick


@quick
@triton.jit(do_not_specialize=["num_rows", "num_depths", "num_path"])
def _feed(
    candidates_ptr, confidence_ptr, wants_ptr, drafted_ptr, progress_ptr,
    tokens_ptr, starts_ptr, indices_ptr, depth_ptr, active_ptr, caps_ptr, path_ptr, on_path_ptr,
    num_rows, num_depths, num_path,
    PAD: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    mask = row < num_rows
    depth = tl.load(depth_ptr + row, mask=mask, other=0)
    active = tl.load(active_ptr + row, mask=mask, other=0) != 0
    place = drafted_ptr + (((depth - 1) % num_depths) * num_rows + row) * (COUNT + 1)
    for rank in tl.static_range(COUNT):
        candidate = tl.load(candidates_ptr + row * COUNT + rank, mask=mask, other=PAD)
        tl.store(place + rank, tl.where(active, candidate, PAD), mask=mask)
    confidence = tl.load(confidence_ptr + row, mask=mask, other=0.0).to(tl.float64)
    tl.store(place + COUNT, confidence.to(tl.int64, bitcast=True), mask=mask)

    first = tl.load(candidates_ptr + row * COUNT, mask=mask, other=PAD)
    is_fed = active & (first != PAD)
    wants_more = tl.load(wants_ptr + row, mask=mask, other=0) != 0
    goes_on = is_fed & wants_more & (tl.load(caps_ptr + row, mask=mask, other=0) > depth)
    tl.store(tokens_ptr + row, first, mask=mask & is_fed)
    tl.store(path_ptr + row * num_path + depth, first, mask=mask & is_fed & (depth < num_path))
    tl.store(on_path_ptr + row, tl.load(on_path_ptr + row, mask=mask, other=0) * 2 + 1, mask=mask & (depth < num_path))
    tl.store(starts_ptr + row, tl.load(starts_ptr + row, mask=mask, other=0) + 1, mask=mask)
    tl.store(indices_ptr + row, tl.load(indices_ptr + row, mask=mask, other=0) + 1, mask=mask)
    tl.store(depth_ptr + row, depth + 1, mask=mask)
    tl.store(active_ptr + row, goes_on.to(tl.int64), mask=mask)
    progress = tl.max(depth, axis=0) * DEPTH + tl.sum(goes_on.to(tl.int64), axis=0)
    tl.debug_barrier()  # all of it is there before the host, which may own the memory, reads the word that it is
    tl.atomic_xchg(progress_ptr, progress, sem="release", scope="sys")


def feed(
    candidates: torch.Tensor,
    confidence: torch.Tensor,
    wants_more: torch.Tensor,
    drafted: torch.Tensor,
    progress: torch.Tensor,
    known: Mapping[str, torch.Tensor],
    pad: int,
    depth_unit: int,
) -> None:
    """As `models/gpu/draft.feed`, which says what happens."""
    num_rows, count = candidates.shape
    kernel: Any = _feed
    kernel[(1,)](
        candidates.contiguous(),
        confidence.contiguous(),
        wants_more.contiguous(),
        drafted,
        progress,
        *(known[name] for name in ("tokens", "starts", "indices", "depth", "active", "caps", "path", "on_path")),
        num_rows,
        drafted.shape[0],
        known["path"].shape[1],
        PAD=pad,
        COUNT=count,
        ROWS=triton.next_power_of_2(num_rows),
        DEPTH=depth_unit,
        num_warps=1,
    )


@quick
@triton.jit(do_not_specialize=["num_settings"])
def _advance(
    choices_ptr, header_ptr, tokens_ptr, starts_ptr, indices_ptr, round_ptr, num_settings, num_rows, ROWS: tl.constexpr
):
    row = tl.arange(0, ROWS)
    mask = row < num_rows
    choice = tl.load(choices_ptr + row, mask=mask & (row < tl.load(header_ptr + 4)), other=0)
    tl.store(tokens_ptr + row, choice, mask=mask)
    tl.store(starts_ptr + row, tl.load(starts_ptr + row, mask=mask) + 1, mask=mask)
    tl.store(indices_ptr + row, tl.load(indices_ptr + row, mask=mask) + 1, mask=mask)
    rounds = round_ptr + row * num_settings
    tl.store(rounds, tl.load(rounds, mask=mask) + 1, mask=mask)


def advance(choices: torch.Tensor, numbers: Sequence[torch.Tensor], rounds: torch.Tensor) -> None:
    """As `models/gpu/plain.advance`, which says what happens. `numbers`: header, tokens, starts and indices."""
    rows = len(choices)
    kernel: Any = _advance
    kernel[(1,)](choices, *numbers, rounds, rounds.stride(0), rows, ROWS=triton.next_power_of_2(rows), num_warps=1)
