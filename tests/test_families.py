"""The table of families: each row has its pico and its line in the docs, and a wrong row is noticed on attaching."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, CohereConfig, CohereForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pico import FAMILIES as PICO_FAMILIES
from pico import pico
from selfdraft import Engine
from selfdraft.errors import PromptError, SelfTestError, UnsupportedModelError
from selfdraft.models.decoder import Decoder
from selfdraft.models.families import (
    FAMILIES,
    STATEFUL,
    Branch,
    Family,
    NormKind,
    Parts,
    always,
    family_of,
    multiplied_scores,
    never,
    no_window,
    one,
    same_scores,
)
from selfdraft.models.joined import JoinedBranch, JoinedHead, JoinedModule, JoinedNorm
from selfdraft.passes import PassRequest

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
    names = {"Family": Family, "Branch": Branch, "multiplied_scores": multiplied_scores, "always": always}
    exec(f"row = {code}", names)
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
    *((family, "window", no_window) for family in ("gemma2", "gemma3_text", "gemma3", "olmo3", "exaone4", "ministral")),
    *((family, "window", no_window) for family in ("cohere2", "mixtral", "gpt_oss")),
    *((family, "scores", same_scores) for family in ("gemma2", "gemma3_text", "granite", "cohere2")),
    ("granite", "embedding_multiplier", one),
    ("granite", "residual_multiplier", one),
    *((family, "is_parallel", never) for family in ("gpt_neox", "cohere2")),
    ("glm4", "attention", Branch("self_attn", "input_layernorm")),
    ("glm4", "mlp", Branch("mlp", "post_attention_layernorm")),
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


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5],
    "long_factor": [4.0, 9.0],
}
BY_LENGTH: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 40}),  # as those of 128k
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 40}),
    "by layer type": (
        "gemma3_text",
        {
            "rope_parameters": {"sliding_attention": DYNAMIC, "full_attention": {**DYNAMIC, "rope_theta": 1e6}},
            "max_position_embeddings": 40,
        },
    ),
}


@pytest.mark.parametrize("kind", BY_LENGTH)
def test_rope_by_length_holds_up_to_where_it_changes(kind: str):
    """What a pass computes beside a token does not matter, nor what the model itself has read before."""
    family, changes = BY_LENGTH[kind]
    config = copy.deepcopy(pico(family).config)
    for name, value in copy.deepcopy(changes).items():
        setattr(config, name, value)
    model = type(pico(family))(config).eval()
    model.load_state_dict(pico(family).state_dict())
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1, 8] * 9]
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=40 - len(prompt), do_sample=False)[0, len(prompt) :]
        for prompt in prompts
    ]
    longer = torch.arange(60)[None]
    long_scores = model(longer).logits
    engine = Engine(model)
    assert engine.context_length == 40
    for strategy in ("off", "uniform"):
        found = engine.generate(prompts, strategy=strategy, max_new_tokens=60)
        assert [list(one.tokens) for one in found] == [tokens.tolist() for tokens in expected]
        assert {one.finish_reason for one in found} == {"context"}
        assert torch.equal(model(longer).logits, long_scores)
    short_scores = model(longer[:, :39]).logits
    assert (short_scores - long_scores[:, :39]).abs().max() > 1e-2
    runner, rows = engine.runner, longer[:, :39].expand(2, -1)
    cache = runner.new_cache(2, 48)
    runner.forward(PassRequest(rows, [0, 0]), cache)
    found = runner.forward(PassRequest(rows[:, 5:8], [5, 39]), cache)  # the second row's last two are padding
    torch.testing.assert_close(found.scores[0], short_scores[0, 5:8], rtol=1e-4, atol=1e-4)
    with pytest.raises(PromptError, match="the prompt has 60 tokens, but the model's context holds 40"):
        engine.generate(longer[0].tolist())


@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_models_are_refused_by_name(name: str):
    model = SimpleNamespace(config=SimpleNamespace(model_type=name))
    with pytest.raises(UnsupportedModelError, match=f"'{name}' is a recurrent or hybrid model.* own generate"):
        family_of(model)


def test_stateful_models_are_those_that_transformers_marks():
    """Those that it has; its newer ones are refused by the mark."""
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    files = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    marked = {file.parent.name for file in files if "_is_stateful = True" in file.read_text(encoding="utf-8")}
    assert marked & set(known) <= set(STATEFUL)
    assert not marked & set(FAMILIES)
    model = copy.copy(pico("llama"))
    model._is_stateful = True
    with pytest.raises(UnsupportedModelError, match="'llama' is a recurrent or hybrid model"):
        Decoder(model)


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
