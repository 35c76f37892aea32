"""Prompts in the order and length they are needed: in turn, held out, mixed, made long."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError
from ..types import Prompt
from .tokens import SEPARATOR, tokens_of


def by_domain(prompts: Iterable[Prompt]) -> dict[str, list[Prompt]]:
    """In the order in which domains first appear."""
    domains: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    return domains


def in_turn(prompts: Iterable[Prompt], per_domain: int | None = None) -> list[Prompt]:
    """The first of every domain, then the second of every domain, and so on."""
    turns = itertools.zip_longest(*(found[:per_domain] for found in by_domain(prompts).values()))
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def hold_out(prompts: Iterable[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """(to fit to, to try it with): of each domain about a quarter is held out, its only prompt never. No text twice."""
    unique: dict[tuple[int, ...], Prompt] = {}
    for prompt in prompts:
        unique.setdefault(prompt.tokens, prompt)
    domains = by_domain(unique.values()).values()
    several = [members for members in domains if len(members) > 1]
    held_out = {id(prompt) for members in several for prompt in members[-max(1, round(len(members) / 4)) :]}
    fitting = [prompt for prompt in unique.values() if id(prompt) not in held_out]
    return fitting, [prompt for prompt in unique.values() if id(prompt) in held_out]


def digest(prompts: Sequence[Prompt]) -> str:
    """Other texts, ids, domains, options or answers are another question."""
    later = ("options", "reference")  # than the first digests that were kept
    known = [[value for name, value in vars(one).items() if value or name not in later] for one in prompts]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def in_modes(prompts: Iterable[Prompt], modes: Mapping[str, Mapping[str, Any]]) -> list[Prompt]:
    """Each prompt once in every mode, by the options of `generate`; modes are domains then. No modes: as they are.

    Prompts that were made long stay apart.
    """
    made = []
    for prompt, (mode, options) in itertools.product(prompts, modes.items()):
        domain = f"{prompt.domain}, {mode}" if is_context(prompt.domain) else mode
        made.append(replace(prompt, id=f"{prompt.id}, {mode}", domain=domain, options=tuple(options.items())))
    return made if modes else list(prompts)


# --------------------------------------------------------------------------------------------------------- streams


def mixed_prompts(prompts: Sequence[Prompt], ratio: float, seed: int) -> list[Prompt]:
    """A stream that changes between domains: KNN-SSD (arXiv:2505.16162), equation 8.

    It begins with the first domain. The next prompt belongs to another one with the probability `ratio`, to each of the
    others alike. Those of a domain come in their order. Where it has none left, one is drawn from the others.
    """
    if not 0 <= ratio <= 1:
        raise OptionError(f"the mix ratio must be from 0 (domain by domain) to 1 (always another domain), got {ratio}")
    draw, waiting = random.Random(seed), by_domain(prompts)
    stream: list[Prompt] = []
    task = next(iter(waiting), None)
    while task is not None:
        stream.append(waiting[task].pop(0))
        waiting = {name: left for name, left in waiting.items() if left}
        task = _next_task(task, list(waiting), ratio, draw)
    return stream


def _next_task(task: str, tasks: Sequence[str], ratio: float, draw: random.Random) -> str | None:
    others = [name for name in tasks if name != task]
    if not others:
        return task if task in tasks else None
    return draw.choice(others) if task not in tasks or draw.random() < ratio else task


# ------------------------------------------------------------------------------------------------------------ long


def context_prompts(prompts: Sequence[Prompt], engine: Engine, lengths: Sequence[int], per_length: int) -> list[Prompt]:
    """Questions after the texts of other prompts; `lengths`: tokens of both together, about these and never more.

    Only the first turn of a conversation is asked. At every length it is the same questions as far as they fit; each
    has others in front of it first, and where these are used up they come again.
    """
    wanted = dict.fromkeys(lengths)
    return [prompt for length in wanted for prompt in _of_one_length(prompts, engine, length, per_length)]


def is_context(domain: str) -> bool:
    """Whether it is one of `context_prompts`."""
    return re.fullmatch(r"context \d+(, .*)?", domain) is not None


def _of_one_length(prompts: Sequence[Prompt], engine: Engine, length: int, count: int) -> list[Prompt]:
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
        _after_others(question, [*prompts[start:], *prompts[:start]], engine, length)
        for question, start in zip(questions, starts, strict=True)
    ]


def _after_others(question: Prompt, prompts: Sequence[Prompt], engine: Engine, length: int) -> Prompt:
    others = [prompt.text for prompt in prompts if prompt.text != question.text]
    if not others:
        raise OptionError(f"there is no other prompt to put in front of {question.id}; name at least two")
    made = Prompt(f"context-{length}-{question.id}", f"context {length}", question.text)
    num_before = length - len(tokens_of(made, engine))
    while num_before > 0:
        before = _joined(itertools.cycle(others), engine.tokenizer, num_before)
        longer = replace(made, text=before + SEPARATOR + question.text)
        num_over = len(tokens_of(longer, engine)) - length
        if num_over <= 0:
            return longer
        num_before -= num_over  # the separator, the template, words that are cut elsewhere
    return made


def _joined(texts: Iterator[str], tokenizer: Any, num_tokens: int) -> str:
    """As many tokens of them, without half of a character at the end."""
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += tokenizer(next(texts) + SEPARATOR, add_special_tokens=not tokens).input_ids
    text: str = tokenizer.decode(tokens[:num_tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.rstrip("\ufffd").rstrip()
