"""The document that `selfdraft generate --json` prints, as far as `selfdraft verify` must read it again."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..engine.audit import rule_for
from ..errors import OptionError, SelfdraftError
from ..options import GenerateOptions, make
from ..types import FinishReason

SHAPING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "min_new_tokens",
    "max_new_tokens",
    "seed",
    "stop",
)
"""The options that shape which token is chosen and where the text ends."""
_NEEDED = ("prompt_tokens", "tokens", "options", "acceptance", "finish_reason")
_OPTIONAL = ("text", "model", "device", "dtype")


def shaping_options(options: GenerateOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in SHAPING}


@dataclass(frozen=True)
class Document:
    prompt_tokens: list[int]
    tokens: list[int]
    options: Mapping[str, Any]
    acceptance: str
    finish_reason: FinishReason
    text: str | None
    model: str | None
    device: str | None
    dtype: str | None


def is_document(text: str) -> bool:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"prompt_tokens", "tokens"} <= set(content)


def read_document(text: str, file: str) -> Document:
    """Raise, naming the file and what is wrong with it, unless everything a judge needs is there."""
    content: Any = _parse(text, file)
    missing = [key for key in _NEEDED if key not in content]
    if missing:
        raise OptionError(
            f"{file} lacks {', '.join(missing)}; it must be a document that this version's "
            "`selfdraft generate --json` printed"
        )
    for key in ("prompt_tokens", "tokens"):
        if not isinstance(content[key], list) or any(type(token) is not int for token in content[key]):
            raise OptionError(f"{key} in {file} must be a list of token ids, got {_short(content[key])}")
    if content["finish_reason"] not in typing.get_args(FinishReason):
        known = ", ".join(typing.get_args(FinishReason))
        raise OptionError(f"finish_reason in {file} must be one of {known}, got {_short(content['finish_reason'])}")
    if not isinstance(content["options"], dict):
        raise OptionError(f"options in {file} must be an object, got {_short(content['options'])}")
    try:
        rule_for(content["acceptance"], make(GenerateOptions, content["options"], "generate"))
    except SelfdraftError as error:
        raise OptionError(f"{file}: {error}") from None
    for key in _OPTIONAL:
        if not isinstance(content.get(key), str | None):
            raise OptionError(f"{key} in {file} must be text, got {_short(content[key])}")
    values: dict[str, Any] = {key: content.get(key) for key in (*_NEEDED, *_OPTIONAL)}
    return Document(**values)


def _parse(text: str, file: str) -> dict[str, Any]:
    hint = "a plain text needs its prompt: --prompt or --prompt-file"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{file} is not a JSON document of `selfdraft generate --json` ({error}); {hint}") from None
    if not isinstance(content, dict):
        raise OptionError(f"{file} is not a document of `selfdraft generate --json`, got {_short(content)}; {hint}")
    return content


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
