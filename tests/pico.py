"""Pico models: whole transformers models of a few thousand weights, built on the spot, always the same.

The initialisation is wide, so that the best score stands clear of the second (no greedy ties in float32), and the
residual branches are scaled so that a model with some layers skipped agrees with itself often, but not always.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

FAMILIES = ("llama", "qwen2", "gpt2", "gemma2")
VARIANTS = (*FAMILIES, "qwen2-sliding")
VOCAB_SIZE = 112
NUM_LAYERS = 5
WINDOW = 8
CONTEXT_LENGTH = 256

_GROUPED = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MODELS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, _GROUPED),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, _GROUPED),
    "qwen2-sliding": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {**_GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {
            **_GROUPED,
            "attn_implementation": "eager",  # sdpa drops the softcap
            "head_dim": 12,  # not hidden_size / num_attention_heads
            "query_pre_attn_scalar": 10,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 12.0,
        },
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": 32,
            "n_layer": NUM_LAYERS,
            "n_head": 4,
            "n_positions": CONTEXT_LENGTH,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
    ),
}
_NORM = re.compile(r"norm|ln_")
_NORM_AFTER = re.compile(r"(post_attention|post_feedforward)_layernorm\.weight$")
_BRANCH_OUTPUT = re.compile(r"(o_proj|down_proj|c_proj)\.weight$")
_EMBEDDING = re.compile(r"embed|wte|wpe")

_MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "Ġ r", "Ġr a", "Ġra in", "ð Ł", "Ã ©", "© Ã")
"""Words, a half of an emoji, an é, and the end of one é with the beginning of the next."""


@functools.cache
def pico(variant: str, **overrides: Any) -> PreTrainedModel:
    """The model of a family (or `qwen2-sliding`). Shared by all tests: work on a deepcopy to change it."""
    model_class, config_class, defaults = _MODELS[variant]
    model = model_class(config_class(**{**defaults, **overrides})).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, variant)))
    for name, parameter in model.named_parameters():
        parameter.data = _initial(name, parameter.shape, model.config, generator)
    return model


def _initial(name: str, shape: torch.Size, config: Any, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if _NORM.search(name):
        return _initial_norm(name, noise, config)
    if len(shape) == 1:
        return 0.3 * noise
    if _BRANCH_OUTPUT.search(name):
        return (0.18 if config.model_type == "gpt2" else 0.25) * _branch_size(name, config) * noise
    return noise if _EMBEDDING.search(name) else 0.5 * noise


def _initial_norm(name: str, noise: torch.Tensor, config: Any) -> torch.Tensor:
    """Gemma's norms multiply by 1 + weight, and the norms behind its branches set their size."""
    if name.endswith("bias"):
        return 0.2 * noise
    if config.model_type == "gemma2":
        return (5 * _branch_size(name, config) if _NORM_AFTER.search(name) else 1) * (1 + 0.2 * noise) - 1
    return 1 + 0.2 * noise


def _branch_size(name: str, config: Any) -> float:
    """The first and the last layer say much, those between them less: a skipped one is not always missed."""
    return 1.0 if int(name.split(".")[2]) in (0, config.num_hidden_layers - 1) else 0.15


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
