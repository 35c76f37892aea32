"""FusedForward: a joined model in few kernels, all of kernels/; in wide passes products may be the vendor's.

A layer is eight launches: norm, QKV product, attention in two, output product; norm, gated product, down product. The
weights are the model's own (models/joined.py has joined them). Each branch is added to the stream by the norm that
follows it, whichever sub-layer that belongs to: any skip set is a composition of the same kernels. Passes without the
vendor's products work in fixed places (workspace.py), where any skip set is a composition of the same launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from ...kernels.attention import SHARED, Place, attend
from ...kernels.attention_rows import attend_rows
from ...kernels.embed import embed
from ...kernels.features import Heads, Rotary
from ...kernels.launch import Room
from ...kernels.norm import add_norm
from ...types import SkipSet
from ..cache import SlotCache
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedHead, JoinedMLP, JoinedNorm
from ..sublayer import SubLayer
from .forward import head_start
from .memory import PassBuffers, Rooms
from .products import Products, Timer, branch_product, gated_product, product
from .workspace import Fixed, Fresh, Workspace

DTYPES = (torch.bfloat16, torch.float16)
MAX_POSITIONS = 1 << 17
"""Of models that name no context length."""
SPANNED_ROWS = 16
"""Of one token each: more of them are read in long spans (kernels/attention_rows.py) instead of short splits."""
_SETTLING_TOKENS = 64


@dataclass(frozen=True)
class Midway:
    """A pass on its way: `stream` [tokens, hidden] waits for `branch` (or its parts), which the next norm adds to it.

    `theirs`: the products that are the vendor's. `streams`: the sums so far by capture point; `name` is the point after
    the branch.
    """

    place: Place
    rotary: Rotary
    space: Workspace
    theirs: frozenset[str]
    rest: Sequence[SubLayer]
    skips: bool
    capture: Sequence[str]
    stream: torch.Tensor
    branch: torch.Tensor | None = None
    name: str = "embedding"
    streams: Mapping[str, torch.Tensor] = field(default_factory=dict)


class FusedForward:
    """The same passes as ModuleForward's, for models whose every sub-layer is joined, in half precision."""

    holds_cache, packs = False, True
    max_tokens, shared_block = 512, SHARED

    def __init__(self, decoder: Decoder, make_timer: Callable[[torch.device], Timer] | None = None) -> None:
        self._decoder, self._products = decoder, Products(decoder, make_timer)
        self._rotary = Rotary(*decoder.rotary_table(decoder.context_length or MAX_POSITIONS))
        self._down = next(part.run.down for part in decoder.sublayers if isinstance(part.run, JoinedMLP))
        self._nothing = self._down.new_zeros(_SETTLING_TOKENS, self._down.shape[1])
        self._shared = Rooms()
        self._spaces: WeakKeyDictionary[PassBuffers, dict[tuple[int, int], Fixed]] = WeakKeyDictionary()

    def sorts(self, skip: SkipSet) -> Hashable:
        return sorts_of(self._decoder.active_sublayers(skip))

    def begin(
        self, buffers: PassBuffers, cache: SlotCache, end: int, skip: SkipSet, capture: Sequence[str] = ()
    ) -> Midway:
        sublayers, table, places = self._decoder.active_sublayers(skip), self._decoder.embedding, buffers.places
        rows = (buffers.header, buffers.tensors["segments"], buffers.starts, buffers.first, places)
        place = Place(*rows, buffers.depths, buffers.sees, self._decoder.dtype, end)
        theirs = self._products.theirs(len(places))
        space: Workspace = Fresh() if capture or theirs - {"head"} else self._fixed(buffers, end)
        stream = space.launch("embedding", partial(embed, table, buffers.tokens, places, space.room))
        state = Midway(place, self._rotary, space, theirs, sublayers, bool(skip), capture, stream)
        return _run(state, head_start(sublayers))

    def finish(self, state: Midway, vocabulary: int | None = None) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        head: Any = self._decoder.head
        state = _run(state, len(state.rest))
        stream, normed = _normed(state.space, "norm", self._decoder.final_norm, state.stream, state.branch)
        streams = {**state.streams, state.name: stream, "norm": normed}
        captured = {point: streams[self._decoder.last_point(point, streams)] for point in state.capture}
        bias = None if head.bias is None else head.bias[:vocabulary]
        if state.skips and isinstance(state.space, Fixed):
            state.space.complete(lambda space: self._launch_all(replace(state, space=space), normed))
        return product(normed, head.weight[:vocabulary], bias, "head" in state.theirs), captured

    def _fixed(self, buffers: PassBuffers, end: int) -> Fixed:
        """Of these inputs and slots alone: others may be recorded between the two halves of a pass."""
        return self._spaces.setdefault(buffers, {}).setdefault((end, buffers.num_tokens), Fixed(self._shared))

    def _launch_all(self, state: Midway, normed: torch.Tensor) -> None:
        """Every launch of any skip set: each sub-layer, and each norm after nothing or after a branch of each sort."""
        sublayers = self._decoder.sublayers
        branches = [_branch(state, sublayer, normed) for sublayer in sublayers]
        parts: dict[str, Any] = {one.name: one.run for one in sublayers}
        norms = {name: part.norm for name, part in parts.items()}
        for name, norm in {**norms, "norm": self._decoder.final_norm}.items():
            for branch in (None, *{_where(one): one for one in branches}.values()):
                _normed(state.space, name, norm, state.stream, branch)

    def figures(self) -> dict[str, Any]:
        return self._products.figures()

    def settle(self) -> None:
        """A product that cuBLAS splits over the inner dimension, of nothing.

        After an eager pass of more than 256 tokens, every kernel of every recording starts 0.3 us later until such a
        product has run: 1.58 instead of 1.49 ms a pass (H200, torch 2.11, Qwen2.5-Coder-1.5B). Why is not known.
        """
        F.linear(self._nothing, self._down)


def _run(state: Midway, count: int) -> Midway:
    """The next `count` sub-layers; the branch of the last one is left for whoever goes on."""
    stream, branch, name, streams = state.stream, state.branch, state.name, dict(state.streams)
    for sublayer in state.rest[:count]:
        part: Any = sublayer.run
        stream, normed = _normed(state.space, sublayer.name, part.norm, stream, branch)
        streams[name] = stream
        branch, name = _branch(state, sublayer, normed), sublayer.name
    return replace(state, rest=state.rest[count:], stream=stream, branch=branch, name=name, streams=streams)


def _normed(
    space: Workspace, name: str, norm: JoinedNorm, stream: torch.Tensor, branch: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stream with the branch added, and what the norm before `name` makes of it."""
    return space.launch(
        (name, _where(branch)), partial(add_norm, stream, branch, norm.weight, norm.eps, room=space.room)
    )


def _where(branch: torch.Tensor | None) -> tuple[int, int]:
    """What tells the branches of one workspace apart."""
    return (0, 0) if branch is None else (branch.data_ptr(), len(branch))


def _branch(state: Midway, sublayer: SubLayer, normed: torch.Tensor) -> torch.Tensor:
    part, space = sublayer.run, state.space
    run: Any = _mlp if isinstance(part, JoinedMLP) else _attention
    branch: torch.Tensor = space.launch(sublayer.name, partial(run, part, normed, state, space.room))
    return branch


def _mlp(part: JoinedMLP, normed: torch.Tensor, state: Midway, room: Room) -> torch.Tensor:
    inner = gated_product(normed, part.gate_up, part.gate_up_bias, "gated" in state.theirs, room)
    return branch_product(inner, part.down, part.down_bias, "down" in state.theirs, room)


def _attention(part: JoinedAttention, normed: torch.Tensor, state: Midway, room: Room) -> torch.Tensor:
    heads = Heads(part.num_heads, part.num_kv_heads, part.head_dim, part.scaling, state.rotary, part.window)
    has_many_rows = len(normed) > SPANNED_ROWS and state.place.depths.shape[1] == 1
    name, multiply, attention = ("rows", branch_product, attend_rows) if has_many_rows else ("qkv", product, attend)
    qkv = multiply(normed, part.qkv, part.qkv_bias, name in state.theirs, room)
    mixed = attention(qkv, state.place, heads, part.layer, room)
    return branch_product(mixed, part.out, part.out_bias, "out" in state.theirs, room)


def sorts_of(sublayers: Sequence[SubLayer]) -> frozenset[tuple[Any, ...]]:
    return frozenset(_sort(sublayer.run) for sublayer in sublayers)


def _sort(part: Any) -> tuple[Any, ...]:
    """Shapes, biases and windows: what kernels are compiled for."""
    if isinstance(part, JoinedMLP):
        return part.gate_up.shape, part.gate_up_bias is None, part.down.shape, part.down_bias is None
    return part.qkv.shape, part.qkv_bias is None, part.out.shape, part.out_bias is None, part.window, part.head_dim


def reason_against(decoder: Decoder) -> str | None:
    """Why a model cannot run fused, or None."""
    parts: list[Any] = [part.run for part in decoder.sublayers]
    if decoder.dtype not in DTYPES:
        return f"its dtype is {str(decoder.dtype).removeprefix('torch.')}, not bfloat16 or float16"
    if not all(isinstance(part, JoinedAttention | JoinedMLP) for part in parts):
        return "its sub-layers are not plain RMSNorm, rotary attention and gated MLP"
    if not isinstance(decoder.final_norm, JoinedNorm) or not isinstance(decoder.head, JoinedHead):
        return "its final norm or its head is not plain"
    if any(part.activation is not F.silu for part in parts if isinstance(part, JoinedMLP)):
        return "its MLP is not gated by SiLU"
    if len(set(decoder.shapes)) > 1:
        return "its layers have keys of different shapes"
    sizes = [part.gate_up.shape[1] for part in parts if isinstance(part, JoinedMLP)]
    if any(size % 16 for size in sizes):
        return f"its hidden size is {sizes[0]}, not a multiple of 16"
    dims = {part.head_dim for part in parts if isinstance(part, JoinedAttention)}
    if any(dim & (dim - 1) or dim < 32 for dim in dims):
        return f"its head size is {max(dims)}, not a power of two from 32 on"
    return None
