"""How a benchmark keeps its time: it begins no prompt too late, and says how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Say = Callable[[str], None]
_SAY_SECONDS = 10.0


@dataclass(frozen=True)
class Pace:
    """`began`: when the command did; `seconds`: begin nothing later than so long after it."""

    began: float
    seconds: float | None
    say: Say

    @property
    def seconds_left(self) -> float:
        return float("inf") if self.seconds is None else self.began + self.seconds - time.perf_counter()

    @property
    def is_late(self) -> bool:
        return self.seconds_left < 0

    def share(self, part: float) -> Pace:
        """Begin nothing later than this part of the time that is left."""
        now = time.perf_counter()
        return Pace(now, None if self.seconds is None else part * max(0.0, self.seconds_left), self.say)

    def each(self, items: Sequence[Item], what: str) -> Iterator[Item]:
        """Until time is up; the first in any case."""
        began = time.perf_counter()
        for count, item in enumerate(items):
            if count and self.is_late:
                self.say(f"time is up after {count} of {len(items)} {what}")
                return
            yield item
            self._tell(count + 1, len(items), began, what)

    def _tell(self, count: int, total: int, began: float, what: str) -> None:
        left = (time.perf_counter() - began) / count * (total - count)
        left = min(left, max(0.0, self.seconds_left))
        self.say(f"{count}/{total} {what}, about {left / 60:.1f} minutes left")


class Told:
    """A progress bar in words, now and then; `what`: it is about."""

    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what, self._last = say, what, time.monotonic()

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if time.monotonic() - self._last > _SAY_SECONDS:
            self._last = time.monotonic()
            self._say(f"{self._what}: {label}, {done} of {total}")
