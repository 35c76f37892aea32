"""What is done to models and works here, or is refused: adapters, quantisation, device maps, torch.compile, threads.

docs/models.md lists it. `make test` has the packages; where one is not installed, stand-ins alone are tested.
"""

from __future__ import annotations

import copy
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModelForCausalLM

import selfdraft
from pico import letter_tokenizer, pico, save
from selfdraft import Engine
from selfdraft.errors import ModelError, OptionError, PromptError, UnsupportedModelError
from selfdraft.models import checks
from selfdraft.models.gpu.runner import GraphRunner

PROMPT = list(range(3, 20))
NUM_TOKENS = 24
DRAFTED: dict[str, Any] = {"strategy": "fixed", "settings": {"fixed": {"skip": "a1,m2"}}}
FREE = {"": "cpu"}


def slow(kind: str) -> Any:
    """A second or more, and close to what the others test."""
    return pytest.param(kind, marks=pytest.mark.full)


def own(variant: str = "llama") -> Any:
    """A model to change."""
    return copy.deepcopy(pico(variant))


def by_generate(model: Any, **options: Any) -> list[int]:
    ids = torch.tensor([PROMPT])
    options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "use_cache": True, **options}
    written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return written[0, len(PROMPT) :].tolist()


def written_by(engine: Engine, **method: Any) -> list[int]:
    return list(engine.generate(PROMPT, max_new_tokens=NUM_TOKENS, **method).tokens)


def assert_exact(engine: Engine, model: Any) -> None:
    """Plain and drafted text are the model's own."""
    expected = by_generate(model)
    assert written_by(engine, strategy="off") == expected
    drafted = engine.generate(PROMPT, max_new_tokens=NUM_TOKENS, **DRAFTED)
    assert list(drafted.tokens) == expected
    assert drafted.stats.num_accepted > 0


# ------------------------------------------------------------------------------------------------------- PEFT

ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "lora": lambda peft: peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    "dora": lambda peft: peft.LoraConfig(
        r=4, target_modules=["v_proj", "up_proj"], use_dora=True, init_lora_weights=False
    ),
    "lora on the head": lambda peft: peft.LoraConfig(
        r=4, target_modules=["k_proj", "lm_head"], init_lora_weights=False
    ),
    "ia3": lambda peft: peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False
    ),
}


def adapted(model: Any, kind: str = "lora", seed: int = 0) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(seed)
    return peft.get_peft_model(model, ADAPTERS[kind](peft)).eval()


@pytest.mark.parametrize("kind", ["lora", "ia3", slow("dora"), slow("lora on the head")])
def test_a_peft_model_is_looked_through_and_its_adapter_acts(kind):
    plain = written_by(Engine(own()), strategy="off")
    model = adapted(own(), kind)
    engine = Engine(model)
    assert engine.model is model.get_base_model()
    assert_exact(engine, model)
    assert written_by(engine, strategy="off") != plain


def scale_adapters(model: Any, factor: float) -> None:
    for module in model.modules():
        if hasattr(module, "scale_layer"):
            module.scale_layer(factor)


def test_adapters_are_switched_off_scaled_and_merged_under_an_engine():
    peft = pytest.importorskip("peft")
    model = adapted(own())
    torch.manual_seed(1)
    model.add_adapter("other", ADAPTERS["lora"](peft))
    engine = Engine(model)
    texts = [by_generate(model)]
    assert_exact(engine, model)
    model.set_adapter("other")
    texts.append(by_generate(model))
    assert_exact(engine, model)
    with model.disable_adapter():
        texts.append(by_generate(model))
        assert_exact(engine, model)
    assert len({tuple(text) for text in texts}) == 3
    model.merge_adapter()
    assert_exact(engine, model)
    model.unmerge_adapter()
    scale_adapters(model, 0.25)
    texts.append(by_generate(model))
    assert_exact(engine, model)
    assert len({tuple(text) for text in texts}) == 4
    assert_exact(engine, model.merge_and_unload())


def test_what_was_recorded_for_one_adapter_is_not_replayed_for_another(monkeypatch):
    """Recordings hold the model as it was: switching an adapter changes no weight's address."""
    peft = pytest.importorskip("peft")
    model = adapted(own())
    model.add_adapter("other", ADAPTERS["lora"](peft))
    decoder = Engine(model).runner.decoder
    for change in (
        lambda: model.set_adapter("other"),
        model.base_model.disable_adapter_layers,
        model.base_model.enable_adapter_layers,
        lambda: scale_adapters(model, 0.25),
        model.merge_adapter,
    ):
        assert decoder.is_current
        change()
        assert not decoder.is_current
        decoder.attach()


def test_a_peft_model_inside_its_own_generate():
    model = adapted(own())
    decode = selfdraft.decoder(**DRAFTED)
    assert by_generate(model, custom_generate=decode) == by_generate(model)


def test_an_adapter_that_transformers_added():
    peft = pytest.importorskip("peft")
    model = own()
    torch.manual_seed(0)
    model.add_adapter(ADAPTERS["lora"](peft))
    model.eval()
    assert_exact(Engine(model), model)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_trained_prompts_are_refused(kind):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(own(), getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    with pytest.raises(UnsupportedModelError, match=r"outside the model's layers \(a trained prompt"):
        Engine(model)
    with pytest.raises(UnsupportedModelError, match=r"outside the model's layers \(a trained prompt"):
        by_generate(model, custom_generate=selfdraft.decoder())


def test_a_peft_model_in_training_mode_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"call model\.eval\(\) first"):
        Engine(adapted(own()).train())


def test_a_folder_of_an_adapter_loads_with_its_model_and_its_tokenizer(folder, tmp_path):
    model = adapted(AutoModelForCausalLM.from_pretrained(folder))
    model.save_pretrained(tmp_path / "adapter")
    engine = Engine.from_pretrained(tmp_path / "adapter", device="cpu")
    assert engine.tokenizer('"#').input_ids == [1, 2]
    assert_exact(engine, model)


class LikePeft(torch.nn.Module):
    """What PEFT's wrapper has that ours looks for; `shift`: what it adds outside the layers."""

    peft_config: ClassVar[dict[str, Any]] = {}

    def __init__(self, model: Any, shift: float = 0.0) -> None:
        super().__init__()
        self.inside, self.shift = model, shift
        self.config, self.generate = model.config, model.generate

    def get_base_model(self) -> Any:
        return self.inside

    def forward(self, **inputs: Any) -> Any:
        found = self.inside(**inputs)
        found.logits = found.logits + self.shift
        return found


def test_a_wrapper_like_peft_s_is_looked_through():
    model = LikePeft(own()).eval()
    engine = Engine(model)
    assert engine.model is model.inside
    assert_exact(engine, model.inside)
    assert checks.unwrapped(torch.compile(model, backend="eager")) is model.inside
    with pytest.raises(UnsupportedModelError, match="LikePeft adds something outside the model's layers"):
        Engine(LikePeft(own(), shift=1.0).eval())


# ------------------------------------------------------------------------------------------------ quantised weights


def quantised(kind: str) -> Any:
    from transformers import BitsAndBytesConfig, TorchAoConfig

    if kind.startswith("bitsandbytes"):
        pytest.importorskip("bitsandbytes")
        return BitsAndBytesConfig(load_in_4bit=kind.endswith("4"), load_in_8bit=kind.endswith("8"))
    torchao = pytest.importorskip("torchao.quantization")
    return TorchAoConfig(getattr(torchao, kind)())


@pytest.mark.parametrize("kind", ["bitsandbytes 4", "Int8WeightOnlyConfig", slow("Float8WeightOnlyConfig")])
def test_quantised_weights_give_the_quantised_model_s_text(folder, kind):
    engine = Engine.from_pretrained(folder, device="cpu", quantization_config=quantised(kind))
    assert engine.model.is_quantized
    assert_exact(engine, engine.model)
    assert written_by(engine, strategy="off") == by_generate(engine.model)


@pytest.mark.parametrize("kind", ["bitsandbytes 8", "Int8DynamicActivationInt8WeightConfig"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantised_activations_are_refused(folder, kind, dtype):
    """In half precision the self-test alone would let them pass."""
    with pytest.raises(UnsupportedModelError, match=r"quantises activations on the way.*load_in_4bit=True"):
        Engine.from_pretrained(folder, device="cpu", dtype=dtype, quantization_config=quantised(kind))


class Linear8bitLt(torch.nn.Linear):
    """Named as the module of bitsandbytes that quantises activations."""


@pytest.mark.parametrize("mark", ["module", "act_quant_kwargs", "activation_quantization"])
def test_what_looks_like_quantised_activations_is_refused(mark):
    """By a module's name, or by what a weight of torchao says."""
    model = own()
    layer = model.model.layers[2].mlp
    if mark == "module":
        layer.up_proj = Linear8bitLt(32, 48, bias=False)
    else:
        setattr(layer.up_proj.weight, mark, None)
        Engine(model)  # weights only
        setattr(layer.up_proj.weight, mark, "int8")
    with pytest.raises(UnsupportedModelError, match=r"model.layers.2.mlp.up_proj \(Linear.* quantises activations"):
        Engine(model)


def test_torchao_on_a_model_that_is_there():
    torchao = pytest.importorskip("torchao.quantization")
    model = own()
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    assert_exact(Engine(model), model)
    static = own()
    torchao.quantize_(static, torchao.Int8StaticActivationInt8WeightConfig(torch.tensor([[0.1]])))
    with pytest.raises(UnsupportedModelError, match="quantises activations on the way"):
        Engine(static)


def test_lora_on_quantised_weights(folder):
    model = adapted(AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantised("bitsandbytes 4")))
    assert_exact(Engine(model), model)


# ------------------------------------------------------------------------------------------------ where weights are


@pytest.mark.parametrize("device_map", ["cpu", "auto", FREE])
def test_a_device_map(folder, device_map):
    pytest.importorskip("accelerate")
    engine = Engine.from_pretrained(folder, device_map=device_map, dtype="float32")
    assert_exact(engine, engine.model)


def offloading(*parts: str) -> dict[str, str]:
    names = ("model.embed_tokens", *(f"model.layers.{layer}" for layer in range(5)), "model.norm", "lm_head")
    return {name: "disk" if name in parts else "cpu" for name in (*names, "model.rotary_emb")}


def test_offloaded_layers(folder, tmp_path):
    pytest.importorskip("accelerate")
    device_map = offloading("model.layers.1", "model.layers.4", "lm_head")
    engine = Engine.from_pretrained(folder, device_map=device_map, offload_folder=str(tmp_path), dtype="float32")
    assert {parameter.device.type for parameter in engine.model.parameters()} == {"cpu", "meta"}
    assert_exact(engine, engine.model)


def test_a_model_that_is_offloaded_to_the_cpu():
    """Its weights come to the device of the pass, module by module, and leave again."""
    accelerate = pytest.importorskip("accelerate")
    model = own()
    for part in (*model.model.layers, model.lm_head):
        accelerate.cpu_offload(part, execution_device=torch.device("cpu"))
    model.hf_device_map = {"": "cpu"}  # as `from_pretrained` leaves it
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu", "meta"}
    assert_exact(Engine(model), model)


def test_offloaded_layers_are_not_recorded(folder, tmp_path):
    """A recording would read weights where they no longer are."""
    pytest.importorskip("accelerate")
    device_map = offloading("model.layers.1")
    engine = Engine.from_pretrained(folder, device_map=device_map, offload_folder=str(tmp_path), dtype="float32")
    runner = GraphRunner(engine.model, make_recorder=lambda device: None, make_forwards=lambda decoder: ())
    assert runner.fallback_reason == "its forward hooks run on the host"


def test_an_offloaded_embedding_is_refused(folder, tmp_path):
    pytest.importorskip("accelerate")
    device_map = offloading("model.embed_tokens")
    with pytest.raises(UnsupportedModelError, match=r"embedding is on the meta device.*name a device for it"):
        Engine.from_pretrained(folder, device_map=device_map, offload_folder=str(tmp_path))


def test_a_model_without_weights_is_refused():
    model = own().to("meta")
    with pytest.raises(ModelError, match=r"has no weights: .* is on the meta device"):
        Engine(model)
    with pytest.raises(UnsupportedModelError, match="its weights are not loaded"):
        checks.check_weights(model)


def test_a_model_on_two_devices_is_refused(monkeypatch):
    model = own()
    devices = {"cuda:0": model.lm_head.weight, "cuda:1": model.model.norm.weight}
    stand_in = [type("Weight", (), {"device": device, "is_meta": False}) for device in devices]
    monkeypatch.setattr(model, "parameters", lambda: iter(stand_in))
    with pytest.raises(UnsupportedModelError, match="spread over cuda:0 and cuda:1, and passes run on one device"):
        checks.check_weights(model)


# ------------------------------------------------------------------------------------------------ compile, threads


@pytest.mark.parametrize("what", ["model", "layers"])
def test_a_compiled_model(what):
    model = own()
    if what == "model":
        given = torch.compile(model, backend="eager")
    else:
        given = model
        for layer in model.model.layers:
            layer.mlp.compile(backend="eager")
    engine = Engine(given)
    assert engine.model is model
    assert engine.knowledge.key == Engine(own()).knowledge.key or what != "model"
    assert_exact(engine, model)


METHODS: dict[str, dict[str, Any]] = {
    "off": {"strategy": "off"},
    "uniform": {"strategy": "uniform", "lookahead": "confidence"},
    "swift": {"strategy": "swift"},
    "lookup": {"strategy": "uniform", "drafter": "lookup"},
    "adaptive": {"strategy": "uniform", "lookahead": "adaptive", "temperature": 0.8},
}


@pytest.mark.parametrize("method", [slow(name) if name == "swift" else name for name in METHODS])
@pytest.mark.parametrize("is_forked", [False, True])
def test_threads_on_one_model_write_what_each_would_alone(method, is_forked):
    engine, prompts = Engine(own()), [[number, *PROMPT] for number in range(3)]
    expected = [engine.generate(prompt, max_new_tokens=NUM_TOKENS, **METHODS[method]).tokens for prompt in prompts]
    found: dict[int, Any] = {}

    def write(number: int) -> None:
        one = engine.fork() if is_forked else engine
        found[number] = one.generate(prompts[number], max_new_tokens=NUM_TOKENS, **METHODS[method]).tokens

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(number) for number in range(len(prompts))] == expected


# ------------------------------------------------------------------------------------------------ no tokenizer


def test_a_folder_without_a_tokenizer_is_for_token_ids(tmp_path, said):
    own().save_pretrained(tmp_path)
    engine = Engine.from_pretrained(tmp_path, device="cpu")
    assert engine.tokenizer is None
    generation = engine.generate(PROMPT, max_new_tokens=NUM_TOKENS, **DRAFTED)
    assert list(generation.tokens) == by_generate(pico("llama"))
    assert generation.text == ""
    remedy = r"no tokenizer; pass token ids, build it as Engine\(model, tokenizer\), or put the tokenizer's files into"
    for prompt in ("text", [{"role": "user", "content": "text"}]):
        with pytest.raises(PromptError, match=remedy):
            engine.generate(prompt)
    with pytest.raises(OptionError, match="stop strings need a tokenizer"):
        engine.generate(PROMPT, stop="x")
    assert "put the tokenizer's files into the model's folder" in said(
        "generate", "text", "--model", str(tmp_path), status=2
    )


def test_a_tokenizer_s_folder_is_not_taken_for_one_without(tmp_path):
    save(own(), tmp_path)
    assert Engine.from_pretrained(tmp_path, device="cpu").tokenizer.get_vocab() == letter_tokenizer().get_vocab()


# ------------------------------------------------------------------------------------------------ code of its own

MINE = """
from transformers import LlamaConfig, LlamaForCausalLM

class MineConfig(LlamaConfig):
    model_type = "KIND"

class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
"""


@pytest.mark.parametrize("kind", ["llama", "mine"])
def test_code_that_comes_with_a_model_is_of_a_known_family(folder, tmp_path, kind, monkeypatch):
    """It runs only where asked for; and its model_type needs a row all the same."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    mine = Path(shutil.copytree(folder, tmp_path / kind))
    (mine / "mine.py").write_text(MINE.replace("KIND", kind), encoding="utf-8")
    config = json.loads((mine / "config.json").read_text(encoding="utf-8"))
    classes = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    (mine / "config.json").write_text(json.dumps({**config, "model_type": kind, "auto_map": classes}), encoding="utf-8")
    if kind == "mine":
        with pytest.raises(UnsupportedModelError, match="'mine'"):
            Engine.from_pretrained(mine, device="cpu", trust_remote_code=True)
        with pytest.raises(ModelError, match=r"could not load the model in .*`trust_remote_code=True`"):
            Engine.from_pretrained(mine, device="cpu")
        return
    engine = Engine.from_pretrained(mine, device="cpu", trust_remote_code=True)
    assert type(engine.model).__name__ == "MineForCausalLM"
    assert type(Engine.from_pretrained(mine, device="cpu").model).__name__ == "LlamaForCausalLM"
