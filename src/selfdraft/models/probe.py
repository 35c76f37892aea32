"""Probe: what sub-networks make of known tokens, beside the target's own keys and values. Nothing of it is kept.

Every probed token attends to the target's keys and values of all earlier positions, and to its own, which the
sub-network makes: so any number of tokens is probed in one pass, and any number of sub-networks as its rows. The cache
is only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..passes import States
from .cache import SlotCache
from .decoder import Decoder
from .placement import Placement, Sight
from .sublayer import Pass


@dataclass(frozen=True)
class ReadOnlyCache:
    """One row of a cache as all rows of a pass see it, what they bring themselves after it; nothing is stored."""

    cache: SlotCache
    row: int
    end: int

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._after(self.cache.keys[layer], keys), self._after(self.cache.values[layer], values)

    def _after(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        known = store[self.row : self.row + 1, :, : self.end].expand(len(new), -1, -1, -1)
        return torch.cat((known, new), dim=2)


class Probe:
    """`tokens` stand from position `first` on, after and among what row `row` of the cache holds of the same text."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> None:
        self._decoder, self._first, self._width = decoder, first, len(tokens)
        self._end = first + self._width - 1  # the last token's own slot is of no use to anybody
        self._cache = ReadOnlyCache(cache, row, self._end)
        self._tokens = torch.tensor([list(tokens)], device=decoder.device)
        self._embedded, self._step = self._embed()
        self._folded: dict[int, Pass] = {1: self._step}
        self._end_to_fold = self._end
        self.num_sublayers = len(decoder.sublayers)

    def _embed(self, num_rows: int = 1) -> tuple[torch.Tensor, Pass]:
        """The tokens, `num_rows` times one after the other, and what their sub-layers share."""
        placement = _among(self._first, self._width, self._end, self._decoder.device, num_rows)
        hidden, step = self._decoder.embed(self._tokens.repeat(1, num_rows), placement, self._cache)
        return hidden, replace(step, is_one_token=False)  # there may be more rows of it

    @torch.inference_mode()
    def begin(self) -> States:
        """One row: the embedded tokens."""
        return States(self._embedded)

    @torch.inference_mode()
    def run(self, number: int, states: States) -> States:
        """After sub-layer `number` (attention 0, MLP 0, attention 1, ...)."""
        rows, layer = len(states), number // 2
        is_folded = rows > 1 and rows * self._width <= self._end_to_fold
        step = self._folded_step(rows) if is_folded else self._step
        hidden, source = (_folded(tensor) if is_folded else tensor for tensor in (states.hidden, states.source))
        if source is not None:
            step.block_inputs[layer] = source
        with _quick_attention(self._decoder.device):
            assert hidden is not None
            hidden = self._decoder.sublayers[number].run(hidden, step)
        source = step.block_inputs.pop(layer, None)
        shape = (rows, self._width, -1)
        return States(hidden.view(shape), None if source is None else source.view(shape))

    def _folded_step(self, num_rows: int) -> Pass:
        """All rows as one: after a long text its keys and values are then read once, not copied for each row."""
        if num_rows not in self._folded:
            self._folded[num_rows] = self._embed(num_rows)[1]
        return self._folded[num_rows]

    @torch.inference_mode()
    def skip(self, number: int, states: States) -> States:
        """As `run`, with the sub-layer left out: the stream passes it by."""
        return states if number % 2 == 0 else States(states.hidden)

    @torch.inference_mode()
    def scores(self, states: States) -> torch.Tensor:
        """[rows, tokens, vocabulary] after the last sub-layer."""
        return self._decoder.scores(states.hidden)


def _quick_attention(device: torch.device) -> AbstractContextManager[None]:
    """cuDNN prepares attention for milliseconds where a shape is new, and every sub-layer of a probe brings one."""
    if device.type != "cuda":
        return nullcontext()
    manager: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return manager


def _folded(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.reshape(1, -1, tensor.shape[-1])


def _among(first: int, width: int, end: int, device: torch.device, num_rows: int = 1) -> Placement:
    """Positions from `first` on: each sees the slots of earlier positions, and its own column after slot `end`."""
    positions = torch.arange(first, first + width, device=device).repeat(num_rows)
    known, columns = torch.arange(end, device=device), torch.arange(len(positions), device=device)
    sees = torch.cat((known < positions[:, None], columns == columns[:, None]), dim=1)
    slot_positions = torch.cat((known, positions))
    sight = Sight(sees[None], slot_positions[None])
    return Placement(slice(0, 1), positions[None], (end + columns)[None], end + len(positions), None, sight)
