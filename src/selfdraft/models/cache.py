"""SlotCache: one preallocated key/value store, written at explicit slots; a length is only a pointer.

The draft writes after the verified length, verification overwrites those slots, rollback is forgetting: no clone,
no concatenation, no bookkeeping for skipped layers. Whoever decodes keeps each row's length; the store does not.
"""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from .free_memory import free_bytes
from .placement import Placement

_ROOM_APART = 8
"""What rows have in common is stored apart from them where 8 times as much memory is free."""
BLOCK = 64
"""Slots are added in blocks of this many, so that a growing sequence copies its cache rarely."""


@dataclass(frozen=True)
class LayerShape:
    """Heads and head size of one attention layer's keys and values."""

    num_heads: int
    key_dim: int
    value_dim: int


class SharedSlots(NamedTuple):
    """What a row begins with and does not hold itself: the first `length` slots of [layers, 2, heads, slots, dim]."""

    part: torch.Tensor
    length: int

    @property
    def numbers(self) -> tuple[int, int, int]:
        """As kernels know it."""
        return self.part.data_ptr(), self.part.shape[-2], self.length


Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], tuple[torch.Tensor, object]]
"""Room for a cache, filled with zeros, and something to hold on to for as long as it is used."""


def allocate_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, object]:
    return torch.zeros(shape, dtype=dtype, device=device), None


class SlotCache:
    """Per layer `keys[layer]` and `values[layer]`, each [rows, heads, slots, dim].

    Where all layers are alike they are views of one `storage` [layers, 2, rows, heads, slots, dim]. Then, and if the
    passes read them there, rows refer to common beginnings (`segments`, by row) in whole blocks of `shared_block`
    slots. Their own slots stand where they would, and those that they do not use stay empty until `make_whole`.
    """

    stores_apart = True
    """Whether what rows have in common may take memory beside them."""

    @torch.inference_mode(False)  # so that it may be written inside and outside of that mode
    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_rows: int,
        num_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        allocate: Allocate = allocate_zeros,
        shared_block: int = 0,
    ) -> None:
        self.segments: dict[int, SharedSlots] = {}
        self._shared_block = shared_block
        self.history: Any = None  # what a runner knows of the texts in these rows beside their keys and values
        self.num_slots = round_up(num_slots)
        self.num_freed, self.num_begun = 0, 0  # how often rows were
        self._freed: dict[int, int] = {}  # of each row: which time was the last
        self._shapes, self._allocate = tuple(shapes), allocate
        self._place(num_rows, dtype, device)

    def _place(self, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        """Take room for `num_rows` rows and `num_slots` slots each."""
        first, num_slots = self._shapes[0], self.num_slots
        self.storage: torch.Tensor | None = None
        self.lease: object = None
        if all(shape == first for shape in self._shapes) and first.key_dim == first.value_dim:
            size = (len(self._shapes), 2, num_rows, first.num_heads, num_slots, first.key_dim)
            self.storage, self.lease = self._allocate(size, dtype, device)
            self.keys, self.values = [list(part.unbind(0)) for part in self.storage.unbind(1)]
            return

        def store(shape: LayerShape, dim: int) -> torch.Tensor:
            return torch.zeros(num_rows, shape.num_heads, num_slots, dim, dtype=dtype, device=device)

        self.keys = [store(shape, shape.key_dim) for shape in self._shapes]
        self.values = [store(shape, shape.value_dim) for shape in self._shapes]

    @property
    def stores(self) -> list[torch.Tensor]:
        """All there is, in few tensors [..., rows, heads, slots, dim]."""
        return [*self.keys, *self.values] if self.storage is None else [self.storage]

    @property
    def address(self) -> int:
        """Where `storage` begins in the device's memory; 0: there is none."""
        return 0 if self.storage is None else self.storage.data_ptr()

    @property
    def num_rows_allocated(self) -> int:
        return self.keys[0].shape[0]

    @property
    def num_bytes(self) -> int:
        return sum(store.nbytes for store in self.stores)

    def without_lease(self) -> SlotCache:
        """The same tensors, for a recording that must not keep the storage from its next user."""
        twin = copy.copy(self)
        twin.lease = twin.history = None  # which has one, too
        twin.segments = {}
        return twin

    def reserve(self, num_slots: int) -> None:
        """Make room for `num_slots` slots a row; what is stored stays."""
        if num_slots > self.num_slots:
            self.resize(self.num_rows_allocated, max(num_slots, self.num_slots + self.num_slots // 2))

    @torch.inference_mode(False)
    def resize(self, num_rows: int, num_slots: int, is_empty: bool = False) -> None:
        """Have this many rows of this many slots. What is stored stays, unless `is_empty`: then it makes room first."""
        dtype, device, (old_rows, _, old_slots, _) = self.keys[0].dtype, self.keys[0].device, self.keys[0].shape
        old_stores = [] if is_empty else self.stores
        if num_rows != old_rows:
            self.history = None
        self.segments = {row: one for row, one in self.segments.items() if row < num_rows and not is_empty}
        if is_empty:
            self.storage, self.lease, self.keys, self.values = None, None, [], []
        self.num_slots = round_up(num_slots)
        self._place(num_rows, dtype, device)
        rows, slots = min(num_rows, old_rows), min(self.num_slots, old_slots)
        for new_store, old_store in zip(self.stores, old_stores, strict=False):
            kept = old_store.narrow(-4, 0, rows).narrow(-2, 0, slots)
            new_store.narrow(-4, 0, rows).narrow(-2, 0, slots).copy_(kept)

    def beginning(self, row: int, length: int, first: int = 0) -> list[torch.Tensor]:
        """The slots of a row from `first` to `length`: views [..., heads, slots, dim], for `begin` and `put`."""
        if row in self.segments and self.segments[row].length > first:
            self.make_whole([row])
        return [store.select(-4, row).narrow(-2, first, length - first) for store in self.stores]

    def begin(self, row: int, source: int | Sequence[torch.Tensor], length: int) -> None:
        """Let a row begin with the first `length` slots of another row, or of copies of what `beginning` returned.

        Copies are never written again. If another row refers to less than half, all is stored apart if there is room.
        """
        if isinstance(source, int):
            self._begin_as(row, source, length)
        else:
            self._begin(row, source, length, SharedSlots(source[0], self._sharable(length)))

    def _begin_as(self, row: int, other: int, length: int) -> None:
        known, shared = self.segments.get(other), self._sharable(length)
        if shared > 2 * (known.length if known else 0) and self.stores_apart and self._has_room_for(shared):
            known = SharedSlots(self.beginning(other, shared)[0].clone(memory_format=torch.contiguous_format), shared)
            self.segments[other] = known
        if known is not None and length <= known.length:
            self.begin(row, [known.part], length)
        else:
            self._begin(row, [store.select(-4, other) for store in self.stores], length, known)

    def _sharable(self, length: int) -> int:
        block = self._shared_block if self.storage is not None else 0
        return length // block * block if block else 0

    def _has_room_for(self, num_slots: int) -> bool:
        num_bytes = self.num_bytes // (self.num_rows_allocated * self.num_slots) * num_slots
        return num_bytes * _ROOM_APART <= free_bytes(self.keys[0].device)

    def _begin(self, row: int, parts: Sequence[torch.Tensor], length: int, shared: SharedSlots | None) -> None:
        """`parts` have what `shared` has not."""
        self.num_begun += 1
        self.segments = {place: one for place, one in self.segments.items() if one.length and place != row}
        first = 0 if shared is None else shared.length
        if shared is not None and first:
            self.segments[row] = shared
        self.put(row, [part.narrow(-2, first, length - first) for part in parts], first)

    def make_whole(self, rows: Iterable[int]) -> None:
        """Let rows hold what they refer to."""
        for row in rows if self.segments else ():
            if row in self.segments:
                part, length = self.segments[row]
                self.put(row, [part.narrow(-2, 0, length)], 0)
                self._leave(row)

    def _leave(self, row: int) -> None:
        """It is held until the next row begins: a pass that runs ahead may go on reading it up to then."""
        self.segments[row] = self.segments[row]._replace(length=0)

    def put(self, row: int, parts: Sequence[torch.Tensor], first: int) -> None:
        """Let a row have these slots from `first` on."""
        for store, part in zip(self.stores, parts, strict=True):
            store.select(-4, row).narrow(-2, first, part.shape[-2]).copy_(part)

    def free_rows(self, rows: Sequence[int]) -> None:
        """Their texts have ended: the next ones begin there."""
        self.num_freed += 1
        self._freed.update(dict.fromkeys(rows, self.num_freed))
        for row in self.segments.keys() & set(rows):
            self._leave(row)
        if self.history is not None:
            self.history.forget(rows)

    def was_freed(self, rows: Sequence[int], since: int) -> bool:
        """Whether one of these rows was, after `num_freed` was `since`."""
        return self.num_freed > since and any(self._freed.get(row, 0) > since for row in rows)

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """Copy the slots `sources` (ascending, none before its target) of a row to the slots from `target` on."""
        # Run by run: in this order no copy overwrites a later source, and nothing is sent to the device.
        for slot, length, distance in _runs_to_move(sources, target):
            for store in self.stores:
                slots = store.select(-4, row)
                moved = _slots(slots, slot + distance, length)
                _slots(slots, slot, length).copy_(moved if distance >= length else moved.clone())

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [rows, heads, width, dim] at the placement's slots; return what its rows read: a view of neighbours."""
        return _write(self.keys[layer], keys, placement), _write(self.values[layer], values, placement)


class KeyValues(Protocol):
    """Where the attention of a pass leaves its keys and values, and what it reads."""

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True)
class CacheView:
    """What attention sees of a cache during one pass: a transformers module as its `past_key_values`."""

    cache: KeyValues
    placement: Placement

    def write(self, layer: int, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [rows, width, 2 * heads, dim] at once; returned is what `update` returns."""
        rows, width, num_both, dim = both.shape
        both = both.view(rows, width, 2, num_both // 2, dim).permute(2, 0, 3, 1, 4)
        if self._neighbours is None:
            return self.cache.write(layer, both[0], both[1], self.placement)
        written, read = self._neighbours[layer]
        written.copy_(both)
        return read

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The same without writing, where it is views; None: it would be copies."""
        return None if self._neighbours is None else self._neighbours[layer][1]

    @cached_property
    def _neighbours(self) -> Sequence[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]] | None:
        """Of each layer: where keys and values are written, and what is read. None: not all are neighbours."""
        storage, place = getattr(self.cache, "storage", None), self.placement
        if storage is None or place.start is None or not isinstance(place.rows, slice):
            return None
        band = storage[:, :, place.rows]
        written, read = band.narrow(4, place.start, place.slots.shape[1]), band.narrow(4, 0, place.end)
        return list(zip(written.unbind(), zip(*map(torch.unbind, read.unbind(1)), strict=True), strict=True))

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.write(layer, keys, values, self.placement)


def _write(store: torch.Tensor, new: torch.Tensor, placement: Placement) -> torch.Tensor:
    rows = placement.rows
    if placement.start is None or not isinstance(rows, slice):
        store[placement.row_index, :, placement.slots] = new.transpose(1, 2)
    if not isinstance(rows, slice):
        return store.narrow(2, 0, placement.end).index_select(0, rows)
    band = store if rows.stop - rows.start == store.shape[0] else store[rows]
    if placement.start is not None:
        band.narrow(2, placement.start, new.shape[2]).copy_(new)
    return band.narrow(2, 0, placement.end)


def _slots(row: torch.Tensor, first: int, length: int) -> torch.Tensor:
    """A view. Mostly one slot is asked for (a tree's leaf), and `select` takes the host half as long as `narrow`."""
    return row.select(-2, first) if length == 1 else row.narrow(-2, first, length)


def _runs_to_move(sources: Sequence[int], target: int) -> Iterator[tuple[int, int, int]]:
    """Neighbours that go to neighbours: the first slot they go to, how many, how far. None: all are in place."""
    distances = (source - slot for slot, source in enumerate(sources, start=target))
    slot = target
    for distance, run in itertools.groupby(distances):
        length = len(list(run))
        if distance:
            yield slot, length, distance
        slot += length


def round_up(num_slots: int) -> int:
    return -(-num_slots // BLOCK) * BLOCK


class StoragePool:
    """Storages that finished generations left: the next of the same shape gets one, at the same address."""

    def __init__(self, max_free: int = 4) -> None:
        self._max_free = max_free
        self._free: list[torch.Tensor] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, object]:
        """As `Allocate`: the storage comes back when what it was handed out with is let go."""
        wanted = (shape, dtype, device)
        for index, storage in enumerate(self._free):
            if (tuple(storage.shape), storage.dtype, storage.device) == wanted:
                del self._free[index]
                storage.zero_()
                break
        else:
            if math.prod(shape) * dtype.itemsize > free_bytes(device):
                self._free.clear()
            storage = torch.zeros(shape, dtype=dtype, device=device)
        lease = Lease()
        weakref.finalize(lease, self._free.append, storage).atexit = False
        return storage, lease

    @property
    def num_free_bytes(self) -> int:
        return sum(storage.nbytes for storage in self._free)

    def trim(self) -> list[int]:
        """Give up the oldest beyond the limit; their addresses."""
        surplus = self._free[: max(len(self._free) - self._max_free, 0)]
        del self._free[: len(surplus)]
        return [storage.data_ptr() for storage in surplus]


class Lease:
    """Held by whoever uses a storage."""
