"""FusedPrefill: a joined model's prefill in nine launches a layer, none of which waits for the host.

Norm, QKV product, rotary and store, attention, output product; norm, gate and up product, SwiGLU, down product. The
products are the vendor's, attention is torch's flash kernel over the slots of the cache: no mask is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...errors import SelfTestError
from ...kernels.attention import Heads
from ...kernels.norm import add_norm
from ...kernels.prefill import gate, rotate_and_store
from ...passes import PassOutput, PassRequest
from ..cache import SlotCache
from ..checks import relative_error, tolerance_of
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedMLP
from ..sublayer import SubLayer
from .fused import MAX_POSITIONS
from .prefill import PREFILL_STEP, Prefill

_PROOF_WIDTHS, _PROOF_WINDOW = (PREFILL_STEP + 6, 5), 3


@dataclass(frozen=True)
class Chunk:
    """Where the tokens of a pass stand: `num_rows` rows of the cache, all from slot `start` on."""

    cache: SlotCache
    num_rows: int
    width: int
    first_row: int
    start: int


class FusedPrefill(Prefill):
    """For the models that FusedForward is for. Rows that start at different slots run as the decoder's modules."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self._table = decoder.rotary_table(decoder.context_length or MAX_POSITIONS)

    def _run(self, tokens: torch.Tensor, request: PassRequest, cache: SlotCache) -> PassOutput:
        if len(set(request.starts)) > 1:
            return super()._run(tokens, request, cache)
        decoder, (rows, width) = self._decoder, tokens.shape
        decoder.check_points(request.capture)
        sublayers = decoder.active_sublayers(request.skip)
        known = ("embedding", *(part.name for part in sublayers), "norm")
        sources = {point: decoder.last_point(point, known) for point in request.capture}
        chunk = Chunk(cache, rows, width, request.first_row, request.starts[0])
        streams = self._streams(tokens, sublayers, chunk, frozenset(sources.values()))
        captured = {point: streams[source].view(rows, width, -1) for point, source in sources.items()}
        return PassOutput(decoder.embedding.new_empty(rows, 0, decoder.embedding.shape[1]), captured)

    def _streams(
        self, tokens: torch.Tensor, sublayers: Sequence[SubLayer], chunk: Chunk, points: frozenset[str]
    ) -> dict[str, torch.Tensor]:
        """[tokens, hidden] after each of `points`; the last branch is added only where one of them follows it."""
        stream: torch.Tensor = F.embedding(tokens.flatten(), self._decoder.embedding)
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
        keys, values = chunk.cache.keys[part.layer], chunk.cache.values[part.layer]
        qkv = F.linear(normed, part.qkv, part.qkv_bias).view(chunk.num_rows, chunk.width, -1, heads.dim)
        rotate_and_store(qkv, keys, values, self._table, heads, chunk.start, chunk.first_row)
        rows, end = slice(chunk.first_row, chunk.first_row + chunk.num_rows), chunk.start + chunk.width
        seen_keys, seen_values = (plane[rows, :, :end].transpose(1, 2) for plane in (keys, values))
        mixed = attend(qkv.narrow(2, 0, heads.num_heads), seen_keys, seen_values, heads)
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
    sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    numbers = torch.arange(16 * sum(sizes) * heads.dim, device=decoder.device).mul(0.7).sin().to(decoder.dtype)
    query, keys, values = torch.split(numbers.view(1, 16, sum(sizes), heads.dim), sizes, dim=2)
    _check(*(function(query[:, 8:], keys, values, heads) for function in (attend, attend_masked)))


def _check(found: torch.Tensor, expected: torch.Tensor) -> None:
    error, tolerance = relative_error(found, expected), tolerance_of(expected.dtype)
    if not error <= tolerance:
        raise SelfTestError(f"its states differ from the model's by {error:.2g}, allowed {tolerance:.2g}")
