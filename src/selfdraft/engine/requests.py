"""How a text begins: a prompt and options become a sequence, its stop rules, and how it reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..errors import OptionError
from ..options import GenerateOptions
from ..protocols import Runner
from .live import LiveText
from .sampling import Sampler, check_processors, make_sampler
from .state import RowRules, TextSequence, never_stops
from .text import TextTail, check_prompt


class Requests:
    """Of one model."""

    def __init__(self, model: Any, runner: Runner, tokenizer: Any) -> None:
        self._model, self._runner, self._tokenizer = model, runner, tokenizer
        self._sequence_ids = itertools.count()
        self._decode = partial(decode, tokenizer)  # a text that is read later must not keep the model

    @property
    def eos_tokens(self) -> frozenset[int]:
        ids = getattr(getattr(self._model, "generation_config", None), "eos_token_id", None)
        if ids is None:
            ids = getattr(self._tokenizer, "eos_token_id", None)
        return frozenset([ids] if isinstance(ids, int) else ids or ())

    def check(self, settings: GenerateOptions) -> None:
        check_processors(settings.processors)
        if settings.stop and self._tokenizer is None:
            raise OptionError("stop strings need a tokenizer; build the engine as Engine(model, tokenizer)")

    def check_tokens(self, prompt: Sequence[int], *outputs: Sequence[int]) -> None:
        check_prompt(prompt, self._runner.vocab_size, self._runner.context_length)
        for tokens in outputs:
            check_prompt(tokens, self._runner.vocab_size, None)

    def sampler(self, settings: GenerateOptions, rules: Sequence[RowRules] | None = None) -> Sampler:
        return make_sampler(settings, rules[0].eos_tokens if rules else self.eos_tokens, self._runner.vocab_size)

    def texts(
        self,
        prompts: Sequence[Sequence[int]],
        settings: GenerateOptions,
        n: int = 1,
        rules: Sequence[RowRules] | None = None,
        emitted: Sequence[int] = (),
    ) -> list[LiveText]:
        """`n` of each prompt, one after the other; they go on after what was emitted elsewhere."""
        texts: list[LiveText] = []
        eos_tokens, marks = self.eos_tokens, self._marks
        for place, tokens in enumerate(prompts):
            self.check_tokens(tokens, emitted)
            request = -1
            for row in range(place * n, place * n + n):
                tail = TextTail(self._decode, settings.stop, marks)
                own = rules[row] if rules else RowRules(eos_tokens, tail.push if settings.stop else never_stops)
                sequence = self._sequence(tokens, settings, row, own, emitted, request)
                texts.append(LiveText(sequence, tail, settings, self._runner.packed_bytes))
                check_emitted(sequence, tail.is_stopped)
                request = sequence.request
        return texts

    def _sequence(
        self,
        prompt: Sequence[int],
        settings: GenerateOptions,
        row: int,
        own: RowRules,
        emitted: Sequence[int],
        request: int,
    ) -> TextSequence:
        """A text that begins after `prompt`, its stop rules set."""
        room = (self._runner.context_length or len(prompt) + settings.max_new_tokens) - len(prompt)
        return TextSequence(
            sequence_id=next(self._sequence_ids),
            tokens=list(prompt),
            max_new_tokens=min(settings.max_new_tokens, room),
            ends_at="context" if room < settings.max_new_tokens else own.ends_at,
            noise_sequence=settings.sequence + row,
            seed=settings.seed,
            eos_tokens=own.eos_tokens,
            stops_behind=own.stops_behind,
            lead=own.lead,
            emitted=tuple(emitted),
            request=request,
        )

    @property
    def _marks(self) -> frozenset[int] | None:
        """See `TextTail`; without a tokenizer there is no text to be in doubt about.

        A decoder of bytes strips no space after any token.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if self._tokenizer is None or type(getattr(backend, "decoder", None)).__name__ == "ByteLevel":
            return frozenset()
        known = getattr(self._tokenizer, "added_tokens_decoder", None)
        return None if known is None else frozenset(known)


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    if tokenizer is None:
        return ""
    text: str = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def check_emitted(sequence: TextSequence, is_stopped: bool) -> None:
    """Raise where what was emitted elsewhere is a whole text: nothing can go on from there."""
    count, last = len(sequence.emitted), sequence.emitted[-1:]
    reason = None
    if count >= sequence.max_new_tokens:
        what = "the model's context" if sequence.ends_at == "context" else "max_new_tokens"
        reason = f"{what} allows {sequence.max_new_tokens}"
    elif not sequence.eos_tokens.isdisjoint(last):
        reason = f"the last one, {last[0]}, ends texts"
    elif is_stopped:
        reason = "they hold a stop string"
    if count and reason:
        raise OptionError(f"{count} tokens were emitted, and {reason}; the text is complete")
