"""`selfdraft chat`: what is typed, what is answered, and that nothing said is lost."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.cli import terminal
from selfdraft.cli.main import main

TEMPLATE = "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}a"
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, tokenizer = tmp_path_factory.mktemp("chat") / "pico", letter_tokenizer()
    tokenizer.chat_template = TEMPLATE
    pico("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def typed(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """The exit code, what was written and what was said beside it."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status = main(["chat", "--model", model, "--max-new-tokens", "12", *options])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def answers(model: str, *texts: str, **options: Any) -> list[str]:
    """Of the same engine, asked message by message."""
    engine, messages, found = Engine.from_pretrained(model, profile=None), [], []
    for text in texts:
        messages.append({"role": "user", "content": text})
        found.append(engine.generate(messages, max_new_tokens=12, strategy="off", **options).text)
        messages.append({"role": "assistant", "content": found[-1]})
    return found


def test_every_turn_knows_those_before_it(typed: Typed, model: str) -> None:
    status, written, said = typed("abc", "cab", "abc")
    assert status == 0
    assert written.split("\n")[:3] == answers(model, "abc", "cab", "abc")
    assert said.count("tokens/s)") == 3


def test_another_strategy_says_the_same_and_reset_forgets(typed: Typed, model: str) -> None:
    _, written, said = typed("abc", "/strategy off", "/reset", "abc", "/strategy")
    first, second, _ = written.split("\n")
    assert first == second == answers(model, "abc")[0]
    assert said.count("drafts by 'off'") == 2


def test_a_chat_is_kept_and_gone_on_with(typed: Typed, model: str, tmp_path: Path) -> None:
    file = str(tmp_path / "chat.json")
    _, written, _ = typed("abc", f"/save {file}", options=("--system", "q"))
    kept = json.loads(Path(file).read_text("utf-8"))
    assert [one["role"] for one in kept] == ["system", "user", "assistant"]
    assert kept[2]["content"] == written.strip("\n")
    _, again, _ = typed("cab", options=("--messages", file))
    _, whole, _ = typed("abc", "cab", options=("--system", "q"))
    assert again.strip("\n") == whole.split("\n")[1]


def test_reset_keeps_the_system_message(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    typed("abc", "/reset", f"/save {file}", options=("--system", "q"))
    assert json.loads(file.read_text("utf-8")) == [{"role": "system", "content": "q"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/foo", "unknown command /foo; /help lists them"),
        ("/strategy swfit", "Did you mean 'swift'?"),
        ("/save", "needs the name of a file"),
        ("/save /nowhere/at/all", "No such file"),
        ("/explain", "nothing was said yet"),
        ("a" * 300, "context"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_chat_goes_on(typed: Typed, model: str, line: str, message: str) -> None:
    status, written, said = typed(line, "abc", "/explain", "/help")
    assert status == 0
    assert f"error: {message}" in said or message in said
    assert written.strip("\n") == answers(model, "abc")[0]
    assert "rounds" in said
    assert "/reset" in said


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, shown, file = terminal.paint, [], tmp_path / "chat.json"

    def paint(text: str, code: str, is_on: bool) -> str:
        shown.append(text)
        if len(shown) == 4:
            raise KeyboardInterrupt
        return real(text, code, is_on)

    monkeypatch.setattr(terminal, "paint", paint)
    status, _, said = typed("abc", "cab", f"/save {file}")
    assert status == 0
    assert "(stopped after " in said
    assert [one["role"] for one in json.loads(file.read_text("utf-8"))] == ["user", "assistant"] * 2


def test_quit_leaves_and_a_model_without_a_template_is_refused(typed: Typed, folder: str, said: Any) -> None:
    assert typed("/quit", "abc")[1] == ""
    assert "no chat template" in said("chat", "--model", folder, status=2)
