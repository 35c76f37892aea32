"""What a verification keeps, found on the device: the walk down each row's tree, and the kept keys and values moved up.

`models/gpu/accept.py` says the same in torch, and why the next draft is fed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ..passes import SETTINGS
from .attention import planes
from .quick import quick

_NUM_SETTINGS, _ROUND, _NUM_NODES = (
    tl.constexpr(number) for number in (len(SETTINGS), SETTINGS.index("round"), SETTINGS.index("num_nodes"))
)
_MOVED = 16


@triton.jit
def _at(values, column, place):
    """The value of one column."""
    return tl.sum(tl.where(column == place, values, 0), axis=0)


@triton.jit
def _child(tokens, sees, column, parent, token, num_nodes):
    """The column that continues `parent` with this token, 0: none."""
    seen = _at(sees, column, parent) | (tl.full(column.shape, 1, tl.int64) << column)
    is_child = (column > parent) & (column <= num_nodes) & (sees == seen) & (tokens == token)
    return tl.max(tl.where(is_child, column, 0), axis=0)


@quick
@triton.jit(do_not_specialize=["width", "num_path"])
def _accept(
    tokens_ptr, sees_ptr, choices_ptr, starts_ptr, indices_ptr, settings_ptr, header_ptr, verdicts_ptr,
    next_tokens_ptr, next_starts_ptr, next_indices_ptr, next_settings_ptr,
    depth_ptr, active_ptr, caps_ptr, rooms_ptr, path_ptr, on_path_ptr, width, num_path,
    IS_TESTED: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    verdicts_ptr += row * (width + 1)
    if not IS_TESTED:
        column = tl.arange(0, WIDTHS)
        place, is_column = row * width + column, column < width
        tokens = tl.load(tokens_ptr + place, mask=is_column, other=0)
        sees = tl.load(sees_ptr + place, mask=is_column, other=0)
        choices = tl.load(choices_ptr + place, mask=is_column, other=0)
        num_nodes = tl.load(settings_ptr + row * _NUM_SETTINGS + _NUM_NODES)
        kept, token = row * 0, _at(choices, column, 0)
        child = _child(tokens, sees, column, row * 0, token, num_nodes)
        while child > 0:
            kept += 1
            tl.store(verdicts_ptr + kept, child.to(tl.int64))
            token = _at(choices, column, child)
            child = _child(tokens, sees, column, child, token, num_nodes)
        tl.store(verdicts_ptr, kept.to(tl.int64))
        tl.store(verdicts_ptr + width, token)
    else:
        kept, token = tl.load(verdicts_ptr).to(tl.int32), tl.load(verdicts_ptr + width)

    is_row = row < tl.load(header_ptr + 4)
    emitted = tl.where(is_row, kept + 1, 0).to(tl.int64)
    token = tl.where(is_row, token, 0)
    tl.store(next_tokens_ptr + row, token)
    tl.store(path_ptr + row * num_path, token)
    tl.store(on_path_ptr + row, tl.full([], 1, tl.int64))
    tl.store(depth_ptr + row, tl.full([], 1, tl.int64))
    tl.store(next_starts_ptr + row, tl.load(starts_ptr + row) + emitted)
    tl.store(next_indices_ptr + row, tl.load(indices_ptr + row) + emitted)
    round_ptr = next_settings_ptr + row * _NUM_SETTINGS + _ROUND
    tl.store(round_ptr, tl.load(round_ptr) + is_row.to(tl.int64))
    rooms = tl.load(rooms_ptr + row) - emitted
    caps = tl.minimum(tl.load(caps_ptr + row), rooms)
    tl.store(rooms_ptr + row, rooms)
    tl.store(caps_ptr + row, caps)
    tl.store(active_ptr + row, (caps > 0).to(tl.int64))


@quick
@triton.jit(do_not_specialize=["width"])
def _compact(
    header_ptr, starts_ptr, verdicts_ptr, storage_ptr, width,
    NUM_KV: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, MOVED: tl.constexpr,
):  # fmt: skip
    """`storage` only tells the type: the cache is where the header says."""
    layer, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    verdicts_ptr += row * (width + 1)
    kept = tl.where(row < tl.load(header_ptr + 4), tl.load(verdicts_ptr), 0).to(tl.int32)
    start, dims = tl.load(starts_ptr + row), tl.arange(0, DIMS)[None, :]
    keys, values = planes(header_ptr, storage_ptr, layer, row, head, NUM_KV, DIM)
    for begin in range(1, kept + 1, MOVED):
        place = begin + tl.arange(0, MOVED)
        column = tl.load(verdicts_ptr + place, mask=place <= kept, other=0)
        is_moved = ((place <= kept) & (column != place))[:, None] & (dims < DIM)
        source, target = (start + column)[:, None] * DIM + dims, (start + place)[:, None] * DIM + dims
        key = tl.load(keys + source, mask=is_moved, other=0.0)
        value = tl.load(values + source, mask=is_moved, other=0.0)
        tl.debug_barrier()  # no source is written before all are read; later ones stand after these targets
        tl.store(keys + target, key, mask=is_moved)
        tl.store(values + target, value, mask=is_moved)


def accept(
    verified: Mapping[str, torch.Tensor],
    choices: torch.Tensor | None,
    verdicts: torch.Tensor,
    draft: Mapping[str, torch.Tensor],
) -> None:
    """As `models/gpu/accept.accept`."""
    num_rows, width = verified["tokens"].shape
    inputs = ("tokens", "sees"), ("starts", "indices", "settings", "header")
    outputs = ("tokens", "starts", "indices", "settings", "depth", "active", "caps", "rooms", "path", "on_path")
    kernel: Any = _accept
    kernel[(num_rows,)](
        *(verified[name] for name in inputs[0]),
        verdicts if choices is None else choices,
        *(verified[name] for name in inputs[1]),
        verdicts,
        *(draft[name] for name in outputs),
        width,
        draft["path"].shape[1],
        IS_TESTED=choices is None,
        WIDTHS=64,
        num_warps=2,
    )


def compact(verified: Mapping[str, torch.Tensor], verdicts: torch.Tensor, storage: torch.Tensor) -> None:
    """As `models/gpu/accept.compact`, in the cache of the header, which is like `storage`."""
    num_layers, _, _, num_heads, _, dim = storage.shape
    num_rows, width = verified["tokens"].shape
    kernel: Any = _compact
    kernel[(num_layers, num_heads, num_rows)](
        *(verified["header"], verified["starts"], verdicts, storage, width),
        NUM_KV=num_heads,
        DIM=dim,
        DIMS=triton.next_power_of_2(dim),
        MOVED=_MOVED,
        num_warps=4,
    )
