"""FusedPrefill: a joined model's prefill in nine launches a layer, none of which waits for the host.

Norm, QKV product, rotary and store, attention, output product; norm, gate and up product, gating, down product. The
products are the vendor's. The tokens of all rows stand packed in one vector, whatever is before them in their cache
rows: attention reads keys and values from there, through an address on the device. So one recording serves every cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from ...errors import SelfTestError
from ...kernels.norm import add_norm, norm_heads
from ...kernels.prefill import attend, queries_of, rotate_and_store
from ...passes import PassOutput, PassRequest
from ...types import SkipSet
from ..cache import SlotCache
from ..checks import relative_error, tolerance_of
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedBranch, JoinedMLP, JoinedModule, JoinedNorm
from ..placement import Placement
from ..prompts import packed
from ..sublayer import SubLayer, up_to_last_keys
from .fused import sorts_of
from .graphs import GraphKey, Graphs, Recorder, Recording
from .memory import Device, PromptBuffers, Rooms, power_of_two
from .prefill import PREFILL_STEP, Prefill, prefill_width
from .products import inner_product

MAX_TOKENS = 2048
"""Of what is recorded: beyond, launching takes less than computing."""
MAX_KEPT_STATES = 1 << 15
"""All points together: their memory stays."""
FEW_ROWS, MANY_ROWS = 8, 64
"""A recording has room for this many rows: few sizes, for each is recorded for itself."""
_PROOF_WIDTHS, _PROOF_WINDOW = ((PREFILL_STEP + 6, 5), (3, 9)), 3


@dataclass(frozen=True)
class PrefillGraph:
    """What every replay writes."""

    recording: Recording
    captured: Mapping[str, torch.Tensor]


def padded_chunks(num_rows: int) -> int:
    return next((size for size in (FEW_ROWS, MANY_ROWS) if num_rows <= size), power_of_two(num_rows))


class FusedPrefill(Prefill):
    """For the models that FusedForward is for. The states captured of a pass are written over by the next one's."""

    def __init__(self, decoder: Decoder, graphs: Graphs | None = None) -> None:
        super().__init__(decoder)
        self._graphs, self._room, device = graphs, Rooms(), Device(decoder.device)
        self._scale = decoder.embedding_scale
        widths = {prefill_width(width) for width in range(1, MAX_TOKENS + 1)}
        self.recorded_widths = () if graphs is None else sorted(widths)
        self._inputs = functools.cache(lambda size, rows: PromptBuffers(device, size, rows, queries_of(size)))

    def sorts(self, skip: SkipSet) -> Hashable:
        return sorts_of(self._decoder.active_sublayers(skip))

    @torch.inference_mode()
    def run(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        self._decoder.check_points(request.capture)
        lengths = [len(row) for row in request.tokens]
        cache.reserve(max(start + length for start, length in zip(request.starts, lengths, strict=True)))
        captured = self._run(request, prefill_width(sum(lengths)), cache)
        return packed(
            self._decoder, {point: states[: sum(lengths)] for point, states in captured.items()}, len(lengths)
        )

    def _run(self, request: PassRequest, num_tokens: int, cache: SlotCache) -> Mapping[str, torch.Tensor]:
        """The captured states [num_tokens, hidden] of the request's tokens and what pads them."""
        rows, skip, capture = padded_chunks(len(request.starts)), request.skip, tuple(request.capture)
        inputs = self._inputs(num_tokens, rows)
        inputs.send_request(request, cache)
        is_small = num_tokens <= MAX_TOKENS and num_tokens * len(capture) <= MAX_KEPT_STATES
        if self._graphs is None or not is_small:
            return self._captured(inputs, skip, capture)
        key = GraphKey("prefill", self, rows, num_tokens, 0, skip, capture)
        graph = self._graphs.get(key, lambda record: self._record(record, inputs, skip, capture))
        graph.recording.replay()
        return graph.captured

    def _record(self, record: Recorder, inputs: PromptBuffers, skip: SkipSet, capture: tuple[str, ...]) -> PrefillGraph:
        kept: dict[str, torch.Tensor] = {}

        def run() -> None:
            for name, states in self._captured(inputs, skip, capture).items():
                kept[name] = self._room(name, states.shape, states.dtype, states.device)
                kept[name].copy_(states)

        recording, _ = record(run)
        return PrefillGraph(recording, kept)

    def _captured(self, inputs: PromptBuffers, skip: SkipSet, capture: Sequence[str]) -> dict[str, torch.Tensor]:
        """Run it; nothing is read on the host."""
        decoder = self._decoder
        sublayers = decoder.active_sublayers(skip)
        known = ("embedding", *(part.name for part in sublayers), "norm")
        sources = {point: decoder.last_point(point, known) for point in capture}
        streams = self._streams(sublayers, inputs, frozenset(sources.values()))
        return {point: streams[source] for point, source in sources.items()}

    def _streams(
        self, sublayers: Sequence[SubLayer], inputs: PromptBuffers, points: frozenset[str]
    ) -> dict[str, torch.Tensor]:
        """[tokens, hidden] after each of `points`; the last branch is added only where one of them follows it."""
        stream: torch.Tensor = F.embedding(inputs.tensors["tokens"], self._decoder.embedding)
        stream = stream if self._scale == 1 else stream * self._scale
        streams: dict[str, torch.Tensor] = {}
        branch: torch.Tensor | None = None
        name = "embedding"
        after: tuple[JoinedNorm | None, float] = (None, 1.0)
        for sublayer in sublayers if points else up_to_last_keys(sublayers):
            part: Any = sublayer.run
            stream, normed = add_norm(stream, branch, part.norm, *after)
            if name in points:
                streams[name] = stream
            branch = run_branch(part, normed, functools.partial(self._attend, inputs))
            name, after = sublayer.name, (part.after, part.multiplier)
        if not points.isdisjoint((name, "norm")):
            norm: Any = self._decoder.final_norm
            streams[name], streams["norm"] = add_norm(stream, branch, norm, *after)
        return streams

    def _attend(self, inputs: PromptBuffers, part: JoinedAttention, qkv: torch.Tensor) -> torch.Tensor:
        header, chunks, slots = (inputs.tensors[name] for name in ("header", "chunks", "slots"))
        rotate_and_store(qkv, header, chunks, slots, part.heads, part.layer)
        return attend(qkv, header, inputs.tensors["segments"], slots, inputs.tensors["blocks"], part.heads, part.layer)

    @torch.inference_mode()
    def prove(self) -> None:
        """Raise unless its states are the decoder's: of two texts that differ in length, and of tokens after them."""
        decoder, starts = self._decoder, [0, 0]
        caches, size = [decoder.new_cache(3, sum(map(max, _PROOF_WIDTHS))) for _ in range(2)], len(decoder.embedding)
        for widths in _PROOF_WIDTHS:
            tokens = [
                [(7919 * slot + 11 + row) % size for slot in range(start, start + width)]
                for row, (start, width) in enumerate(zip(starts, widths, strict=True))
            ]
            request = PassRequest(tokens, starts, [0, 2], capture=("norm",), needs_scores=False)
            runs = zip((self, Prefill(decoder)), caches, strict=True)
            check_states(*(one.run(request, cache).captured["norm"] for one, cache in runs))
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        parts = [part.run for part in decoder.sublayers if isinstance(part.run, JoinedAttention)]
        if any(part.heads.window is not None for part in parts):
            self._prove_window(replace(parts[0], heads=replace(parts[0].heads, window=_PROOF_WINDOW)))

    def _prove_window(self, part: JoinedAttention) -> None:
        """Raise unless attention keeps to a window: a model's are longer than what it is proven with."""
        decoder, width = self._decoder, 3 * _PROOF_WINDOW
        tokens, caches = [[5 + slot for slot in range(width)]], [decoder.new_cache(1, width) for _ in range(2)]
        inputs = self._inputs(prefill_width(width), FEW_ROWS)
        inputs.send_request(PassRequest(tokens, [0], needs_scores=False), caches[0])
        placement = Placement.chain([0], width, decoder.device)
        hidden, step = decoder.embed(torch.tensor(tokens, device=decoder.device), placement, caches[1])
        normed = hidden if part.norm is None else part.norm(hidden)
        padded = F.pad(normed[0], (0, 0, 0, len(inputs.tensors["tokens"]) - width))
        found = run_branch(part, padded, functools.partial(self._attend, inputs))
        check_states(found[:width], part.output(normed, step)[0])


def run_branch(
    part: JoinedBranch, normed: torch.Tensor, mix: Callable[[JoinedAttention, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """What a sub-layer adds to the stream, of tokens [tokens, hidden]; `mix`: what its attention makes of QKV."""
    if isinstance(part, JoinedModule):
        return part.module(normed[None]).view_as(normed)
    if isinstance(part, JoinedMLP):
        inner = inner_product(
            normed, part.up, part.up_bias, is_theirs=True, kind=str(part.kind), is_gated=part.is_gated
        )
        return F.linear(inner, part.down, part.down_bias)
    assert isinstance(part, JoinedAttention)
    qkv = F.linear(normed, part.qkv, part.qkv_bias)
    norm_heads(qkv, part.query_norm_all, part.key_norm_all)
    return F.linear(mix(part, qkv), part.out, part.out_bias)


def check_states(found: torch.Tensor, expected: torch.Tensor) -> None:
    error, tolerance = relative_error(found, expected), tolerance_of(expected.dtype)
    if not error <= tolerance:
        raise SelfTestError(f"its states differ from the model's by {error:.2g}, allowed {tolerance:.2g}")
