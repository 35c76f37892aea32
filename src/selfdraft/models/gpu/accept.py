"""What a verification keeps, found on the device, so that the next draft can begin before the host has read it.

The host walks each row's tree itself (`engine/accept.py`); both go by the same choices, so both come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels.reject_reference import parents_of
from ...kernels.top import runs_triton
from ...passes import SETTINGS
from ...types import SkipSet
from ..cache import SlotCache
from .forward import addresses_of
from .graphs import GraphKey, Graphs, Recorder, Recording
from .history import History
from .memory import DraftBuffers, PassBuffers

NUM_NODES, ROUND = SETTINGS.index("num_nodes"), SETTINGS.index("round")


def accept(verified: PassBuffers, choices: torch.Tensor | None, verdicts: torch.Tensor, draft: DraftBuffers) -> None:
    """Make `draft`, which holds the numbers of the last draft, the one after what was kept.

    It gets what `send_task` would write if nothing but the text had changed. `verdicts` [rows, 1 + width], see
    `kernels/top.reject`: found by walking down each row's tree along its `choices` [rows, width], unless drafts were
    tested (None): then they are there.
    """
    if choices is not None:
        _walk(verified, choices, verdicts)
    known, is_row = draft.tensors, verified.is_row[:, 0]
    emitted = torch.where(is_row, verdicts[:, 0] + 1, 0)
    draft.tokens.copy_(torch.where(verified.is_row, verdicts[:, verified.width :], 0))
    known["path"][:, :1].copy_(draft.tokens)
    draft.starts.copy_(verified.starts + emitted)
    draft.indices.copy_(verified.indices + emitted)
    draft.settings[:, ROUND].add_(is_row)
    known["rooms"].sub_(emitted)
    known["caps"].copy_(torch.minimum(known["caps"], known["rooms"]))
    known["active"].copy_(known["caps"] > 0)
    known["depth"].fill_(1)
    known["on_path"].fill_(1)


def _walk(verified: PassBuffers, choices: torch.Tensor, verdicts: torch.Tensor) -> None:
    columns = torch.arange(choices.shape[1], device=choices.device)
    is_right = (verified.tokens == choices.gather(1, parents_of(verified.sees))) | (columns == 0)
    is_right &= columns <= verified.settings[:, NUM_NODES : NUM_NODES + 1]
    is_seen = (verified.sees[:, :, None] >> columns & 1).bool()
    is_kept = is_right & ~(is_seen & ~is_right[:, None]).any(-1)
    verdicts[:, :-1].copy_(torch.where(is_kept, columns, len(columns)).sort(1).values)
    verdicts[:, :1].copy_(is_kept.sum(1, keepdim=True) - 1)
    verdicts[:, -1:].copy_(choices.gather(1, torch.where(is_kept, columns, 0).amax(1, keepdim=True)))


def compact(verified: PassBuffers, verdicts: torch.Tensor, cache: SlotCache, rows: Sequence[int]) -> None:
    """The keys and values of kept columns move to the slots right after column 0's, as `SlotCache.move` does it."""
    kept = kept_columns(verified, verdicts)
    columns = torch.arange(kept.shape[1], device=kept.device)
    sources = torch.where(kept < 0, columns, kept)
    for number, row in enumerate(rows):
        start = verified.starts[number]
        for store in cache.stores:
            slots = store.select(-4, row)
            slots.index_copy_(-2, start + columns, slots.index_select(-2, start + sources[number]))


def kept_columns(verified: PassBuffers, verdicts: torch.Tensor) -> torch.Tensor:
    """[rows, width]: column 0 and those kept after it, then -1; of what only pads the rows, -1."""
    columns = torch.arange(verified.width, device=verdicts.device)
    is_kept = (columns <= verdicts[:, :1]) & verified.is_row
    return torch.where(is_kept, torch.where(columns == 0, 0, verdicts[:, :-1]), -1)


def remember(verified: PassBuffers, verdicts: torch.Tensor, history: History) -> None:
    """All tokens of the texts but the last; a prompt's are known."""
    columns = kept_columns(verified, verdicts)
    is_generated = (columns > 0) | ((columns == 0) & (verified.indices > 0)[:, None])
    history.add_tokens(verified.header[8:], verified.tokens.gather(1, columns.clamp(min=0)), is_generated)


def follow(
    tokens: Sequence[int], sees: Sequence[int] | None, num_nodes: int, choices: Sequence[int]
) -> tuple[int, int]:
    """The same walk of one row on the host: how many tokens it emits, and the last. `sees` None: a chain."""
    at, num_emitted = 0, 1
    for column in range(1, num_nodes + 1):
        is_child = at == column - 1 if sees is None else sees[column] == sees[at] | 1 << column
        if is_child and tokens[column] == choices[at]:
            at, num_emitted = column, num_emitted + 1
    return num_emitted, choices[at]


class Accepting:
    """Recordings that accept, compact, and feed the next draft."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def __call__(
        self,
        verified: PassBuffers,
        choices: torch.Tensor | None,
        verdicts: torch.Tensor,
        draft: DraftBuffers,
        history: History | None,
        cache: SlotCache,
        rows: Sequence[int],
    ) -> Recording:
        storage = cache.storage
        is_fused = storage is not None and runs_triton(verdicts.device)

        def run() -> None:
            if is_fused and storage is not None:
                from ...kernels import accept as kernels

                kernels.accept(verified.tensors, choices, verdicts, draft.tensors)
                kernels.compact(verified.tensors, verdicts, storage)
            else:
                accept(verified, choices, verdicts, draft)
                compact(verified, verdicts, cache, rows)
            if history is not None:
                remember(verified, verdicts, history)

        bound_to = () if is_fused else addresses_of(cache, rows)
        bound_to += () if history is None else history.addresses
        kind = ("accept", choices is None, draft.data.data_ptr())
        key = GraphKey(kind, None, verified.rows, verified.width, 0, SkipSet(), (), bound_to)
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
