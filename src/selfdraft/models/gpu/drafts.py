"""Which draft is asked for, and the first token of the next one, which is begun right after the verification.

What is kept of a draft is found on the device, too (accept), so that the next draft need not await the host: if it then
asks for exactly that one, its first token is under way. If not, that token is forgotten: the numbers are sent again,
and its slots, which stand after the committed text, are written again.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from ...chains import DraftedChain, DraftRule, DraftTask
from ...passes import PassRequest, serves
from ..cache import SlotCache
from .accept import NUM_NODES, ROUND, Accepting, follow
from .draft import DraftGraphs, DraftOutputs, DraftSpec, run_draft
from .forward import Forward, cache_key, padded_rows
from .graphs import Graphs, RecordingError, bucket
from .history import Histories
from .memory import MAX_WIDTH, Device, DraftBuffers, PassBuffers

MAX_KEPT_SCORES = 1 << 23
"""Rows times vocabulary up to which scores are kept, for all depths: half a gigabyte in half precision."""
MAX_NEEDED = 8
"""Drafts in a row that must have been foreseeable, at most, once several were begun in vain."""

_LOGGER = logging.getLogger(__name__)
Read = Callable[[], list[list[int]]]
Numbers = tuple[int, int, int, int, list[int]]
"""Of a text whose draft is asked for: its start, index, cap, room and settings."""


@dataclass(frozen=True)
class Asked:
    """A draft that was asked for: the next one follows from its numbers and from what is kept."""

    spec: DraftSpec
    task: DraftTask
    request: PassRequest
    cache: weakref.ref[SlotCache]
    num_changes: int  # of the rule
    texts: dict[tuple[int, int, int], Numbers]  # by cache row, the engine's number, the caller's

    @classmethod
    def of(cls, spec: DraftSpec, task: DraftTask, request: PassRequest, cache: SlotCache) -> Asked | None:
        """None: the device cannot tell what follows."""
        choosing, num_changes = task.choosing, spec.rule.num_changes
        if choosing is None or num_changes is None or not task.rooms or len(request.tokens[0]) > 1:
            return None
        texts = zip(request.cache_rows, task.sequence_ids, [site.sequence for site in task.sites], strict=True)
        numbers = zip(
            request.starts, choosing.indices, task.caps, task.rooms, map(list, choosing.settings), strict=True
        )
        return cls(spec, task, request, weakref.ref(cache), num_changes, dict(zip(texts, numbers, strict=True)))

    def is_verified_by(self, request: PassRequest, cache: SlotCache) -> bool:
        own = (self.request.cache_rows, list(self.request.starts))
        return self.cache() is cache and own == (request.cache_rows, list(request.starts))

    def leads_to(self, other: Asked) -> bool:
        """Whether of texts that both have nothing has changed but the text and, with it, the room that it leaves."""
        known, asked = ((one.spec.kind, one.cache(), one.num_changes) for one in (self, other))
        common = self.texts.keys() & other.texts.keys()
        return known == asked and all(follows(self.texts[text], other.texts[text]) for text in common)

    def places_of(self, other: Asked) -> Sequence[int] | None:
        """Of the other's texts in this one, if it may run them; the rows of those that have ended run along."""
        texts = list(self.texts)
        if not (serves(len(texts), len(other.texts)) and other.texts.keys() <= self.texts.keys()):
            return None
        return [texts.index(text) for text in other.texts]


def follows(before: Numbers, after: Numbers) -> bool:
    start, index, cap, room, settings = before
    emitted = after[0] - start
    left, later = room - emitted, [*settings[:ROUND], settings[ROUND] + 1, *settings[ROUND + 1 :]]
    return emitted > 0 and after == (start + emitted, index + emitted, min(cap, left), left, later)


@dataclass(frozen=True)
class Found:
    """What a verification has found on the device. It knows nothing of a history, which may refer to it."""

    request: PassRequest
    read: Read  # what is chosen after each column, or the verdicts of a test
    place: tuple[int, int]  # of the cache, when the draft after it was begun

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Of each row: how many tokens it emits, and the last of them."""
        tree, choosing, tokens = self.request.tree, self.request.choosing, self.request.numbers
        assert choosing is not None
        if choosing.kind.is_tested:
            return [(1 + numbers[0], numbers[-1]) for numbers in self.read()]
        sees = [None] * len(tokens) if tree is None else tree.sees
        sizes = [row[NUM_NODES] for row in choosing.settings]
        return [follow(*row) for row in zip(tokens, sees, sizes, self.read(), strict=True)]

    def num_emitted(self) -> list[int]:
        return [count for count, _ in self.ends]

    def following(self, request: PassRequest) -> PassRequest:
        """The first pass of the draft after it: of all its rows."""
        starts = [start + count for start, (count, _) in zip(self.request.starts, self.ends, strict=True)]
        return request._replace(tokens=[[last] for _, last in self.ends], starts=starts, rows=self.request.rows)


class Begun(NamedTuple):
    """A draft that is under way: its first pass, and where the rows that are asked for stand in it."""

    spec: DraftSpec
    request: PassRequest
    places: Sequence[int]

    def is_that_of(self, request: PassRequest) -> bool:
        tokens, starts = ([every[place] for place in self.places] for every in self.request[:2])
        return tokens == request.tokens and starts == list(request.starts)


def place_of(cache: SlotCache) -> tuple[int, int]:
    """What a draft under way depends on: where the cache is, and how often its rows began."""
    return cache.address, cache.num_begun


class Drafts:
    """Runs drafts as recordings. A rule that cannot be recorded is refused from then on.

    `num_begun`: first tokens launched before they were asked for; `num_hits`: those that were asked for then.
    """

    def __init__(
        self, device: Device, graphs: Graphs, histories: Histories, vocab_size: int, dtype: torch.dtype
    ) -> None:
        self._graphs, self._histories, self._vocab_size, self._dtype = graphs, histories, vocab_size, dtype
        self._tensors = functools.cache(
            lambda rows, *more: (DraftBuffers(device, rows), DraftOutputs(device, rows, *more))
        )
        self._openings = functools.cache(lambda rows, width: PassBuffers(device, rows, width))
        self._accepting = Accepting(graphs)
        self._last: Asked | None = None
        self._num_steady, self._num_wasted = 0, 0  # drafts that could have been begun unasked, and those begun in vain
        self._begun: Found | None = None  # decides on the draft whose first token was launched unasked
        self._sent: tuple[int, int] | None = None  # where the cache was if the device has the last draft's numbers
        self.runs_ahead, self.num_begun, self.num_hits = True, 0, 0
        self.refused: set[DraftRule] = set()

    def run(
        self, forward: Forward, task: DraftTask, request: PassRequest, cache: SlotCache, vocabulary: int | None
    ) -> DraftedChain | None:
        """The chain after the tokens of `request`; None: it goes token by token."""
        rule = task.rule
        if rule.kind.has_rules:  # which go by the tokens noted
            task = replace(task, caps=[min(cap, MAX_WIDTH - 1) for cap in task.caps])
        width, max_depth = len(request.tokens[0]), max(task.caps)
        first = max(request.starts) + width - 1
        cache.reserve(bucket(first + max_depth))
        num_tokens = min(vocabulary or self._vocab_size, self._vocab_size)
        if rule.keeps_scores and padded_rows(forward, len(request.starts)) * num_tokens > MAX_KEPT_SCORES:
            return None
        draft = self._spec(forward, task, request, cache, vocabulary)
        asked = Asked.of(draft, task, request, cache)
        begun = self._take(asked, request, cache)
        is_whole = begun is None or len(begun.places) == len(begun.request.starts)
        self._sent = place_of(cache) if is_whole else None
        if begun is None:
            opening = self._send(draft.buffers, task, request, cache)
        else:
            draft, request, opening = begun.spec, begun.request, begun.spec.buffers
            first = max(request.starts)
        known: dict[tuple[int, int], DraftGraphs] = {}

        def graphs_at(depth: int) -> DraftGraphs:
            inputs, end = draft.buffers if depth else opening, bucket(first + depth + 1)
            if (inputs.width, end) not in known:
                key = draft.key(inputs.width, end, cache_key(forward, cache, request.cache_rows))
                known[inputs.width, end] = self._graphs.get(
                    key, lambda record: draft.record(record, inputs, cache.without_lease(), end)
                )
            return known[inputs.width, end]

        try:
            chain = run_draft(graphs_at, draft.outputs, max_depth, len(request.starts), task, begun is not None)
        except RecordingError as error:
            self.refused.add(rule)
            _LOGGER.warning("this draft cannot be recorded, so it goes token by token: %s", error)
            return None
        self._last = asked
        return chain if begun is None or is_whole else chain.of_rows(begun.places)

    def _spec(
        self, forward: Forward, task: DraftTask, request: PassRequest, cache: SlotCache, vocabulary: int | None
    ) -> DraftSpec:
        rule, num_tokens = task.rule, min(vocabulary or self._vocab_size, self._vocab_size)
        kept = (num_tokens, torch.float32 if rule.kind.has_rules else self._dtype) if rule.keeps_scores else None
        rows = padded_rows(forward, len(request.starts))
        tensors = self._tensors(rows, min(rule.max_candidates, num_tokens), kept)
        assert task.choosing is not None
        history = self._histories.of(cache, request.cache_rows, task.choosing)
        return DraftSpec(forward, rule, request.skip, vocabulary, history, *tensors)

    def _send(self, buffers: DraftBuffers, task: DraftTask, request: PassRequest, cache: SlotCache) -> PassBuffers:
        """What the first pass reads: of several columns the chain goes on after the last one."""
        width = len(request.tokens[0])
        if width == 1:
            buffers.send_task(task, request, cache)
            return buffers
        last = [start + width - 1 for start in request.starts]
        buffers.send_task(task, request._replace(tokens=[row[-1:] for row in request.tokens], starts=last), cache)
        opening = self._openings(buffers.rows, width)
        opening.send_request(request, cache)
        return opening

    # ------------------------------------------------------------------------------------------------ running ahead

    def _take(self, asked: Asked | None, request: PassRequest, cache: SlotCache) -> Begun | None:
        """What was begun, if it is what is asked for; it is over in any case.

        Who has come, and how many have left, says nothing of those that stay.
        """
        last, found = self._last, self._begun
        self._last = self._begun = None
        is_steady = last is not None and asked is not None and last.leads_to(asked)
        self._num_steady = self._num_steady + 1 if is_steady else 0
        if found is None or last is None or asked is None or not is_steady:
            self._num_wasted += found is not None
            return None
        places = last.places_of(asked) if found.place == place_of(cache) else None
        begun = None if places is None else Begun(last.spec, found.following(request), places)
        if begun is None or not begun.is_that_of(request):
            return None
        self._num_wasted = 0
        self.num_hits += 1
        return begun

    @property
    def _num_needed(self) -> int:
        """Drafts in a row that must have been foreseeable. One in vain says nothing: something else came once."""
        return min(max(self._num_wasted - 1, 1), MAX_NEEDED)

    def leave(self) -> None:
        """Another text begins: what the last one went by is free."""
        self._last = self._begun = None

    def forget(self) -> None:
        """Something else than the next draft is asked for."""
        self._num_wasted += self._begun is not None
        self._begun = None

    def begin_next(
        self,
        verified: PassBuffers,
        choices: torch.Tensor,
        verdicts: torch.Tensor,
        request: PassRequest,
        cache: SlotCache,
        read: Read,
    ) -> bool:
        """After the verification of the last draft: begin the next one, if the last ones could be foreseen.

        `read`: the choices [rows, width] or, of a test, the verdicts are on their way to the host. Returns whether it
        was begun: then what is kept has been moved to its place in the cache.
        """
        last, choosing = self._last if self.runs_ahead else None, request.choosing
        if last is None or not last.is_verified_by(request, cache) or verified.rows != last.spec.buffers.rows:
            return False
        spec, rows = last.spec, request.cache_rows
        tested = None if choosing is not None and choosing.kind.is_tested else choices
        try:
            accepting = self._accepting(verified, tested, verdicts, spec.buffers, spec.history, cache, rows)
        except RecordingError as error:
            self.runs_ahead = False
            _LOGGER.warning("drafts wait for the host, as what comes before them cannot be recorded: %s", error)
            return False
        graphs = self._graphs_after(last, request, cache)
        is_foreseen = self._num_steady >= self._num_needed and choosing is not None
        if graphs is None or not is_foreseen:
            return False
        place = place_of(cache)
        if place != self._sent:
            self._send(spec.buffers, last.task, last.request, cache)
        spec.outputs.begin()
        for recording in (accepting, graphs.begin, graphs.finish):
            recording.replay()
        self._begun = found = Found(request, read, place)
        if spec.history is not None:
            spec.history.will_know(rows, request.starts, found.num_emitted)
        self.num_begun += 1
        return True

    def _graphs_after(self, last: Asked, request: PassRequest, cache: SlotCache) -> DraftGraphs | None:
        """Those of the next draft's first token, if they are the same wherever it stands, and recorded."""
        tree, start = request.tree, max(request.starts)
        depth = len(request.tokens[0]) - 1 if tree is None else max(map(max, tree.depths))
        end, last_slot = bucket(start + 2), start + depth + 1 + max(last.task.caps)
        if end != bucket(start + depth + 2) or bucket(last_slot) > cache.num_slots:
            return None
        spec = last.spec
        found: DraftGraphs | None = self._graphs.find(
            spec.key(1, end, cache_key(spec.forward, cache, request.cache_rows))
        )
        return found
