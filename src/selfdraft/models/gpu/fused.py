"""FusedForward: a joined model in few kernels, all of kernels/; in wide passes products may be the vendor's.

A layer is eight launches: norm, QKV product, attention in two, output product; norm, gated product, down product. What
they do follows from what its joined parts say (models/joined.py, which has joined the model's own weights). Each branch
is added to the stream by the norm that follows it, whichever sub-layer that belongs to: any skip set is a composition
of the same kernels. Passes without the vendor's products work in fixed places (workspace.py), where any skip set is a
composition of the same launches. Where branches are normed before they are added, such a launch is that of a pair of
sub-layers: pairs that are close are ready, others come when they first run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from ...kernels.activation import KINDS
from ...kernels.attention import SHARED, Place, attend
from ...kernels.attention_rows import attend_rows
from ...kernels.embed import embed
from ...kernels.heads import kind_of as kind_of_heads
from ...kernels.launch import Room
from ...kernels.norm import add_norm, kind_of, norm_heads
from ...types import SkipSet
from ..cache import SlotCache
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedBranch, JoinedHead, JoinedMLP, JoinedModule, JoinedNorm, is_plain_embedding
from ..sublayer import SubLayer
from .forward import head_start
from .memory import PassBuffers, Rooms
from .products import Products, Timer, branch_product, inner_product, product
from .workspace import Fixed, Fresh, Workspace

DTYPES = (torch.bfloat16, torch.float16)
SPANNED_ROWS = 16
"""Of one token each: more of them are read in long spans (kernels/attention_rows.py) instead of short splits."""
_CLOSE = 4
"""Sub-layers of a pair at most this far apart are launched ready: with half of them skipped, 15 of 16 pairs."""
_SETTLING_TOKENS = 64


@dataclass(frozen=True)
class Midway:
    """A pass on its way: `stream` [tokens, hidden] waits for `branch` (or its parts), which the next norm adds to it.

    `theirs`: the products that are the vendor's. `streams`: the sums so far by capture point. `last`: the sub-layer
    that the branch is of.
    """

    place: Place
    space: Workspace
    theirs: frozenset[str]
    rest: Sequence[SubLayer]
    skips: bool
    capture: Sequence[str]
    stream: torch.Tensor
    branch: torch.Tensor | None = None
    last: SubLayer | None = None
    streams: Mapping[str, torch.Tensor] = field(default_factory=dict)


class FusedForward:
    """The same passes as ModuleForward's, for models whose every sub-layer is joined, in half precision."""

    holds_cache, packs = False, True
    max_tokens, shared_block = 512, SHARED

    def __init__(self, decoder: Decoder, make_timer: Callable[[torch.device], Timer] | None = None) -> None:
        self._decoder, self._products = decoder, Products(decoder, make_timer)
        self._scale, parts = decoder.embedding_scale, [part.run for part in decoder.sublayers]
        mlps = [part.down for part in parts if isinstance(part, JoinedMLP)]
        self._down = [*mlps, *(part.out for part in parts if isinstance(part, JoinedAttention))][0]
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
        place = Place(*rows, buffers.depths, buffers.sees, table.dtype, end)
        theirs = self._products.theirs(len(places))
        has_modules = any(isinstance(part.run, JoinedModule) for part in sublayers)
        is_fresh = capture or theirs - {"head"} or has_modules
        space: Workspace = Fresh() if is_fresh else self._fixed(buffers, end)
        stream = space.launch("embedding", partial(embed, table, buffers.tokens, places, self._scale, space.room))
        return _run(Midway(place, space, theirs, sublayers, bool(skip), capture, stream), head_start(sublayers))

    def finish(self, state: Midway, vocabulary: int | None = None) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        head: Any = self._decoder.head
        state = _run(state, len(state.rest))
        final: Any = self._decoder.final_norm
        stream, normed = _normed(state.space, "norm", final, state.stream, state.branch, state.last)
        streams = {**state.streams, _point(state.last): stream, "norm": normed}
        captured = {point: streams[self._decoder.last_point(point, streams)] for point in state.capture}
        bias = None if head.bias is None else head.bias[:vocabulary]
        if state.skips and isinstance(state.space, Fixed):
            state.space.complete(lambda space: self._launch_all(replace(state, space=space), normed))
        scores = product(normed, head.weight[:vocabulary], bias, "head" in state.theirs)
        return self._decoder.scores_of(scores), captured

    def _fixed(self, buffers: PassBuffers, end: int) -> Fixed:
        """Of these inputs and slots alone: others may be recorded between the two halves of a pass."""
        return self._spaces.setdefault(buffers, {}).setdefault((end, buffers.num_tokens), Fixed(self._shared))

    def _launch_all(self, state: Midway, normed: torch.Tensor) -> None:
        """Every sub-layer, and each norm after nothing or after one of the sub-layers that are close before it."""
        parts: Any = [one for one in self._decoder.sublayers if not isinstance(one.run, JoinedModule)]
        norms = [*((one.name, one.run.norm) for one in parts), ("norm", self._decoder.final_norm)]
        branches = [(one, _branch(state, one, state.stream if one.run.norm is None else normed)) for one in parts]
        for place, (name, norm) in enumerate(norms):
            first = [(None, None)] if place < len(parts) else []  # the final norm comes after something
            for last, branch in (*first, *branches[max(0, place - _CLOSE) : place]):
                _normed(state.space, name, norm, state.stream, branch, last)

    def settle(self) -> None:
        """A product that cuBLAS splits over the inner dimension, of nothing.

        After an eager pass of more than 256 tokens, every kernel of every recording starts 0.3 us later until such a
        product has run: 1.58 instead of 1.49 ms a pass (H200, torch 2.11, Qwen2.5-Coder-1.5B). Why is not known.
        """
        F.linear(self._nothing, self._down)


def _run(state: Midway, count: int) -> Midway:
    """The next `count` sub-layers; the branch of the last one is left for whoever goes on."""
    stream, branch, last, streams = state.stream, state.branch, state.last, dict(state.streams)
    for sublayer in state.rest[:count]:
        part: Any = sublayer.run
        stream, normed = _normed(state.space, sublayer.name, part.norm, stream, branch, last)
        streams[_point(last)] = stream
        branch, last = _branch(state, sublayer, normed), sublayer
    return replace(state, rest=state.rest[count:], stream=stream, branch=branch, last=last, streams=streams)


def _point(last: SubLayer | None) -> str:
    return "embedding" if last is None else last.name


def _normed(
    space: Workspace,
    name: str,
    norm: JoinedNorm | None,
    stream: torch.Tensor,
    branch: torch.Tensor | None,
    last: SubLayer | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stream with the branch of `last` added, and what the norm before `name` makes of it."""
    part: Any = None if last is None else last.run
    after, multiplier = (None, 1.0) if part is None else (part.after, part.multiplier)
    key = (name, _where(branch), None if after is None else _point(last), multiplier)
    return space.launch(key, partial(add_norm, stream, branch, norm, after, multiplier, room=space.room))


def _where(branch: torch.Tensor | None) -> tuple[int, int]:
    """What tells the branches of one workspace apart."""
    return (0, 0) if branch is None else (branch.data_ptr(), len(branch))


def _branch(state: Midway, sublayer: SubLayer, normed: torch.Tensor) -> torch.Tensor:
    part, space = sublayer.run, state.space
    run: Any = _mlp if isinstance(part, JoinedMLP) else _attention if isinstance(part, JoinedAttention) else _module
    branch: torch.Tensor = space.launch(sublayer.name, partial(run, part, normed, state, space.room))
    return branch


def _module(part: JoinedModule, normed: torch.Tensor, state: Midway, room: Room) -> torch.Tensor:
    return part.module(normed[None]).view_as(normed)


def _mlp(part: JoinedMLP, normed: torch.Tensor, state: Midway, room: Room) -> torch.Tensor:
    how = ("gated" in state.theirs, room, str(part.kind), part.is_gated)
    inner = inner_product(normed, part.up, part.up_bias, *how)
    return branch_product(inner, part.down, part.down_bias, "down" in state.theirs, room)


def _attention(part: JoinedAttention, normed: torch.Tensor, state: Midway, room: Room) -> torch.Tensor:
    has_many_rows = len(normed) > SPANNED_ROWS and state.place.depths.shape[1] == 1
    comes_in_parts = has_many_rows and part.query_norm_all is None
    name, multiply = ("rows", branch_product) if comes_in_parts else ("qkv", product)
    qkv = multiply(normed, part.qkv, part.qkv_bias, name in state.theirs, room)
    norm_heads(qkv, part.query_norm_all, part.key_norm_all)
    mixed = (attend_rows if has_many_rows else attend)(qkv, state.place, part.heads, part.layer, room)
    return branch_product(mixed, part.out, part.out_bias, "out" in state.theirs, room)


def sorts_of(sublayers: Sequence[SubLayer]) -> frozenset[tuple[Any, ...]]:
    return frozenset(_sort(sublayer.run) for sublayer in sublayers)


def _sort(part: Any) -> tuple[Any, ...]:
    """Shapes, biases, and kinds of what else there is: what kernels are compiled for."""
    around = kind_of(part.norm), kind_of(part.after), part.multiplier == 1
    if isinstance(part, JoinedModule):
        return around
    if isinstance(part, JoinedMLP):
        biases = part.up_bias is None, part.down_bias is None
        return *around, *biases, part.up.shape, part.down.shape, part.is_gated, part.kind
    heads, biases, shapes = part.heads, (part.qkv_bias is None, part.out_bias is None), (part.qkv.shape, part.out.shape)
    kinds = kind_of_heads(heads), kind_of(part.query_norm_all), kind_of(part.key_norm_all)
    return *around, *biases, *shapes, *kinds, heads.num_heads, heads.dim, heads.window, heads.softcap


def reason_against(decoder: Decoder) -> str | None:
    """Why a model cannot run fused, or None."""
    parts: list[Any] = [part.run for part in decoder.sublayers]
    if decoder.dtype not in DTYPES:
        return f"its dtype is {str(decoder.dtype).removeprefix('torch.')}, not bfloat16 or float16"
    if not all(isinstance(part, JoinedBranch) for part in parts):
        return "its sub-layers are not all of plain norms, attention and MLPs that are known"
    if not isinstance(decoder.final_norm, JoinedNorm) or not isinstance(decoder.head, JoinedHead):
        return "its final norm or its head is not plain"
    if not is_plain_embedding(decoder.model.get_input_embeddings(), decoder.family.parts):
        return "its embedding is more than a table: adapted, quantised or hooked"
    if any(part.kind not in KINDS for part in parts if isinstance(part, JoinedMLP)):
        return "the activation of its MLP is not SiLU or GELU"
    if len(set(decoder.shapes)) > 1:
        return "its layers have keys of different shapes"
    size = decoder.embedding.shape[1]
    if size % 16:
        return f"its hidden size is {size}, not a multiple of 16"
    dims = {part.heads.dim for part in parts if isinstance(part, JoinedAttention)}
    if any(dim & (dim - 1) or dim < 32 for dim in dims):
        return f"its head size is {max(dims)}, not a power of two from 32 on"
    return None
