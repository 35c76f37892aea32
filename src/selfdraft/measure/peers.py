"""What ours is compared with: transformers' own methods of generating, called as people call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import StoppingCriteriaList

from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..models.load.gguf import quiet
from .circumstances import device_seconds

T = TypeVar("T")
STATIC = "static"
PEERS: Mapping[str, str] = {
    "eager": "transformers eager",
    STATIC: "transformers static",
    "early-exit": "transformers early exit",
    "lookup": "transformers prompt lookup",
}
"""Names on the command line -> names in the table."""
_GREEDY = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
"""Plainly greedy, whatever the model's generation config says."""


@dataclass
class Peer:
    """`options`: of `model.generate`. One that fails keeps the reason and is not called again."""

    label: str
    options: Mapping[str, Any]
    is_compiled: bool = False  # by transformers, when it first runs
    error: str | None = None

    def run(self, engine: Engine, prompt: Sequence[int], num_tokens: int) -> tuple[tuple[int, ...], float] | None:
        """Tokens and seconds; None where it failed: that is a row of the table, not the end of it."""
        return self._try(lambda: _generate(engine, prompt, num_tokens, self.options))

    def first_token_seconds(self, engine: Engine, prompt: Sequence[int], num_tokens: int) -> float | None:
        """With room for all tokens: a static cache of another length would be compiled again."""
        criteria = StoppingCriteriaList([partial(_is_longer, len(prompt))])
        options = {**self.options, "stopping_criteria": criteria}
        found = self._try(lambda: _generate(engine, prompt, num_tokens, options))
        return found[1] if found else None

    def _try(self, call: Callable[[], T]) -> T | None:
        if self.error is None:
            try:
                return call()
            except Exception as error:
                self.error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return None


def _generate(
    engine: Engine, prompt: Sequence[int], num_tokens: int, options: Mapping[str, Any]
) -> tuple[tuple[int, ...], float]:
    inputs = torch.tensor([list(prompt)], device=engine.device)
    with quiet(), _same_depth(engine.model):
        began = device_seconds(engine.device)
        output = engine.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, **_GREEDY, **options
        )
        seconds = device_seconds(engine.device) - began
    return tuple(output[0, len(prompt) :].tolist()), seconds


def _is_longer(length: int, tokens: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
    """A stopping criterion."""
    return torch.full((len(tokens),), tokens.shape[1] > length, device=tokens.device)


@contextmanager
def _same_depth(model: Any) -> Iterator[None]:
    """transformers' early exit shortens the model for its drafts, and leaves it so where it fails."""
    config = model.config.get_text_config(decoder=True)
    num_layers = config.num_hidden_layers
    try:
        yield
    finally:
        config.num_hidden_layers = num_layers


def peers(names: Iterable[str], num_layers: int, draft_model: Any = None) -> list[Peer]:
    """`draft_model`: another, smaller model for transformers' assisted generation."""
    options: dict[str, dict[str, Any]] = {
        "eager": {},
        STATIC: {"cache_implementation": "static"},  # compiled by transformers itself on CUDA
        "early-exit": {"assistant_early_exit": max(1, num_layers * 2 // 3)},
        "lookup": {"prompt_lookup_num_tokens": 10},
    }
    found = [Peer(PEERS[name], options[name], is_compiled=name == STATIC) for name in names]
    assisted = [] if draft_model is None else [Peer("transformers draft model", {"assistant_model": draft_model})]
    return [*found, *assisted]


def check_peers(names: Sequence[str]) -> list[str]:
    if list(names) == ["none"]:
        return []
    if "none" in names:
        raise OptionError(f"--peers {' '.join(names)}: none stands alone; leave it out, or give nothing else")
    for name in names:
        if name not in PEERS:
            raise unknown_name("peer", name, [*PEERS, "none"])
    return list(dict.fromkeys(names))


def check_greedy(names: Sequence[str], peer_model: object, temperature: float) -> None:
    if (names or peer_model) and temperature:
        raise OptionError("peers are greedy; leave out --temperature, or ask for --peers none and no --peer-model")


def default_peers(device_type: str) -> list[str]:
    """All of them on a GPU; elsewhere a static cache brings nothing but waiting."""
    return [name for name in PEERS if device_type == "cuda" or name != STATIC]
