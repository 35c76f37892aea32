"""Session: texts that join and leave between rounds, each with its own options and method."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from ..errors import OptionError
from ..types import FinishReason, Generation, StepRecord
from .decode import Rounds
from .live import LiveText, Piece
from .method import Cohort
from .room import Room
from .state import KeptRound, State, steps_of
from .worth import Worth


class Rows:
    """Texts wait until there is room for them, are decoded together, and leave when they end.

    The cache is made where the rounds run, which is the thread of the first `step`. Engines on one device take turns,
    round by round: recordings share what they read and write. `is_open`: texts come at any time, not all at once.
    """

    def __init__(
        self, room: Room, worth: Worth | None, max_stall_seconds: float | None = None, is_open: bool = True
    ) -> None:
        self._is_open = is_open
        self._room, self._worth, self._max_stall_seconds = room, worth, max_stall_seconds
        self._waiting: deque[LiveText] = deque()
        self._live: list[LiveText] = []
        self._rounds: Rounds | None = None
        self._has_cancelled, self._asks = False, False  # whether texts were cancelled, or have functions to be asked

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._live)

    @property
    def cache_usage(self) -> float:
        return self._room.usage(self._live)

    def put(self, texts: Sequence[LiveText], cohort: Cohort) -> None:
        """Raise for texts that can never have room."""
        for text in texts:
            text.cohort = cohort
            self._asks |= text.is_unwanted is not None
            self._room.check(text, self._live)
        self._waiting.extend(texts)

    def cancel(self, text: LiveText) -> None:
        """It leaves before the next round, if it has not ended."""
        text.cancel()
        self._has_cancelled = True

    @property
    def _texts(self) -> list[LiveText]:
        return [*self._live, *self._waiting]

    def step(self) -> list[LiveText]:
        """One round of all that have a row; what it changed. Those that are no longer wanted leave before it."""
        try:
            self._ask()
            with self._room.runner.lock:
                return self._step()
        except BaseException:
            self.close()
            raise

    def _step(self) -> list[LiveText]:
        gone = self._let_go()
        self._admit()
        changed = self._live
        if self._rounds is not None and changed:
            self._rounds.step(self._is_open or bool(self._waiting))
        self._live = [text for text in changed if not text.has_ended]
        forget_methods([*gone, *changed])
        return [*gone, *changed]

    def _ask(self) -> None:
        """Whether texts are wanted: each of their callers' functions once."""
        texts = self._texts if self._asks else ()
        functions = {id(one.is_unwanted): one.is_unwanted for one in texts if one.is_unwanted is not None}
        unwanted = {number for number, is_unwanted in functions.items() if is_unwanted()}
        for text in self._texts if unwanted else ():
            if id(text.is_unwanted) in unwanted:
                self.cancel(text)

    def _let_go(self) -> list[LiveText]:
        """Cancelled since the last round."""
        gone = [text for text in self._texts if text.has_ended] if self._has_cancelled else []
        self._has_cancelled = False
        if gone:
            self._live = [text for text in self._live if not text.has_ended]
            self._waiting = deque(text for text in self._waiting if not text.has_ended)
            if self._rounds is not None:
                self._rounds.drop_finished()
        return gone

    def _admit(self) -> None:
        """As many as there is room for, in the order in which they came."""
        if not self._waiting:
            return
        count = self._room.make(list(itertools.islice(self._waiting, self._room.max_rows)), self._live)
        if not count:
            if not self._live:  # less memory is free than when it was let in: it could wait for ever
                self._room.check(self._waiting[0], [], again=True)
            return
        joining = [self._waiting.popleft() for _ in range(count)]
        if self._rounds is None:
            assert self._room.cache is not None
            room, state = self._room, State(self._room.cache)
            self._rounds = Rounds(room.runner, state, room.beginnings, self._worth, self._max_stall_seconds)
        self._live = [*self._live, *joining]
        for cohort, texts in itertools.groupby(joining, key=lambda text: text.cohort):
            self._rounds.join([text.sequence for text in texts], cohort)

    def close(self) -> None:
        """End what has not ended."""
        for text in self._texts:
            text.cancel()
        forget_methods(self._texts)
        self._live, self._waiting = [], deque()
        self._room.close()
        if self._rounds is not None:
            rounds, self._rounds = self._rounds, None
            with self._room.runner.lock:
                rounds.close()


def forget_methods(texts: Sequence[LiveText]) -> None:
    """Of those that have ended: they may be read much later, and would keep their model until then."""
    for text in texts:
        if text.has_ended:
            vars(text).pop("cohort", None)


@dataclass(frozen=True)
class Event:
    """What a round added to one text; `generation` is the whole of it once it has ended."""

    id: int
    pieces: tuple[Piece, ...] = ()
    generation: Generation | None = None
    rounds: tuple[KeptRound, ...] = field(default=(), repr=False)  # since the event before

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The rounds since the event before; several where text was held back."""
        return steps_of(self.id, self.rounds)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.generation is None else self.generation.finish_reason


class Session:
    """Made by `Engine.session`. Requests join with `add` and leave when they end or by `cancel`, between rounds.

    A text is the same alone, in any company, and whatever joins or leaves around it; with `acceptance="rejection"` as
    far as its drafts are. Leaving a `with` block ends all, and so does a round that fails.
    """

    def __init__(self, rows: Rows, read: Callable[..., tuple[list[LiveText], Cohort]]) -> None:
        self._rows, self._read = rows, read
        self._texts: dict[int, LiveText] = {}
        self._is_closed = False

    @overload
    def add(self, prompt: Any, emitted: Sequence[int] = (), n: None = None, **options: Any) -> int: ...

    @overload
    def add(self, prompt: Any, emitted: Sequence[int] = (), *, n: int, **options: Any) -> tuple[int, ...]: ...

    def add(
        self, prompt: Any, emitted: Sequence[int] = (), n: int | None = None, **options: Any
    ) -> int | tuple[int, ...]:
        """Ask for a text; its number, by which events name it. `options` are those of `Engine.generate`.

        `n`: several texts of the prompt, which is read once; a tuple of their numbers. Text i is that of `sequence=i`.
        `emitted`: tokens that another request with the same prompt and options had when it stopped. The text goes on
        from there as if nothing had happened (by `rejection` it would have drafted otherwise, and may read otherwise),
        and `generation` has all of them.
        """
        if self._is_closed:
            raise OptionError("this session is closed; open another one with engine.session()")
        texts, cohort = self._read(prompt, emitted, 1 if n is None else n, options)
        self._rows.put(texts, cohort)
        added = {text.sequence.sequence_id: text for text in texts}
        self._texts.update(added)
        return texts[0].sequence.sequence_id if n is None else tuple(added)

    def step(self) -> list[Event]:
        """One round of all texts that have a row; empty once there is nothing left to do."""
        try:
            changed = self._rows.step() if self._rows.has_work else []
        except BaseException:  # it is over for all of them
            self._texts.clear()
            raise
        return [event for event in map(self._event, changed) if event]

    def cancel(self, id: int) -> None:  # noqa: A002 - the word that callers know
        """The text ends before the next round, which tells so; what has ended stays as it is."""
        if id in self._texts:
            self._rows.cancel(self._texts[id])

    @property
    def num_open(self) -> int:
        """Texts that have not ended, waiting ones included."""
        return len(self._texts)

    @property
    def cache_usage(self) -> float:
        """The share of the memory there is for a cache that holds tokens; also for other threads to ask."""
        return self._rows.cache_usage

    def close(self) -> None:
        self._is_closed = True
        self._rows.close()
        self._texts.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _event(self, text: LiveText) -> Event | None:
        number, pieces = text.sequence.sequence_id, text.new_pieces()
        if text.has_ended:
            del self._texts[number]
            return Event(number, pieces, text.generation, text.new_rounds())
        return Event(number, pieces, rounds=text.new_rounds()) if pieces else None
