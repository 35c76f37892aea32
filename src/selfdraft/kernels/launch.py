"""How the kernels of a pass are launched: each may start before the one before it has ended, where the device can.

Programmatic dependent launch (compute capability 9.0 and later). A kernel lets the next one start when all of its
programs have called `let_next_start`, and `wait` returns when all kernels before have ended and what they wrote can be
read. Three rules keep this safe:

- Every program of every kernel launched with these options calls `wait`, whichever path it takes. Then the end of one
  kernel means the end of all before it.
- Everything is written after `wait`: memory that an earlier kernel still reads is given to a later one.
- Before `wait` a kernel reads only what was written before the pass began: weights, old keys, the places of tokens.
  Every recording begins a pass with a kernel launched the usual way (the embedding), which waits for all before it.

All but one call `let_next_start` at their beginning. The first product of an MLP, the largest, does at its end: if all
did at their beginning, the programs of a whole layer would wait beside those that work (one token: 1.49 ms a pass
instead of 1.28, eight: 1.38 instead of 1.37; if all products did at their end: 1.31 and 1.41; H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a Triton without it
    gdc_launch_dependents = gdc_wait = None


class Room(Protocol):
    """Memory for the result `name` of a kernel. `fresh`: its own; what a recording repeats may reuse it each time."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor: ...


def fresh(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


@triton.jit
def wait(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@cache
def overlaps(device: torch.device) -> bool:
    """Whether a kernel may start on this device before the one before it has ended."""
    is_interpreted = not isinstance(wait, triton.JITFunction)
    if is_interpreted or gdc_wait is None or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9


def options(device: torch.device) -> dict[str, Any]:
    """For the launch of a kernel that calls `wait`."""
    return {"PDL": True, "launch_pdl": True} if overlaps(device) else {"PDL": False}


def limits(device: torch.device, registers: int) -> dict[str, Any]:
    """For the launch of a kernel that may use this many registers a thread; changes no result."""
    return {"maxnreg": registers} if overlaps(device) else {}


PROCESSORS = 132
"""Of an H100 or H200. Not the device's own: results are the same on all of them."""


@dataclass(frozen=True)
class Tile:
    """What one program of a product takes: `rows` of the matrix, `columns` at a time.

    All columns are cut into `num_splits` parts, one program each.
    """

    rows: int
    columns: int
    num_warps: int
    num_stages: int
    num_splits: int = 1

    def part(self, size: int) -> int:
        """Columns of a split: whole steps."""
        num_steps = -(-size // self.columns)
        return -(-num_steps // self.num_splits) * self.columns

    def options(self, x: torch.Tensor, num_matrices: int = 1) -> dict[str, Any]:
        """As many stages as the device has room for; none of this changes a result."""
        num_bytes = (num_matrices * self.rows + token_tile(len(x))) * self.columns * x.element_size()
        num_stages = max(1, min(self.num_stages, shared_bytes(x.device) // num_bytes))
        return {"num_warps": self.num_warps, "num_stages": num_stages, **options(x.device)}


def token_tile(num_tokens: int) -> int:
    """Tokens of one program. Products take the weights first: their sums have one order, whichever it is."""
    return 16 if num_tokens <= 16 else 32 if num_tokens <= 32 else 64


def row_tile(num_rows: int, num_tokens: int) -> int:
    """Rows of one program where all columns are one part; this changes no sum.

    Above 32 tokens each program reads as much of them as of the weights. So there are fewer, if all processors have
    one (H200, 63 tokens: gated product 18.6 us instead of 22.0, head 125 instead of 136).
    """
    return 128 if num_tokens > 32 and num_rows > 64 * PROCESSORS else 64


@cache
def shared_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 20
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))
