"""A lean model's pass in few kernels (kernels/): six for a layer, one for the head.

The weights are the model's own (models/lean.py has joined them); which sub-layers run is an argument as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..kernels.attention import Heads, Place, attend
from ..kernels.linear import linear
from .decoder import Decoder
from .lean import LeanAttention, LeanHead, LeanMLP, LeanNorm

DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FusedModel:
    decoder: Decoder
    sublayers: Sequence[tuple[str, LeanAttention | LeanMLP]]
    final_norm: LeanNorm
    head: LeanHead
    cos: torch.Tensor  # [positions, dim / 2]
    sin: torch.Tensor

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[n] -> [n, hidden]"""
        return F.embedding(tokens, self.decoder.embedding)

    def run(self, hidden: torch.Tensor, place: Place, sublayer: LeanAttention | LeanMLP) -> torch.Tensor:
        norm, eps = sublayer.norm.weight, sublayer.norm.eps
        if isinstance(sublayer, LeanMLP):
            inner = linear(hidden, sublayer.gate_up, sublayer.gate_up_bias, norm=norm, eps=eps, is_gated=True)
            return linear(inner, sublayer.down, sublayer.down_bias, residual=hidden)
        qkv = linear(hidden, sublayer.qkv, sublayer.qkv_bias, norm=norm, eps=eps)
        mixed = attend(qkv, place, _heads(sublayer), sublayer.layer)
        return linear(mixed, sublayer.out, sublayer.out_bias, residual=hidden)

    def scores(self, hidden: torch.Tensor, num_tokens: int | None = None) -> torch.Tensor:
        """[n, vocabulary], or of the first tokens of it only."""
        weight, bias = self.head.weight, self.head.bias
        if num_tokens is not None:
            weight, bias = weight[:num_tokens], None if bias is None else bias[:num_tokens]
        return linear(hidden, weight, bias, norm=self.final_norm.weight, eps=self.final_norm.eps)


def _heads(part: LeanAttention) -> Heads:
    return Heads(part.num_heads, part.num_kv_heads, part.head_dim, part.scaling, part.window)


def reason_against(decoder: Decoder) -> str | None:
    """Why a model cannot run fused, or None."""
    parts: list[Any] = [part.run for part in decoder.sublayers]
    if decoder.dtype not in DTYPES:
        return f"its dtype is {str(decoder.dtype).removeprefix('torch.')}, not bfloat16 or float16"
    if not all(isinstance(part, LeanAttention | LeanMLP) for part in parts):
        return "its sub-layers are not plain RMSNorm, rotary attention and gated MLP"
    if not isinstance(decoder.final_norm, LeanNorm) or not isinstance(decoder.head, LeanHead):
        return "its final norm or head is not plain"
    sizes = [size for part in parts for size in _sizes(part)]
    if any(size % 16 for size in sizes):
        return f"a matrix has {next(size for size in sizes if size % 16)} columns, not a multiple of 16"
    dims = {part.head_dim for part in parts if isinstance(part, LeanAttention)}
    if any(dim & (dim - 1) or dim < 16 for dim in dims):
        return f"its head size is {max(dims)}, not a power of two from 16 on"
    return None


def _sizes(part: LeanAttention | LeanMLP) -> tuple[int, int]:
    if isinstance(part, LeanMLP):
        return part.gate_up.shape[1], part.down.shape[1]
    return part.qkv.shape[1], part.out.shape[1]
