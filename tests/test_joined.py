"""Joined sub-layers, feature by feature, are what their modules compute, and round where those round."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb as rotate_interleaved
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_all
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.olmo2.modeling_olmo2 import apply_rotary_pos_emb as rotate_unrounded
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as rotate_some

from pico import VARIANTS, build, pico
from selfdraft.errors import SelfTestError
from selfdraft.models.attend import attend, rotate
from selfdraft.models.checks import relative_error
from selfdraft.models.cpu.experts import few_experts
from selfdraft.models.decoder import Decoder
from selfdraft.models.families import (
    FAMILIES,
    GEMMA_NORM,
    LAYER_NORM,
    LLAMA_NORM,
    OLMO_NORM,
    NormKind,
    every_layer,
    none,
)
from selfdraft.models.joined import JoinedBranch, JoinedMLP, _activation, joined_norm
from selfdraft.models.placement import Placement
from selfdraft.models.sublayer import Pass

HALVES = (torch.bfloat16, torch.float16)
JOINABLE = tuple(name for name in VARIANTS if FAMILIES[name.partition("-")[0]].parts is not None)
by_dtype = pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """In half precision nearly all numbers are the same bits: only sums in another order may round otherwise.

    Where a norm, rotary, the soft cap or a multiplier leaves out a rounding, more do.
    """
    assert found.dtype == expected.dtype
    if found.dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert relative_error(found, expected) < 1e-2
        assert (found == expected).float().mean() > 0.98


# ------------------------------------------------------------------------------------------------------- features

NORMS: dict[str, tuple[Callable[..., nn.Module], NormKind]] = {
    "llama": (LlamaRMSNorm, LLAMA_NORM),
    "olmo": (Olmo2RMSNorm, OLMO_NORM),
    "gemma": (Gemma3RMSNorm, GEMMA_NORM),
    "layer": (nn.LayerNorm, LAYER_NORM),
}


@by_dtype
@pytest.mark.parametrize("kind", NORMS)
@torch.inference_mode()
def test_norms(kind, dtype):
    make, row = NORMS[kind]
    module = make(24, eps=0.01).to(dtype)
    for number, weight in enumerate(module.parameters()):
        weight.copy_(drawn(24, seed=number))
    norm = joined_norm(module, row)
    assert norm is not None
    for shape in ((1, 1, 24), (2, 5, 24)):
        hidden = 3 * drawn(*shape, dtype=dtype) + 1
        assert_alike(norm(hidden), module(hidden))


def rotated(heads: torch.Tensor, *turns: torch.Tensor, is_interleaved: bool = False) -> torch.Tensor:
    found = heads.clone()
    rotate(found, *turns, is_interleaved)
    return found


@by_dtype
@pytest.mark.parametrize("size", [8, 12], ids=["partial", "full"])
@pytest.mark.parametrize("width", [1, 5])
def test_rotary(width, size, dtype):
    heads, angles = drawn(2, width, 3, 12, dtype=dtype), drawn(2, width, size // 2).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    low, high = sin[:, :, None].chunk(2, dim=-1)
    turns = cos[:, :, None], torch.cat((-low, high), dim=-1)
    theirs = (rotate_some if size == 8 else rotate_all)(heads, heads, cos.to(dtype), sin.to(dtype), unsqueeze_dim=2)
    assert_alike(rotated(heads, *(part.to(dtype) for part in turns)), theirs[0])
    if size == 12:
        assert_alike(rotated(heads, *turns), rotate_unrounded(heads, heads, cos, sin, unsqueeze_dim=2)[0])


@by_dtype
@pytest.mark.parametrize("size", [8, 12], ids=["partial", "full"])
def test_interleaved_rotary(size, dtype):
    heads = drawn(2, 3, 5, 12, dtype=dtype)
    cos, sin = (drawn(2, 3, size // 2).repeat(1, 1, 2).to(dtype) for _ in "12")
    turns = Pass(Placement.chain([0, 0], 3, heads.device), None, lambda: {None: (cos, sin)}).turns(
        None, is_interleaved=True
    )
    expected = rotate_interleaved(heads, heads, cos, sin, unsqueeze_dim=2)[0]
    assert_alike(rotated(heads, *turns, is_interleaved=True), expected)
    assert (rotated(heads, *turns) - expected).abs().max() > 1e-2


@by_dtype
@pytest.mark.parametrize("is_masked", [True, False])
def test_softcapped_scores(is_masked, dtype):
    query = drawn(2, 5, 6, 8, dtype=dtype).transpose(1, 2)
    keys, values = drawn(2, 2, 3, 11, 8, dtype=dtype)
    mask = torch.where(drawn(2, 1, 5, 11) > 0, 0, torch.finfo(dtype).min).to(dtype) if is_masked else None
    module = copy.deepcopy(pico("gemma2").model.layers[0].self_attn)
    module.num_key_value_groups = 2
    for softcap in (0.5, 3.0):
        expected, _ = eager_attention_forward(module, query, keys, values, mask, scaling=0.7, softcap=softcap)
        assert_alike(attend(query, keys, values, mask, 0.7, softcap), expected.transpose(1, 2))
    uncapped = attend(query, keys, values, mask, 0.7)
    assert (uncapped - attend(query, keys, values, mask, 0.7, 0.5)).abs().max() > 1e-2


@by_dtype
@pytest.mark.parametrize(
    ("name", "kind"),
    {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}.items(),
)
def test_activations_that_kernels_know(name, kind, dtype):
    function, found = _activation(ACT2FN[name])
    assert found == kind
    assert_alike(function(drawn(50, dtype=dtype)), ACT2FN[name](drawn(50, dtype=dtype)))


@pytest.mark.parametrize("name", ["relu", "gelu_new", "gelu_python", "gelu_python_tanh", "quick_gelu"])
def test_other_activations_stay_modules(name):
    function, kind = _activation(ACT2FN[name])
    assert isinstance(function, nn.Module)
    assert kind is None


def test_a_hooked_activation_acts():
    model = copy.deepcopy(pico("llama"))
    model.model.layers[2].mlp.act_fn = nn.SiLU()  # transformers shares one module among the layers
    model.model.layers[2].mlp.act_fn.register_forward_hook(lambda module, inputs, output: output * 1.1)
    part = {part.name: part.run for part in Decoder(model).sublayers}["m2"]  # the self-test has compared it
    assert isinstance(part, JoinedMLP)
    assert part.kind is None


# ------------------------------------------------------------------------------------------------------- branches


def passes(decoder: Decoder, dtype: torch.dtype) -> list[Pass]:
    """More than three windows, and one token after them."""
    cache, passes = decoder.new_cache(1, 30), []
    for start, width in ((0, 29), (29, 1)):
        placement = Placement.chain([start], width, decoder.device)
        passes.append(decoder.embed(torch.zeros(1, width, dtype=torch.long), placement, cache)[1])
    return passes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", JOINABLE)
@torch.inference_mode()
def test_each_branch_is_its_modules(variant, dtype):
    model = copy.deepcopy(pico(variant)).to(dtype)
    joined, modules = (Decoder(model, allow_joined=allowed) for allowed in (True, False))
    steps = list(zip(passes(joined, dtype), passes(modules, dtype), strict=True))
    for one, other in zip(joined.sublayers, modules.sublayers, strict=True):
        assert isinstance(one.run, JoinedBranch)
        for ours, theirs in steps:
            hidden = drawn(*ours.placement.positions.shape, 32, dtype=dtype)
            assert_alike(one.run(hidden, ours), other.run(hidden, theirs))


WRONG_PARTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"head_norms": None}),
    ("gemma2", {"softcap": none}),
    ("gemma2", {"norm": dataclasses.replace(GEMMA_NORM, offset=0.0)}),
    ("gemma3_text", {"head_norms": ("k_norm", "q_norm")}),
    ("smollm3", {"has_rotary": every_layer}),
    ("exaone4", {"has_rotary": every_layer}),
    ("glm4", {"is_interleaved": False}),
    ("olmo2", {"head_norms": None}),
    ("llama", {"inner": ("up_proj", "gate_proj")}),
    ("mistral", {"projections": ("k_proj", "q_proj", "v_proj")}),
]


@pytest.mark.parametrize(
    ("family", "changes"), WRONG_PARTS, ids=[f"{name}-{next(iter(wrong))}" for name, wrong in WRONG_PARTS]
)
def test_wrong_parts_fail_the_self_test(family, changes, monkeypatch):
    row = FAMILIES[family]
    assert row.parts is not None
    monkeypatch.setitem(FAMILIES, family, dataclasses.replace(row, parts=dataclasses.replace(row.parts, **changes)))
    with pytest.raises(SelfTestError, match=f"'{family}' does not reproduce"):
        Decoder(copy.deepcopy(pico(family)))


@pytest.mark.parametrize(
    ("variant", "path", "name"),
    [
        ("qwen3", "self_attn.q_norm", "a2"),
        ("olmo2", "self_attn.k_norm", "a2"),
        ("gemma2", "post_feedforward_layernorm", "m2"),
        ("phi3", "self_attn.qkv_proj", "a2"),
        ("starcoder2", "mlp.c_fc", "m2"),
        ("qwen3_moe", "mlp.experts", None),  # its own forward is what runs
    ],
)
@torch.inference_mode()
def test_what_is_hooked_keeps_its_own_forward(variant, path, name):
    model, tokens = copy.deepcopy(pico(variant)), torch.arange(12)[None]
    before = model(tokens).logits
    attrgetter(path)(model.model.layers[2]).register_forward_hook(lambda module, inputs, output: output * 1.3)
    decoder = Decoder(model)  # the self-test has compared it
    assert (model(tokens).logits - before).abs().max() > 1e-2
    assert [part.name for part in decoder.sublayers if not isinstance(part.run, JoinedBranch)] == [name] * bool(name)


# ------------------------------------------------------------------------------------------------ what kernels read


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", JOINABLE)
@torch.inference_mode()
def test_tables_and_factors_are_the_models(variant, dtype):
    decoder = Decoder(copy.deepcopy(pico(variant)).to(dtype))
    placement = Placement.chain([0], 30, decoder.device)
    tokens = torch.arange(30)[None]
    hidden, step = decoder.embed(tokens, placement, decoder.new_cache(1, 30))
    assert torch.equal(hidden, decoder.embedding[tokens] * decoder.embedding_scale)
    raw = decoder.head(decoder.final_norm(hidden))
    assert torch.equal(decoder.scores_of(raw), decoder.scores(hidden))
    for part in (part.run for part in decoder.sublayers[::2]):
        rotary, (cos, sin) = part.heads.rotary, step.rotary[part.rotary_kind]
        if part.has_rotary:
            assert len(rotary.cos) == decoder.context_length
            assert torch.equal(rotary.cos[:30].repeat(1, 2), cos[0])
            assert torch.equal(rotary.sin[:30].repeat(1, 2), sin[0])
        else:
            assert rotary.cos.tolist() == [[1] * (part.heads.dim // 2)]
            assert not rotary.sin.any()


def test_a_soft_cap_is_left_out_where_the_model_leaves_it_out():
    """transformers 5.17 takes sdpa for Gemma 2 unless told otherwise; later versions refuse it."""
    try:
        model = build("gemma2", attn_implementation="sdpa")
    except ValueError:
        config = copy.deepcopy(pico("gemma2").config)
        config._attn_implementation = "sdpa"
        assert FAMILIES["gemma2"].parts.softcap(config) is None
    else:
        assert Decoder(model).self_test_error < 1e-5


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
@torch.inference_mode()
def test_experts_of_a_few_tokens(family, monkeypatch):
    """Only those that the module's own router names, and the module itself where there are more tokens."""
    module = copy.deepcopy(pico(family).model.layers[0].mlp)
    experts = few_experts(module, module.experts, module.experts.act_fn)
    assert experts is not None
    hidden = drawn(2, 2, 32)
    expected = module(hidden)
    monkeypatch.setattr(type(module), "forward", lambda *_: pytest.fail("these were few"))
    for found, wanted in ((experts(hidden[:1, :1]), expected[:1, :1]), (experts(hidden[1:]), expected[1:])):
        assert_alike(found, wanted)
    with pytest.raises(pytest.fail.Exception, match="few"):
        experts(hidden)
    for part in (module, module.experts):  # a class that does otherwise is asked itself
        kind = type(part)
        part.__class__ = type("Other", (kind,), {"forward": lambda self, *_: torch.zeros(1, 1, 32)})
        assert few_experts(module, module.experts, module.experts.act_fn) is None
        part.__class__ = kind
    module.__class__ = type("Other", (type(module),), {"forward": lambda self, *_: torch.zeros(1, 1, 32)})
    assert not experts(hidden[:1, :1]).any()
