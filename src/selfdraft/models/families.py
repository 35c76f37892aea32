"""One explicit row per architecture family: where its parts are and how its residual stream runs.

`post_attention_layernorm` means three different things in three families, so nothing is guessed from names. The
decoder proves a row when it attaches: with nothing skipped its scores must equal the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from ..errors import UnsupportedModelError, unknown_name


@dataclass(frozen=True)
class Branch:
    """One residual branch: `hidden + norm_after(module(norm_before(hidden)))`; None: no such norm."""

    module: str
    norm_before: str | None = None
    norm_after: str | None = None


def no_window(config: Any, layer: int) -> int | None:
    return None


def window_by_layer_type(config: Any, layer: int) -> int | None:
    """Sliding window of the layers that `config.layer_types` marks so."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None or kinds[layer] != "sliding_attention":
        return None
    return int(config.sliding_window)


def window_of_every_layer(config: Any, layer: int) -> int | None:
    """One `config.sliding_window` for all layers, or none."""
    return None if config.sliding_window is None else int(config.sliding_window)


def same_scores(config: Any, scores: torch.Tensor) -> torch.Tensor:
    return scores


def softcapped_scores(config: Any, scores: torch.Tensor) -> torch.Tensor:
    cap = config.final_logit_softcapping
    return scores if cap is None else torch.tanh(scores / cap) * cap


def divided_scores(config: Any, scores: torch.Tensor) -> torch.Tensor:
    divided: torch.Tensor = scores / config.logits_scaling
    return divided


def one(config: Any) -> float:
    return 1.0


def never(config: Any) -> bool:
    return False


@dataclass(frozen=True)
class Family:
    """Paths are dotted, from the causal model (`layers`, ...) or from one of its layers (branches)."""

    name: str
    layers: str
    attention: Branch
    mlp: Branch
    final_norm: str
    head: str = "lm_head"
    rotary: str | None = None
    position_embedding: str | None = None
    window: Callable[[Any, int], int | None] = no_window
    scores: Callable[[Any, torch.Tensor], torch.Tensor] = same_scores
    embedding_multiplier: Callable[[Any], float] = one
    residual_multiplier: Callable[[Any], float] = one
    """What a branch's output is multiplied by before it is added to the stream."""
    is_parallel: Callable[[Any], bool] = never
    """The MLP reads the stream from before the attention; both outputs are added."""
    has_rotary_by_layer_type: bool = False
    """The rotary module is asked with one of `config.layer_types`, and a layer gets its own type's answer."""
    cache_argument: str = "past_key_values"
    """The keyword by which the attention module takes its cache."""
    is_joinable: bool = False
    """q/k/v/o_proj with half-split rotary, gated MLP, plain RMSNorm: may run as models/joined.py does it."""


_PRE_NORM_ATTENTION = Branch("self_attn", norm_before="input_layernorm")
_PRE_NORM_MLP = Branch("mlp", norm_before="post_attention_layernorm")
_NORMS_AROUND_ATTENTION = Branch("self_attn", "input_layernorm", "post_attention_layernorm")
_NORMS_AROUND_MLP = Branch("mlp", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "llama",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            is_joinable=True,
        ),
        Family(
            "qwen2",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_by_layer_type,
            is_joinable=True,
        ),
        Family(
            "gpt2",
            layers="transformer.h",
            attention=Branch("attn", norm_before="ln_1"),
            mlp=Branch("mlp", norm_before="ln_2"),
            final_norm="transformer.ln_f",
            position_embedding="transformer.wpe",
        ),
        Family(
            "gemma2",
            layers="model.layers",
            attention=_NORMS_AROUND_ATTENTION,
            mlp=_NORMS_AROUND_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_by_layer_type,
            scores=softcapped_scores,
        ),
        Family(
            "gemma3_text",
            layers="model.layers",
            attention=_NORMS_AROUND_ATTENTION,
            mlp=_NORMS_AROUND_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_by_layer_type,
            scores=softcapped_scores,
            has_rotary_by_layer_type=True,
        ),
        Family(
            "gemma3",
            layers="model.language_model.layers",
            attention=_NORMS_AROUND_ATTENTION,
            mlp=_NORMS_AROUND_MLP,
            final_norm="model.language_model.norm",
            rotary="model.language_model.rotary_emb",
            window=window_by_layer_type,
            has_rotary_by_layer_type=True,
        ),
        Family(
            "mistral",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_of_every_layer,
            is_joinable=True,
        ),
        Family(
            "qwen3",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_by_layer_type,
        ),
        Family(
            "qwen3_moe",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_of_every_layer,
        ),
        Family(
            "phi3",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_of_every_layer,
        ),
        Family(
            "smollm3",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_by_layer_type,
        ),
        Family(
            "starcoder2",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            window=window_of_every_layer,
        ),
        Family(
            "olmo2",
            layers="model.layers",
            attention=Branch("self_attn", norm_after="post_attention_layernorm"),
            mlp=Branch("mlp", norm_after="post_feedforward_layernorm"),
            final_norm="model.norm",
            rotary="model.rotary_emb",
        ),
        Family(
            "granite",
            layers="model.layers",
            attention=_PRE_NORM_ATTENTION,
            mlp=_PRE_NORM_MLP,
            final_norm="model.norm",
            rotary="model.rotary_emb",
            scores=divided_scores,
            embedding_multiplier=attrgetter("embedding_multiplier"),
            residual_multiplier=attrgetter("residual_multiplier"),
        ),
        Family(
            "gpt_neox",
            layers="gpt_neox.layers",
            attention=Branch("attention", norm_before="input_layernorm"),
            mlp=_PRE_NORM_MLP,
            final_norm="gpt_neox.final_layer_norm",
            rotary="gpt_neox.rotary_emb",
            is_parallel=attrgetter("use_parallel_residual"),
            cache_argument="layer_past",
        ),
    )
}


def family_of(model: Any) -> Family:
    """The row for a model's `config.model_type`."""
    name = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(name, str):
        raise UnsupportedModelError(
            f"{type(model).__name__} is not a Hugging Face causal language model: it has no config.model_type. "
            "Load it with transformers.AutoModelForCausalLM or selfdraft.Engine.from_pretrained"
        )
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"{unknown_name('model family', name, FAMILIES)}. "
            f"To add it: (1) write one Family row for {name!r} in selfdraft/models/families.py: where its layers, "
            "attention, MLP, norms, rotary module and head are, and which window, multipliers or parallel residual it "
            "has; (2) attach a small model of it: the self-test compares every score with the model's own and tells "
            "whether the row is right; (3) add that model to tests/pico.py, which tests it as all others. "
            "docs/models.md#adding-a-family shows it step by step"
        )
    return FAMILIES[name]
