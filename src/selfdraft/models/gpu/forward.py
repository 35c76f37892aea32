"""What a recorded pass computes: called while it is recorded, on tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from ...errors import SelfTestError
from ...passes import PassRequest
from ...types import SkipSet
from ..cache import SlotCache
from ..checks import relative_error, tolerance_of
from ..decoder import Decoder
from ..placement import Placement, has_gaps
from ..sublayer import Halfway, SubLayer
from .graphs import padded_tokens, padded_width
from .memory import MAX_WIDTH, Device, PassBuffers, power_of_two

_PROOF_SLOTS = 64
HEAD_START = 10
"""A pass begins with one of this many parts of its sub-layers: enough for the host to answer, little to waste."""


def head_start(sublayers: Sequence[SubLayer]) -> int:
    """How many of them `begin` runs."""
    return len(sublayers) // HEAD_START


class Forward(Hashable, Protocol):
    """One pass in two parts, so that a draft can begin the next token before it is known whether it is wanted.

    Nothing may be read on the host. `finish` may be called several times with one state, if what `begin` did is done
    again before each: it may use up the state's tensors.
    """

    holds_cache: bool  # whether a recording is bound to the cache's tensors, or finds them through `buffers.header`
    shared_block: int  # slots of a common beginning that it reads together where they are stored; 0: in the cache only
    packs: bool  # whether it computes `buffers.places` alone, or all columns
    max_tokens: int  # it is meant for

    def sorts(self, skip: SkipSet) -> Hashable:
        """Of the sub-layers that run: those of one sort run the same kernels."""
        ...

    def begin(
        self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet, capture: Sequence[str] = ()
    ) -> Any:
        """The embedding and the first few sub-layers; slots 0 to `end - 1` are read. `finish` returns `capture`.

        One that holds the cache works in the rows that `buffers.host["header"]` names now.
        """
        ...

    def finish(self, state: Any, vocabulary: int | None = None) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Scores [tokens, vocabulary], or of the first `vocabulary` only, and captured states [tokens, hidden]."""
        ...

    def settle(self) -> None:
        """Called after wide eager passes, if the device needs something before recordings run well."""
        ...


def padded_rows(forward: Forward, num_rows: int) -> int:
    return num_rows if forward.holds_cache else power_of_two(num_rows)


class PassSize(NamedTuple):
    """Of a recording: `tokens` of rows x width columns are computed."""

    rows: int
    width: int
    tokens: int

    @classmethod
    def of(cls, forward: Forward, widths: Sequence[int]) -> PassSize:
        """The one for rows of these numbers of columns. Packed ones cost nothing: fewer widths are fewer recordings."""
        rows, width = padded_rows(forward, len(widths)), padded_width(max(widths))
        if forward.packs and rows > 1:
            width = min(power_of_two(width), MAX_WIDTH)
        tokens = rows * width
        return cls(rows, width, min(tokens, padded_tokens(sum(widths))) if forward.packs else tokens)


def cache_key(forward: Forward, cache: SlotCache, rows: Sequence[int]) -> tuple[int, ...]:
    """What of a cache its recordings freeze."""
    return addresses_of(cache, rows) if forward.holds_cache else ()


def addresses_of(cache: SlotCache, rows: Sequence[int]) -> tuple[int, ...]:
    """What holds these rows of the tensors of a cache depends on."""
    addresses = (store.data_ptr() for store in cache.stores)
    return (*addresses, cache.num_slots, cache.num_rows_allocated, *rows)


class ModuleForward:
    """The decoder's own sub-layers: what the eager runner computes, for any family."""

    holds_cache, packs = True, False
    max_tokens, shared_block = 512, 0

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def sorts(self, skip: SkipSet) -> frozenset[str]:
        return frozenset(part.name[0] for part in self._decoder.active_sublayers(skip))

    def begin(
        self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet, capture: Sequence[str] = ()
    ) -> tuple[Halfway, Sequence[str]]:
        header = buffers.host["header"]
        rows = header[8 : 8 + header[4]].tolist()
        band = buffers.header[8:] if has_gaps(rows) else slice(rows[0], rows[0] + buffers.rows)
        placement = Placement.recorded(buffers.starts, buffers.depths, buffers.sees, end, band)
        num_first = head_start(self._decoder.active_sublayers(skip))
        return self._decoder.begin(buffers.tokens, placement, cache, skip=skip, num_sublayers=num_first), capture

    def finish(
        self, state: tuple[Halfway, Sequence[str]], vocabulary: int | None = None
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        halfway, capture = state
        output = self._decoder.finish(replace(halfway, step=halfway.step.fork()), capture)
        captured = {name: states.flatten(0, 1) for name, states in output.captured.items()}
        return output.scores[..., :vocabulary].flatten(0, 1), captured

    def settle(self) -> None:
        pass


@torch.inference_mode()
def prove(forward: Forward, decoder: Decoder) -> None:
    """Raise unless its scores are the decoder's: of a few tokens, and of a few after them."""
    device, start = Device(decoder.device), 0
    caches = [decoder.new_cache(1, _PROOF_SLOTS) for _ in range(2)]
    for width in (5, 3):
        tokens = (torch.arange(start, start + width)[None] * 7919 + 11) % decoder.embedding.shape[0]
        buffers = PassBuffers(device, 1, width)
        buffers.send_request(PassRequest(tokens.tolist(), [start]), caches[0])
        found, _ = forward.finish(forward.begin(buffers, caches[0], _PROOF_SLOTS, SkipSet()))
        placement = Placement.chain([start], width, decoder.device)
        expected = decoder.forward(tokens.to(decoder.device), placement, caches[1]).scores[0]
        error, tolerance = relative_error(found, expected), tolerance_of(expected.dtype)
        if not error <= tolerance:
            raise SelfTestError(f"their scores differ from the model's by {error:.2g}, allowed {tolerance:.2g}")
        start += width
