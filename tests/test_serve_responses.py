"""`/v1/responses` over a real socket, asked by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytest.importorskip("fastapi")

from test_serve import serving
from test_serve_tools import CITY, new_service

ASKED: dict[str, Any] = {"model": "pico", "input": "abcabc", "max_output_tokens": 24, "temperature": 0}
WEATHER = {"type": "function", "name": "weather", "description": "of a city", "parameters": CITY}
CALL: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving(new_service()) as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, messages: Any, **more: Any) -> Any:
    asked = {"model": "pico", "messages": messages, "max_tokens": 24, "temperature": 0, **more}
    return client.chat.completions.create(**asked).choices[0]


@pytest.mark.parametrize("strategy", ["auto", "off"])
def test_an_answer_is_that_of_the_chat(client: openai.OpenAI, strategy: str) -> None:
    right = chat(client, [{"role": "user", "content": "abcabc"}])
    told = client.responses.create(**ASKED, extra_body={"selfdraft": {"strategy": strategy}})
    assert told.output_text == right.message.content
    assert told.status == ("completed" if right.finish_reason == "stop" else "incomplete")
    assert told.usage.output_tokens <= 24
    assert told.usage.total_tokens == told.usage.input_tokens + told.usage.output_tokens


def test_instructions_and_earlier_items_are_messages(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASKED)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "abcabc"}]}, *first.output]
    told = client.responses.create(
        **{**ASKED, "input": [*items, {"role": "user", "content": "more"}]}, instructions="be"
    )
    said = [("system", "be"), ("user", "abcabc"), ("assistant", first.output_text), ("user", "more")]
    assert told.output_text == chat(client, [{"role": role, "content": text} for role, text in said]).message.content


def test_a_stream_tells_the_same(client: openai.OpenAI) -> None:
    right = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == f"response.{right.status}"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == right.output_text
    assert events[-1].response.output_text == right.output_text
    assert events[-1].response.usage == right.usage
    with client.responses.stream(**{name: value for name, value in ASKED.items() if name != "stream"}) as stream:
        for _ in stream:
            pass
        if right.status == "completed":
            assert stream.get_final_response().output_text == right.output_text


def test_a_call_is_an_item(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_output_tokens": 60, **CALL}
    told = client.responses.create(**asked)
    (item,) = told.output
    assert (item.type, item.name, told.status) == ("function_call", "weather", "completed")
    assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")
    events = list(client.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item.arguments
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "12"}
    client.responses.create(**{**ASKED, "input": [{"role": "user", "content": "a"}, item, result]})


def test_a_form_is_kept(client: openai.OpenAI) -> None:
    form = {"format": {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}}
    told = client.responses.create(**{**ASKED, "max_output_tokens": 60}, text=form)
    assert json.loads(told.output_text)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"temperature": 9}, "temperature"),
        ({"input": []}, "input"),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"max_output_tokens": 0}, "max_completion_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(client: openai.OpenAI, changes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(openai.BadRequestError, match=fragment):
        client.responses.create(**{**ASKED, "extra_body": changes})
