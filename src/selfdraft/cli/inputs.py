"""What several commands share: a parser, a model, files and prompts that are read, files that are written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..engine.engine import Engine
from ..engine.text import OnePrompt
from ..errors import OptionError, PromptError, unknown_name
from ..files import replace_file
from ..models.decoder import Decoder
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from ..prompts.read import CALIBRATION_PROMPTS, Labels, read_prompts
from ..registry import AXES, check_settings, find, idle_axes, in_use, is_off, read_settings, resolve, unused_text
from ..strategies.domains import UNLABELLED
from ..types import Prompt
from ..version import __version__
from . import terminal


def load_engine(options: argparse.Namespace, **engine: Any) -> Engine:
    """The model that the command names. It reads every prompt whole: what a command times is not read before."""
    model, tokenizer = load_model(options, options.model)
    return Engine(model, tokenizer, name=options.model or DEFAULT_MODEL, prefix_cache=False, **engine)


def heading(engine: Engine | Decoder, options: argparse.Namespace) -> dict[str, str]:
    """How a document of JSON begins."""
    dtype, model = str(engine.dtype).removeprefix("torch."), options.model or DEFAULT_MODEL
    return {"version": __version__, "model": model, "device": str(engine.device), "dtype": dtype}


def load_model(options: argparse.Namespace, name: str | None) -> tuple[Any, Any]:
    """(model, tokenizer), where the command wants it, computing with as many threads as it says."""
    if options.threads:
        torch.set_num_threads(options.threads)
    with terminal.Progress() as progress:
        return loading.load(name, device=options.device, dtype=options.dtype, progress=progress)


def read_method(options: argparse.Namespace) -> dict[str, Any]:
    """The method that the command and the config file name, as keywords of an Engine."""
    method = {axis: getattr(options, axis) for axis in AXES if getattr(options, axis, None) is not None}
    return {**method, "settings": read_settings([*options.configured, *options.set])}


def checked_method(method: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    return checked_methods({"": method}, options)[""]


def checked_methods(methods: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each with the settings that it reads. Raise for a method, an option or a value that does not exist.

    A setting that none of them reads is an error if the command names it; of the config file it is told.
    """
    read: set[tuple[str, str]] = set()
    for method in methods.values():
        _check_method_names(method)
        read |= _pairs(in_use(method)["settings"])
    unread = {pair for method in methods.values() for pair in _pairs(method["settings"])} - read
    configured = _pairs(read_settings(options.configured)) - _pairs(read_settings(options.set))
    for name, option in sorted(unread - configured):
        raise OptionError(unused_text(name, option, {"strategy": "off"} if all(map(is_off, methods.values())) else {}))
    if told := ", ".join(f"{name}.{option}" for name, option in sorted(unread)):
        terminal.say(f"warning: {options.config} sets {told}, which nothing chosen reads")
    for method in methods.values():
        if idle := ", ".join(f"--{axis} {method[axis]}" for axis in idle_axes(method)):
            terminal.say(f"note: --strategy off decodes plainly; {idle} is not used")
    return {name: in_use(method) for name, method in methods.items()}


def _check_method_names(method: Mapping[str, Any]) -> None:
    for axis, name in resolve(method).items():
        if axis in AXES:
            find(axis, name)
    check_settings(method["settings"])


def _pairs(settings: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {(name, option) for name, values in settings.items() for option in values}


def read_standard_input(instead: str) -> str:
    if sys.stdin is None:
        raise PromptError(f"standard input is closed; pipe some text into it or {instead}")
    binary = getattr(sys.stdin, "buffer", None)
    if binary is None:
        return sys.stdin.read()
    try:
        text: str = binary.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not UTF-8 text: {error}") from None
    return text


def read_file(name: str) -> str:
    """A file's text; "-" is standard input."""
    if name == "-":
        return read_standard_input("name a file")
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(f"{name} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise OptionError(f"cannot read {name or repr(name)}: {error.strerror or error}") from None


def read_named(files: Sequence[str]) -> list[tuple[str, str]]:
    """(last part of the name, text)."""
    return [(Path(file).name, read_file(file)) for file in files]


def read_learning_prompts(options: argparse.Namespace) -> list[Prompt]:
    files = options.prompts or [str(CALIBRATION_PROMPTS)]
    prompts = read_prompts(read_named(files), labels=_labels(options, files))
    domains = {prompt.domain for prompt in prompts}
    for domain in options.domain or ():
        if domain not in domains:
            raise unknown_name("domain", domain, domains)
    return [prompt for prompt in prompts if prompt.domain in (options.domain or domains)]


def _labels(options: argparse.Namespace, files: Sequence[str]) -> Labels:
    if "domain_field" not in options:
        return Labels()
    if options.domain_field:
        return Labels(options.domain_field)
    is_by_file = len(files) > 1
    return Labels(otherwise=lambda file: Path(file).stem if is_by_file else UNLABELLED)


def check_prompt_text(text: str) -> None:
    if not text.strip():
        raise PromptError("the prompt is empty; pass some text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError("the prompt holds bytes that are not text in this terminal's encoding; pass UTF-8")


def as_message(text: str, engine: Engine, is_raw: bool) -> OnePrompt:
    """A prompt as `generate` sends it: one user message where the tokenizer has a chat template."""
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    return text if is_raw or not has_template else [{"role": "user", "content": text}]


# ------------------------------------------------------------------------------------------------ written


def check_output(file: str) -> None:
    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise OptionError(f"cannot write {file}: there is no folder {folder}")
    if Path(file).is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(f"cannot write {file}; name a file in a folder that you may write to")


def shown_name(name: str) -> str:
    """A file or folder by its last part: where it lies says nothing to a reader."""
    return Path(name).resolve().name if name and Path(name).exists() else name


def write_file(file: str, content: bytes) -> None:
    """Beside it first, then renamed: whoever reads it finds the old file or the new one. Not for pipes and devices."""
    target = Path(file).resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    replace_file(target, content)
