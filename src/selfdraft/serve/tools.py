"""Tool calls: the form of a call that was asked for, and calls that are read out of texts as these come.

Where one tool is named, the text is its arguments; where some tool is required, one JSON object that names it; else the
model says it in its own words, which transformers' `ResponseParser` reads by the tokenizer's `response_template`.
"""

from __future__ import annotations

import importlib.util
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import OptionError

AUTO, NONE, REQUIRED = "auto", "none", "required"
_MARK, _CALLS = "<tool_call>", "tool_calls"
HERMES: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"content": "text"},
        _CALLS: {
            "open_pattern": rf"\s*{_MARK}",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""Of models whose tokenizer has no `response_template`, and whose chat template has this mark."""


@dataclass
class Call:
    """A call, or what a stream adds to one: its name comes first."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


def new_call(index: int, name: str, arguments: str) -> Call:
    return Call(index, arguments, f"call_{uuid.uuid4().hex}", name)


class Reader(ABC):
    """Of one text: what it adds to the content, and to calls."""

    ends_as: Literal["tool_calls", "stop"] = "tool_calls"
    """The reason that a text with calls ends for, as OpenAI has it."""

    @abstractmethod
    def read(self, text: str, is_over: bool) -> tuple[str, list[Call]]: ...


class Named(Reader):
    """All of the text is this tool's arguments."""

    ends_as = "stop"

    def __init__(self, name: str) -> None:
        self._name, self._has_begun = name, False

    def read(self, text: str, is_over: bool) -> tuple[str, list[Call]]:
        call = Call(0, text) if self._has_begun else new_call(0, self._name, text)
        self._has_begun = True
        return "", [call]


class Required(Reader):
    """One object that names the tool; a text that was cut is content."""

    def __init__(self) -> None:
        self._text = ""

    def read(self, text: str, is_over: bool) -> tuple[str, list[Call]]:
        self._text += text
        if not is_over:
            return "", []
        try:
            said = json.loads(self._text)
        except ValueError:
            return self._text, []
        return "", [new_call(0, said["name"], json.dumps(said["arguments"]))]


class Free(Reader):
    """What is no call is content; so is a call that cannot be read."""

    def __init__(self, template: Any, tools: Sequence[dict[str, Any]]) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        self._parser = ResponseParser(template, prefix="", tools=list(tools))
        self._num_calls, self._unread, self._is_lost = 0, "", False

    def read(self, text: str, is_over: bool) -> tuple[str, list[Call]]:
        self._unread += text
        try:
            content, calls = ("", []) if self._is_lost else self._parsed(text, is_over)
        except (ValueError, LookupError, TypeError):
            self._is_lost = True
        if self._is_lost:
            content, calls, self._unread = self._unread, [], ""
        return content, calls

    def _parsed(self, text: str, is_over: bool) -> tuple[str, list[Call]]:
        """ValueError, LookupError, TypeError: there is something that is no call."""
        events = self._parser.feed(text)
        if is_over:
            events += self._parser.finalize()[1]
        content = "".join(event.get("text", "") for event in events if event["field"] != _CALLS)
        values = [event["value"] for event in events if (event["field"], event["type"]) == (_CALLS, "region_close")]
        calls = [self._call(value["function"]) for value in values]
        if events and (events[-1]["field"] != _CALLS or events[-1]["type"] == "region_close"):
            self._unread = ""
        return content, calls

    def _call(self, said: Any) -> Call:
        arguments = said.get("arguments", {}) if isinstance(said, dict) else None
        told = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._num_calls += 1
        return new_call(self._num_calls - 1, str(said["name"]), told)


def template_of(tokenizer: Any) -> Any:
    """How its model says calls. OptionError: nobody knows."""
    if importlib.util.find_spec("transformers.utils.chat_parsing") is None:
        raise OptionError("reading tool calls out of texts needs a newer transformers; name a tool by tool_choice")
    known = getattr(tokenizer, "response_template", None)
    if known is not None:
        return known
    if _MARK in str(getattr(tokenizer, "chat_template", None) or ""):
        return HERMES
    raise OptionError(
        "how this model calls tools is not known: its tokenizer has no response_template, and its chat template no "
        f"{_MARK}; name a tool by tool_choice, or say 'required'"
    )


def schema_of(choice: str, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the text, where a call must come."""
    known = {tool["function"]["name"]: tool["function"].get("parameters") or {"type": "object"} for tool in tools}
    if choice in known:
        return known[choice]
    return {"anyOf": [_named(name, parameters) for name, parameters in known.items()]}


def _named(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
