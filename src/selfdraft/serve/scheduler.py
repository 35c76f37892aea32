"""A thread in which the texts of all requests are decoded together, over `engine.session`.

Requests wait in a queue of bounded length and come in by turns of their clients, as rows get free. Nobody waits for a
reader: what is told of a text is put where its reader finds it. A round that fails ends no text: each goes on from what
was told of it, and where that fails again, alone, so that only the one that makes the model fail is told so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator

from ..engine.engine import Engine
from ..engine.session import Session
from ..errors import SelfdraftError
from .work import LateError, Text, Work

log = logging.getLogger("selfdraft.serve")
_MAX_FAILURES = 2
"""Of a request among others; then it is decoded alone."""
_MAX_FAILURES_ALONE = 2
_NAP = 0.05
"""Seconds between two looks at deadlines while nothing is decoded."""


class FullError(Exception):
    """As many requests wait as may; `retry_after`: seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting; try again later")
        self.retry_after = retry_after


class ClosedError(Exception):
    """The server takes no more requests."""


class BrokenError(Exception):
    """The model failed while it answered this request."""


class Queue:
    """Requests that wait, by turns of their clients."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Work]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def __iter__(self) -> Iterator[Work]:
        return (work for works in self._clients.values() for work in works)

    def put(self, work: Work) -> None:
        self._clients.setdefault(work.client, deque()).append(work)

    def next(self) -> Work | None:
        return next(iter(self._clients.values()))[0] if self._clients else None

    def take(self) -> Work:
        """The client's next request has to wait until all others had their turn."""
        client, works = self._clients.popitem(last=False)
        work = works.popleft()
        if works:
            self._clients[client] = works
        return work

    def drop(self, works: set[Work]) -> None:
        for client in list(self._clients):
            kept = deque(work for work in self._clients[client] if work not in works)
            if kept:
                self._clients[client] = kept
            else:
                del self._clients[client]


class Scheduler:
    """`max_rows` texts are decoded at a time, `max_waiting` requests may wait for that."""

    def __init__(self, engine: Engine, max_rows: int, max_waiting: int, max_stall_seconds: float | None = None) -> None:
        self._engine, self._max_rows, self._max_waiting = engine, max_rows, max_waiting
        self._max_stall_seconds = max_stall_seconds
        self._changed = threading.Condition()
        self._waiting, self._again = Queue(), deque[Work]()  # new ones; those that go on after a round that failed
        self._live: dict[int, tuple[Work, Text]] = {}  # by the session's numbers
        self._unwanted: set[Work] = set()
        self._is_draining, self._is_closed = False, False
        self._session: Session | None = None
        self._last_seconds = 1.0  # that a request took
        self._thread = threading.Thread(target=self._run, name="selfdraft-serve", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --------------------------------------------------------------------------------- of other threads

    def put(self, work: Work) -> None:
        """It will be told of its texts, or of an error; FullError, ClosedError: it will not."""
        with self._changed:
            if self._is_draining or not self._thread.is_alive():
                raise ClosedError("the server is shutting down")
            if len(self._waiting) >= self._max_waiting:
                raise FullError(max(1.0, self._last_seconds))
            self._waiting.put(work)
            self._changed.notify_all()

    def cancel(self, work: Work) -> None:
        """Nobody wants it any more: its rows are free before the next round."""
        with self._changed:
            if not work.is_over:
                self._unwanted.add(work)
                self._changed.notify_all()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        return self.is_running and not self._is_draining

    @property
    def num_running(self) -> int:
        """Texts that are being decoded."""
        return len(self._live)

    @property
    def cache_usage(self) -> float:
        """Of the memory there is for a cache."""
        session = self._session
        return 0.0 if session is None else session.cache_usage

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._again)

    def take_no_more(self) -> None:
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Take no more; what was taken is answered, as far as that goes in this time. Returns whether all was."""
        self.take_no_more()
        self._thread.join(seconds)
        is_done = not self.is_running
        self.stop()
        self._thread.join(seconds)
        return is_done

    def stop(self) -> None:
        """After this round; who has not been answered is told so."""
        with self._changed:
            self._is_draining = self._is_closed = True
            self._changed.notify_all()

    # --------------------------------------------------------------------------------- of its own thread

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            with self._changed:
                self._is_draining = True
                left = {*self._waiting, *self._again, *(work for work, _ in self._live.values())}
            for work in left:
                work.fail(ClosedError("the server was shut down before this was answered"))

    def _serve(self) -> None:
        while not self._is_over:
            try:
                with self._engine.session(self._max_rows, max_stall_seconds=self._max_stall_seconds) as session:
                    self._session = session
                    while self._wait():
                        self._let_go(session)
                        self._admit(session)
                        self._round(session)
            except Exception:
                log.exception("a round failed")
                self._after()
                time.sleep(_NAP)

    @property
    def _is_over(self) -> bool:
        return self._is_closed or (self._is_draining and not (self._live or self.num_waiting))

    def _wait(self) -> bool:
        """Until there is something to do; false: it is over."""
        with self._changed:
            while not (self._live or self.num_waiting or self._is_over):
                self._changed.wait()
        return not self._is_over

    def _let_go(self, session: Session) -> None:
        """Of requests that nobody wants, and of those whose time is over."""
        with self._changed:
            working = {work for work, _ in self._live.values()}
            late = {work for work in (*self._waiting, *self._again, *working) if work.is_late}
            gone, self._unwanted = self._unwanted | late, set()
            if not gone:
                return
            self._waiting.drop(gone)
            self._again = deque(work for work in self._again if work not in gone)
        for number in [number for number, (work, _) in self._live.items() if work in gone]:
            session.cancel(number)
            del self._live[number]
        for work in gone:
            work.fail(LateError("the time for this request is over") if work in late else ClosedError("cancelled"))

    def _admit(self, session: Session) -> None:
        """By turns, while there are rows; one that is decoded alone waits until the others have ended."""
        while True:
            with self._changed:
                work = self._again[0] if self._again else self._waiting.next()
                if work is None or not self._has_room(work):
                    return
                work = self._again.popleft() if self._again else self._waiting.take()
            try:
                self._add(session, work)
            except SelfdraftError as error:
                self._forget(session, work)
                work.fail(error)
            except Exception:
                log.exception("a request could not be added")
                self._forget(session, work)
                work.fail(BrokenError("the model failed on this request"))

    def _has_room(self, work: Work) -> bool:
        is_alone = any(one.num_failures >= _MAX_FAILURES for one, _ in self._live.values())
        if is_alone or work.num_failures >= _MAX_FAILURES:
            return not self._live
        return not self._live or len(self._live) + len(work.open_texts) <= self._max_rows

    def _add(self, session: Session, work: Work) -> None:
        """Together, so that the prompt is read once; each for itself where a round that failed has left them."""
        if not work.num_failures:
            numbers = session.add(work.prompt, n=len(work.texts), **work.options)
            self._live.update({number: (work, text) for number, text in zip(numbers, work.texts, strict=True)})
            return
        for text in work.open_texts:
            number = session.add(work.prompt, text.shown, **{**work.options, "sequence": text.index})
            self._live[number] = work, text

    def _forget(self, session: Session, work: Work) -> None:
        for number in [number for number, (one, _) in self._live.items() if one is work]:
            session.cancel(number)
            del self._live[number]

    def _round(self, session: Session) -> None:
        if not session.num_open:
            time.sleep(_NAP if self.num_waiting else 0)
        for event in session.step():
            if event.id not in self._live:  # cancelled
                continue
            work, text = self._live[event.id]
            if event.generation is not None:
                del self._live[event.id]
            work.num_failures_alone = 0
            work.told(text, event)
            if work.is_over:
                self._last_seconds = time.monotonic() - work.began

    def _after(self) -> None:
        """All that were decoded go on, but for those that have failed too often."""
        works = list(dict.fromkeys(work for work, _ in self._live.values()))
        is_alone, self._live = len(works) == 1, {}
        for work in works:
            work.num_failures += 1
            work.num_failures_alone += is_alone
            if work.num_failures_alone >= _MAX_FAILURES_ALONE:
                work.fail(BrokenError("the model failed on this request"))
        with self._changed:
            self._again.extendleft(reversed([work for work in works if not work.is_over]))
