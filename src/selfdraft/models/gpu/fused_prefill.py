"""FusedPrefill: a joined model's prefill in nine launches a layer, none of which waits for the host.

Norm, QKV product, rotary and store, attention, output product; norm, gate and up product, SwiGLU, down product. The
products are the vendor's, attention is torch's flash kernel: no mask is built. A prompt's first tokens see but each
other, so that they read no cache, and store through an address on the device: one recording serves every cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...errors import SelfTestError
from ...kernels.attention import Heads
from ...kernels.norm import add_norm
from ...kernels.prefill import gate, rotate_and_store
from ...passes import PassRequest
from ...types import SkipSet
from ..cache import SlotCache
from ..checks import relative_error, tolerance_of
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedMLP
from ..placement import band_of
from ..sublayer import SubLayer
from .fused import MAX_POSITIONS, sorts_of
from .graphs import GraphKey, Graphs, Recorder, Recording
from .memory import Device, PromptBuffers, Rooms
from .prefill import PREFILL_STEP, Prefill, prefill_width

MAX_TOKENS = 2048
"""Of what is recorded: beyond, launching takes less than computing."""
MAX_KEPT = 1 << 15
"""States, all points together: their memory stays."""
_PROOF_WIDTHS, _PROOF_WINDOW = (PREFILL_STEP + 6, 5), 3


@dataclass(frozen=True)
class Chunk:
    """Tokens on the device and what becomes of them.

    `past`: where something stands before them, a layer's keys and values up to their end [2, rows, end, heads, dim], as
    they are then.
    """

    inputs: PromptBuffers
    skip: SkipSet
    capture: tuple[str, ...]
    past: Callable[[int], torch.Tensor] | None = None


@dataclass(frozen=True)
class PrefillGraph:
    """What every replay writes."""

    recording: Recording
    captured: Mapping[str, torch.Tensor]


class FusedPrefill(Prefill):
    """For the models that FusedForward is for. Rows that start at different slots run as the decoder's modules.

    A prompt's first chunk is recorded: its attention reads no cache. The states captured of it are written over by the
    next prompt's.
    """

    def __init__(self, decoder: Decoder, graphs: Graphs | None = None) -> None:
        super().__init__(decoder)
        self._graphs, self._room, device = graphs, Rooms(), Device(decoder.device)
        self._table = decoder.rotary_table(decoder.context_length or MAX_POSITIONS)
        widths = {prefill_width(width) for width in range(1, MAX_TOKENS + 1)}
        self.recorded_widths = () if graphs is None else sorted(widths)
        self._inputs = functools.cache(lambda rows, width: PromptBuffers(device, rows, width))

    def sorts(self, skip: SkipSet) -> Hashable:
        return sorts_of(self._decoder.active_sublayers(skip))

    def _run(self, request: PassRequest, width: int, cache: SlotCache) -> Mapping[str, torch.Tensor]:
        if len(set(request.starts)) > 1:
            return super()._run(request, width, cache)
        rows, capture = len(request.starts), tuple(request.capture)
        chunk = Chunk(self._inputs(rows, width), request.skip, capture, _past(request, width, cache))
        chunk.inputs.send_request(request, cache)
        is_small = rows * width <= MAX_TOKENS and rows * width * len(capture) <= MAX_KEPT
        if self._graphs is None or chunk.past is not None or not is_small:
            return self._captured(chunk)
        key = GraphKey("prefill", self, rows, width, 0, request.skip, capture)
        graph = self._graphs.get(key, lambda record: self._record(record, chunk))
        graph.recording.replay()
        return graph.captured

    def _record(self, record: Recorder, chunk: Chunk) -> PrefillGraph:
        kept: dict[str, torch.Tensor] = {}

        def run() -> None:
            for name, states in self._captured(chunk).items():
                kept[name] = self._room(name, states.shape, states.dtype, states.device)
                kept[name].copy_(states)

        recording, _ = record(run)
        return PrefillGraph(recording, kept)

    def _captured(self, chunk: Chunk) -> dict[str, torch.Tensor]:
        """Run it; nothing is read on the host."""
        decoder = self._decoder
        sublayers = decoder.active_sublayers(chunk.skip)
        known = ("embedding", *(part.name for part in sublayers), "norm")
        sources = {point: decoder.last_point(point, known) for point in chunk.capture}
        streams = self._streams(sublayers, chunk, frozenset(sources.values()))
        shape = (*chunk.inputs.tokens.shape, -1)
        return {point: streams[source].view(shape) for point, source in sources.items()}

    def _streams(self, sublayers: Sequence[SubLayer], chunk: Chunk, points: frozenset[str]) -> dict[str, torch.Tensor]:
        """[tokens, hidden] after each of `points`; the last branch is added only where one of them follows it."""
        stream: torch.Tensor = F.embedding(chunk.inputs.tokens.flatten(), self._decoder.embedding)
        streams: dict[str, torch.Tensor] = {}
        branch: torch.Tensor | None = None
        name = "embedding"
        for sublayer in sublayers:
            part: Any = sublayer.run
            stream, normed = add_norm(stream, branch, part.norm.weight, part.norm.eps)
            if name in points:
                streams[name] = stream
            branch, name = self._branch(part, normed, chunk), sublayer.name
        if not points.isdisjoint((name, "norm")):
            norm: Any = self._decoder.final_norm
            streams[name], streams["norm"] = add_norm(stream, branch, norm.weight, norm.eps)
        return streams

    def _branch(self, part: JoinedAttention | JoinedMLP, normed: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        if isinstance(part, JoinedMLP):
            return F.linear(gate(F.linear(normed, part.gate_up, part.gate_up_bias)), part.down, part.down_bias)
        heads = Heads(part.num_heads, part.num_kv_heads, part.head_dim, part.scaling, part.window)
        qkv = F.linear(normed, part.qkv, part.qkv_bias).view(*chunk.inputs.tokens.shape, -1, heads.dim)
        rotate_and_store(qkv, chunk.inputs.header, self._table, heads, part.layer)
        query, keys, values = _split(qkv, heads)
        if chunk.past is not None:
            keys, values = chunk.past(part.layer)
        mixed = attend(query, keys, values, heads)
        return F.linear(mixed.reshape(len(normed), -1), part.out, part.out_bias)

    @torch.inference_mode()
    def prove(self) -> None:
        """Raise unless its states are the decoder's: of a text, and of a few tokens after it."""
        decoder, start = self._decoder, 0
        tokens = (torch.arange(sum(_PROOF_WIDTHS))[None] * 7919 + 11) % decoder.embedding.shape[0]
        runs, caches = (self, Prefill(decoder)), [decoder.new_cache(1, tokens.shape[1]) for _ in range(2)]
        for width in _PROOF_WIDTHS:
            request = PassRequest(tokens[:, start : start + width], [start], capture=("norm",), needs_scores=False)
            _check(*(one.run(request, cache).captured["norm"] for one, cache in zip(runs, caches, strict=True)))
            start += width
        parts = [part.run for part in decoder.sublayers if isinstance(part.run, JoinedAttention)]
        if any(part.window is not None for part in parts):
            _prove_window(parts[0], decoder)


def _split(qkv: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of [rows, width, all heads, dim]."""
    return torch.split(qkv, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=2)


def _past(request: PassRequest, width: int, cache: SlotCache) -> Callable[[int], torch.Tensor] | None:
    storage, end = cache.storage, request.starts[0] + width
    if end == width:
        return None
    assert storage is not None, "layers that differ do not run fused"
    band = band_of(request.cache_rows, storage.device)  # not of neighbours: what is read is copied
    return lambda layer: storage[layer][:, band, :, :end].transpose(-2, -3)


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads) -> torch.Tensor:
    """`query` [rows, width, heads, dim], keys and values [rows, end, kv heads, dim]; the last query sees up to the end.

    By the operation itself: `scaled_dot_product_attention` may choose cuDNN, which prepares every new width for
    milliseconds, and it has no windows.
    """
    if not query.is_cuda:
        return attend_masked(query, keys, values, heads)
    window = {} if heads.window is None else {"window_size_left": heads.window - 1, "window_size_right": 0}
    flash: Any = torch.ops.aten._flash_attention_forward.default
    width, end, scale = query.shape[1], keys.shape[1], heads.scaling
    mixed: torch.Tensor = flash(query, keys, values, None, None, width, end, 0.0, True, False, scale=scale, **window)[0]
    return mixed


def attend_masked(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, heads: Heads) -> torch.Tensor:
    """What `attend` must compute, on any device."""
    width, end = query.shape[1], keys.shape[1]
    slots = torch.arange(end, device=query.device)
    ages = slots[end - width :, None] - slots
    mask = (ages >= 0) & (ages < (heads.window or end))
    query, keys, values = (part.transpose(1, 2) for part in (query, keys, values))
    mixed = F.scaled_dot_product_attention(query, keys, values, mask, scale=heads.scaling, enable_gqa=True)
    return mixed.transpose(1, 2)


def _prove_window(part: JoinedAttention, decoder: Decoder) -> None:
    """Raise unless attention keeps to a window: a model's are longer than what it is proven with."""
    heads = Heads(part.num_heads, part.num_kv_heads, part.head_dim, part.scaling, _PROOF_WINDOW)
    num_numbers = 16 * (heads.num_heads + 2 * heads.num_kv_heads) * heads.dim
    numbers = torch.arange(num_numbers, device=decoder.device).mul(0.7).sin().to(decoder.dtype)
    query, keys, values = _split(numbers.view(1, 16, -1, heads.dim), heads)
    _check(*(function(query[:, 8:], keys, values, heads) for function in (attend, attend_masked)))


def _check(found: torch.Tensor, expected: torch.Tensor) -> None:
    error, tolerance = relative_error(found, expected), tolerance_of(expected.dtype)
    if not error <= tolerance:
        raise SelfTestError(f"its states differ from the model's by {error:.2g}, allowed {tolerance:.2g}")
