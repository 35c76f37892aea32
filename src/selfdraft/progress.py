"""How far long work is: a callable (done, total or None, what) that a bar, a log or nothing may follow."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int | None, str], None]
Say = Callable[[str], None]
_SAY_SECONDS = 10.0


def no_progress(done: int, total: int | None, label: str) -> None:
    """Nobody watches."""


class LogProgress:
    """Progress in words, every few seconds; `what`: it is about."""

    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what, self._last = say, what, time.monotonic()

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if time.monotonic() - self._last > _SAY_SECONDS:
            self._last = time.monotonic()
            self._say(f"{self._what}: {label}, {done} of {total}")


class Deadline:
    """`seconds` from `began` on; None: there is none."""

    def __init__(self, seconds: float | None, began: float | None = None) -> None:
        self.seconds, self._began = seconds, time.perf_counter() if began is None else began

    @property
    def seconds_left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - (time.perf_counter() - self._began)

    @property
    def is_over(self) -> bool:
        return self.seconds_left < 0
