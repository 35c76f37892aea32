"""`selfdraft info`: the figures are the model's own."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learned import latency
from pico import CONTEXT_LENGTH, NUM_LAYERS, VOCAB_SIZE, WINDOW, pico, save
from selfdraft.models.decoder import Decoder
from selfdraft.models.load.info import describe
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.store import Store

MODELS = {
    "llama": pico("llama"),
    "llama-tied": pico("llama", tie_word_embeddings=True),
    "qwen2-sliding": pico("qwen2-sliding"),
    "gpt2": pico("gpt2"),
    "gpt2-tied": pico("gpt2", tie_word_embeddings=True),
    "gemma2": pico("gemma2"),
}
by_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@by_model
def test_parameters_sum_up(model: Any) -> None:
    """A pass reads all but the embedding; a tied head has no parameters, but is read."""
    info, head = describe(Decoder(model)), model.get_output_embeddings().weight
    assert info.parameters.total == model.num_parameters()
    assert info.parameters.other == 0
    assert info.weight_bytes == 4 * model.num_parameters()
    assert info.is_head_tied == bool(model.config.tie_word_embeddings)
    assert info.parameters.head == (0 if info.is_head_tied else head.numel())
    assert info.head_share > head.nbytes / info.pass_bytes
    embedding = sum(p.nbytes for name, p in model.named_parameters() if any(t in name for t in ("embed", "wte", "wpe")))
    assert info.pass_bytes == info.weight_bytes - embedding + (head.nbytes if info.is_head_tied else 0)
    shares = [share for layer in info.layers for share in (layer.attention_share, layer.mlp_share)]
    assert sum(shares) + info.head_share == pytest.approx(1)
    assert all(share > 0 for share in shares)


@by_model
def test_the_cache_is_as_large_as_said(model: Any) -> None:
    decoder = Decoder(model)
    info, cache = describe(decoder), decoder.new_cache(1, 64)
    assert 64 * info.cache_bytes_per_token == sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    assert info.cache_bytes == CONTEXT_LENGTH * info.cache_bytes_per_token


def test_a_skipped_sub_layer_by_hand() -> None:
    layer = describe(Decoder(pico("llama"))).layers[2]
    hidden, kv, inner = 32, 16, 48
    assert layer.attention_parameters == 2 * hidden * hidden + 2 * hidden * kv + hidden
    assert layer.mlp_parameters == 3 * hidden * inner + hidden
    read = NUM_LAYERS * (layer.attention_parameters + layer.mlp_parameters) + hidden + VOCAB_SIZE * hidden
    assert layer.attention_share == pytest.approx(layer.attention_parameters / read)


def test_norms_on_both_sides_belong_to_their_branch() -> None:
    layer = describe(Decoder(pico("gemma2"))).layers[0]
    block = pico("gemma2").model.layers[0]
    assert layer.attention_parameters == sum(p.numel() for p in block.self_attn.parameters()) + 2 * 32


def test_why_not_the_fast_path() -> None:
    hooked = copy.deepcopy(pico("llama"))
    hooked.model.layers[1].mlp.register_forward_hook(lambda module, arguments, output: output)
    info = describe(Decoder(hooked))
    assert info.num_fast_sublayers == 2 * NUM_LAYERS - 1
    assert "hooked" in str(info.fast_path_note)


def test_text(folder: str, home: Path, said: Callable[..., str]) -> None:
    output = said("info", folder)
    for line in (
        "family       llama (LlamaForCausalLM)",
        "layers       5",
        "heads        4, key/value heads 2, head size 8",
        "context      256 tokens",
        "attention    sdpa, no sliding window",
        "fast path    all 10 sub-layers",
        "  key/value cache  640 B a token, 164 kB for the whole context",
        "profile: nothing learned yet for this model on this device",
    ):
        assert line in output.splitlines()
    for part in (f"parameters: {pico('llama').num_parameters():,}", "  a0-4  ", "  m0-4  "):
        assert part in output
    assert 0 <= float(output.partition("passed, relative error ")[2].split()[0]) < 1e-5


def test_what_was_learned(folder: str, home: Path, said: Callable[..., str]) -> None:
    key = ProfileKey.of(pico("llama"))
    Store().set_latency(key, latency().to_json())
    assert "profile: latency (of " in said("info", folder)
    assert json.loads(said("info", "--json", folder))["profile"] == ["latency"]
    Store().path_of(key).write_text("{")
    assert "cannot use the profile" in said("info", folder)


def test_unlike_layers_are_listed_by_groups(tmp_path: Path, home: Path, said: Callable[..., str]) -> None:
    output = said("info", save(pico("gemma2"), tmp_path))
    assert f"sliding window {WINDOW} in layers 0,2,4" in output
    assert "fast path    all 10 sub-layers" in output
    assert "none of 10 sub-layers: not written for the family gpt2" in said(
        "info", save(pico("gpt2"), tmp_path / "gpt2")
    )
    rows = [
        line.split()[0] for line in said("info", save(pico("qwen3_moe"), tmp_path)).splitlines() if " each, " in line
    ]
    assert rows == ["a0-4", "m0,m2-4", "m1"]


def test_json(tmp_path: Path, home: Path, said: Callable[..., str]) -> None:
    model = pico("gpt2", tie_word_embeddings=True)
    document = json.loads(said("info", "--json", save(model, tmp_path), "--dtype", "float16"))
    assert (document["family"], document["dtype"], document["profile"]) == ("gpt2", "float16", None)
    parts = document["parameters"]
    assert sum(parts.values()) == 2 * parts["total"] == 2 * model.num_parameters()
    assert document["weight_bytes"] == 2 * model.num_parameters()
    assert len(document["layers"]) == document["num_layers"] == NUM_LAYERS
