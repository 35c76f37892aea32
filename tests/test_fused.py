"""FusedForward against the eager path: the same model, the same tokens. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from selfdraft import Engine  # noqa: E402
from selfdraft.errors import SelfTestError  # noqa: E402
from selfdraft.kernels import attention, gated, linear, norm, quick  # noqa: E402
from selfdraft.models.eager import EagerRunner  # noqa: E402
from selfdraft.models.gpu import forward as gpu_forward  # noqa: E402
from selfdraft.models.gpu import fused_prefill  # noqa: E402
from selfdraft.models.gpu import prefill as gpu_prefill  # noqa: E402
from selfdraft.models.gpu import runner as gpu_runner  # noqa: E402
from selfdraft.models.gpu.forward import prove  # noqa: E402
from selfdraft.models.gpu.fused import FusedForward, Midway, reason_against  # noqa: E402
from selfdraft.models.gpu.fused_prefill import FusedPrefill  # noqa: E402
from selfdraft.models.gpu.memory import PassBuffers  # noqa: E402
from selfdraft.models.gpu.prefill import Prefill  # noqa: E402
from selfdraft.models.gpu.runner import CudaRecorder, GraphRunner  # noqa: E402
from selfdraft.passes import PassRequest, TreeMask  # noqa: E402
from selfdraft.types import SkipSet  # noqa: E402

DEVICE, DTYPE = ("cuda", torch.bfloat16) if HAS_GPU else ("cpu", torch.float32)
TOLERANCE = 5e-2 if HAS_GPU else 1e-4
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
        monkeypatch.setattr(fused_prefill, "_PROOF_WIDTHS", (18, 3))


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
    torch.manual_seed(1)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))
    else:
        layers = ["full_attention", "sliding_attention", "full_attention"]
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, layer_types=layers))
    return model.eval().to(DEVICE, DTYPE)


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


KERNELS = ((attention, "_attend"), (attention, "_join"), (gated, "_gated"), (linear, "_linear"), (norm, "_add_norm"))


@torch.inference_mode()
@pytest.mark.usefixtures("collects")
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_fixed_places_and_kept_launches_change_no_bit(kind):
    """What is captured works in memory of its own, by launches of its own."""
    runner = runner_of(model_of(kind))
    fused, cache, buffers = runner._forwards[0], runner.new_cache(2, 64), PassBuffers(runner._device, 2, 2)

    def scores(start: int, skip: SkipSet, capture: tuple[str, ...] = ()) -> torch.Tensor:
        buffers.send_request(PassRequest([[3, 4], [5, 6]], [start, start - 1]), cache)
        return fused.finish(fused.begin(buffers, cache, 64, skip, capture))[0].clone()

    sets = [SkipSet.of([1], [0, 2]), SkipSet(), SkipSet.of([0, 1, 2], [1]), SkipSet.of([0], [0, 1, 2])]
    ready = []
    for start, skip in enumerate(sets, start=3):
        expected = scores(start, skip, ("norm",))
        assert torch.equal(scores(start, skip), expected), skip
        ready.append(len(fused._spaces[buffers][64]._ready))
    num_branches = 2 if ready[0] == 6 + 7 * 3 else 1  # attention's and the MLP's: elsewhere, or in another number
    assert ready == [6 + 7 * (1 + num_branches)] * len(sets), "all are kept from the first set on"


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


def test_what_cannot_run_fused_says_why():
    model = model_of("llama")
    runner = EagerRunner(model)
    if HAS_GPU:
        assert reason_against(runner.decoder) is None
    else:
        assert reason_against(runner.decoder) == "its dtype is float32, not bfloat16 or float16"
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()
    assert "SiLU" in str(reason_against(EagerRunner(model.to(torch.bfloat16)).decoder))


def test_a_forward_is_proven_before_it_is_used():
    model = model_of("llama")
    decoder = EagerRunner(model).decoder
    fused = FusedForward(decoder)
    prove(fused, decoder)
    fused._cos = fused._cos * 0.5
    with pytest.raises(SelfTestError, match="differ from the model's"):
        prove(fused, decoder)


CHUNKS = {
    "one row": (1, 1, 0, (5,), SkipSet()),
    "a second and a third chunk": (1, 1, 0, (12, 3, 6), SkipSet()),
    "rows in the middle": (4, 2, 1, (9, 3), SkipSet()),
    "skipped": (2, 2, 0, (4, 3), SkipSet.of([1], [0, 2])),
    "nothing but the embedding": (1, 1, 0, (3,), SkipSet.of([0, 1, 2], [0, 1, 2])),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_prefill_is_the_eager_runners(runners, name):
    """Keys, values and captured states, of every chunk; other rows stay as they are."""
    num_rows, count, first_row, widths, skip = CHUNKS[name]
    caches = [runner.new_cache(num_rows, 256) for runner in runners]
    capture = ("embedding", "a0", "a1", "m1", "m2", "norm")
    start = 0
    for width in widths:
        tokens = (torch.arange(count * width).view(count, width) * 37 + start) % 112
        request = PassRequest(tokens, [start] * count, first_row, skip, capture, needs_scores=False)
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        assert found.scores.shape == expected.scores.shape
        assert set(found.captured) == set(capture)
        for point, states in expected.captured.items():
            assert found.captured[point].shape == states.shape
            assert error(found.captured[point], states) < TOLERANCE, (name, width, point)
        start += width
    stored = [cache.storage[..., :start, :] for cache in caches]
    assert float(stored[0].norm()) > 0 or "a0" not in {part.name for part in runners[0].decoder.active_sublayers(skip)}
    torch.testing.assert_close(stored[1], stored[0], rtol=TOLERANCE, atol=TOLERANCE)
    rows = [row for row in range(num_rows) if not first_row <= row < first_row + count]
    assert not caches[1].storage[:, :, rows].any()


def test_rows_that_start_apart_are_read_by_the_modules(runners):
    caches = [runner.new_cache(2, 128) for runner in runners]
    for starts in ([0, 0], [6, 4]):
        request = PassRequest(torch.arange(12).view(2, 6), starts, capture=("norm",), needs_scores=False)
        expected, found = (runner.forward(request, cache) for runner, cache in zip(runners, caches, strict=True))
        assert error(found.captured["norm"], expected.captured["norm"]) < TOLERANCE


def test_a_prefill_is_proven_before_it_is_used(monkeypatch):
    decoder = EagerRunner(model_of("qwen2")).decoder
    prefill = FusedPrefill(decoder)
    prefill.prove()
    with monkeypatch.context() as patched:
        patched.setattr(fused_prefill, "attend", without_window)
        with pytest.raises(SelfTestError, match="differ from the model's"):
            prefill.prove()
        patched.setattr(fused_prefill, "_PROOF_WIDTHS", (5, 3))  # shorter than the model's window
        with pytest.raises(SelfTestError, match="differ from the model's"):
            prefill.prove()
    prefill._table = prefill._table[0] * 0.5, prefill._table[1]
    with pytest.raises(SelfTestError, match="differ from the model's"):
        prefill.prove()


def without_window(query, keys, values, heads):
    return fused_prefill.attend_masked(query, keys, values, replace(heads, window=None))


def test_a_prefill_that_fails_its_proof_is_not_used(monkeypatch, caplog):
    decoder = EagerRunner(model_of("llama").to(torch.bfloat16)).decoder
    monkeypatch.setattr(gpu_runner, "runs_triton", lambda device: True)
    assert isinstance(gpu_runner.prefill_for(decoder), FusedPrefill)

    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fused_prefill, "attend", fail)
    assert type(gpu_runner.prefill_for(decoder)) is Prefill
    assert "reads prompts without fused kernels: no such kernel" in caplog.text
    whole = EagerRunner(model_of("llama").float()).decoder
    assert type(gpu_runner.prefill_for(whole)) is Prefill, "not in half precision"
