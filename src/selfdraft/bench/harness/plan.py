"""What a benchmark is to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...engine.engine import Engine
from ..prompts import BenchPrompt, in_turn, tokens_of

_ROOM = 16
"""Tokens of a chat template around an answer, at most."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. `methods`: by row name; `prompts` in the order in which they come; `seconds`: begin no later."""

    prompts: Sequence[BenchPrompt]
    methods: Mapping[str, Mapping[str, Any]]
    peers: Sequence[str] = ()
    peer_model: Any = None  # that drafts for a peer
    peer_prompts: int | None = None  # of each domain, for peers: they may be many times slower
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None  # None: all tokens
    seed: int = 0
    seconds: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the question: the command's options, the model's name

    @property
    def num_texts(self) -> int:
        return sum(1 + len(prompt.later) for prompt in self.prompts)

    @property
    def ids_for_peers(self) -> frozenset[str]:
        return frozenset(prompt.id for prompt in in_turn(self.prompts, self.peer_prompts))

    def fitting(self, engine: Engine) -> BenchPlan:
        """Without turns that, behind answers as long as they may be, would be more than the model's context holds."""
        return replace(self, prompts=[self._cut(prompt, engine) for prompt in self.prompts])

    def _cut(self, prompt: BenchPrompt, engine: Engine) -> BenchPrompt:
        while prompt.later and self.longest(prompt, engine) >= (engine.context_length or float("inf")):
            prompt = replace(prompt, later=prompt.later[:-1])
        return prompt

    def longest(self, prompt: BenchPrompt, engine: Engine) -> int:
        """Tokens before the last answer, at most."""
        num_answers = len(prompt.later)
        return len(tokens_of(prompt, engine, [""] * num_answers)) + num_answers * (self.max_new_tokens + _ROOM)
