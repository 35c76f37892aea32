"""Memory that stays where it is: how numbers come to the device in one copy, and how the host waits for what returns.

The little that differs between CPU and GPU is here, too, and whether values may be read at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...chains import DraftTask
from ...passes import SETTINGS, Choosing, Columns, PassRequest
from ..cache import SlotCache

MAX_WIDTH = 63
"""Columns of one pass: what a column sees of the others are the bits of a positive int64."""

Ints = npt.NDArray[np.int64]
_is_recording: ContextVar[bool] = ContextVar("is_recording", default=False)


def power_of_two(number: int) -> int:
    """The next one up from `number`."""
    return 1 << (number - 1).bit_length()


def reads_are_free(tensor: torch.Tensor) -> bool:
    """Whether a shortcut may read `tensor` on the host: a wait on a GPU, impossible in what is recorded."""
    return tensor.device.type == "cpu" and not _is_recording.get()


@contextmanager
def recording() -> Iterator[None]:
    """What runs inside will be replayed with other values."""
    token = _is_recording.set(True)
    try:
        yield
    finally:
        _is_recording.reset(token)


class Device:
    """Makes what outlives a pass: tensors on the device, tensors on the host that it can write by itself, signals."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"

    @torch.inference_mode(False)  # so that it may be written inside and outside of that mode
    def zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @torch.inference_mode(False)
    def host_zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)

    def wait(self) -> None:
        """Until everything launched so far is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


class Signal:
    """`wait` returns when the device has done all that was launched before the last `set`."""

    def __init__(self, device: Device) -> None:
        self._device = device.device
        self._event: Any = torch.cuda.Event() if device.is_cuda else None  # type: ignore[no-untyped-call]

    def set(self) -> None:
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class Readback:
    """One tensor's way to the host: started when it is launched (its copy may be recorded), awaited when it is read."""

    def __init__(self, device: Device, source: torch.Tensor, is_recorded: bool = False) -> None:
        self._source, self._is_recorded = source, is_recorded
        self._host = device.host_zeros(*source.shape, dtype=source.dtype)
        self._values: npt.NDArray[Any] = self._host.numpy()
        self._signal = Signal(device)

    def copy(self) -> None:
        self._host.copy_(self._source, non_blocking=True)

    def start(self) -> None:
        if not self._is_recorded:
            self.copy()
        self._signal.set()

    def read(self) -> npt.NDArray[Any]:
        """The values; the next `start` overwrites them."""
        self._signal.wait()
        return self._values


class Packed:
    """Arrays of int64 by name in one tensor, and its mirror on the host: filled there, then sent to `tensors[name]`."""

    def __init__(self, device: Device, shapes: dict[str, tuple[int, ...]]) -> None:
        size = sum(math.prod(shape) for shape in shapes.values())
        self.data, self._mirror = device.zeros(size), device.host_zeros(size)
        self._numbers: Ints = self._mirror.numpy()
        self._sent, self._refers = Signal(device), False
        self.host: dict[str, Ints] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        first = 0
        for name, shape in shapes.items():
            part = slice(first, first + math.prod(shape))
            self.host[name], self.tensors[name] = self._numbers[part].reshape(shape), self.data[part].view(shape)
            first = part.stop

    def write(self, numbers: Sequence[int]) -> None:
        """Into the mirror from its beginning, once the device has taken what was last sent.

        One plain list in the mirror's order: a call of numpy for each part costs more than all numbers.
        """
        self._sent.wait()
        self._numbers[: len(numbers)] = numbers

    def refer(self, request: PassRequest, cache: SlotCache) -> None:
        """`segments` [rows, 4] of the request's rows: see `kernels/attention.Place`; after `write`."""
        if self._refers or cache.segments:
            segments, self._refers = self.host["segments"], bool(cache.segments)
            segments[:] = 0
            for place, row in enumerate(request.cache_rows):
                if row in cache.segments:
                    segments[place, :3] = cache.segments[row].numbers

    def send(self) -> None:
        self.copy()
        self.taken()

    def copy(self) -> None:
        """Alone where it is recorded; whoever replays that says when it is `taken`."""
        self.data.copy_(self._mirror, non_blocking=True)

    def taken(self) -> None:
        """After all that was launched so far, the mirror may be written again."""
        self._sent.set()


class Rooms:
    """Memory by name that stays where it is: results of one name and size class share it."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[Any, ...], torch.Tensor] = {}

    @torch.inference_mode(False)
    def __call__(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Not filled; the same for the same arguments."""
        size = math.prod(shape)
        key = (name, dtype, device, power_of_two(size))
        if key not in self._rooms:
            self._rooms[key] = torch.empty(key[-1], dtype=dtype, device=device)
        return self._rooms[key][:size].view(*shape)


def is_even(rows: int, width: int, num_tokens: int) -> bool:
    """Whether all rows have as many of these tokens, so that none is packed."""
    return width == 1 or num_tokens == rows * width


class PassBuffers(Packed):
    """The numbers of one pass of `rows` x `width` tokens.

    `header` [8 + rows]: the cache's address, its slots a row, its rows allocated, 0 (free), the number of rows of the
    pass, the first one's start, 0, 0; then the cache row of each, and 0 of what only pads.
    `sees` [rows, width]: bit j is set where a column attends to column j of the pass. `indices` and `settings`: how
    the rows choose, see `passes.Choosing`. `first` and `places`: see `passes.Columns`; columns that only pad come last,
    so that a pass may compute its first `num_tokens` alone.
    """

    def __init__(self, device: Device, rows: int, width: int, more: dict[str, tuple[int, ...]] | None = None) -> None:
        square = (rows, width)
        num_first = rows // 2 * 2 + 2  # an even number: kernels are compiled for whether what follows is aligned
        shapes = {"header": (8 + rows,), "starts": (rows,), "first": (num_first,), "places": (rows * width,)}
        squares = {"tokens": square, "depths": square, "sees": square}
        choosing = {"indices": (rows,), "settings": (rows, len(SETTINGS))}
        super().__init__(device, {**shapes, **squares, **choosing, **(more or {}), "segments": (rows, 4)})
        self.rows, self.width, self.num_tokens = rows, width, rows * width
        self._places = list(range(rows * width))
        columns = range(width)
        self._zeros, self._blank = [0] * width, [1 << column | 1 for column in columns]
        self._chain_depths, self._chain_sees = list(columns), [(2 << column) - 1 for column in columns]
        self.header, self.starts, self.first = (self.tensors[name] for name in ("header", "starts", "first"))
        self.tokens, self.depths, self.sees = (self.tensors[name] for name in ("tokens", "depths", "sees"))
        self.indices, self.settings = self.tensors["indices"], self.tensors["settings"]

    @property
    def places(self) -> torch.Tensor:
        """Of what is computed."""
        return self.tensors["places"][: self.num_tokens]

    @property
    def is_row(self) -> torch.Tensor:
        """[rows, 1]: whether it does not only pad."""
        return torch.arange(self.rows, device=self.header.device)[:, None] < self.header[4]

    def fill(
        self, request: PassRequest, cache: SlotCache, more: Sequence[int] = (), num_tokens: int | None = None
    ) -> None:
        """Rows and columns that only pad have token 0 at depth 0; they see column 0 and themselves.

        `more` are numbers for what follows `settings`; `num_tokens` are computed, or all columns.
        """
        self.num_tokens = num_tokens or self.rows * self.width
        tokens, starts, tree = request.numbers, request.starts, request.tree
        rows, width = len(starts), len(tokens[0])
        depths = [self._chain_depths[:width]] * rows if tree is None else tree.depths
        sees = [self._chain_sees[:width]] * rows if tree is None else tree.sees
        numbers = [*_header(request, cache, self.rows), *starts, *[0] * (self.rows - rows)]
        numbers += self._packing(request, is_even(self.rows, self.width, self.num_tokens))
        for square, padding in ((tokens, self._zeros), (depths, self._zeros), (sees, self._blank)):
            for line in square:
                numbers += [*line, *padding[width:]]
            numbers += padding * (self.rows - rows)
        if request.choosing is not None or more:
            numbers += self._choosing_numbers(request.choosing)
        numbers += more
        self.write(numbers)
        self.refer(request, cache)

    def _packing(self, request: PassRequest, is_even: bool) -> list[int]:
        """`first` and `places`."""
        widths = [self.width] * len(request.starts) if is_even else request.row_widths
        first, places = [0, *itertools.accumulate(widths)], self._places
        if not is_even:
            begins = range(0, len(widths) * self.width, self.width)
            rows = list(zip(begins, widths, strict=True))
            places = [place for begin, width in rows for place in range(begin, begin + width)]
            places += [place for begin, width in rows for place in range(begin + width, begin + self.width)]
            places += self._places[begins.stop :]
        return [*first, *[first[-1]] * (len(self.host["first"]) - len(first)), *places]

    def _choosing_numbers(self, choosing: Choosing | None) -> list[int]:
        rows, size = (0 if choosing is None else len(choosing.indices)), len(SETTINGS)
        settings = () if choosing is None else [number for row in choosing.settings for number in row]
        indices = () if choosing is None else choosing.indices
        return [*indices, *[0] * (self.rows - rows), *settings, *[0] * (self.rows - rows) * size]

    @property
    def columns(self) -> Columns:
        """How the columns of this pass choose, without what is known of the texts."""
        rows = (self.header[8:], self.first, self.places)
        return Columns(self.settings, self.indices, self.depths, self.tokens, self.sees, *rows)

    def send_request(self, request: PassRequest, cache: SlotCache) -> None:
        self.fill(request, cache)
        self.send()


class PromptBuffers(Packed):
    """The tokens of some prompts, row after row: a `chunk` each. What pads belongs to no slot.

    `header` as in `PassBuffers`, a row for each chunk. `chunks`, `slots` [tokens]: where each token belongs; slot -1:
    nowhere. `blocks` [blocks, 4]: see `kernels/prefill.attend`; those that read most come first. The seventh number of
    the header is how many there are.
    """

    def __init__(self, device: Device, num_tokens: int, num_chunks: int, num_queries: int) -> None:
        flat, self._num_queries = (num_tokens,), num_queries
        num_blocks = num_tokens // num_queries + num_chunks
        shapes = {"header": (8 + num_chunks,), "tokens": flat, "chunks": flat, "slots": flat, "blocks": (num_blocks, 4)}
        super().__init__(device, {**shapes, "segments": (num_chunks, 4)})

    def send_request(self, request: PassRequest, cache: SlotCache) -> None:
        host, lengths = self.host, np.array([len(row) for row in request.tokens])
        starts, ends = np.array(request.starts), lengths.cumsum()
        chunks, num_tokens = np.repeat(np.arange(len(lengths)), lengths), int(ends[-1])
        blocks = _blocks(starts, ends - lengths, lengths, self._num_queries)
        self.write(_header(request, cache, len(host["header"]) - 8))
        host["header"][6] = len(blocks)
        host["tokens"][:num_tokens] = np.fromiter(itertools.chain(*request.numbers), np.int64, num_tokens)
        host["chunks"][:num_tokens] = chunks
        host["slots"][:num_tokens] = np.arange(num_tokens) + (starts - ends + lengths)[chunks]
        host["slots"][num_tokens:] = -1
        host["tokens"][num_tokens:] = 0
        host["blocks"][: len(blocks)] = blocks
        self.refer(request, cache)
        self.send()


def _blocks(starts: Ints, firsts: Ints, lengths: Ints, size: int) -> Ints:
    """Up to `size` neighbouring tokens each: chunk, first slot, first token, number."""
    counts = -(-lengths // size)
    chunks = np.repeat(np.arange(len(counts)), counts)
    places = (np.arange(len(chunks)) - (counts.cumsum() - counts)[chunks]) * size
    numbers = np.minimum(lengths[chunks] - places, size)
    blocks = np.stack((chunks, starts[chunks] + places, firsts[chunks] + places, numbers), axis=1)
    return blocks[np.argsort(-blocks[:, 1], kind="stable")]


def _header(request: PassRequest, cache: SlotCache, num_rows: int) -> list[int]:
    place, rows = [cache.address, cache.num_slots, cache.num_rows_allocated], request.cache_rows
    return [*place, 0, len(rows), request.starts[0], 0, 0, *rows, *[0] * (num_rows - len(rows))]


class DraftBuffers(PassBuffers):
    """The numbers of a draft that feeds itself, token by token: of each row its task and how far it has come.

    `depth` and `indices` are those of the token that is drafted next; `rooms`: what the text has room for, `caps` at
    most; `nothing` stays 0. `path` [rows, 63]: the tokens fed so far, the committed one first; `on_path`: a bit each.
    """

    def __init__(self, device: Device, rows: int) -> None:
        names = ("sequences", "ids", "caps", "rooms", "active", "depth", "on_path", "nothing")
        super().__init__(device, rows, 1, {**dict.fromkeys(names, (rows,)), "path": (rows, MAX_WIDTH)})

    def send_task(self, task: DraftTask, request: PassRequest, cache: SlotCache) -> None:
        """`request`: the draft's first pass, its tokens on the host."""
        numbers: list[int] = []
        padding = [0] * (self.rows - len(request.starts))
        active = [int(cap > 0) for cap in task.caps]
        sequences = [site.sequence for site in task.sites]
        for column in (sequences, task.sequence_ids, task.caps, task.rooms or task.caps, active):
            numbers += [*column, *padding]
        numbers += [1] * (2 * self.rows)  # depth, on_path
        numbers += [0] * self.rows  # nothing
        for (token,), site in zip(request.tokens, task.sites, strict=True):
            numbers += [token if site.position > 0 else -1, *self._blank_path]  # a prompt's last token is not generated
        self.fill(request._replace(choosing=task.choosing), cache, numbers)
        self.send()

    _blank_path = (0,) * (MAX_WIDTH - 1)

    @property
    def columns(self) -> Columns:
        path, on_path = self.tensors["path"], self.tensors["on_path"][:, None]
        return replace(super().columns, path=path, on_path=on_path)
