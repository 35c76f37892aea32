"""How far long work is: a callable (done, total or None, what) that a bar, a log or nothing may follow."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, perf_counter

Progress = Callable[[int, int | None, str], None]
Say = Callable[[str], None]
_SAY_SECONDS = 10.0


def no_progress(done: int, total: int | None, label: str) -> None:
    """Nobody watches."""


class LogProgress:
    """Progress in words, every few seconds; `what`: it is about."""

    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what, self._last = say, what, monotonic()

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if monotonic() - self._last > _SAY_SECONDS:
            self._last = monotonic()
            self._say(f"{self._what}: {label}, {done} of {total}")


class Budget:
    """`seconds` from now on, of which some are `spent` already; None: as many as it takes."""

    def __init__(self, seconds: float | None, spent: float = 0.0) -> None:
        self.seconds, self._began = float("inf") if seconds is None else seconds, perf_counter() - spent

    @property
    def spent(self) -> float:
        return perf_counter() - self._began

    def left(self, share: float = 1.0) -> float:
        """Of the first `share` of it."""
        return share * self.seconds - self.spent


class Steps:
    """Work in steps, within the first `share` of a budget: the next one is begun if it will be over by then.

    It is held to take as long as the last, or half of one that was longer.
    """

    def __init__(self, budget: Budget, share: float = 1.0) -> None:
        self._budget, self._share, self._last, self._usual = budget, share, budget.spent, 0.0

    def has_time(self) -> bool:
        """Asked before each step."""
        before, self._last = self._last, self._budget.spent
        self._usual = max(self._last - before, self._usual / 2)
        left = self._budget.left(self._share)
        return left > 0 and left >= self._usual
