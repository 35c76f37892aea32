"""The command line, run as a user runs it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import OPTConfig, OPTForCausalLM

from learned import profile
from pico import CONTEXT_LENGTH, VOCAB_SIZE
from selfdraft.cli.terminal import wants_color
from selfdraft.engine.knowledge import EngineKnowledge
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from selfdraft.registry import AXES

Said = Callable[..., str]


@pytest.fixture
def generate(folder: str, said: Said) -> Said:
    def run(*arguments: str, model: str = folder, status: int = 0) -> str:
        return said("generate", "--model", model, *arguments, status=status)

    return run


class TestGenerate:
    def test_text_figures_and_two_colours(self, generate: Said) -> None:
        output = generate("--max-new-tokens", "20", "abc")
        assert len(output.splitlines()[0]) == 20
        assert "tokens/s" in output
        assert "ended by length" in output
        assert "\x1b[" not in output, "colours belong to a terminal"
        coloured = generate("--color", "always", "--max-new-tokens", "30", "abc")
        assert "\x1b[32m" in coloured
        assert "\x1b[36m" in coloured

    def test_no_color_is_respected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = io.StringIO()
        monkeypatch.setattr(screen, "isatty", lambda: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert wants_color("auto", screen)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not wants_color("auto", screen)

    def test_compare(self, generate: Said) -> None:
        output = generate("--compare", "--max-new-tokens", "30", "abc")
        for words in ("outputs: equal, token for token", "drafting", "plain", "speed-up:"):
            assert words in output

    def test_json(self, generate: Said) -> None:
        document = json.loads(generate("--json", "--compare", "--max-new-tokens", "12", "--seed", "4", "abc"))
        fields = "version model device dtype seed text tokens finish_reason stats report prompt_tokens options"
        alone = {*fields.split(), *AXES}
        assert set(document) == {*alone, "plain", "comparison", "first_difference", "speedup"}
        assert (document["strategy"], document["seed"], document["comparison"]) == ("uniform", 4, "equal")
        assert document["plain"]["tokens"] == document["tokens"]
        assert len(document["tokens"]) == document["stats"]["num_tokens"] == 12
        assert document["first_difference"] is None
        assert set(json.loads(generate("--json", "--max-new-tokens", "3", "abc"))) == alone

    def test_prompt_from_standard_input(self, generate: Said, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = json.loads(generate("--json", "--max-new-tokens", "9", "abc"))["text"]
        monkeypatch.setattr(sys, "stdin", io.StringIO("abc"))
        assert json.loads(generate("--json", "--max-new-tokens", "9", "-"))["text"] == expected

    @pytest.mark.parametrize("axes", [["strategy", "tree", "acceptance"], ["lookahead"], ["drafter"]], ids=str)
    def test_every_method_by_name(
        self, axes: list[str], folder: str, generate: Said, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As few commands as the longest of these axes has methods."""
        monkeypatch.setattr(EngineKnowledge, "profile", profile())
        settings = ["--set", "fixed.skip=a1,m2", "--set", f"model.source={folder}"]
        for place in range(max(len(AXES[axis]) for axis in axes)):
            chosen = {axis: list(AXES[axis])[place % len(AXES[axis])] for axis in axes}
            methods = [word for axis, name in chosen.items() for word in (f"--{axis}", name)]
            document = json.loads(generate(*methods, *settings, "--json", "--max-new-tokens", "5", "abc"))
            assert {axis: document[axis] for axis in axes} == chosen

    def test_comparing_texts_drawn_by_rejection(self, generate: Said) -> None:
        options = ["--compare", "--acceptance", "rejection", "--max-new-tokens", "12", "abc"]
        assert json.loads(generate("--temperature", "0.9", "--json", *options))["comparison"] is None
        assert "two draws from the target's distribution" in generate("--temperature", "0.9", *options)
        assert json.loads(generate("--json", *options))["comparison"] == "equal"

    def test_stop_and_sampling_options(self, generate: Said) -> None:
        options = ["--temperature", "0.9", "--top-p", "0.8", "--seed", "3", "--json", "--max-new-tokens", "30"]
        text = json.loads(generate(*options, "abc"))["text"]
        document = json.loads(generate(*options, "--stop", text[10:12], "abc"))
        assert document["text"] == text[: text.index(text[10:12])]
        assert document["finish_reason"] == "stop"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["--strategy", "fixed", "--set", "fixed.skip=a77", "abc"],
                "names attention layer 77, but the model has 5",
            ),
            (["a" * CONTEXT_LENGTH], f"context holds {CONTEXT_LENGTH}; shorten the prompt"),
            (["abc\udcff"], "the prompt holds bytes that are not text"),
        ],
        ids=["skip set", "too long", "not text"],
    )
    def test_what_does_not_fit_the_model(self, arguments: list[str], message: str, generate: Said) -> None:
        assert message in generate(*arguments, status=2)

    def test_models_that_are_none(self, tmp_path: Path, folder: str, generate: Said) -> None:
        """Nothing in the folder; then a family that is not known."""
        assert "config.json" in generate("abc", model=str(tmp_path), status=2)
        config = OPTConfig(
            vocab_size=VOCAB_SIZE, hidden_size=16, word_embed_proj_dim=16, ffn_dim=16, num_hidden_layers=1,
            num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=1,
        )  # fmt: skip
        OPTForCausalLM(config).save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes((Path(folder) / name).read_bytes())
        error = generate("abc", model=str(tmp_path), status=2)
        assert "unknown model family 'opt'" in error
        assert "write one Family row for 'opt'" in error

    @pytest.mark.parametrize(
        ("stdin", "message"),
        [
            (io.TextIOWrapper(io.BytesIO(b"abc\xff"), "utf-8"), "error: standard input is not UTF-8 text"),
            (None, "standard input is closed"),  # as after `<&-`
        ],
    )
    def test_standard_input_that_cannot_be_read(
        self,
        stdin: io.TextIOWrapper | None,
        message: str,
        generate: Said,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert message in generate("-", status=2)

    def test_an_output_that_cannot_show_every_character(self, generate: Said, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = generate("--max-new-tokens", "60", "abc").splitlines()[0]
        assert not shown.isascii(), "choose another prompt"
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", write_through=True))
        generate("--max-new-tokens", "60", "abc")
        assert output.getvalue().splitlines()[0] == shown.encode("ascii", "replace")


def test_list_shows_the_catalogue(home: Path, said: Said) -> None:
    output = said("pull", "--list")
    for name in CATALOGUE:
        assert f"selfdraft pull {name}" in output
    assert f"{DEFAULT_MODEL} (default)" in output


def test_generate_help_names_every_method(said: Said) -> None:
    output = said("generate", "--help")
    for table in AXES.values():
        assert all(name in output for name in table)


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


def test_a_closed_pipe_is_no_error(folder: str) -> None:
    command = f"{sys.executable} -m selfdraft generate --model {folder} --max-new-tokens 200 abc | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
    assert len(result.stdout) == 1
