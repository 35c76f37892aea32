"""`selfdraft info`: what a model is made of, what skipping a sub-layer saves, what memory it takes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any

from ..config import PLACE, read_config
from ..errors import OptionError, ProfileError
from ..explain import methods_document, methods_text
from ..models.gpu.runner import make_runner
from ..models.load.info import LayerInfo, ModelInfo, describe
from ..profiles.key import ProfileKey
from ..profiles.store import Store
from ..types import SkipSet
from . import terminal
from .inputs import heading, load_model

NO_PROFILE = "profile: nothing learned yet for this model on this device"


def run(options: argparse.Namespace) -> int:
    if options.methods is not None:
        return _describe_methods(options)
    model, _ = load_model(options, options.model)
    decoder = make_runner(model, graphs=model.device.type == "cpu").decoder
    info, head = describe(decoder), heading(decoder, options)
    try:
        profile = Store().load(ProfileKey.of(model, head["model"]))
        known = NO_PROFILE if profile is None else profile.summary
    except ProfileError as problem:  # the model can be described all the same
        profile, known = None, str(problem)
    if options.json:
        learned = None if profile is None else profile.known
        config = str(options.config) if options.config else None
        print(json.dumps({**_document(info, head), "profile": learned, "config": config}, ensure_ascii=False))
    else:
        print("\n".join([*_lines(info, head), known, f"config file: {options.config or 'none'}"]))
    return 0


def _describe_methods(options: argparse.Namespace) -> int:
    configured = read_config().values
    given = [name for name in PLACE if getattr(options, name) not in (None, configured.get(name))]
    if given:
        stray = ", ".join(f"--{name}" if name != "model" else repr(options.model) for name in given)
        raise OptionError(f"--methods describes methods, not a model; leave out {stray}")
    document = options.json and json.dumps(methods_document(options.methods), ensure_ascii=False)
    print(document or methods_text(options.methods))
    return 0


def _document(info: ModelInfo, head: dict[str, str]) -> dict[str, Any]:
    return {
        **head,
        **dataclasses.asdict(info),
        "parameters": {**dataclasses.asdict(info.parameters), "total": info.parameters.total},
        "cache_bytes": info.cache_bytes,
    }


def _lines(info: ModelInfo, head: dict[str, str]) -> list[str]:
    return [
        *_rows(_architecture(info, head)),
        "",
        f"parameters: {info.parameters.total:,}",
        *_parameter_rows(info),
        "",
        f"a decoding pass reads {terminal.size(info.pass_bytes)} of weights; skipping saves of it",
        *_share_rows(info),
        "",
        "memory",
        *_rows(_memory(info), indent="  "),
        "",
    ]


def _rows(pairs: dict[str, str], indent: str = "") -> list[str]:
    width = max(map(len, pairs)) + 2
    return [f"{indent}{label:{width}}{value}" for label, value in pairs.items()]


def _architecture(info: ModelInfo, head: dict[str, str]) -> dict[str, str]:
    return {
        "model": head["model"],
        "family": f"{info.family} ({info.model_class})",
        "device": f"{head['device']}, {head['dtype']}",
        "layers": str(info.num_layers),
        "hidden size": str(info.hidden_size),
        "heads": f"{info.num_heads}, key/value heads {info.num_kv_heads}, head size {info.head_dim}",
        "vocabulary": f"{info.vocab_size:,} tokens",
        "context": "unlimited" if info.context_length is None else f"{info.context_length:,} tokens",
        "attention": f"{info.attention_implementation}, {_window_text(info)}",
        "fast path": _fast_path(info),
        **({"on this CPU": info.cpu_path} if info.cpu_path else {}),
        "self-test": f"passed, relative error {info.self_test_error:.2g}",
    }


def _fast_path(info: ModelInfo) -> str:
    num_sublayers = 2 * info.num_layers
    if info.num_fast_sublayers == num_sublayers:
        return f"all {num_sublayers} sub-layers"
    return f"{info.num_fast_sublayers or 'none'} of {num_sublayers} sub-layers: {info.fast_path_note}"


def _window_text(info: ModelInfo) -> str:
    groups = _groups(info, lambda layer: layer.window)
    windows = {window: str(SkipSet.of(attention=layers)) for window, layers in groups.items() if window is not None}
    told = (f"sliding window {window} in layers {layers.replace('a', '')}" for window, layers in windows.items())
    return "; ".join(told) or "no sliding window"


def _parameter_rows(info: ModelInfo) -> list[str]:
    parts = info.parameters
    rows = {"embedding": parts.embedding, "attention": parts.attention, "MLP": parts.mlp, "norms": parts.norms}
    if parts.other:
        rows["other"] = parts.other
    width = len(f"{parts.total:,}")
    lines = [_parameter_row(label, count, parts.total, width) for label, count in rows.items()]
    head = f"  {'head':11}{'-':>{width}}   tied: it is the embedding"
    return [*lines, head if info.is_head_tied else _parameter_row("head", parts.head, parts.total, width)]


def _parameter_row(label: str, count: int, total: int, width: int) -> str:
    return f"  {label:11}{count:{width},} {count / total:7.1%}"


def _share_rows(info: ModelInfo) -> list[str]:
    shares = {}
    for kind in ("attention", "mlp"):
        groups = _groups(info, attrgetter(f"{kind}_share", f"{kind}_parameters"))
        for (share, num_parameters), layers in groups.items():
            shares[str(SkipSet.of(**{kind: layers}))] = f"{share:7.2%} each, {num_parameters:,} parameters"
    return _rows({**shares, "head": f"{info.head_share:7.2%}, always read"}, indent="  ")


def _memory(info: ModelInfo) -> dict[str, str]:
    whole = "" if info.cache_bytes is None else f", {terminal.size(info.cache_bytes)} for the whole context"
    return {
        "weights": terminal.size(info.weight_bytes),
        "key/value cache": f"{terminal.size(info.cache_bytes_per_token)} a token{whole}",
    }


def _groups(info: ModelInfo, key: Callable[[LayerInfo], Hashable]) -> dict[Any, list[int]]:
    """Layers by what they have in common."""
    groups: dict[Any, list[int]] = {}
    for layer in info.layers:
        groups.setdefault(key(layer), []).append(layer.layer)
    return groups
