"""One explicit row per architecture family: where its parts are and how its residual stream runs.

`post_attention_layernorm` means three different things in three families, so nothing is guessed from names. The
decoder proves a row when it attaches: with nothing skipped its scores must equal the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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


def eager_softcap(config: Any) -> float | None:
    """Of attention scores. sdpa has none: where transformers lets a model take that, it is left out."""
    return config.attn_logit_softcapping if config._attn_implementation == "eager" else None


def divided_scores(config: Any, scores: torch.Tensor) -> torch.Tensor:
    divided: torch.Tensor = scores / config.logits_scaling
    return divided


def multiplied_scores(config: Any, scores: torch.Tensor) -> torch.Tensor:
    multiplied: torch.Tensor = scores * config.logit_scale
    return multiplied


def one(config: Any) -> float:
    return 1.0


def none(config: Any) -> None:
    return None


def never(config: Any) -> bool:
    return False


def always(config: Any) -> bool:
    return True


def every_layer(config: Any, layer: int) -> bool:
    return True


def rotary_by_layer(config: Any, layer: int) -> bool:
    return bool(config.no_rope_layers[layer])


def rotary_with_window(config: Any, layer: int) -> bool:
    """Layers without a window have none, unless no layer has one."""
    return config.sliding_window is None or window_by_layer_type(config, layer) is not None


@dataclass(frozen=True)
class NormKind:
    """What the norm modules of a family compute (kernels/features.py: Norm), and where their epsilon is."""

    eps: str = "variance_epsilon"
    is_centred: bool = False
    offset: float = 0.0
    rounds_first: bool = True


LLAMA_NORM = NormKind()
OLMO_NORM = NormKind(rounds_first=False)
GEMMA_NORM = NormKind("eps", offset=1.0, rounds_first=False)
LAYER_NORM = NormKind("eps", is_centred=True, rounds_first=False)


@dataclass(frozen=True)
class Parts:
    """What a layer is made of, names as in its attention and MLP modules; models/joined.py composes it from this.

    Attention: q, k and v by `projections`, rotary of the first numbers of a head (as many as the rotary module gives),
    `head_dim` and `scaling` as the module says. One name for several projections: they are joined in the checkpoint
    already. MLP: down(activation(gate) * up), or down(activation(up)) where it is not gated.
    """

    norm: NormKind = LLAMA_NORM
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    head_norms: tuple[str, str] | None = None
    """Norms of queries and keys, before rotary."""
    are_heads_normed_together: bool = False
    has_rotary: Callable[[Any, int], bool] = every_layer
    is_interleaved: bool = False
    """Rotary turns number 2i with 2i + 1, though the rotary module gives cos and sin half-split."""
    softcap: Callable[[Any], float | None] = none
    """Attention scores become softcap * tanh(scores / softcap)."""
    inner: tuple[str, ...] = ("gate_proj", "up_proj")
    is_gated: bool = True
    activation: str = "act_fn"
    down: str = "down_proj"
    experts: str | None = None
    """An MLP with a child of this name runs its own forward, between joined norms."""
    embedding_scale: str | None = None
    """The embedding module's own factor."""


@dataclass(frozen=True)
class Family:
    """Paths are dotted, from the causal model (`layers`, ...) or from one of its layers (branches)."""

    name: str
    layers: str = "model.layers"
    attention: Branch = Branch("self_attn", norm_before="input_layernorm")
    mlp: Branch = Branch("mlp", norm_before="post_attention_layernorm")
    final_norm: str = "model.norm"
    head: str = "lm_head"
    rotary: str | None = "model.rotary_emb"
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
    parts: Parts | None = None
    """What models/joined.py composes layers from; None: the modules' own forward."""
    router: str | None = None
    """Name in the MLP module of what chooses experts; it returns scores, weights and the experts chosen."""


_EACH_HEAD = ("q_norm", "k_norm")
_GEMMA = Family(
    "gemma",
    attention=Branch("self_attn", "input_layernorm", "post_attention_layernorm"),
    mlp=Branch("mlp", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    window=window_by_layer_type,
)
_OLMO = Family(
    "olmo",
    attention=Branch("self_attn", norm_after="post_attention_layernorm"),
    mlp=Branch("mlp", norm_after="post_feedforward_layernorm"),
    parts=Parts(OLMO_NORM, head_norms=_EACH_HEAD, are_heads_normed_together=True),
)
_GEMMA3 = replace(
    _GEMMA,
    has_rotary_by_layer_type=True,
    parts=Parts(GEMMA_NORM, head_norms=_EACH_HEAD, embedding_scale="embed_scale"),
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("llama", parts=Parts()),
        Family("qwen2", window=window_by_layer_type, parts=Parts()),
        Family(
            "gpt2",
            layers="transformer.h",
            attention=Branch("attn", norm_before="ln_1"),
            mlp=Branch("mlp", norm_before="ln_2"),
            final_norm="transformer.ln_f",
            rotary=None,
            position_embedding="transformer.wpe",
        ),
        replace(
            _GEMMA,
            name="gemma2",
            scores=softcapped_scores,
            parts=Parts(GEMMA_NORM, softcap=eager_softcap, embedding_scale="embed_scale"),
        ),
        replace(_GEMMA3, name="gemma3_text", scores=softcapped_scores),
        replace(
            _GEMMA3,
            name="gemma3",
            layers="model.language_model.layers",
            final_norm="model.language_model.norm",
            rotary="model.language_model.rotary_emb",
        ),
        Family("mistral", window=window_of_every_layer, parts=Parts()),
        Family("qwen3", window=window_by_layer_type, parts=Parts(head_norms=_EACH_HEAD)),
        Family(
            "qwen3_moe",
            window=window_of_every_layer,
            parts=Parts(head_norms=_EACH_HEAD, experts="experts"),
            router="gate",
        ),
        Family(
            "phi3",
            window=window_of_every_layer,
            parts=Parts(projections=("qkv_proj",), inner=("gate_up_proj",), activation="activation_fn"),
        ),
        Family("smollm3", window=window_by_layer_type, parts=Parts(has_rotary=rotary_by_layer)),
        Family(
            "starcoder2",
            window=window_of_every_layer,
            parts=Parts(LAYER_NORM, inner=("c_fc",), is_gated=False, activation="act", down="c_proj"),
        ),
        replace(_OLMO, name="olmo2"),
        replace(_OLMO, name="olmo3", window=window_by_layer_type, has_rotary_by_layer_type=True),
        replace(
            _OLMO,
            name="exaone4",
            window=window_by_layer_type,
            parts=Parts(head_norms=_EACH_HEAD, has_rotary=rotary_with_window),
        ),
        Family(
            "granite",
            scores=divided_scores,
            embedding_multiplier=attrgetter("embedding_multiplier"),
            residual_multiplier=attrgetter("residual_multiplier"),
            parts=Parts(),
        ),
        Family(
            "gpt_neox",
            layers="gpt_neox.layers",
            attention=Branch("attention", norm_before="input_layernorm"),
            final_norm="gpt_neox.final_layer_norm",
            rotary="gpt_neox.rotary_emb",
            is_parallel=attrgetter("use_parallel_residual"),
            cache_argument="layer_past",
        ),
        Family("seed_oss", parts=Parts()),
        Family("ministral", window=window_by_layer_type, parts=Parts()),
        Family(
            "glm4",
            attention=Branch("self_attn", "input_layernorm", "post_self_attn_layernorm"),
            mlp=Branch("mlp", "post_attention_layernorm", "post_mlp_layernorm"),
            parts=Parts(is_interleaved=True, inner=("gate_up_proj",), activation="activation_fn"),
        ),
        Family(
            "cohere2",
            mlp=Branch("mlp", norm_before="input_layernorm"),
            window=window_by_layer_type,
            scores=multiplied_scores,
            is_parallel=always,
        ),
        Family("mixtral", window=window_of_every_layer, parts=Parts(experts="experts"), router="gate"),
        Family("gpt_oss", window=window_by_layer_type, router="router"),
    )
}


STATEFUL = (
    "bailing_hybrid", "bamba", "deepseek_v4", "falcon_h1", "falcon_mamba", "glm5_next", "granitemoehybrid",
    "inkling_text", "inkling2_text", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next",
    "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2", "zaya",
)  # fmt: skip
"""Hybrid and recurrent models: what they know of a text is a state that each token overwrites."""


def family_of(model: Any) -> Family:
    """The row for a model's `config.model_type`."""
    name = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(name, str):
        raise UnsupportedModelError(
            f"{type(model).__name__} is not a Hugging Face causal language model: it has no config.model_type. "
            "Load it with transformers.AutoModelForCausalLM or selfdraft.Engine.from_pretrained"
        )
    if name in STATEFUL or getattr(model, "_is_stateful", False):  # transformers marks most of them, newer ones too
        raise UnsupportedModelError(
            f"{name!r} is a recurrent or hybrid model: layers of it keep a state that every token overwrites (Mamba, "
            "linear attention, convolutions), not keys and values by position. A rejected draft could not be taken "
            "back, and no row can change that. Use the model's own generate"
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
