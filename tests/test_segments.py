"""A common beginning that rows refer to, and what becomes of it; the kernels that read it have tests of their own."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch

from pico import pico
from selfdraft.engine.beginnings import Beginnings
from selfdraft.models import cache as models_cache
from selfdraft.models.cache import LayerShape, SlotCache
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu import graphs as gpu_graphs
from selfdraft.models.gpu import runner as gpu_runner
from selfdraft.models.gpu.forward import ModuleForward
from selfdraft.models.gpu.memory import Device, DraftBuffers, PassBuffers, PromptBuffers
from selfdraft.passes import PassRequest
from test_beginnings import LONG
from test_graphs import new_engine, new_runner

CPU = torch.device("cpu")
BLOCK = 8


def new_cache(num_rows: int = 4) -> SlotCache:
    cache = SlotCache([LayerShape(2, 4, 4)] * 2, num_rows, 64, dtype=torch.float32, device=CPU, shared_block=BLOCK)
    cache.storage.copy_(torch.randn(cache.storage.shape, generator=torch.Generator().manual_seed(1)))
    return cache


def segment(length: int = 30, seed: int = 2) -> list[torch.Tensor]:
    return [torch.randn(2, 2, 2, length, 4, generator=torch.Generator().manual_seed(seed))]


def row_of(cache: SlotCache, row: int) -> torch.Tensor:
    return cache.storage[:, :, row].clone()


def test_whole_blocks_are_referred_to_and_the_rest_is_copied() -> None:
    cache, parts = new_cache(), segment()
    before = cache.storage.clone()
    for row, length in ((0, 30), (1, 8), (2, 7)):
        cache.begin(row, parts, length)
        shared = length // BLOCK * BLOCK
        assert torch.equal(cache.storage[:, :, row, :, shared:length], parts[0][..., shared:length, :])
        assert torch.equal(cache.storage[:, :, row, :, :shared], before[:, :, row, :, :shared])
    address = parts[0].data_ptr()
    assert {row: one.numbers for row, one in cache.segments.items()} == {0: (address, 30, 24), 1: (address, 30, 8)}
    cache.begin(0, segment(seed=3), 5)
    assert list(cache.segments) == [1], "the row begins with something else"


@pytest.mark.parametrize("length", [5, 16, 20, 24, 29, 40])
def test_a_row_that_begins_as_another_refers_to_the_same(length: int) -> None:
    cache, parts = new_cache(), segment()
    cache.begin(0, parts, 30)
    expected = torch.cat((parts[0][..., :24, :], cache.storage[:, :, 0, :, 24:]), -2)[..., :length, :]
    cache.begin(2, 0, length)
    assert (2 in cache.segments) is (length >= BLOCK)
    assert all(one.part is parts[0] for one in cache.segments.values())
    assert cache.segments[0].length == 24
    assert torch.equal(cache.beginning(2, length)[0], expected)
    assert torch.equal(cache.beginning(0, length)[0], expected)


@pytest.mark.parametrize("length", [7, 8, 29])
def test_rows_that_begin_as_one_share_what_it_has(length: int) -> None:
    """It is stored once, beside them."""
    cache = new_cache()
    expected = row_of(cache, 0)[..., :length, :]
    cache.begin(1, 0, length)
    cache.begin(3, 0, length)
    shared = length // BLOCK * BLOCK
    assert [one.length for one in cache.segments.values()] == [shared] * (3 if shared else 0)
    assert len({one.part.data_ptr() for one in cache.segments.values()}) == min(shared, 1)
    for row in (3, 0, 1):
        assert torch.equal(cache.beginning(row, length)[0], expected)


@pytest.mark.parametrize(("length", "expected"), [(15, 8), (16, 8), (23, 8), (24, 24), (29, 24)])
def test_a_row_that_refers_to_little_is_stored_apart(length: int, expected: int) -> None:
    cache, parts = new_cache(), segment()
    cache.begin(0, parts, 8)
    whole = torch.cat((parts[0][..., :8, :], row_of(cache, 0)[..., 8:, :]), -2)
    cache.begin(1, 0, length)
    assert [cache.segments[row].length for row in (0, 1)] == [expected] * 2
    assert cache.segments[0].part is cache.segments[1].part
    assert torch.equal(cache.beginning(1, length)[0], whole[..., :length, :])
    assert torch.equal(cache.beginning(0, 64)[0], whole)


def test_where_memory_is_short_rows_copy_what_another_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, slot_bytes = new_cache(), 2 * 2 * 2 * 4 * 4
    for count, is_shared in ((8 * 24 * slot_bytes - 1, False), (8 * 24 * slot_bytes, True)):
        monkeypatch.setattr(models_cache, "free_bytes", lambda device, count=count: count)
        cache.begin(1, 0, 30)
        assert bool(cache.segments) is is_shared
        assert torch.equal(cache.beginning(1, 30)[0], cache.beginning(0, 30)[0])


def test_a_row_is_made_whole_once() -> None:
    cache, parts = new_cache(), segment()
    cache.begin(0, parts, 30)
    cache.begin(1, parts, 30)
    after = row_of(cache, 0)[..., 24:, :]
    cache.make_whole([0, 3])
    assert torch.equal(row_of(cache, 0), torch.cat((parts[0][..., :24, :], after), -2))
    cache.storage[:, :, 0, :, :24] = 7
    cache.make_whole([0])
    assert (cache.storage[:, :, 0, :, :24] == 7).all(), "it refers to nothing any more"
    assert cache.segments[1].length == 24


def test_it_is_held_until_the_next_row_begins() -> None:
    """A pass that was launched before the text ended may run along in its row."""
    cache, parts = new_cache(), segment()
    alive = weakref.ref(parts[0])
    cache.begin(0, parts, 30)
    del parts
    cache.free_rows([0, 1])
    gc.collect()
    assert cache.segments[0].numbers[2] == 0
    assert alive() is not None
    cache.begin(1, segment(seed=5), 30)
    gc.collect()
    assert alive() is None
    assert list(cache.segments) == [1]


def test_more_slots_and_rows_keep_it_and_an_empty_cache_does_not() -> None:
    cache, parts = new_cache(), segment()
    cache.begin(0, parts, 30)
    cache.begin(3, parts, 30)
    own = row_of(cache, 3)[..., 24:, :]
    cache.resize(6, 128)
    assert cache.segments[3].numbers == (parts[0].data_ptr(), 30, 24)
    assert torch.equal(cache.beginning(3, 64)[0], torch.cat((parts[0][..., :24, :], own), -2))
    assert not cache.without_lease().segments
    cache.resize(2, 128)
    assert list(cache.segments) == [0]
    cache.resize(2, 256, is_empty=True)
    assert not cache.segments


def test_a_cache_of_several_tensors_copies() -> None:
    shapes = [LayerShape(2, 4, 4), LayerShape(1, 4, 4)]
    cache = SlotCache(shapes, 2, 64, dtype=torch.float32, device=CPU, shared_block=BLOCK)
    parts = [torch.randn(shape.num_heads, 20, 4) for shape in (*shapes, *shapes)]
    cache.begin(1, parts, 20)
    assert not cache.segments
    assert all(map(torch.equal, cache.beginning(1, 20), parts))


def test_what_is_sent_names_the_segments_of_the_rows() -> None:
    cache, parts, device = new_cache(), segment(), Device(CPU)
    cache.begin(0, parts, 30)
    cache.begin(2, parts, 17)
    address, request = parts[0].data_ptr(), PassRequest([[1], [2], [3]], [30, 4, 17], [0, 1, 2])
    expected = [[address, 30, 24, 0], [0] * 4, [address, 30, 16, 0], [0] * 4]
    for buffers in (PassBuffers(device, 4, 1), DraftBuffers(device, 4), PromptBuffers(device, 8, 4, 64)):
        for _ in range(2):
            buffers.send_request(request, cache)
            assert buffers.tensors["segments"].tolist() == expected
        cache.make_whole([0])
        buffers.send_request(request, cache)
        assert buffers.tensors["segments"][0].tolist() == [address, 30, 0, 0]
        buffers.send_request(request, new_cache())
        assert not buffers.tensors["segments"].any()
        cache.begin(0, parts, 30)


# ------------------------------------------------------------------------------------------- routes that read the cache


class Absent(ModuleForward):
    """Stands for the fused one, which is the first and would read segments; here it is too small for every pass."""

    max_tokens, shared_block = 0, BLOCK


def make_forwards(decoder: Any) -> Any:
    return Absent(decoder), ModuleForward(decoder)


sharing_runner = functools.partial(new_runner, make_forwards=make_forwards)
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"strategy": "off"},
    "a draft on the device": {"strategy": "fixed"},
    "a tree": {"strategy": "uniform", "tree": "siblings", "temperature": 0.8, "seed": 2},
    "probes": {"strategy": "swift"},
    "states of known layers": {"strategy": "early-exit"},
    "rejection": {"strategy": "uniform", "acceptance": "rejection", "temperature": 0.9},
    "not recorded": {"strategy": "off"},
}


@pytest.mark.parametrize("name", METHODS)
def test_what_reads_the_cache_alone_finds_it_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts again, of which nothing is read, and the next turn of a chat."""
    engine, whole = new_engine(pico("llama"), sharing_runner), new_engine(pico("llama"), prefix_cache=False)
    if name == "not recorded":
        monkeypatch.setattr(engine.runner, "_forward_for", lambda widths: None)
    prompts, referring, begin = [[*LONG, 3, place] for place in range(3)], [], SlotCache.begin

    def noted(cache: SlotCache, row: int, *arguments: Any) -> None:
        begin(cache, row, *arguments)
        referring.extend([row] * (row in cache.segments))

    monkeypatch.setattr(SlotCache, "begin", noted)
    for turn in range(3):
        found, expected = (one.generate(prompts, max_new_tokens=9, **METHODS[name]) for one in (engine, whole))
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        if turn:
            prompts = [[*prompt, *text.tokens, 8, 9] for prompt, text in zip(prompts, found, strict=True)]
    assert sorted(referring) == [0, 0, 1, 1, 1, 2, 2, 2]


def test_a_probe_and_a_prompt_find_it_whole() -> None:
    runner = sharing_runner(pico("llama"))
    known = runner.new_cache(1, 64)
    runner.forward(PassRequest([LONG[:40]], [0], needs_scores=False), known)
    parts = [part.clone() for part in known.beginning(0, 40)]
    request = PassRequest([LONG[40:50]], [40], capture=("norm",), needs_scores=False)
    for read in (
        lambda cache: runner.probe(cache, LONG[30:40], 30).run(0, runner.probe(cache, LONG[30:40], 30).begin()).hidden,
        lambda cache: runner.forward(request, cache).captured["norm"],
    ):
        cache, expected = runner.new_cache(1, 64), read(known)
        cache.begin(0, parts, 40)
        assert cache.segments
        assert torch.equal(read(cache), expected)


def test_what_a_text_leaves_is_taken_before_its_row_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that has been given up refers to nothing."""
    keep, kept = Beginnings.keep, []

    def noted(beginnings: Beginnings, cache: SlotCache, sequence: Any) -> None:
        kept.append(cache.was_freed([sequence.row], 0))
        keep(beginnings, cache, sequence)

    monkeypatch.setattr(Beginnings, "keep", noted)
    new_engine(pico("llama"), sharing_runner).generate([LONG, LONG[::-1]], max_new_tokens=3)
    assert kept == [False, False]


def test_a_recording_that_fails_leaves_rows_whole() -> None:
    runner, eager = sharing_runner(pico("llama")), EagerRunner(pico("llama"))
    caches = [one.new_cache(2, 64) for one in (runner, eager)]
    for one, cache in zip((runner, eager), caches, strict=True):
        one.forward(PassRequest([LONG[:40]], [0], [0], needs_scores=False), cache)
    parts = [part.clone() for part in caches[0].beginning(0, 40)]
    caches[0].begin(1, parts, 40)
    caches[1].begin(1, 0, 40)
    with mock.patch.object(gpu_runner.Passes, "run", side_effect=gpu_graphs.RecordingError("no room")):
        found = runner.forward(PassRequest([[5, 6]], [40], [1]), caches[0])
    expected = eager.forward(PassRequest([[5, 6]], [40], [1]), caches[1])
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
