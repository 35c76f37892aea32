"""Loading a model: every kind of source, and everything that can be wrong with it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import shutil
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils.logging import is_progress_bar_enabled

from pico import pico
from selfdraft import Engine
from selfdraft.errors import MissingExtraError, ModelError, OptionError, UnsupportedModelError
from selfdraft.models.load import loading
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL, model_folder
from selfdraft.models.load.loading import choose_device, choose_dtype, load
from selfdraft.options import LoadOptions
from selfdraft.progress import quiet


@pytest.fixture
def no_hub(monkeypatch):
    """Whatever reaches transformers is refused with the kind of message it gives offline."""

    def refuse(source, options, tokenizer_source):
        raise OSError(f"We couldn't reach the hub for {source}.\nCheck your   connection.")

    monkeypatch.setattr(loading, "_from_pretrained", refuse)
    monkeypatch.setattr(loading, "_is_hub_reachable", lambda: False)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_local_folder_loads_ready_for_inference(folder, kind, capfd):
    model, tokenizer = load(kind(folder), device="cpu")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tokenizer('"#').input_ids == [1, 2]
    assert torch.isfinite(model(torch.tensor([[1, 2]])).logits).all()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", torch.bfloat16])
def test_the_dtype_asked_for_is_the_dtype_loaded(folder, dtype):
    model, _ = load(folder, device="cpu", dtype=dtype)
    assert str(model.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, r"unknown dtype 'int3'\. Possible: float32, bfloat16, float16"),
        ({"dtype": torch.float64}, "unknown dtype 'float64'"),
        ({"device": "gpu"}, r"unknown or absent device 'gpu'\. Possible here: cpu"),
        ({"device": "cuda:99"}, "unknown or absent device 'cuda:99'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(no_hub, options, message):
    with pytest.raises(OptionError, match=message):
        load("owner/model", **options)


PASSED_ON = {
    "revision": "v1",
    "token": "secret",
    "cache_dir": "somewhere",
    "subfolder": "inside",
    "variant": "fp16",
    "trust_remote_code": True,
    "use_safetensors": True,
    "attn_implementation": "eager",
    "quantization_config": {"quant_method": "torchao"},
    "device_map": "auto",
    "max_memory": {"cpu": "1GB"},
    "offload_folder": "folder",
    "local_files_only": True,
}


def test_from_pretrained_passes_on_what_transformers_takes(monkeypatch):
    """Each option that is named reaches transformers, and those of the tokenizer it too."""
    asked: dict[str, dict[str, object]] = {}

    def model_of(source, **options):
        asked["model"] = options
        return pico("llama"), {"missing_keys": set()}

    def tokenizer_of(source, **options):
        asked["tokenizer"] = options

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", model_of)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", tokenizer_of)
    assert set(PASSED_ON) == set(LoadOptions.__annotations__)
    Engine.from_pretrained("owner/model", dtype="float32", strategy="off", **PASSED_ON)
    assert asked["model"] == {**PASSED_ON, "dtype": torch.float32, "output_loading_info": True}
    shared = ("revision", "token", "cache_dir", "subfolder", "trust_remote_code", "local_files_only")
    assert asked["tokenizer"] == {name: PASSED_ON[name] for name in shared}


def test_nothing_is_trusted_and_nothing_passed_on_unless_asked_for(folder, monkeypatch):
    asked = []
    load_model = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *at, **options: asked.append(options) or load_model(*at, **options),
    )
    load(folder, device="cpu", revision=None)
    usual = {"trust_remote_code": False, "local_files_only": True, "output_loading_info": True}
    assert asked == [{**usual, "dtype": torch.float32}]


def test_the_attention_asked_for_is_the_attention_loaded(folder):
    for name in ("eager", "sdpa"):
        assert load(folder, device="cpu", attn_implementation=name)[0].config._attn_implementation == name


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("owner/model", {"attn_implementation": "flash_attention_2"}, "'flash_attention_2' builds its own masks"),
        ("owner/model", {"attn_implementation": "flex_attention"}, "with attn_implementation='sdpa'"),
        (
            "owner/model",
            {"torch_dtype": "auto"},
            "does not take 'torch_dtype': it is called dtype",
        ),
        (
            "owner/model",
            {"load_in_4bit": True},
            r"does not take 'load_in_4bit': .*quantization_config=BitsAndBytesConfig\(load_in_4bit=True\)",
        ),
        ("owner/model", {"use_safetensor": True}, "unknown option .*Did you mean 'use_safetensors'"),
        ("owner/model", {"trust_remote_code": "no"}, "trust_remote_code .* must be True or False, got 'no'"),
        ("owner/model", {"revision": 3}, r"revision .* must be text, got 3 \(of a hub id: a branch"),
        ("owner/model", {"cache_dir": 3}, "cache_dir .* must be a path, got 3"),
        ("owner/model", {"device_map": "auto", "max_memory": "1GB"}, "max_memory .* must be a dict like {0: '20GB'"),
        (
            "owner/model",
            {"quantization_config": "x"},
            "must be a config of transformers, .*BitsAndBytesConfig.*got 'x'",
        ),
        ("owner/model", {"device": "cpu", "device_map": "auto"}, "device='cpu' and device_map both say where"),
        ("owner/model", {"max_memory": {0: "1GB"}}, "'max_memory' says nothing without device_map"),
        ("owner/model", {"offload_folder": "f"}, "'offload_folder' says nothing without device_map"),
        ("./folder", {"revision": "v1"}, "'revision' is for models of the Hugging Face hub, and this is a folder"),
        ("./folder", {"token": "secret"}, "'token' is for models of the Hugging Face hub"),
        (None, {"subfolder": "x"}, "'subfolder' is for models of the .* hub, and this is a model of the catalogue"),
        (
            "a.gguf",
            {"quantization_config": {"quant_method": "torchao"}},
            "'quantization_config' does not go with a GGUF file: its",
        ),
        ("a.gguf", {"device_map": "auto"}, "'device_map' does not go with a GGUF file.*save_pretrained"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_before_anything_is_loaded(no_hub, source, options, message):
    with pytest.raises((OptionError, UnsupportedModelError), match=message) as caught:
        load(source, **options)
    assert "secret" not in str(caught.value)


REFUSED = (
    *("config", "state_dict", "generation_config", "code_revision", "adapter_kwargs", "weights_only", "use_kernels"),
    *("tp_plan", "device_mesh", "use_fast", "low_cpu_mem_usage", "load_in_4bit", "load_in_8bit", "torch_dtype"),
    *("offload_buffers", "output_loading_info", "ignore_mismatched_sizes", "proxies", "force_download", "gguf_file"),
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_takes_and_we_do_not_is_refused_with_the_reason(no_hub, name):
    for call in (load, Engine.from_pretrained):
        with pytest.raises(OptionError, match=f"^from_pretrained does not take '{name}': [a-z].*[a-z]"):
            call("owner/model", **{name: True})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", '{"model_max_length": 5}', "instantiate"),
        ("tokenizer_config.json", '{"tokenizer_class": "LlamaTokenizer"}', "it has special tokens only"),
        ("vocab.txt", "a\nb\n", "instantiate"),
        ("tokenizer.json", "{}", "added_tokens"),
    ],
)
def test_half_a_tokenizer_is_a_clear_error(tmp_path, name, content, said):
    pico("llama").save_pretrained(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    remedy = r"complete its files, or remove them \(tokenizer\*, vocab\*\) to load the model for token ids"
    with pytest.raises(ModelError, match=rf"the tokenizer of {tmp_path} cannot be read; {remedy}: .*{said}"):
        load(tmp_path, device="cpu")
    (tmp_path / name).unlink()
    assert load(tmp_path, device="cpu")[1] is None


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_an_adapter_that_names_no_model(folder, tmp_path, has_tokenizer):
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    if has_tokenizer:
        shutil.copy(Path(folder) / "tokenizer.json", tmp_path)
    with pytest.raises(
        ModelError, match=r"does not say which model the adapter is for \(base_model_name_or_path: None\)"
    ):
        load(tmp_path, device="cpu")
    (tmp_path / "adapter_config.json").write_text("nothing", encoding="utf-8")
    with pytest.raises(OptionError, match=r"is not an adapter's config .* save the adapter again"):
        load(tmp_path, device="cpu")


def test_a_wrong_method_is_refused_before_the_model_is_loaded(no_hub):
    with pytest.raises(OptionError, match="unknown option of from_pretrained 'strateggy'"):
        Engine.from_pretrained("owner/model", strateggy="off", revision="v1")


def test_a_device_map_that_names_one_device_sets_the_dtype(folder, monkeypatch):
    """As `device` does; a map of several goes by the best device there is."""
    pytest.importorskip("accelerate")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for device_map in ("cpu", {"": "cpu"}):
        assert load(folder, device_map=device_map)[0].dtype == torch.float32


def test_a_model_that_cannot_be_moved_says_how_to_load_it(folder, monkeypatch):
    def refuse(self, device):
        raise ValueError("`.to` is not supported for `8-bit` models.")

    monkeypatch.setattr("transformers.PreTrainedModel.to", refuse)
    with pytest.raises(ModelError, match=r"cannot be moved to cpu; load it with device_map='cpu' instead of device"):
        load(folder, device="cpu")


def test_device_and_dtype_chosen_for_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    assert choose_dtype(None, torch.device("cpu")) is torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    for supported, expected in [(True, torch.bfloat16), (False, torch.float16)]:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert choose_dtype(None, torch.device("cuda")) is expected
    assert choose_dtype("float32", torch.device("cuda")) is torch.float32


def test_a_folder_without_config_says_so(tmp_path, no_hub):
    with pytest.raises(ModelError, match=r"it has no config\.json\.$"):
        load(tmp_path)
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(ModelError, match=r"To load a GGUF file, name it: .*weights\.gguf"):
        load(tmp_path)


@pytest.mark.parametrize("source", [Path("nowhere"), "./nowhere", "/nowhere/at/all", "~/nowhere/at/all"])
def test_a_path_is_never_taken_for_a_hub_id(source, no_hub):
    with pytest.raises(ModelError, match=r"no model at .*nowhere.*: not a folder"):
        load(source)


def test_a_hub_failure_says_what_was_tried_in_one_line(no_hub):
    with pytest.raises(ModelError) as caught:
        load("smollm2-135m")
    message = str(caught.value)
    assert "could not load 'smollm2-135m'. Did you mean 'smollm2-135m-instruct'?" in message
    assert all(name in message for name in CATALOGUE)
    assert "the Hugging Face hub, which said: We couldn't reach the hub for smollm2-135m. Check your" in message
    assert "\n" not in message


@pytest.mark.parametrize("reachable", [True, False])
def test_an_unreachable_hub_leaves_only_earlier_downloads(monkeypatch, reachable):
    asked = []

    def stand_in(source, options, tokenizer_source):
        asked.append(options["local_files_only"])
        return torch.nn.Linear(1, 1), "tokenizer"

    answer = mock.Mock(side_effect=None if reachable else ConnectionError("no route"))
    monkeypatch.setattr("huggingface_hub.get_session", lambda: mock.Mock(head=answer))
    monkeypatch.setattr(loading, "_from_pretrained", stand_in)
    load("owner/model", device="cpu")
    assert asked == [not reachable]


@pytest.fixture
def copied(folder, home):
    """A model of its own to damage, in the place of the default one."""
    return Path(shutil.copytree(folder, model_folder(DEFAULT_MODEL)))


def test_incomplete_weights_are_refused(copied):
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"incomplete: 1 tensors are missing.*layers\.1\.mlp\.up_proj\.weight"):
        load(copied)


def test_damaged_weights_are_a_model_error(copied):
    """Of our catalogue with the command that repairs it."""
    (copied / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"could not load the model in .*"):
        load(copied)
    with pytest.raises(ModelError, match=f"Bring it again with: selfdraft pull --force {DEFAULT_MODEL}"):
        load(None, device="cpu")


def test_gguf_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"no model at .*absent\.gguf: there is no such file"):
        load(tmp_path / "absent.gguf")
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"no GGUF at all")
    with pytest.raises(ModelError, match=r"could not read the GGUF file .*broken\.gguf"):
        load(file)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else find_spec(name))
    with pytest.raises(MissingExtraError, match=r'needs accelerate.*pip install "selfdraft\[gguf\]"'):
        load(file)


def test_catalogue_names_are_pulled_when_missing(folder, home, monkeypatch):
    with pytest.raises(ModelError, match=f"Fetch it with: selfdraft pull {DEFAULT_MODEL}"):
        load(pull_missing=False)
    asked: list[object] = []

    def fake_pull(name, *, progress):
        asked.append((name, progress))
        return Path(folder)

    monkeypatch.setattr(loading, "pull", fake_pull)
    model, _ = load(device="cpu", progress=print)
    assert asked == [(DEFAULT_MODEL, print)]
    assert model.config.hidden_size == 32


def test_quiet_is_quiet_about_what_is_imported_too(caplog):
    """torchao makes torch warn twice when transformers imports it."""
    own = logging.getLogger("selfdraft.tests")
    with quiet():
        own.warning("inside")
    own.warning("after")
    assert caplog.messages == ["after"]


def test_quiet_restores_what_it_silenced_even_across_threads():
    """The first thread would leave while the second is inside, and the second restore the first one's silence."""
    before = (logging.root.manager.disable, is_progress_bar_enabled())
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with quiet():
            first_in.set()
            second_in.wait(timeout=0.2)
        first_out.set()

    def second():
        first_in.wait()
        with quiet():
            second_in.set()
            first_out.wait()

    assert before == (logging.NOTSET, True)
    screen = io.StringIO()
    with contextlib.redirect_stderr(screen):
        threads = [threading.Thread(target=work) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.stderr is screen
    assert (logging.root.manager.disable, is_progress_bar_enabled()) == before
