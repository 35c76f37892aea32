"""Long texts to continue: articles one behind the other, cut to a length. What is dear to skip changes with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import OptionError
from ...models.payoff import integer_weights
from ...types import LatencyFit

SEPARATOR = "\n\n"


def long_prompts(articles: Sequence[str], tokenizer: Any, num_tokens: int, count: int) -> list[list[int]]:
    """Each begins with the article behind the last one of the prompt before; where none is left, with the first."""
    if not articles:
        raise OptionError("there are no articles to make long texts of; name a file of prompts with --articles")
    left = itertools.cycle(articles)
    return [_one_prompt(left, tokenizer, num_tokens) for _ in range(count)]


def _one_prompt(articles: Iterator[str], tokenizer: Any, num_tokens: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        text = next(articles) + SEPARATOR
        tokens += tokenizer(text, add_special_tokens=not tokens).input_ids
    return tokens[:num_tokens]


def weights_at(fit: LatencyFit, length: int) -> Mapping[str, Any]:
    """What KnapSpec's knapsack weighs sub-layers with behind so many tokens, and the seconds it follows from."""
    attention, mlp = integer_weights(fit, length)
    return {
        "attention": attention,
        "mlp": mlp,
        "attention_seconds": fit.attention_seconds(length),
        "mlp_seconds": fit.mlp_seconds,
    }
