"""Probe: what sub-networks make of known tokens, beside the target's own keys and values. Nothing of it is kept.

Every probed token attends to the target's keys and values of all earlier positions, and to its own, which the
sub-network makes: so any number of tokens is probed in one pass, and any number of sub-networks as its rows. The cache
is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..passes import States
from .cache import CacheView, SlotCache
from .decoder import Decoder
from .placement import Placement, Sight


@dataclass(frozen=True)
class ReadOnlyCache:
    """One row of a cache as all rows of a pass see it, what they bring themselves behind it; nothing is stored."""

    cache: SlotCache
    row: int
    end: int

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._behind(self.cache.keys[layer], keys), self._behind(self.cache.values[layer], values)

    def _behind(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        known = store[self.row : self.row + 1, :, : self.end].expand(len(new), -1, -1, -1)
        return torch.cat((known, new), dim=2)

    def at(self, placement: Placement) -> CacheView:
        return CacheView(self, placement)


class Probe:
    """`tokens` stand from position `first` on, behind and among what row `row` of the cache holds of the same text."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> None:
        device, width = decoder.device, len(tokens)
        self._decoder = decoder
        end = first + width - 1  # the last token's own slot is of no use to anybody
        placement = _among(first, width, end, device)
        batch = torch.tensor([list(tokens)], device=device)
        self._embedded, self._step = decoder.embed(batch, placement, ReadOnlyCache(cache, row, end))
        self.num_sublayers = len(decoder.sublayers)

    @torch.inference_mode()
    def begin(self) -> States:
        """One row: the embedded tokens."""
        return States(self._embedded)

    @torch.inference_mode()
    def run(self, number: int, states: States) -> States:
        """Behind sub-layer `number` (attention 0, MLP 0, attention 1, ...)."""
        layer, step = number // 2, self._step
        if states.source is not None:
            step.block_inputs[layer] = states.source
        with _quick_attention(states.hidden.device):
            hidden = self._decoder.sublayers[number].run(states.hidden, step)
        return States(hidden, step.block_inputs.pop(layer, None))

    @torch.inference_mode()
    def skip(self, number: int, states: States) -> States:
        """As `run`, with the sub-layer left out: the stream passes it by."""
        return states if number % 2 == 0 else States(states.hidden)

    @torch.inference_mode()
    def scores(self, states: States) -> torch.Tensor:
        """[rows, tokens, vocabulary] behind the last sub-layer."""
        return self._decoder.scores(states.hidden)


def _quick_attention(device: torch.device) -> AbstractContextManager[None]:
    """cuDNN prepares attention for milliseconds where a shape is new, and every sub-layer of a probe brings one."""
    if device.type != "cuda":
        return nullcontext()
    manager: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return manager


def _among(first: int, width: int, end: int, device: torch.device) -> Placement:
    """Positions from `first` on: each sees the slots of earlier positions, and its own column behind slot `end`."""
    positions = torch.arange(first, first + width, device=device)
    known, columns = torch.arange(end, device=device), torch.arange(width, device=device)
    sees = torch.cat((known < positions[:, None], columns == columns[:, None]), dim=1)
    slot_positions = torch.cat((known, positions))
    sight = Sight(sees[None], slot_positions[None])
    return Placement(slice(0, 1), positions[None], (end + columns)[None], end + width, None, sight)
