"""Loading a model: every kind of source, and everything that can be wrong with it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shutil
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from selfdraft.errors import MissingExtraError, ModelError, OptionError
from selfdraft.models.load import loading
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL, model_folder
from selfdraft.models.load.gguf import quiet
from selfdraft.models.load.loading import choose_device, choose_dtype, load


@pytest.fixture
def no_hub(monkeypatch):
    """Whatever reaches transformers is refused with the kind of message it gives offline."""

    def refuse(source, dtype, local_files_only=True):
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

    def stand_in(source, dtype, local_files_only):
        asked.append(local_files_only)
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


def test_quiet_restores_what_it_silenced_even_across_threads():
    """The first thread would leave while the second is inside, and the second restore the first one's silence."""
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
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

    screen = io.StringIO()
    with contextlib.redirect_stderr(screen):
        threads = [threading.Thread(target=work) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.stderr is screen
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
