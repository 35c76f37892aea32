"""Common beginnings: what another text has had read of a prompt is not read again.

Keys and values of a beginning depend on its tokens and the model alone. They come from a text that is being decoded
beside, or from a segment: what a text that has ended leaves here, in bounded memory, least recently used first out.
Rows refer to it where their passes can read it there, and so may live longer than its place here; others copy it.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..protocols import Cache, Runner
from .state import TextSequence

MIN_SHARED, MIN_SHARED_CPU = 64, 16
"""Tokens that are worth copying instead of reading."""
MIN_WAIT = 64
"""Tokens more than are known already for which a text waits until another one, which joins with it, is read."""
SHARE, MAX_BYTES = 0.1, 4 << 30
"""Of free memory, unless told otherwise."""
BLOCK, MOST_COMPARED = 16, 8
"""Tokens by which segments are found; of those that share all whole blocks, how many are looked at closely."""
_DENSE = torch.contiguous_format
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Segment:
    """The beginning of a text and its keys and values, which are never written again."""

    tokens: Tokens
    parts: Sequence[torch.Tensor]  # as `Cache.beginning` returns them
    num_bytes: int


class Segments:
    """Found by the tokens that a text begins with, of which `hashes_of` are given; the one used last comes last."""

    def __init__(self) -> None:
        self._all: OrderedDict[Segment, Sequence[int]] = OrderedDict()
        self._by_block: dict[int, dict[Segment, None]] = defaultdict(dict)  # of all blocks up to one: who has them
        self._by_end: dict[int, dict[Segment, None]] = defaultdict(dict)  # the same: who has no more whole ones
        self.num_bytes = 0

    def add(self, segment: Segment, hashes: Sequence[int]) -> None:
        self._all[segment] = hashes
        for one in hashes:
            self._by_block[one][segment] = None
        self._by_end[hashes[-1]][segment] = None
        self.num_bytes += segment.num_bytes

    def drop(self, segment: Segment) -> None:
        hashes = self._all.pop(segment)
        _leave(self._by_end, hashes[-1], segment)
        for one in hashes:
            _leave(self._by_block, one, segment)
        self.num_bytes -= segment.num_bytes

    def drop_oldest(self) -> None:
        self.drop(next(iter(self._all)))

    def use(self, segment: Segment) -> None:
        if segment in self._all:
            self._all.move_to_end(segment)

    def longest(self, tokens: Sequence[int], hashes: Iterable[int]) -> tuple[Segment | None, int]:
        """Whose beginning these tokens share, and how many of them; whole blocks at least."""
        shared = list(itertools.takewhile(self._by_block.__contains__, hashes))
        if not shared:
            return None, 0
        some, array = list(self._by_block[shared[-1]])[-MOST_COMPARED:], _array(tokens)
        length, _, segment = max((_common(array, one.tokens), place, one) for place, one in enumerate(some))
        return segment, length

    def drop_beginnings_of(self, tokens: Tokens, hashes: Sequence[int]) -> None:
        shorter = [one for number in hashes for one in self._by_end.get(number, ())]
        for segment in shorter:
            if _common(tokens, segment.tokens) == len(segment.tokens):
                self.drop(segment)


class Beginnings:
    """Those that the texts of an engine left. `max_bytes`: None for a share of what is free, 0 for none at all.

    Sequences of one request (`n`) share their prompt in any case.
    """

    def __init__(self, runner: Runner, max_bytes: int | None = None) -> None:
        self._runner, self._given = runner, max_bytes
        self._min_shared = MIN_SHARED_CPU if runner.device.type == "cpu" else MIN_SHARED
        self._segments, self._max_bytes = Segments(), max_bytes
        self._version: Hashable | None = None  # None: keys and values depend on more than tokens
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self._given != 0 and self._version is not None

    @property
    def num_bytes(self) -> int:
        return self._segments.num_bytes

    def another(self, is_on: bool) -> Beginnings:
        """A store of the same kind with nothing in it."""
        return Beginnings(self._runner, self._given if is_on else 0)

    def refresh(self) -> None:
        """Forget what was computed with other weights."""
        version = self._runner.weights_version
        if version != self._version:
            self.clear()
            self._version = version

    def clear(self) -> None:
        with self._lock:
            self._segments = Segments()

    def fill(self, cache: Cache, joined: Sequence[TextSequence], live: Sequence[TextSequence]) -> None:
        """Let these texts' rows begin with what is known of them, but for the last token; `live` are in the cache."""
        for sequence in joined:
            source, length = self._longest(sequence, live)
            if source is not None:
                cache.begin(sequence.row, source.parts if isinstance(source, Segment) else source.row, length)
                sequence.num_known = sequence.num_read = length

    def who_waits(self, joining: Sequence[TextSequence], live: Sequence[TextSequence]) -> set[int]:
        """The ids of those that share much more with another one of `joining` than with anything known so far."""
        waiting: set[int] = set()
        keys: set[Hashable] = set()
        for sequence in joining if len(joining) > 1 and self._version is not None else ():
            known = self._longest(sequence, live)[1]
            more = tuple(sequence.tokens[: known + MIN_WAIT])
            is_worth_it = self.is_on and len(sequence.tokens) > known + MIN_WAIT and more in keys
            if is_worth_it or (sequence.request in keys and known < sequence.num_cached):
                waiting.add(sequence.sequence_id)
            keys |= {sequence.request, more}
        return waiting

    def keep(self, cache: Cache, sequence: TextSequence) -> None:
        """The text has ended, and its row is about to be given up."""
        length = sequence.num_cached
        num_bytes = length * self._runner.slot_bytes
        if not self.is_on or length < self._min_shared or num_bytes > self._limit():
            return
        tokens = sequence.tokens[:length]
        array, hashes = _array(tokens), list(hashes_of(tokens))
        with self._lock:
            segments = self._segments
            known, num_known = segments.longest(tokens, hashes)
            if known is not None and num_known == length:
                segments.use(known)
                return
            segments.drop_beginnings_of(array, hashes)
            while segments.num_bytes + num_bytes > self._limit():
                segments.drop_oldest()
            parts = [part.clone(memory_format=_DENSE) for part in cache.beginning(sequence.row, length)]
            segments.add(Segment(array, parts, num_bytes), hashes)

    def _limit(self) -> int:
        if self._max_bytes is None:
            self._max_bytes = min(MAX_BYTES, int(SHARE * self._runner.free_bytes))
        return self._max_bytes

    def _longest(
        self, sequence: TextSequence, live: Sequence[TextSequence]
    ) -> tuple[Segment | TextSequence | None, int]:
        """What begins as this text, and how much of it may be taken."""
        if self._version is None or not (live or self.is_on):
            return None, 0
        tokens = sequence.tokens[: sequence.num_cached]
        found: list[tuple[int, int, Segment | TextSequence]] = []
        for place, other in enumerate(live):
            if other.request == sequence.request or (self.is_on and self._begins_alike(sequence, other)):
                length = _common(_array(tokens), _array(other.tokens[: other.num_cached]))
                found.append((length, -place, other))
        if self.is_on:
            with self._lock:
                segment, length = self._segments.longest(tokens, hashes_of(tokens))
                if segment is not None and length >= self._min_shared:
                    self._segments.use(segment)
                    found.append((length, 1, segment))  # before a row: it may be read where it is
        length, _, source = max(found, default=(0, 0, None))
        return (source, length) if length else (None, 0)

    def _begins_alike(self, one: TextSequence, other: TextSequence) -> bool:
        size = self._min_shared
        return min(one.num_cached, other.num_cached) >= size and one.tokens[:size] == other.tokens[:size]


def hashes_of(tokens: Sequence[int]) -> Iterator[int]:
    """Of the first block, the first two, ..."""
    known = 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        known = hash((known, *tokens[end - BLOCK : end]))
        yield known


def _leave(index: dict[int, dict[Segment, None]], number: int, segment: Segment) -> None:
    index[number].pop(segment, None)
    if not index[number]:
        del index[number]


def _array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int64)


def _common(one: Tokens, other: Tokens) -> int:
    """Tokens that both begin with."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
