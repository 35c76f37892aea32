"""How far long work is: a callable (done, total or None, what) that a bar, a log or nothing may follow; and silence."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter

Progress = Callable[[int, int | None, str], None]
Say = Callable[[str], None]
_SAY_SECONDS = 10.0
_quiet_lock = threading.RLock()


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

    It is held to take as long as the last, or half of one that was longer, where no seconds are `expected`.
    """

    def __init__(self, budget: Budget, share: float = 1.0) -> None:
        self._budget, self._share, self._last, self._usual = budget, share, budget.spent, 0.0

    def has_time(self, expected: float | None = None) -> bool:
        """Asked before each step."""
        before, self._last = self._last, self._budget.spent
        self._usual = max(self._last - before, self._usual / 2)
        left = self._budget.left(self._share)
        return left > 0 and left >= (self._usual if expected is None else expected)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep log lines (also of what transformers imports) and progress bars off the screen, one thread at a time."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    with _quiet_lock:
        level, has_bars = logging.root.manager.disable, is_progress_bar_enabled()
        logging.disable(logging.WARNING)
        disable_progress_bar()
        try:
            # One of the bars cannot be switched off; it writes to what sys.stderr is at that moment.
            with contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            logging.disable(level)
            if has_bars:
                enable_progress_bar()
