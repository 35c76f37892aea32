"""What `selfdraft generate --compare` sets a text against, and what it says of both.

What was drafted is set against plain decoding, plain decoding against transformers' own `model.generate`. Where that is
asked for, drafts are set against both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..engine.audit import rule_for
from ..engine.engine import Engine
from ..engine.metrics import Comparison
from ..engine.sampling import Sampler
from ..engine.text import OnePrompt, encode_prompts
from ..measure.peers import transformers_text
from ..options import GenerateOptions, make
from ..types import Generation, Source, Stats

WARM_UP_TOKENS = 8
_SAME_NAMES, _OF_DRAWING = ("repetition_penalty", "min_new_tokens"), ("temperature", "top_k", "top_p", "min_p")
"""Options that transformers calls as we do."""


@dataclass(frozen=True)
class Compared:
    """A text and the other one. `comparison`: None where both were drawn, each with its own random numbers.

    `third`: as transformers wrote it beside both.
    """

    generation: Generation
    other: Generation
    comparison: Comparison | None
    is_plain: bool
    third: Generation | None = None

    @property
    def is_different(self) -> bool:
        return self.comparison is not None and self.comparison.verdict == "different"

    @property
    def speedup(self) -> float:
        speed = _speed(self.other.stats, self.is_plain)
        return _speed(self.generation.stats, self.is_plain) / speed if speed else 0.0

    @property
    def speedup_over_transformers(self) -> float | None:
        """Of whole calls, the prompt included."""
        speed = _speed(self.third.stats, is_of_calls=True) if self.third else 0.0
        return _speed(self.generation.stats, is_of_calls=True) / speed if speed else None

    def lines(self) -> Iterator[str]:
        yield row("transformers" if self.is_plain else "plain", self.other, self.is_plain)
        if self.third:
            yield row("transformers", self.third, is_of_calls=True)
        yield f"outputs: {_comparison_text(self.comparison)}"
        calls = " (whole calls, the prompt included)" if self.is_plain else ""
        why = f" (slower: {self._why_slower()})" if self.speedup < 1 and self.generation.stats.num_draft_steps else ""
        yield f"speed-up: {self.speedup:.2f}x{calls}{why}"
        if over := self.speedup_over_transformers:
            yield f"over transformers' generate: {over:.2f}x (whole calls, the prompt included)"

    def document(self) -> dict[str, Any]:
        over = self.speedup_over_transformers
        return {
            "transformers" if self.is_plain else "plain": self.other,
            "comparison": self.comparison.verdict if self.comparison else None,
            "first_difference": self.comparison.first_difference if self.comparison else None,
            "comparison_reason": self.comparison.reason if self.comparison else None,
            "speedup": self.speedup,
            **({"transformers": self.third, "speedup_over_transformers": over} if self.third else {}),
        }

    def _why_slower(self) -> str:
        """The measured costs that did not pay, in target passes of one token."""
        stats, plain = self.generation.stats, self.other.stats
        plain_pass = plain.decode_seconds / max(plain.num_target_passes, 1)
        draft = stats.draft_seconds / max(stats.num_draft_steps, 1) / plain_pass
        verify = stats.verify_seconds / max(stats.num_target_passes, 1) / plain_pass
        return (
            f"a draft token costs {draft:.2f} and a verification {verify:.2f} of a plain pass on this machine, "
            f"too much for {stats.mean_generated_length:.2f} tokens a round"
        )


class Baseline:
    """What else writes the text: `write` does it, and `write_third` what is set beside both."""

    def __init__(self, engine: Engine, prompt: OnePrompt, call: Mapping[str, Any], transformers: bool = False) -> None:
        self.engine, self.prompt, self.call = engine, prompt, call
        self.is_plain = engine.names()["strategy"] == "off"
        self.has_third = transformers and not self.is_plain

    def compare(self, generation: Generation, other: Generation, third: Generation | None = None) -> Compared:
        settings = make(GenerateOptions, self.call, "generate")
        is_drawn = settings.temperature > 0 if self.is_plain else self._rule(settings) != "choice"
        comparison = None if is_drawn else self.engine.compare(self.prompt, other, generation, **self.call)
        return Compared(generation, other, comparison, self.is_plain, third)

    def _rule(self, settings: GenerateOptions) -> str:
        return rule_for(self.engine.names()["acceptance"], settings)

    def warm_up(self) -> None:
        """With the whole text where passes are recorded: all that is recorded on first use is there then."""
        is_recording = self.engine.runner.is_recording
        call = self.call if is_recording else {**self.call, "max_new_tokens": WARM_UP_TOKENS, "min_new_tokens": 0}
        self.engine.generate(self.prompt, **call)
        self._write(call)
        if self.has_third:
            self._write_by_transformers(call)

    def write(self) -> Generation:
        return self._write(self.call)

    def write_third(self) -> Generation | None:
        return self._write_by_transformers(self.call) if self.has_third else None

    def _write(self, call: Mapping[str, Any]) -> Generation:
        if self.is_plain:
            return self._write_by_transformers(call)
        found: Generation = self.engine.generate(self.prompt, **call, strategy="off")
        return found

    def _write_by_transformers(self, call: Mapping[str, Any]) -> Generation:
        (tokens,), _ = encode_prompts(self.prompt, self.engine.tokenizer)
        settings = make(GenerateOptions, call, "generate")
        room = (self.engine.context_length or sys.maxsize) - len(tokens)
        names = (*_SAME_NAMES, *_OF_DRAWING) if settings.temperature else _SAME_NAMES
        options = {name: getattr(settings, name) for name in names}
        options |= {"max_new_tokens": min(settings.max_new_tokens, room), "do_sample": settings.temperature > 0}
        if settings.logit_bias:
            options["sequence_bias"] = {(token,): bias for token, bias in settings.logit_bias}
        if settings.presence_penalty or settings.frequency_penalty:
            options["logits_processor"] = [_penalties(settings, len(tokens))]
        if settings.stop:
            options |= {"stop_strings": list(settings.stop), "tokenizer": self.engine.tokenizer}
        return _as_ours(self.engine, len(tokens), *transformers_text(self.engine, tokens, **options))


def _penalties(settings: GenerateOptions, num_prompt_tokens: int) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """The penalties that transformers lacks, as a processor of it."""
    names = ("presence_penalty", "frequency_penalty")
    sampler = Sampler(GenerateOptions(**{name: getattr(settings, name) for name in names}))

    def penalise(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        num_generated = torch.full((len(tokens),), tokens.shape[1] - num_prompt_tokens, device=scores.device)
        return sampler.apply_prefix_rules(scores, tokens.tolist(), num_generated)

    return penalise


def _as_ours(engine: Engine, num_prompt_tokens: int, tokens: tuple[int, ...], seconds: float) -> Generation:
    """A text of transformers. Its seconds are those of the whole call: nothing else is known from outside."""
    text, count = engine.tokenizer.decode(tokens, skip_special_tokens=True), len(tokens)
    sources: list[Source] = ["target"] * count
    stats = Stats(count, count, count, 0, 0, 0.0, 1.0, 0, 0.0, seconds, 0.0, 0.0, 0.0, seconds, count / seconds)
    return Generation(text, tokens, tuple(sources), num_prompt_tokens, "length", stats)


HEADER = f"{'':12}{'tokens/s':>9} {'tokens':>7} {'passes':>7} {'acceptance':>11} {'mean length':>12}"


def row(name: str, generation: Generation, is_of_calls: bool = False) -> str:
    stats = generation.stats
    acceptance = f"{stats.acceptance_rate:.0%}" if stats.num_draft_steps else "-"
    return (
        f"{name:12}{_speed(stats, is_of_calls):9.1f} {stats.num_tokens:7d} {stats.num_target_passes:7d} "
        f"{acceptance:>11} {stats.mean_generated_length:12.2f}"
    )


def _speed(stats: Stats, is_of_calls: bool) -> float:
    """Tokens per second of decoding, or with the pass of the prompt."""
    seconds = stats.prefill_seconds + stats.decode_seconds
    return stats.num_tokens / seconds if is_of_calls and seconds else stats.tokens_per_second


def _comparison_text(comparison: Comparison | None) -> str:
    if comparison is None:
        return "drawn with different random numbers, so that the texts are not compared"
    if comparison.verdict == "equal":
        return "equal, token for token"
    gap = "" if comparison.gap is None else f"; the target's scores differ by {comparison.gap:.2g} there"
    reason = "" if comparison.reason is None else f"; {comparison.reason}"
    return f"{comparison.verdict} from token {comparison.first_difference} on{gap}{reason}"
