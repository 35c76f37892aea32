"""Heads of attentions with what families differ by, and what becomes of their queries and keys, in float64."""

from __future__ import annotations

import torch

from on_device import DEVICE
from selfdraft.kernels.features import Heads, Norm, Rotary

NUM_POSITIONS = 1024


def heads_of(
    num_heads: int, num_kv_heads: int, dim: int, scaling: float, *, pairs: int = 0, is_interleaved: bool = False,
    **more: float | Norm | None,
) -> Heads:  # fmt: skip
    """`pairs` that turn; 0: all."""
    angles = torch.rand(NUM_POSITIONS, pairs or dim // 2, generator=torch.Generator().manual_seed(3)) * 6
    rotary = Rotary(angles.cos().to(DEVICE), angles.sin().to(DEVICE), is_interleaved)
    return Heads(num_heads, num_kv_heads, dim, scaling, rotary, **more)


def norms_of(dim: int, *, is_gemma: bool) -> dict[str, Norm]:
    """Of queries and keys; eps is large enough to be missed."""
    weights = torch.randn(2, dim, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    names = ("query_norm", "key_norm")
    options = {"offset": 1.0, "rounds_first": False} if is_gemma else {}
    return {name: Norm(weight, 0.01, **options) for name, weight in zip(names, weights, strict=True)}


FEATURES = {
    "norms": heads_of(6, 2, 32, 0.2, **norms_of(32, is_gemma=False)),
    "gemma norms and cap": heads_of(4, 1, 32, 0.5, softcap=1.5, window=40, **norms_of(32, is_gemma=True)),
    "few pairs": heads_of(4, 2, 64, 0.2, pairs=24, **norms_of(64, is_gemma=False)),
    "fewer pairs": heads_of(4, 2, 64, 0.2, pairs=8),
    "interleaved": heads_of(4, 2, 32, 0.2, is_interleaved=True, **norms_of(32, is_gemma=False)),
    "few interleaved": heads_of(4, 2, 32, 0.2, pairs=8, is_interleaved=True, softcap=2.0),
    "large": heads_of(16, 1, 256, 0.1),
}
still = Rotary(torch.ones(1, 16, device=DEVICE), torch.zeros(1, 16, device=DEVICE))
FEATURES["no rotary"] = Heads(2, 2, 32, 0.3, still)


def prepared(x: torch.Tensor, heads: Heads, norm: Norm | None, positions: torch.Tensor) -> torch.Tensor:
    """Heads [tokens, number, dim] at these positions, normed and rotated."""
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * (norm.weight.double() + norm.offset)
    tables = (heads.rotary.cos, heads.rotary.sin)
    cos, sin = (part[positions.clamp(max=len(part) - 1)].double()[:, None] for part in tables)
    turning, rest = x.tensor_split([2 * cos.shape[-1]], -1)
    if heads.rotary.is_interleaved:
        first, second = turning.unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    else:
        first, second = turning.chunk(2, -1)
        pairs = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((pairs, rest), -1)


def scored(products: torch.Tensor, heads: Heads) -> torch.Tensor:
    scores = products * heads.scaling
    return scores if heads.softcap is None else heads.softcap * torch.tanh(scores / heads.softcap)
