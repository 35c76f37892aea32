"""The activations of MLPs that kernels know, by name."""

from __future__ import annotations

import triton
import triton.language as tl

KINDS = ("silu", "gelu_tanh", "gelu")


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Of float32; "": as it is."""
    if KIND == "silu":
        x = x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":  # (1 + tanh(y)) / 2 is sigmoid(2 y)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(0.7071067811865476 * x))
    return x
