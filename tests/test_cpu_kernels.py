"""Compiled kernels on a CPU: the scores of torch's operations, and of a token the same bits in any company."""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from cases import SAMPLED, SETTINGS
from pico import CONTEXT_LENGTH, NUM_LAYERS, VARIANTS, VOCAB_SIZE, build, pico
from selfdraft import Engine
from selfdraft.models.cpu import library as libraries
from selfdraft.models.cpu.compiled import Compiled
from selfdraft.models.cpu.library import library
from selfdraft.models.decoder import Decoder
from selfdraft.models.eager import EagerRunner
from selfdraft.models.families import FAMILIES
from selfdraft.models.placement import Placement
from selfdraft.passes import PassRequest, Resume, TreeMask
from selfdraft.types import SkipSet

CPU = torch.device("cpu")
JOINABLE = tuple(name for name in VARIANTS if FAMILIES[name.partition("-")[0]].parts is not None)
KNOWN = {
    **dict.fromkeys(("phi3", "glm4"), NUM_LAYERS),  # gate and up are one product there, which is torch's
    "mixtral": NUM_LAYERS,  # experts
    "qwen3_moe": NUM_LAYERS + 1,  # one MLP has none
    **dict.fromkeys(set(VARIANTS) - set(JOINABLE), 0),
}
"""Sub-layers that kernels run, where that is not all of them."""
NOISE = {"smollm3": 3e-4}
"""As in test_decoder.py: what its modules differ from float64 by."""
TREES = {rows: TreeMask([[0, 1, 2, 1, 2]] * rows, [[0b1, 0b11, 0b111, 0b1001, 0b11001]] * rows) for rows in (1, 2)}
"""Columns 1 and 2 go on as a chain, column 3 is another first token, column 4 follows it."""

pytestmark = pytest.mark.skipif(library() is None, reason=f"no compiled kernels: {libraries.why_not()}")


class Counted:
    """The library, and what it was asked for."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.calls: Counter[str] = Counter()
        self.num_sublayers = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            self.num_sublayers += arguments[1].value if name == "run_sublayers" else 0
            return getattr(library(), name)(*arguments)

        return call


def attached(model: Any) -> tuple[Decoder, Counted]:
    kernels = Counted()
    decoder = Decoder(model, kernels=kernels)
    assert decoder.compiled is None or decoder.compiled.num_known
    kernels.begin()
    return decoder, kernels


def by_modules(model: Any) -> Decoder:
    return Decoder(copy.deepcopy(model), allow_joined=False)


def on_threads(num_threads: int) -> Any:
    return mock.patch.object(Compiled, "num_threads", num_threads)


def tokens_of(num_rows: int, num_tokens: int, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randint(0, vocab_size, (num_rows, num_tokens), generator=torch.Generator().manual_seed(num_rows))


def chain(starts: Sequence[int], width: int, rows: Sequence[int] = ()) -> Placement:
    return Placement.chain(starts, width, CPU, rows)


@torch.inference_mode()
def in_parts(decoder: Decoder, tokens: torch.Tensor, widths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and the keys and values that are left."""
    cache, start, scores = decoder.new_cache(len(tokens), tokens.shape[1]), 0, []
    for width in widths:
        place = chain([start] * len(tokens), width)
        scores.append(decoder.forward(tokens[:, start : start + width], place, cache).scores)
        start += width
    assert cache.storage is not None
    return torch.cat(scores, 1), cache.storage[..., :start, :]


def assert_same(found: torch.Tensor, expected: torch.Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol)


@torch.inference_mode()
def many_passes(decoder: Decoder) -> Iterator[torch.Tensor]:
    """A prefill, then few tokens: ragged, with a gap between rows, a tree, skipping, capturing, resuming."""
    tokens, lengths, points = tokens_of(3, 40), (3, 25, 14), ("embedding", "a0", "m1", "a2", "norm")
    cache, forward = decoder.new_cache(3, 40), decoder.forward
    for row, length in enumerate(lengths):
        yield forward(tokens[row : row + 1, :length], chain([0], length, [row]), cache).scores
    yield forward(tokens[:, :4], chain(lengths, 4), cache).scores
    yield forward(tokens[:1, 5:6], chain([7], 1, [2]), cache).scores
    yield forward(tokens[:2, 4:6], chain([7, 18], 2, [0, 2]), cache).scores
    yield forward(tokens[1:, 6:11], Placement.tree([29, 18], TREES[2], CPU, [1, 2]), cache).scores
    yield forward(tokens[:2, 6:11], Placement.tree([7, 20], TREES[2], CPU, [0, 2]), cache).scores
    few, place = tokens[1:, 9:12], chain([29, 18], 3, [1, 2])
    yield forward(few, place, cache, skip=SkipSet.parse("a1,a3,m0,m3")).scores
    yield forward(few, place, cache, capture=("m3",), needs_scores=False).captured["m3"]
    output = forward(few, place, cache, capture=points)
    yield from (output.captured[point] for point in points)
    resumed = forward(few, place, cache, resume=Resume("m1", (2, 1), output.captured["m1"])).scores
    assert_same(resumed, output.scores)
    yield resumed
    yield torch.cat([part.flatten() for part in cache.beginning(2, 18)])


FEW = pytest.mark.parametrize("most", [0, 16])
"""Tokens whose products are made by the kernels, too."""


def limited(decoder: Decoder, most: int) -> None:
    assert decoder.compiled is None or decoder.compiled.max_tokens == 16
    if decoder.compiled is not None:
        decoder.compiled.max_tokens, decoder.compiled.least_numbers = most, 0


@FEW
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_those_of_modules_and_of_joined_layers(variant: str, most: int) -> None:
    """What kernels do not know runs in between: experts, modules, products that are joined in the checkpoint."""
    model, tokens = copy.deepcopy(pico(variant)), tokens_of(1, 40)
    decoder, kernels = attached(model)
    limited(decoder, most)
    others = [Decoder(copy.deepcopy(model), allow_joined=allowed) for allowed in (False, True)]
    for found, *expected in zip(many_passes(decoder), *map(many_passes, others), strict=True):
        for one in expected:
            assert_same(found, one, NOISE.get(variant, 1e-4))
    num_known = KNOWN.get(variant, 2 * NUM_LAYERS)
    kernels.begin()
    in_parts(decoder, tokens, [4])
    if most:
        assert kernels.num_sublayers == num_known
        assert kernels.calls["run_head"] == (variant in JOINABLE)
        assert variant in KNOWN or kernels.calls["run_sublayers"] == 1  # all in one call
    kernels.begin()
    in_parts(decoder, tokens, [40])
    assert kernels.calls["run_heads"] + kernels.calls["run_activation"] == num_known
    assert kernels.calls["run_sublayers"] == kernels.calls["run_head"] == 0


EXACT = ("llama", "qwen2-sliding", "gemma2", "gemma3_text", "starcoder2", "olmo2", "smollm3", "granite")
ODD = {"hidden_size": 36, "intermediate_size": 50, "head_dim": 20}


@pytest.mark.parametrize(("variant", "sizes"), [*((name, {}) for name in EXACT), ("llama", ODD)], ids=str)
def test_a_token_is_the_same_in_any_company(variant: str, sizes: dict[str, Any]) -> None:
    (decoder, _), tokens, widths = attached(pico(variant, **sizes)), tokens_of(4, 20), tuple[int, ...]()
    alone = [in_parts(decoder, tokens[row : row + 1], [1] * 20) for row in range(4)]
    for num_threads, widths in ((1, (2, 3, 4, 5, 6)), (2, (16, 4)), (3, (9, 11)), (1, (7, 8, 1, 4))):
        with on_threads(num_threads):
            assert all(map(torch.equal, in_parts(decoder, tokens[:1], widths), alone[0]))
    for rows, widths in ((4, (4, 3, 1) * 2 + (4,)), (3, (5,) * 4), (2, (8, 1, 7, 4))):
        scores, kept = in_parts(decoder, tokens[:rows], widths)
        assert torch.equal(scores, torch.cat([one for one, _ in alone[:rows]]))
        assert torch.equal(kept, torch.cat([one for _, one in alone[:rows]], 2))


@pytest.mark.parametrize("variant", EXACT)
@torch.inference_mode()
def test_a_branch_of_a_tree_is_a_chain(variant: str) -> None:
    """Also where its tokens stand in other slots: a sum goes over those that are seen, one after the other."""
    decoder, _ = attached(pico(variant))
    tokens, start, caches = tokens_of(1, 18), 13, [decoder.new_cache(1, 18) for _ in range(3)]
    for cache in caches:
        decoder.forward(tokens[:, :start], chain([0], start), cache)
    found = decoder.forward(tokens[:, start:], Placement.tree([start], TREES[1], CPU), caches[0]).scores
    for columns, cache in zip(([0, 1, 2], [0, 3, 4]), caches[1:], strict=True):
        branch = tokens[:, start:][:, columns]
        assert torch.equal(found[:, columns], decoder.forward(branch, chain([start], 3), cache).scores)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
FEATURES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 2, "vocab_size": 5}),
    ("llama", {"num_hidden_layers": 1, "rope_parameters": DYNAMIC}),
    *(("llama", {**ODD, "head_dim": dim}) for dim in (8, 20, 80, 96, 128)),
    ("qwen2", {"intermediate_size": 7}),
    ("gemma2", {"hidden_activation": "gelu", "head_dim": 20, "attn_logit_softcapping": 0.5}),
    ("gemma3_text", {**ODD, "sliding_window": 3}),
    ("starcoder2", {"hidden_act": "gelu", "hidden_size": 40, "intermediate_size": 50, "use_bias": False}),
    ("olmo2", {"num_key_value_heads": 4, "hidden_size": 40, "attention_bias": True}),
    ("glm4", {"head_dim": 20, "hidden_size": 36}),
    ("phi3", {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1}),
    ("granite", {"residual_multiplier": -0.3, "attention_multiplier": 0.9, "mlp_bias": True}),
]


@FEW
@pytest.mark.parametrize(("variant", "overrides"), FEATURES, ids=str)
def test_features(variant: str, overrides: dict[str, Any], most: int) -> None:
    model, widths = build(variant, **overrides), (6, 5, 1, 8, 4)
    (decoder, kernels), tokens = attached(model), tokens_of(2, 24, model.config.vocab_size)
    limited(decoder, most)
    expected, _ = in_parts(by_modules(model), tokens, widths)
    for num_threads in (1, 3):
        with on_threads(num_threads):
            assert_same(in_parts(decoder, tokens, widths)[0], expected)
    assert kernels.calls["run_sublayers" if most else "run_between"] >= 10


@torch.inference_mode()
def test_padding_after_the_context() -> None:
    """Positions after the last angle are taken for the last; nobody else is disturbed."""
    model, tokens, last, found = build("llama", rope_parameters=DYNAMIC), tokens_of(2, 256), CONTEXT_LENGTH - 1, []
    padded = torch.stack([tokens[0, 5:8], torch.cat((tokens[1, last:], torch.zeros(2, dtype=torch.long)))])
    for decoder in (attached(model)[0], by_modules(model)):
        cache = decoder.new_cache(2, CONTEXT_LENGTH + 8)
        decoder.forward(tokens[:, :last], chain([0, 0], last), cache)
        scores = decoder.forward(padded, chain([5, last], 3), cache).scores
        found.append(torch.cat((scores[0], scores[1, :1])))
    assert_same(found[0], found[1])


@pytest.mark.parametrize("window", [None, 1000])
def test_long_texts(window: int | None) -> None:
    """More than a thousand slots are read, and a mask hides many of them or none."""
    model = build("mistral", max_position_embeddings=2048, sliding_window=window)
    (decoder, kernels), tokens = attached(model), tokens_of(1, 1510)
    found, expected = (in_parts(one, tokens, (1500, 1, 4, 5))[0][:, 1500:] for one in (decoder, by_modules(model)))
    assert_same(found, expected)
    assert kernels.num_sublayers == 2 * NUM_LAYERS * 3


@pytest.mark.parametrize("variant", ["llama", "gemma2", "starcoder2"])
def test_extreme_numbers(variant: str) -> None:
    """Scores of attention and inputs of activations of 10,000 and more, up and down."""
    model, tokens = copy.deepcopy(pico(variant)), tokens_of(1, 12)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(3e4)
        (layer.mlp.gate_proj if variant != "starcoder2" else layer.mlp.c_fc).weight.data.mul_(1e4)
    found, expected = (in_parts(one, tokens, [12])[0] for one in (attached(model)[0], by_modules(model)))
    assert found.isfinite().all()
    assert_same(found, expected, atol=1e-2)


@pytest.mark.parametrize("vocab_size", [2, 5, 17, 112])
@torch.inference_mode()
def test_best_is_the_first_of_the_largest(vocab_size: int) -> None:
    model, half = build("llama", vocab_size=vocab_size), vocab_size // 2
    model.lm_head.weight[half : 2 * half] = model.lm_head.weight[:half].clone()
    (decoder, _), tokens = attached(model), tokens_of(2, 8, vocab_size)
    for num_threads in (1, 3):
        with on_threads(num_threads):
            output = decoder.forward(tokens, chain([0, 0], 8), decoder.new_cache(2, 8))
        is_largest = output.scores == output.scores.amax(-1, keepdim=True)
        assert is_largest.sum() > 16  # there are ties
        assert output.best is not None
        assert torch.equal(output.best, is_largest.int().argmax(-1))


Compiler = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """The compiler is a script ($2: what it makes), and nothing is compiled. Given: a line for each call; the home."""
    path, log, home, made = *(tmp_path / name for name in ("compiler", "log", "home")), library()._name
    monkeypatch.setenv("SELFDRAFT_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(script: str) -> tuple[Path, Path]:
        begin = f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho "$2" >> {log}\n'
        path.write_text(begin + script.replace("MADE", str(made)).replace("LOG", str(log)))
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        return log, home

    libraries._found.cache_clear()
    yield make
    libraries._found.cache_clear()


@pytest.mark.parametrize("can_write", [True, False])
def test_it_is_compiled_once(can_write: bool, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each process, where the folder cannot be written: the home is a file."""
    log, home = compiler('cp MADE "$2"')
    monkeypatch.setenv("SELFDRAFT_HOME", str(home if can_write else log.with_name("compiler")))
    for _ in "12":
        assert library() is library() is not None
        libraries._found.cache_clear()
    assert len(log.read_text().splitlines()) == (1 if can_write else 2)
    assert [path.suffix for path in home.rglob("*.*")] == [".so"] * can_write


FAILING = {
    "": "there is no C compiler. Install gcc or clang, or name a C compiler in CC",
    "echo 'passes.c:7:10: fatal error: omp.h: No such file' >&2; exit 1": "compiler failed: .*omp.h",
    'echo half > "$2"; kill -9 $$': "compiler failed: exit status",
}


@pytest.mark.parametrize("script", FAILING)
def test_no_compiler(
    script: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, home = compiler(script)
    for name in () if script else ("CC", "PATH"):
        monkeypatch.setenv(name, str(home))
    with caplog.at_level(logging.WARNING, "selfdraft"):
        assert library() is library() is None
        assert EagerRunner(copy.deepcopy(pico("llama")), is_quick=True).decoder.compiled is None
    (record,) = caplog.records
    assert re.search(FAILING[script], record.getMessage())
    assert not script or len(log.read_text().splitlines()) == 1
    assert not list(home.rglob("passes*"))


def test_two_processes_at_once(compiler: Compiler) -> None:
    """Each waits for the other with half a file."""
    _, home = compiler('head -c 999 MADE > "$2"; while [ $(wc -l < LOG) -lt 2 ]; do sleep 0.05; done; cp MADE "$2"')
    code = "from selfdraft.models.cpu.library import library; assert library().run_head"
    running = [subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ)) for _ in "12"]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    assert len(list(home.rglob("*.*"))) == 1


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 6, 5, 6, 5], [9]]
METHODS: list[dict[str, Any]] = [
    *({"strategy": name} for name in ("off", "uniform", "swift")),
    *({"strategy": "fixed", **more} for more in ({"drafter": "lookup"}, {"tree": "siblings"})),
]


@functools.cache
def engine_of(family: str, graphs: bool) -> Engine:
    return Engine(copy.deepcopy(pico(family)), graphs=graphs, settings=SETTINGS)


@pytest.mark.parametrize(
    ("family", "mode"), [("llama", {}), ("llama", SAMPLED), ("gemma3_text", SAMPLED), ("qwen3_moe", {})], ids=str
)
def test_texts_are_the_same(family: str, mode: dict[str, Any]) -> None:
    plain, quick = engines = [engine_of(family, graphs) for graphs in (False, True)]
    runners: list[Any] = [one.runner for one in engines]
    assert [one.decoder.compiled is None for one in runners] == [True, False]
    options: dict[str, Any] = {"max_new_tokens": 20, **mode}
    expected = [one.tokens for one in plain.generate(PROMPTS, strategy="off", **options)]
    for method in METHODS:
        assert [one.tokens for one in quick.generate(PROMPTS, **method, **options)] == expected
        assert quick.generate(PROMPTS[0], **method, **options).tokens == expected[0]


def test_threads_are_chosen_by_rows_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short product takes less time than waking up a thread, so it says nothing of a pass."""
    model, asked, module = copy.deepcopy(pico("llama")), [], "selfdraft.models.cpu.compiled"
    monkeypatch.setattr(f"{module}._best_threads", lambda kernels, weight: asked.append(tuple(weight.shape)))
    attached(model)
    assert not asked, "its products take no time that could be measured"
    size = model.config.hidden_size
    monkeypatch.setattr(f"{module}._LEAST_BYTES", 0)
    monkeypatch.setattr(f"{module}._MOST_NUMBERS", 12 * size + 1)
    attached(model)
    assert asked == [(12, size)]


def test_two_threads_on_one_model() -> None:
    model = copy.deepcopy(pico("llama"))
    engines, plain = [Engine(model, strategy="uniform") for _ in "12"], engine_of("llama", False)

    def generate(engine: Engine, prompt: list[int]) -> Any:
        return engine.generate(prompt, max_new_tokens=60).tokens

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(generate, engines * 3, PROMPTS[:2] * 3))
    assert found == [generate(plain, prompt) for prompt in PROMPTS[:2]] * 3


ALL = 2 * NUM_LAYERS
ALTERED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "cast": (lambda model: model.to(torch.bfloat16), 0),
    "hooked": (lambda model: model.model.layers[1].mlp.register_forward_hook(lambda *call: call[-1] / 2), ALL - 1),
    "replaced": (lambda model: setattr(model.lm_head, "weight", nn.Parameter(model.lm_head.weight.detach() * 2)), ALL),
    "copied": (lambda model: model.to(torch.float64).to(torch.float32), ALL),
    "written": (lambda model: [weight.data.mul_(0.9) for weight in model.parameters()], ALL),
}


@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_model_is_what_runs(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By weights where they are now, or by its own modules."""
    model, kernels, tokens, (alter, num_known) = copy.deepcopy(pico("llama")), Counted(), tokens_of(1, 9), ALTERED[how]
    monkeypatch.setattr("selfdraft.models.eager.library", lambda: kernels)
    runner = EagerRunner(model, is_quick=True)
    before = runner.decoder.compiled
    alter(model)
    runner.refresh()
    assert (runner.decoder.compiled is before) is (how == "written")
    kernels.begin()
    found = runner.forward(PassRequest(tokens, [0]), runner.new_cache(1, 9)).scores
    assert_same(found, model(tokens, use_cache=False).logits.detach(), 0.2 if how == "cast" else 1e-4)
    assert kernels.num_sublayers == num_known


def test_weights_stay_where_they_are() -> None:
    model = copy.deepcopy(pico("qwen2"))
    before = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    attached(model)
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == before
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == len(before)
