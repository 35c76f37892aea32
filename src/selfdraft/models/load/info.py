"""What a model is made of, as its decoder sees it: parameters by kind, what a pass reads, what memory it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn

from ..cpu.library import why_not
from ..cpu.products import is_emulated
from ..decoder import Decoder
from ..families import Branch
from ..joined import JoinedBranch


@dataclass(frozen=True)
class LayerInfo:
    """One layer's two sub-layers, each with its norms. A share is what skipping it saves of a pass."""

    layer: int
    attention_parameters: int
    mlp_parameters: int
    attention_share: float
    mlp_share: float
    window: int | None  # tokens this layer's attention looks back on; None: all


@dataclass(frozen=True)
class Parameters:
    """Each parameter once; a head that is tied to the embedding has none of its own."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    other: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.norms + self.head + self.other


@dataclass(frozen=True)
class ModelInfo:
    family: str
    model_class: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int | None
    attention_implementation: str
    num_fast_sublayers: int
    fast_path_note: str | None  # why not all of them
    is_head_tied: bool
    parameters: Parameters
    pass_bytes: int  # read by one decoding pass of one token: the layers (of experts its own), final norm and head
    head_share: float  # of that: head and whatever else no sub-layer owns
    weight_bytes: int
    cache_bytes_per_token: int
    layers: tuple[LayerInfo, ...]
    self_test_error: float
    packed_bytes: int  # of weights that are held a second time
    cpu_path: str | None  # how passes of a few tokens run there

    @property
    def cache_bytes(self) -> int | None:
        """Keys and values of one text as long as the context."""
        return None if self.context_length is None else self.context_length * self.cache_bytes_per_token


def describe(decoder: Decoder) -> ModelInfo:
    model, config, family = decoder.model, decoder.config, decoder.family
    blocks = list(attrgetter(family.layers)(model))
    embedding, head = _embeddings(decoder), attrgetter(family.head)(model)
    embedding_weights = _weights(embedding)
    is_head_tied = head.weight in embedding_weights
    pass_bytes = _bytes_read(_weights([*blocks, attrgetter(family.final_norm)(model), head]), config)
    layers = tuple(_layer(decoder, index, block, pass_bytes) for index, block in enumerate(blocks))
    num_fast = sum(isinstance(part.run, JoinedBranch) for part in decoder.sublayers)
    shape = decoder.shapes[0]
    return ModelInfo(
        family=family.name,
        model_class=type(model).__name__,
        num_layers=len(blocks),
        hidden_size=int(config.hidden_size),
        num_heads=int(config.num_attention_heads),
        num_kv_heads=shape.num_heads,
        head_dim=shape.key_dim,
        vocab_size=int(head.weight.shape[0]),
        context_length=decoder.context_length,
        attention_implementation=str(getattr(config, "_attn_implementation", "eager")),
        num_fast_sublayers=num_fast,
        fast_path_note=_fast_path_note(decoder, num_fast),
        is_head_tied=is_head_tied,
        parameters=_parameters(decoder, blocks, embedding_weights, head),
        pass_bytes=pass_bytes,
        head_share=1 - sum(layer.attention_share + layer.mlp_share for layer in layers),
        weight_bytes=_num_bytes(_weights([model])),
        cache_bytes_per_token=_cache_bytes_per_token(decoder),
        layers=layers,
        self_test_error=decoder.self_test_error,
        packed_bytes=decoder.packed_bytes,
        cpu_path=cpu_path(decoder),
    )


def shares(decoder: Decoder) -> tuple[float, float]:
    """Of what a pass reads of the weights, that of an attention and of an MLP, on average."""
    layers = describe(decoder).layers
    attention, mlp = (sum(getattr(one, name) for one in layers) for name in ("attention_share", "mlp_share"))
    return attention / len(layers), mlp / len(layers)


def cpu_path(decoder: Decoder) -> str | None:
    if decoder.device.type != "cpu":
        return None
    compiled = decoder.compiled
    packed = f", {decoder.packed_bytes / 1e6:.0f} MB of weights packed for it" if decoder.packed_bytes else ""
    if compiled is not None:
        run = f"{compiled.num_known} of {len(decoder.sublayers)} sub-layers{packed}"
        up_to = f"up to {compiled.max_tokens} tokens, {compiled.num_threads} threads"
        return f"compiled kernels run {run}, in passes of {up_to}"
    slow = "; this CPU has no instructions for bfloat16" if is_emulated(decoder.dtype) else ""
    return f"torch's products{packed}: {why_not()}{slow}"


def _embeddings(decoder: Decoder) -> list[Any]:
    position = decoder.family.position_embedding
    return [decoder.model.get_input_embeddings(), *([attrgetter(position)(decoder.model)] if position else [])]


def _layer(decoder: Decoder, index: int, block: Any, pass_bytes: int) -> LayerInfo:
    branches = (decoder.family.attention, decoder.family.mlp)
    attention, mlp = (_weights([getattr(block, one.module), *_norms(block, one)]) for one in branches)
    attention, mlp = attention - mlp, mlp - attention  # skipping one of them saves nothing of what both use
    return LayerInfo(
        layer=index,
        attention_parameters=_count(attention),
        mlp_parameters=_count(mlp),
        attention_share=_bytes_read(attention, decoder.config) / pass_bytes,
        mlp_share=_bytes_read(mlp, decoder.config) / pass_bytes,
        window=decoder.family.window(decoder.config, index),
    )


def _parameters(decoder: Decoder, blocks: list[Any], embedding: set[nn.Parameter], head: Any) -> Parameters:
    family = decoder.family
    branches = (family.attention, family.mlp)
    attention, mlp = (_weights(getattr(block, branch.module) for block in blocks) for branch in branches)
    norms = _weights(norm for block in blocks for branch in branches for norm in _norms(block, branch))
    norms |= _weights([attrgetter(family.final_norm)(decoder.model)])
    own_head = _weights([head]) - embedding
    known = embedding | attention | mlp | norms | own_head
    return Parameters(
        embedding=_count(embedding),
        attention=_count(attention),
        mlp=_count(mlp),
        norms=_count(norms),
        head=_count(own_head),
        other=_count(_weights([decoder.model]) - known),
    )


def _norms(block: Any, branch: Branch) -> list[Any]:
    return [getattr(block, name) for name in (branch.norm_before, branch.norm_after) if name]


def _weights(modules: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Parameters are compared by identity, so that a shared one counts once."""
    return {parameter for module in modules for parameter in module.parameters()}


def _count(parameters: set[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _num_bytes(parameters: set[nn.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _bytes_read(parameters: set[nn.Parameter], config: Any) -> int:
    """What one token reads of them; experts lie in one tensor, and it meets some of them only."""
    num_experts = getattr(config, "num_experts", None)
    dense = {parameter for parameter in parameters if parameter.ndim < 3 or len(parameter) != num_experts}
    experts = parameters - dense
    share = config.num_experts_per_tok / num_experts if experts and num_experts else 0.0
    return _num_bytes(dense) + round(_num_bytes(experts) * share)


def _cache_bytes_per_token(decoder: Decoder) -> int:
    num_values = sum(shape.num_heads * (shape.key_dim + shape.value_dim) for shape in decoder.shapes)
    return num_values * decoder.dtype.itemsize


def _fast_path_note(decoder: Decoder, num_fast: int) -> str | None:
    if num_fast == len(decoder.sublayers):
        return None
    if decoder.family.parts is None:
        return f"not written for the family {decoder.family.name}"
    return "quantised, sharded, adapted or hooked modules run as they are"
