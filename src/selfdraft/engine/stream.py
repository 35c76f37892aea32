"""Stream: a running generation as an iterator of text chunks, and its results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from ..options import GenerateOptions
from ..types import Generation, Source, StepRecord, TokenLogprobs
from .metrics import stats_of
from .state import TextSequence
from .text import TextTail

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """The text one token adds, empty while its character is unfinished; `logprobs` where the call asks for them."""

    text: str
    token: int
    source: Source
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Chunk:
    """What one round added to one sequence; `row` counts the prompts of the call."""

    row: int
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Stream:
    """Iterate for chunks; afterwards (or after `cancel`) `generation` and `generations` hold the results.

    `async for` does the same with the rounds in the engine's worker thread, where streams of one engine take turns.
    `with` and `async with` end the generation when they are left.
    """

    def __init__(
        self,
        sequences: Sequence[TextSequence],
        tails: Sequence[TextTail],
        rounds: Callable[[Callable[[], bool]], Generator[list[StepRecord], None, None]],
        options: GenerateOptions,
        is_batch: bool,
        worker: Executor,
    ) -> None:
        self.is_batch, self.seed, self._has_logprobs = is_batch, options.seed, options.logprobs is not None
        self._sequences, self._tails, self._worker = sequences, tails, worker
        self._shown = [0] * len(sequences)
        self._is_cancelled = False
        asked = options.cancel  # None, or a function; what it is beside that says nothing
        self._rounds = rounds(lambda: self._is_cancelled or (asked is not None and asked()))

    def __repr__(self) -> str:
        num_tokens = sum(sequence.num_generated for sequence in self._sequences)
        reasons = sorted({sequence.finish_reason or "running" for sequence in self._sequences})
        prompts = f"{len(self._sequences)} prompt{'s' * (len(self._sequences) != 1)}"
        return f"Stream({prompts}, {num_tokens} new tokens, {', '.join(reasons)})"

    def __iter__(self) -> Iterator[Chunk]:
        try:
            for _ in self._rounds:
                yield from self._new_chunks()
            yield from self._new_chunks()
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks = iter(self)
        try:
            while (chunk := await self._in_worker(partial(next, chunks, None))) is not None:
                yield chunk
        finally:
            await self._aclose()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aclose()

    async def _in_worker(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    async def _aclose(self) -> None:
        """A round that is running ends first: there is one worker."""
        self.cancel()
        await self._in_worker(self.close)

    def run(self) -> None:
        """Decode to the end without making chunks."""
        try:
            for _ in self._rounds:
                pass
        finally:
            self.close()

    def cancel(self) -> None:
        """End after the current round; may be called from another thread."""
        self._is_cancelled = True

    def close(self) -> None:
        """Stop here. What was generated so far is kept, marked `cancelled` where it had not finished."""
        self._is_cancelled = True
        self._rounds.close()
        for sequence in self._sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason = "cancelled"

    @property
    def generations(self) -> list[Generation]:
        return [self._generation(row) for row in range(len(self._sequences))]

    @property
    def generation(self) -> Generation:
        """The result for a single prompt."""
        return self._generation(0)

    def _generation(self, row: int) -> Generation:
        sequence = self._sequences[row]
        self._read_text(row)
        return Generation(
            text=self._tails[row].text,
            tokens=tuple(sequence.tokens[sequence.num_prompt_tokens :]),
            sources=tuple(sequence.sources),
            num_prompt_tokens=sequence.num_prompt_tokens,
            finish_reason=sequence.finish_reason or "cancelled",
            stats=stats_of(sequence),
            steps=tuple(sequence.steps),
            report=sequence.report,
            seed=self.seed,
            pieces=tuple(self._tails[row].pieces),
            logprobs=tuple(sequence.logprobs) if self._has_logprobs else None,
        )

    def _read_text(self, row: int) -> None:
        """Bring the tail up to date; with stop strings it already is."""
        sequence, tail = self._sequences[row], self._tails[row]
        for token in sequence.tokens[sequence.num_prompt_tokens + tail.num_tokens :]:
            tail.push(token)
        if sequence.finish_reason is not None:
            tail.flush()

    def _new_chunks(self) -> Iterator[Chunk]:
        for row, (sequence, tail) in enumerate(zip(self._sequences, self._tails, strict=True)):
            self._read_text(row)
            released = tail.num_released(has_ended=sequence.finish_reason is not None)
            span = range(self._shown[row], released)
            self._shown[row] = max(self._shown[row], released)
            if span:
                yield Chunk(row, tuple(self._piece(sequence, tail, index) for index in span))

    def _piece(self, sequence: TextSequence, tail: TextTail, index: int) -> Piece:
        token = sequence.tokens[sequence.num_prompt_tokens + index]
        logprobs = sequence.logprobs[index] if self._has_logprobs else None
        return Piece(tail.pieces[index], token, sequence.sources[index], logprobs)


def one_at_a_time(
    lock: AbstractContextManager[Any], rounds: Generator[list[StepRecord], None, None]
) -> Generator[list[StepRecord], None, None]:
    """Threads take turns, round by round, where passes are recorded: recordings share what they read and write."""
    try:
        while True:
            with lock:
                steps = next(rounds, None)
            if steps is None:
                return
            yield steps
    finally:
        with lock:
            rounds.close()
