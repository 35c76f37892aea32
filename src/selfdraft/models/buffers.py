"""The inputs of recorded work: one tensor that stays where it is, and its mirror on the host.

Whatever a pass needs to know is written into the mirror and travels in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..passes import TreeMask
from ..protocols import DraftTask
from .cache import SlotCache
from .device import Device

MAX_WIDTH = 63
"""Columns of one pass: what a column sees of the others are the bits of a positive int64."""

Ints = npt.NDArray[np.int64]


class Packed:
    """Arrays of int64 by name: `host[name]` to be filled, then `send()`, then they are in `tensors[name]`."""

    def __init__(self, device: Device, shapes: dict[str, tuple[int, ...]]) -> None:
        size = sum(math.prod(shape) for shape in shapes.values())
        self.data, self._mirror = device.zeros(size), device.host_zeros(size)
        self._sent = device.signal()
        self.host: dict[str, Ints] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        first, numbers = 0, self._mirror.numpy()
        self._numbers: Ints = numbers
        for name, shape in shapes.items():
            last = first + math.prod(shape)
            self.host[name], self.tensors[name] = numbers[first:last].reshape(shape), self.data[first:last].view(shape)
            first = last

    def open(self) -> dict[str, Ints]:
        """The mirror, once the device has taken what was last sent."""
        self._sent.wait()
        return self.host

    def send(self) -> None:
        self.data.copy_(self._mirror, non_blocking=True)
        self._sent.set()


class PassBuffers(Packed):
    """The numbers of one pass of `rows` x `width` tokens.

    `header` [8]: the cache's address, its slots a row, its rows allocated, the first row, the number of rows; then 0.
    `sees` [rows, width]: bit j is set where a column attends to column j of the pass.
    """

    def __init__(self, device: Device, rows: int, width: int, more: dict[str, tuple[int, ...]] | None = None) -> None:
        square = (rows, width)
        shapes = {"header": (8,), "starts": (rows,), "tokens": square, "depths": square, "sees": square}
        super().__init__(device, {**shapes, **(more or {})})
        self.rows, self.width = rows, width
        columns = range(width)
        self._zeros, self._blank = [0] * width, [1 << column | 1 for column in columns]
        self._chain_depths, self._chain_sees = list(columns), [(2 << column) - 1 for column in columns]
        self.header, self.starts = self.tensors["header"], self.tensors["starts"]
        self.tokens, self.depths, self.sees = (self.tensors[name] for name in ("tokens", "depths", "sees"))

    def fill(
        self,
        tokens: Sequence[Sequence[int]] | Ints,
        starts: Sequence[int],
        width: int,
        cache: SlotCache,
        first_row: int,
        tree: TreeMask | None = None,
        more: Sequence[int] = (),
    ) -> None:
        """Rows and columns that only pad have token 0 at depth 0; they see column 0 and themselves.

        `more` are numbers for what stands behind `sees`. All goes into one plain list, in the order of the mirror: a
        call of numpy for each part costs more than all numbers.
        """
        rows = len(starts)
        depths = [self._chain_depths[:width]] * rows if tree is None else tree.depths
        sees = [self._chain_sees[:width]] * rows if tree is None else tree.sees
        numbers = [cache.address, cache.num_slots, cache.num_rows_allocated, first_row, rows, 0, 0, 0]
        numbers += [*starts, *[0] * (self.rows - rows)]
        for square, padding in ((tokens, self._zeros), (depths, self._zeros), (sees, self._blank)):
            for line in square:
                numbers += [*line, *padding[width:]]
            numbers += padding * (self.rows - rows)
        numbers += more
        self.open()
        self._numbers[: len(numbers)] = numbers


class DraftBuffers(PassBuffers):
    """The numbers of a draft that feeds itself, token by token: of each row its task and how far it has come.

    `depth` and `indices` are those of the token that is drafted next; `nothing` stays 0.
    """

    def __init__(self, device: Device, rows: int) -> None:
        names = ("sequences", "indices", "rounds", "ids", "caps", "active", "depth", "nothing")
        super().__init__(device, rows, 1, {**dict.fromkeys(names, (rows,)), "seed": (2,)})

    def fill_task(
        self, task: DraftTask, tokens: Sequence[int], starts: Sequence[int], cache: SlotCache, first_row: int
    ) -> None:
        numbers: list[int] = []
        padding = [0] * (self.rows - len(starts))
        active = [int(cap > 0) for cap in task.caps]
        for column in (*zip(*task.places, strict=True), task.sequence_ids, task.caps, active):
            numbers += [*column, *padding]
        numbers += [1] * self.rows  # depth
        numbers += [0] * self.rows  # nothing
        numbers += [task.seed & 0xFFFFFFFF, task.seed >> 32]
        self.fill([[token] for token in tokens], starts, 1, cache, first_row, more=numbers)
