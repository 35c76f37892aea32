"""GraphRunner: finds the route of a pass or a draft. The map of what follows is in the folder's docstring.

A recording belongs to one skip set, width, number of rows and tokens, and cache bucket. What cannot be recorded (long
prompts, passes that resume from known states, models that read values while they run) takes the eager path.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...chains import DraftedChain, DraftTask
from ...kernels.top import runs_triton
from ...passes import PassOutput, PassRequest
from ..cache import SlotCache, StoragePool
from ..decoder import Decoder
from ..eager import EagerRunner, is_transformers
from ..probe import Probe
from .drafts import Drafts
from .forward import Forward, ModuleForward, PassSize, prove
from .graphs import MAX_BYTES, WIDTHS, CudaRecorder, Graphs, Recorder, RecordingError, bucket
from .history import Histories
from .memory import MAX_WIDTH, Device
from .outbox import Launches
from .plain import Passes
from .prefill import Prefill
from .probing import RecordedProbe, Works

_LOGGER = logging.getLogger(__name__)


def make_runner(model: Any, graphs: bool = True, packed_weights: bool | int = True) -> EagerRunner:
    """The runner for the device the model is on."""
    if graphs and model.device.type == "cuda":
        return GraphRunner(model)
    return EagerRunner(model, is_quick=graphs, packed_weights=packed_weights)


def forwards_for(decoder: Decoder) -> Sequence[Forward]:
    """How recorded passes may compute, best first: the first that is meant for a pass's size runs it."""
    if not runs_triton(decoder.device):
        return (ModuleForward(decoder),)
    from .fused import FusedForward, reason_against

    name, reason = type(decoder.model).__name__, reason_against(decoder)
    if reason is not None:
        _LOGGER.info("%s runs without fused kernels: %s", name, reason)
        return (ModuleForward(decoder),)
    fused = FusedForward(decoder)
    try:
        prove(fused, decoder)
    except Exception as error:
        _LOGGER.warning("%s runs without fused kernels: %s", name, error)
        return (ModuleForward(decoder),)
    return fused, ModuleForward(decoder)


def prefill_for(decoder: Decoder, graphs: Graphs) -> Prefill:
    """How prompts are read."""
    if not runs_triton(decoder.device):
        return Prefill(decoder)
    from .fused import reason_against
    from .fused_prefill import FusedPrefill

    if reason_against(decoder) is not None:
        return Prefill(decoder)
    try:
        FusedPrefill(decoder).prove()
    except Exception as error:
        _LOGGER.warning("%s reads prompts without fused kernels: %s", type(decoder.model).__name__, error)
        return Prefill(decoder)
    return FusedPrefill(decoder, graphs)


@functools.cache
def lock_of(device: torch.device) -> Any:
    """One for all engines on a device: while one of them records, no other may use it."""
    return threading.RLock()


class GraphRunner(EagerRunner):
    """Same interface and same results as the eager runner. `max_bytes` bounds what the recordings take."""

    saves_by_reuse = False
    recorded_widths = WIDTHS
    graphs: Graphs

    def __init__(
        self,
        model: Any,
        *,
        make_recorder: Callable[[torch.device], Recorder] = CudaRecorder,
        make_forwards: Callable[[Decoder], Sequence[Forward]] = forwards_for,
        make_prefill: Callable[[Decoder, Graphs], Prefill] = prefill_for,
        max_bytes: int = MAX_BYTES,
        launches: Launches | None = None,
    ) -> None:
        self._make_recorder, self._make_forwards, self._max_bytes = make_recorder, make_forwards, max_bytes
        self._make_prefill = make_prefill
        self._launches, self.lock = launches or Launches(), lock_of(model.device)
        self._others: list[GraphRunner] = []
        self._recorded_before = 0.0
        super().__init__(model)

    def another(self, model: Any) -> GraphRunner:
        other = type(self)(
            model,
            make_recorder=self._make_recorder,
            make_forwards=self._make_forwards,
            make_prefill=self._make_prefill,
            max_bytes=self._max_bytes,
            launches=self._launches,
        )
        self._others.append(other)
        return other

    def _begin(self) -> None:
        """Nothing is recorded of the model as it is now."""
        super()._begin()
        if "graphs" in vars(self):
            self._recorded_before += self.graphs.record_seconds
        self.fallback_reason = None
        self.graphs = Graphs(self._make_recorder(self.device), self._max_bytes)
        self._device, self._forwards = Device(self.device), self._make_forwards(self.decoder)
        self._prefill = self._make_prefill(self.decoder, self.graphs)
        self._storages = StoragePool()
        histories = Histories(self._device, self.graphs, self.vocab_size)
        self._drafts = Drafts(self._device, self.graphs, histories, self.vocab_size, self.decoder.dtype)
        parts = (self._device, self.graphs, self._launches, histories, self._drafts)
        self._passes = Passes(*parts, self.context_length)
        self._works = Works(self._device, self.graphs, self.decoder)
        self._is_settled = True
        if not all(map(is_transformers, self.decoder.watched.hooks)):
            self._run_eagerly("its forward hooks run on the host")

    # ---------------------------------------------------------------------------------------------------- routes

    def forward(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        try:
            return self._route(request, cache)
        except RecordingError as error:
            self._begin()
            self._run_eagerly(str(error))
            return self._route(request, cache)

    def _route(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        forward = self._forward_of(request)
        if not request.is_prompt:
            self._drafts.forget()
        if not (request.is_prompt if forward is None else forward.shared_block):
            cache.make_whole(request.cache_rows)
        if forward is not None:
            self.decoder.check_points(request.capture)
            self._settle()
            return self._passes.run(forward, request, cache)
        self._launches.launched()
        if not request.is_prompt:
            self._passes.forget_ahead()
            return super().forward(request, cache)
        self._passes.forget_ahead(request.cache_rows)
        self._is_settled = False  # also after what a strategy makes of the prompt
        return self._prefill.run(request, cache)

    def is_under_way(self, cache: SlotCache, rows: Sequence[int], starts: Sequence[int]) -> bool:
        return self._passes.is_under_way(cache, rows, starts)

    def draft(
        self, task: DraftTask, request: PassRequest, cache: SlotCache, vocabulary: int | None = None
    ) -> DraftedChain | None:
        forward = self._forward_for(request.row_widths)
        if forward is None or task.rule in self._drafts.refused:
            return None
        if not forward.shared_block:
            cache.make_whole(request.cache_rows)
        self._passes.forget_ahead()
        self._settle()
        chain = self._drafts.run(forward, task, request, cache, vocabulary)
        if chain is not None:
            self._launches.launched()
            self._launches.awaited()
        return chain

    def probe(self, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> Probe:
        """Whatever it runs is awaited by the next look at the clock."""
        self._drafts.forget()
        self._launches.launched()
        self._is_settled = False
        cache.make_whole([row])
        if self.fallback_reason is not None:
            return super().probe(cache, tokens, first, row)
        return RecordedProbe(self._works, cache, tokens, first, row)

    def _settle(self) -> None:
        if not self._is_settled:
            self._forwards[0].settle()
            self._is_settled = True

    def _forward_of(self, request: PassRequest) -> Forward | None:
        if not request.needs_scores or request.resume is not None:
            return None
        return self._forward_for(request.row_widths)

    def _forward_for(self, widths: Sequence[int]) -> Forward | None:
        """The one for a pass of this size; None: not recorded."""
        if self.fallback_reason is not None or not 0 < max(widths) <= MAX_WIDTH:
            return None
        sized = (forward for forward in self._forwards if PassSize.of(forward, widths).tokens <= forward.max_tokens)
        return next(sized, None)

    def _run_eagerly(self, reason: str) -> None:
        self.fallback_reason, self._prefill = reason, Prefill(self.decoder)
        name = type(self.decoder.model).__name__
        _LOGGER.warning("%s cannot be recorded, so every operation is launched by itself: %s", name, reason)

    # ----------------------------------------------------------------------------------------- memory and the clock

    @property
    def free_bytes(self) -> int:
        return super().free_bytes + self._storages.num_free_bytes

    def cache_slots(self, num_slots: int) -> int:
        return bucket(num_slots)

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        self._drafts.leave()
        if self.fallback_reason is not None:
            return super().new_cache(num_rows, num_slots)
        decoder = self.decoder
        cache = SlotCache(
            decoder.shapes,
            num_rows,
            bucket(num_slots),
            dtype=decoder.dtype,
            device=decoder.device,
            allocate=self._storages.take,
            shared_block=self._forwards[0].shared_block,
        )
        stale = self._storages.trim()
        if stale:
            self.graphs.drop(lambda key: bool(key.cache) and key.cache[0] in stale)
        return cache

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        if self.fallback_reason is not None:
            return ()
        last = bucket(num_slots)
        return [size for size in (1 << power for power in range(last.bit_length())) if size == bucket(size)]

    def seconds(self, is_idle: bool = False) -> float:
        """Waits only if something was launched since values were last read: a pass run ahead stays under way."""
        if is_idle or self._launches.are_pending:
            self._device.wait()
            self._launches.awaited()
        return time.perf_counter()

    @property
    def recorded_prompts(self) -> Sequence[int]:
        return self._prefill.recorded_widths

    @property
    def is_recording(self) -> bool:
        return self.fallback_reason is None

    @property
    def record_seconds(self) -> float:
        own = self._recorded_before + self.graphs.record_seconds
        return own + sum(other.record_seconds for other in self._others)

    @property
    def graph_keys(self) -> Sequence[Any]:
        return self.graphs.keys

    @property
    def num_hits(self) -> int:
        """Passes that had run ahead when they were asked for."""
        return self._passes.num_hits

    @property
    def drafts_ahead(self) -> tuple[int, int]:
        """Drafts that had been begun when they were asked for, and those begun in vain."""
        return self._drafts.num_hits, self._drafts.num_begun - self._drafts.num_hits
