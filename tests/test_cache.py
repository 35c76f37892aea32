"""SlotCache against a naive reference, Placement's masks against their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch.utils._python_dispatch import TorchDispatchMode

from selfdraft.models.cache import BLOCK, CacheView, LayerShape, SlotCache
from selfdraft.models.placement import Placement

CPU = torch.device("cpu")
SHAPES = (LayerShape(2, 3, 4), LayerShape(1, 2, 2))
ALIKE = (LayerShape(2, 3, 3), LayerShape(2, 3, 3))  # one storage
MAX_LENGTH = 3 * BLOCK


def new_cache(num_rows: int, num_slots: int, shapes: tuple[LayerShape, ...] = SHAPES) -> SlotCache:
    return SlotCache(shapes, num_rows, num_slots, dtype=torch.float32, device=CPU)


def new_states(
    layer: int, num_rows: int, width: int, shapes: tuple[LayerShape, ...] = SHAPES
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = shapes[layer]
    size = (num_rows, shape.num_heads, width)
    return torch.randn(*size, shape.key_dim), torch.randn(*size, shape.value_dim)


class CacheMachine(RuleBasedStateMachine):
    """The reference keeps, per layer and row, the keys and values as tensors that are cut and concatenated."""

    @initialize(
        num_rows=st.integers(1, 4), num_slots=st.integers(1, 2 * BLOCK), shapes=st.sampled_from([SHAPES, ALIKE])
    )
    def start(self, num_rows: int, num_slots: int, shapes: tuple[LayerShape, ...]) -> None:
        torch.manual_seed(num_slots)
        self.cache, self.shapes = new_cache(num_rows, num_slots, shapes), shapes
        self.rows = [
            [tuple(part[0, :, :0] for part in new_states(layer, 1, 1, shapes)) for layer in range(len(shapes))]
            for _ in range(num_rows)
        ]

    def length(self, row: int, layers: list[int]) -> int:
        return min(self.rows[row][layer][0].shape[1] for layer in layers)

    @rule(
        data=st.data(),
        width=st.one_of(st.integers(1, 6), st.integers(40, 80)),
        layers=st.sampled_from([[0], [1], [0, 1]]),
        is_uniform=st.booleans(),
    )
    def write(self, data: st.DataObject, width: int, layers: list[int], is_uniform: bool) -> None:
        """After or (rolled back) before each row's end; a skipped layer is not written."""
        num_rows = len(self.rows)
        rows = sorted(data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1), label="rows"))
        lengths = [self.length(row, layers) for row in rows]
        if is_uniform:
            starts = [data.draw(st.integers(0, min(lengths)), label="start")] * len(rows)
        else:
            starts = [data.draw(st.integers(max(0, n - 9), n), label="start") for n in lengths]
        if max(starts) + width > MAX_LENGTH:
            return
        self.cache.reserve(max(starts) + width)
        placement = Placement.chain(starts, width, CPU, rows)
        for layer in layers:
            self.write_layer(layer, rows, starts, width, placement)

    def write_layer(self, layer: int, rows: list[int], starts: list[int], width: int, placement: Placement) -> None:
        new = new_states(layer, len(rows), width, self.shapes)
        stores = (self.cache.keys[layer], self.cache.values[layer])
        addresses = [store.data_ptr() for store in stores]
        view = CacheView(self.cache, placement)
        can_join = new[0].shape == new[1].shape
        found = view.write(layer, torch.cat(new, 1).transpose(1, 2)) if can_join else view.update(*new, layer)
        assert [store.data_ptr() for store in (self.cache.keys[layer], self.cache.values[layer])] == addresses
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            known = self.rows[row][layer]
            expected = tuple(torch.cat((old[:, :start], n[index]), 1) for old, n in zip(known, new, strict=True))
            self.rows[row][layer] = expected
            for part, wanted in zip(found, expected, strict=True):
                assert part.shape[2] == max(starts) + width
                assert torch.equal(part[index, :, : wanted.shape[1]], wanted)
        are_neighbours = rows[-1] - rows[0] == len(rows) - 1
        for part, store in zip(found, stores, strict=True):
            is_view = part.untyped_storage().data_ptr() == store.untyped_storage().data_ptr()
            assert is_view is are_neighbours

    @rule(num_slots=st.integers(1, MAX_LENGTH))
    def reserve(self, num_slots: int) -> None:
        had = self.cache.num_slots
        self.cache.reserve(num_slots)
        assert self.cache.num_slots >= max(num_slots, had)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """What a tree kept: slots in ascending order, to the front of the scratch slots; they may overlap."""
        row = data.draw(st.integers(0, len(self.rows) - 1), label="row")
        length = self.length(row, [0, 1])
        if not length:
            return
        first = data.draw(st.integers(0, length - 1), label="first source")
        near = st.integers(first, min(first + 9, length - 1))  # neighbours, often
        sources = sorted(data.draw(st.sets(near, min_size=1, max_size=8), label="sources"))
        target = data.draw(st.integers(0, sources[0]), label="target")
        self.cache.move(row, sources, target)
        self.rows[row] = [
            tuple(torch.cat((part[:, :target], part[:, sources]), 1) for part in known) for known in self.rows[row]
        ]

    @invariant()
    def one_storage_where_layers_are_alike(self) -> None:
        cache = self.cache
        assert (cache.storage is not None) == (self.shapes is ALIKE) == (cache.address != 0)
        if cache.storage is not None:
            assert cache.storage.shape == (2, 2, cache.num_rows_allocated, 2, cache.num_slots, 3)
            assert cache.keys[1].data_ptr() == cache.storage[1, 0].data_ptr()
            assert cache.values[0].data_ptr() == cache.storage[0, 1].data_ptr()

    @invariant()
    def stored_is_what_was_written(self) -> None:
        for row, layers in enumerate(self.rows):
            for layer, (keys, values) in enumerate(layers):
                assert torch.equal(self.cache.keys[layer][row, :, : keys.shape[1]], keys)
                assert torch.equal(self.cache.values[layer][row, :, : values.shape[1]], values)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestCache = CacheMachine.TestCase


class Copies(TorchDispatchMode):
    """Counts what is copied into a store."""

    num_copies = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.num_copies += function is torch.ops.aten.copy_.default
        return function(*arguments, **keywords or {})


@pytest.mark.parametrize(
    ("sources", "num_copies"),
    [([], 0), ([10, 11, 12], 0), ([10, 11, 15], 1), ([14, 15, 16], 1), ([11, 12, 13], 1), ([10, 13, 15, 16], 2)],
)
def test_a_path_moves_run_by_run_and_not_at_all_where_it_is_in_place(sources, num_copies):
    cache = new_cache(2, 20, ALIKE)
    cache.storage.copy_(torch.randn_like(cache.storage))
    before = cache.storage.clone()
    with Copies() as copies:
        cache.move(1, sources, 10)
    assert copies.num_copies == num_copies  # one storage: all layers at once
    before[:, :, 1, :, 10 : 10 + len(sources)] = before[:, :, 1][..., sources, :]
    assert torch.equal(cache.storage, before)


@pytest.mark.parametrize(("asked", "given_slots"), [(1, BLOCK), (BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK)])
def test_slots_come_in_blocks(asked, given_slots):
    cache = new_cache(1, asked)
    assert cache.num_slots == given_slots
    assert cache.keys[0].shape == (1, 2, given_slots, 3)
    assert cache.values[0].shape == (1, 2, given_slots, 4)


def test_growing_token_by_token_copies_rarely():
    cache, num_copies = new_cache(1, 1), 0
    for num_slots in range(1, 40 * BLOCK):
        before = cache.num_slots
        cache.reserve(num_slots)
        num_copies += cache.num_slots != before
    assert num_copies <= 10


@given(
    starts=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    width=st.integers(1, 5),
    window=st.one_of(st.none(), st.integers(1, 12)),
)
@settings(max_examples=150, deadline=None)
def test_a_mask_hides_what_lies_ahead_and_outside_the_window(starts, width, window):
    placement = Placement.chain(starts, width, CPU)
    mask = placement.mask(window, torch.float32)
    end = max(starts) + width
    seen = torch.ones(len(starts), 1, width, end) if mask is None else (mask == 0).expand(len(starts), 1, width, end)
    assert placement.end == end
    for row, start in enumerate(starts):
        for offset in range(width):
            position = start + offset
            first = 0 if window is None else max(position - window + 1, 0)
            assert int(placement.positions[row, offset]) == position
            slots = seen[row, 0, offset].nonzero().flatten().tolist()
            assert slots == list(range(first, position + 1))
    if mask is not None:
        assert mask.dtype == torch.float32
        assert set(mask.unique().tolist()) <= {0.0, torch.finfo(torch.float32).min}
