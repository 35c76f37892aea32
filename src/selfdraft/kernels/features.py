"""What layers are made of, as far as kernels differ by it. Nothing here needs Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Norm:
    """What is scaled to a mean square of 1, times `weight + offset`, plus `bias`; all in float32, rounded at the end.

    `weight` is [size] of the stream, of one head, or of all heads.
    """

    weight: torch.Tensor
    eps: float
    bias: torch.Tensor | None = None
    is_centred: bool = False  # the mean is taken off first: LayerNorm
    offset: float = 0.0  # 1 in Gemma's
    rounds_first: bool = True  # what was scaled is rounded before the weight multiplies it: Llama's


@dataclass(frozen=True, eq=False)
class Rotary:
    """cos and sin [positions, n]: the first 2n numbers of a head turn in pairs, the others stay as they are.

    Positions after the last one are taken for the last. One position with cos 1 and sin 0: no rotary.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    is_interleaved: bool = False  # number 2i turns with 2i + 1; else i with n + i


@dataclass(frozen=True, eq=False)
class Heads:
    """Of an attention; norms are those of each head by itself."""

    num_heads: int
    num_kv_heads: int
    dim: int
    scaling: float
    rotary: Rotary
    window: int | None = None
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    query_norm: Norm | None = None
    key_norm: Norm | None = None
