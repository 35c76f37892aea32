"""Prompts of any length: articles one after the other, then a question about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...engine.engine import Engine
from ...prompts.arrange import context_prompts
from ...types import Prompt

QUESTION = "Summarise the texts above, one sentence for each."


def bare(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Without the lines that all of them begin and end with: what is asked about each article."""
    if len(prompts) < 2:
        return list(prompts)
    texts = [prompt.text.split("\n") for prompt in prompts]
    begin, end = _num_shared(texts), _num_shared(reversed(lines) for lines in texts)
    pairs = zip(prompts, texts, strict=True)
    return [replace(prompt, text="\n".join(lines[begin : len(lines) - end])) for prompt, lines in pairs]


def _num_shared(texts: Iterable[Iterable[str]]) -> int:
    """How many of their first lines are the same in all."""
    return sum(1 for _ in itertools.takewhile(lambda lines: len({*lines}) == 1, zip(*texts, strict=False)))


def long_questions(engine: Engine, articles: Sequence[Prompt], length: int, count: int) -> list[Prompt]:
    """The same question after other articles each time, at most `length` tokens together."""
    starts = [place * len(articles) // count for place in range(count)]
    questions = [Prompt(f"question-{place + 1}", "question", QUESTION) for place in range(count)]
    around = ([one, *articles[start:], *articles[:start]] for one, start in zip(questions, starts, strict=True))
    return [prompt for others in around for prompt in context_prompts(others, engine, [length], 1)]
