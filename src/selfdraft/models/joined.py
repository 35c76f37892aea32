"""The two sub-layers with few, large operations: one product for Q, K and V, one for gate and up.

Small models on a CPU spend more time between operations than in them. The joined weights are the model's own: the
parameters are re-pointed to slices of one storage, so nothing is held twice and the values do not change. Whatever is
not a plain `nn.Linear` (quantised, sharded, adapted, hooked) keeps the module's own forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .gpu.memory import reads_are_free
from .sublayer import Pass

MAX_SEPARATE_TOKENS = 3
"""OpenBLAS packs the whole weight before a matrix product; up to here that costs more than separate vector products."""
_SPLITS_SMALL_PRODUCTS = "BLAS_INFO=open" in torch.__config__.show()
_SILU = ("SiLU", "SiLUActivation")


@dataclass(frozen=True)
class JoinedNorm:
    """RMS normalisation. One token on a CPU: a dot product and a number instead of six small operations."""

    weight: torch.Tensor
    eps: float

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        size = self.weight.numel()
        if hidden.numel() != size or hidden.dtype != torch.float32 or not reads_are_free(hidden):
            return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
        vector = hidden.view(size)
        return (hidden * self.weight).mul_((torch.dot(vector, vector).item() / size + self.eps) ** -0.5)


@dataclass(frozen=True)
class JoinedAttention:
    norm: JoinedNorm
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float
    layer: int
    window: int | None

    def __call__(self, hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        rows, width, _ = hidden.shape
        num_heads, num_kv_heads = self.num_heads, self.num_kv_heads
        num_rotated = num_heads + num_kv_heads
        heads = product(self.norm(hidden), self.qkv, self.qkv_bias).view(rows, width, -1, self.head_dim)
        rotated = _rotate(heads.narrow(2, 0, num_rotated), step)
        keys, values = step.cache.write(
            self.layer,
            rotated.narrow(2, num_heads, num_kv_heads).transpose(1, 2),
            heads.narrow(2, num_rotated, num_kv_heads).transpose(1, 2),
            step.placement,
        )
        query, mask = rotated.narrow(2, 0, num_heads).transpose(1, 2), step.placement.mask(self.window, hidden.dtype)
        mixed = attend(query, keys, values, mask, self.scaling)
        return hidden + product(mixed.transpose(1, 2).reshape(rows, width, -1), self.out, self.out_bias)


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Of [rows, heads, tokens, size], the heads of `query` in groups that share keys and values."""
    has_groups = query.shape[1] != keys.shape[1]
    if has_groups and mask is not None and query.is_cuda:
        return attend_by_groups(query, keys, values, mask, scaling)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=has_groups)


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


@dataclass(frozen=True)
class JoinedMLP:
    norm: JoinedNorm
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    activation: Any

    def __call__(self, hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        gate, up = product(self.norm(hidden), self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return hidden + product(self.activation(gate) * up, self.down, self.down_bias)


@dataclass(frozen=True)
class JoinedHead:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return product(hidden, self.weight, self.bias)


def product(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`hidden @ weight.T + bias` for [rows, width, size], token by token where that reads the weights faster."""
    num_tokens = hidden.shape[0] * hidden.shape[1]
    if not 1 < num_tokens <= MAX_SEPARATE_TOKENS or hidden.device.type != "cpu" or not _SPLITS_SMALL_PRODUCTS:
        return F.linear(hidden, weight, bias)
    tokens = hidden.reshape(num_tokens, -1)
    output = torch.stack([F.linear(token, weight, bias) for token in tokens])
    return output.view(*hidden.shape[:2], -1)


def _rotate(heads: torch.Tensor, step: Pass) -> torch.Tensor:
    """Half-split rotary on [rows, width, heads, dim]; the sign of the second half sits in `signed_sin`."""
    cos, signed_sin = step.joined_rotary
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), signed_sin)


def joined_norm(module: Any) -> JoinedNorm | None:
    eps = getattr(module, "variance_epsilon", None)
    if eps is None or not _is_plain(module) or set(dict(module.named_parameters())) != {"weight"}:
        return None
    return JoinedNorm(module.weight.detach(), float(eps))


def joined_head(module: Any) -> JoinedHead | None:
    if not _are_plain_linear([module]):
        return None
    return JoinedHead(*_weights(module))


def joined_attention(module: Any, norm: JoinedNorm, layer: int, window: int | None) -> JoinedAttention | None:
    parts: list[Any] = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    if not _are_plain_linear(parts) or not _is_plain(module):
        return None
    query, key, value, out = parts
    head_dim = int(module.head_dim)
    return JoinedAttention(
        norm,
        *join([query, key, value]),
        *_weights(out),
        num_heads=query.out_features // head_dim,
        num_kv_heads=key.out_features // head_dim,
        head_dim=head_dim,
        scaling=float(module.scaling),
        layer=layer,
        window=window,
    )


def joined_mlp(module: Any, norm: JoinedNorm) -> JoinedMLP | None:
    parts: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not _are_plain_linear(parts) or not _is_plain(module):
        return None
    gate, up, down = parts
    activation = F.silu if type(module.act_fn).__name__ in _SILU else module.act_fn
    return JoinedMLP(norm, *join([gate, up]), *_weights(down), activation)


def _weights(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    return linear.weight.detach(), None if linear.bias is None else linear.bias.detach()


def join(linears: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights (and biases) of several layers as one tensor; the layers become slices of it.

    The mode follows the weights, not the caller: a trainable model stays trainable.
    """
    with torch.inference_mode(linears[0].weight.is_inference()), torch.no_grad():
        weight = _join_parameters([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears]
        return weight, None if biases[0] is None else _join_parameters(biases)


def _join_parameters(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    if _are_neighbours(parameters):
        first = parameters[0].detach()
        size = (sum(len(parameter) for parameter in parameters), *first.shape[1:])
        return first.as_strided(size, first.stride())
    joined = torch.cat([parameter.detach() for parameter in parameters])
    begin = 0
    for parameter in parameters:
        parameter.data = joined[begin : begin + len(parameter)]
        begin += len(parameter)
    return joined


def _are_neighbours(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether they already lie after one another in one storage (a second engine on the same model)."""
    expected = parameters[0].data_ptr()
    storage = parameters[0].untyped_storage().data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != expected or parameter.untyped_storage().data_ptr() != storage:
            return False
        expected += parameter.nbytes
    return True


def _are_plain_linear(modules: Sequence[Any]) -> bool:
    """Plain `nn.Linear` on one device in one dtype, biases all there or all absent among the joined ones."""
    if any(type(module) is not nn.Linear or not _is_plain(module) for module in modules):
        return False
    kinds = {(type(m.weight), m.weight.dtype, m.weight.device) for m in modules}
    joined = modules[:-1] or modules
    return (
        len(kinds) == 1
        and modules[0].weight.device.type != "meta"
        and type(modules[0].weight.data) is torch.Tensor
        and len({module.bias is None for module in joined}) == 1
    )


def _is_plain(module: nn.Module) -> bool:
    """No hook and no replaced forward that a direct product would bypass."""
    return not (
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) or hasattr(module, "_hf_hook")
    )
