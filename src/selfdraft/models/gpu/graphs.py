"""Recordings: work on tensors that stay where they are, launched again as one.

A recording freezes everything but the contents of those tensors: shapes, addresses, Python values and branches. What
it freezes of a pass is its `GraphKey`; sizes are rounded up, so that few keys serve all texts.
"""

from __future__ import annotations

import functools
import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ...types import SkipSet
from .memory import MAX_WIDTH, power_of_two, recording

T = TypeVar("T")
MAX_BYTES = 2 << 30
MIN_SLOTS = 256
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, MAX_WIDTH)
MIN_TOKENS = 16
"""Of a pass whose rows are packed: products take as many at least, and fewer sizes are fewer recordings."""


def bucket(num_slots: int) -> int:
    """Slots that a recorded pass reads: a power of two."""
    return max(MIN_SLOTS, power_of_two(num_slots))


@functools.cache
def padded_width(width: int) -> int:
    return next(known for known in WIDTHS if known >= width)


def padded_tokens(number: int) -> int:
    """A power of two, or one and a half: what pads costs as much as what does not."""
    whole = max(MIN_TOKENS, power_of_two(number))
    return whole * 3 // 4 if whole > MIN_TOKENS * 2 and number <= whole * 3 // 4 else whole


class Work(Hashable, Protocol):
    def sorts(self, skip: SkipSet) -> Hashable:
        """Of the sub-layers that run: those of one sort run the same kernels."""
        ...


class GraphKey(NamedTuple):
    """What a recording freezes. `cache`: what it is bound to, if anything: addresses, slots, rows, the first row."""

    kind: Hashable
    forward: Work | None
    rows: int
    width: int
    end: int
    skip: SkipSet
    capture: tuple[str, ...] = ()
    cache: tuple[int, ...] = ()
    tokens: int = 0  # that are computed

    @property
    def work(self) -> Hashable:
        """What decides which kernels run. Skip sets are compositions of the same ones if they leave the same sorts."""
        sorts = () if self.forward is None else self.forward.sorts(self.skip)
        return self._replace(skip=SkipSet()), sorts


class Recording(Protocol):
    @property
    def num_bytes(self) -> int: ...

    def replay(self) -> None: ...


class Recorder(Protocol):
    def __call__(
        self, function: Callable[[], T], reset: Callable[[], object] | None = None, is_warm: bool = False
    ) -> tuple[Recording, T]:
        """Record what `function` does. Unless `is_warm`, it is run first, with `reset` before it and at the end.

        That compiles and loads its kernels, which a recording cannot do. It `is_warm` if the same work has been run.
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

    def __call__(
        self, function: Callable[[], T], reset: Callable[[], object] | None = None, is_warm: bool = False
    ) -> tuple[Recording, T]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
            self._keeper = self._capture(self._stream, lambda: torch.zeros(1, device=self._device))[0]
        if not is_warm:
            self._warm_up(self._stream, function, reset or _nothing)
        return self._capture(self._stream, function)

    def _warm_up(self, stream: Any, function: Callable[[], object], reset: Callable[[], object]) -> None:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            reset()
            function()
            reset()
        stream.synchronize()  # what it writes to the host must not arrive later

    def _capture(self, stream: Any, function: Callable[[], T]) -> tuple[Recording, T]:
        """Nothing runs, so nothing is waited for."""
        free = self._free_bytes()
        _clear_workspaces()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), _nothing_collected():
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
        return CudaGraph(graph, max(free - self._free_bytes(), 0)), result

    def _free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """While capturing: a graph of another engine that Python frees just then would end the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
        self._warm: set[Hashable] = set()
        self.num_captures, self.record_seconds = 0, 0.0

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

    def get(self, key: Hashable, build: Callable[[Recorder], T]) -> T:
        """What `build` made for this key; it is given the recorder, and everything it records counts as one entry."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._build(key, build)
            while self.num_bytes > self.max_bytes and len(self._entries) > 1:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        made: T = entry[0]
        return made

    def find(self, key: Hashable) -> Any:
        """What there is for this key, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def _build(self, key: Hashable, build: Callable[[Recorder], T]) -> tuple[T, list[Recording]]:
        work = key.work if isinstance(key, GraphKey) else key
        began = time.perf_counter()
        try:
            with recording(), torch.inference_mode():
                made = self._try(build, work in self._warm)
        except Exception as error:
            raise RecordingError(f"{type(error).__name__}: {error}") from error
        finally:
            self.record_seconds += time.perf_counter() - began
        self._warm.add(work)
        return made

    def _try(self, build: Callable[[Recorder], T], is_warm: bool) -> tuple[T, list[Recording]]:
        """Without a warm-up if that may do, else with one."""
        recordings: list[Recording] = []

        def record(
            function: Callable[[], Any], reset: Callable[[], object] | None = None, is_warm: bool = is_warm
        ) -> tuple[Recording, Any]:
            made, result = self._record(function, reset, is_warm)
            recordings.append(made)
            return made, result

        try:
            built = build(record)
        except Exception:
            if is_warm:
                return self._try(build, False)
            raise
        self.num_captures += len(recordings)
        return built, recordings

    def drop(self, is_stale: Callable[[Any], bool]) -> None:
        """Forget the entries whose key is stale."""
        for key in [key for key in self._entries if is_stale(key)]:
            del self._entries[key]

    def clear(self) -> None:
        self._entries.clear()
