"""The command line, run as a user runs it."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest
import torch
from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM

from learned import profile
from pico import CONTEXT_LENGTH, VOCAB_SIZE
from selfdraft import Engine
from selfdraft.cli.main import main
from selfdraft.cli.terminal import wants_color
from selfdraft.engine.knowledge import EngineKnowledge
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from selfdraft.registry import AXES

Said = Callable[..., str]


class Ran(NamedTuple):
    """What a command wrote to standard output and standard error."""

    output: str
    error: str

    @property
    def document(self) -> Any:
        return json.loads(self.output)


Generate = Callable[..., Ran]


@pytest.fixture
def generate(folder: str, capsys: pytest.CaptureFixture[str]) -> Generate:
    def run(*arguments: str, model: str = folder, status: int = 0) -> Ran:
        capsys.readouterr()
        assert main(["generate", "--model", model, *arguments]) == status, capsys.readouterr().err
        ran = Ran(*capsys.readouterr())
        assert status != 2 or ran.output == ""
        return ran

    return run


class TestGenerate:
    def test_text_figures_and_two_colours(self, generate: Generate) -> None:
        output, figures = generate("--max-new-tokens", "20", "abc")
        assert output == f"{generate('--max-new-tokens', '20', '--json', 'abc').document['text']}\n"
        assert "tokens/s" in figures
        assert "ended by length" in figures
        assert "\x1b[" not in output, "colours belong to a terminal"
        coloured = generate("--strategy", "uniform", "--color", "always", "--max-new-tokens", "30", "abc").output
        assert "\x1b[32m" in coloured
        assert "\x1b[36m" in coloured

    def test_no_color_is_respected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = io.StringIO()
        monkeypatch.setattr(screen, "isatty", lambda: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert wants_color("auto", screen)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not wants_color("auto", screen)

    def test_compare(self, generate: Generate) -> None:
        output, figures = generate("--strategy", "uniform", "--compare", "--max-new-tokens", "30", "abc")
        assert len(output) == 31
        for words in ("outputs: equal, token for token", "drafting", "plain", "speed-up:"):
            assert words in figures

    def test_plain_decoding_is_compared_with_transformers(self, generate: Generate) -> None:
        options = ["--strategy", "off", "--compare", "--max-new-tokens", "5", "abc"]
        figures = generate(*options).error
        assert [line.split()[0] for line in figures.splitlines()[2:4]] == ["plain", "transformers"]
        assert "outputs: equal, token for token" in figures
        assert "drafting" not in figures
        document = generate("--json", *options).document
        assert document["transformers"]["tokens"] == document["tokens"]
        assert document["strategy"] == "off"

    @pytest.mark.parametrize("drawn", [["--temperature", "0.9", "--top-p", "0.9"], []], ids=["drawn", "greedy"])
    def test_transformers_is_told_the_same(self, drawn: list[str], generate: Generate) -> None:
        """What is drawn cannot be compared; penalties and stop strings can."""
        options = ["--strategy", "off", "--compare", "--json", "--max-new-tokens", "20"]
        rules = ["--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.3"]
        document = generate(*options, *drawn, *rules, "--logit-bias", "30:2", "abc").document
        assert document["comparison"] == (None if drawn else "equal")
        stop = document["text"][5:7]
        assert len(generate(*options, *drawn, "--stop", stop, "abc").document["transformers"]["tokens"]) <= 20

    def test_the_default(self, generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says what it did and why, if asked; and what a profile knows."""
        output, told = generate("--explain", "--max-new-tokens", "30", "abcabcabc")
        assert len(output) == 31
        assert "\n30 tokens in " in told
        assert "skipped self: no sets are known; `selfdraft calibrate` finds some" in told
        assert "tokens in" not in generate("--max-new-tokens", "30", "abcabcabc").error
        monkeypatch.setattr(EngineKnowledge, "profile", known := profile())
        monkeypatch.setattr(EngineKnowledge, "profile_in_use", known)
        told = generate("--explain", "--max-new-tokens", "30", "abcabcabc").error
        assert known.summary in told
        assert "no sets are known" not in told

    def test_transformers_beside_drafts_and_plain_decoding(self, generate: Generate) -> None:
        options = ["--compare", "--transformers", "--max-new-tokens", "12", "abc"]
        figures = generate(*options).error
        assert [line.split()[0] for line in figures.splitlines()[2:5]] == ["drafting", "plain", "transformers"]
        assert "over transformers' generate: " in figures
        document = generate("--json", *options).document
        assert document["transformers"]["tokens"] == document["plain"]["tokens"] == document["tokens"]
        assert document["speedup_over_transformers"] > 0
        assert "add --compare" in generate("--transformers", "abc", status=2).error

    def test_off_says_what_is_not_used(self, generate: Generate) -> None:
        options = ["--strategy", "off", "--max-new-tokens", "2", "--json", "abc"]
        chosen = ["--drafter", "lookup", "--tree", "siblings"]
        told = "note: --strategy off decodes plainly; --drafter lookup, --tree siblings is not used\n"
        assert generate(*chosen, *options).error == told
        assert generate(*options).error == ""

    def test_json(self, generate: Generate) -> None:
        options = ("--strategy", "uniform", "--compare", "--max-new-tokens", "12", "--seed", "4")
        document = generate("--json", *options, "abc").document
        fields = "version model device dtype seed text tokens finish_reason stats report prompt_tokens options"
        alone = {*fields.split(), "explanation", *AXES}
        judged = {"comparison", "first_difference", "comparison_reason"}
        assert set(document) == {*alone, "plain", *judged, "speedup"}
        assert (document["strategy"], document["seed"], document["comparison"]) == ("uniform", 4, "equal")
        assert document["plain"]["tokens"] == document["tokens"]
        assert len(document["tokens"]) == document["stats"]["num_tokens"] == 12
        assert document["first_difference"] is None
        assert set(generate("--json", "--max-new-tokens", "3", "abc").document) == alone

    def test_several_texts_of_a_prompt(self, generate: Generate) -> None:
        options = ("--temperature", "0.9", "--max-new-tokens", "6", "abc")
        document = generate("-n", "3", "--json", *options).document
        texts = [text["text"] for text in document["texts"]]
        assert len(set(texts)) == 3
        assert texts[0] == generate("--json", *options).document["text"]
        assert [text["stats"]["cached_prompt_tokens"] > 0 for text in document["texts"]] == [False, True, True]
        output, told = generate("-n", "3", *options)
        assert all(f"--- {number} of 3, ended by length\n" in output for number in (1, 2, 3))
        assert all(text in output for text in texts)
        assert "3 texts, 18 tokens" in told
        assert "-n must be at least 1" in generate("-n", "0", *options, status=2).error
        for single in ("--compare", "--explain"):
            assert "leave it or -n out" in generate("-n", "2", single, *options, status=2).error

    def test_logprobs_are_for_json(self, generate: Generate) -> None:
        document = generate("--json", "--logprobs", "2", "--max-new-tokens", "3", "abc").document
        assert [one["token"] for one in document["logprobs"]] == document["tokens"]
        assert all(one["top"][0] == [one["token"], one["logprob"]] for one in document["logprobs"])
        assert all(len(one["top"]) == 2 for one in document["logprobs"])
        assert (
            "--logprobs are part of the JSON document; add --json" in generate("--logprobs", "2", "abc", status=2).error
        )

    def test_prompt_from_standard_input(self, generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = generate("--json", "--max-new-tokens", "9", "abc").document["text"]
        monkeypatch.setattr(sys, "stdin", io.StringIO("abc"))
        assert generate("--json", "--max-new-tokens", "9", "-").document["text"] == expected

    @pytest.mark.parametrize("axes", [["strategy", "tree", "acceptance"], ["lookahead"], ["drafter"]], ids=str)
    def test_every_method_by_name(
        self, axes: list[str], folder: str, generate: Generate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As few commands as the longest of these axes has methods."""
        monkeypatch.setattr(EngineKnowledge, "profile", profile())
        settings = {"fixed": ["--set", "fixed.skip=a1,m2"], "model": ["--set", f"model.source={folder}"]}
        for place in range(max(len(AXES[axis]) for axis in axes)):
            chosen = {axis: list(AXES[axis])[place % len(AXES[axis])] for axis in axes}
            methods = [word for axis, name in chosen.items() for word in (f"--{axis}", name)]
            methods += [] if "strategy" in axes else ["--strategy", "uniform"]
            own = [word for axis in ("strategy", "drafter") for word in settings.get(chosen.get(axis, ""), [])]
            document = generate(*methods, *own, "--json", "--max-new-tokens", "5", "abc").document
            axes_in_use = [axis for axis in axes if chosen.get("strategy") != "off" or axis != "tree"]
            assert all(document[axis] == chosen[axis] for axis in axes_in_use)

    def test_comparing_texts_drawn_by_rejection(self, generate: Generate) -> None:
        options = ["--strategy", "uniform", "--compare", "--acceptance", "rejection", "--max-new-tokens", "12", "abc"]
        assert generate("--temperature", "0.9", "--json", *options).document["comparison"] is None
        assert "drawn with different random numbers" in generate("--temperature", "0.9", *options).error
        assert generate("--json", *options).document["comparison"] == "equal"

    def test_stop_and_sampling_options(self, generate: Generate) -> None:
        options = ["--temperature", "0.9", "--top-p", "0.8", "--seed", "3", "--json", "--max-new-tokens", "30"]
        text = generate(*options, "abc").document["text"]
        document = generate(*options, "--stop", text[10:12], "abc").document
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
    def test_what_does_not_fit_the_model(self, arguments: list[str], message: str, generate: Generate) -> None:
        assert message in generate(*arguments, status=2).error

    def test_models_that_are_none(self, tmp_path: Path, folder: str, generate: Generate) -> None:
        """Nothing in the folder; then a family that is not known."""
        assert "config.json" in generate("abc", model=str(tmp_path), status=2).error
        config = OPTConfig(
            vocab_size=VOCAB_SIZE, hidden_size=16, word_embed_proj_dim=16, ffn_dim=16, num_hidden_layers=1,
            num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=1,
        )  # fmt: skip
        OPTForCausalLM(config).save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes((Path(folder) / name).read_bytes())
        error = generate("abc", model=str(tmp_path), status=2).error
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
        generate: Generate,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert message in generate("-", status=2).error

    def test_an_output_that_cannot_show_every_character(
        self, generate: Generate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = generate("--max-new-tokens", "60", "abc").output.splitlines()[0]
        assert not shown.isascii(), "choose another prompt"
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", write_through=True))
        generate("--max-new-tokens", "60", "abc")
        assert output.getvalue().splitlines()[0] == shown.encode("ascii", "replace")


class TestPrompt:
    """What is sent: words, files, messages, and what is piped in."""

    @pytest.fixture
    def chat(self, folder: str, tmp_path: Path) -> str:
        """The pico model with a chat template that shows roles."""
        copied = shutil.copytree(folder, tmp_path / "chat")
        template = "{% for message in messages %}<{{ message.role[0] }}>{{ message.content }}{% endfor %}"
        (copied / "chat_template.jinja").write_text(template, encoding="utf-8")
        return str(copied)

    @pytest.fixture
    def sent(self, generate: Generate, folder: str) -> Callable[..., str]:
        """The prompt, as the model's tokens say."""
        tokenizer = AutoTokenizer.from_pretrained(folder)

        def run(*arguments: str, model: str = folder) -> str:
            found = generate("--json", "--max-new-tokens", "2", *arguments, model=model).document["prompt_tokens"]
            return str(tokenizer.decode(found)).replace("!", "\n")  # its token for what it does not know

        return run

    @pytest.fixture
    def pipe(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], BinaryIO]]:
        """Makes standard input a pipe that holds some bytes; its writing end, open."""
        ends: list[Any] = []

        def make(content: bytes) -> BinaryIO:
            reading, writing = os.pipe()
            ends.extend([open(reading, encoding="utf-8"), open(writing, "wb", buffering=0)])  # noqa: SIM115
            ends[-1].write(content)
            monkeypatch.setattr(sys, "stdin", ends[-2])
            return ends[-1]

        yield make
        for end in ends:
            end.close()

    def test_what_is_piped_in_follows_the_prompt(self, sent: Any, pipe: Any) -> None:
        pipe(b"one\ntwo\n").close()
        assert sent("sum:") == "sum:\n\none\ntwo"

    def test_it_may_be_all_there_is(self, sent: Any, pipe: Any) -> None:
        pipe(b"one\n").close()
        assert sent() == "one\n"

    def test_a_dash_reads_it_alone(self, sent: Any, pipe: Any) -> None:
        pipe(b"one\n").close()
        assert sent("-") == "one\n"

    def test_a_file_as_standard_input(self, sent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "words.txt"
        file.write_text("one\n", encoding="utf-8")
        with file.open(encoding="utf-8") as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            assert sent("sum:") == "sum:\n\none"

    @pytest.mark.parametrize("kind", ["null", "closed", "none", "ended"])
    def test_nothing_to_join(self, kind: str, sent: Any, pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """/dev/null as in cron, a file that is closed, no standard input, a pipe that ended."""
        if kind == "ended":
            pipe(b"").close()
            assert sent("sum:") == "sum:"
            return
        with open(os.devnull, encoding="utf-8") as null:
            monkeypatch.setattr(sys, "stdin", None if kind == "none" else null)
            if kind == "closed":
                null.close()
            assert sent("sum:") == "sum:"

    def test_an_open_pipe_without_data_is_not_waited_for_without_end(
        self, generate: Generate, pipe: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor is a text made without what may yet come."""
        monkeypatch.setattr("selfdraft.cli.prompt.SECONDS_TO_TELL", 0.01)
        monkeypatch.setattr("selfdraft.cli.prompt.SECONDS_TO_WAIT", 0.01)
        pipe(b"")
        waiting, error = generate("abc", status=2).error.splitlines()
        assert waiting.startswith("waiting for standard input, an open pipe")
        assert "nothing came; close it, write < /dev/null, or let --prompt-file - wait for it" in error

    def test_what_comes_late_is_joined(self, generate: Generate, pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("selfdraft.cli.prompt.SECONDS_TO_TELL", 0.01)
        end = pipe(b"")

        def say(text: str) -> None:
            assert text.startswith("waiting for standard input")
            end.write(b"de")
            end.close()

        monkeypatch.setattr("selfdraft.cli.terminal.say", say)
        assert len(generate("--json", "--max-new-tokens", "2", "abc").document["prompt_tokens"]) == len("abc\n\nde")

    def test_a_prompt_file(self, sent: Any, pipe: Any, tmp_path: Path) -> None:
        (tmp_path / "words.txt").write_text("one\n", encoding="utf-8")
        assert sent("--prompt-file", str(tmp_path / "words.txt")) == "one\n"
        assert sent("--prompt-file", str(tmp_path / "words.txt"), "sum:") == "sum:\n\none"
        pipe(b"two\n").close()
        assert sent("--prompt-file", "-", "sum:") == "sum:\n\ntwo"

    def test_messages(self, sent: Any, chat: str, tmp_path: Path) -> None:
        file = tmp_path / "chat.json"
        file.write_text(json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))
        assert sent("abc", model=chat) == "<u>abc"
        assert sent("--system", "be", "abc", model=chat) == "<s>be<u>abc"
        assert sent("--messages", str(file), model=chat) == "<u>a<a>b"
        assert sent("--messages", str(file), "--system", "be", "abc", model=chat) == "<s>be<u>a<a>b<u>abc"

    def test_python_says_the_same_for_the_same_words(self, generate: Generate, chat: str) -> None:
        """Messages as the command line sends them, a plain string as `--raw` does."""
        engine = Engine.from_pretrained(chat)
        options = ["--json", "--max-new-tokens", "12", "abc"]
        message = engine.generate([{"role": "user", "content": "abc"}], max_new_tokens=12)
        assert list(message.tokens) == generate(*options, model=chat).document["tokens"]
        plain = engine.generate("abc", max_new_tokens=12)
        assert list(plain.tokens) == generate("--raw", *options, model=chat).document["tokens"]
        assert plain.tokens != message.tokens

    @pytest.mark.parametrize(
        ("content", "arguments", "message"),
        [
            ("{}", [], "must be a JSON list like"),
            ("[]", [], "must be a JSON list like"),
            ('[{"role": "user"}]', [], "message 0 of chat.json needs a role and a content, both text"),
            ('[{"role": "system", "content": "a"}]', ["--system", "b"], "chat.json has a system message"),
            ('[{"role": "user", "content": "a"}]', [], "need a chat template, and this model's tokenizer has none"),
        ],
    )
    def test_messages_that_are_none(
        self,
        content: str,
        arguments: list[str],
        message: str,
        generate: Generate,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("chat.json").write_text(content, encoding="utf-8")
        assert message in generate("--messages", "chat.json", *arguments, status=2).error

    def test_a_random_seed_is_named(self, generate: Generate) -> None:
        options = ["--temperature", "1", "--json", "--max-new-tokens", "12", "abc"]
        first, second = (generate("--seed", "random", *options) for _ in range(2))
        seed = first.document["seed"]
        assert seed != second.document["seed"]
        assert first.error == f"seed {seed}\n"
        assert first.document["options"]["seed"] == seed
        assert generate("--seed", str(seed), *options).document["tokens"] == first.document["tokens"]

    def test_threads(self, generate: Generate) -> None:
        before = torch.get_num_threads()
        try:
            generate("--threads", "3", "--max-new-tokens", "2", "abc")
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)

    @pytest.mark.parametrize(("short", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
    def test_dtypes_in_short(self, short: str, dtype: str, generate: Generate) -> None:
        assert generate("--dtype", short, "--json", "--max-new-tokens", "2", "abc").document["dtype"] == dtype

    @pytest.mark.full
    def test_pipes_are_clean(self, folder: str, tmp_path: Path, generate: Generate) -> None:
        """As a shell runs it: `> out.txt` has the text and one line break, and what is piped in is joined."""
        line = f"echo bc | {sys.executable} -m selfdraft generate --model {folder} --max-new-tokens 9 a > out.txt"
        ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=True)
        document = generate("--max-new-tokens", "9", "--json", "a\n\nbc").document
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == f"{document['text']}\n"
        assert ran.stderr.count("tokens/s") == 1


def test_a_warning_is_one_line(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch tells of bfloat16 on a CPU that cannot do it, with a page of C++."""

    def warn(*_: Any) -> None:
        warnings.warn("this is slow\nframe #0: c10::Error", stacklevel=1)

    monkeypatch.setattr("selfdraft.cli.generate.read_prompt", lambda options: warn() or "abc")
    assert generate("--json", "--max-new-tokens", "2").error == "warning: this is slow\n"


def test_list_shows_the_catalogue(home: Path, said: Said) -> None:
    output = said("pull", "--list")
    for name in CATALOGUE:
        assert f"selfdraft pull {name}" in output
    assert f"{DEFAULT_MODEL} (default)" in output


def test_generate_help_names_every_method(said: Said) -> None:
    output = said("generate", "--help")
    for table in AXES.values():
        assert all(name in output for name in table)


@pytest.mark.full
def test_interrupt_ends_the_text_and_says_so(folder: str) -> None:
    """Ctrl-C while text streams: what is there stays, one line, exit code 130, no traceback."""
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
    assert (first + rest).count(b"\n") == 1
    (line,) = errors.decode().splitlines()
    assert line.startswith("interrupted after ")


@pytest.mark.full
def test_a_closed_pipe_is_no_error(folder: str) -> None:
    command = f"{sys.executable} -m selfdraft generate --model {folder} --max-new-tokens 200 abc | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
    assert len(result.stdout) == 1
