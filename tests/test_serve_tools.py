"""Tool calls over a real socket, asked by OpenAI's own client; and how they are read out of texts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytest.importorskip("fastapi")

from pico import pico, pico_tokenizer
from selfdraft import Engine
from selfdraft.serve.answers import ChatAnswer
from selfdraft.serve.schema import ChatRequest
from selfdraft.serve.service import Limits, Service
from selfdraft.serve.tools import HERMES, Free, Required, template_of
from test_serve import ASKED, CHAT, TEMPLATE, serving

ALERT = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
CITY = {
    "type": "object",
    "x-guidance": {"whitespace_flexible": False},
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}},
    {"type": "function", "function": {"name": "alert", "parameters": ALERT}},
]
WEATHER: Any = {"type": "function", "function": {"name": "weather"}}
WITH_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}<tool_call>{% endfor %}" + TEMPLATE


def new_service(template: str = WITH_TOOLS) -> Service:
    """Tokens are bytes, and one of them ends a text."""
    tokenizer = copy.deepcopy(pico_tokenizer())
    tokenizer.chat_template = template
    return Service(Engine(pico("llama", vocab_size=300), tokenizer, profile=None), "pico", Limits())


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving(new_service()) as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def joined(chunks: Any) -> tuple[str, list[dict[str, str]], str | None]:
    """Content, calls and reason of a stream, put together as clients do."""
    content, calls, reason = "", list[dict[str, str]](), None
    for chunk in chunks:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for piece in choice.delta.tool_calls or ():
            if piece.index == len(calls):
                calls.append({"id": piece.id, "name": piece.function.name, "arguments": ""})
            calls[piece.index]["arguments"] += piece.function.arguments
    return content, calls, reason


@pytest.mark.parametrize("strategy", ["auto", "off"])
def test_a_tool_that_is_named_is_called(client: openai.OpenAI, strategy: str) -> None:
    asked = {**CHAT, "max_tokens": 60, "seed": 3, "tools": TOOLS, "tool_choice": WEATHER}
    asked["extra_body"] = {"selfdraft": {"strategy": strategy}}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    content, calls, reason = joined(client.chat.completions.create(**asked, stream=True))
    assert (content, reason) == ("", "stop")
    assert [(one["name"], one["arguments"]) for one in calls] == [("weather", call.function.arguments)]
    assert calls[0]["id"]


def test_some_tool_is_called_where_one_must_be(client: openai.OpenAI) -> None:
    asked = {**CHAT, "max_tokens": 90, "tools": TOOLS, "tool_choice": "required"}
    names = set()
    for seed in range(3):
        choice = client.chat.completions.create(**asked, seed=seed, temperature=1.5).choices[0]
        streamed = joined(client.chat.completions.create(**asked, seed=seed, temperature=1.5, stream=True))
        if choice.finish_reason == "length":
            assert choice.message.content
            assert streamed == (choice.message.content, [], "length")
            continue
        (call,) = choice.message.tool_calls
        names.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        assert choice.finish_reason == "tool_calls"
        assert set(arguments) == ({"city"} if call.function.name == "weather" else {"on"})
        assert [one["arguments"] for one in streamed[1]] == [call.function.arguments]
    assert names


def test_a_call_that_was_cut_says_length(client: openai.OpenAI) -> None:
    asked = {**CHAT, "tools": TOOLS, "tool_choice": WEATHER}
    choice = client.chat.completions.create(**{**asked, "max_tokens": 3}).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.name == "weather"


def test_what_is_said_without_a_call_is_content(client: openai.OpenAI) -> None:
    asked = {"model": "pico", "messages": ASKED, "max_tokens": 20, "temperature": 0}
    told = client.chat.completions.create(**asked, tools=TOOLS)
    assert told.choices[0].message.tool_calls is None
    content, calls, reason = joined(client.chat.completions.create(**asked, tools=TOOLS, stream=True))
    assert (content, calls, reason) == (told.choices[0].message.content, [], told.choices[0].finish_reason)
    without = client.chat.completions.create(**asked)
    unused = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="none")
    assert unused.choices[0].message.content == without.choices[0].message.content
    assert told.usage.prompt_tokens > without.usage.prompt_tokens, "the model is told of its tools"


SAID = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TWICE = SAID + '\n<tool_call>\n{"name": "alert", "arguments": {"on": true}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_calls_are_read_out_of_a_text_however_it_is_cut(size: int) -> None:
    reader, content, calls = Free(HERMES, TOOLS), "", []
    parts = [TWICE[start : start + size] for start in range(0, len(TWICE), size)]
    for number, part in enumerate(parts):
        more, found = reader.read(part, number == len(parts) - 1)
        content, calls = content + more, calls + found
    assert content.strip() == "Let me see."
    assert [(call.index, call.name, json.loads(call.arguments)) for call in calls] == [
        (0, "weather", {"city": "Rome"}),
        (1, "alert", {"on": True}),
    ]


@pytest.mark.parametrize("text", ["<tool_call>{nothing</tool_call>", "<tool_call>[1, 2]</tool_call>", "<tool_call>{"])
def test_what_is_no_call_is_none(text: str) -> None:
    assert Free(HERMES, TOOLS).read(text, True)[1] == []


def test_what_was_called_is_told_as_templates_read_it() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "12", "tool_call_id": "a"},
    ]
    (told,) = ChatRequest(model="pico", messages=messages).prompts
    assert told[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert told[2] == {"role": "tool", "content": "12", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"tool_choice": "auto"}, "tool_choice needs tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rain"}}}, "'rain'"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "a name twice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "contradict"),
        ({"tools": TOOLS, "tool_choice": WEATHER, "min_tokens": 2}, "min_tokens"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"chat_template_kwargs": {"tools": []}}, "not for requests"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
            "cannot be followed",
        ),
    ],
    ids=str,
)
def test_tools_that_are_not_right_are_refused(client: openai.OpenAI, changes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(openai.BadRequestError, match=fragment):
        client.chat.completions.create(**CHAT, extra_body=changes)


def test_a_call_can_be_asked_for_where_the_template_knows_no_tools() -> None:
    with serving(new_service(TEMPLATE)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        asked = {**CHAT, "max_tokens": 60, "tools": TOOLS, "parallel_tool_calls": False}
        choice = client.chat.completions.create(**asked, tool_choice=WEATHER).choices[0]
    assert choice.message.tool_calls[0].function.name == "weather"


def test_a_model_whose_calls_nobody_knows() -> None:
    service = new_service(TEMPLATE)
    assert service.reader(ChatRequest(**CHAT, tools=TOOLS, tool_choice="required")) is Required
    with pytest.raises(Exception, match="no response_template"):
        service.reader(ChatRequest(**CHAT, tools=TOOLS))
    assert template_of(new_service().engine.tokenizer) is HERMES
    assert ChatAnswer("pico", str, service.reader(ChatRequest(**CHAT)))._new_reader is None
