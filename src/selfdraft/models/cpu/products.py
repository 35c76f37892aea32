"""Products of torch's own on a CPU: for each shape and number of tokens the method that is quickest here, by the clock.

Torch multiplies many tokens well and one token well, but not a few: OpenBLAS packs the whole weight first, MKL has no
kernels for such shapes. A few tokens may be quicker one by one, or with a second copy of the weight in oneDNN's layout.
Where compiled kernels run (compiled.py) none of this is needed.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from ..free_memory import free_bytes
from .clock import interleaved, remembered

LINEAR, SEPARATE, PACKED = "linear", "separate", "packed"
WIDTHS = (1, 2, 4, 8, 16, 32)
_MOST_SEPARATE = 4
_CLEARLY = 0.9
"""A method must take this share of the time of `linear`, or less."""
_MEASURED_NUMBERS = 1 << 22
"""Of a weight; larger ones are measured by their first rows."""
_SHARE_OF_FREE = 4

Methods = tuple[str, ...]  # by width
Measured = Callable[[torch.Tensor], Methods]


class Products:
    """Of the weights that were given to `prepare`; others are multiplied by `F.linear`."""

    def __init__(self, allows: bool | int = True) -> None:
        """`allows`: bytes of packed copies, True: as many as the weights have and no more than a quarter of what is
        free, False: none."""
        self._allows = allows
        self._methods: dict[int, Methods] = {}
        self._packed: dict[int, torch.Tensor] = {}

    @property
    def packed_bytes(self) -> int:
        return sum(packed.nbytes for packed in self._packed.values())

    def prepare(self, weights: Sequence[torch.Tensor], measured: Measured | None = None) -> None:
        """Those that come first are packed first. What was prepared before is released."""
        self._methods, self._packed = {}, {}
        find = measured or methods_of
        room = self._room(weights)
        for weight in weights:
            methods = find(weight)
            if PACKED in methods and weight.nbytes <= room:
                self._packed[weight.data_ptr()] = torch.ops.mkldnn._reorder_linear_weight(weight)
                room -= weight.nbytes
            elif PACKED in methods:
                methods = tuple(LINEAR if method == PACKED else method for method in methods)
            if set(methods) != {LINEAR}:
                self._methods[weight.data_ptr()] = methods

    def _room(self, weights: Sequence[torch.Tensor]) -> int:
        if self._allows is not True or not weights:
            return int(self._allows) if self._allows is not True else 0
        return min(sum(weight.nbytes for weight in weights), free_bytes(weights[0].device) // _SHARE_OF_FREE)

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`hidden @ weight.T + bias` for [rows, width, size]."""
        methods = self._methods.get(weight.data_ptr())
        num_tokens = hidden.shape[:-1].numel()
        method = LINEAR if methods is None or num_tokens > WIDTHS[-1] else methods[bisect_left(WIDTHS, num_tokens)]
        return multiply(method, hidden, weight, bias, self._packed.get(weight.data_ptr()))


def multiply(
    method: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, packed: torch.Tensor | None
) -> torch.Tensor:
    if method == PACKED:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, "none", [], "")
        return product
    if method == SEPARATE:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        return torch.stack([F.linear(token, weight, bias) for token in tokens]).view(*hidden.shape[:-1], -1)
    return F.linear(hidden, weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this torch has oneDNN's packed products in the weight's dtype, and the machine instructions for it."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    if not torch._C._has_mkldnn or not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def is_emulated(dtype: torch.dtype) -> bool:
    """Whether this CPU has no instructions for it, so that products are made of others."""
    return dtype == torch.bfloat16 and not _has_bfloat16()


def _has_bfloat16() -> bool:
    if platform.machine().lower() in ("x86_64", "amd64"):
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, bool)() for name in names)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# ------------------------------------------------------------------------------------------------ what is measured


def methods_of(weight: torch.Tensor) -> Methods:
    """By width; measured once on a machine for a shape, a dtype and a number of threads."""
    key = f"{'x'.join(map(str, weight.shape))} {weight.dtype} {torch.get_num_threads()}"
    methods = tuple(remembered(key, lambda: " ".join(measure(weight))).split())
    is_known = len(methods) == len(WIDTHS) and {LINEAR, SEPARATE, PACKED}.issuperset(methods)
    return methods if is_known else (LINEAR,) * len(WIDTHS)


def measure(weight: torch.Tensor) -> Methods:
    rows = weight[: max(1, _MEASURED_NUMBERS // weight.shape[1])]
    packed = torch.ops.mkldnn._reorder_linear_weight(rows.contiguous()) if can_pack(rows) else None
    return tuple(_quickest(rows, packed, width) for width in WIDTHS)


def _quickest(weight: torch.Tensor, packed: torch.Tensor | None, width: int) -> str:
    hidden = torch.ones(1, width, weight.shape[1], dtype=weight.dtype)
    methods = [LINEAR, *[SEPARATE] * (1 < width <= _MOST_SEPARATE), *[PACKED] * (packed is not None)]
    seconds = interleaved({one: partial(multiply, one, hidden, weight, None, packed) for one in methods})
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _CLEARLY * seconds[LINEAR] else LINEAR
