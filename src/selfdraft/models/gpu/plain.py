"""Recorded passes: the request is sent, the graph of its key replayed, its best tokens read when somebody asks.

A plain pass (one token a row, nothing skipped, captured or branched) feeds its best tokens to the same recording before
the host has read them: if they are what is asked for next, that pass is there already.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ...kernels.top import top
from ...passes import PassOutput, PassRequest
from ...types import SkipSet
from ..cache import SlotCache
from .forward import Forward, cache_key, padded_rows
from .graphs import GraphKey, Graphs, Recorder, Recording, bucket, padded_width, power_of_two
from .memory import Device, PassBuffers, Readback

Results = tuple[torch.Tensor, Mapping[str, torch.Tensor]]


class Launches:
    """Whether the device may be busy with something whose result nobody has read."""

    def __init__(self) -> None:
        self.num_launched, self.num_awaited = 0, 0

    @property
    def are_pending(self) -> bool:
        return self.num_launched > self.num_awaited

    def launched(self) -> None:
        self.num_launched += 1

    def awaited(self, number: int | None = None) -> None:
        """All (or the first `number`) launches are known to be done."""
        self.num_awaited = max(self.num_awaited, self.num_launched if number is None else number)


class Outbox:
    """The best tokens [rows, width] of the last pass, and two readbacks: one may still be under way."""

    def __init__(self, device: Device, rows: int, width: int) -> None:
        self.choices = device.zeros(rows, width)
        self._readbacks = [Readback(device, self.choices) for _ in range(2)]

    def next_readback(self) -> Readback:
        self._readbacks.reverse()
        return self._readbacks[0]


class Choices:
    """The best tokens of one pass: sent to the host once, read when somebody asks."""

    def __init__(self, launches: Launches, readback: Readback, rows: int, width: int) -> None:
        self._launches, self._readback, self._size = launches, readback, (rows, width)
        self._is_sent, self._num_launched = False, 0
        self._values: list[list[int]] | None = None

    def send(self) -> None:
        if not self._is_sent:
            self._readback.start()
            self._is_sent, self._num_launched = True, self._launches.num_launched

    def __call__(self) -> list[list[int]]:
        if self._values is None:
            self.send()
            rows, width = self._size
            self._values = self._readback.read()[:rows, :width].tolist()
            self._launches.awaited(self._num_launched)
        return self._values


@dataclass(frozen=True)
class PassGraph:
    """A recorded pass over `end` slots, and where it leaves its results."""

    recording: Recording
    end: int
    outbox: Outbox
    scores: torch.Tensor
    captured: Mapping[str, torch.Tensor]
    _parts: dict[tuple[int, int], Results] = field(default_factory=dict)

    def results(self, rows: int, width: int) -> Results:
        """Scores and captured states without padding: views, made once."""
        if (rows, width) not in self._parts:
            captured = {name: states[:rows, :width] for name, states in self.captured.items()}
            self._parts[rows, width] = self.scores[:rows, :width], captured
        return self._parts[rows, width]


@dataclass(frozen=True)
class Ahead:
    """A pass that was launched before it was asked for: of the tokens `choices`, one slot after the pass before."""

    graph: PassGraph
    choices: Choices
    cache: weakref.ref[SlotCache]
    address: int
    first_row: int
    starts: list[int]

    @classmethod
    def of(cls, graph: PassGraph, choices: Choices, request: PassRequest, cache: SlotCache) -> Ahead:
        starts = [start + 1 for start in request.starts]
        return cls(graph, choices, weakref.ref(cache), cache.address, request.first_row, starts)

    def is_asked_for(self, request: PassRequest, cache: SlotCache) -> bool:
        is_same_place = self.cache() is cache and self.address == cache.address and self.first_row == request.first_row
        return is_same_place and self.starts == list(request.starts) and self.choices() == request.tokens


class Passes:
    """Runs passes as recordings; `num_hits` counts those that had run ahead."""

    def __init__(self, device: Device, graphs: Graphs, launches: Launches) -> None:
        self._device, self._graphs, self._launches = device, graphs, launches
        self._buffers = functools.cache(
            lambda rows, width: (PassBuffers(device, rows, width), Outbox(device, rows, width))
        )
        self._kept: dict[tuple[str, torch.dtype, int], torch.Tensor] = {}
        self._ahead: Ahead | None = None
        self.num_hits = 0

    def run(self, forward: Forward, request: PassRequest, cache: SlotCache) -> PassOutput:
        tokens, rows = request.tokens, len(request.starts)
        if isinstance(tokens, torch.Tensor) and tokens.device.type == "cpu":
            tokens = tokens.tolist()
            request = replace(request, tokens=tokens)
        width = len(tokens[0])
        is_whole_chain = not (request.skip or request.capture or request.tree)
        if width == 1 and is_whole_chain and not isinstance(tokens, torch.Tensor):
            return self._run_plain(forward, request, cache)
        graph = self._launch(forward, request, cache)
        return PassOutput(*graph.results(rows, width), self._choices_of(graph, rows, width))

    def forget_ahead(self) -> None:
        """Something else writes where the pass ahead wrote."""
        self._ahead = None

    def _run_plain(self, forward: Forward, request: PassRequest, cache: SlotCache) -> PassOutput:
        """One token a row through the whole model; it may be there already."""
        found, rows = self._ahead, len(request.starts)
        if found is not None and found.is_asked_for(request, cache):
            graph = found.graph
            self.num_hits += 1
        else:
            graph = self._launch(forward, request, cache)
        self._ahead = None
        choices = self._choices_of(graph, rows, 1)
        if request.run_ahead and max(request.starts) + 2 <= graph.end:
            choices.send()  # what runs ahead overwrites them on the device
            self._advance(graph).replay()
            graph.recording.replay()
            self._ahead = Ahead.of(graph, choices, request, cache)
        return PassOutput(*graph.results(rows, 1), choices)

    def _launch(self, forward: Forward, request: PassRequest, cache: SlotCache) -> PassGraph:
        """Send the inputs and replay the pass."""
        self._ahead = None
        rows, width = padded_rows(forward, len(request.starts)), padded_width(len(request.tokens[0]))
        end, capture = bucket(max(request.starts) + width), tuple(request.capture)
        cache.reserve(end)
        buffers, outbox = self._buffers(rows, width)
        buffers.send_request(request, cache)

        def build(record: Recorder) -> PassGraph:
            kept: dict[str, torch.Tensor] = {}

            def run() -> None:
                state = forward.begin(buffers, cache, end, request.skip)
                scores, captured = forward.finish(state, capture)
                outbox.choices.copy_(best_token(scores))
                kept.update({name: self._keep(name, value) for name, value in {**captured, "scores": scores}.items()})

            recording, _ = record(run)
            return PassGraph(recording, end, outbox, kept.pop("scores"), kept)

        bound_to = cache_key(forward, cache, request.first_row)
        graph = self._graphs.get(GraphKey("pass", forward, rows, width, end, request.skip, capture, bound_to), build)
        graph.recording.replay()
        self._launches.launched()
        return graph

    def _advance(self, graph: PassGraph) -> Recording:
        """Feeds the best tokens of a pass to the same pass, one slot on."""
        choices = graph.outbox.choices
        rows = len(choices)
        buffers, _ = self._buffers(rows, 1)

        def advance() -> None:
            is_row = torch.arange(rows, device=choices.device)[:, None] < buffers.header[4]
            buffers.tokens.copy_(torch.where(is_row, choices, 0))
            buffers.starts.add_(1)

        def build(record: Recorder) -> Recording:
            saved = buffers.data.clone()
            recording, _ = record(advance, lambda: buffers.data.copy_(saved))
            return recording

        return self._graphs.get(GraphKey("advance", None, rows, 1, 0, SkipSet()), build)

    def _choices_of(self, graph: PassGraph, rows: int, width: int) -> Choices:
        return Choices(self._launches, graph.outbox.next_readback(), rows, width)

    def _keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A copy outside of the recordings' memory; passes of one size class share it."""
        key = (name, value.dtype, power_of_two(value.numel()))
        if key not in self._kept:
            self._kept[key] = self._device.zeros(key[2], dtype=value.dtype)
        kept = self._kept[key][: value.numel()].view(value.shape)
        kept.copy_(value)
        return kept


def best_token(scores: torch.Tensor) -> torch.Tensor:
    """[rows, width, vocabulary] -> [rows, width]; recorded."""
    return top(scores.flatten(0, 1), 1)[1].view(scores.shape[:2])
