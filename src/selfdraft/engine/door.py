"""What an engine can be built of: wrong objects are refused with what to pass instead, before anything is attached.

And what a chat model makes of a plain string.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelError, OptionError, warn_caller
from ..options import GenerateOptions, check_value
from ..types import Generation

_LOAD = "transformers.AutoModelForCausalLM.from_pretrained(...), or use selfdraft.Engine.from_pretrained(...)"


def check_source(name: Any) -> None:
    if name is not None and not isinstance(name, str | Path):
        raise OptionError(
            f"from_pretrained takes the id of a model, a folder, a GGUF file or a name of the catalogue, got "
            f"{_described(name)}; a loaded model goes to Engine(model, tokenizer)"
        )


def check_loaded(model: Any, tokenizer: Any) -> None:
    check_model(model)
    check_tokenizer(tokenizer)


def check_model(model: Any) -> None:
    if isinstance(model, str | Path):
        raise OptionError(f"Engine takes a loaded model; for {str(model)!r} use Engine.from_pretrained")
    if isinstance(model, type):
        raise OptionError(f"Engine takes a loaded model, got the class {model.__name__}; load one with {_LOAD}")
    name = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"Engine takes a loaded model, got {_described(model)}; {_remedy(model)}")
    if not hasattr(model, "config") or not callable(getattr(model, "generate", None)):
        raise ModelError(
            f"{name} is not a causal language model of transformers, which has a config and a generate; load one with "
            f"{_LOAD}"
        )
    _check_weights(model, name)


def check_tokenizer(tokenizer: Any) -> None:
    is_loaded = callable(tokenizer) and callable(getattr(tokenizer, "decode", None)) and not isinstance(tokenizer, type)
    if tokenizer is None or is_loaded:
        return
    raise OptionError(
        f"tokenizer must be a loaded tokenizer, got {_described(tokenizer)}; pass "
        "transformers.AutoTokenizer.from_pretrained(...), or None to work with token ids alone"
    )


def _described(value: Any) -> str:
    return f"{' '.join(reprlib.repr(value).split())} of type {type(value).__name__}"


def _remedy(model: Any) -> str:
    if model is None:
        return "a tokenizer needs its model: Engine(model, tokenizer); Engine() loads the default model with its own"
    if callable(getattr(model, "fork", None)):
        return "it is an engine already: use it as it is, or engine.fork()"
    if isinstance(getattr(model, "model", None), torch.nn.Module):
        return "a pipeline holds both: Engine(pipeline.model, pipeline.tokenizer)"
    if callable(getattr(model, "apply_chat_template", None)) or callable(getattr(model, "decode", None)):
        return "the model comes first: Engine(model, tokenizer)"
    return f"load one with {_LOAD}"


def _check_weights(model: torch.nn.Module, name: str) -> None:
    """Weights that accelerate brings in when they are needed stand on the meta device too: its map says so."""
    empty = next((path for path, weight in model.named_parameters() if weight.is_meta), None)
    if empty is not None and not getattr(model, "hf_device_map", None):
        raise ModelError(
            f"{name} has no weights: {empty} is on the meta device. Load it with from_pretrained outside of "
            "`with torch.device('meta')` and init_empty_weights()"
        )


def check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        check_value(name, value, bool)


def check_room(max_rows: Any, cache_bytes: Any, max_stall_seconds: Any) -> None:
    check_value("max_rows", max_rows, int | None, minimum=1)
    check_value("cache_bytes", cache_bytes, int | None, minimum=1)
    check_value("max_stall_seconds", max_stall_seconds, float | None, minimum=0.0)


def read_prefix_cache(value: Any) -> int | None:
    """In bytes; None: by what is free."""
    if isinstance(value, bool):
        return None if value else 0
    check_value("prefix_cache", value, int, minimum=0)
    return int(value)


def read_packed_weights(value: Any) -> bool | int:
    """In bytes; True: by what is free."""
    if isinstance(value, bool):
        return value
    check_value("packed_weights", value, int, minimum=0)
    return int(value)


def check_n(n: Any, settings: GenerateOptions) -> None:
    check_value("n", n, int, minimum=1)
    if n > 1 and settings.temperature == 0:
        warn_caller(f"greedy texts of one prompt are all equal, and n={n} asks for several; pass a temperature above 0")


def warned_if_silent(generation: Generation, prompt: Any, tokenizer: Any) -> Generation:
    """The same. A chat model often ends at once after a plain string, which is not a message to it."""
    is_silent = not generation.text and generation.finish_reason == "eos"
    if is_silent and isinstance(prompt, str) and getattr(tokenizer, "chat_template", None):
        what = "the model says nothing after this plain string, which was sent as it is, without its chat template"
        warn_caller(f"{what}; pass messages: [{{'role': 'user', 'content': ...}}]")
    return generation
