"""Passes of a few tokens in float32 by compiled kernels (kernels/cpu/passes.c): all sub-layers in one call.

They read the model's own weights where they are. What the kernels do not know (experts, modules with hooks) runs
its own forward in between; the products and the attention of wider passes are torch's, which is faster there.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...kernels.features import Norm
from ..cache import SlotCache
from ..gpu.memory import power_of_two, reads_are_free
from ..joined import JoinedAttention, JoinedHead, JoinedMLP, JoinedNorm, Linear
from ..rotary import Rotaries
from ..sublayer import Pass, SubLayer
from .clock import interleaved, remembered

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_LANES = 16
_WIDTHS = (16, 32)
_CLEARLY = 0.8
"""Fewer threads must take this share of the time."""
_SECONDS_BETWEEN = 20.0
_LEAST_NUMBERS = 1 << 15
"""Of a stream of many tokens; smaller ones are torch's, which keeps them to one thread."""
_LEAST_BYTES = 1 << 20
"""A smaller product takes no time that could be measured."""
_MOST_NUMBERS = 1 << 23
"""Of a product by which threads are chosen: far longer than it takes to wake one up, as a pass is."""


def _fields(**kinds: Any) -> Any:
    return type("Fields", (Structure,), {"_fields_": list(kinds.items())})


_Norm = _fields(weight=c_void_p, bias=c_void_p, eps=c_double, offset=c_double, is_centred=c_int64)
_Linear = _fields(weight=c_void_p, bias=c_void_p, rows=c_int64)
_SubLayer = _fields(
    before=_Norm,
    after=_Norm,
    inner=_Linear * 3,
    outer=_Linear,
    multiplier=c_double,
    **dict.fromkeys(("size", "is_attention", "is_gated", "activation", "layer", "num_heads", "num_kv_heads"), c_int64),
    **dict.fromkeys(("dim", "turn", "num_turned", "is_interleaved", "mask"), c_int64),
    scaling=c_double,
    softcap=c_double,
    query_norm=_Norm,
    key_norm=_Norm,
    norms_all_heads=c_int64,
)
_Turn = _fields(cos=c_void_p, sin=c_void_p, num_positions=c_int64)
_Mask = _fields(values=c_void_p, row_stride=c_int64)
_Pass = _fields(
    **dict.fromkeys(("num_threads", "num_tokens", "width", "end"), c_int64),
    **dict.fromkeys(("rows", "slots", "positions", "cache"), c_void_p),
    **dict.fromkeys(("layer_stride", "values_stride", "row_stride", "head_stride"), c_int64),
    turns=POINTER(_Turn),
    masks=POINTER(_Mask),
    **dict.fromkeys(("inner", "other", "branch", "own"), c_void_p),
    own_size=c_int64,
)


class Compiled:
    """A decoder's sub-layers, final norm and head, as far as the kernels know them."""

    def __init__(
        self, kernels: ctypes.CDLL, sublayers: Sequence[SubLayer], final_norm: Any, head: Any, rotaries: Rotaries
    ) -> None:
        self._kernels, self._rotaries = kernels, rotaries
        parts: dict[str, Any] = {one.name: one.run for one in sublayers if _is_known(one.run)}
        attentions = [part for part in parts.values() if isinstance(part, JoinedAttention)]
        self._kinds = list(dict.fromkeys(part.rotary_kind for part in attentions if part.has_rotary))
        self._windows = list(dict.fromkeys(part.heads.window for part in attentions))
        self._numbers = {name: self._sublayer(part) for name, part in parts.items()}
        self._room = _Room.of(self._numbers.values())
        self._head = _Head.of(final_norm, head)
        weights = [linear.weight for part in parts.values() for linear in part.inner]
        largest = [max(weights, key=torch.Tensor.numel)] if weights else []
        timed = [weight for weight in largest if weight.nbytes >= _LEAST_BYTES]
        self._timed = [head.weight[: _MOST_NUMBERS // head.weight.shape[1]] if self.has_head else one for one in timed]
        self._is_timed_until, self.least_numbers = 0.0, _LEAST_NUMBERS
        self._most_threads: int | None = None
        self.refresh()
        self.max_tokens = next((_most_tokens(kernels, weight) for weight in timed), _WIDTHS[0])

    def refresh(self) -> None:
        """Others come and go on a machine: how many threads are best is asked again before a text, now and then."""
        if self._timed and time.monotonic() > self._is_timed_until:
            self._most_threads = _best_threads(self._kernels, *self._timed)
            self._is_timed_until = time.monotonic() + _SECONDS_BETWEEN

    @property
    def num_known(self) -> int:
        """Sub-layers that the kernels run."""
        return len(self._numbers)

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def knows(self, sublayer: SubLayer) -> bool:
        return sublayer.name in self._numbers

    @property
    def num_threads(self) -> int:
        """As many as torch may use, or fewer where they are quicker."""
        allowed = torch.get_num_threads()
        return allowed if self._most_threads is None else min(allowed, self._most_threads)

    def is_few(self, hidden: torch.Tensor) -> bool:
        """Tokens whose products are made by the kernels, too."""
        return hidden.shape[:-1].numel() <= self.max_tokens

    def walk(self, sublayers: Sequence[SubLayer], hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        """The stream after these; `hidden` stays what it is."""
        is_few = self.is_few(hidden)
        is_known = _takes(hidden) and _is_within(step)
        if not is_known or not (is_few or (hidden.numel() >= self.least_numbers and step.view.read(0) is not None)):
            return walk(sublayers, hidden, step)
        run_known = self._run if is_few else self._run_many
        for is_ours, parts in itertools.groupby(sublayers, lambda part: part.name in self._numbers):
            run = run_known if is_ours else walk
            hidden = run(list(parts), hidden, step)
        return hidden

    def scores(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of the stream after the last sub-layer, and the best tokens; None: the norm or the head is another one, or
        the tokens are many.
        """
        head = self._head
        if head is None or not (_takes(hidden) and self.is_few(hidden)):
            return None
        hidden = hidden.contiguous()
        num_tokens, size = hidden.shape[:-1].numel(), hidden.shape[-1]
        own = hidden.new_empty(self.num_threads, num_tokens * size)
        step = _Pass(num_threads=len(own), num_tokens=num_tokens, own=own.data_ptr(), own_size=own.shape[1])
        scores = hidden.new_empty(*hidden.shape[:-1], head.linear.rows)
        best = hidden.new_empty(hidden.shape[:-1], dtype=torch.long)
        addresses = [c_void_p(one.data_ptr()) for one in (hidden, scores, best)]
        self._kernels.run_head(head.norm, head.linear, c_int64(size), byref(step), *addresses)
        return scores, best

    def _run(self, parts: Sequence[SubLayer], hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        hidden = hidden.clone(memory_format=torch.contiguous_format)
        numbers = step.compiled.get("numbers") or step.compiled.setdefault("numbers", self._pass(hidden, step))
        addresses = (POINTER(_SubLayer) * len(parts))(*[ctypes.pointer(self._numbers[part.name]) for part in parts])
        self._kernels.run_sublayers(addresses, c_int64(len(parts)), byref(numbers), c_void_p(hidden.data_ptr()))
        return hidden

    def _run_many(self, parts: Sequence[Any], hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        """Products and attention by torch, what is between them by the kernels."""
        hidden = hidden.clone(memory_format=torch.contiguous_format)
        numbers, before, normed = self._pass(hidden, step), None, torch.empty_like(hidden)
        numbers.num_threads = min(numbers.num_threads, -(-hidden.numel() // _LEAST_NUMBERS))
        streams = c_void_p(hidden.data_ptr()), c_void_p(normed.data_ptr())
        for part in parts:
            known = byref(self._numbers[part.name])
            self._kernels.run_between(before, known, byref(numbers), *streams)
            self._branch(part.run, known, numbers, hidden if part.run.norm is None else normed, step)
            before = known
        self._kernels.run_between(before, None, byref(numbers), *streams)
        return hidden

    def _branch(
        self, part: JoinedAttention | JoinedMLP, known: Any, numbers: Any, normed: torch.Tensor, step: Pass
    ) -> None:
        """Left where the kernels add it to the stream."""
        _, (inner, other, branch, _), *_ = numbers.kept
        num_tokens, (rows, width, size) = numbers.num_tokens, normed.shape
        x, branch = normed.view(num_tokens, size), branch.view(num_tokens, size)
        if isinstance(part, JoinedMLP):
            for linear, room in zip(part.inner, (inner, other), strict=False):
                _multiply_into(_as_rows(room, num_tokens, len(linear.weight)), x, linear)
            self._kernels.run_activation(known, byref(numbers))
            _multiply_into(branch, _as_rows(inner, num_tokens, part.down.shape[1]), Linear(part.down, part.down_bias))
            return
        both = _as_rows(inner, num_tokens, sum(len(linear.weight) for linear in part.inner))
        columns = both.split_with_sizes([len(linear.weight) for linear in part.inner], 1)
        for linear, room in zip(part.inner, columns, strict=True):
            _multiply_into(room, x, linear)
        self._kernels.run_heads(known, byref(numbers))
        query = both.view(rows, width, -1, part.heads.dim).narrow(2, 0, part.heads.num_heads)
        seen = step.view.read(part.layer)
        assert seen is not None
        mixed = part.mixed(query, *seen, step)
        _multiply_into(branch, mixed.view(num_tokens, -1), Linear(part.out, part.out_bias))

    def _pass(self, hidden: torch.Tensor, step: Pass) -> Any:
        rows, width, size = hidden.shape
        cache: Any = step.cache
        place, num_tokens, storage = step.placement, rows * width, cache.storage
        cache_rows = range(place.rows.start, place.rows.stop) if isinstance(place.rows, slice) else place.rows
        tensors = [torch.as_tensor(cache_rows), place.slots.contiguous(), place.positions.contiguous()]
        own_size = max(num_tokens * max(size, 2), place.end + _LANES)
        room, num_threads = self._room, self.num_threads
        sizes = [num_tokens * room.inner, num_tokens * room.other, num_tokens * size, num_threads * own_size]
        parts = hidden.new_empty(sum(sizes)).split_with_sizes(sizes)
        angles = [self._rotaries.table(power_of_two(place.end), kind) for kind in self._kinds]
        masks = [place.mask(window, hidden.dtype) for window in self._windows] if self.is_few(hidden) else []
        numbers = _Pass(
            *(num_threads, num_tokens, width, place.end, *map(torch.Tensor.data_ptr, tensors), storage.data_ptr()),
            *storage.stride()[:4],
            (_Turn * len(angles))(*[_Turn(cos.data_ptr(), sin.data_ptr(), len(cos)) for cos, sin in angles]),
            (_Mask * len(masks))(*map(_mask, masks)),
            *map(torch.Tensor.data_ptr, parts),
            own_size,
        )
        numbers.kept = tensors, parts, angles, masks  # for as long as their addresses are
        return numbers

    def _sublayer(self, part: JoinedAttention | JoinedMLP) -> Any:
        norm, after, multiplier = part.sides
        outer = Linear(part.down, part.down_bias) if isinstance(part, JoinedMLP) else Linear(part.out, part.out_bias)
        shared = {
            "before": _norm(norm),
            "after": _norm(after),
            "multiplier": multiplier,
            "inner": (_Linear * 3)(*map(_linear, part.inner)),
            "outer": _linear(outer),
            "size": len(outer.weight),
        }
        if isinstance(part, JoinedMLP):
            return _SubLayer(is_gated=part.is_gated, activation=ACTIVATIONS.index(str(part.kind)), **shared)
        heads, kind, is_together = part.heads, part.rotary_kind, part.query_norm_all is not None
        norms = (part.query_norm_all, part.key_norm_all) if is_together else (heads.query_norm, heads.key_norm)
        return _SubLayer(
            is_attention=1,
            layer=part.layer,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            dim=heads.dim,
            turn=self._kinds.index(kind) if part.has_rotary else 0,
            num_turned=2 * self._rotaries.table(1, kind)[0].shape[1] if part.has_rotary else 0,
            is_interleaved=heads.rotary.is_interleaved,
            mask=self._windows.index(heads.window),
            scaling=heads.scaling,
            softcap=heads.softcap or 0.0,
            query_norm=_norm(norms[0]),
            key_norm=_norm(norms[1]),
            norms_all_heads=is_together,
            **shared,
        )


def _takes(hidden: torch.Tensor) -> bool:
    is_plain = hidden.dtype == torch.float32 and type(hidden) is torch.Tensor
    is_plain &= not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    return is_plain and reads_are_free(hidden)


def _as_rows(room: torch.Tensor, num_tokens: int, size: int) -> torch.Tensor:
    return room.narrow(0, 0, num_tokens * size).view(num_tokens, size)


def _multiply_into(out: torch.Tensor, x: torch.Tensor, linear: Linear) -> None:
    if linear.bias is None:
        torch.mm(x, linear.weight.t(), out=out)
    else:
        torch.addmm(linear.bias, x, linear.weight.t(), out=out)


def walk(sublayers: Sequence[SubLayer], hidden: torch.Tensor, step: Pass) -> torch.Tensor:
    """By torch's operations, or the modules' own."""
    for sublayer in sublayers:
        hidden = sublayer.run(hidden, step)
    return hidden


@dataclass(frozen=True)
class _Head:
    norm: Any
    linear: Any

    @classmethod
    def of(cls, norm: Any, head: Any) -> _Head | None:
        is_known = isinstance(head, JoinedHead) and isinstance(norm, JoinedNorm)
        if not is_known or not _are_plain(head.weight, head.bias, norm.weight, norm.bias):
            return None
        return cls(_norm(norm), _linear(Linear(head.weight, head.bias)))


@dataclass(frozen=True)
class _Room:
    """Numbers of a token that all threads share."""

    inner: int
    other: int

    @classmethod
    def of(cls, parts: Any) -> _Room:
        inner = [sum(one.rows for one in part.inner) if part.is_attention else part.inner[0].rows for part in parts]
        other = [part.num_heads * part.dim if part.is_attention else part.inner[0].rows for part in parts]
        return cls(max(inner, default=0), max(other, default=0))


def _is_within(step: Pass) -> bool:
    """Whether its keys and values are where the kernels put them: what is not, torch does or refuses."""
    cache, place = step.cache, step.placement
    if not isinstance(cache, SlotCache) or cache.storage is None or cache.segments:
        return False
    storage = cache.storage
    end = place.rows.stop if isinstance(place.rows, slice) else int(place.rows.max()) + 1
    return storage.dtype == torch.float32 and end <= storage.shape[2] and place.end <= storage.shape[4]


def _is_known(part: Any) -> bool:
    """Plain weights in float32, and an activation that the kernels have."""
    if not isinstance(part, JoinedAttention | JoinedMLP) or not _are_plain(*_tensors(part)):
        return False
    return isinstance(part, JoinedAttention) or (part.kind in ACTIVATIONS and len(part.inner) == 1 + part.is_gated)


def _tensors(part: JoinedAttention | JoinedMLP) -> list[torch.Tensor | None]:
    norms: list[Any] = [part.norm, part.after]
    outer = [part.down, part.down_bias] if isinstance(part, JoinedMLP) else [part.out, part.out_bias]
    if isinstance(part, JoinedAttention):
        norms += [part.query_norm_all, part.key_norm_all, part.heads.query_norm, part.heads.key_norm]
    normed = [tensor for norm in norms if norm is not None for tensor in (norm.weight, norm.bias)]
    return [*itertools.chain(*part.inner), *outer, *normed]


def _are_plain(*tensors: torch.Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    return all(one.dtype == torch.float32 and one.device.type == "cpu" and one.is_contiguous() for one in given)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _norm(norm: Norm | None) -> Any:
    if norm is None:
        return _Norm()
    return _Norm(_address(norm.weight), _address(norm.bias), norm.eps, norm.offset, norm.is_centred)


def _linear(linear: Linear) -> Any:
    return _Linear(_address(linear.weight), _address(linear.bias), len(linear.weight))


def _mask(mask: torch.Tensor | None) -> Any:
    return _Mask() if mask is None else _Mask(mask.data_ptr(), mask.stride(0) if len(mask) > 1 else 0)


# ------------------------------------------------------------------------------------------------ what is measured


def _best_threads(kernels: ctypes.CDLL, weight: torch.Tensor) -> int | None:
    """For one token; None: all there are, unless fewer are clearly quicker."""
    allowed = torch.get_num_threads()
    seconds = interleaved(
        {threads: _multiply(kernels, weight, 1, threads) for threads in {allowed, (allowed + 1) // 2, 1}}
    )
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _CLEARLY * seconds[allowed] else None


def _most_tokens(kernels: ctypes.CDLL, weight: torch.Tensor) -> int:
    """Up to which the kernels are quicker than torch; kept, as it decides what is rounded how."""
    threads = torch.get_num_threads()

    def are_quicker(width: int) -> bool:
        x = torch.ones(width, weight.shape[1])
        seconds = interleaved(
            {"kernels": _multiply(kernels, weight, width, threads), "torch": lambda: F.linear(x, weight)}
        )
        return seconds["kernels"] < seconds["torch"]

    def find() -> str:
        return str(max(itertools.takewhile(are_quicker, _WIDTHS), default=_WIDTHS[0]))

    found = remembered(f"kernels {'x'.join(map(str, weight.shape))} {threads}", find)
    return int(found) if found in map(str, _WIDTHS) else _WIDTHS[0]


def _multiply(kernels: ctypes.CDLL, weight: torch.Tensor, num_tokens: int, threads: int) -> Callable[[], Any]:
    x, linear = torch.ones(num_tokens, weight.shape[1]), _linear(Linear(weight, None))
    out = x.new_empty(num_tokens, len(weight))
    sizes = c_int64(weight.shape[1]), c_int64(num_tokens)
    return lambda: kernels.run_linear(
        linear, *sizes, c_void_p(x.data_ptr()), c_void_p(out.data_ptr()), c_int64(threads)
    )
