"""Long texts: others one behind the other, cut to a length, as they are or in front of a question."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError
from .prompts import SEPARATOR, BenchPrompt, tokens_of


def long_prompts(articles: Sequence[str], tokenizer: Any, num_tokens: int, count: int) -> list[list[int]]:
    """Each begins with the article behind the last one of the prompt before; where none is left, with the first."""
    if not articles:
        raise OptionError("there are no articles to make long texts of; name a file of prompts with --articles")
    left = itertools.cycle(articles)
    return [_joined(left, tokenizer, num_tokens) for _ in range(count)]


def _joined(texts: Iterator[str], tokenizer: Any, num_tokens: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += tokenizer(next(texts) + SEPARATOR, add_special_tokens=not tokens).input_ids
    return tokens[:num_tokens]


def context_prompts(
    prompts: Sequence[BenchPrompt], engine: Engine, lengths: Sequence[int], per_length: int
) -> list[BenchPrompt]:
    """Questions behind the texts of other prompts, with which they have about so many tokens and never more.

    Only the first turn of a conversation is asked. At every length it is the same questions as far as they fit; each
    has others in front of it first, and where these are used up they come again.
    """
    return [
        prompt for length in dict.fromkeys(lengths) for prompt in _of_one_length(prompts, engine, length, per_length)
    ]


def is_context(domain: str) -> bool:
    """Whether it is one of `context_prompts`."""
    return re.fullmatch(r"context \d+", domain) is not None


def _of_one_length(prompts: Sequence[BenchPrompt], engine: Engine, length: int, count: int) -> list[BenchPrompt]:
    limit = engine.context_length
    if limit is not None and length >= limit:
        raise OptionError(
            f"a prompt of {length} tokens leaves no room in the model's context, which holds {limit}; "
            f"ask for lengths of at most {limit - 1}"
        )
    short = (prompt for prompt in prompts if len(tokens_of(prompt, engine)) < length)
    questions = list(itertools.islice(short, count))
    if len(questions) < count:
        raise OptionError(
            f"{len(questions)} prompts are shorter than {length} tokens, but {count} are asked for; "
            "ask for fewer, for longer ones, or name more prompts"
        )
    starts = [number * len(prompts) // count for number in range(count)]
    return [
        _behind_others(question, [*prompts[start:], *prompts[:start]], engine, length)
        for question, start in zip(questions, starts, strict=True)
    ]


def _behind_others(question: BenchPrompt, prompts: Sequence[BenchPrompt], engine: Engine, length: int) -> BenchPrompt:
    others = [prompt.text for prompt in prompts if prompt.text != question.text]
    if not others:
        raise OptionError(f"there is no other prompt to put in front of {question.id}; name at least two")
    made = BenchPrompt(f"context-{length}-{question.id}", f"context {length}", question.text)
    num_before = length - len(tokens_of(made, engine))
    while num_before > 0:
        before = _text_of(_joined(itertools.cycle(others), engine.tokenizer, num_before), engine.tokenizer)
        longer = replace(made, text=before + SEPARATOR + question.text)
        num_over = len(tokens_of(longer, engine)) - length
        if num_over <= 0:
            return longer
        num_before -= num_over  # the separator, the template, words that are cut elsewhere
    return made


def _text_of(tokens: Sequence[int], tokenizer: Any) -> str:
    """Without half of a character at its end."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.rstrip("\ufffd").rstrip()
