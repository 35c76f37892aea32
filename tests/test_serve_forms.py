"""Two hundred texts that end by themselves, of many schemas: all of them valid. Those that were cut say so."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

pytest.importorskip("fastapi")
from test_serve import ASKED, PERSON, bytes_url

__all__ = ["bytes_url"]
jsonschema = pytest.importorskip("jsonschema_rs")
pytestmark = pytest.mark.full
NUM_TEXTS = 200
SCHEMAS: tuple[dict[str, Any], ...] = (
    PERSON,
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}, {"const": 17}]},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
    {
        "$defs": {"leaf": {"type": "object", "properties": {"v": {"type": "boolean"}}, "additionalProperties": False}},
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}, "at": {"enum": [1, "b"]}},
        "required": ["left", "at"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {"type": "boolean"}}}},
)


def test_all_texts_that_end_by_themselves_are_valid(bytes_url: str) -> None:
    client = openai.OpenAI(base_url=f"{bytes_url}/v1", api_key="none", max_retries=0)

    def ask(seed: int) -> tuple[dict[str, Any], str, str]:
        schema = SCHEMAS[seed % len(SCHEMAS)]
        form = {"type": "json_schema", "json_schema": {"name": "asked", "schema": schema}}
        body: dict[str, Any] = {"model": "pico", "messages": ASKED, "max_tokens": 80, "temperature": 1.0, "seed": seed}
        choice = client.chat.completions.create(**body, response_format=form).choices[0]
        return schema, choice.finish_reason, choice.message.content

    answers: list[tuple[dict[str, Any], str, str]] = []
    with ThreadPoolExecutor(8) as pool:
        while len([reason for _, reason, _ in answers if reason == "stop"]) < NUM_TEXTS:
            assert len(answers) < 5 * NUM_TEXTS, "too few end"
            answers += pool.map(ask, range(len(answers), len(answers) + 48))
    ended = [(schema, text) for schema, reason, text in answers if reason == "stop"]
    assert all(jsonschema.is_valid(schema, json.loads(text)) for schema, text in ended)
    assert {schema.get("type", "any") for schema, _ in ended} == {
        "object",
        "array",
        "string",
        "any",
    }
    assert {reason for _, reason, _ in answers} == {"stop", "length"}
