"""What ours is compared with: transformers' own methods of generating, called as people call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import StoppingCriteriaList

from ..engine.engine import Engine
from ..errors import OptionError
from ..progress import quiet
from ..types import SkipSet
from .arms import Output
from .device import device_seconds, peak_bytes, reset_peak
from .records import Record

PEERS: Mapping[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "eager": ("transformers eager", lambda num_layers: {}),
    "static": ("transformers static", lambda num_layers: {"cache_implementation": "static"}),  # compiled on CUDA
    "early-exit": ("transformers early exit", lambda num_layers: {"assistant_early_exit": max(1, num_layers * 2 // 3)}),
    "lookup": ("transformers prompt lookup", lambda num_layers: {"prompt_lookup_num_tokens": 10}),
}
"""Names on the command line -> names in the table, and options of `model.generate`."""
# Plainly greedy, whatever the model's generation config says.
_GREEDY = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}

_PLAIN = (("temperature", 0.0), ("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))


class PeerArm:
    """`options`: of `model.generate`. Only whole calls are timed. One that fails keeps why, and is not called again."""

    must_be_told = False

    def __init__(self, name: str, engine: Engine, options: Mapping[str, Any]) -> None:
        self.name, self._engine, self._options = name, engine, options
        self.error: str | None = None
        method = {name: value if isinstance(value, int | str) else name for name, value in options.items()}
        self.described: dict[str, Any] = {"name": name, "kind": "peer", "method": method}

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int, call: Mapping[str, Any]) -> set[SkipSet]:
        """With all tokens where transformers compiles for them."""
        is_compiled = "cache_implementation" in self._options
        for prompt in prompts:
            self._try(prompt, call["max_new_tokens"] if is_compiled else num_tokens)
        return set()

    def run(self, text: Record, prompt: Sequence[int], call: Mapping[str, Any]) -> Output | None:
        reset_peak(self._engine.device)
        found = self._try(prompt, call["max_new_tokens"])
        if found is None:
            return None
        record = replace(text, arm=self.name, num_tokens=len(found[0]), call_seconds=found[1])
        return Output(found[0], replace(record, peak_bytes=peak_bytes(self._engine.device)))

    def first_token_seconds(self, prompt: Sequence[int], call: Mapping[str, Any]) -> float | None:
        """With room for all tokens: a static cache of another length would be compiled again."""
        criteria = StoppingCriteriaList([partial(_is_longer, len(prompt))])
        found = self._try(prompt, call["max_new_tokens"], stopping_criteria=criteria)
        return found[1] if found else None

    def _try(self, prompt: Sequence[int], num_tokens: int, **options: Any) -> tuple[tuple[int, ...], float] | None:
        """Tokens and seconds; None where it failed: that is a row of the table, not the end of it."""
        if self.error is None:
            try:
                return transformers_text(self._engine, prompt, max_new_tokens=num_tokens, **self._options, **options)
            except Exception as error:
                self.error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return None


def transformers_text(engine: Engine, prompt: Sequence[int], **options: Any) -> tuple[tuple[int, ...], float]:
    """Greedily, unless `options` of `model.generate` say otherwise: tokens, and the seconds of the whole call."""
    inputs = torch.tensor([list(prompt)], device=engine.device)
    config = engine.model.config.get_text_config(decoder=True)
    num_layers = config.num_hidden_layers
    try:
        with quiet():
            began = device_seconds(engine.device)
            output = engine.model.generate(inputs, attention_mask=torch.ones_like(inputs), **{**_GREEDY, **options})
            seconds = device_seconds(engine.device) - began
    finally:  # early exit shortens the model for its drafts, and leaves it so where it fails
        config.num_hidden_layers = num_layers
    return tuple(output[0, len(prompt) :].tolist()), seconds


def _is_longer(length: int, tokens: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
    """A stopping criterion."""
    return torch.full((len(tokens),), tokens.shape[1] > length, device=tokens.device)


def peer_arms(engine: Engine, names: Iterable[str], draft_model: Any = None) -> list[PeerArm]:
    """`draft_model`: another, smaller model for transformers' assisted generation."""
    asked = [(label, options(engine.runner.num_layers)) for label, options in map(PEERS.__getitem__, names)]
    if draft_model is not None:
        asked.append(("transformers draft model", {"assistant_model": draft_model}))
    return [PeerArm(label, engine, options) for label, options in asked]


def check_greedy(names: Sequence[str], peer_model: object, calls: Iterable[Mapping[str, Any]]) -> None:
    """`calls`: options of `generate`, one for each mode."""
    if (names or peer_model) and not all(call.get(name, usual) == usual for call in calls for name, usual in _PLAIN):
        raise OptionError(
            "peers are greedy; leave out --temperature and --mode, or ask for --peers none and no --peer-model"
        )
