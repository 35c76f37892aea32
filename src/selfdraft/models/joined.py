"""The two sub-layers with few, large operations: one product for Q, K and V, one for gate and up.

What they are made of is said by the family's row (families.py: Parts); where modules round, so do they.

Small models spend more time between operations than in them. The joined weights are the model's own: the parameters
are re-pointed to slices of one storage, so nothing is held twice and the values do not change. Where compiled kernels
run (cpu/compiled.py) weights stay where they are, mapped from their file as they may be: one call is all operations
there. Whatever is not a plain `nn.Linear` (quantised, sharded, adapted, hooked) keeps the module's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ..kernels.features import Heads, Norm
from .attend import attend, rotate
from .cpu.experts import few_experts
from .families import Branch, NormKind, Parts
from .sublayer import Multiply, Pass

_SILU = ("SiLU", "SiLUActivation")


class Linear(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor | None


def _only(linears: Sequence[Linear]) -> Linear:
    (linear,) = linears
    return linear


@dataclass(frozen=True, eq=False)
class JoinedNorm(Norm):
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.is_centred:
            return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)
        if self.rounds_first and hidden.dtype != torch.float32:
            return self.scaled(hidden) * self.weight
        return F.rms_norm(self._unrounded(hidden), self.weight.shape, self.factors, self.eps).to(hidden.dtype)

    @property
    def factors(self) -> torch.Tensor:
        """What is scaled is multiplied by them; in float32 where it is not rounded before."""
        weight = self.weight if self.rounds_first else self.weight.float()
        return weight + self.offset if self.offset else weight

    def scaled(self, hidden: torch.Tensor) -> torch.Tensor:
        """To a mean square of 1, not yet multiplied."""
        return F.rms_norm(self._unrounded(hidden), self.weight.shape, None, self.eps)

    def _unrounded(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.rounds_first else hidden.float()


def added(branch: torch.Tensor, hidden: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Modules round before they add."""
    if multiplier == 1 or hidden.dtype == torch.float32:
        return hidden + branch if multiplier == 1 else torch.add(hidden, branch, alpha=multiplier)
    return hidden + branch * multiplier


@dataclass(frozen=True, eq=False)
class JoinedBranch:
    """What a sub-layer adds to the stream, and the norms around it."""

    norm: JoinedNorm | None
    after: JoinedNorm | None
    multiplier: float

    def __call__(self, hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        normed = hidden if self.norm is None else self.norm(hidden)
        branch = self.output(normed, step)
        return added(branch if self.after is None else self.after(branch), hidden, self.multiplier)

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        raise NotImplementedError

    @property
    def sides(self) -> tuple[JoinedNorm | None, JoinedNorm | None, float]:
        return self.norm, self.after, self.multiplier


@dataclass(frozen=True, eq=False)
class JoinedAttention(JoinedBranch):
    inner: Sequence[Linear]  # queries, keys and values, or one of all
    out: torch.Tensor
    out_bias: torch.Tensor | None
    heads: Heads
    layer: int
    rotary_kind: str | None  # which of the pass's
    has_rotary: bool
    query_norm_all: JoinedNorm | None = None
    key_norm_all: JoinedNorm | None = None

    @property
    def weights(self) -> list[torch.Tensor]:
        return [*(linear.weight for linear in self.inner), self.out]

    @property
    def qkv(self) -> torch.Tensor:
        return _only(self.inner).weight

    @property
    def qkv_bias(self) -> torch.Tensor | None:
        return _only(self.inner).bias

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        rows, width, _ = normed.shape
        shape = self.heads
        num_heads, num_kv_heads = shape.num_heads, shape.num_kv_heads
        products = [step.multiply(normed, *linear) for linear in self.inner]
        qkv = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        if self.query_norm_all is not None:
            self._norm_all(qkv)
        heads = qkv.view(rows, width, -1, shape.dim)
        query = heads.narrow(2, 0, num_heads)
        if shape.query_norm is not None:
            self._norm_each(heads, query)
        if self.has_rotary:
            is_interleaved, turned = shape.rotary.is_interleaved, heads.narrow(2, 0, num_heads + num_kv_heads)
            rotate(turned, *step.turns(self.rotary_kind, is_interleaved), is_interleaved)
        keys, values = step.view.write(self.layer, heads.narrow(2, num_heads, 2 * num_kv_heads))
        return step.multiply(self.mixed(query, keys, values, step), self.out, self.out_bias)

    def mixed(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: Pass) -> torch.Tensor:
        """[rows, width, heads * dim] of such heads."""
        shape, place = self.heads, step.placement
        is_causal = place.is_causal(shape.window) and shape.softcap is None
        mask = None if is_causal else place.mask(shape.window, query.dtype)
        mixed = attend(query.transpose(1, 2), keys, values, mask, shape.scaling, shape.softcap, is_causal)
        return mixed.transpose(1, 2).flatten(2)

    def _norm_all(self, qkv: torch.Tensor) -> None:
        """Queries and keys, all heads together, in place."""
        norms: Any = self.query_norm_all, self.key_norm_all
        sizes = [norm.weight.numel() for norm in norms]
        for norm, part in zip(norms, qkv.split_with_sizes([*sizes, sizes[1]], dim=-1), strict=False):
            part.copy_(norm(part))

    def _norm_each(self, heads: torch.Tensor, query: torch.Tensor) -> None:
        """Queries and keys, each head by itself, in place; both are scaled at once."""
        norms: Any = self.heads.query_norm, self.heads.key_norm
        sizes = [self.heads.num_heads, self.heads.num_kv_heads]
        scaled, keys = heads.narrow(2, 0, sum(sizes)), heads.narrow(2, *sizes)
        scaled_query, scaled_keys = norms[0].scaled(scaled).split_with_sizes(sizes, dim=2)
        torch.mul(scaled_query, norms[0].factors, out=query)
        torch.mul(scaled_keys, norms[1].factors, out=keys)


@dataclass(frozen=True, eq=False)
class JoinedMLP(JoinedBranch):
    inner: Sequence[Linear]  # gate and up, where it is gated, or one of both
    down: torch.Tensor
    down_bias: torch.Tensor | None
    is_gated: bool
    activation: Callable[[torch.Tensor], torch.Tensor]
    kind: str | None  # of the activation, where kernels know it

    @property
    def weights(self) -> list[torch.Tensor]:
        return [*(linear.weight for linear in self.inner), self.down]

    @property
    def up(self) -> torch.Tensor:
        """Gate and up, where it is gated."""
        return _only(self.inner).weight

    @property
    def up_bias(self) -> torch.Tensor | None:
        return _only(self.inner).bias

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        products: Sequence[torch.Tensor] = [step.multiply(normed, *linear) for linear in self.inner]
        if self.is_gated:
            gate, up = products[0].chunk(2, dim=-1) if len(products) == 1 else products
            return step.multiply(self.activation(gate).mul_(up), self.down, self.down_bias)
        return step.multiply(self.activation(products[0]), self.down, self.down_bias)


@dataclass(frozen=True, eq=False)
class JoinedModule(JoinedBranch):
    """Its module runs its own forward."""

    module: Callable[[torch.Tensor], torch.Tensor]

    def output(self, normed: torch.Tensor, step: Pass) -> torch.Tensor:
        return self.module(normed)


@dataclass(frozen=True)
class JoinedHead:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, hidden: torch.Tensor, multiply: Multiply = F.linear) -> torch.Tensor:
        return multiply(hidden, self.weight, self.bias)


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
    joins: bool = True,
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
    weights = (*around.sides, _inner(projections, joins), *_weights(out))
    return JoinedAttention(*weights, heads, layer, rotary_kind, has_rotary, *together)


def joined_mlp(module: Any, parts: Parts, around: JoinedBranch, joins: bool = True) -> JoinedMLP | JoinedModule | None:
    if parts.experts is not None and hasattr(module, parts.experts):
        experts = getattr(module, parts.experts)
        is_plain = all(map(_is_plain, module.modules()))
        few = few_experts(module, experts, _activation(experts.act_fn)[0]) if is_plain else None
        return JoinedModule(*around.sides, few or module)
    linears: list[Any] = [getattr(module, name, None) for name in (*parts.inner, parts.down)]
    if not _are_plain_linear(linears) or not _is_plain(module):
        return None
    weights = (*around.sides, _inner(linears[:-1], joins), *_weights(linears[-1]))
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


def _weights(linear: nn.Linear) -> Linear:
    return Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def _inner(linears: Sequence[Any], joins: bool) -> tuple[Linear, ...]:
    return (join(linears),) if joins else tuple(map(_weights, linears))


def join(linears: Sequence[Any]) -> Linear:
    """The weights (and biases) of several layers as one tensor; the layers become slices of it.

    The mode follows the weights, not the caller: a trainable model stays trainable.
    """
    with torch.inference_mode(linears[0].weight.is_inference()), torch.no_grad():
        weight = _join_parameters([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears]
        return Linear(weight, None if biases[0] is None else _join_parameters(biases))


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
