"""GraphRunner: passes and drafts recorded once and launched as one, for devices whose host is slower than they are.

A recording belongs to one skip set, width, number of rows and cache bucket. What cannot be recorded (prefill, passes
that start behind known states, models that read values while they run) takes the eager path.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..kernels.top import top
from ..passes import PassOutput, Resume, Tokens, TreeMask
from ..protocols import DraftedChain, DraftRule, DraftTask
from ..types import SkipSet
from .bodies import Body, bodies_for
from .buffers import MAX_WIDTH, DraftBuffers, PassBuffers
from .cache import SlotCache, StoragePool
from .checks import check_eval
from .decoder import Decoder
from .device import Device
from .graphs import MAX_BYTES, CudaRecorder, Graphs, Recorder, Recording, RecordingError
from .probe import Probe
from .recorded_draft import DraftGraphs, DraftOutputs, record_draft, run_draft
from .recorded_pass import Ahead, Choices, GraphKey, Launches, Outbox, PassGraph
from .runners import EagerRunner

MIN_SLOTS = 256
PREFILL_STEP = 64
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, MAX_WIDTH)
_LOGGER = logging.getLogger(__name__)


def make_runner(model: Any, graphs: bool = True) -> EagerRunner:
    """The runner for the device the model is on."""
    return GraphRunner(model) if graphs and model.device.type == "cuda" else EagerRunner(model)


class GraphRunner(EagerRunner):
    """Same interface and same results as the eager runner. `max_bytes` bounds what the recordings take."""

    saves_by_reuse = False
    recorded_widths = WIDTHS

    def __init__(
        self,
        model: Any,
        *,
        make_recorder: Callable[[torch.device], Recorder] = CudaRecorder,
        make_bodies: Callable[[Decoder], Sequence[Body]] = bodies_for,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(model)
        self._make_recorder, self._make_bodies, self._max_bytes = make_recorder, make_bodies, max_bytes
        self._launches, self.num_hits = Launches(), 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.graphs = Graphs(self._make_recorder(self.device), self._max_bytes)
        self.fallback_reason: str | None = None
        self._device, self._bodies = Device(self.device), self._make_bodies(self.decoder)
        self._storages, self._vocab_size = StoragePool(), super().vocab_size
        self._passes: dict[tuple[int, int], tuple[PassBuffers, Outbox]] = {}
        self._drafts: dict[tuple[int, int], tuple[DraftBuffers, DraftOutputs]] = {}
        self._kept: dict[tuple[str, torch.dtype, int], torch.Tensor] = {}
        self._refused_rules: set[DraftRule] = set()
        self._ahead: Ahead | None = None
        self._is_settled = True
        if not all(map(_is_transformers, self.decoder.hooks)):
            self._run_eagerly("its forward hooks run on the host")

    @property
    def vocab_size(self) -> int:
        return self._vocab_size  # asked for in every round, and slow to find

    def refresh(self) -> None:
        check_eval(self.decoder.model)
        if not self.decoder.is_current:
            self.decoder.attach()
            self._begin_anew()

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        if self.fallback_reason is not None:
            return ()
        last = bucket(num_slots)
        return [size for size in (1 << power for power in range(last.bit_length())) if size == bucket(size)]

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        if self.fallback_reason is not None:
            return super().new_cache(num_rows, num_slots)
        decoder, take = self.decoder, self._storages.take
        cache = SlotCache(
            decoder.shapes, num_rows, bucket(num_slots), dtype=decoder.dtype, device=decoder.device, allocate=take
        )
        stale = self._storages.trim()
        if stale:
            self.graphs.drop(lambda key: bool(key.cache) and key.cache[0] in stale)
        return cache

    def best_token(self, scores: torch.Tensor) -> torch.Tensor:
        """[rows, width, vocabulary] -> [rows, width]; recorded."""
        return top(scores.flatten(0, 1), 1)[1].view(scores.shape[:2])

    def forward(
        self,
        tokens: Tokens,
        starts: Sequence[int],
        cache: SlotCache,
        *,
        first_row: int = 0,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        capture: Sequence[str] = (),
        needs_scores: bool = True,
        tree: TreeMask | None = None,
        resume: Resume | None = None,
        ahead: bool = False,
    ) -> PassOutput:
        rows, width = len(starts), len(tokens[0])
        number = self._body_for(rows, width) if needs_scores and resume is None else None
        if number is not None:
            self.decoder.check_points(capture)
            if isinstance(tokens, torch.Tensor) and tokens.device.type == "cpu":
                tokens = tokens.tolist()
            is_plain = width == 1 and not (skip or capture or tree or isinstance(tokens, torch.Tensor))
            try:
                if is_plain:
                    return self._forward_plain(number, tokens, tuple(starts), cache, first_row, ahead)
                graph, _ = self._launch(number, tokens, starts, cache, first_row, skip, tuple(capture), tree)
                return PassOutput(*graph.results(rows, width), self._new_choices(graph, rows, width))
            except RecordingError as error:
                self._fall_back(error)
        self._ahead = None
        self._launches.launched()
        options: dict[str, Any] = {"first_row": first_row, "skip": skip, "capture": capture}
        options["needs_scores"] = needs_scores
        if not needs_scores and tree is None and resume is None:
            return self._prefill(tokens, starts, cache, options)
        return super().forward(tokens, starts, cache, **options, tree=tree, resume=resume)

    def _prefill(
        self, tokens: Tokens, starts: Sequence[int], cache: SlotCache, options: Mapping[str, Any]
    ) -> PassOutput:
        """In widths of whole steps: libraries prepare attention anew for every width. What pads is scratch."""
        tokens = torch.as_tensor(tokens)
        width = tokens.shape[1]
        padded = F.pad(tokens, (0, -width % PREFILL_STEP))
        cache.reserve(max(starts) + padded.shape[1])
        output = super().forward(padded, starts, cache, **options)
        self._bodies[0].settle()
        return PassOutput(output.scores, {name: states[:, :width] for name, states in output.captured.items()})

    def probe(self, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> Probe:
        """Whatever it runs is awaited by the next look at the clock; the next recording comes after it."""
        self._launches.launched()
        self._is_settled = False
        return super().probe(cache, tokens, first, row)

    def _settle(self) -> None:
        if not self._is_settled:
            self._bodies[0].settle()
            self._is_settled = True

    def draft(
        self,
        task: DraftTask,
        tokens: Sequence[int],
        starts: Sequence[int],
        cache: SlotCache,
        *,
        first_row: int = 0,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        vocabulary: int | None = None,
    ) -> DraftedChain | None:
        number = self._body_for(len(starts), 1)
        if number is None or task.rule in self._refused_rules:
            return None
        self._ahead = None  # the draft writes where it wrote
        self._settle()
        rows, first, num_depths = self._num_rows(number, len(starts)), max(starts), max(task.caps)
        cache.reserve(bucket(first + num_depths))
        num_tokens = min(vocabulary or self.vocab_size, self.vocab_size)
        buffers, outputs = self._draft_buffers(rows, min(task.rule.max_candidates, num_tokens))
        buffers.fill_task(task, tokens, starts, cache, first_row)
        buffers.send()

        known: dict[int, DraftGraphs] = {}

        def graphs_at(depth: int) -> DraftGraphs:
            end = bucket(first + depth + 1)
            if end not in known:
                place = self._cache_key(number, cache, first_row)
                key = GraphKey((task.rule, vocabulary), number, rows, 1, end, skip, (), place)
                known[end] = self.graphs.get(key, lambda record: build(record, end))
            return known[end]

        def build(record: Recorder, end: int) -> DraftGraphs:
            body, bare = self._bodies[number], cache.without_lease()
            return record_draft(record, body, buffers, outputs, task.rule, bare, end, skip, vocabulary)

        try:
            chain = run_draft(graphs_at, outputs, num_depths, len(starts), task.meanwhile)
        except RecordingError as error:
            self._refused_rules.add(task.rule)
            _LOGGER.warning("this draft cannot be recorded, so it goes token by token: %s", error)
            return None
        self._launches.awaited()
        return chain

    def seconds(self) -> float:
        """Waits only if something was launched since values were last read: a pass run ahead stays under way."""
        if self._launches.are_pending:
            self._device.wait()
            self._launches.awaited()
        return time.perf_counter()

    # ------------------------------------------------------------------------------------------- one recorded pass

    def _launch(
        self,
        number: int,
        tokens: Tokens,
        starts: Sequence[int],
        cache: SlotCache,
        first_row: int,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        capture: tuple[str, ...] = (),
        tree: TreeMask | None = None,
    ) -> tuple[PassGraph, int]:
        """Send the inputs and replay the pass; its graph, and the cache bucket."""
        self._ahead = None
        num_tokens = len(tokens[0])
        rows, width = self._num_rows(number, len(starts)), _width(num_tokens)
        end = bucket(max(starts) + width)
        cache.reserve(end)
        buffers, outbox = self._pass_buffers(rows, width)
        there = tokens if isinstance(tokens, torch.Tensor) else None
        here = [[0] * num_tokens] * len(starts) if isinstance(tokens, torch.Tensor) else tokens
        buffers.fill(here, starts, num_tokens, cache, first_row, tree)
        buffers.send()
        if there is not None:
            buffers.tokens[: len(starts), :num_tokens].copy_(there)

        def build(record: Recorder) -> PassGraph:
            kept: dict[str, torch.Tensor] = {}

            def run() -> None:
                state = self._bodies[number].begin(buffers, cache, end, skip)
                scores, captured = self._bodies[number].finish(state, capture)
                outbox.choices.copy_(self.best_token(scores))
                kept.update({name: self._keep(name, value) for name, value in {**captured, "scores": scores}.items()})

            recording, _ = record(run)
            return PassGraph(recording, outbox, kept.pop("scores"), kept)

        key = GraphKey("pass", number, rows, width, end, skip, capture, self._cache_key(number, cache, first_row))
        graph = self.graphs.get(key, build)
        self._settle()
        graph.recording.replay()
        self._launches.launched()
        return graph, end

    def _forward_plain(
        self, number: int, tokens: Tokens, starts: tuple[int, ...], cache: SlotCache, first_row: int, ahead: bool
    ) -> PassOutput:
        """One token a row through the whole model; it may be there already."""
        found = self._ahead
        if found is not None and found.is_asked_for(tokens, starts, cache, first_row):
            graph, end = found.graph, found.end
            self.num_hits += 1
        else:
            graph, end = self._launch(number, tokens, starts, cache, first_row)
        self._ahead = None
        choices = self._new_choices(graph, len(starts), 1)
        if ahead and max(starts) + 2 <= end:
            choices.send()  # what runs ahead overwrites them on the device
            self._advance(graph).replay()
            graph.recording.replay()
            following = tuple(start + 1 for start in starts)
            self._ahead = Ahead(weakref.ref(cache), cache.address, first_row, following, choices, graph, end)
        return PassOutput(*graph.results(len(starts), 1), choices)

    def _advance(self, graph: PassGraph) -> Recording:
        """Feeds the best tokens of a pass to the same pass, one slot on."""
        choices = graph.outbox.choices
        rows = len(choices)
        buffers, _ = self._pass_buffers(rows, 1)

        def advance() -> None:
            is_row = torch.arange(rows, device=choices.device)[:, None] < buffers.header[4]
            buffers.tokens.copy_(torch.where(is_row, choices, 0))
            buffers.starts.add_(1)

        def build(record: Recorder) -> Recording:
            saved = buffers.data.clone()
            recording, _ = record(advance, lambda: _copy(saved, buffers.data))
            return recording

        return self.graphs.get(GraphKey("advance", 0, rows, 1, 0, SkipSet()), build)

    def _new_choices(self, graph: PassGraph, rows: int, width: int) -> Choices:
        return Choices(self._launches, graph.outbox.next_readback(), rows, width)

    # -------------------------------------------------------------------------------------- what recordings stand on

    def _body_for(self, num_rows: int, width: int) -> int | None:
        """The number of the body for a pass of this size; None: not recorded."""
        if self.fallback_reason is not None or not 0 < width <= MAX_WIDTH:
            return None
        for number, body in enumerate(self._bodies):
            if self._num_rows(number, num_rows) * _width(width) <= body.max_tokens:
                return number
        return None

    def _num_rows(self, body: int, num_rows: int) -> int:
        return num_rows if self._bodies[body].holds_cache else _power_of_two(num_rows)

    def _cache_key(self, body: int, cache: SlotCache, first_row: int) -> tuple[int, ...]:
        if not self._bodies[body].holds_cache:
            return ()
        addresses = (store.data_ptr() for store in cache.stores)
        return (*addresses, cache.num_slots, cache.num_rows_allocated, first_row)

    def _pass_buffers(self, rows: int, width: int) -> tuple[PassBuffers, Outbox]:
        if (rows, width) not in self._passes:
            outbox = Outbox(self._device, rows, width)
            self._passes[rows, width] = PassBuffers(self._device, rows, width), outbox
        return self._passes[rows, width]

    def _draft_buffers(self, rows: int, num_candidates: int) -> tuple[DraftBuffers, DraftOutputs]:
        key = (rows, num_candidates)
        if key not in self._drafts:
            outputs = DraftOutputs(self._device, rows, num_candidates)
            self._drafts[key] = DraftBuffers(self._device, rows), outputs
        return self._drafts[key]

    def _keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A copy outside of the recordings' memory; passes of one size class share it."""
        key = (name, value.dtype, _power_of_two(value.numel()))
        if key not in self._kept:
            self._kept[key] = self._device.zeros(key[2], dtype=value.dtype)
        kept = self._kept[key][: value.numel()].view(value.shape)
        kept.copy_(value)
        return kept

    def _fall_back(self, error: RecordingError) -> None:
        self._begin_anew()
        self._run_eagerly(str(error))

    def _run_eagerly(self, reason: str) -> None:
        self.fallback_reason = reason
        name = type(self.decoder.model).__name__
        _LOGGER.warning("%s cannot be recorded, so every operation is launched by itself: %s", name, reason)


def _is_transformers(hook: Any) -> bool:
    """Its own hooks do nothing unless a call asks for hidden states."""
    return str(getattr(hook, "__module__", "")).startswith("transformers.")


def bucket(num_slots: int) -> int:
    """Slots that a recorded pass reads: a power of two."""
    return max(MIN_SLOTS, _power_of_two(num_slots))


@functools.cache
def _width(width: int) -> int:
    return next(known for known in WIDTHS if known >= width)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)
