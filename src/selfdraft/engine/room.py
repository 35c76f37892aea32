"""Room: how many rows and slots the cache of some texts may have, by what is free on the device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..errors import OptionError
from ..protocols import Cache, Runner
from ..types import OFF
from .beginnings import Beginnings
from .live import LiveText

MAX_ROWS = 256
"""Texts decoded together, unless told otherwise."""
SHARE, SHARE_CPU = 0.8, 0.5
"""Of the memory that is free: what a cache may take. The rest is for passes, recordings and other programs."""
FIRST_ROWS = 16
"""Of a session that may have more: they come when they are needed."""
_GIB = 1 << 30


class Room:
    """The cache of some texts. It grows as they join, and makes all rows as long as the longest of them needs.

    Its bytes are counted before a text is let in, with those of a draft model's cache, which is as long and has a row
    for each text that it drafts. A text that would need too many waits until others have left, and so do those who came
    later: nobody is overtaken. Growing needs room for the old cache beside the new one.
    """

    def __init__(
        self,
        runner: Runner,
        beginnings: Beginnings,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        first_rows: int = 1,
    ) -> None:
        self.runner, self.beginnings, self._max_bytes = runner, beginnings, max_bytes
        is_cpu = runner.device.type == "cpu"
        self.max_rows = max_rows or MAX_ROWS
        self._first_rows, self._share = min(first_rows, self.max_rows), SHARE_CPU if is_cpu else SHARE
        self._allowed = 0  # when it was last asked: of thousands of texts one or two ask
        self._refused: list[int] = []  # who waited first when there was no room, and beside whom
        self.cache: Cache | None = None

    def check(self, text: LiveText, live: Sequence[LiveText], again: bool = False) -> None:
        """Raise for a text that could not even be decoded alone; `again`: by what is free now."""
        sequence, drafting = text.sequence, text.cohort.draft_slot_bytes
        slots = self.runner.cache_slots(sequence.num_slots)
        needed = self._bytes(1, slots, drafting)
        if again or needed > self._allowed:
            self._allowed = self._limit(self._held_bytes(live), self.runner.free_bytes)
        if needed > self._allowed:
            given = "cache_bytes allows" if self._max_bytes else "the memory that is free allows"
            some = f" ({slots * drafting / _GIB:.3g} GiB of it for the draft model)" if drafting else ""
            raise OptionError(
                f"a prompt of {sequence.num_prompt_tokens} tokens with max_new_tokens={sequence.max_new_tokens} needs "
                f"{needed / _GIB:.3g} GiB of cache{some}, and {given} {self._allowed / _GIB:.3g} GiB; lower "
                "max_new_tokens, shorten the prompt, or free memory"
            )

    def make(self, waiting: Sequence[LiveText], live: Sequence[LiveText]) -> int:
        """How many of those that wait join now, the first ones. The cache has room for them then."""
        state = [text.sequence.sequence_id for text in (*waiting[:1], *live)]
        if live and state == self._refused:
            return 0
        texts = [*live, *waiting[: self.max_rows - len(live)]]
        longest = list(itertools.accumulate((text.sequence.num_slots for text in texts), max))
        drafting = list(itertools.accumulate(text.cohort.draft_slot_bytes for text in texts))
        num_taken, held = max((text.sequence.row + 1 for text in live), default=0), self._held_bytes(live)
        free = self.runner.free_bytes if len(texts) > len(live) else 0
        limit = self._limit(held, free)
        for count in range(len(texts), len(live), -1):
            size = max(count, num_taken), self.runner.cache_slots(longest[count - 1])
            if self._has_room(*size, drafting[count - 1], held + free, limit, is_empty=not live):
                return count - len(live)
        self._refused = state
        return 0

    def usage(self, live: Sequence[LiveText]) -> float:
        """The share of the bytes that a cache may take in which these texts have tokens."""
        cache = self.cache
        limit = self._limit(0 if cache is None else cache.num_bytes, self.runner.free_bytes)
        return sum(len(text.sequence.tokens) for text in live) * self.runner.slot_bytes / max(limit, 1)

    def close(self) -> None:
        self.cache = None

    def _has_room(self, rows: int, slots: int, drafting: int, at_hand: int, limit: int, is_empty: bool) -> bool:
        """Whether there is, or it could be made; `drafting`: bytes that drafts need for one slot of all rows.

        `at_hand`: bytes that caches have, and what is free.
        """
        cache = self.cache
        known = None if cache is None else (cache.num_rows_allocated, cache.num_slots)
        for size in (self._generous(rows, slots), (rows, slots)):
            if size == known and not drafting:
                return True
            beside = 0 if cache is None or is_empty or size == known else cache.num_bytes
            needed = self._bytes(*size, drafting) + beside
            if size[0] <= self.max_rows and needed <= limit:
                if needed > at_hand:
                    self.beginnings.clear()
                if size != known:
                    self._resize(*size, is_empty)
                return True
        return False

    def _generous(self, rows: int, slots: int) -> tuple[int, int]:
        """So that it does not grow at every step."""
        if self.cache is None:
            return max(rows, self._first_rows), slots
        known_rows, known_slots = self.cache.num_rows_allocated, self.cache.num_slots
        rows = known_rows if rows <= known_rows else min(self.max_rows, max(rows, 2 * known_rows))
        return rows, self.runner.cache_slots(max(slots, known_slots * 3 // 2)) if slots > known_slots else known_slots

    def _resize(self, rows: int, slots: int, is_empty: bool) -> None:
        if self.cache is None:
            self.cache = self.runner.new_cache(rows, slots)
            self.cache.stores_apart = self._max_bytes is None  # else there may be no more than that
        else:
            self.cache.resize(rows, slots, is_empty)

    def _bytes(self, rows: int, slots: int, drafting: int) -> int:
        return slots * (rows * self.runner.slot_bytes + drafting)

    def _held_bytes(self, live: Sequence[LiveText]) -> int:
        """By the cache and those of draft models."""
        ids = {text.sequence.sequence_id for text in live}
        drafters = {text.cohort.method.drafter_of(OFF) for text in live}
        own = 0 if self.cache is None else self.cache.num_bytes
        return own + sum(drafter.held_bytes(ids) for drafter in drafters)

    def _limit(self, held: int, free: int) -> int:
        """Bytes that caches may have."""
        if self._max_bytes is not None:
            return self._max_bytes
        return held + int(self._share * (free + self.beginnings.num_bytes))
