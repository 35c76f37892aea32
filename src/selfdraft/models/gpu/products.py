"""Whose products a fused pass computes with, ours or the vendor's: measured once for each number of tokens.

In passes of up to 16 tokens they are ours, and results depend neither on the device nor on how many tokens share the
pass. Above, each product is the vendor's where that takes 5 % less time; its sums have another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from ...kernels.gated import gated
from ...kernels.launch import Room, fresh
from ...kernels.linear import linear, linear_parts
from ...kernels.norm import add_norm
from ...kernels.prefill import gate
from ..decoder import Decoder
from ..joined import JoinedAttention, JoinedMLP
from .graphs import CudaRecorder

ALWAYS_OURS, MARGIN = 16, 0.95
_REPEATS, _CACHES = 3, 4
Matrix = tuple[torch.Tensor, torch.Tensor | None]
Timer = Callable[[Callable[[], object]], float]
"""Seconds of what a function launches."""


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_theirs: bool, room: Room = fresh
) -> torch.Tensor:
    return F.linear(x, weight, bias) if is_theirs else linear(x, weight, bias, room)


def branch_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_theirs: bool, room: Room = fresh
) -> torch.Tensor:
    """Ours in parts that the next kernel adds, the vendor's whole."""
    return F.linear(x, weight, bias) if is_theirs else linear_parts(x, weight, bias, room)


def inner_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    is_theirs: bool,
    room: Room = fresh,
    kind: str = "silu",
    is_gated: bool = True,
) -> torch.Tensor:
    """The first half of an MLP, with its activation."""
    if not is_theirs:
        return gated(x, weight, bias, kind, room) if is_gated else linear(x, weight, bias, room, kind)
    inner = F.linear(x, weight, bias)
    return gate(inner, kind) if is_gated else _ACTIVATIONS[kind](inner)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
}
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "qkv": product,
    "rows": branch_product,  # QKV, where each row has one token: attention adds the parts
    "out": branch_product,
    "gated": inner_product,
    "down": branch_product,
    "head": product,
}


class Products:
    """`make_timer`: for tests; by default ours run everywhere but on CUDA devices."""

    def __init__(self, decoder: Decoder, make_timer: Callable[[torch.device], Timer] | None = None) -> None:
        self._decoder, self._matrices = decoder, _matrices_of(decoder)
        self._make_timer = make_timer or (graph_timer if decoder.device.type == "cuda" else None)
        parts = (part.run for part in decoder.sublayers)
        self._inner = next(((part.kind, part.is_gated) for part in parts if isinstance(part, JoinedMLP)), ())
        shapes = tuple((weight.shape, bias is None) for some in self._matrices.values() for weight, bias in some)
        known = _table(decoder.device, decoder.dtype, shapes, self._inner)
        self.table = known if make_timer is None else {}

    def theirs(self, num_tokens: int) -> frozenset[str]:
        """The vendor's products in a pass of this size; the first time, they are measured."""
        if num_tokens <= ALWAYS_OURS or self._make_timer is None:
            return frozenset()
        if num_tokens not in self.table:
            timer = self._make_timer(self._decoder.device)
            self.table[num_tokens] = {name: self._measure(timer, name, num_tokens) for name in self._matrices}
        return frozenset(name for name, times in self.table[num_tokens].items() if is_faster(*times))

    def _measure(self, timer: Timer, name: str, num_tokens: int) -> tuple[float, float]:
        """Seconds a product, ours and the vendor's: of different matrices, so that they are read from memory."""
        matrices = _uncached(self._matrices[name], self._decoder.device)
        inputs = {weight.shape[1]: weight.new_ones(num_tokens, weight.shape[1]) for weight, _ in matrices}
        more = (fresh, *self._inner) if name == "gated" else ()
        norm: Any = self._decoder.final_norm
        stream = norm.weight.new_ones(num_tokens, len(norm.weight))

        def run(is_theirs: bool) -> None:
            for weight, bias in matrices:
                found = _FUNCTIONS[name](inputs[weight.shape[1]], weight, bias, is_theirs, *more)
                if name in ("out", "down"):  # parts cost the norm more than a whole
                    add_norm(stream, found, norm)

        ours, theirs = (timer(partial(run, is_theirs)) / len(matrices) for is_theirs in (False, True))
        return ours, theirs


def is_faster(ours: float, theirs: float) -> bool:
    """By more than what noise makes of it."""
    return theirs <= MARGIN * ours


@cache
def _table(*known_by: Any) -> dict[int, dict[str, tuple[float, float]]]:
    """One a process: models of the same shapes run the same kernels."""
    return {}


def _matrices_of(decoder: Decoder) -> dict[str, list[Matrix]]:
    parts, head = [part.run for part in decoder.sublayers], decoder.head
    attention = [part for part in parts if isinstance(part, JoinedAttention)]
    mlps = [part for part in parts if isinstance(part, JoinedMLP)]
    qkv = [(part.qkv, part.qkv_bias) for part in attention]
    matrices = {
        "qkv": qkv,
        "rows": qkv,
        "out": [(part.out, part.out_bias) for part in attention],
        "gated": [(part.up, part.up_bias) for part in mlps],
        "down": [(part.down, part.down_bias) for part in mlps],
        "head": [(head.weight, head.bias)],
    }
    return {name: some for name, some in matrices.items() if some}  # where all MLPs are experts, they have none


def _uncached(matrices: Sequence[Matrix], device: torch.device) -> Sequence[Matrix]:
    """As many as are several times what the device's cache holds, or all."""
    if device.type != "cuda":
        return matrices[:1]
    num_bytes = _CACHES * torch.cuda.get_device_properties(device).L2_cache_size
    return matrices[: max(1, -(-num_bytes // matrices[0][0].nbytes))]


def graph_timer(device: torch.device) -> Timer:
    """As it will run: recorded. The first replay of two keeps the device busy while the host launches the other."""
    record = CudaRecorder(device)

    def seconds(run: Callable[[], object]) -> float:
        recording, _ = record(run)
        return min(_seconds(recording.replay) for _ in range(_REPEATS))

    return seconds


def _seconds(replay: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    replay()
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
