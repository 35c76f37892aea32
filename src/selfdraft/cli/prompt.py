"""What `generate` is asked: the words of the command, files, messages, and what is piped in."""

from __future__ import annotations

import argparse
import json
import os
import select
import stat
import sys
from typing import Any

from ..engine.engine import Engine
from ..engine.text import OnePrompt
from ..errors import OptionError, PromptError
from . import terminal
from .inputs import as_message, check_prompt_text, read_file, read_standard_input

SECONDS_TO_TELL, SECONDS_TO_WAIT = 1.0, 30.0
"""How long an open pipe may stay empty until that is told, and then until it is an error."""
Messages = list[dict[str, Any]]


def read_prompt(options: argparse.Namespace) -> str | Messages:
    """Text, or messages where --system or --messages ask for them; checked before a model is loaded."""
    sources = (options.prompt, options.prompt_file, options.messages)
    if sources.count("-") > 1:
        raise OptionError("standard input can be read once; name a file for the prompt or the messages")
    messages = read_messages(options.messages) if options.messages else []
    text = _read_text(options, with_pipe="-" not in sources)
    if options.system is not None:
        if messages and messages[0]["role"] == "system":
            raise OptionError(f"{options.messages} has a system message; leave out --system")
        messages = [{"role": "system", "content": options.system}, *messages]
    if not options.messages or text.strip():
        if not text and all(source is None for source in sources):
            raise PromptError("no prompt is given; pass a text, --prompt-file or --messages, or pipe one in")
        check_prompt_text(text)
        messages += [{"role": "user", "content": text}] if messages else []
    if messages and options.raw:
        raise OptionError("--raw sends the prompt as it is; leave out --system and --messages")
    return messages or text


def as_prompt(asked: str | Messages, engine: Engine, is_raw: bool) -> OnePrompt:
    if isinstance(asked, str):
        return as_message(asked, engine, is_raw)
    if not getattr(engine.tokenizer, "chat_template", None):
        what = "--system and --messages need a chat template, and this model's tokenizer has none"
        raise PromptError(f"{what}; put everything into the prompt")
    return asked


def _read_text(options: argparse.Namespace, with_pipe: bool) -> str:
    """The parts in their order; one alone stays as it is, several are joined with a blank line between."""
    parts = [] if options.prompt is None else [options.prompt]
    if options.prompt == "-":
        parts = [read_standard_input("pass the prompt as an argument")]
    if options.prompt_file is not None:
        parts.append(read_file(options.prompt_file))
    if with_pipe:
        parts.append(read_piped())
    said = [part for part in parts if part.strip()]
    return "\n\n".join(part.strip("\r\n") for part in said) if len(said) > 1 else "".join(said or parts[:1])


def read_piped() -> str:
    """What a file or a pipe as standard input holds, to its end.

    A terminal, a device (/dev/null) and nothing at all give no text. A pipe that is open and stays empty may be slow or
    nobody's: neither is a text made without it, nor is it waited for without end.
    """
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return ""
    is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    if is_pipe and not select.select([number], [], [], SECONDS_TO_TELL)[0]:
        terminal.say("waiting for standard input, an open pipe with nothing in it yet (< /dev/null: none)")
        if not select.select([number], [], [], SECONDS_TO_WAIT)[0]:
            remedy = "close it, write < /dev/null, or let --prompt-file - wait for it"
            raise PromptError(f"standard input is an open pipe, and nothing came; {remedy}")
    return read_standard_input("name a file") if is_pipe or stat.S_ISREG(mode) else ""


def read_messages(file: str) -> Messages:
    """Raise unless it is a list of messages, each with a role and a text."""
    text = read_file(file)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{file} is not JSON: {error}") from None
    form = 'a JSON list like [{"role": "user", "content": "Hello"}]'
    if not isinstance(messages, list) or not messages:
        raise PromptError(f"{file} must be {form}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise PromptError(f"message {number} of {file} needs a role and a content, both text; write {form}")
    return messages
