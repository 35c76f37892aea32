"""Bodies: how a recorded pass computes. Called while it is recorded, on tensors that stay where they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from ..errors import SelfTestError
from ..kernels.top import runs_triton
from ..types import SkipSet
from .buffers import PassBuffers
from .cache import SlotCache
from .checks import relative_error, tolerance_of
from .decoder import Decoder, Halfway, SubLayer
from .device import Device
from .placement import Placement

_PROOF_SLOTS = 64
_LOGGER = logging.getLogger(__name__)
HEAD_START = 10
"""A pass is begun with one of so many parts of its sub-layers: enough for the host to answer, little to waste."""


def head_start(sublayers: Sequence[SubLayer]) -> int:
    """How many of them `begin` runs."""
    return len(sublayers) // HEAD_START


class Body(Protocol):
    """One pass in two parts, so that a draft can begin the next token before it is known whether it is wanted.

    Nothing may be read on the host. `finish` may be called several times with one state.
    """

    holds_cache: bool  # whether a recording is bound to the cache's tensors, or finds them through `buffers.header`
    max_tokens: int  # rows x width it is meant for

    def begin(self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet) -> Any:
        """The embedding and the first few sub-layers; slots 0 to `end - 1` are read.

        A body that holds the cache works in the rows from `buffers.host["header"][3]` on, as they are now.
        """
        ...

    def finish(
        self, state: Any, capture: Sequence[str] = (), vocabulary: int | None = None
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Scores [rows, width, vocabulary], or of so many of its first tokens only, and captured states."""
        ...

    def settle(self) -> None:
        """Called behind wide eager passes, if the device needs something before recordings run well."""
        ...


class DecoderBody:
    """The decoder's own sub-layers: what the eager runner computes, for any family."""

    holds_cache = True
    max_tokens = 512

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def begin(self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet) -> Halfway:
        first_row = int(buffers.host["header"][3])
        placement = Placement.recorded(buffers.starts, buffers.depths, buffers.sees, end, first_row)
        num_first = head_start(self._decoder.active_sublayers(skip))
        return self._decoder.begin(buffers.tokens, placement, cache, skip=skip, num_sublayers=num_first)

    def finish(
        self, state: Halfway, capture: Sequence[str] = (), vocabulary: int | None = None
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        output = self._decoder.finish(replace(state, step=state.step.fork()), capture)
        return output.scores[..., :vocabulary], output.captured

    def settle(self) -> None:
        pass


@torch.inference_mode()
def prove(body: Body, decoder: Decoder) -> None:
    """Raise unless the body's scores are the decoder's: a few tokens, and a few behind them."""
    device, start = Device(decoder.device), 0
    caches = [decoder.new_cache(1, _PROOF_SLOTS) for _ in range(2)]
    for width in (5, 3):
        tokens = (torch.arange(start, start + width)[None] * 7919 + 11) % decoder.embedding.shape[0]
        buffers = PassBuffers(device, 1, width)
        buffers.fill(tokens.numpy(), [start], width, caches[0], 0)
        buffers.send()
        found, _ = body.finish(body.begin(buffers, caches[0], _PROOF_SLOTS, SkipSet()))
        placement = Placement.chain([start], width, decoder.device)
        expected = decoder.forward(tokens.to(decoder.device), placement, caches[1]).scores
        error, tolerance = relative_error(found, expected), tolerance_of(expected.dtype)
        if not error <= tolerance:
            raise SelfTestError(f"their scores differ from the model's by {error:.2g}, allowed {tolerance:.2g}")
        start += width


def bodies_for(decoder: Decoder) -> Sequence[Body]:
    """How recorded passes may compute, best first: the first that is meant for a pass's size runs it."""
    return (*_fused(decoder), DecoderBody(decoder))


def _fused(decoder: Decoder) -> Sequence[Body]:
    if not runs_triton(decoder.device):
        return ()
    from .fused import FusedBody, reason_against

    reason = reason_against(decoder)
    if reason is not None:
        _LOGGER.info("%s runs without fused kernels: %s", type(decoder.model).__name__, reason)
        return ()
    body = FusedBody(decoder)
    try:
        prove(body, decoder)
    except Exception as error:
        _LOGGER.warning("%s runs without fused kernels: %s", type(decoder.model).__name__, error)
        return ()
    return (body,)
