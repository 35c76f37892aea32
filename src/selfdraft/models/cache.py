"""SlotCache: one preallocated key/value store, written at explicit slots; a length is only a pointer.

The draft writes behind the verified length, verification overwrites those slots, rollback is forgetting: no clone,
no concatenation, no bookkeeping for skipped layers. Whoever decodes keeps each row's length; the store does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .placement import Placement

BLOCK = 64
"""Slots are added in blocks of this many, so that a growing sequence copies its cache rarely."""


@dataclass(frozen=True)
class LayerShape:
    """Heads and head size of one attention layer's keys and values."""

    num_heads: int
    key_dim: int
    value_dim: int


class SlotCache:
    """Per layer `keys[layer]` and `values[layer]`, each [rows, heads, slots, dim]."""

    @torch.inference_mode(False)  # so that it may be written inside and outside of that mode
    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_rows: int,
        num_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_rows = num_rows
        self.num_slots = _round_up(num_slots)

        def store(shape: LayerShape, dim: int) -> torch.Tensor:
            return torch.zeros(num_rows, shape.num_heads, self.num_slots, dim, dtype=dtype, device=device)

        self.keys = [store(shape, shape.key_dim) for shape in shapes]
        self.values = [store(shape, shape.value_dim) for shape in shapes]

    @torch.inference_mode(False)
    def reserve(self, num_slots: int) -> None:
        """Make room for `num_slots` slots a row; what is stored stays."""
        if num_slots <= self.num_slots:
            return
        self.num_slots = _round_up(max(num_slots, self.num_slots + self.num_slots // 2))
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                new = old.new_zeros(*old.shape[:2], self.num_slots, old.shape[3])
                new[:, :, : old.shape[2]] = old
                store[layer] = new

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this (ascending) order, as rows 0, 1, ...; only rows that move are copied."""
        for target, source in enumerate(rows):
            if target != source:
                for tensor in (*self.keys, *self.values):
                    tensor[target].copy_(tensor[source])
        self.num_rows = len(rows)

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """Copy the slots `sources` of a row to the slots from `target` on: what a tree kept becomes a chain."""
        index = torch.tensor(sources, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            tensor[row].narrow(1, target, len(sources)).copy_(tensor[row].index_select(1, index))

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [rows, heads, width, dim] at the placement's slots; return all that its rows may read."""
        return (
            _write(self.keys[layer], keys, placement),
            _write(self.values[layer], values, placement),
        )

    def at(self, placement: Placement) -> CacheView:
        return CacheView(self, placement)


@dataclass(frozen=True)
class CacheView:
    """What a transformers attention module sees as `past_key_values` during one pass."""

    cache: SlotCache
    placement: Placement

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.write(layer, keys, values, self.placement)


def _write(store: torch.Tensor, new: torch.Tensor, placement: Placement) -> torch.Tensor:
    rows = placement.rows
    band = store if rows.stop - rows.start == store.shape[0] else store[rows]
    if placement.start is None:
        store[placement.row_index, :, placement.slots] = new.transpose(1, 2)
    else:
        band.narrow(2, placement.start, new.shape[2]).copy_(new)
    return band.narrow(2, 0, placement.end)


def _round_up(num_slots: int) -> int:
    return -(-num_slots // BLOCK) * BLOCK
