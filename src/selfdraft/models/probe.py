"""Probe: what sub-networks make of known tokens, beside the target's own keys and values. Nothing of it is kept.

Every probed token attends to the target's keys and values of all earlier positions, and to its own, which the
sub-network makes: so any number of tokens is probed in one pass, and any number of sub-networks as its rows. The cache
is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..passes import States
from .cache import SlotCache
from .decoder import Decoder
from .gpu.memory import reads_are_free
from .placement import Placement, Sight
from .sublayer import Pass

Number = int | torch.Tensor
"""A tensor [1] where it changes from replay to replay."""


@dataclass(frozen=True)
class ReadOnlyCache:
    """One row of a cache as all rows of a pass see it, what they bring themselves after it; nothing is stored."""

    cache: SlotCache
    row: Number
    end: int

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._after(self.cache.keys[layer], keys), self._after(self.cache.values[layer], values)

    def _after(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        known, row = store.narrow(2, 0, self.end), self.row
        known = known.narrow(0, row, 1) if isinstance(row, int) else known.index_select(0, row)
        return torch.cat((known.expand(len(new), -1, -1, -1), new), dim=2)


class Known(NamedTuple):
    """What the tokens of a probe may see beside themselves: where `Branches` find it."""

    cache: SlotCache
    place: torch.Tensor  # [2]: the cache's row, the position of the first token
    width: int  # of tokens in each row of the probe
    end: int  # slots up to here


Branches = Callable[[int, torch.Tensor, Known], torch.Tensor]
"""The stream [rows, tokens, hidden] after the sub-layer of that number."""


class Probe:
    """`tokens` stand from position `first` on, after and among what row `row` of the cache holds of the same text.

    Where sizes must stay what they are: `num_tokens` of them do not only pad, and slots up to `end` are read, as far
    as a token sees them. `branches`: how sub-layers run where that is not as in other passes.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: SlotCache,
        tokens: Sequence[int] | torch.Tensor,
        first: Number = 0,
        row: Number = 0,
        *,
        num_tokens: Number | None = None,
        end: int | None = None,
        branches: Branches | None = None,
    ) -> None:
        self._decoder, self._given, self._first, self._width = decoder, tokens, first, len(tokens)
        self._num_given = self._width if num_tokens is None else num_tokens
        self._end = int(first) + self._width - 1 if end is None else end  # the last one's own slot is of no use
        self._cache = ReadOnlyCache(cache, row, self._end)
        self._branches = branches
        self._folded: dict[int, Pass] = {}
        self._end_to_fold = self._end
        self.num_sublayers, self.num_tokens = len(decoder.sublayers), self._width
        self.vocab_size = len(decoder.embedding)

    @cached_property
    def is_token(self) -> torch.Tensor:
        return torch.arange(self._width, device=self._decoder.device) < self._num_given

    @cached_property
    def _tokens(self) -> torch.Tensor:
        return torch.as_tensor(self._given, device=self._decoder.device)[None]

    @cached_property
    def _begun(self) -> tuple[torch.Tensor, Pass]:
        return self._embed()

    @cached_property
    def _known(self) -> Known:
        device = self._decoder.device
        place = [torch.as_tensor(one, device=device).view(1) for one in (self._cache.row, self._first)]
        return Known(self._cache.cache, torch.cat(place), self._width, self._end)

    def _embed(self, num_rows: int = 1) -> tuple[torch.Tensor, Pass]:
        """The tokens, `num_rows` times one after the other, and what their sub-layers share."""
        positions = self._first + torch.arange(self._width, device=self._decoder.device)
        placement = _among(positions.repeat(num_rows), self._end)
        return self._decoder.embed(self._tokens.repeat(1, num_rows), placement, self._cache)

    @torch.inference_mode()
    def record(self, work: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`work(probe, *inputs)`: here as it is."""
        return work(self, *(one.to(self._decoder.device, non_blocking=True) for one in inputs))

    @torch.inference_mode()
    def begin(self) -> States:
        """One row: the embedded tokens."""
        return States(self._begun[0])

    @torch.inference_mode()
    def run(self, number: int, states: States) -> States:
        """After sub-layer `number` (attention 0, MLP 0, attention 1, ...)."""
        if self._branches is not None:
            return States(self._branches(number, states.hidden, self._known))
        rows, layer = len(states), number // 2
        is_folded = rows > 1 and rows * self._width <= self._end_to_fold
        step = self._folded_step(rows) if is_folded else self._begun[1]
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
    def run_some(self, number: int, states: States, runs: torch.Tensor, keeps_others: bool = True) -> States:
        """After the sub-layer where `runs` [rows], past it elsewhere. A GPU computes sooner than it is told what to."""
        passed = self.skip(number, states)
        if not reads_are_free(runs):
            ran = self.run(number, states)
            return States.where(runs, ran, passed) if keeps_others else ran
        rows = runs.nonzero()[:, 0]
        if len(rows) in (0, len(states)):
            return self.run(number, states) if len(rows) else passed
        places = torch.arange(len(states)) + len(rows)
        places[rows] = torch.arange(len(rows))
        return States.join([self.run(number, states.pick(rows)), passed]).pick(places)

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


def _among(positions: torch.Tensor, end: int) -> Placement:
    """Each sees the slots of earlier positions, and its own column after slot `end`."""
    known, columns = (torch.arange(count, device=positions.device) for count in (end, len(positions)))
    sees = torch.cat((known < positions[:, None], columns == columns[:, None]), dim=1)
    slot_positions = torch.cat((known, positions))
    sight = Sight(sees[None], slot_positions[None])
    return Placement(slice(0, 1), positions[None], (end + columns)[None], end + len(positions), None, sight)
