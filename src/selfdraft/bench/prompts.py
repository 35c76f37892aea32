"""The prompts of a benchmark: JSON lines with `domain` and `prompt`, or in Spec-Bench's form with its turns.

They are taken in turn from each domain.
"""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ..engine.engine import Engine
from ..engine.text import check_prompt, encode_prompts
from ..errors import OptionError, PromptError

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Ours: code, math and chat."""

SEPARATOR = "\n\n"
"""Between texts that follow each other."""


@dataclass(frozen=True)
class BenchPrompt:
    """`later`: what the user says in the later turns of the same conversation."""

    id: str
    domain: str
    text: str
    later: tuple[str, ...] = ()


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
    found = [
        _read_line(line, file, number, labels)
        for file, content in files
        for number, line in enumerate(content.split("\n"), start=1)
        if line.strip()
    ]
    if not found:
        raise OptionError("there are no prompts; write JSON lines like " + _EXAMPLE)
    return in_turn(found, per_domain)


_EXAMPLE = '{"domain": "chat", "prompt": "Why do cats purr?"}'
_SPEC_BENCH = '{"question_id": 81, "category": "chat", "turns": ["Why do cats purr?", "And lions?"]}'


def _read_line(line: str, file: str, number: int, labels: Labels) -> BenchPrompt:
    where = f"line {number} of {file}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is no JSON ({error}); write one object a line: {_EXAMPLE}") from None
    if not isinstance(row, dict):
        raise OptionError(f"{where} must be an object like {_EXAMPLE}")
    is_ours = row.get("prompt") is not None or "turns" not in row
    field = labels.field if is_ours else _spec_bench_field(row, labels)
    if labels.otherwise is not None:
        row.setdefault(field, labels.otherwise(file))
    name = row.get("id", f"{Path(file).stem}-{number}")
    if is_ours:
        found = _Row(row, where, _EXAMPLE.replace("domain", field, 1))
        return BenchPrompt(str(name), found.text(field), found.text("prompt"))
    found = _Row(row, where, _SPEC_BENCH.replace("category", field, 1))
    first, *later = found.texts("turns")
    return BenchPrompt(str(row.get("question_id", name)), found.text(field), first, tuple(later))


def _spec_bench_field(row: Mapping[str, Any], labels: Labels) -> str:
    """A field of domains that the line has, or that was asked for, goes before Spec-Bench's own."""
    is_asked_for = labels.field != _MUST_HAVE.field
    return labels.field if is_asked_for or labels.field in row else "category"


@dataclass(frozen=True)
class _Row:
    """What a line says, where it stands, and what it should look like."""

    content: Mapping[str, Any]
    where: str
    example: str

    def text(self, key: str) -> str:
        text = self.content.get(key)
        if not isinstance(text, str) or not text.strip():
            raise OptionError(f"{self.where} has no {key!r} that is text; write it like {self.example}")
        return self._whole(text, key)

    def texts(self, key: str) -> list[str]:
        texts = self.content[key]
        if not is_list_of_texts(texts):
            raise OptionError(
                f"{self.where} has {key!r} that are no list of texts: {reprlib.repr(texts)}; "
                f"write it like {self.example}"
            )
        return [self._whole(text, key) for text in texts]

    def _whole(self, text: str, key: str) -> str:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise OptionError(f"{self.where} has half a character in its {key!r}; write it as UTF-8 text")
        return text


def is_list_of_texts(found: object) -> TypeGuard[list[str]]:
    """Of at least one, and none of them blank."""
    return isinstance(found, list) and bool(found) and all(isinstance(one, str) and one.strip() for one in found)


# -------------------------------------------------------------------------------------------------------- as tokens


def encode(prompt: BenchPrompt, engine: Engine) -> list[int]:
    """Its first turn, as one user message where the tokenizer has a chat template."""
    return encode_turns(prompt, engine)


def encode_turns(prompt: BenchPrompt, engine: Engine, answers: Sequence[str] = ()) -> list[int]:
    """What comes before the answer to the next turn; `answers`: what was answered to the turns before it."""
    tokens = tokens_of(prompt, engine, answers)
    try:
        check_prompt(tokens, engine.runner.vocab_size, engine.context_length)
    except PromptError as error:
        where = f"{prompt.id}, turn {len(answers) + 1}" if prompt.later else prompt.id
        raise PromptError(f"prompt {where}: {error}") from None
    return tokens


def tokens_of(prompt: BenchPrompt, engine: Engine, answers: Sequence[str] = ()) -> list[int]:
    """As `encode_turns`, whatever the model's context holds."""
    assert len(answers) <= len(prompt.later), f"prompt {prompt.id} has no turn {len(answers) + 1}"
    asked = (prompt.text, *prompt.later)[: len(answers) + 1]
    said = [text for pair in itertools.zip_longest(asked, answers) for text in pair if text is not None]
    messages = [{"role": role, "content": text} for role, text in zip(itertools.cycle(_ROLES), said, strict=False)]
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    (tokens,), _ = encode_prompts(messages if has_template else SEPARATOR.join(said), engine.tokenizer)
    return tokens


_ROLES = ("user", "assistant")


# ------------------------------------------------------------------------------------------------------- by domain


def by_domain(prompts: Iterable[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    """In the order in which domains first appear."""
    domains: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    return domains


def in_turn(prompts: Iterable[BenchPrompt], per_domain: int | None = None) -> list[BenchPrompt]:
    """The first of every domain, then the second of every domain, and so on."""
    return _rounds(found[:per_domain] for found in by_domain(prompts).values())


def split(prompts: Iterable[BenchPrompt], num_first: int, num_last: int) -> tuple[list[BenchPrompt], list[BenchPrompt]]:
    """The first prompts of every domain, and the last ones, which are kept apart; both domain by domain in turn."""
    domains = by_domain(prompts)
    for domain, found in domains.items():
        if len(found) < num_first + num_last:
            raise OptionError(
                f"there are {len(found)} prompts of the domain {domain!r}, but {num_first} and {num_last} others are "
                "asked for; ask for fewer, or name files that have more"
            )
    first = _rounds(found[:num_first] for found in domains.values())
    return first, _rounds(found[len(found) - num_last :] for found in domains.values())


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


def _rounds(groups: Iterable[Sequence[BenchPrompt]]) -> list[BenchPrompt]:
    return [prompt for turn in itertools.zip_longest(*groups) for prompt in turn if prompt is not None]
