"""Recordings: work on tensors that stay where they are, launched again as one.

A recording freezes everything but the contents of those tensors: shapes, addresses, Python values and branches. What
it freezes of a pass is its `GraphKey`; sizes are rounded up, so that few keys serve all texts.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ...types import SkipSet
from .memory import MAX_WIDTH, recording

T = TypeVar("T")
NUM_WARM_UPS = 1
MAX_BYTES = 2 << 30
MIN_SLOTS = 256
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, MAX_WIDTH)


def bucket(num_slots: int) -> int:
    """Slots that a recorded pass reads: a power of two."""
    return max(MIN_SLOTS, power_of_two(num_slots))


def power_of_two(number: int) -> int:
    """The next one up from `number`."""
    return 1 << (number - 1).bit_length()


@functools.cache
def padded_width(width: int) -> int:
    return next(known for known in WIDTHS if known >= width)


class GraphKey(NamedTuple):
    """What a recording freezes. `cache`: what it is bound to, if anything: addresses, slots, rows, the first row."""

    kind: Hashable
    forward: Hashable
    rows: int
    width: int
    end: int
    skip: SkipSet
    capture: tuple[str, ...] = ()
    cache: tuple[int, ...] = ()


class Recording(Protocol):
    @property
    def num_bytes(self) -> int: ...

    def replay(self) -> None: ...


class Recorder(Protocol):
    def __call__(self, function: Callable[[], T], reset: Callable[[], object] | None = None) -> tuple[Recording, T]:
        """Record what `function` does; it is run several times, `reset` before each and at the end.

        The tensors it returns are rewritten by every replay. All recordings share their memory, so replaying another
        one may overwrite them, too: what somebody keeps, the function copies into tensors made beforehand.
        """
        ...


class RecordingError(RuntimeError):
    """What cannot be recorded on this device; the message says why."""


class CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, num_bytes: int) -> None:
        self._graph, self.num_bytes = graph, num_bytes
        self.replay = graph.replay


class CudaRecorder:
    """CUDA graphs that share one memory pool. Captured on a stream of its own, replayed on the current one.

    The pool would go with the last of its graphs, so one that does next to nothing is kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._keeper: Recording | None = None

    def __call__(self, function: Callable[[], T], reset: Callable[[], object] | None = None) -> tuple[Recording, T]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
            self._keeper, _ = self._record(lambda: torch.zeros(1, device=self._device), _nothing)
        return self._record(function, reset or _nothing)

    def _record(self, function: Callable[[], T], reset: Callable[[], object]) -> tuple[Recording, T]:
        current, stream = torch.cuda.current_stream(self._device), self._stream
        assert stream is not None
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(NUM_WARM_UPS):
                    reset()
                    function()
                reset()
                return self._capture(function)
        finally:
            current.wait_stream(stream)

    def _capture(self, function: Callable[[], T]) -> tuple[Recording, T]:
        torch.cuda.synchronize(self._device)
        _clear_workspaces()
        free, reserved = self._memory()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = function()
        except BaseException:
            with suppress(RuntimeError):  # it only repeats that something went wrong
                graph.capture_end()
            self._stream = None  # and the pool with it: neither may be fit for another capture
            raise
        graph.capture_end()
        _clear_workspaces()
        free_after, reserved_after = self._memory()
        return CudaGraph(graph, max(free - free_after, reserved_after - reserved, 0)), result

    def _memory(self) -> tuple[int, int]:
        """Bytes free on the device, bytes that the allocator holds."""
        return torch.cuda.mem_get_info(self._device)[0], torch.cuda.memory_reserved(self._device)


def _clear_workspaces() -> None:
    """Before and after a capture: what cuBLAS works in then belongs to the graph's own memory.

    Otherwise graphs would hold the address of what is shared by all, which torch.compile frees at will.
    """
    getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)()


def _nothing() -> None:
    pass


class Graphs:
    """What was recorded, by key; the least recently used goes first when `max_bytes` are exceeded."""

    def __init__(self, record: Recorder, max_bytes: int = MAX_BYTES) -> None:
        self._record, self.max_bytes = record, max_bytes
        self._entries: OrderedDict[Hashable, tuple[Any, list[Recording]]] = OrderedDict()
        self.num_captures, self.capture_seconds = 0, 0.0

    @property
    def keys(self) -> list[Hashable]:
        """Of what is kept, the least recently used first."""
        return list(self._entries)

    @property
    def num_graphs(self) -> int:
        return sum(len(recordings) for _, recordings in self._entries.values())

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for _, recordings in self._entries.values() for one in recordings)

    def figures(self) -> dict[str, Any]:
        counts = {"num_graphs": self.num_graphs, "num_bytes": self.num_bytes, "num_captures": self.num_captures}
        return {**counts, "capture_seconds": self.capture_seconds}

    def get(self, key: Hashable, build: Callable[[Recorder], T]) -> T:
        """What `build` made for this key; it is given the recorder, and everything it records counts as one entry."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._build(build)
            while self.num_bytes > self.max_bytes and len(self._entries) > 1:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        made: T = entry[0]
        return made

    def _build(self, build: Callable[[Recorder], T]) -> tuple[T, list[Recording]]:
        recordings: list[Recording] = []

        def record(function: Callable[[], Any], reset: Callable[[], object] | None = None) -> tuple[Recording, Any]:
            made, result = self._record(function, reset)
            recordings.append(made)
            self.num_captures += 1
            return made, result

        began = time.perf_counter()
        try:
            with recording(), torch.inference_mode():
                return build(record), recordings
        except Exception as error:
            raise RecordingError(f"{type(error).__name__}: {error}") from error
        finally:
            self.capture_seconds += time.perf_counter() - began

    def drop(self, is_stale: Callable[[Any], bool]) -> None:
        """Forget the entries whose key is stale."""
        for key in [key for key in self._entries if is_stale(key)]:
            del self._entries[key]

    def clear(self) -> None:
        self._entries.clear()
