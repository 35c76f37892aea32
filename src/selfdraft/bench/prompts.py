"""The prompts of a benchmark: JSON lines with `domain` and `prompt`, taken in turn from each domain."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.engine import Engine
from ..engine.text import check_prompt, encode_prompts
from ..errors import OptionError, PromptError

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Ours: code, math and chat."""


@dataclass(frozen=True)
class BenchPrompt:
    id: str
    domain: str
    text: str


@dataclass(frozen=True)
class Labels:
    """Which field of a line names its domain, and what a line without one belongs to; None: it must have one."""

    field: str = "domain"
    otherwise: Callable[[str], str] | None = None  # of the file's name


_MUST_HAVE = Labels()


def read_prompts(
    files: Iterable[tuple[str, str]], per_domain: int | None = None, labels: Labels = _MUST_HAVE
) -> list[BenchPrompt]:
    """Of (name, content) of each file; the first of every domain, then the second of every domain, and so on.

    So a run that is cut short has measured all domains alike.
    """
    domains: dict[str, list[BenchPrompt]] = {}
    for file, content in files:
        for number, line in enumerate(content.split("\n"), start=1):
            if line.strip():
                prompt = _read_line(line, file, number, labels)
                domains.setdefault(prompt.domain, []).append(prompt)
    if not domains:
        raise OptionError("there are no prompts; write JSON lines like " + _EXAMPLE)
    rounds = itertools.zip_longest(*(prompts[:per_domain] for prompts in domains.values()))
    return _in_turn(rounds)


_EXAMPLE = '{"domain": "chat", "prompt": "Why do cats purr?"}'


def _example(labels: Labels) -> str:
    return _EXAMPLE.replace("domain", labels.field, 1)


def _read_line(line: str, file: str, number: int, labels: Labels) -> BenchPrompt:
    where = f"line {number} of {file}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is no JSON ({error}); write one object a line: {_EXAMPLE}") from None
    if not isinstance(row, dict):
        raise OptionError(f"{where} must be an object like {_EXAMPLE}")
    if labels.otherwise is not None:
        row.setdefault(labels.field, labels.otherwise(file))
    for key in (labels.field, "prompt"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise OptionError(f"{where} has no {key!r} that is text; write it like {_example(labels)}")
        if any("\ud800" <= character <= "\udfff" for character in row[key]):
            raise OptionError(f"{where} has half a character in its {key!r}; write it as UTF-8 text")
    return BenchPrompt(str(row.get("id", f"{Path(file).stem}-{number}")), row[labels.field], row["prompt"])


def encode(prompt: BenchPrompt, engine: Engine) -> list[int]:
    """As one user message where the tokenizer has a chat template."""
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    asked: Any = [{"role": "user", "content": prompt.text}] if has_template else prompt.text
    (tokens,), _ = encode_prompts(asked, engine.tokenizer)
    try:
        check_prompt(tokens, engine.runner.vocab_size, engine.context_length)
    except PromptError as error:
        raise PromptError(f"prompt {prompt.id}: {error}") from None
    return tokens


def split(prompts: Iterable[BenchPrompt], num_first: int, num_last: int) -> tuple[list[BenchPrompt], list[BenchPrompt]]:
    """The first prompts of every domain, and the last ones, which are kept apart; both domain by domain in turn."""
    domains: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    for domain, found in domains.items():
        if len(found) < num_first + num_last:
            raise OptionError(
                f"there are {len(found)} prompts of the domain {domain!r}, but {num_first} and {num_last} others are "
                "asked for; ask for fewer, or name files that have more"
            )
    first = itertools.zip_longest(*(found[:num_first] for found in domains.values()))
    last = itertools.zip_longest(*(found[len(found) - num_last :] for found in domains.values()))
    return _in_turn(first), _in_turn(last)


def split_in_three(
    prompts: Iterable[BenchPrompt], num_first: int, num_train: int, num_validation: int
) -> tuple[list[BenchPrompt], list[BenchPrompt], list[BenchPrompt]]:
    """The first prompts of every domain, those that stand before the last ones, and the last ones. No text twice."""
    unique: dict[str, BenchPrompt] = {}
    for prompt in prompts:
        unique.setdefault(prompt.text.strip(), prompt)
    first, others = split(unique.values(), num_first, num_train + num_validation)
    train, validation = split(others, num_train, num_validation)
    return first, train, validation


def _in_turn(turns: Iterable[tuple[BenchPrompt | None, ...]]) -> list[BenchPrompt]:
    return [prompt for turn in turns for prompt in turn if prompt is not None]
