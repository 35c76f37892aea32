"""Common beginnings: what another text has had read of a prompt is not read again.

Keys and values of a beginning depend on its tokens and the model alone. They come from a text that is being decoded
beside, or from segments: what texts that have ended leave here, in bounded memory, least recently used first out. What
several texts begin with is one segment, what each goes on with another one. Rows refer to the first segment where
their passes can read it there, and so it may live longer than its place here; the others are copied.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

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
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of one or more texts, from slot `start` on, and its keys and values, which are never written again."""

    start: int
    tokens: Tokens
    parts: Sequence[torch.Tensor]  # as `Cache.beginning` returns them
    key_size: int = 1
    after: dict[bytes, Segment] = field(default_factory=dict)  # what texts go on with, by its first `key_size` tokens

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def key(self, tokens: Tokens) -> bytes:
        return tokens[: self.key_size].tobytes()


class Segments:
    """A tree: what texts begin with in common, `min_shared` tokens or more, is there once. Paths begin at its root."""

    def __init__(self, min_shared: int) -> None:
        self._root = Segment(0, _array([]), (), min_shared)
        self._all: OrderedDict[Segment, Segment] = OrderedDict()  # and what each follows; used last comes last
        self.num_slots = 0

    def find(self, tokens: Tokens) -> tuple[list[Segment], int]:
        """The path that a text begins with, which is used by that, and how many tokens they have in common."""
        path, known = [self._root], 0
        while known == path[-1].end and (after := path[-1].after.get(path[-1].key(tokens[known:]))) is not None:
            self._all.move_to_end(after)
            path.append(after)
            known += _common(tokens[known:], after.tokens)
        return path, known

    def branch(self, last: Segment, known: int) -> Segment:
        """What the rest of a text follows of which a path up to `last` is known.

        Where it goes on from the end of another text, it takes the place of what that text has for itself.
        """
        if known < last.end:
            return self._split(last, known)
        while last in self._all and not last.after:
            last = self.drop(last)
        return last

    def add(self, before: Segment, tokens: Tokens, parts: Sequence[torch.Tensor]) -> Segment:
        segment = before.after[before.key(tokens)] = Segment(before.end, tokens, parts)
        self._all[segment] = before
        self.num_slots += len(tokens)
        return segment

    def drop(self, segment: Segment) -> Segment:
        """Returns what it followed."""
        before = self._all.pop(segment)
        del before.after[before.key(segment.tokens)]
        self.num_slots -= len(segment.tokens)
        return before

    def drop_oldest(self) -> None:
        """Of those that nothing follows."""
        self.drop(next(segment for segment in self._all if not segment.after))

    def _split(self, segment: Segment, end: int) -> Segment:
        """Its tokens up to `end`. Both parts are copies, so that neither holds the other's memory."""
        size, tokens = end - segment.start, segment.tokens
        parts, more = _copy_slots(segment.parts, 0, size), _copy_slots(segment.parts, size, len(tokens))
        first = self.add(self.drop(segment), tokens[:size], parts)
        rest = self.add(first, tokens[size:], more)
        rest.after.update(segment.after)
        self._all.update(dict.fromkeys(segment.after.values(), rest))
        return first


class Beginnings:
    """Those that the texts of an engine left. `max_bytes`: None for a share of what is free, 0 for none at all.

    Sequences of one request (`n`) share their prompt in any case.
    """

    def __init__(self, runner: Runner, max_bytes: int | None = None) -> None:
        self._runner, self._given = runner, max_bytes
        self._min_shared = MIN_SHARED_CPU if runner.device.type == "cpu" else MIN_SHARED
        self._segments, self._max_bytes = Segments(self._min_shared), max_bytes
        self._version: Hashable | None = None  # None: keys and values depend on more than tokens
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self._given != 0 and self._version is not None

    @property
    def num_bytes(self) -> int:
        return self._segments.num_slots * self._runner.slot_bytes

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
            self._segments = Segments(self._min_shared)

    def fill(self, cache: Cache, joined: Sequence[TextSequence], live: Sequence[TextSequence]) -> None:
        """Let these texts' rows begin with what is known of them, but for the last token; `live` are in the cache."""
        for sequence in joined:
            source, length = self._longest(sequence, live)
            if length:
                _begin(cache, sequence.row, source, length)
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
        length, max_slots = sequence.num_cached, self._limit() // self._runner.slot_bytes
        if not self.is_on or not self._min_shared <= length <= max_slots:
            return
        tokens = _array(sequence.tokens[:length])
        with self._lock:
            segments = self._segments
            path, known = segments.find(tokens)
            if known < length:
                before = segments.branch(path[-1], known)
                size = length - before.end
                while segments.num_slots + size > max_slots:
                    segments.drop_oldest()
                parts = _copy_slots(cache.beginning(sequence.row, length, before.end), 0, size)
                segments.add(before, tokens[before.end :], parts)

    def _limit(self) -> int:
        if self._max_bytes is None:
            self._max_bytes = min(MAX_BYTES, int(SHARE * self._runner.free_bytes))
        return self._max_bytes

    def _longest(self, sequence: TextSequence, live: Sequence[TextSequence]) -> tuple[int | list[Segment], int]:
        """What begins as this text, and how much of it may be taken."""
        if self._version is None or not (live or self.is_on):
            return [], 0
        tokens = _array(sequence.tokens[: sequence.num_cached])
        found: list[tuple[int, int, int | list[Segment]]] = []
        for place, other in enumerate(live):
            if other.request == sequence.request or (self.is_on and self._begins_alike(sequence, other)):
                length = _common(tokens, _array(other.tokens[: other.num_cached]))
                found.append((length, -place, other.row))
        if self.is_on:
            with self._lock:
                path, length = self._segments.find(tokens)
                found.append((length, 1 if len(path) == 2 else -len(live), path))  # one may be read where it is
        length, _, source = max(found, default=(0, 0, []))
        return source, length

    def _begins_alike(self, one: TextSequence, other: TextSequence) -> bool:
        size = self._min_shared
        return min(one.num_cached, other.num_cached) >= size and one.tokens[:size] == other.tokens[:size]


def _begin(cache: Cache, row: int, source: int | list[Segment], length: int) -> None:
    if isinstance(source, int):
        cache.begin(row, source, length)
        return
    _, first, *others = source
    cache.begin(row, first.parts, min(first.end, length))
    for one in others:
        cache.put(row, [part.narrow(-2, 0, min(one.end, length) - one.start) for part in one.parts], one.start)


def _copy_slots(parts: Sequence[torch.Tensor], first: int, end: int) -> list[torch.Tensor]:
    return [part.narrow(-2, first, end - first).clone(memory_format=torch.contiguous_format) for part in parts]


def _array(tokens: Sequence[int]) -> Tokens:
    return np.array(tokens, dtype=np.int64)


def _common(one: Tokens, other: Tokens) -> int:
    """Tokens that both begin with."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
