"""`selfdraft chat`: a conversation on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError, PromptError, SelfdraftError
from ..files import replace_file
from ..models.load.catalogue import DEFAULT_MODEL
from ..options import GenerateOptions, make, typed_call
from ..types import Generation
from . import terminal
from .inputs import checked_method, load_model, read_method
from .prompt import Messages, read_messages

MAX_NEW_TOKENS = 1024
"""Of an answer, unless the command says otherwise."""
HELP = """\
/reset            forget what was said
/save FILE        keep it, as JSON; `selfdraft chat --messages FILE` goes on with it
/strategy NAME    what drafts from now on: auto, off, ...; the texts are the same
/explain          what the rounds of the last answer did, and why
/help, /quit      this; leave, as Ctrl-D does. Ctrl-C stops an answer"""


def run(options: argparse.Namespace) -> int:
    fields = {item.name for item in dataclasses.fields(GenerateOptions)}
    given = {name: value for name, value in vars(options).items() if name in fields and value not in (None, [])}
    method, call = checked_method(read_method(options), options), typed_call(given)
    make(GenerateOptions, call, "generate")
    messages = read_messages(options.messages) if options.messages else []
    if options.system is not None:
        messages = [{"role": "system", "content": options.system}, *messages]
    model, tokenizer = load_model(options, options.model)
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            "this model's tokenizer has no chat template; continue a text with `selfdraft generate --raw`"
        )
    engine = Engine(model, tokenizer, name=options.model or DEFAULT_MODEL, **method)
    chat = Chat(engine, {"max_new_tokens": MAX_NEW_TOKENS, **call}, messages, options.color)
    terminal.say("/help lists what else may be typed; Ctrl-D leaves")
    while (line := _read()) is not None:
        if line and chat.answer(line):
            break
    return 0


def _read() -> str | None:
    """None: there is nothing more to come. Ctrl-C at the prompt drops what was typed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # lines are edited, and earlier ones found again
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        terminal.say("")
        return ""


class Chat:
    """What was said so far, and how it goes on."""

    def __init__(self, engine: Engine, call: dict[str, Any], messages: Messages, color: str) -> None:
        self._engine, self._call, self._color = engine, call, color
        self.messages = list(messages)
        self._first = [one for one in messages if one["role"] == "system"]
        self._last: Generation | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "reset": self._reset,
            "save": self._save,
            "strategy": self._choose,
            "explain": self._explain,
            "help": lambda rest: terminal.say(HELP),
        }

    def answer(self, line: str) -> bool:
        """To what was typed; whether that was the end. What cannot be done is said, and the chat goes on."""
        try:
            if not line.startswith("/"):
                self._speak(line)
                return False
            name, _, rest = line[1:].partition(" ")
            if name in ("quit", "exit"):
                return True
            if name not in self._commands:
                raise OptionError(f"unknown command /{name}; /help lists them")
            self._commands[name](rest.strip())
        except (SelfdraftError, OSError) as error:
            terminal.say(f"error: {error}")
        return False

    def _speak(self, text: str) -> None:
        messages = [*self.messages, {"role": "user", "content": text}]
        stream = self._engine.stream(messages, **self._call)
        terminal.write_pieces(stream, self._color)
        self._last = one = stream.generation
        self.messages = [*messages, {"role": "assistant", "content": one.text}] if one.text else messages[:-1]
        stats = one.stats
        what = "stopped after " if one.finish_reason == "cancelled" else ""
        drafted = f", {stats.num_accepted} of them drafted" if stats.num_accepted else ""
        number = terminal.number(stats.num_tokens, "token")
        terminal.say(f"({what}{number}{drafted}, {stats.tokens_per_second:.1f} tokens/s)")
        if one.finish_reason == "context":
            terminal.say("the model's context is full; /reset begins again, /save FILE keeps what was said")

    def _reset(self, rest: str) -> None:
        self.messages, self._last = list(self._first), None
        terminal.say("what was said is forgotten")

    def _save(self, file: str) -> None:
        if not file:
            raise OptionError("/save needs the name of a file")
        replace_file(Path(file), json.dumps(self.messages, ensure_ascii=False, indent=1).encode() + b"\n")
        terminal.say(f"wrote {terminal.number(len(self.messages), 'message')} to {file}")

    def _choose(self, name: str) -> None:
        self._engine.names(strategy=name or None)  # raises for one that does not exist
        if name:
            self._call["strategy"] = name
        terminal.say(f"drafts by {self._engine.names(strategy=self._call.get('strategy'))['strategy']!r}")

    def _explain(self, rest: str) -> None:
        if self._last is None:
            raise OptionError("nothing was said yet")
        terminal.say("\n".join(self._last.explain().lines))
