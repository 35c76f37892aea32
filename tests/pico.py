"""Pico models: whole transformers models of a few thousand weights, built on the spot, always the same.

The initialisation is wide, so that the best score stands clear of the second (no greedy ties in float32), and the
residual branches are scaled so that a model with some layers skipped agrees with itself often, but not always.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCAB_SIZE = 112
NUM_LAYERS = 5
WINDOW = 8
CONTEXT_LENGTH = 256

_NO_ENDS = {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_PLAIN = {
    **_NO_ENDS,
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT_LENGTH,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_GEMMA3 = {
    **_GROUPED,
    "head_dim": 12,
    "query_pre_attn_scalar": 10,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {  # far apart, so that the wrong one is noticed
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
    },
}
_MIXED_LAYERS = {"sliding_window": WINDOW, "layer_types": _GEMMA3["layer_types"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}
_EYE = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_HALF_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}

_MODELS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "gpt2": {
        **_NO_ENDS,
        "vocab_size": VOCAB_SIZE,
        "n_embd": 32,
        "n_layer": NUM_LAYERS,
        "n_head": 4,
        "n_positions": CONTEXT_LENGTH,
    },
    "gemma2": {
        **_GROUPED,
        "attn_implementation": "eager",  # sdpa drops the softcap
        "head_dim": 12,  # not hidden_size / num_attention_heads
        "query_pre_attn_scalar": 10,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 12.0,
    },
    "gemma3_text": {**_GEMMA3, "final_logit_softcapping": 12.0},
    "gemma3": {
        **_NO_ENDS,
        "text_config": _GEMMA3,
        "vision_config": _EYE,
        "mm_tokens_per_image": 4,
        "image_token_index": VOCAB_SIZE,
    },
    "mistral": {**_GROUPED, "head_dim": 12, "sliding_window": WINDOW},
    "qwen3": {**_GROUPED, **_SLIDING, "head_dim": 12, "max_window_layers": 2},
    "qwen3_moe": {
        **_GROUPED,
        **_SLIDING,
        "head_dim": 12,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [1],
    },
    "phi3": {**_GROUPED, "rope_parameters": _HALF_ROTARY, "sliding_window": WINDOW},
    "smollm3": {**_GROUPED, **_SLIDING, "no_rope_layer_interval": 2},
    "starcoder2": {**_GROUPED, "use_bias": True, "sliding_window": WINDOW},
    "olmo2": _GROUPED,
    "olmo3": {**_GROUPED, **_MIXED_LAYERS, "head_dim": 12, "rope_parameters": _GEMMA3["rope_parameters"]},
    "exaone4": {**_GROUPED, **_MIXED_LAYERS},
    "granite": {
        **_GROUPED,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
    },
    "gpt_neox": {**_PLAIN, "rope_parameters": _HALF_ROTARY, "use_parallel_residual": True},
    "seed_oss": {**_GROUPED, "head_dim": 12, "attention_out_bias": True, "mlp_bias": True},
    "ministral": {**_GROUPED, **_MIXED_LAYERS, "head_dim": 12},
    "glm4": {**_GROUPED, "head_dim": 12, "rope_parameters": _HALF_ROTARY},
    "cohere2": {**_GROUPED, **_MIXED_LAYERS, "attention_bias": True, "logit_scale": 0.4},
    "mixtral": {**_GROUPED, **_EXPERTS, "head_dim": 12, "sliding_window": WINDOW},
    "gpt_oss": {
        **_GROUPED,
        **_EXPERTS,
        **_MIXED_LAYERS,
        "head_dim": 12,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    "qwen2-sliding": {**_GROUPED, **_SLIDING, "max_window_layers": 2},
}
"""What their configs say. A variant of a family is named after it: qwen2-sliding."""

VARIANTS = tuple(_MODELS)
FAMILIES = tuple(name for name in VARIANTS if "-" not in name)

_NORM = re.compile(r"norm|ln_")
_NORMS_AFTER = {
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "olmo2", "olmo3", "exaone4"),
        re.compile(r"(post_attention|post_feedforward)_layernorm\.weight$"),
    ),
    "glm4": re.compile(r"(post_self_attn|post_mlp)_layernorm\.weight$"),
}
"""Norms after branches set their size."""
_BRANCH_OUTPUT = re.compile(r"(o_proj|down_proj|c_proj|dense|dense_4h_to_h)\.weight$|experts\.down_proj$")
_EMBEDDING = re.compile(r"embed|wte|wpe")
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")
_SIZES: dict[str, float] = {"gpt2": 0.18}
"""Size of the weights that end a branch, where it is not 0.25."""

_MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "Ġ r", "Ġr a", "Ġra in", "ð Ł", "Ã ©", "© Ã")
"""Words, a half of an emoji, an é, and the end of one é with the beginning of the next."""


@functools.cache
def pico(variant: str, **overrides: Any) -> PreTrainedModel:
    """The model of a family (or `qwen2-sliding`). Shared by all tests: work on a deepcopy to change it."""
    return build(variant, **overrides)


def build(variant: str, **overrides: Any) -> PreTrainedModel:
    """One of its own."""
    values = copy.deepcopy(_MODELS[variant])
    lists = {key: list(value) for key, value in overrides.items() if isinstance(value, tuple)}  # hashable as tuples
    values.get("text_config", values).update({**overrides, **lists})
    config = AutoConfig.for_model(variant.partition("-")[0], **values)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, variant)))
    for name, parameter in model.named_parameters():
        parameter.data = _initial(name, parameter.shape, model.config.get_text_config(), generator)
    return model


def _initial(name: str, shape: torch.Size, config: Any, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if _NORM.search(name):
        return _initial_norm(name, noise, config)
    if len(shape) == 1 or name.endswith("bias"):
        return 0.3 * noise
    if _BRANCH_OUTPUT.search(name):
        return _SIZES.get(config.model_type, 0.25) * _branch_size(name, config) * noise
    return noise if _EMBEDDING.search(name) else 0.5 * noise


def _initial_norm(name: str, noise: torch.Tensor, config: Any) -> torch.Tensor:
    """Gemma's norms multiply by 1 + weight."""
    if name.endswith("bias"):
        return 0.2 * noise
    is_after = config.model_type in _NORMS_AFTER and _NORMS_AFTER[config.model_type].search(name)
    size = _branch_size(name, config) if is_after else 1
    if config.model_type in ("gemma2", "gemma3_text"):
        return (5 * size if is_after else 1) * (1 + 0.2 * noise) - 1
    return size * (1 + 0.2 * noise)


def _branch_size(name: str, config: Any) -> float:
    """The first and the last layer say much, those between them less: a skipped one is not always missed."""
    layer = _LAYER.search(name)
    return 1.0 if layer is None or int(layer[1]) in (0, config.num_hidden_layers - 1) else 0.15


@functools.cache
def pico_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: all 256 bytes, a few merges, and `<end>`; no chat template."""
    merges = [tuple(merge.split()) for merge in _MERGES]
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """One printable character per token of the pico vocabulary, so that text and tokens have one length."""
    alphabet = {chr(33 + index): index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(alphabet, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def save(model: PreTrainedModel, folder: Path) -> str:
    """A model with `letter_tokenizer` as a Hugging Face folder."""
    model.save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return str(folder)
