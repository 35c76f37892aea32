"""Room: how many rows and slots the cache of some texts may have, by what is free on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..errors import OptionError
from ..protocols import Cache, Runner
from .beginnings import Beginnings
from .state import TextSequence

MAX_ROWS = 256
"""Texts decoded together, unless told otherwise."""
SHARE, SHARE_CPU = 0.8, 0.5
"""Of the memory that is free: what a cache may take. The rest is for passes, recordings and other programs."""
FIRST_ROWS = 16
"""Of a session that may have more: they come when they are needed."""
_GIB = 1 << 30


class Room:
    """The cache of some texts. It grows as they join, and makes all rows as long as the longest of them needs.

    Its bytes are counted before a text is let in. One that would need too many waits until others have left, and so do
    those who came later: nobody is overtaken. Growing needs room for the old cache beside the new one.
    """

    def __init__(
        self,
        runner: Runner,
        beginnings: Beginnings,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        first_rows: int = 1,
    ) -> None:
        self._runner, self._beginnings, self._max_bytes = runner, beginnings, max_bytes
        is_cpu = runner.device.type == "cpu"
        self.max_rows = max_rows or MAX_ROWS
        self._first_rows, self._share = min(first_rows, self.max_rows), SHARE_CPU if is_cpu else SHARE
        self._allowed = 0  # when it was last asked: of thousands of texts one or two ask
        self.cache: Cache | None = None

    def check(self, sequence: TextSequence) -> None:
        """Raise for a text that could not even be decoded alone."""
        needed = self._bytes(1, self._runner.cache_slots(sequence.num_slots))
        if needed > self._allowed:
            self._allowed = self._limit()
        if needed > self._allowed:
            given = "cache_bytes allows" if self._max_bytes else "the memory that is free allows"
            raise OptionError(
                f"a prompt of {sequence.num_prompt_tokens} tokens with max_new_tokens={sequence.max_new_tokens} needs "
                f"{needed / _GIB:.3g} GiB of cache, and {given} {self._allowed / _GIB:.3g} GiB; lower "
                "max_new_tokens, shorten the prompt, or free memory"
            )

    def make(self, waiting: Sequence[int], live: Sequence[TextSequence]) -> int:
        """How many of those that wait join now, the first ones; `waiting`: slots that each needs.

        The cache has room for them then.
        """
        longest = list(itertools.accumulate(waiting[: self.max_rows - len(live)], max))
        limit = self._limit() if longest else 0
        for count in range(len(longest), 0, -1):
            rows = max([len(live) + count, *(sequence.row + 1 for sequence in live)])
            slots = self._runner.cache_slots(max([longest[count - 1], *(sequence.num_slots for sequence in live)]))
            if self._has_room(rows, slots, limit, is_empty=not live):
                return count
        return 0

    def close(self) -> None:
        self.cache = None

    def _has_room(self, rows: int, slots: int, limit: int, is_empty: bool) -> bool:
        """Whether there is, or it could be made."""
        cache = self.cache
        if cache is not None and rows <= cache.num_rows_allocated and slots <= cache.num_slots:
            return True
        beside = 0 if cache is None or is_empty else cache.num_bytes
        for size in (self._generous(rows, slots), (rows, slots)):
            if size[0] <= self.max_rows and self._bytes(*size) + beside <= limit:
                self._resize(*size, is_empty)
                return True
        return False

    def _generous(self, rows: int, slots: int) -> tuple[int, int]:
        """So that it does not grow at every step."""
        if self.cache is None:
            return max(rows, self._first_rows), slots
        known_rows, known_slots = self.cache.num_rows_allocated, self.cache.num_slots
        rows = known_rows if rows <= known_rows else min(self.max_rows, max(rows, 2 * known_rows))
        return rows, self._runner.cache_slots(max(slots, known_slots * 3 // 2)) if slots > known_slots else known_slots

    def _resize(self, rows: int, slots: int, is_empty: bool) -> None:
        if self._bytes(rows, slots) > self._runner.free_bytes:
            self._beginnings.clear()
        if self.cache is None:
            self.cache = self._runner.new_cache(rows, slots)
        else:
            self.cache.resize(rows, slots, is_empty)

    def _bytes(self, rows: int, slots: int) -> int:
        return rows * slots * self._runner.slot_bytes

    def _limit(self) -> int:
        """Bytes that the cache may have."""
        if self._max_bytes is not None:
            return self._max_bytes
        own = 0 if self.cache is None else self.cache.num_bytes
        return own + int(self._share * (self._runner.free_bytes + self._beginnings.num_bytes))
