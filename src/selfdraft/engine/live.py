"""One text in the making as its reader sees it: pieces as they come, and what it is in the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..options import GenerateOptions
from ..types import Generation, Source, TokenLogprobs
from .method import Cohort
from .metrics import stats_of
from .state import KeptRound, TextSequence, steps_of
from .text import TextTail


@dataclass(frozen=True)
class Piece:
    """The text one token adds, empty while its character is unfinished; `logprobs` where the call asks for them."""

    text: str
    token: int
    source: Source
    logprobs: TokenLogprobs | None = None


class LiveText:
    """A sequence, how it reads, and how much of it has been shown: what was emitted elsewhere has been."""

    cohort: Cohort  # known when it is put into rows

    def __init__(self, sequence: TextSequence, tail: TextTail, options: GenerateOptions, packed_bytes: int = 0) -> None:
        self.sequence, self.tail, self._packed_bytes = sequence, tail, packed_bytes
        self.is_unwanted = options.cancel  # the caller's own function, which is asked once a round
        self._seed, self._has_logprobs = options.seed, options.logprobs is not None
        self._num_shown, self._num_rounds_shown = len(sequence.emitted), 0
        for token in sequence.emitted[tail.num_tokens :]:
            tail.push(token)

    @property
    def has_ended(self) -> bool:
        return self.sequence.finish_reason is not None

    def cancel(self) -> None:
        if not self.has_ended:
            self.sequence.finish_reason = "cancelled"

    def new_pieces(self) -> tuple[Piece, ...]:
        """What can be shown since it was last asked for."""
        self._read()
        released = self.tail.num_released(has_ended=self.has_ended)
        span = range(self._num_shown, released)
        self._num_shown = max(self._num_shown, released)
        return tuple(map(self._piece, span))

    def new_rounds(self) -> tuple[KeptRound, ...]:
        """Since it was last asked for."""
        first, self._num_rounds_shown = self._num_rounds_shown, len(self.sequence.rounds)
        return tuple(self.sequence.rounds[first:])

    @property
    def generation(self) -> Generation:
        sequence = self.sequence
        tokens = tuple(sequence.tokens[sequence.num_prompt_tokens :])
        text = self.tail.at_once(tokens) if self.has_ended else None
        if text is None:
            self._read()
        return Generation(
            text=self.tail.text if text is None else text,
            tokens=tokens,
            sources=tuple(sequence.sources),
            num_prompt_tokens=sequence.num_prompt_tokens,
            finish_reason=sequence.finish_reason or "cancelled",
            stats=stats_of(sequence, self._packed_bytes),
            steps=partial(steps_of, sequence.sequence_id, tuple(sequence.rounds)),
            report=sequence.report,
            seed=self._seed,
            pieces=tuple(self.tail.pieces) if text is None else self._pieces,
            logprobs=tuple(sequence.logprobs) if self._has_logprobs else None,
        )

    def _pieces(self) -> tuple[str, ...]:
        self._read()
        return tuple(self.tail.pieces)

    def _read(self) -> None:
        """Bring the tail up to date; with stop strings it already is."""
        sequence, tail = self.sequence, self.tail
        for token in sequence.tokens[sequence.num_prompt_tokens + tail.num_tokens :]:
            tail.push(token)
        if self.has_ended:
            tail.flush()

    def _piece(self, index: int) -> Piece:
        sequence = self.sequence
        token = sequence.tokens[sequence.num_prompt_tokens + index]
        logprobs = sequence.logprobs[index - len(sequence.emitted)] if self._has_logprobs else None
        return Piece(self.tail.pieces[index], token, sequence.sources[index], logprobs)
