"""What is known of a recorded pass: its key, where it leaves its results, and how they come to the host."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..passes import Tokens
from ..types import SkipSet
from .cache import SlotCache
from .device import Device, Readback
from .graphs import Recording


class GraphKey(NamedTuple):
    """What a recording freezes. `cache`: what it is bound to, if anything: addresses, slots, rows, the first row."""

    kind: Hashable
    body: int
    rows: int
    width: int
    end: int
    skip: SkipSet
    capture: tuple[str, ...] = ()
    cache: tuple[int, ...] = ()


Results = tuple[torch.Tensor, Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class PassGraph:
    """A recorded pass and where it leaves its results."""

    recording: Recording
    outbox: Outbox
    scores: torch.Tensor
    captured: Mapping[str, torch.Tensor]
    _parts: dict[tuple[int, int], Results] = field(default_factory=dict)

    def results(self, rows: int, width: int) -> Results:
        """Scores and captured states without padding: views, made once."""
        if (rows, width) not in self._parts:
            captured = {name: states[:rows, :width] for name, states in self.captured.items()}
            self._parts[rows, width] = self.scores[:rows, :width], captured
        return self._parts[rows, width]


class Outbox:
    """The best tokens [rows, width] of the last pass, and two ways to the host: one may still be under way."""

    def __init__(self, device: Device, rows: int, width: int) -> None:
        self.choices = device.zeros(rows, width)
        self._readbacks = [Readback(device, self.choices) for _ in range(2)]

    def next_readback(self) -> Readback:
        self._readbacks.reverse()
        return self._readbacks[0]


class Launches:
    """Whether the device may be busy with something whose result nobody has read."""

    def __init__(self) -> None:
        self.num_launched, self.num_awaited = 0, 0

    @property
    def are_pending(self) -> bool:
        return self.num_launched > self.num_awaited

    def launched(self) -> None:
        self.num_launched += 1

    def awaited(self, number: int | None = None) -> None:
        """All (or the first `number`) launches are known to be done."""
        self.num_awaited = max(self.num_awaited, self.num_launched if number is None else number)


class Choices:
    """The best tokens of one pass: sent to the host once, read when somebody asks."""

    def __init__(self, launches: Launches, readback: Readback, rows: int, width: int) -> None:
        self._launches, self._readback, self._size = launches, readback, (rows, width)
        self._is_sent, self._num_launched = False, 0
        self._values: list[list[int]] | None = None

    def send(self) -> None:
        if not self._is_sent:
            self._readback.start()
            self._is_sent, self._num_launched = True, self._launches.num_launched

    def __call__(self) -> list[list[int]]:
        if self._values is None:
            self.send()
            rows, width = self._size
            self._values = self._readback.read()[:rows, :width].tolist()
            self._launches.awaited(self._num_launched)
        return self._values


@dataclass(frozen=True)
class Ahead:
    """A pass that was launched before it was asked for: the tokens `choices` behind those of the pass before."""

    cache: weakref.ref[SlotCache]
    address: int
    first_row: int
    starts: tuple[int, ...]
    choices: Choices
    graph: PassGraph
    end: int

    def is_asked_for(self, tokens: Tokens, starts: tuple[int, ...], cache: SlotCache, first_row: int) -> bool:
        is_same_place = self.cache() is cache and self.address == cache.address and self.first_row == first_row
        return is_same_place and self.starts == starts and self.choices() == tokens
