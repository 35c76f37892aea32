"""GraphRunner on a tape instead of CUDA graphs: what is recorded and replayed equals the eager runner."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from cases import MODES, SETTINGS, Case, name, pairwise
from learned import profile
from pico import VOCAB_SIZE, letter_tokenizer, pico
from selfdraft import Engine, Generation, SkipSet
from selfdraft.chains import DraftTask
from selfdraft.drafters.lookup import Lookup
from selfdraft.drafters.model import Model
from selfdraft.engine import accept, logprobs
from selfdraft.engine import engine as engine_module
from selfdraft.engine import prefill as engine_prefill
from selfdraft.engine.draft import Rule, grow
from selfdraft.engine.sampling import Sampler
from selfdraft.engine.verify import tree_mask
from selfdraft.errors import OptionError
from selfdraft.models.cache import StoragePool
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu import draft as gpu_draft
from selfdraft.models.gpu import drafts as gpu_drafts
from selfdraft.models.gpu import forward as gpu_forward
from selfdraft.models.gpu import graphs as gpu_graphs
from selfdraft.models.gpu import runner as gpu_runner
from selfdraft.models.gpu.forward import ModuleForward
from selfdraft.models.gpu.graphs import Graphs, RecordingError
from selfdraft.models.gpu.memory import Device, PassBuffers
from selfdraft.models.gpu.prefill import Prefill
from selfdraft.models.gpu.runner import GraphRunner, make_runner
from selfdraft.options import GenerateOptions
from selfdraft.passes import SETTINGS as SETTINGS_OF_ROWS
from selfdraft.passes import ChoiceKind, Choosing, PassOutput, PassRequest, Site
from selfdraft.protocols import DraftRows, Host
from selfdraft.strategies.matching import _through
from selfdraft.trees.siblings import Siblings
from selfdraft.types import Draft, Plan
from tape import Tape, TapeRecorder
from test_lossless import NUM_TOKENS, PROMPTS, reference
from test_trees import COMB, SMALL
from test_trees import PROMPTS as TEXTS

CPU = torch.device("cpu")
SKIP = SkipSet.parse("a1-2,m2-3")


def new_runner(model: Any, *_: Any, **options: Any) -> GraphRunner:
    return GraphRunner(model, **{"make_recorder": TapeRecorder, **options})


def new_engine(model: Any, make: Callable[..., Any] = new_runner, **options: Any) -> Engine:
    with mock.patch.object(engine_module, "make_runner", make):
        return Engine(model, **{"strategy": "uniform", "settings": SETTINGS, "profile": profile(), **options})


@pytest.fixture(autouse=True)
def begins_with_sublayers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models would begin a pass with none of them."""
    monkeypatch.setattr(gpu_forward, "HEAD_START", 3)


@functools.cache
def engine_for(family: str) -> Engine:
    return new_engine(pico(family))


@functools.cache
def engine_with_short_buckets() -> Engine:
    """For tests with `short_buckets`; what one has recorded serves the next."""
    return new_engine(pico("llama"))


@pytest.fixture
def short_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", 16)


# ------------------------------------------------------------------------------------------------------ single passes


class Pair:
    """The same passes on an eager and on a recorded runner, each with a cache of its own."""

    def __init__(self, variant: str, texts: tuple[list[int], ...] = TEXTS) -> None:
        self.runners = (EagerRunner(pico(variant)), new_runner(pico(variant)))
        self.caches = [runner.new_cache(len(texts), 32) for runner in self.runners]
        self.starts = [len(text) - 1 for text in texts]
        for runner, cache in zip(self.runners, self.caches, strict=True):
            for row, text in enumerate(texts):
                if len(text) > 1:
                    runner.forward(PassRequest([text[:-1]], [0], rows=[row], needs_scores=False), cache)

    @property
    def graphs(self) -> Graphs:
        return self.runners[1].graphs

    def check(self, tokens: list[list[int]], starts: list[int] | None = None, **options: Any) -> PassOutput:
        expected, found = (
            runner.forward(PassRequest(tokens, starts or self.starts, **options), cache)
            for runner, cache in zip(self.runners, self.caches, strict=True)
        )
        if not options.get("run_ahead"):  # the pass ahead has overwritten them
            torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
        assert found.choices() == expected.choices() == expected.scores.argmax(-1).tolist()
        assert found.captured.keys() == expected.captured.keys()
        for point in found.captured:
            torch.testing.assert_close(found.captured[point], expected.captured[point], rtol=1e-4, atol=1e-4)
        return found

    def check_drafts(self, drafts: list[Draft], **options: Any) -> None:
        width = max(len(draft.tokens) for draft in drafts)
        tokens = [[17, *draft.tokens, *[0] * (width - len(draft.tokens))] for draft in drafts]
        self.check(tokens, tree=tree_mask(drafts, width + 1), **options)


@pytest.mark.parametrize("variant", ["llama", "qwen2-sliding", "gemma2", "gemma3_text", "gpt2", "gpt_neox"])
def test_a_recorded_pass_is_the_eager_pass(variant: str) -> None:
    """Chains and trees, skipped and captured, replayed with other tokens elsewhere: nothing of the first is frozen."""
    pair = Pair(variant)
    for shift in (0, 1, 5):
        pair.starts = [start + (shift > 0) for start in pair.starts]
        pair.check([[(token + shift) % 100] for token in (11, 50, 7)])
        pair.check([[token + shift, 3, 9 + shift] for token in (4, 8, 12)], skip=SKIP)
        pair.check([[20 + shift, 21, 22, 23]], [pair.starts[1]], rows=[1], capture=("embedding", "a2", "m3", "norm"))
        pair.check([[5, 6 + shift]] * 3, skip=SKIP, capture=("m0", "a1", "a2", "m4"))
        pair.check_drafts([COMB, SMALL, Draft.chain([9, shift, 9])])
    assert pair.graphs.num_captures == pair.graphs.num_graphs == 5
    assert pair.runners[1].fallback_reason is None


def test_growth_fewer_rows_and_bucket_borders(short_buckets: None) -> None:
    pair = Pair("qwen2-sliding")
    for _ in range(30):
        pair.check([[11], [50], [7]])
        pair.starts = [start + 1 for start in pair.starts]
    for cache in pair.caches:
        cache.reserve(300)
    pair.check([[1, 2], [3, 4], [5, 6]])
    pair.starts = [pair.starts[0], pair.starts[2]]
    pair.check([[1, 2], [5, 6]], rows=[0, 2])
    pair.check_drafts([SMALL, COMB], rows=[0, 2])
    for cache, nodes in zip(pair.caches, ([0, 1, 6], [0, 1, 6]), strict=True):
        cache.move(2, [pair.starts[1] + 1 + node for node in nodes], pair.starts[1] + 1)
    pair.starts[1] += 4
    pair.check([[9], [9]], rows=[0, 2])


@pytest.mark.parametrize("is_recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("starts", [(4, 9), (6, 6)], ids=["ragged", "alike"])
@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_rows_that_are_not_neighbours_are_single_rows(
    is_recorded: bool, starts: tuple[int, int], is_tree: bool
) -> None:
    """What stands between them stays, bit by bit."""
    runner, rows, drafts = (new_runner if is_recorded else EagerRunner)(pico("llama")), [0, 2], [SMALL, SMALL]
    together, alone = (runner.new_cache(3, 64) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for shift in range(2):  # the second pass is a replay, elsewhere
        together.storage.copy_(torch.randn(together.storage.shape, generator=generator))
        alone.storage.copy_(together.storage)
        before = together.storage.clone()
        places, width = [start + shift for start in starts], len(SMALL.tokens) + 1
        tokens = [[17 + row + shift, *SMALL.tokens] for row in rows]
        tree = tree_mask(drafts, width) if is_tree else None
        found = runner.forward(PassRequest(tokens, places, rows, tree=tree), together)
        scores, choices = found.scores.clone(), found.choices()
        for number, row in enumerate(rows):
            mask = tree_mask(drafts[:1], width) if is_tree else None
            single = runner.forward(PassRequest([tokens[number]], [places[number]], [row], tree=mask), alone)
            torch.testing.assert_close(scores[number], single.scores[0], rtol=1e-4, atol=1e-4)
            assert choices[number] == single.choices()[0]
        torch.testing.assert_close(together.storage, alone.storage, rtol=1e-4, atol=1e-4)
        assert torch.equal(together.storage[:, :, 1], before[:, :, 1])
        assert not torch.equal(together.storage[:, :, 2], before[:, :, 2])
    if is_recorded:
        assert runner.graphs.num_captures == 3, "the rows together, and each alone"


def test_wide_passes_and_prefill_are_not_recorded() -> None:
    pair = Pair("llama")
    pair.check([[token % 90 for token in range(64)]], [0])
    assert pair.graphs.num_captures == 0
    pair.check([[token % 90 for token in range(63)]], [0])
    assert pair.graphs.num_captures == 1


class LooseForward(ModuleForward):
    """As if it found the cache by itself: rows are padded, and the recording serves every cache of the same shape."""

    holds_cache = False


def test_rows_are_padded_where_the_forward_finds_the_cache_itself() -> None:
    runner = new_runner(pico("llama"), make_forwards=lambda decoder: (LooseForward(decoder),))
    eager, cache = EagerRunner(pico("llama")), runner.new_cache(4, 64)
    other = eager.new_cache(3, 64)
    for tokens in ([[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 1], [2, 3]]):
        found = runner.forward(PassRequest(torch.tensor(tokens), [0, 0, 0]), cache)
        expected = eager.forward(PassRequest(torch.tensor(tokens), [0, 0, 0]), other)
        assert found.scores.shape == expected.scores.shape
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
        assert found.choices() == expected.choices()
    (buffers, _) = runner._passes._buffers(4, 2)
    assert buffers.header.tolist() == [cache.address, cache.num_slots, 4, 0, 3, 0, 0, 0, 0, 1, 2, 0]
    assert runner.graphs.num_captures == 1


def test_a_draft_does_not_hear_of_the_last_ones_progress() -> None:
    """A recording made in the middle of a draft sends what the device has noted so far."""
    outputs = gpu_draft.DraftOutputs(Device(CPU), 1, 1, None)
    outputs.begin()
    outputs.progress.fill_(gpu_draft.DEPTH)
    outputs.send()
    assert not outputs.num_going_on(1)
    outputs.end()
    outputs.begin()
    outputs.send()
    assert outputs._flag[0] == 0


def test_a_forward_settles_after_every_prefill() -> None:
    """When the next pass comes: what a strategy computes of the prompt is in between."""
    runner = new_runner(pico("llama"))
    cache = runner.new_cache(1, 64)
    with mock.patch.object(ModuleForward, "settle") as settle:
        runner.forward(PassRequest([[1, 2, 3]], [0], needs_scores=False), cache)
        assert settle.call_count == 0
        for slot in (3, 4):
            runner.forward(PassRequest([[4]], [slot]), cache)
            assert settle.call_count == 1


def test_prompts_are_packed_into_the_largest_recorded_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is captured: products of other sizes round differently, and in half precision texts would differ."""

    class Recorded(Prefill):
        recorded_widths = (8, 24)

        def run(self, request: PassRequest, cache: Any) -> PassOutput:
            widths.append([len(row) for row in request.tokens])
            return super().run(request, cache)

    widths: list[list[int]] = []
    make = functools.partial(new_runner, make_prefill=lambda decoder, graphs: Recorded(decoder))
    engine = new_engine(pico("llama"), make, prefix_cache=False)
    monkeypatch.setattr(engine_prefill, "PREFILL_CHUNK", 8)
    plain = new_engine(pico("llama"))
    prompt = [token * 7 % 90 for token in range(21)]
    for prompts, needs, expected in (
        ([prompt], (), [[20]]),
        ([prompt, prompt[:9], prompt[::-1]], (), [[20, 4], [4, 20]]),
        ([prompt, prompt[::-1]], (), [[20, 4], [16]]),
        ([prompt, prompt[::-1]], ("m0", "norm"), [[20, 4], [16]]),
    ):
        widths.clear()
        monkeypatch.setattr(engine._method({}).strategy, "prefill_needs", needs)
        found = engine.generate(prompts, max_new_tokens=3)
        assert widths == expected
        assert [one.tokens for one in found] == [one.tokens for one in plain.generate(prompts, max_new_tokens=3)]


def test_the_first_forward_that_is_large_enough_runs_a_pass() -> None:
    class Small(ModuleForward):
        max_tokens = 4

    runner = new_runner(pico("llama"), make_forwards=lambda decoder: (Small(decoder), ModuleForward(decoder)))
    cache = runner.new_cache(1, 64)
    with mock.patch.object(Small, "begin", autospec=True, side_effect=ModuleForward.begin) as begin:
        runner.forward(PassRequest([[1, 2, 3, 4]], [0]), cache)
        used = begin.call_count
        runner.forward(PassRequest([[1, 2, 3, 4, 5]], [0]), cache)
    assert used == begin.call_count > 0
    assert runner.graphs.num_captures == 2


def test_packed_tokens_are_padded_by_a_half_at_most() -> None:
    sizes = sorted({gpu_graphs.padded_tokens(number) for number in range(1, 513)})
    assert sizes == [16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert all(number <= gpu_graphs.padded_tokens(number) for number in range(1, 1000))


def test_buffers_hold_what_a_pass_needs() -> None:
    buffers, cache = PassBuffers(Device(CPU), 2, 4), EagerRunner(pico("llama")).new_cache(3, 64)
    buffers.fill(PassRequest([[8, 9, 7]], [5], [1]), cache)
    assert buffers.tokens.count_nonzero() == 0, "not sent yet"
    buffers.send()
    assert buffers.header.tolist() == [cache.address, 64, 3, 0, 1, 5, 0, 0, 1, 0]
    assert buffers.starts.tolist() == [5, 0]
    assert buffers.tokens.tolist() == [[8, 9, 7, 0], [0] * 4]
    assert buffers.depths.tolist() == [[0, 1, 2, 0], [0] * 4]
    assert buffers.sees.tolist() == [[0b1, 0b11, 0b111, 0b1001], [0b1, 0b11, 0b101, 0b1001]]
    assert (buffers.first.tolist(), buffers.places.tolist()) == ([0, 4, 4, 4], [*range(8)])
    buffers.fill(PassRequest([[8, 9, 7]], [5], tree=tree_mask([grow([[4, 0]], [], 1)], 3)), cache)
    assert buffers.host["sees"][0].tolist() == [0b1, 0b11, 0b101, 0b1001]
    assert buffers.host["depths"][0].tolist() == [0, 1, 1, 0]
    buffers = PassBuffers(Device(CPU), 4, 4)
    buffers.fill(PassRequest([[8, 9, 7], [1, 0, 0], [2, 3, 0]], [5, 6, 7], widths=[3, 1, 2]), cache, num_tokens=8)
    buffers.send()
    assert buffers.first.tolist() == [0, 3, 4, 6, 6, 6]
    assert buffers.places.tolist() == [0, 1, 2, 4, 8, 9, 3, 5], "what pads comes last"
    assert sorted(buffers.tensors["places"].tolist()) == [*range(16)]
    wide = PassBuffers(Device(CPU), 1, 63)
    wide.fill(PassRequest([[0] * 63], [0]), cache)
    assert wide.host["sees"][0, -1] == 2**63 - 1


# ----------------------------------------------------------------------------------------------- keeping recordings


def test_what_was_used_again_stays_and_the_least_recently_used_goes() -> None:
    graphs = Graphs(lambda function, reset, is_warm: (mock.Mock(num_bytes=10), function()), max_bytes=20)

    def use(key: str) -> None:
        graphs.get(key, lambda record: record(lambda: None))

    for key in "ABAC":
        use(key)
    assert (graphs.num_graphs, graphs.num_bytes, graphs.num_captures) == (2, 20, 3)
    use("A")
    assert graphs.num_captures == 3
    use("B")
    assert graphs.num_captures == 4
    assert graphs.record_seconds > 0
    graphs.clear()
    assert (graphs.num_graphs, graphs.num_bytes) == (0, 0)
    use("B")
    assert graphs.num_captures == 5


class Counting(TapeRecorder):
    """Notes of each recording whether it was warm; the next `num_failures` warm ones fail, all take `seconds` more."""

    def __init__(self) -> None:
        super().__init__()
        self.were_warm: list[bool] = []
        self.num_failures, self.seconds = 0, 0.0

    def __call__(self, function: Any, reset: Any = None, is_warm: bool = False) -> Any:
        self.were_warm.append(is_warm)
        time.sleep(self.seconds)
        if is_warm and self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("not compiled yet")
        return super().__call__(function, reset, is_warm)


def drafts_with(engine: Engine, *skips: str) -> list[Any]:
    """One strategy that changes its mind: a text with each skip set."""
    found = []
    for skip in skips:
        with mock.patch.object(engine._method({}).strategy, "plan", lambda *_, skip=skip: Plan(SkipSet.parse(skip))):
            found.append(engine.generate([1, 2, 3], max_new_tokens=12))
    return found


def counting_engine() -> tuple[Engine, Counting]:
    """All its passes and one draft are recorded."""
    recorder = Counting()
    engine = new_engine(pico("llama"), lambda model, *_: new_runner(model, make_recorder=lambda _: recorder))
    engine.prepare(64)
    recorder.were_warm.clear()
    return engine, recorder


def test_of_one_kind_of_work_the_first_alone_is_warmed_up() -> None:
    """A new skip set is the same kernels in another composition, unless no attention or no MLP was left before."""
    engine, recorder = counting_engine()
    num_layers = engine.runner.num_layers
    plain = Engine(pico("llama")).generate([1, 2, 3], max_new_tokens=12, strategy="off").tokens
    for skips, are_warm in (
        (["a2", "m1-3", "a1-2,m0"], {True}),
        ([f"a0-{num_layers - 1}"], {False}),
        ([f"a0-{num_layers - 1},m1"], {True}),
    ):
        recorder.were_warm.clear()
        assert all(found.tokens == plain for found in drafts_with(engine, *skips))
        assert set(recorder.were_warm) == are_warm, skips
        assert len(recorder.were_warm) == 2 * len(skips)


def test_what_cannot_be_recorded_without_a_warm_up_gets_one() -> None:
    (engine, _), (failing, recorder) = counting_engine(), counting_engine()
    recorder.num_failures = 1
    assert drafts_of(drafts_with(failing, "a2")) == drafts_of(drafts_with(engine, "a2"))
    assert recorder.were_warm == [True, False, False]
    assert failing.runner.fallback_reason is None
    assert not failing._runner._drafts.refused
    assert failing._runner.graphs.num_captures == engine._runner.graphs.num_captures


def test_recording_is_optimising_and_told_apart() -> None:
    engine, recorder = counting_engine()
    recorder.seconds = 0.05
    first, again = drafts_with(engine, "a2", "a2")
    assert recorder.were_warm == [True, True]
    assert first.stats.record_seconds >= 0.1
    assert first.stats.optimise_seconds >= first.stats.record_seconds
    parts = [getattr(first.stats, f"{part}_seconds") for part in ("optimise", "draft", "verify")]
    assert sum(parts) <= first.stats.decode_seconds
    assert again.stats.record_seconds == 0
    assert [step.record_seconds > 0 for step in first.steps].count(True) == 1
    assert engine.runner.record_seconds > first.stats.record_seconds


def test_rounds_that_record_take_no_longer_to_draft() -> None:
    """By a clock that stands still but for recording."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])

    class Slow(TapeRecorder):
        def __call__(self, *arguments: Any) -> Any:
            now[0] += 1.0
            return super().__call__(*arguments)

    with mock.patch.object(gpu_runner, "time", clock), mock.patch.object(gpu_graphs, "time", clock):
        engine = new_engine(pico("llama"), lambda model, *_: new_runner(model, make_recorder=Slow))
        (found,) = drafts_with(engine, "a1,m2")
        num_captures = engine._runner.graphs.num_captures
    stats = found.stats
    assert (stats.draft_seconds, stats.verify_seconds) == (0, 0)
    assert stats.record_seconds == stats.optimise_seconds == stats.decode_seconds == num_captures > 0


def test_seconds_of_recording_only_grow() -> None:
    """Also where a model is recorded from the start, in the middle of a text."""
    engine, _ = counting_engine()
    before = engine.runner.record_seconds
    engine._runner._begin()
    assert engine.runner.record_seconds == before > 0


def test_recordings_serve_the_next_generation() -> None:
    engine = new_engine(pico("llama"))
    runner = engine._runner
    options: list[dict[str, Any]] = [{}, {"strategy": "off"}, {"tree": "siblings", "temperature": 0.9, "seed": 3}]
    prompts = ([1, 2, 3], [*TEXTS[:2]])
    first = [engine.generate(prompt, max_new_tokens=10, **option) for prompt in prompts for option in options]
    gc.collect()
    captures, size = runner.graphs.num_captures, runner.graphs.num_bytes
    again = [engine.generate(prompt, max_new_tokens=10, **option) for prompt in prompts for option in options]
    assert runner.graphs.num_captures == captures == runner.graphs.num_graphs > 10
    assert runner.graphs.num_bytes == size
    assert tokens_of(first) == tokens_of(again)


def test_a_finished_generation_leaves_its_storage_at_once() -> None:
    """Nothing that a round makes refers to itself: the next generation need not wait for the garbage collector."""
    engine = new_engine(pico("llama"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            engine.generate([1, 2, 3], max_new_tokens=10, strategy="fixed", tree="siblings")
            assert len(engine._runner._storages._free) == 1
    finally:
        gc.enable()


def tokens_of(results: Any) -> list[Any]:
    return [tokens_of(item) if isinstance(item, list) else item.tokens for item in results]


def test_recordings_go_with_the_storage_they_are_bound_to() -> None:
    runner = new_runner(pico("llama"))
    for rows in range(1, 8):
        runner.forward(PassRequest([[1]] * rows, [0] * rows), runner.new_cache(rows, 64))
    gc.collect()
    _held = runner.new_cache(9, 64)
    assert runner.graphs.num_graphs == len(runner._storages._free) == 4


def test_a_storage_is_handed_on_empty_and_once() -> None:
    pool = StoragePool()
    shape = (1, 2, 1, 1, 64, 4)
    storage, lease = pool.take(shape, torch.float32, CPU)
    storage.fill_(torch.nan)
    other, _ = pool.take(shape, torch.float32, CPU)
    assert other.data_ptr() != storage.data_ptr()
    address = storage.data_ptr()
    del lease
    again, _held = pool.take(shape, torch.float32, CPU)
    assert again.data_ptr() in (address, other.data_ptr())
    assert not again.any()


def test_a_model_that_was_changed_is_recorded_again() -> None:
    model = copy.deepcopy(pico("llama"))
    engine = new_engine(model)
    engine.generate([1, 2, 3], max_new_tokens=5)
    model.double()
    found = engine.generate([1, 2, 3], max_new_tokens=20)
    assert engine._runner.graphs.num_captures > 0
    assert engine._runner.new_cache(1, 5).keys[0].dtype == torch.float64
    plain = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20, do_sample=False)
    assert list(found.tokens) == plain[0, 3:].tolist()


# ----------------------------------------------------------------------------------------------------- ahead of time

METHODS: list[dict[str, Any]] = [
    {"strategy": "off"},
    {"strategy": "fixed", "tree": "siblings"},
    {"strategy": "early-exit", "lookahead": "fixed", "acceptance": "rejection"},
    {"strategy": "fixed", "settings": {"self": {"vocabulary": 50}}},
    {"drafter": "model", "lookahead": "fixed"},
]


def loose_runner(model: Any, *_: Any) -> GraphRunner:
    return new_runner(model, make_forwards=lambda decoder: (LooseForward(decoder),))


def refused_runner(model: Any, *_: Any) -> GraphRunner:
    recorder = mock.Mock(side_effect=NotImplementedError("no graphs here"))
    return new_runner(model, make_recorder=lambda device: recorder)


def slow(method: dict[str, Any]) -> Any:
    return pytest.param(method, marks=pytest.mark.full)


def method_name(method: dict[str, Any]) -> str:
    return "-".join(str(value) for key, value in method.items() if key != "settings")


@pytest.mark.parametrize("method", [METHODS[0], *map(slow, METHODS[1:])], ids=method_name)
def test_what_was_prepared_is_not_recorded_again(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Short and long texts, over bucket borders."""
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", 64)  # as many as a cache has at least
    engine = new_engine(pico("llama"))
    graphs = engine._runner.graphs
    engine.prepare(90, **method)
    captures, size = graphs.num_captures, graphs.num_bytes
    assert captures > 0
    drafted = [one.graphs for one in engine._parts._host.draft_runners.values()]
    drafts = [one.num_captures for one in drafted]
    assert bool(drafts) == (method.get("drafter") == "model")
    for prompt, count in ((TEXTS[0] * 4, 27), ([7], 10)):
        found = engine.generate(prompt, max_new_tokens=count, **method)
        plain = Engine(pico("llama")).generate(prompt, max_new_tokens=count, strategy="off")
        assert found.tokens == plain.tokens
        assert (graphs.num_captures, graphs.num_bytes) == (captures, size)
    assert [one.num_captures for one in drafted] == drafts
    engine.prepare(90, **method)
    assert graphs.num_captures == captures


def test_recordings_that_find_the_cache_themselves_are_prepared_once(short_buckets: None) -> None:
    bound, loose = new_engine(pico("llama")), new_engine(pico("llama"), loose_runner)
    for engine in (bound, loose):
        engine.prepare(70, strategy="off")
    ends = [key.end for key in loose._runner.graphs._entries if key.kind == "pass"]
    assert ends == [16, 32, 64, 128], "a plain pass each"
    assert loose._runner.graphs.num_captures == len(ends) + 1 < bound._runner.graphs.num_captures


@pytest.mark.full
def test_preparing_stays_within_the_context(short_buckets: None) -> None:
    """After the last position there is nothing to look up."""
    engine = new_engine(pico("gpt2", n_positions=64), tree="siblings")
    assert engine.context_length == 64
    with mock.patch.object(engine._runner, "forward", wraps=engine._runner.forward) as forward:
        engine.prepare(1000)
    requests = [call.args[0] for call in forward.call_args_list]
    ends = [request.starts[0] + request.tokens.shape[1] for request in requests]
    assert max(ends) == 64
    forward.reset_mock()  # it holds the scratch caches
    assert engine._runner.fallback_reason is None
    captures = engine._runner.graphs.num_captures
    engine.generate([1, 2, 3], max_new_tokens=100)
    assert engine._runner.graphs.num_captures == captures


def test_captured_states_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine(pico("llama"), strategy="uniform")
    monkeypatch.setattr(engine._method({}).strategy, "needs", ("m1", "norm"))
    engine.prepare(64)
    captures = engine._runner.graphs.num_captures
    engine.generate([1, 2, 3], max_new_tokens=40)
    assert engine._runner.graphs.num_captures == captures > 0


@pytest.mark.parametrize(("options", "num_sets"), [({"candidates": 3}, 4), ({"paper": True}, 1)])
def test_what_a_plan_scores_is_prepared(options: Mapping[str, Any], num_sets: int) -> None:
    """What is asked for twice is recorded: in a cache of each size, as many sets at once as steps have."""
    engine = new_engine(pico("llama"))
    engine.prepare(100, strategy="swift", settings={"swift": {"window": 32, **options}})
    works = [key for key in engine._runner.graphs._entries if isinstance(key.kind, tuple) and key.kind[0] is _through]
    assert {(key.width, key.kind[1][0][1]) for key in works} == {(32, num_sets)}
    assert len(works) == len(engine._runner.recorded_slots(100 + 64))


def test_prompts_are_prepared_width_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few tokens as a prompt of the last width may have; with the states that are captured of it alone."""
    engine = new_engine(pico("llama"), strategy="uniform")
    method = engine._method({})
    monkeypatch.setattr(method.strategy, "needs", ("m1",))
    monkeypatch.setattr(method.strategy, "prefill_needs", ("norm", "m1"))
    monkeypatch.setattr(engine._runner._prefill, "recorded_widths", (8, 16, 24, 32))
    with mock.patch.object(engine._runner._prefill, "run", wraps=engine._runner._prefill.run) as run:
        engine.prepare(22)
    requests = [call.args[0] for call in run.call_args_list]
    assert [len(request.tokens[0]) for request in requests] == [8, 16, 21]
    assert {tuple(request.capture) for request in requests} == {("m1", "norm")}


def test_a_strategy_without_known_plans_gets_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine(pico("llama"), strategy="uniform")
    monkeypatch.setattr(engine._method({}).strategy, "known_plans", ())
    monkeypatch.setattr(engine._method({}).lookahead, "max_tokens", None)
    engine.prepare(64)
    keys = [key for key in engine._runner.graphs._entries if key.kind == "pass"]
    assert [key.width for key in keys] == [1, 2, 4, 6, 8, 12, 16]
    assert not any(key.skip for key in engine._runner.graphs._entries)
    engine.prepare(64, tree="siblings")
    assert max(key.width for key in engine._runner.graphs._entries) == 63


def test_nothing_is_prepared_where_nothing_is_recorded() -> None:
    engine = Engine(pico("llama"))
    with mock.patch.object(EagerRunner, "forward", side_effect=AssertionError):
        engine.prepare()
    fallen = new_engine(pico("llama"), refused_runner)
    fallen.prepare(40)
    assert fallen._runner.fallback_reason == "NotImplementedError: no graphs here"
    with mock.patch.object(GraphRunner, "forward", side_effect=AssertionError):
        fallen.prepare(40)


def test_prepare_checks_what_it_is_given() -> None:
    engine = new_engine(pico("llama"))
    with pytest.raises(OptionError, match="num_tokens must be at least 1, got 0"):
        engine.prepare(0)
    with pytest.raises(OptionError, match="'temperature' belongs to a call"):
        engine.prepare(temperature=1.0)


# ------------------------------------------------------------------------------------------ what cannot be recorded


def test_a_model_that_cannot_be_recorded_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    engine = new_engine(pico("llama"), refused_runner)
    with caplog.at_level(logging.WARNING):
        found = [engine.generate(prompt, max_new_tokens=30) for prompt in PROMPTS]
    assert len(caplog.records) <= 2, "one for the drafts, one for the passes"
    assert engine._runner.fallback_reason == "NotImplementedError: no graphs here"
    assert "every operation is launched by itself: NotImplementedError: no graphs here" in caplog.messages[-1]
    eager = Engine(pico("llama"), strategy="uniform", settings=SETTINGS, profile=profile())
    assert tokens_of(found) == tokens_of([eager.generate(prompt, max_new_tokens=30) for prompt in PROMPTS])


def test_a_mixture_of_experts_says_the_same_recorded_or_not() -> None:
    engine = engine_for("qwen3_moe")
    plain = reference("qwen3_moe", "greedy", 0)
    assert engine.generate(PROMPTS[0], max_new_tokens=NUM_TOKENS).tokens == plain.tokens


def test_a_lookahead_that_reads_values_goes_token_by_token(caplog: pytest.LogCaptureFixture) -> None:
    engine = new_engine(pico("llama"), lookahead="confidence")
    lookahead = engine._method({}).lookahead
    wants_more = lookahead.wants_more

    def reads(stats: Any) -> torch.Tensor:
        return wants_more(stats) if stats.confidence.sum().item() > 0 else stats.depth < 0

    lookahead.wants_more = reads
    with caplog.at_level(logging.WARNING):
        found = engine.generate(list(PROMPTS), max_new_tokens=30)
    assert "token by token" in caplog.messages[0]
    assert engine._runner.fallback_reason is None
    assert engine._runner.graphs.num_graphs > 0
    assert tokens_of(found) == tokens_of(Engine(pico("llama")).generate(list(PROMPTS), max_new_tokens=30))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.item(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x + torch.tensor([1])],
)
def test_the_tape_refuses_what_a_graph_cannot_hold(function: Callable[[torch.Tensor], Any]) -> None:
    number = torch.ones(1)
    with pytest.raises(RuntimeError, match="needs the host"):
        TapeRecorder()(lambda: function(number))
    with pytest.raises(RecordingError, match=r"RuntimeError: .* needs the host"):
        Graphs(TapeRecorder()).get("key", lambda record: record(lambda: function(number)))


def test_the_tape_freezes_python_values_and_nothing_else() -> None:
    source, numbers = torch.zeros(3), iter(range(10))
    tape, result = TapeRecorder()(lambda: (source + next(numbers)).view(1, 3)[0])
    source.copy_(torch.tensor([1.0, 2.0, 3.0]))
    tape.replay()
    assert result.tolist() == [2.0, 3.0, 4.0]
    assert isinstance(tape, Tape)
    assert tape.num_bytes > 0


def test_which_runner() -> None:
    assert type(make_runner(pico("llama"))) is EagerRunner
    assert type(Engine(pico("llama"), graphs=False)._runner) is EagerRunner
    model = mock.Mock(device=torch.device("cuda"))
    with mock.patch.object(gpu_runner, "GraphRunner") as graphs, mock.patch.object(gpu_runner, "EagerRunner"):
        assert make_runner(model) is graphs.return_value
        assert make_runner(model, graphs=False) is not graphs.return_value


# ------------------------------------------------------------------------------------------------------ running ahead


def run_plain(runner: EagerRunner | GraphRunner, count: int) -> list[int]:
    """`count` tokens after token 5, each fed when it is known."""
    cache, said = runner.new_cache(1, 100), [5]
    for position in range(count):
        said += runner.forward(PassRequest([said[-1:]], [position], run_ahead=True), cache).choices()[0]
    return said


@pytest.mark.parametrize(("slots", "num_borders"), [(64, 0), (16, 2)], ids=["one bucket", "over borders"])
def test_plain_decoding_runs_ahead_of_the_host(slots: int, num_borders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", slots)
    runner, eager = new_runner(pico("llama")), EagerRunner(pico("llama"))
    assert run_plain(runner, 60) == run_plain(eager, 60)
    assert runner.num_hits == 59 - num_borders


def test_only_allowed_tokens_are_chosen() -> None:
    """A mask for each column, replayed with another one; the scores stay as they are."""
    runner, nothing = new_runner(pico("llama")), [0] * len(SETTINGS_OF_ROWS)
    cache, size = runner.new_cache(1, 64), runner.vocab_size
    for allowed in ([3, 17], [40, 5]):
        mask = torch.zeros(1, 2, -(-size // 32), dtype=torch.int32)
        for column, token in enumerate(allowed):
            mask[0, column, token // 32] = 1 << token % 32
        choosing = Choosing(ChoiceKind(is_masked=True), [nothing], [0], allowed=mask)
        output = runner.forward(PassRequest([[5, 6]], [0], choosing=choosing), cache)
        assert output.choices() == [allowed]
        assert bool(output.scores.isfinite().all())


def test_a_pass_ahead_that_chose_otherwise_is_not_taken() -> None:
    runner = new_runner(pico("llama"))
    cache = runner.new_cache(1, 64)
    tokens = runner.forward(PassRequest([[5]], [0], run_ahead=True), cache).choices()
    mask = torch.zeros(1, 1, -(-runner.vocab_size // 32), dtype=torch.int32)
    mask[0, 0, 0] = 1 << 7
    choosing = Choosing(ChoiceKind(is_masked=True), [[0] * len(SETTINGS_OF_ROWS)], [0], allowed=mask)
    assert runner.forward(PassRequest(tokens, [1], choosing=choosing), cache).choices() == [[7]]
    assert runner.num_hits == 0


def test_what_was_run_ahead_in_vain_is_forgotten() -> None:
    pair = Pair("llama", ([5],))
    runner = pair.runners[1]

    def both(tokens: list[list[int]], start: int, **options: Any) -> list[list[int]]:
        return pair.check(tokens, [start], **options).choices()

    token = both([[5]], 0, run_ahead=True)[0]
    both([token], 0, run_ahead=True)  # the right token elsewhere
    both([[6]], 1, run_ahead=True)  # another token than the best
    token = both([[6]], 1, run_ahead=True)[0]  # the same again: not the one after it
    assert runner.num_hits == 0
    both([token], 2, run_ahead=True)
    assert runner.num_hits == 1
    token = both([[9]], 3, run_ahead=True)[0]
    both([[*token, 3]], 4)  # wider
    both([token], 4, run_ahead=True)
    both([token], 4, skip=SKIP)  # writes where the pass ahead wrote
    token = both([token], 4, run_ahead=True)[0]
    for cache in pair.caches:
        cache.reserve(1000)  # moves
    both([token], 5, run_ahead=True)
    assert runner.num_hits == 1


def test_a_pass_ahead_is_not_taken_for_another_caches(short_buckets: None) -> None:
    pair = Pair("llama", ([9, 9, 9, 5],))
    runner = pair.runners[1]
    other = runner.new_cache(1, 64)
    runner.forward(PassRequest([[1, 2, 3]], [0]), other)
    token = runner.forward(PassRequest([[5]], [3], run_ahead=True), other).choices()[0]
    pair.check([[5]])
    pair.check([token], [4])
    assert runner.num_hits == 0


def test_a_pass_ahead_serves_those_of_its_rows_that_go_on() -> None:
    """One row leaves, then another, then they are too few; each of them is what it is in an eager pass."""
    pair = Pair("llama", ([5], [6, 7], [8, 9, 4], [3], [2]))
    runner, tokens = pair.runners[1], [[5], [7], [4], [3], [2]]
    rows, starts, hits = [0, 1, 2, 3, 4], pair.starts, []
    for leaves in (None, 1, None, 4, 3, 0, None):
        kept = [place for place, row in enumerate(rows) if row != leaves]
        rows, starts, tokens = ([part[place] for place in kept] for part in (rows, starts, tokens))
        before = runner.num_hits
        tokens = pair.check(tokens, starts, rows=rows, run_ahead=True).choices()
        starts = [start + 1 for start in starts]
        hits.append(runner.num_hits - before)
    assert hits == [0, 0, 1, 1, 0, 0, 1]  # 5 run as 8, 4 and 3 as 4, 2 as 2


def test_scores_of_rows_that_ran_ahead_with_others() -> None:
    pair = Pair("llama", ([5], [6], [7], [8]))
    tokens = pair.check([[5], [6], [7], [8]], [0] * 4, run_ahead=True).choices()
    pair.check([tokens[row] for row in (0, 1, 3)], [1] * 3, rows=[0, 1, 3])  # compares scores
    assert pair.runners[1].num_hits == 1


def test_a_row_that_was_freed_is_not_taken_for_the_text_before() -> None:
    """Whatever begins there, be it the very same token at the very same place."""
    pair = Pair("llama", ([5], [6], [7], [8]))
    runner = pair.runners[1]
    tokens = pair.check([[5], [6], [7], [8]], [0] * 4, run_ahead=True).choices()
    pair.caches[1].free_rows([2])
    left = [tokens[row] for row in (0, 1, 3)]
    left = pair.check(left, [1] * 3, rows=[0, 1, 3], run_ahead=True).choices()
    assert runner.num_hits == 1
    assert not runner.is_under_way(pair.caches[1], [0, 1, 2, 3], [2] * 4)
    assert runner.is_under_way(pair.caches[1], [0, 1, 3], [2] * 3)
    pair.caches[0].move(2, [0], 1)
    pair.caches[1].move(2, [0], 1)
    pair.check([left[0], left[1], [9], left[2]], [2] * 4, run_ahead=True)
    assert runner.num_hits == 1


RULED: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.3, "logprobs": 1}, {"temperature": 0.9, "top_p": 0.9}]


@pytest.mark.parametrize("options", RULED, ids=["greedy", "ruled", "sampled"])
def test_texts_that_end_do_not_stop_the_passes_ahead(options: dict[str, Any]) -> None:
    engine, alone = new_engine(pico("llama"), strategy="off"), Engine(pico("llama"), strategy="off")
    sizes = {(5, 6, 7): 25, (8, 9): 10, (3,): 25, (4, 4, 4): 17, (1, 2): 25, (2, 1): 25}
    with engine.session(max_rows=6) as session:
        for prompt, size in sizes.items():
            session.add(list(prompt), max_new_tokens=size, **options)
        ended = []
        while session.num_open:
            ended += [event for event in session.step() if event.generation]
            if len(ended) == 1 and session.num_open == 5:
                session.add([9, 9, 9], max_new_tokens=9, **options)  # in the row that is free
    assert engine._runner.num_hits >= 18  # 25 rounds: begun, a text joined, and fewer rows than a pass of 8 is for
    found = {tuple(one.generation.tokens) for one in ended if one.generation}
    sizes[9, 9, 9] = 9
    assert found == {alone.generate(list(one), max_new_tokens=size, **options).tokens for one, size in sizes.items()}


def test_a_row_that_runs_along_stays_within_the_context() -> None:
    """A model with a table of positions has none after them."""
    model = pico("gpt2", n_positions=100)
    engine, alone = new_engine(model, strategy="off"), Engine(model, strategy="off")
    long = [5 + number % 90 for number in range(94)]
    prompts, sizes = [long, [7, 7], [8], [9, 9]], [3, 30, 30, 30]
    with engine.session(max_rows=4) as session:
        numbers = [session.add(one, max_new_tokens=size) for one, size in zip(prompts, sizes, strict=True)]
        found = {}
        while session.num_open:
            found.update({event.id: event.generation.tokens for event in session.step() if event.generation})
    expected = [alone.generate(one, max_new_tokens=size).tokens for one, size in zip(prompts, sizes, strict=True)]
    assert [found[number] for number in numbers] == expected
    assert engine._runner.num_hits == 28  # of 30: not the first, nor one without the row that must not go on


def test_choices_outlive_the_pass_that_runs_ahead() -> None:
    """They are on their way to the host before the next pass is launched; two may be under way at once."""
    runner = new_runner(pico("llama"))
    cache = runner.new_cache(1, 64)
    expected = [runner.forward(PassRequest([[token]], [0]), cache).choices() for token in (5, 6)]
    outputs = [runner.forward(PassRequest([[token]], [0], run_ahead=True), cache) for token in (5, 6)]
    assert expected[0] != expected[1]
    assert [output.choices() for output in outputs] == expected


def test_the_clock_waits_for_what_nobody_has_read() -> None:
    runner = new_runner(pico("llama"))
    cache, waits = runner.new_cache(1, 64), []
    runner._device.wait = lambda: waits.append(1)  # type: ignore[method-assign]
    output = runner.forward(PassRequest([[5]], [0], run_ahead=True), cache)
    runner.seconds()
    runner.seconds()
    assert len(waits) == 1
    output.choices()
    output = runner.forward(PassRequest(torch.tensor([output.choices()[0]]), [1], run_ahead=True), cache)
    output.choices()
    runner.seconds()
    assert len(waits) == 1, "the next pass is under way and stays so"
    runner.forward(PassRequest(torch.tensor([[1] * 70]), [0]), cache)
    runner.seconds()
    assert len(waits) == 2


@pytest.mark.parametrize("method", [{"strategy": "off"}, {}, {"tree": "siblings"}], ids=str)
def test_texts_under_rules_share_their_recordings(method: dict[str, Any]) -> None:
    """What is known of one text is let go before the next one begins."""
    engine = new_engine(pico("llama"), strategy="fixed")
    runner: Any = engine._runner
    for number in range(3):
        num_graphs = runner.graphs.num_graphs
        engine.generate(PROMPTS[0], max_new_tokens=20, lookahead="fixed", **{**RULES, **method})
        assert number == 0 or runner.graphs.num_graphs == num_graphs


@pytest.mark.parametrize("mode", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}], ids=["greedy", "drawn"])
def test_no_pass_ahead_is_wasted_by_lookups(mode: dict[str, Any]) -> None:
    """One that finds something waits for it. The clock waits after the prefill alone: choices are verification."""
    model = pico("llama")
    engine = new_engine(model)
    runner = engine._runner
    options: dict[str, Any] = {"drafter": "lookup", "strategy": "fixed", "max_new_tokens": 40, **mode}
    with (
        mock.patch.object(runner._device, "wait") as wait,
        mock.patch.object(runner._passes, "_run_ahead", wraps=runner._passes._run_ahead) as run_ahead,
    ):
        found = engine.generate([1, 2, 3], **options)
    assert {bool(draft.tokens) for draft in drafts_of([found])[0]} == {True, False}
    assert 0 < run_ahead.call_count - 1 <= runner.num_hits <= run_ahead.call_count
    assert wait.call_count == 1
    assert found.tokens == Engine(model, None, strategy="off").generate([1, 2, 3], max_new_tokens=40, **mode).tokens


@pytest.mark.parametrize("mode", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "drawn"])
def test_what_the_model_drafts_itself_waits_for_a_pass_under_way(mode: dict[str, Any]) -> None:
    """It could not begin before, and would be in vain: one round more is plain, and nothing runs ahead of the draft."""
    model = pico("llama")
    engine = new_engine(model, strategy="fixed", lookahead="fixed")
    plans = (Plan(SKIP, max_draft_tokens=3 * (number % 6 > 2)) for number in itertools.count())
    with (
        mock.patch.object(engine._method({}).strategy, "plan", side_effect=plans),
        mock.patch.object(engine._runner._passes, "forget_ahead", wraps=engine._runner._passes.forget_ahead) as forget,
    ):
        found = engine.generate([1, 2, 3], max_new_tokens=30, **mode)
    assert [len(step.draft.tokens) for step in found.steps[:12]] == [0, 0, 0, 0, 3, 3] * 2
    assert forget.called
    assert engine._runner.num_hits >= 4
    assert found.tokens == Engine(model, None, strategy="off").generate([1, 2, 3], max_new_tokens=30, **mode).tokens


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("tree", ["chain", "siblings"])
def test_what_a_strategy_has_found_itself_is_verified_as_it_is(acceptance: str, tree: str) -> None:
    """No drafter is asked. The first path is the chain, the others stand beside it; all end where the text does."""
    model, calls = pico("llama"), {"max_new_tokens": 20, "acceptance": acceptance, "tree": tree}
    right = Engine(model, None, strategy="off").generate([1, 2, 3], max_new_tokens=20).tokens
    engine = new_engine(model, strategy="fixed", drafter="lookup")

    def plan(number: int, context: Any) -> Plan:
        left = tuple(right[context.num_generated_tokens :][:4])
        return Plan(drafter="lookup", max_draft_tokens=4, paths=((7, 7), left))

    with (
        mock.patch.object(engine._method({}).strategy, "plan", side_effect=plan),
        mock.patch.object(Lookup, "open", side_effect=AssertionError),
    ):
        found = engine.generate([1, 2, 3], **calls)
    assert found.tokens == right
    assert [len(step.verdict.tokens) for step in found.steps] == [5, 5, 5, 5]
    assert found.steps[0].draft.chain_length == 2


def test_what_a_draft_model_drafts_does_not_wait() -> None:
    """It was paid for. Every other round drafts nothing, so a pass runs ahead after it."""
    model = pico("llama")
    engine = new_engine(model, drafter="model", lookahead="fixed")
    plans = (Plan(SKIP, max_draft_tokens=3 * (number % 2)) for number in itertools.count())
    with mock.patch.object(engine._method({}).strategy, "plan", side_effect=plans):
        found = engine.generate([1, 2, 3], max_new_tokens=30)
    assert [len(step.draft.tokens) for step in found.steps[:6]] == [0, 3, 0, 3, 0, 3]
    assert found.tokens == Engine(model, None, strategy="off").generate([1, 2, 3], max_new_tokens=30).tokens


def test_lookups_stay_on_the_host() -> None:
    """Their tensors would wait for a pass that runs ahead."""
    runner = mock.Mock(device=torch.device("cuda"))
    rows = DraftRows((0, 1), (0, 1), ([1, 2, 3, 1, 2], [1, 2, 3]))
    for drafter in ("lookup", "ngram-pool"):
        session = engine_for("llama")._method({"drafter": drafter}).drafters[drafter].open(runner, mock.Mock(), rows)
        tokens = session.propose(torch.tensor([2, 3])).tokens
        assert session.device == tokens.device == CPU


# -------------------------------------------------------------------------------------------------------- whole texts


def test_interleaved_streams_on_one_engine() -> None:
    engine = engine_for("llama")
    options: list[dict[str, Any]] = [{"strategy": "off"}, {"strategy": "off"}, {"tree": "siblings"}, {}]
    streams = [
        engine.stream(PROMPTS[row], max_new_tokens=NUM_TOKENS, sequence=row, **option)
        for row, option in enumerate(options)
    ]
    running = [iter(stream) for stream in streams]
    while running:
        running = [one for one in running if next(one, None) is not None]
    for row, stream in enumerate(streams):
        assert stream.generation.tokens == reference("llama", "greedy", row).tokens


def test_texts_that_end_while_a_pass_runs_ahead() -> None:
    engine = new_engine(pico("llama"))
    expected = reference("llama", "greedy", 0).tokens
    first = max(expected.index(token) for token in expected)
    for _ in range(2):
        with mock.patch.object(engine.model.generation_config, "eos_token_id", expected[first]):
            found = engine.generate([PROMPTS[0], PROMPTS[2]], max_new_tokens=NUM_TOKENS, strategy="off")
        assert found[0].finish_reason == "eos"
        assert found[0].tokens == expected[: first + 1]
        other = reference("llama", "greedy", 2).tokens
        assert found[1].tokens == other[: len(found[1].tokens)]
    assert engine._runner.num_hits > 0


@pytest.mark.parametrize("case", pairwise(("llama", "qwen2-sliding")), ids=name)
def test_lossless(case: Case) -> None:
    engine = engine_for(case["family"])
    method = {axis: case[axis] for axis in ("strategy", "lookahead", "drafter", "tree", "acceptance")}
    rows = range(len(PROMPTS)) if case["batch"] == "ragged" else [0]
    found = engine.generate([PROMPTS[row] for row in rows], max_new_tokens=NUM_TOKENS, **MODES[case["mode"]], **method)
    for row, generation in zip(rows, found, strict=True):
        assert generation.tokens == reference(case["family"], case["mode"], row).tokens
    assert engine._runner.fallback_reason is None
    assert not engine._runner._drafts.refused


def test_branches_are_looked_up_while_the_device_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a round, after the launch of its first token and before the first wait for it."""
    events: list[str] = []

    def note(owner: Any, name: str, event: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: (events.append(event), function(*args))[1])

    note(Tape, "replay", "launch")
    note(Siblings, "branches", "branches")
    note(gpu_draft.DraftOutputs, "num_going_on", "wait")
    engine = new_engine(pico("llama"))
    prompt, method = [3, 1, 4, 1, 5, 3, 1, 4], {"strategy": "fixed", "tree": "siblings"}
    engine.generate(prompt, max_new_tokens=12, **method)  # records
    events.clear()
    found = engine.generate(prompt, max_new_tokens=12, **method)
    rounds = "".join(event[0] for event in events)
    num_drafts = sum(bool(step.draft.tokens) for step in found.steps)
    assert rounds.count("b") == num_drafts == len(re.findall("l+bw", rounds)) > 1


@functools.cache
def token_by_token_engine(family: str) -> Engine:
    class TokenByToken(GraphRunner):
        def draft(self, *arguments: Any, **keywords: Any) -> None:
            return None

    return new_engine(pico(family), lambda model, *_: TokenByToken(model, make_recorder=TapeRecorder))


DRAWN = {"temperature": 0.7, "top_k": 20, "min_p": 0.02, "seed": 2**45 + 7}


@pytest.mark.parametrize(
    ("mode", "tree", "lookahead"),
    [
        ({}, "chain", "fixed"),
        ({}, "siblings", "confidence"),
        (DRAWN, "chain", "confidence"),
        (DRAWN, "siblings", "fixed"),
        ({}, "chain", "heuristic"),
        ({}, "siblings", "disco"),
        (DRAWN, "chain", "perplexity"),
        (DRAWN, "siblings", "roc"),
    ],
    ids=lambda value: value if isinstance(value, str) else "drawn" if value else "greedy",
)
def test_a_recorded_draft_is_the_draft_token_by_token(
    mode: dict[str, Any], tree: str, lookahead: str, short_buckets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same drafts, confidences included, over bucket borders and more depths than are read at once."""
    monkeypatch.setattr(gpu_draft, "MAX_DEPTHS", 2)
    options = {"max_new_tokens": 16, "strategy": "fixed", "tree": tree, "lookahead": lookahead, **mode}
    recorded, plain = new_engine(pico("gemma2")), token_by_token_engine("gemma2")
    with mock.patch.object(EagerRunner, "draft", side_effect=AssertionError):
        found, expected = (engine.generate(list(PROMPTS), **options) for engine in (recorded, plain))
    assert drafts_of(found) == drafts_of(expected)
    assert max(draft.chain_length for draft in drafts_of(found)[0]) > 2 or lookahead != "fixed"
    assert tokens_of(found) == tokens_of(expected)
    assert recorded._runner.graphs.num_graphs > 0
    assert not recorded._runner._drafts.refused


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "fixed", "lookahead": "fixed"},
        {"strategy": "fixed", "tree": "siblings", "top_p": 0.9},
        {"strategy": "fixed", "tree": "siblings", "presence_penalty": 0.5, "repetition_penalty": 1.2, "top_k": 20},
        {"drafter": "model", "lookahead": "fixed", "tree": "siblings"},
        {"drafter": "lookup", "tree": "siblings", "min_p": 0.02, "temperature": 0.3},
        {"drafter": "ngram-pool"},
        {"strategy": "fixed", "settings": {"self": {"vocabulary": 50}}},
    ],
    ids=lambda options: "-".join(map(str, options)) + str(options.get("drafter", "")),
)
def test_recorded_rejection_is_that_of_the_eager_runner(options: dict[str, Any], short_buckets: None) -> None:
    """The same drafts and texts at the same seed, in a batch; drafts are kept, refused in part and refused at once."""
    recorded, eager = engine_with_short_buckets(), new_engine(pico("llama"), make_runner)
    options = {"temperature": 0.8, "seed": 2**40 + 3, "acceptance": "rejection", "max_new_tokens": 14, **options}
    with mock.patch.object(accept, "_tested", wraps=accept._tested) as on_host:
        found = recorded.generate(list(PROMPTS), **options)
        assert on_host.call_count == 0
        expected = eager.generate(list(PROMPTS), **options)
        assert on_host.call_count > 0
    assert tokens_of(found) == tokens_of(expected)
    for one, other in zip(itertools.chain(*drafts_of(found)), itertools.chain(*drafts_of(expected)), strict=True):
        assert (one.tokens, one.parents, one.num_drawn) == (other.tokens, other.parents, other.num_drawn)
    kept = {len(step.verdict.nodes) for generation in found for step in generation.steps if step.draft.tokens}
    assert min(kept) == 0 < max(kept)
    assert not recorded._runner._drafts.refused


def test_rejection_in_groups_that_draft_one_after_the_other() -> None:
    """What an earlier group drew from is still there when all are verified."""
    plans = [Plan(SkipSet.parse("a1-2,m2"), max_draft_tokens=3), Plan(SkipSet.parse("a3"), max_draft_tokens=4)]

    def texts(engine: Engine) -> list[Any]:
        strategy = engine._method({}).strategy
        with mock.patch.object(strategy, "plan", lambda sequence_id, _: plans[sequence_id % 2]):
            return tokens_of(engine.generate(list(PROMPTS), temperature=1.1, acceptance="rejection", max_new_tokens=20))

    assert texts(new_engine(pico("llama"))) == texts(new_engine(pico("llama"), make_runner))


RULES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logit_bias": {30: 2.0}}
REJECTION = {"strategy": "fixed", "acceptance": "rejection"}


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ({}, {"strategy": "off"}),
        (DRAWN, {"strategy": "off"}),
        (DRAWN, {"strategy": "off", "acceptance": "rejection"}),
        (RULES, {"strategy": "off"}),
        ({**RULES, **DRAWN}, {"strategy": "off"}),
        ({}, {"drafter": "lookup"}),
        ({}, {"lookahead": "fixed"}),
        (DRAWN, {"lookahead": "fixed"}),
        (RULES, {"lookahead": "fixed"}),
        (DRAWN, {"lookahead": "fixed", **REJECTION}),
        ({}, {"tree": "siblings"}),
        (DRAWN, {"tree": "siblings"}),
        ({**RULES, **DRAWN}, {"tree": "siblings"}),
        (DRAWN, {"tree": "siblings", **REJECTION}),
    ],
    ids=lambda options: "-".join(map(str, (*options, *options.values()))) or "greedy",
)
def test_log_probabilities_of_recorded_passes_are_those_of_the_eager_runner(
    mode: dict[str, Any], method: dict[str, Any], short_buckets: None
) -> None:
    """All found on the device, also by passes that run ahead; several numbers of tokens on the same recordings."""
    recorded, eager = engine_with_short_buckets(), new_engine(pico("llama"), make_runner)
    num_accepted, num_hits = 0, recorded._runner.num_hits
    for count, prompts in ((3, PROMPTS), (0, PROMPTS[2:3])):
        options = {"max_new_tokens": 14, "logprobs": count, **mode, **method}
        with mock.patch.object(logprobs, "_computed", wraps=logprobs._computed) as on_host:
            found = recorded.generate(list(prompts), **options)
            assert on_host.call_count == 0
            expected = eager.generate(list(prompts), **options)
            assert on_host.call_count > 0
        assert tokens_of(found) == tokens_of(expected)
        for one, other in zip(logprobs_of(found), logprobs_of(expected), strict=True):
            assert one.token == other.token
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            values = [[told.logprob, *(value for _, value in told.top)] for told in (one, other)]
            assert values[0] == pytest.approx(values[1], abs=1e-4)
            assert len(one.top) == count
        num_accepted += sum(generation.stats.num_accepted for generation in found)
    assert recorded._runner.fallback_reason is None
    has_plain_rounds = "off" in method.values() or "lookup" in method.values()
    assert (recorded._runner.num_hits > num_hits) >= has_plain_rounds
    assert (num_accepted > 0) == ("off" not in method.values())


def logprobs_of(generations: list[Generation]) -> list[Any]:
    return [one for generation in generations for one in generation.logprobs or ()]


def test_greedy_text_without_log_probabilities_is_not_chosen_again() -> None:
    runner = new_runner(pico("llama"))
    cache, nothing = runner.new_cache(1, 64), [[0] * len(SETTINGS_OF_ROWS)]
    plain = Choosing(ChoiceKind(), nothing, [0])
    output = runner.forward(PassRequest([[5]], [0], choosing=plain), cache)
    assert (runner.graphs.num_graphs, output.read_logprobs) == (1, None)
    asked = runner.forward(PassRequest([[5]], [0], choosing=Choosing(ChoiceKind(num_logprobs=2), nothing, [0])), cache)
    assert runner.graphs.num_graphs == 2
    assert asked.read_logprobs is not None
    ((told,),) = asked.read_logprobs()
    assert told[0] == told[1] >= told[2]
    assert told[3] == asked.choices()[0][0]


def test_log_probabilities_outlive_the_pass_that_runs_ahead() -> None:
    """As choices do; a pass ahead that tells nothing of them is not taken for one that does."""
    runner = new_runner(pico("llama"))
    cache, nothing = runner.new_cache(1, 64), [[0] * len(SETTINGS_OF_ROWS)]
    choosing = Choosing(ChoiceKind(num_logprobs=2), nothing, [0])
    request = functools.partial(PassRequest, choosing=choosing)
    expected = [runner.forward(request([[token]], [0]), cache).read_logprobs() for token in (5, 6)]
    outputs = [runner.forward(request([[token]], [0], run_ahead=True), cache) for token in (5, 6)]
    assert expected[0] != expected[1]
    assert [output.read_logprobs() for output in outputs] == expected
    tokens = outputs[1].choices()
    runner.forward(PassRequest([[6]], [0], run_ahead=True), cache)
    assert runner.forward(request(tokens, [1]), cache).read_logprobs() is not None
    assert runner.num_hits == 0


@pytest.mark.parametrize(
    ("mode", "tree", "lookahead"),
    [
        ({}, "chain", "fixed"),
        ({}, "siblings", "confidence"),
        (DRAWN, "siblings", "fixed"),
        ({}, "chain", "disco"),
        (DRAWN, "chain", "heuristic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "drawn" if value else "greedy",
)
def test_a_recorded_draft_model_drafts_what_it_drafts_token_by_token(
    mode: dict[str, Any], tree: str, lookahead: str, short_buckets: None
) -> None:
    """Rounds that kept all, some and nothing; after the prompts were read every round is a draft and nothing else."""
    options = {"max_new_tokens": 14, "drafter": "model", "tree": tree, "lookahead": lookahead, **mode}
    recorded, plain = new_engine(pico("llama")), token_by_token_engine("llama")
    found, expected = (engine.generate(list(PROMPTS), **options) for engine in (recorded, plain))
    for one, other in zip(itertools.chain(*drafts_of(found)), itertools.chain(*drafts_of(expected)), strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        assert one.confidences == pytest.approx(other.confidences, rel=1e-4)
    kept = [len(step.verdict.nodes) - step.draft.chain_length for one in found for step in one.steps]
    assert min(kept) < 0
    drafter = drafter_of(recorded)
    assert drafter._runner.fallback_reason is None
    assert not drafter._runner._drafts.refused
    with mock.patch.object(drafter._runner, "forward", wraps=drafter._runner.forward) as forward:
        recorded.generate(PROMPTS[0], **options)
    assert forward.call_count <= 1, "the prompt's; what is pending afterwards is the opening of a draft"


def drafter_of(engine: Engine) -> Model:
    (drafter,) = (part for part in engine._parts.built.values() if isinstance(part, Model))
    return drafter


def test_a_recorded_model_drafts_for_itself_perfectly(short_buckets: None) -> None:
    """So its cache follows the text through rounds of any width, alone and in a ragged batch."""
    for family in ("llama", "gpt2"):
        engine = new_engine(pico(family), drafter="model", settings={"model": {"source": copy.deepcopy(pico(family))}})
        for options in ({}, {"temperature": 0.9, "seed": 3}, {"tree": "siblings"}):
            for one in engine.generate(list(PROMPTS), max_new_tokens=30, lookahead="fixed", **options):
                assert one.stats.acceptance_rate == 1.0
        widths = {key.width for key in drafter_of(engine)._runner.graph_keys if key.kind != "pass"}
        assert widths >= {1, 2}


@pytest.mark.parametrize("num_more", [16, 0])
def test_a_recorded_draft_model_with_another_vocabulary(num_more: int) -> None:
    """What the target lacks is never drafted; what the draft model lacks is never fed."""
    wide, narrow = pico("llama", num_hidden_layers=2, vocab_size=VOCAB_SIZE + 16), pico("llama")
    target, draft = (narrow, wide) if num_more else (wide, narrow)
    settings = {"model": {"source": draft, "tokenizer": letter_tokenizer()}, "siblings": {"table": "1:8"}}
    engine = new_engine(target, tokenizer=letter_tokenizer(), drafter="model", tree="siblings", settings=settings)
    prompt = [3, VOCAB_SIZE - 1 + 16 - num_more, 5, 1]
    for mode in ({}, {"temperature": 1.5, "seed": 4}):
        found = engine.generate(prompt, max_new_tokens=20, lookahead="fixed", **mode)
        assert found.tokens == engine.generate(prompt, max_new_tokens=20, strategy="off", **mode).tokens
        drafted = [token for step in found.steps for token in step.draft.tokens]
        assert 0 <= min(drafted) <= max(drafted) < VOCAB_SIZE
    assert not drafter_of(engine)._runner._drafts.refused


def test_rows_of_a_draft_model_that_do_not_draft_are_carried_along() -> None:
    """The first and the last of three rows draft: their chains are those of either alone."""
    host = Host(new_runner(pico("llama")))
    drafter = Model(Model.Options(source=pico("llama", num_hidden_layers=2)), host)
    sampler = Sampler(GenerateOptions())
    rule = Rule.of(engine_for("llama")._method({"lookahead": "fixed"}), Plan(), sampler)
    texts = [PROMPTS[1], PROMPTS[0], PROMPTS[2]]

    def drafted(*ids: int) -> Any:
        rows = DraftRows(tuple(range(len(ids))), ids, tuple(texts[number] for number in ids))
        session = drafter.open(host.runner, host.runner.new_cache(1, 64), rows)
        sites = [Site(0, 0, 0)] * len(ids)
        chain = session.chain(DraftTask(rule, [4] * len(ids), sites, ids, sampler.choosing(sites, ())))
        assert chain is not None
        return [[[row[number] for row in chain.candidates] for number in range(len(ids))], drafter._batches[-1]]

    alone = [drafted(number)[0][0] for number in range(3)]
    assert drafted(0, 1, 2)[0] == alone
    for _ in range(2):
        found, batch = drafted(0, 2)
        assert found == [alone[0], alone[2]]
        assert [len(cached) - len(text) for cached, text in zip(batch.cached, texts, strict=True)] == [3, 3, 3]
    texts[1] = [*texts[1], *(row[0] for row in alone[1]), *range(5, 20)]
    with mock.patch.object(drafter._runner, "forward", wraps=drafter._runner.forward) as forward:
        together = drafted(0, 1, 2)[0]
    (caught_up,) = (call.args[0] for call in forward.call_args_list)
    assert (caught_up.rows, len(caught_up.tokens[0]), caught_up.needs_scores) == ([1], 15, True), "recorded"
    assert together == [alone[0], drafted(1)[0][0], alone[2]]


def test_a_draft_model_is_loaded_once_and_counts_in_the_clock() -> None:
    """Forks share its runner; what it launches and records is waited for and counted by the target's."""
    engine = new_engine(pico("llama"), drafter="model")
    engine.generate(PROMPTS[0], max_new_tokens=8)
    fork = engine.fork()
    fork.generate(PROMPTS[0], max_new_tokens=8)
    runner, other = engine._runner, drafter_of(fork)._runner
    assert other is drafter_of(engine)._runner
    assert drafter_of(fork) is not drafter_of(engine)
    assert runner.record_seconds == runner.graphs.record_seconds + other.record_seconds > other.record_seconds > 0
    with mock.patch.object(runner._device, "wait") as wait:
        other.forward(PassRequest([[1, 2]], [0]), other.new_cache(1, 64))
        runner.seconds()
        runner.seconds()
    assert wait.call_count == 1


def drafts_of(generations: list[Generation]) -> list[list[Draft]]:
    return [[step.draft for step in generation.steps] for generation in generations]


def test_a_draft_under_the_callers_processors_goes_token_by_token() -> None:
    options: dict[str, Any] = {"processors": [lambda prefix, scores: -scores], "max_new_tokens": 20}
    with mock.patch.object(gpu_drafts.Drafts, "run", side_effect=AssertionError):
        found = engine_for("llama").generate(list(PROMPTS), **options)
    assert tokens_of(found) == tokens_of(Engine(pico("llama")).generate(list(PROMPTS), **options))


def test_forward_hooks_run_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    """Another hook in place of one, or a value it reads, would be frozen in a recording."""
    factor = [3.0]
    model = copy.deepcopy(pico("llama"))
    engine, eager = new_engine(model), Engine(model)
    mlp = model.model.layers[1].mlp
    for hook in (lambda module, inputs, output: output * factor[0], lambda module, inputs, output: output * -3.0):
        handle = mlp.register_forward_hook(hook)
        for factor[0] in (3.0, 1.0):
            found, expected = (one.generate([1, 2, 3], max_new_tokens=8, strategy="off") for one in (engine, eager))
            assert found.tokens == expected.tokens
        assert engine.runner.fallback_reason == "its forward hooks run on the host"
        handle.remove()
    engine.generate([1, 2, 3], max_new_tokens=8, strategy="off")
    assert engine.runner.fallback_reason is None
    assert engine.runner.graphs.num_graphs > 0


@pytest.mark.parametrize(
    ("make", "num_texts", "limit"),
    [(new_runner, 1, 62), (new_runner, 2, 15), (EagerRunner, 1, 31), (EagerRunner, 2, 15)],
)
def test_one_text_on_recorded_passes_fills_them(make: Callable[..., Any], num_texts: int, limit: int) -> None:
    """63 columns at most; eager passes would pay for them, and several texts share 32."""
    settings = {"siblings": {"table": "1:20"}, "fixed": {"tokens": 6}}
    engine = new_engine(pico("llama"), lambda model, *_: make(model), settings=settings)
    options: dict[str, Any] = {"tree": "siblings", "lookahead": "fixed", "max_new_tokens": 8}
    found = engine.generate(list(PROMPTS[:num_texts]), **options)
    assert {len(one.steps[0].draft.tokens) for one in found} == {limit}
    plain = Engine(pico("llama")).generate(list(PROMPTS[:num_texts]), max_new_tokens=8, strategy="off")
    assert tokens_of(found) == tokens_of(plain)


def test_a_shortlist_shorter_than_the_candidates() -> None:
    settings = {"siblings": {"table": "1:8"}, "self": {"vocabulary": 5}}
    options: dict[str, Any] = {"strategy": "fixed", "tree": "siblings", "max_new_tokens": 12, "settings": settings}
    found = engine_for("llama").generate(list(PROMPTS), **options)
    assert tokens_of(found) == tokens_of(Engine(pico("llama"), settings=SETTINGS).generate(list(PROMPTS), **options))
    assert not engine_for("llama")._runner._drafts.refused


# ------------------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    "strategy", ["uniform", *(pytest.param(name, marks=pytest.mark.full) for name in ("off", "swift"))]
)
@pytest.mark.parametrize("is_forked", [False, True])
def test_threads_take_turns_and_each_writes_what_it_would_alone(strategy: str, is_forked: bool) -> None:
    """Recordings share what they read and write; of two threads inside one round both would write nonsense."""
    engine = new_engine(pico("llama"))
    prompts = [[number, *range(3, 20)] for number in range(4)]
    expected = [engine.generate(prompt, max_new_tokens=NUM_TOKENS, strategy=strategy).tokens for prompt in prompts]
    found: dict[int, Generation] = {}
    verdicts: set[str] = set()

    def write(number: int) -> None:
        one = engine.fork() if is_forked else engine
        found[number] = one.generate(prompts[number], max_new_tokens=NUM_TOKENS, strategy=strategy)
        verdicts.add(one.verify(prompts[number], found[number], max_new_tokens=NUM_TOKENS).verdict)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number].tokens for number in range(len(prompts))] == expected
    assert verdicts == {"equal"}


def test_engines_on_one_device_take_turns() -> None:
    """While one records, no other may use the device; eager engines on a CPU need not wait."""
    one, other = new_engine(pico("llama")), new_engine(pico("gpt2"))
    assert one.runner.lock is other.runner.lock
    with one.runner.lock:
        thread = threading.Thread(target=lambda: other.generate([1, 2, 3], max_new_tokens=2), daemon=True)
        thread.start()
        thread.join(timeout=0.2)
        assert thread.is_alive()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_round_that_fails_lets_the_others_go_on() -> None:
    engine = new_engine(pico("llama"))
    with pytest.raises(ZeroDivisionError):
        engine.generate([1, 2, 3], max_new_tokens=4, cancel=lambda: bool(1 // 0))
    thread = threading.Thread(target=lambda: engine.generate([1, 2, 3], max_new_tokens=4), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.mark.parametrize(("recorded", "expected"), [((), 1024), ((64, 2048), 2048)])
def test_tokens_of_a_pass_of_a_prompt(recorded: tuple[int, ...], expected: int) -> None:
    runner: Any = SimpleNamespace(recorded_prompts=recorded)
    assert engine_prefill.prompt_chunk(runner) == expected
