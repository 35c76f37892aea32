"""The two sub-layers with few, large operations: one product for Q, K and V, one for gate and up.

What they are made of is said by the family's row (families.py: Parts); where modules round, so do they.

Small models on a CPU spend more time between operations than in them. The joined weights are the model's own: the
parameters are re-pointed to slices of one storage, so nothing is held twice and the values do not change. Whatever is
not a plain `nn.Linear` (quantised, sharded, adapted, hooked) keeps the module's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..kernels.features import Heads, Norm
from .families import Branch, NormKind, Parts
from .gpu.memory import reads_are_free
from .sublayer import Pass

MAX_SEPARATE_TOKENS = 3
"""OpenBLAS packs the whole weight before a matrix product; up to here that costs more than separate vector products."""
_SPLITS_SMALL_PRODUCTS = "BLAS_INFO=open" in torch.__config__.show()
_SILU = ("SiLU", "SiLUActivation")


@dataclass(frozen=True, eq=False)
class JoinedNorm(Norm):
    """One token in float32 on a CPU: a dot product and a number instead of six small operations."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        size = self.weight.numel()
        if hidden.numel() != size or hidden.dtype != torch.float32 or self.is_centred or not reads_are_free(hidden):
            return self._of_many(hidden)
        vector = hidden.view(size)
        scale = (torch.dot(vector, vector).item() / size + self.eps) ** -0.5
        if self.offset:
            return torch.addcmul(hidden * (self.offset * scale), hidden, self.weight, value=scale)
        return (hidden * self.weight).mul_(scale)

    def _of_many(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.is_centred:
            return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)
        if self.rounds_first and hidden.dtype != torch.float32:
            return self.scaled(hidden) * self.weight
        return F.rms_norm(self._unrounded(hidden), self.weight.shape, self.factors, self.eps).to(hidden.dtype)

    def scaled(self, hidden: torch.Tensor) -> torch.Tensor:
        """To a mean square of 1, not yet multiplied."""
        return F.rms_norm(self._unrounded(hidden), self.weight.shape, None, self.eps)

    @property
    def factors(self) -> torch.Tensor:
        return self.weight if self.rounds_first else self.weight.float() + self.offset

    def _unrounded(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.rounds_first else hidden.float()


@dataclass(frozen=True, eq=False)
class JoinedBranch:
    """What a sub-layer adds to the stream, and the norms around it."""

    norm: JoinedNorm | None
    after: JoinedNorm | None
    multiplier: float

    def __call__(self, hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        branch = self.output(hidden if self.norm is None else self.norm(hidden), step)
        if self.after is not None:
            branch = self.after(branch)
        return hidden + (branch if self.multiplier == 1 else branch * self.multiplier)

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        raise NotImplementedError

    @property
    def sides(self) -> tuple[JoinedNorm | None, JoinedNorm | None, float]:
        return self.norm, self.after, self.multiplier


@dataclass(frozen=True, eq=False)
class JoinedAttention(JoinedBranch):
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    heads: Heads
    layer: int
    rotary_kind: str | None  # which of the pass's
    has_rotary: bool
    query_norm_all: JoinedNorm | None = None
    key_norm_all: JoinedNorm | None = None

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        rows, width, _ = normed.shape
        shape = self.heads
        num_heads, num_kv_heads = shape.num_heads, shape.num_kv_heads
        num_turned = num_heads + num_kv_heads
        qkv = product(normed, self.qkv, self.qkv_bias)
        if self.query_norm_all is not None:
            qkv = self._norm_all(qkv)
        heads = qkv.view(rows, width, -1, shape.dim)
        turned = heads.narrow(2, 0, num_turned)
        if shape.query_norm is not None:
            turned = self._norm_each(turned)
        if self.has_rotary:
            is_interleaved = shape.rotary.is_interleaved
            turned = rotate(turned, *step.turns(self.rotary_kind, is_interleaved), is_interleaved)
        keys, values = step.cache.write(
            self.layer,
            turned.narrow(2, num_heads, num_kv_heads).transpose(1, 2),
            heads.narrow(2, num_turned, num_kv_heads).transpose(1, 2),
            step.placement,
        )
        query, mask = turned.narrow(2, 0, num_heads).transpose(1, 2), step.placement.mask(shape.window, normed.dtype)
        mixed = attend(query, keys, values, mask, shape.scaling, shape.softcap)
        return product(mixed.transpose(1, 2).reshape(rows, width, -1), self.out, self.out_bias)

    def _norm_all(self, qkv: torch.Tensor) -> torch.Tensor:
        """Queries and keys, all heads together."""
        norms: Any = self.query_norm_all, self.key_norm_all
        sizes = [self.heads.num_heads, self.heads.num_kv_heads, self.heads.num_kv_heads]
        query, key, value = torch.split(qkv, [count * self.heads.dim for count in sizes], dim=-1)
        return torch.cat((norms[0](query), norms[1](key), value), dim=-1)

    def _norm_each(self, heads: torch.Tensor) -> torch.Tensor:
        """Queries and keys, each head by itself; both are scaled at once."""
        query_norm: Any = self.heads.query_norm
        key_norm: Any = self.heads.key_norm
        scaled: torch.Tensor = query_norm.scaled(heads)
        scaled.narrow(2, 0, self.heads.num_heads).mul_(query_norm.factors)
        scaled.narrow(2, self.heads.num_heads, self.heads.num_kv_heads).mul_(key_norm.factors)
        return scaled.to(heads.dtype)


@dataclass(frozen=True, eq=False)
class JoinedMLP(JoinedBranch):
    up: torch.Tensor  # gate and up joined, where it is gated
    up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    is_gated: bool
    activation: Callable[[torch.Tensor], torch.Tensor]
    kind: str | None  # of the activation, where kernels know it

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        inner = product(normed, self.up, self.up_bias)
        if self.is_gated:
            gate, up = inner.chunk(2, dim=-1)
            return product(self.activation(gate) * up, self.down, self.down_bias)
        return product(self.activation(inner), self.down, self.down_bias)


@dataclass(frozen=True, eq=False)
class JoinedModule(JoinedBranch):
    """Its module runs its own forward."""

    module: Callable[[torch.Tensor], torch.Tensor]

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        return self.module(normed)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Of [rows, heads, tokens, size], the heads of `query` in groups that share keys and values."""
    if softcap is not None:
        return attend_softcapped(query, keys, values, mask, scaling, softcap)
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


def rotate(
    heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor, is_interleaved: bool = False
) -> torch.Tensor:
    """Rotary on [rows, width, heads, dim]; that the first of a pair turns the other way sits in `signed_sin`."""
    size = cos.shape[-1]
    if size < heads.shape[-1]:
        first, rest = heads.tensor_split([size], dim=-1)
        return torch.cat((rotate(first, cos, signed_sin, is_interleaved), rest), dim=-1)
    if is_interleaved:
        partners = heads.view(*heads.shape[:-1], size // 2, 2).flip(-1).flatten(-2)
    else:
        partners = heads.roll(size // 2, -1)
    if heads.dtype == torch.float32:
        return torch.addcmul(heads * cos, partners, signed_sin)
    return (heads * cos + partners * signed_sin).to(heads.dtype)  # cos and sin of OLMo 2 are not rounded


def joined_norm(module: Any, kind: NormKind) -> JoinedNorm | None:
    names, eps = {"weight", "bias"} if kind.is_centred else {"weight"}, getattr(module, kind.eps, None)
    if eps is None or not _is_plain(module) or set(dict(module.named_parameters())) != names:
        return None
    bias = module.bias.detach() if kind.is_centred else None
    return JoinedNorm(module.weight.detach(), float(eps), bias, kind.is_centred, kind.offset, kind.rounds_first)


def joined_head(module: Any) -> JoinedHead | None:
    if not _are_plain_linear([module]):
        return None
    return JoinedHead(*_weights(module))


def is_plain_embedding(module: Any, parts: Any) -> bool:
    """A table and nothing else, but for the factor that the family names: no adapter, no quantised weight."""
    is_scaled = isinstance(module, nn.Embedding) and hasattr(module, str(parts.embedding_scale))
    return (is_scaled or type(module) is nn.Embedding) and _is_plain(module)


def joined_around(block: Any, branch: Branch, kind: NormKind, multiplier: float) -> JoinedBranch | None:
    """The norms around a branch, or None where one of them is not plain."""
    names = branch.norm_before, branch.norm_after
    norm, after = (None if name is None else joined_norm(getattr(block, name), kind) for name in names)
    if [norm is None, after is None] != [name is None for name in names]:
        return None
    return JoinedBranch(norm, after, multiplier)


def joined_attention(
    module: Any,
    parts: Parts,
    around: JoinedBranch,
    make_heads: Callable[..., Heads],
    *,
    layer: int,
    rotary_kind: str | None,
    has_rotary: bool,
) -> JoinedAttention | None:
    linears: list[Any] = [getattr(module, name, None) for name in (*parts.projections, parts.out)]
    norms: Any = [joined_norm(getattr(module, name), parts.norm) for name in parts.head_norms or ()]
    if not _are_plain_linear(linears) or not _is_plain(module) or None in norms:
        return None
    *projections, out = linears
    dim = int(module.head_dim)
    num_heads, num_all = out.in_features // dim, sum(linear.out_features for linear in projections) // dim
    each, together = ((), norms) if parts.are_heads_normed_together else (norms, ())
    heads = make_heads(
        *(num_heads, (num_all - num_heads) // 2, dim, float(module.scaling)),
        **dict(zip(("query_norm", "key_norm"), each, strict=False)),
    )
    weights = (*around.sides, *join(projections), *_weights(out))
    return JoinedAttention(*weights, heads, layer, rotary_kind, has_rotary, *together)


def joined_mlp(module: Any, parts: Parts, around: JoinedBranch) -> JoinedMLP | JoinedModule | None:
    if parts.experts is not None and hasattr(module, parts.experts):
        return JoinedModule(*around.sides, module)
    linears: list[Any] = [getattr(module, name, None) for name in (*parts.inner, parts.down)]
    if not _are_plain_linear(linears) or not _is_plain(module):
        return None
    weights = (*around.sides, *join(linears[:-1]), *_weights(linears[-1]))
    return JoinedMLP(*weights, parts.is_gated, *_activation(getattr(module, parts.activation)))


def _activation(module: Any) -> tuple[Callable[[torch.Tensor], torch.Tensor], str | None]:
    """A function instead of a module, and its kind, where it is one of those that kernels know."""
    function = getattr(module, "act", None)
    if not _is_plain(module):
        return module, None
    if type(module).__name__ in _SILU:
        return F.silu, "silu"
    if function is F.gelu:
        return F.gelu, "gelu"
    if isinstance(function, partial) and function.func is F.gelu and function.keywords == {"approximate": "tanh"}:
        return function, "gelu_tanh"
    return module, None


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
