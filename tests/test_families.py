"""The table of families: each row has its pico and its line in the docs, and a wrong row is noticed on attaching."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, CohereForCausalLM

from pico import FAMILIES as PICO_FAMILIES
from pico import pico
from selfdraft import Engine
from selfdraft.errors import SelfTestError, UnsupportedModelError
from selfdraft.models.decoder import Decoder
from selfdraft.models.families import FAMILIES, Branch, Family, NormKind, Parts, never, no_window, one, same_scores
from selfdraft.models.joined import JoinedBranch, JoinedHead, JoinedModule, JoinedNorm

DOCS = Path(__file__).parent.parent / "docs" / "models.md"
TABLE_ROW = re.compile(r"^\| `(\w+)` \|.*\| ([a-z, ]+) \| (pico.*) \|$", re.MULTILINE)


def test_every_family_has_its_pico():
    assert tuple(FAMILIES) == PICO_FAMILIES
    assert all(pico(family).config.model_type == family for family in FAMILIES)


def test_the_docs_list_exactly_the_families():
    rows = TABLE_ROW.findall(DOCS.read_text(encoding="utf-8"))
    assert [name for name, *_ in rows] == list(FAMILIES)
    assert [path for _, path, _ in rows] == [path_of(Decoder(pico(name))) for name in FAMILIES]


def path_of(decoder: Decoder) -> str:
    """As the docs call it."""
    kinds = {type(part.run) for part in decoder.sublayers}
    if not any(issubclass(kind, JoinedBranch) for kind in kinds):
        return "modules"
    assert all(issubclass(kind, JoinedBranch) for kind in kinds)
    assert isinstance(decoder.final_norm, JoinedNorm)
    assert isinstance(decoder.head, JoinedHead)
    return "joined, experts by their module" if JoinedModule in kinds else "joined"


def test_the_docs_name_every_field_of_a_row():
    section = DOCS.read_text(encoding="utf-8").partition("## Adding a family")[2]
    for item in (field for row in (Family, Parts, NormKind) for field in dataclasses.fields(row)):
        assert item.name == "name" or f"`{item.name}`" in section, item.name


def test_the_docs_example_is_a_right_row(monkeypatch: pytest.MonkeyPatch):
    section = DOCS.read_text(encoding="utf-8").partition("## Adding a family")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {"Family": Family, "Branch": Branch}
    exec(code.replace("\nFamily(", "\nrow = Family("), names)
    assert "cohere" not in FAMILIES, "choose another example"
    monkeypatch.setitem(FAMILIES, "cohere", names["row"])
    torch.manual_seed(0)
    config = CohereConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=None,
    )
    Decoder(CohereForCausalLM(config).eval())


# Each of these is one field of a row set back to what most families have.
WRONG = [
    *((family, "window", no_window) for family in ("mistral", "qwen3", "qwen3_moe", "phi3", "smollm3", "starcoder2")),
    *((family, "window", no_window) for family in ("gemma2", "gemma3_text", "gemma3")),
    *((family, "scores", same_scores) for family in ("gemma2", "gemma3_text", "granite")),
    ("granite", "embedding_multiplier", one),
    ("granite", "residual_multiplier", one),
    ("gpt_neox", "is_parallel", never),
    ("olmo2", "attention", Branch("self_attn", norm_before="post_attention_layernorm")),
    ("olmo2", "mlp", Branch("mlp")),
]


@pytest.mark.parametrize(("family", "field", "value"), WRONG, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_wrong_row_fails_the_self_test(family: str, field: str, value: Any, monkeypatch: pytest.MonkeyPatch):
    row: Any = dataclasses.replace(FAMILIES[family], **{field: value})
    monkeypatch.setitem(FAMILIES, family, row)
    for allow_joined in (False, row.parts is not None):
        with pytest.raises(SelfTestError, match=f"'{family}' does not reproduce"):
            Decoder(pico(family), allow_joined=allow_joined)


@pytest.mark.parametrize("layer_type", ["sliding_attention", "full_attention"])
def test_rope_by_length_is_refused_for_each_layer_type(layer_type: str):
    config = copy.deepcopy(pico("gemma3_text").config)
    config.rope_parameters[layer_type] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(UnsupportedModelError, match="rope type 'dynamic' changes its frequencies"):
        Decoder(type(pico("gemma3_text"))(config).eval())


def test_phi3_with_a_long_context_is_refused():
    """What the 128k checkpoints carry."""
    config = copy.deepcopy(pico("phi3").config)
    config.rope_parameters.update(rope_type="longrope", short_factor=[1.0, 1.0], long_factor=[2.0, 4.0])
    with pytest.raises(UnsupportedModelError, match="rope type 'longrope' changes its frequencies"):
        Decoder(type(pico("phi3"))(config).eval())


def test_layers_of_gemma3_get_their_own_rotary():
    """The two answers differ by far, else the tests would not notice a wrong one."""
    decoder = Decoder(pico("gemma3_text"))
    rotary = decoder._rotaries.of(torch.zeros(1, 1, 32), torch.tensor([[9]]))
    assert set(rotary) == {"sliding_attention", "full_attention"}
    assert (rotary["sliding_attention"][0] - rotary["full_attention"][0]).abs().max() > 0.5


def test_gemma3_with_images_is_loaded_and_decodes_text(tmp_path: Path):
    """AutoModelForCausalLM gives the whole model with its vision tower; its text config is what counts."""
    pico("gemma3").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(model).__name__ == "Gemma3ForConditionalGeneration"
    engine, prompt = Engine(model), [3, 1, 4, 1, 5, 9, 2, 6]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :].tolist()
    assert list(engine.generate(prompt, strategy="off", max_new_tokens=20).tokens) == expected
    assert list(engine.generate(prompt, strategy="uniform", max_new_tokens=20).tokens) == expected
