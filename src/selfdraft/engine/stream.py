"""Stream: a running generation as an iterator of text chunks, and its results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ..types import Generation
from .live import LiveText, Piece
from .session import Rows

T = TypeVar("T")


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

    def __init__(self, texts: Sequence[LiveText], rows: Rows, is_batch: bool, worker: Executor) -> None:
        self.is_batch, self._texts, self._rows, self._worker = is_batch, texts, rows, worker
        self._is_cancelled = False

    def __repr__(self) -> str:
        num_tokens = sum(text.sequence.num_generated for text in self._texts)
        reasons = sorted({text.sequence.finish_reason or "running" for text in self._texts})
        prompts = f"{len(self._texts)} prompt{'s' * (len(self._texts) != 1)}"
        return f"Stream({prompts}, {num_tokens} new tokens, {', '.join(reasons)})"

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while self._goes_on():
                self._rows.step()
                yield from self._new_chunks()
            self._rows.close()
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

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *error: object) -> None:
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
            while self._goes_on():
                self._rows.step()
        finally:
            self.close()

    def cancel(self) -> None:
        """End after the current round; may be called from another thread."""
        self._is_cancelled = True

    def close(self) -> None:
        """Stop here. What was generated so far is kept, marked `cancelled` where it had not finished."""
        self._is_cancelled = True
        self._rows.close()

    def _goes_on(self) -> bool:
        return self._rows.has_work and not self._is_cancelled

    @property
    def generations(self) -> list[Generation]:
        return [text.generation for text in self._texts]

    @property
    def generation(self) -> Generation:
        """The result for a single prompt."""
        return self._texts[0].generation

    def _new_chunks(self) -> Iterator[Chunk]:
        for row, text in enumerate(self._texts):
            pieces = text.new_pieces()
            if pieces:
                yield Chunk(row, pieces)
