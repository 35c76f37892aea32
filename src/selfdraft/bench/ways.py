"""The ways to generate that a benchmark compares: transformers' own (peers), and ours, plain or with a method."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import StoppingCriteriaList

from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..models.load.gguf import quiet
from ..options import parse_settings
from ..registry import AXES, DEFAULTS, options_for, resolve
from ..types import Generation
from .meter import device_seconds

T = TypeVar("T")
OFF = "off"
STATIC = "static"
PEERS: Mapping[str, str] = {
    "eager": "transformers eager",
    STATIC: "transformers static",
    "early-exit": "transformers early exit",
    "lookup": "transformers prompt lookup",
}
"""Names on the command line -> names in the table."""
BASELINES = (STATIC, "eager")
"""What speeds are held against: the first of these that ran."""


@dataclass(frozen=True)
class Output:
    """One whole call: its tokens and seconds; of ours all the engine says about it, too."""

    tokens: tuple[int, ...]
    call_seconds: float
    generation: Generation | None = None
    first_token_seconds: float = 0.0  # from the call on


@dataclass
class Way:
    """One row of the table. A peer that fails keeps the reason and is not called again."""

    name: str
    label: str
    is_peer: bool
    options: Mapping[str, Any]  # of `model.generate`, or of the method
    num_tokens: int
    error: str | None = None
    warm_up_seconds: float | None = None
    drafter: str = DEFAULTS["drafter"]
    vocabulary: int | None = None  # of drafts by the model itself

    @property
    def is_plain(self) -> bool:
        """Ours without drafting: what all others are compared with."""
        return not self.is_peer and self.name == OFF

    @property
    def is_compiled(self) -> bool:
        """Whether transformers compiles it when it first runs."""
        return self.is_peer and self.name == STATIC

    def run(self, engine: Engine, prompt: Sequence[int], num_tokens: int | None = None) -> Output | None:
        """None where a peer failed: it is a row of the table, not the end of it."""
        run = _run_peer if self.is_peer else _run_ours
        return self._try(lambda: run(engine, prompt, num_tokens or self.num_tokens, self.options))

    def measure(self, engine: Engine, prompt: Sequence[int]) -> Output | None:
        """A whole call; and the same call again, left behind its first round: that long one waits for a first token."""
        output = self.run(engine, prompt)
        seconds = self.first_token_seconds(engine, prompt)
        return None if output is None or seconds is None else replace(output, first_token_seconds=seconds)

    def first_token_seconds(self, engine: Engine, prompt: Sequence[int]) -> float | None:
        time_first = _peer_first_token if self.is_peer else _our_first_token
        return self._try(lambda: time_first(engine, prompt, self.num_tokens, self.options))

    def _try(self, call: Callable[[], T]) -> T | None:
        if not self.is_peer:
            return call()
        if self.error is None:
            try:
                return call()
            except Exception as error:
                self.error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return None


def _run_ours(engine: Engine, prompt: Sequence[int], num_tokens: int, method: Mapping[str, Any]) -> Output:
    began = device_seconds(engine.device)
    generation = engine.generate(prompt, max_new_tokens=num_tokens, **method)
    seconds = device_seconds(engine.device) - began
    assert isinstance(generation, Generation)
    return Output(generation.tokens, seconds, generation)


def _our_first_token(engine: Engine, prompt: Sequence[int], num_tokens: int, method: Mapping[str, Any]) -> float:
    """A pass that runs ahead is not waited for: the token is here."""
    answers = iter([False])
    began = device_seconds(engine.device)
    engine.generate(prompt, max_new_tokens=num_tokens, cancel=lambda: next(answers, True), **method)
    return time.perf_counter() - began


def _run_peer(engine: Engine, prompt: Sequence[int], num_tokens: int, options: Mapping[str, Any]) -> Output:
    """`model.generate` as people call it, plainly greedy whatever the model's generation config says."""
    inputs = torch.tensor([list(prompt)], device=engine.device)
    greedy: dict[str, Any] = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    with quiet(), _same_depth(engine.model):
        began = device_seconds(engine.device)
        output = engine.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, **greedy, **options
        )
        seconds = device_seconds(engine.device) - began
    return Output(tuple(output[0, len(prompt) :].tolist()), seconds)


def _peer_first_token(engine: Engine, prompt: Sequence[int], num_tokens: int, options: Mapping[str, Any]) -> float:
    """With room for all tokens: a static cache of another length would be compiled anew."""
    criteria = StoppingCriteriaList([partial(_is_longer, len(prompt))])
    return _run_peer(engine, prompt, num_tokens, {**options, "stopping_criteria": criteria}).call_seconds


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


def peer_ways(names: Iterable[str], num_layers: int, num_tokens: int, peer_tokens: int | None) -> list[Way]:
    """Fewer tokens for the slow ones; never for the baseline, whose speed all others are held against."""
    options: dict[str, dict[str, Any]] = {
        "eager": {},
        STATIC: {"cache_implementation": "static"},  # compiled by transformers itself on CUDA
        "early-exit": {"assistant_early_exit": max(1, num_layers * 2 // 3)},
        "lookup": {"prompt_lookup_num_tokens": 10},
    }
    return [
        Way(
            name,
            PEERS[name],
            True,
            options[name],
            num_tokens if name == STATIC else min(peer_tokens or num_tokens, num_tokens),
        )
        for name in names
    ]


def draft_model_way(model: Any, num_tokens: int) -> Way:
    """transformers' assisted generation with another, smaller model."""
    return Way("draft-model", "transformers draft model", True, {"assistant_model": model}, num_tokens)


def our_ways(variants: Mapping[str, Mapping[str, Any]], num_tokens: int) -> list[Way]:
    return [_our_way(name, method, num_tokens) for name, method in {OFF: {"strategy": OFF}, **variants}.items()]


def _our_way(name: str, method: Mapping[str, Any], num_tokens: int) -> Way:
    whole = resolve(method)
    vocabulary = options_for("drafter", "self", whole["settings"]).vocabulary or None
    drafter = whole["drafter"]
    return Way(name, f"selfdraft {name}", False, method, num_tokens, drafter=drafter, vocabulary=vocabulary)


def check_peers(names: Sequence[str]) -> list[str]:
    if list(names) == ["none"]:
        return []
    if "none" in names:
        raise OptionError(f"--peers {' '.join(names)}: none stands alone; leave it out, or give nothing else")
    for name in names:
        if name not in PEERS:
            raise unknown_name("peer", name, [*PEERS, "none"])
    return list(dict.fromkeys(names))


def default_peers(device_type: str) -> list[str]:
    """All of them on a GPU; elsewhere a static cache brings nothing but waiting."""
    return [name for name in PEERS if device_type == "cuda" or name != STATIC]


def name_method(method: Mapping[str, Any]) -> str:
    """A row name for the method options of the command: the methods that were named."""
    named = [method[axis] for axis in AXES if axis in method]
    return ", ".join(named) or DEFAULTS["strategy"]


def parse_variants(texts: Iterable[str], base: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`NAME: strategy=fixed fixed.skip=a4,m1-3` each; what a variant leaves open is as in `base`."""
    variants: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, method = _parse_variant(text, base)
        if name in variants or name == OFF:
            raise OptionError(f"two rows cannot both be named {name!r}; give --variant {text!r} another name")
        variants[name] = method
    return variants


def _parse_variant(text: str, base: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise OptionError(f"cannot read --variant {text!r}: {error}") from None
    if not (name and colon and words) or not all("=" in word for word in words):
        raise OptionError(
            f"cannot read --variant {text!r}; write NAME: AXIS=METHOD METHOD.OPTION=VALUE ..., for example "
            '"skip: strategy=fixed fixed.skip=a4,m1-3 tree=siblings"'
        )
    method = dict(base)
    settings = {key: dict(values) for key, values in base.get("settings", {}).items()}
    for word in words:
        key, _, value = word.partition("=")
        if "." in key:
            for owner, options in parse_settings([word]).items():
                settings.setdefault(owner, {}).update(options)
        elif key in AXES:
            method[key] = value
        else:
            raise unknown_name(f"axis in --variant {text!r}:", key, AXES)
    return name, {**method, "settings": settings}
