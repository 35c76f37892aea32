"""FusedForward against the eager path: the same model, the same tokens. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from needs_triton import DEVICE, HAS_GPU
from pico import build, pico
from selfdraft import Engine
from selfdraft.engine import engine as engine_module
from selfdraft.errors import SelfTestError
from selfdraft.kernels import accept as accept_kernels
from selfdraft.kernels import attention, embed, gated, linear, norm, quick
from selfdraft.kernels import prefill as kernels_prefill
from selfdraft.models.cache import SlotCache
from selfdraft.models.checks import relative_error, tolerance_of
from selfdraft.models.decoder import Decoder
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu import accept as gpu_accept
from selfdraft.models.gpu import forward as gpu_forward
from selfdraft.models.gpu import fused as fused_module
from selfdraft.models.gpu import fused_prefill, fused_probe, probing, products
from selfdraft.models.gpu import graphs as gpu_graphs
from selfdraft.models.gpu import prefill as gpu_prefill
from selfdraft.models.gpu import runner as gpu_runner
from selfdraft.models.gpu.forward import ModuleForward, prove
from selfdraft.models.gpu.fused import FusedForward, Midway, reason_against
from selfdraft.models.gpu.fused_prefill import FusedPrefill
from selfdraft.models.gpu.fused_probe import FusedBranches
from selfdraft.models.gpu.graphs import Graphs
from selfdraft.models.gpu.memory import Device, PassBuffers
from selfdraft.models.gpu.prefill import Prefill
from selfdraft.models.gpu.runner import CudaRecorder, GraphRunner
from selfdraft.passes import PassRequest, TreeMask
from selfdraft.strategies import knapsack
from selfdraft.strategies.knapsack import Item, solve
from selfdraft.strategies.matching import matched
from selfdraft.types import SkipSet
from tape import NotedKernel, TapeRecorder

DTYPE = torch.float16 if HAS_GPU else torch.float32  # these wide weights make much of what bfloat16 rounds
TOLERANCE = 5e-2 if HAS_GPU else 1e-4
PROMPT_TOLERANCE = tolerance_of(DTYPE) if HAS_GPU else 1e-4
SIZES = {
    "vocab_size": 112,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


@pytest.fixture(autouse=True)
def begins_with_sublayers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models would begin a pass with none of them."""
    monkeypatch.setattr(gpu_forward, "HEAD_START", 3)


@pytest.fixture(autouse=True)
def prefills_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes 10 ms and more for every token of every kernel."""
    if not HAS_GPU:
        monkeypatch.setattr(gpu_prefill, "PREFILL_STEP", 4)
        monkeypatch.setattr(fused_prefill, "_PROOF_WIDTHS", ((18, 2), (1, 3)))
        monkeypatch.setattr(fused_probe, "_PROOF_TOKENS", 18)


class Again:
    """What a replay means where there are no graphs: the same function again, into the tensors of the first time."""

    num_bytes = 0

    def __init__(self, function: Any, result: Any) -> None:
        self._function, self._result = function, result

    @torch.inference_mode()
    def replay(self) -> None:
        for first, again in zip(tensors_of(self._result), tensors_of(self._function()), strict=True):
            first.copy_(again)


def tensors_of(state: Any) -> list[torch.Tensor]:
    """What the second half of a pass takes over from the first."""
    if not isinstance(state, Midway):
        return []
    return [state.stream, *([] if state.branch is None else [state.branch])]


def record_again(device: torch.device) -> Any:
    def record(function: Any, reset: Any = None, is_warm: bool = False) -> Any:
        if reset is not None:
            reset()
        result = function()
        if reset is not None:
            reset()
        return Again(function, result), result

    return record


def model_of(kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM  # they import Triton

    torch.manual_seed(1)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))
    else:
        layers = ["full_attention", "sliding_attention", "full_attention"]
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, layer_types=layers))
    return model.eval().to(DEVICE, DTYPE)


_TURNS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"max_window_layers": 1},
    "gemma2": _TURNS,
    "gemma3_text": _TURNS,
    "gemma3": _TURNS,
    "phi3": {},
    "smollm3": {},
    "olmo2": {},
    "granite": {},
    "starcoder2": {},
    "qwen3_moe": {},
}
"""What their pico models need to have three layers."""


def family_of(name: str) -> Any:
    """Of heads that kernels know."""
    model = build(name, hidden_size=128, head_dim=32, num_hidden_layers=3, **FAMILIES[name])
    return model.to(DEVICE, DTYPE)


def runner_of(model: Any) -> GraphRunner:
    return GraphRunner(
        model,
        make_recorder=CudaRecorder if HAS_GPU else record_again,
        make_forwards=lambda decoder: (FusedForward(decoder),),
        make_prefill=FusedPrefill,
    )


@pytest.fixture(params=["llama", "qwen2"])
def runners(request):
    model = model_of(request.param)
    return EagerRunner(model), runner_of(model)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm())


def test_passes_are_the_eager_runners(runners):
    """Prefill, one token, a ragged chain, a tree, a skip set, captured states."""
    _, fused = runners
    caches = [runner.new_cache(2, 64) for runner in runners]
    prompt = torch.arange(40).view(2, 20) % 112
    skip = SkipSet.of([1], [0, 2])
    tree = TreeMask([[0, 1, 2, 1]] * 2, [[0b1, 0b11, 0b111, 0b1001]] * 2)
    tokens = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    for name, options, starts, part in (
        ("one token", {}, (20, 20), tokens[:, :1]),
        ("a ragged chain", {"capture": ("embedding", "a0", "m2", "norm")}, (20, 12), tokens),
        ("skipped", {"skip": skip, "capture": ("a1", "m0")}, (18, 20), tokens[:, :3]),
        ("a tree", {"tree": tree}, (20, 11), tokens),
    ):
        outputs = []
        for runner, cache in zip(runners, caches, strict=True):
            runner.forward(PassRequest(prompt.to(DEVICE), [0, 0], needs_scores=False), cache)
            outputs.append(runner.forward(PassRequest(part.to(DEVICE), starts, **options), cache))
        expected, found = outputs
        assert error(found.scores, expected.scores) < TOLERANCE, name
        for point, states in expected.captured.items():
            assert error(found.captured[point], states) < TOLERANCE, (name, point)
    assert fused.fallback_reason is None
    assert fused.graphs.num_captures > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_the_eager_runners(family, monkeypatch):
    """Prompts, tokens after them, and some with sub-layers skipped; captured states."""
    monkeypatch.setattr(kernels_prefill, "_MAX_SPLITS", 1)  # less for the interpreter
    monkeypatch.setattr(fused_module, "SPANNED_ROWS", 1)  # rows of one token
    model = family_of(family)
    runners = EagerRunner(model), runner_of(model)
    assert str(reason_against(runners[0].decoder)) in ("None", "its dtype is float32, not bfloat16 or float16")
    caches, capture = [runner.new_cache(2, 64) for runner in runners], ("embedding", "a1", "m1", "norm")
    steps = [(SkipSet(), [list(range(3, 12)), [5, 6]], [0, 0])]
    steps += [(skip, [[5, 6], [9, 10]], [9, 2]) for skip in (SkipSet.of([1], [0]), SkipSet())]
    steps += [(SkipSet(), [[7], [8]], [11, 4])]
    for skip, tokens, starts in steps:
        request = PassRequest(tokens, starts, skip=skip, capture=capture, needs_scores=starts != [0, 0])
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        if request.needs_scores:
            assert error(found.scores, expected.scores) < PROMPT_TOLERANCE, skip
        for point, states in expected.captured.items():
            assert error(found.captured[point], states) < PROMPT_TOLERANCE, (skip, point)
    is_recorded = not (HAS_GPU and family == "qwen3_moe")  # torch's grouped products take bfloat16 alone
    assert (runners[1].fallback_reason is None) is is_recorded
    if is_recorded:
        check_stored(caches, {0: 12, 1: 5})


def test_rows_of_several_sizes_are_single_rows(monkeypatch):
    """Bit by bit: a tree, no draft and a chain in the rows of one cache; a row that only pads is not computed."""
    monkeypatch.setattr(gpu_graphs, "MIN_TOKENS", 1)
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", 64)
    runner = runner_of(model_of("qwen2"))
    together, alone = (runner.new_cache(4, 64) for _ in range(2))
    together.storage.normal_()
    alone.storage.copy_(together.storage)
    tree = TreeMask([[0, 1, 2, 1], [0] * 4, [0, 1, 0, 0]], [[0b1, 0b11, 0b111, 0b1001], [1] * 4, [1, 3, 1, 1]])
    tokens, starts, rows, widths = [[5, 6, 7, 8], [9, 0, 0, 0], [2, 3, 0, 0]], [33, 7, 20], [0, 1, 3], [4, 1, 2]
    output = runner.forward(PassRequest(tokens, starts, rows, tree=tree, widths=widths), together)
    choices, scores = output.choices(), output.scores.clone()
    key = next(key for key in runner.graph_keys if key.kind == "pass")
    assert (key.rows, key.width, key.tokens) == (4, 4, 8)
    for number, (start, row, width) in enumerate(zip(starts, rows, widths, strict=True)):
        own = TreeMask(*([part[number][:width]] for part in (tree.depths, tree.sees)))
        expected = runner.forward(PassRequest([tokens[number][:width]], [start], [row], tree=own), alone)
        assert torch.equal(scores[number, :width], expected.scores[0])
        assert choices[number][:width] == expected.choices()[0]
    assert torch.equal(together.storage, alone.storage)


class Collecting:
    """Stands for a quick kernel where there is an interpreter alone: launches are collected and run again."""

    def __init__(self, interpreted: Any) -> None:
        self._interpreted = interpreted

    def __getitem__(self, grid: Any) -> Any:
        def launch(*values: Any, **options: Any) -> None:
            launches, is_run = quick._collected.get() or ([], True)
            run = lambda *_: self._interpreted[grid](*values, **options)  # noqa: E731
            launches.append((run, (1, 1, 1), ()))
            if is_run:
                run()

        return launch


@pytest.fixture
def collects(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_GPU:
        current = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 0)
        monkeypatch.setattr(quick, "driver", SimpleNamespace(active=current))
        for module, name in KERNELS:
            monkeypatch.setattr(module, name, Collecting(getattr(module, name)))


KERNELS = (
    *((embed, "_embed"), (attention, "_attend"), (attention, "_join"), (gated, "_gated"), (linear, "_linear")),
    *((norm, "_add_norm"), (norm, "_norm_heads")),
)


@torch.inference_mode()
@pytest.mark.usefixtures("collects")
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "olmo2"])
def test_fixed_places_and_kept_launches_change_no_bit(kind):
    """What is captured works in memory of its own, by launches of its own."""
    runner = runner_of(family_of(kind) if kind in FAMILIES else model_of(kind))
    fused, cache, buffers = runner._forwards[0], runner.new_cache(2, 64), PassBuffers(runner._device, 2, 2)

    def scores(start: int, skip: SkipSet, capture: tuple[str, ...] = ()) -> torch.Tensor:
        buffers.send_request(PassRequest([[3, 4], [5, 6]], [start, start - 1]), cache)
        return fused.finish(fused.begin(buffers, cache, 64, skip, capture))[0].clone()

    sets = [SkipSet.of([1], [0, 2]), SkipSet(), SkipSet.of([0, 1, 2], [1]), SkipSet.of([0], [0, 1, 2])]
    for skip in sets:
        scores(3, skip, ("norm",))  # compiles what they need
    ready = []
    for start, skip in enumerate([*sets, SkipSet.of([0, 1, 2], [1, 2])], start=3):
        expected = scores(start, skip, ("norm",))
        assert torch.equal(scores(start, skip), expected), skip
        ready.append(len(fused._spaces[buffers][64, 4]._ready))
    assert ready[:4] == [ready[0]] * 4, "all are kept from the first set on"
    if kind in FAMILIES:  # a branch is normed before it is added: pairs, of which the last set's one is far apart
        num_after_nothing = 0 if kind == "olmo2" else 6  # without a norm it is the stream
        assert ready[0] == 7 + num_after_nothing + sum(min(place, 4) for place in range(7))
        assert ready[4] == ready[0] + 1
    else:  # attention's branch and the MLP's are elsewhere, or in another number, or they are not
        assert ready[0] in (7 + 6 + 1 + 5 * 1, 7 + 6 + 1 + 5 * 2)
        assert ready[4] == ready[0]


NAMES = tuple(products._FUNCTIONS)


def timer_for(theirs: Sequence[str], sizes: list[int]) -> Any:
    """One by which these products of the vendor's are 5 % faster, the others 4 %; `sizes` counts what is measured."""

    def make_timer(device: torch.device) -> Any:
        sizes.append(len(sizes))
        seconds = iter([one for name in NAMES for one in (1.0, 0.95 if name in theirs else 0.96)])

        def timer(run: Any) -> float:
            run()
            return next(seconds)

        return timer

    return make_timer


@torch.inference_mode()
@pytest.mark.usefixtures("collects")
@pytest.mark.parametrize("theirs", [(), ("qkv", "down"), ("out", "gated"), ("head",), NAMES], ids=str)
def test_products_are_those_measured_to_be_faster(theirs, monkeypatch):
    """Any of them, whatever is skipped; each size is measured once, few tokens never are."""
    monkeypatch.setattr(products, "ALWAYS_OURS", 3)
    model, sizes = model_of("llama"), []
    eager, called = EagerRunner(model), []
    fused, cache = FusedForward(eager.decoder, timer_for(theirs, sizes)), eager.new_cache(2, 64)
    vendors = products.F.linear
    for width, num_measured in ((1, 0), (2, 1)):
        buffers = PassBuffers(Device(model.device), 2, width)
        for start, skip in enumerate([SkipSet.of([1], [0, 2]), SkipSet(), SkipSet.of([2], [1])], start=3):
            request = PassRequest([[3 + start, 4][:width], [5, 6][:width]], [start, start], skip=skip)
            expected = eager.forward(request, cache).scores.flatten(0, 1)
            buffers.send_request(request, cache)
            with monkeypatch.context() as patched:
                patched.setattr(products.F, "linear", lambda *args: called.append(1) or vendors(*args))
                state = fused.begin(buffers, cache, 64, skip)
                called.clear()  # of what was measured, and of few sub-layers
                assert error(fused.finish(state)[0], expected) < TOLERANCE, skip
            assert bool(called) == (width == 2 and bool(theirs))
        assert len(sizes) == num_measured
    assert fused._products.theirs(4) == {*theirs}


def test_models_of_one_shape_share_what_was_measured():
    one, other = (products.Products(EagerRunner(model_of("llama")).decoder) for _ in range(2))
    assert one.table is other.table
    assert one.table is not products.Products(EagerRunner(model_of("qwen2")).decoder).table
    assert HAS_GPU or not one.theirs(512), "nothing is measured here"


@pytest.mark.parametrize("tree", ["chain", "siblings"])
def test_drafting_changes_nothing(tree):
    model = model_of("llama")
    engine = Engine(model, None)
    engine._runner = runner_of(model)
    num_tokens = 24 if HAS_GPU else 6  # the interpreter is slow
    options: dict[str, Any] = {"max_new_tokens": num_tokens}
    method = {"strategy": "fixed", "lookahead": "fixed", "settings": {"fixed": {"skip": "a2,m2", "tokens": 4}}}
    prompts = [[1, 2, 3, 4, 5], [7, 8, 9]]
    plain = [engine.generate(prompt, strategy="off", **options) for prompt in prompts]
    drafted = engine.generate(prompts, **method, tree=tree, **options)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert sum(one.stats.num_accepted for one in drafted) > 0
    assert engine._runner.fallback_reason is None


@pytest.mark.parametrize("tree", [None, pytest.param("siblings", marks=pytest.mark.full)])
def test_a_common_beginning_is_read_where_it_is_stored(tree, monkeypatch):
    """By several rows; their own slots stay empty as long as nobody else asks for them."""
    monkeypatch.setattr(FusedForward, "shared_block", 64)  # no more than 16 rows: no kernel reads more at once
    begun, whole, begin, make_whole = [], [], SlotCache.begin, SlotCache.make_whole

    def noted_begin(cache: SlotCache, row: int, *source: Any) -> None:
        begin(cache, row, *source)
        begun.extend((number, one.length) for number, one in cache.segments.items() if number == row)

    def noted(cache: SlotCache, rows: Sequence[int]) -> None:
        whole.append(bool(cache.storage[:, :, list(rows), :, :64].any()) if cache.segments else False)
        make_whole(cache, rows)

    method = {"strategy": "fixed", "lookahead": "fixed", "settings": {"fixed": {"skip": "a2,m2", "tokens": 2}}}
    options = {"strategy": "off"} if tree is None else {**method, "tree": tree}
    model, prompt = model_of("llama"), [5 + (7 * place) % 90 for place in range(66)]
    with mock.patch.object(engine_module, "make_runner", lambda model, *_: runner_of(model)):
        engine = Engine(model, None)
    engine.generate(prompt, strategy="off", max_new_tokens=1)
    monkeypatch.setattr(SlotCache, "begin", noted_begin)
    monkeypatch.setattr(SlotCache, "make_whole", noted)
    prompts = [[*prompt, token, 7] for token in (4, 9)]  # one token is read after it
    found = engine.generate(prompts, max_new_tokens=4, **options)
    assert (sorted(begun), any(whole)) == ([(0, 64), (1, 64)], False)
    reference = engine.fork(prefix_cache=False) if HAS_GPU else Engine(model, None)
    plain = reference.generate(prompts, max_new_tokens=4, strategy="off")
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert [one.stats.cached_prompt_tokens for one in found] == [66, 66]


@pytest.mark.skipif(HAS_GPU, reason="a tape is for a CPU")
@pytest.mark.parametrize("tree", ["chain", "siblings"])
def test_the_next_draft_is_begun_by_kernels(tree, monkeypatch):
    """They find the cache of every text by themselves: of two sizes, in a batch."""
    monkeypatch.setattr(gpu_accept, "runs_triton", lambda device: True)
    for name in ("_accept", "_compact"):
        monkeypatch.setattr(accept_kernels, name, NotedKernel(getattr(accept_kernels, name)))
    model = pico("llama")
    engine, plain = Engine(model, None), Engine(model, None, strategy="off")
    engine._runner = GraphRunner(model, make_recorder=TapeRecorder)
    settings = {"fixed": {"skip": "a2,m2", "tokens": 4}}
    method = {"strategy": "fixed", "lookahead": "fixed", "settings": settings, "tree": tree}
    for prompts, count in (([[1, 2, 3]], 24), ([[4, 5]], 250), ([[7, 8, 9], [3, 1, 4, 1, 5]], 20)):
        found, expected = (
            one.generate(prompts, max_new_tokens=count, **more) for one, more in ((engine, method), (plain, {}))
        )
        assert [one.tokens for one in found] == [one.tokens for one in expected]
    keys = [key for key in engine._runner.graph_keys if key.kind[0] == "accept"]
    assert keys
    assert not any(key.cache for key in keys)
    assert engine._runner.drafts_ahead[0] > 50


def test_what_cannot_run_fused_says_why():
    model = model_of("llama")
    runner = EagerRunner(model)
    if HAS_GPU:
        assert reason_against(runner.decoder) is None
    else:
        assert reason_against(runner.decoder) == "its dtype is float32, not bfloat16 or float16"
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    assert "SiLU or GELU" in str(reason_against(EagerRunner(model.half()).decoder))
    for one, reason in (
        (build("gpt2"), "sub-layers are not all of"),
        (build("llama"), "head size is 8, not a power of two from 32 on"),
        (build("mistral", hidden_size=40, head_dim=32), "hidden size is 40, not a multiple of 16"),
    ):
        assert reason in str(reason_against(EagerRunner(one.to(DEVICE).half()).decoder))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_an_adapted_embedding_is_not_read_as_a_table(family):
    """What the adapter adds may be too small to be noticed by a proof in half precision."""
    peft, model = pytest.importorskip("peft"), family_of(family).half()
    assert reason_against(EagerRunner(model).decoder) is None
    config = peft.LoraConfig(r=2, target_modules=["embed_tokens"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval().get_base_model()
    assert "embedding is more than a table" in str(reason_against(EagerRunner(adapted).decoder))


def test_a_forward_is_proven_before_it_is_used():
    model = model_of("llama")
    decoder = EagerRunner(model).decoder
    fused = FusedForward(decoder)
    prove(fused, decoder)
    turn_less(decoder)
    with pytest.raises(SelfTestError, match="differ from the model's"):
        prove(fused, decoder)


CHUNKS = {
    "one row": (1, [{0: 5}], SkipSet()),
    "a second and a third chunk": (1, [{0: 12}, {0: 3}, {0: 6}], SkipSet()),
    "rows in the middle": (4, [{1: 9, 2: 9}, {1: 3, 2: 3}], SkipSet()),
    "rows with others between them": (5, [{1: 9, 4: 2}, {1: 3, 2: 7, 4: 1}, {2: 4}], SkipSet()),
    "skipped": (2, [{0: 4, 1: 3}, {1: 3}], SkipSet.of([1], [0, 2])),
    "nothing but the embedding": (1, [{0: 3}], SkipSet.of([0, 1, 2], [0, 1, 2])),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_prefill_is_the_eager_runners(runners, name):
    """Keys, values and captured states, of every chunk; all else stays as it is: nothing of what pads is stored."""
    num_rows, passes, skip = CHUNKS[name]
    caches = [runner.new_cache(num_rows, 256) for runner in runners]
    capture, ends = ("embedding", "a0", "a1", "m1", "m2", "norm"), dict.fromkeys(range(num_rows), 0)
    for lengths in passes:
        starts = [ends[row] for row in lengths]
        tokens = [
            [(37 * slot + 5 * row) % 112 for slot in range(ends[row], ends[row] + lengths[row])] for row in lengths
        ]
        request = PassRequest(tokens, starts, list(lengths), skip, capture, needs_scores=False)
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        check_captured(found, expected, (1, sum(lengths.values()), SIZES["hidden_size"]))
        assert set(found.captured) == set(capture)
        ends.update((row, ends[row] + length) for row, length in lengths.items())
    check_stored(caches, ends)
    is_attended = any(part.name.startswith("a") for part in runners[0].decoder.active_sublayers(skip))
    assert bool(caches[0].storage.any()) is is_attended
    sizes = {gpu_prefill.prefill_width(sum(lengths.values())) for lengths in passes}
    assert (runners[1].fallback_reason, runners[1].graphs.num_captures) == (None, len(sizes))


def check_captured(found: Any, expected: Any, shape: tuple[int, ...]) -> None:
    assert found.scores.shape == expected.scores.shape
    for point, states in expected.captured.items():
        assert found.captured[point].shape == states.shape == shape
        assert error(found.captured[point], states) < PROMPT_TOLERANCE, point


def check_stored(caches: Any, ends: Mapping[int, int]) -> None:
    """Keys and values of each layer and row; nothing elsewhere. Single numbers differ more: their sums cancel."""
    expected, found = (cache.storage for cache in caches)
    for layer, kind, (row, end) in itertools.product(range(len(found)), range(2), ends.items()):
        planes = found[layer, kind, row, :, :end], expected[layer, kind, row, :, :end]
        assert not end or relative_error(*planes) < PROMPT_TOLERANCE, (layer, kind, row)
        assert not found[layer, kind, row, :, end:].any()
    others = [row for row in range(found.shape[2]) if row not in ends]
    assert not found[:, :, others].any()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of graphs or tapes, where nothing but the contents of tensors can change."""
    if HAS_GPU:
        return CudaRecorder
    own = ((kernels_prefill, name) for name in ("_rotate_and_store", "_attend_chunks", "_join_splits", "_gate"))
    for module, name in (*own, (norm, "_add_norm"), (norm, "_norm_heads")):
        monkeypatch.setattr(module, name, NotedKernel(getattr(module, name)))
    return TapeRecorder


def prompt_runners(recorder: Any) -> tuple[EagerRunner, GraphRunner]:
    model = model_of("qwen2")
    make_forwards = lambda decoder: (ModuleForward(decoder),)  # noqa: E731
    return EagerRunner(model), GraphRunner(
        model, make_recorder=recorder, make_forwards=make_forwards, make_prefill=FusedPrefill
    )


def read_prompts(
    runners: Any, num_rows: int, lengths: Mapping[int, int], capture: Sequence[str] = ("a1", "norm"), num_turns: int = 1
) -> None:
    """Texts into rows of new caches, and on, and what became of them."""
    caches, hidden = [runner.new_cache(num_rows, 40 * num_rows) for runner in runners], SIZES["hidden_size"]
    for turn in range(num_turns):
        starts = [turn * length for length in lengths.values()]
        tokens = [[(37 * slot + 5 * row + turn) % 112 for slot in range(lengths[row])] for row in lengths]
        request = PassRequest(tokens, starts, list(lengths), capture=capture, needs_scores=False)
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        check_captured(found, expected, (1, sum(lengths.values()), hidden))
    check_stored(caches, {row: num_turns * length for row, length in lengths.items()})


def test_one_recording_reads_all_prompts_of_a_size(recorder, monkeypatch):
    """Whatever the cache, its rows, and what each has of the tokens; what is too large is not recorded."""
    monkeypatch.setattr(fused_prefill, "FEW_ROWS", 3)
    runners = prompt_runners(recorder)
    graphs = runners[1].graphs
    for num_rows, lengths, num_turns in ((2, {0: 6, 1: 6}, 1), (5, {2: 1, 3: 3, 4: 8}, 2), (3, {2: 11}, 1)):
        read_prompts(runners, num_rows, lengths, num_turns=num_turns)
        assert graphs.num_captures == 1
    assert graphs.record_seconds > 0
    read_prompts(runners, 4, dict.fromkeys(range(4), 3))
    assert graphs.num_captures == 2, "more rows"
    read_prompts(runners, 2, {0: 6, 1: 6}, ("norm",))
    assert graphs.num_captures == 3
    padded = gpu_prefill.prefill_width(12)
    for name, size in (("MAX_TOKENS", padded - 1), ("MAX_KEPT_STATES", 2 * padded - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(fused_prefill, name, size)
            read_prompts(runners, 2, {0: 6, 1: 6}, ("a0", "m1"))
    assert graphs.num_captures == 3
    assert runners[1].fallback_reason is None


def test_a_prompt_that_cannot_be_recorded_is_read_by_the_modules(recorder):
    def fail(*_: Any) -> Any:
        raise RuntimeError("no room")

    runners = prompt_runners(lambda device: fail)
    assert runners[1].recorded_prompts[-1] == fused_prefill.MAX_TOKENS
    for turn in range(2):
        caches = [runner.new_cache(2, 64) for runner in runners]
        request = PassRequest([[1, 2, 3], [4, 5, 6, 7, 8]], [turn, 0], capture=("norm",), needs_scores=False)
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        check_captured(found, expected, (1, 8, SIZES["hidden_size"]))
        assert runners[1].fallback_reason == "RuntimeError: no room"
        assert not runners[1].recorded_prompts


@pytest.mark.parametrize(
    ("width", "padded"),
    [(1, 64), (64, 64), (300, 320), (513, 576), (1000, 1024), (1025, 1152), (2048, 2048), (3000, 3072)],
)
def test_widths_are_padded_by_an_eighth_at_most(monkeypatch, width, padded):
    monkeypatch.setattr(gpu_prefill, "PREFILL_STEP", 64)
    assert gpu_prefill.prefill_width(width) == padded


def test_a_prefill_is_proven_before_it_is_used(monkeypatch):
    decoder = EagerRunner(model_of("qwen2")).decoder
    prefill = FusedPrefill(decoder)
    prefill.prove()
    with monkeypatch.context() as patched:
        patched.setattr(fused_prefill, "attend", without_window)
        with pytest.raises(SelfTestError, match="differ from the model's"):
            prefill.prove()
        patched.setattr(fused_prefill, "_PROOF_WIDTHS", ((5, 3), (3, 1)))  # shorter than the model's window
        with pytest.raises(SelfTestError, match="differ from the model's"):
            prefill.prove()
    turn_less(decoder)
    with pytest.raises(SelfTestError, match="differ from the model's"):
        prefill.prove()


@torch.inference_mode()
def turn_less(decoder: Decoder) -> None:
    """What kernels read; torch's operations take the angles of their pass."""
    attention: Any = decoder.sublayers[0].run
    attention.heads.rotary.cos.mul_(0.5)


def without_window(*arguments):
    *inputs, heads, layer = arguments
    return kernels_prefill.attend(*inputs, replace(heads, window=None), layer)


def test_a_prefill_that_fails_its_proof_is_not_used(monkeypatch, caplog):
    decoder = EagerRunner(model_of("llama").to(torch.float16)).decoder  # the interpreter has no products of bfloat16
    monkeypatch.setattr(gpu_runner, "runs_triton", lambda device: True)
    graphs = Graphs(record_again(decoder.device))
    assert isinstance(gpu_runner.prefill_for(decoder, graphs), FusedPrefill)

    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fused_prefill, "attend", fail)
    assert type(gpu_runner.prefill_for(decoder, graphs)) is Prefill
    assert "reads prompts without fused kernels: no such kernel" in caplog.text
    whole = EagerRunner(model_of("llama").float()).decoder
    assert type(gpu_runner.prefill_for(whole, graphs)) is Prefill, "not in half precision"


# ------------------------------------------------------------------------------------------------------------ probes


def probes_of(runners: Any, places: Sequence[tuple[int, int]]) -> Iterator[tuple[Any, Any, list[int]]]:
    """The fused and the eager runner's, and the probed tokens: from each position of each row of a cache on."""
    caches, texts = [runner.new_cache(2, 64) for runner in runners], [list(range(3, 7)), list(range(4, 24))]
    for runner, cache in zip(runners, caches, strict=True):
        EagerRunner.forward(runner, PassRequest(texts, [0, 0], needs_scores=False), cache)
    for row, first in places:
        tokens = texts[row][first:]
        eager, fused = (one.probe(cache, tokens, first, row) for one, cache in zip(runners, caches, strict=True))
        assert (eager._branches is None, type(fused._branches)) == (True, FusedBranches)
        yield fused, eager, tokens


@pytest.mark.parametrize("family", ["qwen2", *FAMILIES])
def test_every_family_is_probed_as_the_eager_runner_does(family, monkeypatch):
    """Skip sets over the first tokens of a text, and over later ones in another row."""
    monkeypatch.setattr(probing, "branches_for", FusedBranches)
    model = family_of(family) if family in FAMILIES else model_of(family)
    for *probes, tokens in probes_of((EagerRunner(model), runner_of(model)), [(0, 0), (1, 17)]):
        skips = [frozenset(), frozenset({2, 5})]
        found, expected = (matched(probe, skips, tokens).log_probs for probe in probes)
        assert error(found, expected) < PROMPT_TOLERANCE


def test_kernels_plan_what_the_eager_runner_does(monkeypatch):
    """The last time recorded. What is nearly equal may be rounded apart."""
    monkeypatch.setattr(probing, "branches_for", FusedBranches)
    model = model_of("llama")
    items = [Item((number,), 1 + number % 2, number < 2) for number in range(6)]
    for fused, eager, _ in probes_of((EagerRunner(model), runner_of(model)), [(0, 0), (1, 17), (1, 17)]):
        expected, streams = solve(eager, items, 4, -1.0)
        with monkeypatch.context() as patched:
            patched.setattr(knapsack, "runs_triton", lambda device: True)
            found, states = solve(fused, items, 4, -1.0)
        assert [one.weight for one in found] == [one.weight for one in expected]
        assert [one.cosine for one in found] == pytest.approx([one.cosine for one in expected], abs=PROMPT_TOLERANCE)
        if not HAS_GPU:
            assert [one.skipped for one in found] == [one.skipped for one in expected]
            assert error(states.hidden, streams.hidden) < PROMPT_TOLERANCE


def test_fused_probes_are_proven_before_they_are_used(monkeypatch, caplog):
    decoder = EagerRunner(model_of("qwen2").to(torch.float16)).decoder
    monkeypatch.setattr(probing, "runs_triton", lambda device: True)
    assert isinstance(probing.branches_for(decoder), FusedBranches)
    whole = EagerRunner(model_of("llama").float()).decoder
    assert probing.branches_for(whole) is None, "not in half precision"
    turn_less(decoder)
    assert probing.branches_for(decoder) is None
    assert "is probed without fused kernels: its states differ from the model's" in caplog.text
