"""Prompts as the tokens a model is asked with: turns of a conversation, with the chat template where there is one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ..engine.engine import Engine
from ..engine.text import check_prompt, encode_prompts
from ..errors import PromptError
from ..types import Prompt

SEPARATOR = "\n\n"
"""Between texts that follow each other."""
_ROLES = ("user", "assistant")


def encoded(prompt: Prompt, engine: Engine) -> Prompt:
    """With the tokens of its first turn: one user message where the tokenizer has a chat template."""
    return replace(prompt, tokens=tuple(encode(prompt, engine)))


def encode(prompt: Prompt, engine: Engine, answers: Sequence[str] = ()) -> list[int]:
    """What comes before the answer to the next turn; `answers`: what was answered to the turns before it."""
    tokens = tokens_of(prompt, engine, answers)
    try:
        check_prompt(tokens, engine.runner.vocab_size, engine.context_length)
    except PromptError as error:
        where = f"{prompt.id}, turn {len(answers) + 1}" if prompt.later else prompt.id
        raise PromptError(f"prompt {where}: {error}") from None
    return tokens


def few_shot(prompt: Prompt, examples: Sequence[Prompt], engine: Engine) -> Prompt:
    """As base models are asked: after these and their answers, as one text and without the chat template."""
    answered = [f"{one.text}{_gap(one.text)}{one.reference}" for one in examples]
    (tokens,), _ = encode_prompts(SEPARATOR.join([*answered, prompt.text]), engine.tokenizer)
    return replace(prompt, text="", tokens=tuple(tokens))


def _gap(asked: str) -> str:
    return "" if asked[-1:].isspace() else " "


def tokens_of(prompt: Prompt, engine: Engine, answers: Sequence[str] = ()) -> list[int]:
    """As `encode`, however much the model's context holds."""
    if not prompt.text:  # it was given as tokens
        return list(prompt.tokens)
    assert len(answers) <= len(prompt.later), f"prompt {prompt.id} has no turn {len(answers) + 1}"
    asked = (prompt.text, *prompt.later)[: len(answers) + 1]
    said = [text for pair in itertools.zip_longest(asked, answers) for text in pair if text is not None]
    messages = [{"role": role, "content": text} for role, text in zip(itertools.cycle(_ROLES), said, strict=False)]
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    (tokens,), _ = encode_prompts(messages if has_template else SEPARATOR.join(said), engine.tokenizer)
    return tokens
