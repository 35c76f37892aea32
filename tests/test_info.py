"""`selfdraft info`: the figures are the model's own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from learned import latency
from pico import CONTEXT_LENGTH, NUM_LAYERS, VOCAB_SIZE, WINDOW, pico, save
from selfdraft.cli.main import main
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
    info = describe(Decoder(model))
    assert info.parameters.total == model.num_parameters()
    assert info.parameters.other == 0
    assert info.weight_bytes == 4 * model.num_parameters()


@by_model
def test_a_tied_head_has_no_parameters_but_is_read(model: Any) -> None:
    info = describe(Decoder(model))
    head = model.get_output_embeddings().weight
    assert info.is_head_tied == bool(model.config.tie_word_embeddings)
    assert info.parameters.head == (0 if info.is_head_tied else head.numel())
    assert info.head_share > head.nbytes / info.pass_bytes


@by_model
def test_a_pass_reads_all_but_the_embedding(model: Any) -> None:
    info = describe(Decoder(model))
    embedding = sum(p.nbytes for name, p in model.named_parameters() if any(t in name for t in ("embed", "wte", "wpe")))
    head = model.get_output_embeddings().weight.nbytes
    assert info.pass_bytes == info.weight_bytes - embedding + (head if info.is_head_tied else 0)
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


def test_windows() -> None:
    assert [layer.window for layer in describe(Decoder(MODELS["gemma2"])).layers] == [WINDOW, None] * 2 + [WINDOW]
    assert {layer.window for layer in describe(Decoder(MODELS["llama"])).layers} == {None}


def test_the_self_test_leaves_its_figure() -> None:
    decoder = Decoder(pico("llama"))
    assert 0 <= decoder.self_test_error < 1e-5


def test_why_not_the_fast_path() -> None:
    assert describe(Decoder(MODELS["llama"])).fast_path_note is None
    assert describe(Decoder(MODELS["gpt2"])).fast_path_note == "not written for the family gpt2"
    hooked = copy.deepcopy(pico("llama"))
    hooked.model.layers[1].mlp.register_forward_hook(lambda module, arguments, output: output)
    info = describe(Decoder(hooked))
    assert info.num_fast_sublayers == 2 * NUM_LAYERS - 1
    assert "hooked" in str(info.fast_path_note)


def test_text(folder: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", folder]) == 0
    output = capsys.readouterr().out
    for line in (
        "family       llama (LlamaForCausalLM)",
        "layers       5",
        "heads        4, key/value heads 2, head size 8",
        "context      256 tokens",
        "fast path    all 10 sub-layers",
        "  KV cache  640 B a token, 164 kB for the whole context",
        "profile: nothing learned yet for this model on this device",
    ):
        assert line in output.splitlines()
    assert f"parameters: {pico('llama').num_parameters():,}" in output
    assert "  a0-4  " in output
    assert "  m0-4  " in output
    assert "passed, relative error" in output


def test_what_was_learned(folder: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ProfileKey.of(pico("llama"))
    Store().set_latency(key, latency().to_json())
    assert main(["info", folder]) == 0
    assert "profile: latency (of " in capsys.readouterr().out
    assert main(["info", "--json", folder]) == 0
    assert json.loads(capsys.readouterr().out)["profile"] == ["latency"]
    Store().path_of(key).write_text("{")
    assert main(["info", folder]) == 0
    assert "cannot use the profile" in capsys.readouterr().out


def test_unlike_layers_are_listed_by_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = copy.deepcopy(pico("gemma2"))
    assert main(["info", save(model, tmp_path)]) == 0
    output = capsys.readouterr().out
    assert f"sliding window {WINDOW} in layers 0,2,4" in output
    assert "fast path    none of 10 sub-layers: not written for the family gemma2" in output
    bias = torch.nn.Parameter(torch.zeros(32))
    model.model.layers[3].mlp.down_proj.bias = bias
    from selfdraft.cli.info import _share_rows

    rows = "\n".join(_share_rows(describe(Decoder(model))))
    assert "m0-2,m4" in rows
    assert "m3 " in rows


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = pico("gpt2", tie_word_embeddings=True)
    assert main(["info", "--json", save(model, tmp_path), "--dtype", "float16"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["family"], document["dtype"], document["profile"]) == ("gpt2", "float16", None)
    parts = document["parameters"]
    assert sum(parts.values()) == 2 * parts["total"] == 2 * model.num_parameters()
    assert document["weight_bytes"] == 2 * model.num_parameters()
    assert len(document["layers"]) == document["num_layers"] == NUM_LAYERS
