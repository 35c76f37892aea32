"""Attention over the slots of a cache, and the rotary before it, in torch's operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rotate(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor, is_interleaved: bool = False) -> None:
    """Rotary in place on [rows, width, heads, dim]; that the first of a pair turns the other way is in `signed_sin`."""
    size = cos.shape[-1]
    if size < heads.shape[-1]:
        heads = heads.narrow(-1, 0, size)
    pairs = heads.view(*heads.shape[:-1], size // 2, 2) if is_interleaved else None
    partners = heads.roll(size // 2, -1) if pairs is None else pairs.flip(-1).flatten(-2)
    if heads.dtype == torch.float32:
        heads.mul_(cos).addcmul_(partners, signed_sin)
    else:
        heads.copy_(heads * cos + partners * signed_sin)  # cos and sin of OLMo 2 are not rounded


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """Of [rows, heads, tokens, size], the heads of `query` in groups that share keys and values.

    `is_causal`: token i sees the first i + 1; without a mask torch takes half the time.
    """
    if softcap is not None:
        return attend_softcapped(query, keys, values, mask, scaling, softcap)
    has_groups = query.shape[1] != keys.shape[1]
    if has_groups and mask is not None and query.is_cuda:
        return attend_by_groups(query, keys, values, mask, scaling)
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scaling, enable_gqa=has_groups
    )


def attend_by_groups(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """A group as one head of as many times more tokens: with a mask CUDA cannot share keys quickly otherwise."""
    rows, num_heads, width, size = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(rows, num_kv_heads, num_heads // num_kv_heads * width, size)
    mask = mask.repeat(1, 1, num_heads // num_kv_heads, 1)
    mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return mixed.reshape(rows, num_heads, width, size)


def attend_softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """As the modules round it; torch's own attention has no soft cap."""
    grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
    scores = torch.matmul(grouped, keys.transpose(2, 3)).view(*query.shape[:3], -1)
    scores = scores.mul_(scaling).div_(softcap).tanh_().mul_(softcap)
    weights = torch.softmax(scores if mask is None else scores + mask, -1, torch.float32).to(query.dtype)
    return torch.matmul(weights.view(*grouped.shape[:3], -1), values).view(query.shape)
