"""FusedBody: a lean model's recorded pass in few kernels; the large products are the vendor's, the rest is kernels/.

A layer is eight launches: norm, QKV product, attention in two, output product; norm, gated product, down product. The
weights are the model's own (models/lean.py has joined them). Each branch is added to the stream by the norm that
follows it, whichever sub-layer that belongs to: any skip set is a composition of the same kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from ..kernels.attention import Heads, Place, attend
from ..kernels.gated import gated
from ..kernels.norm import add_norm
from ..types import SkipSet
from .bodies import HEAD_START
from .buffers import PassBuffers
from .cache import SlotCache
from .decoder import Decoder, SubLayer
from .lean import LeanAttention, LeanHead, LeanMLP, LeanNorm

DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Midway:
    """A pass on its way. `stream` [tokens, hidden] waits for `branch`, which the next norm adds to it."""

    place: Place
    rest: Sequence[SubLayer]
    stream: torch.Tensor
    branch: torch.Tensor | None = None
    name: str = "embedding"  # of the point behind the branch


class FusedBody:
    holds_cache = False
    max_tokens = 256

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._final_norm: LeanNorm = decoder.final_norm
        self._head: LeanHead = decoder.head
        self._cos, self._sin = _rotary_table(decoder)

    def begin(self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet) -> Midway:
        sublayers = self._decoder.active_sublayers(skip)
        place = Place(buffers.header, buffers.starts, buffers.depths, buffers.sees, self._cos, self._sin, end)
        stream = F.embedding(buffers.tokens.flatten(), self._decoder.embedding)
        return self._run(Midway(place, sublayers, stream), len(sublayers) // HEAD_START, {}, ())

    def finish(
        self, state: Midway, capture: Sequence[str] = (), vocabulary: int | None = None
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """`vocabulary`: score only so many tokens, the first ones."""
        captured: dict[str, torch.Tensor] = {}
        state = self._run(state, len(state.rest), captured, capture)
        stream, normed = self._norm(state, self._final_norm)
        self._note(captured, capture, state.name, stream)
        self._note(captured, capture, "norm", normed)
        weight, bias = self._head.weight[:vocabulary], None if self._head.bias is None else self._head.bias[:vocabulary]
        shape = (*state.place.depths.shape, -1)
        return F.linear(normed, weight, bias).view(shape), {k: v.view(shape) for k, v in captured.items()}

    def _run(
        self, state: Midway, count: int, captured: dict[str, torch.Tensor], capture: Sequence[str]
    ) -> Midway:
        stream, branch, name = state.stream, state.branch, state.name
        for sublayer in state.rest[:count]:
            part: Any = sublayer.run
            stream, normed = add_norm(stream, branch, part.norm.weight, part.norm.eps)
            self._note(captured, capture, name, stream)
            branch, name = self._branch(part, normed, state.place), sublayer.name
        return replace(state, rest=state.rest[count:], stream=stream, branch=branch, name=name)

    def _branch(self, part: LeanAttention | LeanMLP, normed: torch.Tensor, place: Place) -> torch.Tensor:
        if isinstance(part, LeanMLP):
            return F.linear(gated(normed, part.gate_up, part.gate_up_bias), part.down, part.down_bias)
        heads = Heads(part.num_heads, part.num_kv_heads, part.head_dim, part.scaling, part.window)
        mixed = attend(F.linear(normed, part.qkv, part.qkv_bias), place, heads, part.layer)
        return F.linear(mixed, part.out, part.out_bias)

    def _norm(self, state: Midway, norm: LeanNorm) -> tuple[torch.Tensor, torch.Tensor]:
        return add_norm(state.stream, state.branch, norm.weight, norm.eps)
