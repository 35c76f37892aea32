"""Recorded passes: the request is sent, the graph of its key replayed, its best tokens read when somebody asks.

Its choices are its best tokens, unless something else chooses: that is a recording of its own, replayed after the pass.
A plain pass (one token a row, nothing skipped, captured or branched) feeds its choices to the same recording before the
host has read them: if they are what is asked for next, that pass is there already.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...kernels.choose_reference import lines_of
from ...kernels.top import draw, logprobs, processed, reject, runs_triton, said, top
from ...passes import SETTINGS, ChoiceKind, Columns, PassOutput, PassRequest, serves
from ...types import SkipSet
from ..cache import SlotCache
from .drafts import Drafts
from .forward import Forward, PassSize, cache_key
from .graphs import GraphKey, Graphs, Recorder, Recording, bucket
from .history import Histories, History
from .memory import Device, PassBuffers, Rooms, is_even, power_of_two
from .outbox import Launches, Mail, Outbox, Sent

MIN_DEPTHS = 4
"""Room for the scores of that many drafted tokens at least: for each size there are other recordings."""
Results = tuple[Callable[[], torch.Tensor], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class PassGraph:
    """A recorded pass over `end` slots, and where it leaves its results: of each token one line."""

    recording: Recording
    end: int
    buffers: PassBuffers
    outbox: Outbox
    scores: torch.Tensor
    captured: Mapping[str, torch.Tensor]

    def results(self, rows: int, width: int) -> Results:
        """Scores, if somebody asks, and captured states, without padding."""
        captured = {name: self._part(states, rows, width) for name, states in self.captured.items()}
        return lambda: self._part(self.scores, rows, width), captured

    def _part(self, lines: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """[rows, width, ...]: a view, unless rows are packed."""
        if not is_even(self.buffers.rows, self.buffers.width, len(lines)):
            return lines[lines_of(self.buffers.columns)[:rows, :width]]
        return lines.view(-1, self.buffers.width, lines.shape[-1])[:rows, :width]


@dataclass(frozen=True)
class Chooser:
    """What chooses after a pass, and what it goes by beside the pass's inputs."""

    recording: Recording
    history: History | None
    is_test: bool
    logprobs: Mail | None


@dataclass(frozen=True)
class Ahead:
    """A pass that was launched before it was asked for: of the tokens `choices`, one slot after the pass before.

    Rows whose texts end run along, and nobody reads them, as long as the others would take a pass of the same size.
    """

    graph: PassGraph
    chooser: Chooser | None
    choices: Sent
    cache: weakref.ref[SlotCache]
    address: int
    num_begun: int  # of the cache's rows, when it was launched: it may run along in one that has begun since
    num_freed: int  # when these began to run
    rows: tuple[int, ...]
    starts: list[int]
    kind: ChoiceKind

    def places(self, cache: SlotCache, rows: tuple[int, ...], starts: Sequence[int]) -> Sequence[int] | None:
        """Of these rows in it, where it runs them from there on."""
        if self.cache() is not cache or (self.address, self.num_begun) != (cache.address, cache.num_begun):
            return None
        if rows == self.rows:
            places: Sequence[int] = range(len(rows))
        elif serves(len(self.rows), len(rows)) and set(rows) <= set(self.rows):
            places = [self.rows.index(row) for row in rows]
        else:
            return None
        is_there = [self.starts[place] for place in places] == list(starts)
        return places if is_there and not cache.was_freed(rows, self.num_freed) else None

    def asked_for(self, request: PassRequest, cache: SlotCache) -> Sequence[int] | None:
        """The places of the request's rows in it, if it is that pass."""
        places = self.places(cache, request.cache_rows, request.starts) if self.kind == request.kind else None
        return None if places is None or picked(self.choices, places) != request.tokens else places


def picked(sent: Sent, places: Sequence[int]) -> list[list[Any]]:
    values = sent()
    return values if len(places) == len(values) else [values[place] for place in places]


class Passes:
    """Runs passes as recordings; `num_hits` counts those that had run ahead."""

    def __init__(
        self,
        device: Device,
        graphs: Graphs,
        launches: Launches,
        histories: Histories,
        drafts: Drafts,
        context_length: int | None,
    ) -> None:
        self._device, self._graphs, self._launches, self._histories = device, graphs, launches, histories
        self._drafts, self._context_length = drafts, context_length
        self._buffers = functools.cache(
            lambda rows, width: (PassBuffers(device, rows, width), Outbox(device, rows, width))
        )
        self._room = Rooms()
        self._ahead: Ahead | None = None
        self.num_hits = 0

    def run(self, forward: Forward, request: PassRequest, cache: SlotCache) -> PassOutput:
        if isinstance(request.tokens, torch.Tensor):
            request = request._replace(tokens=request.numbers)
        rows, width = len(request.starts), len(request.tokens[0])
        if width == 1 and not (request.skip or request.capture or request.tree):
            return self._run_plain(forward, request, cache)
        graph, chooser = self._launch(forward, request, cache)
        choices = Sent(self._launches, graph.outbox.choices, rows, width)
        told, verdicts = self._send_logprobs(chooser, rows, width), None
        if chooser is not None and chooser.is_test:
            verdicts = Sent(self._launches, graph.outbox.verdicts, rows, graph.outbox.verdicts.tensor.shape[1])
        is_compact = request.run_ahead and self._begin_draft(graph, request, cache, verdicts or choices)
        return PassOutput(*graph.results(rows, width), choices, verdicts, told, is_compact)

    def is_under_way(self, cache: SlotCache, rows: Sequence[int], starts: Sequence[int]) -> bool:
        """Also that no draft model has run since."""
        ahead, number = self._ahead, self._launches.num_launched
        is_last = ahead is not None and ahead.choices.num_launched == number
        return is_last and ahead is not None and ahead.places(cache, tuple(rows), starts) is not None

    def forget_ahead(self, rows: Collection[int] | None = None) -> None:
        """Something else writes where the pass ahead wrote, or (into these rows alone) what it has read."""
        if rows is None or (self._ahead is not None and not set(rows).isdisjoint(self._ahead.rows)):
            self._ahead = None

    def _run_plain(self, forward: Forward, request: PassRequest, cache: SlotCache) -> PassOutput:
        """One token a row through the whole model; it may be there already."""
        found, rows = self._ahead, len(request.starts)
        places = None if found is None else found.asked_for(request, cache)
        if found is None or places is None:
            places, (graph, chooser) = range(rows), self._launch(forward, request, cache)
            running = (cache.num_freed, request.cache_rows, request.starts)
        else:
            graph, chooser, running = found.graph, found.chooser, (found.num_freed, found.rows, found.starts)
            self.num_hits += 1
        self._ahead = None
        num_freed, all_rows, starts = running
        choices = Sent(self._launches, graph.outbox.choices, len(all_rows), 1)
        told = self._send_logprobs(chooser, len(all_rows), 1)
        if request.run_ahead and max(starts) + 2 <= min(graph.end, self._context_length or graph.end):
            choices.send()  # what runs ahead overwrites them on the device
            self._run_ahead(graph, chooser, request)
            place = (weakref.ref(cache), cache.address, cache.num_begun, num_freed, all_rows)
            self._ahead = Ahead(graph, chooser, choices, *place, [start + 1 for start in starts], request.kind)
        scores: torch.Tensor | Callable[[], torch.Tensor]
        scores, captured = graph.results(len(all_rows), 1)
        if rows < len(all_rows) and not request.run_ahead:  # else choices must do
            scores = PassOutput(scores).of_rows(places).scores
        read_told = None if told is None else functools.partial(picked, told, places)
        return PassOutput(scores, captured, functools.partial(picked, choices, places), read_logprobs=read_told)

    def _begin_draft(self, graph: PassGraph, request: PassRequest, cache: SlotCache, found: Sent) -> bool:
        """The next one, by what this one has found."""
        choices, verdicts = graph.outbox.choices.tensor, graph.outbox.verdicts.tensor
        found.send()  # what waits for them need not wait for the draft
        return self._drafts.begin_next(graph.buffers, choices, verdicts, request, cache, found)

    def _send_logprobs(self, chooser: Chooser | None, rows: int, width: int) -> Sent | None:
        """At once: whoever asked for them reads them, and a pass ahead overwrites them on the device."""
        if chooser is None or chooser.logprobs is None:
            return None
        told = Sent(self._launches, chooser.logprobs, rows, width)
        told.send()
        return told

    def _run_ahead(self, graph: PassGraph, chooser: Chooser | None, request: PassRequest) -> None:
        """The pass after the choices of this one."""
        history = None if chooser is None else chooser.history
        self._advance(graph, history).replay()
        if history is not None:
            history.advanced(request.cache_rows, request.starts)
        graph.recording.replay()
        if chooser is not None:
            chooser.recording.replay()

    def _launch(self, forward: Forward, request: PassRequest, cache: SlotCache) -> tuple[PassGraph, Chooser | None]:
        """Send the inputs, replay the pass, and choose."""
        self._ahead = None
        rows, width, num_tokens = PassSize.of(forward, request.row_widths)
        end, capture = bucket(max(request.starts) + width), tuple(request.capture)
        cache.reserve(end)
        buffers, outbox = self._buffers(rows, width)
        takes_along = width > 1  # its numbers; a pass of one column may run again with those that the device makes
        buffers.fill(request, cache, num_tokens=num_tokens)
        if not takes_along:
            buffers.send()

        def build(record: Recorder) -> PassGraph:
            kept: dict[str, torch.Tensor] = {}

            def run() -> None:
                if takes_along:
                    buffers.copy()
                scores, captured = forward.finish(forward.begin(buffers, cache, end, request.skip, capture))
                put(outbox.choices, buffers.places, top(scores, 1)[1])
                kept.update({name: self._keep(name, value) for name, value in {**captured, "scores": scores}.items()})

            recording, _ = record(run)
            return PassGraph(recording, end, buffers, outbox, kept.pop("scores"), kept)

        bound_to = cache_key(forward, cache, request.cache_rows)
        key = GraphKey("pass", forward, rows, width, end, request.skip, capture, bound_to, num_tokens)
        graph = self._graphs.get(key, build)
        graph.recording.replay()
        if takes_along:
            buffers.taken()
        chooser = self._chooser(graph, request, cache)
        if chooser is not None:
            chooser.recording.replay()
        self._launches.launched()
        return graph, chooser

    def _chooser(self, graph: PassGraph, request: PassRequest, cache: SlotCache) -> Chooser | None:
        """None: the best tokens, which the pass itself has found."""
        choosing = request.choosing
        if choosing is None or choosing.kind == ChoiceKind():
            return None
        kind, outbox, scores, buffers = choosing.kind, graph.outbox, graph.scores, graph.buffers
        rows, width, history = buffers.rows, buffers.width, self._histories.of(cache, request.cache_rows, choosing)
        allowed = None if choosing.allowed is None else self._keep_allowed(choosing.allowed, rows, width)
        drawn_from = self._room_for_drafts(choosing.drawn_from, rows, scores) if kind.is_tested else None
        count = None if kind.num_logprobs is None else min(kind.num_logprobs, scores.shape[-1])
        told = None if count is None else outbox.logprobs(count)

        def choose() -> None:
            columns = replace(buffers.columns, allowed=allowed)
            columns = columns if history is None else history.seen_by(columns)
            choose_tokens(scores, columns, kind, drawn_from, outbox)
            if told is not None and count is not None:
                tokens = said(outbox.verdicts.tensor, columns.path) if kind.is_tested else outbox.choices.tensor
                put(told, columns.places, logprobs(scores, tokens.flatten()[columns.places], count))

        bound_to = (scores.data_ptr(), *(() if history is None else history.addresses))
        sizes = () if drawn_from is None else (drawn_from.data_ptr(), drawn_from.shape[1], drawn_from.dtype)
        what = ("choose", kind, scores.dtype, *sizes)
        key = GraphKey(what, None, rows, width, 0, SkipSet(), (), bound_to, len(scores))
        recording = self._graphs.get(key, lambda record: record(choose)[0])
        if drawn_from is not None:
            send_drafts(choosing.drawn_from, drawn_from)
        return Chooser(recording, history, kind.is_tested, told)

    def _room_for_drafts(self, drafts: Sequence[torch.Tensor | None], rows: int, scores: torch.Tensor) -> torch.Tensor:
        """[rows, depths, vocabulary] of their type: rounded, they would not be what was drawn from."""
        known = [draft for draft in drafts if draft is not None]
        dtype = functools.reduce(torch.promote_types, [draft.dtype for draft in known]) if known else scores.dtype
        depths = power_of_two(max([MIN_DEPTHS, *map(len, known)]))
        return self._room("drafts", (rows, depths, scores.shape[-1]), dtype, scores.device)

    def _keep_allowed(self, allowed: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """A copy that stays where it is; for what only pads, anything."""
        kept = self._room("allowed", (rows, width, allowed.shape[-1]), allowed.dtype, allowed.device)
        kept[: allowed.shape[0], : allowed.shape[1]].copy_(allowed)
        return kept

    def _advance(self, graph: PassGraph, history: History | None) -> Recording:
        """Feeds the choices of a pass to the same pass, one slot on."""
        choices, buffers = graph.outbox.choices.tensor, graph.buffers
        rows = len(choices)

        def run() -> None:
            if history is not None:  # at index 0 the token is the prompt's last
                is_known = buffers.is_row & (buffers.indices[:, None] > 0)
                history.add_tokens(buffers.header[8:], buffers.tokens, is_known)
            advance(choices, buffers)

        def build(record: Recorder) -> Recording:
            changed = (buffers.data,) if history is None else (buffers.data, history.words)
            saved = [(tensor, tensor.clone()) for tensor in changed]

            def reset() -> None:
                for tensor, values in saved:
                    tensor.copy_(values)

            recording, _ = record(run, reset)
            return recording

        bound_to = () if history is None else (history.words.data_ptr(),)
        return self._graphs.get(GraphKey(("advance", bool(bound_to)), None, rows, 1, 0, SkipSet(), (), bound_to), build)

    def _keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A copy outside of the recordings' memory."""
        kept = self._room(name, value.shape, value.dtype, value.device)
        kept.copy_(value)
        return kept


def advance(choices: torch.Tensor, buffers: PassBuffers) -> None:
    """Make the choices [rows, 1] the next pass's tokens, one slot on; recorded."""
    rounds = buffers.settings[:, SETTINGS.index("round")]
    if runs_triton(choices.device):
        from ...kernels.feed import advance as advance_at_once

        advance_at_once(choices, (buffers.header, buffers.tokens, buffers.starts, buffers.indices), rounds)
        return
    buffers.tokens.copy_(torch.where(buffers.is_row, choices, 0))
    for counter in (buffers.starts, buffers.indices, rounds):
        counter.add_(1)


def choose_tokens(
    scores: torch.Tensor, columns: Columns, kind: ChoiceKind, drawn_from: torch.Tensor | None, outbox: Outbox
) -> None:
    """Put into the outbox what is chosen after each column by its raw scores; recorded."""
    if kind.is_best:
        return  # the pass itself has found them
    known = processed(scores, columns, kind)
    if drawn_from is not None:
        outbox.verdicts.tensor.copy_(reject(known, drawn_from, columns, kind))
        outbox.verdicts.post()
    else:
        best = draw(known, columns, kind, 1).tokens if kind.is_drawn else top(known, 1)[1]
        put(outbox.choices, columns.places, best)


def send_drafts(drafts: Sequence[torch.Tensor | None], room: torch.Tensor) -> None:
    """What each row's draft was drawn from; of a smaller vocabulary, the rest is impossible."""
    for row, scores in enumerate(drafts):
        if scores is not None:
            depths, size = scores.shape
            room[row, :depths, :size].copy_(scores, non_blocking=True)
            if size < room.shape[2]:
                room[row, :depths, size:].fill_(-torch.inf)


def put(mail: Mail, places: torch.Tensor, lines: torch.Tensor) -> None:
    """Lines into the columns they belong to; recorded."""
    mail.tensor.view(-1, lines.shape[1]).index_copy_(0, places, lines)
    mail.post()
