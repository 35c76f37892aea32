"""What a verification keeps, found on the device, so that the next draft can begin before the host has read it.

The host walks each row's tree itself (`engine/accept.py`); both go by the same choices, so both come to the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from ...kernels.reject_reference import parents_of
from ...kernels.top import runs_triton
from ...passes import SETTINGS
from ...types import SkipSet
from ..cache import SlotCache
from .forward import addresses_of
from .graphs import GraphKey, Graphs, Recorder, Recording
from .memory import Device, DraftBuffers, PassBuffers

NUM_NODES, ROUND = SETTINGS.index("num_nodes"), SETTINGS.index("round")


def accept(verified: PassBuffers, choices: torch.Tensor, kept: torch.Tensor, draft: DraftBuffers) -> None:
    """Walk down each row's tree along its `choices` [rows, width], and make `draft` the one after what was kept.

    `kept` [rows, width]: how many columns, then which. `draft` holds the numbers of the last draft; it gets what
    `send_task` would write if nothing but the text had changed.
    """
    columns, known = torch.arange(choices.shape[1], device=choices.device), draft.tensors
    is_right = (verified.tokens == choices.gather(1, parents_of(verified.sees))) | (columns == 0)
    is_right &= columns <= verified.settings[:, NUM_NODES : NUM_NODES + 1]
    is_seen = (verified.sees[:, :, None] >> columns & 1).bool()
    is_kept = is_right & ~(is_seen & ~is_right[:, None]).any(-1)
    kept.copy_(torch.where(is_kept, columns, len(columns)).sort(1).values)
    kept[:, :1].copy_(is_kept.sum(1, keepdim=True) - 1)

    is_row = torch.arange(len(kept), device=kept.device) < verified.header[4]
    emitted = torch.where(is_row, kept[:, 0] + 1, 0)
    token = choices.gather(1, torch.where(is_kept, columns, 0).amax(1, keepdim=True))
    draft.tokens.copy_(torch.where(is_row[:, None], token, 0))
    known["path"][:, :1].copy_(draft.tokens)
    draft.starts.copy_(verified.starts + emitted)
    draft.indices.copy_(verified.indices + emitted)
    draft.settings[:, ROUND].add_(is_row)
    known["rooms"].sub_(emitted)
    known["caps"].copy_(torch.minimum(known["caps"], known["rooms"]))
    known["active"].copy_(known["caps"] > 0)
    known["depth"].fill_(1)
    known["on_path"].fill_(1)


def compact(verified: PassBuffers, kept: torch.Tensor, cache: SlotCache, first_row: int) -> None:
    """The keys and values of kept columns move to the slots right after column 0's, as `SlotCache.move` does it."""
    columns = torch.arange(kept.shape[1], device=kept.device)
    sources = torch.where((columns > 0) & (columns <= kept[:, :1]), kept, columns)
    for row in range(min(len(kept), cache.num_rows_allocated - first_row)):
        start = verified.starts[row]
        for store in cache.stores:
            slots = store.select(-4, first_row + row)
            slots.index_copy_(-2, start + columns, slots.index_select(-2, start + sources[row]))


def follow(
    tokens: Sequence[int], sees: Sequence[int] | None, num_nodes: int, choices: Sequence[int]
) -> tuple[int, int]:
    """The same walk of one row on the host: how many columns it keeps, and its next token. `sees` None: a chain."""
    at, num_kept = 0, 0
    for column in range(1, num_nodes + 1):
        is_child = at == column - 1 if sees is None else sees[column] == sees[at] | 1 << column
        if is_child and tokens[column] == choices[at]:
            at, num_kept = column, num_kept + 1
    return num_kept, choices[at]


class Accepting:
    """Recordings that accept, compact, and feed the next draft."""

    def __init__(self, device: Device, graphs: Graphs) -> None:
        self._graphs = graphs
        self._kept = functools.cache(lambda rows, width: device.zeros(rows, width))

    def __call__(
        self, verified: PassBuffers, choices: torch.Tensor, draft: DraftBuffers, cache: SlotCache, first_row: int
    ) -> Recording:
        (rows, width), storage = choices.shape, cache.storage
        kept = self._kept(rows, width)
        is_fused = storage is not None and runs_triton(choices.device)

        def run() -> None:
            if is_fused and storage is not None:
                from ...kernels import accept as kernels

                kernels.accept(verified.tensors, choices, kept, draft.tensors)
                kernels.compact(verified.tensors, kept, storage)
            else:
                accept(verified, choices, kept, draft)
                compact(verified, kept, cache, first_row)

        bound_to = () if is_fused else addresses_of(cache, first_row)
        key = GraphKey(("accept", draft.data.data_ptr()), None, rows, width, 0, SkipSet(), (), bound_to)
        return self._graphs.get(key, lambda record: _record_idle(record, run, verified, draft))


def _record_idle(record: Recorder, run: Callable[[], None], verified: PassBuffers, draft: DraftBuffers) -> Recording:
    """Of no row meanwhile: a cache that is compacted twice is wrong."""
    saved = [(buffers.data, buffers.data.clone()) for buffers in (verified, draft)]
    verified.data.zero_()
    try:
        return record(run)[0]
    finally:
        for data, numbers in saved:
            data.copy_(numbers)
