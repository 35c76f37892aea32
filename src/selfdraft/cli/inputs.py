"""What several commands read: files, standard input, prompts, the options of a generation and of a method."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..engine.engine import Engine
from ..engine.text import OnePrompt
from ..errors import OptionError, PromptError
from ..models.load.catalogue import DEFAULT_MODEL
from ..options import GenerateOptions, describe, make, parse_settings
from ..registry import AXES, DEFAULTS, check_settings, find, resolve

MODEL_HELP = f"hub id, folder, GGUF file or catalogue name (default: {DEFAULT_MODEL})"
DTYPE_DEFAULT = "float32 on the CPU, else bfloat16"
AXIS_HELP = {
    "strategy": "which sub-layers draft",
    "lookahead": "how far to draft",
    "drafter": "what drafts",
    "tree": "what is verified beside the draft",
    "acceptance": "what is kept of a draft",
}


def count(text: str, minimum: int = 1) -> int:
    """The type of an argument that is a whole number."""
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {minimum}, got {text!r}")
    return value


def seconds(text: str) -> float:
    """The type of an argument that is a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}")
    return value


def add_device_options(parser: argparse.ArgumentParser, dtype_default: str = DTYPE_DEFAULT) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda where there is one)")
    parser.add_argument("--dtype", help=f"float32, bfloat16, float16 (default: {dtype_default})")


def add_generate_options(parser: argparse.ArgumentParser, title: str, is_wanted: Callable[[str], bool]) -> Any:
    """One flag for each wanted field of GenerateOptions; unset is None, text is converted when they are made."""
    group = parser.add_argument_group(title)
    for name, default, text in describe(GenerateOptions):
        if is_wanted(name):
            flag = f"--{name.replace('_', '-')}"
            group.add_argument(flag, metavar="N", dest=name, help=f"{text} (default: {default})")
    return group


def add_method_options(parser: argparse.ArgumentParser, axes: Iterable[str] = AXES) -> None:
    group = parser.add_argument_group("method")
    for axis in axes:
        table = AXES[axis]
        group.add_argument(
            f"--{axis}", metavar="NAME", help=f"{AXIS_HELP[axis]}: {', '.join(table)} (default: {DEFAULTS[axis]})"
        )
    group.add_argument(
        "--set", metavar="METHOD.OPTION=VALUE", action="append", default=[], help="an option of a method; repeatable"
    )


def method_help() -> str:
    lines = ["options of the methods (--set METHOD.OPTION=VALUE):"]
    for axis in ("strategy", "lookahead", "drafter", "tree"):
        for method in AXES[axis]:
            for option, default, text in describe(find(axis, method).Options):
                lines.append(f"  {f'{method}.{option}':<24} {text} (default: {default!r})")
    return "\n".join(lines) + "\n"


def read_method(options: argparse.Namespace) -> dict[str, Any]:
    """The method that the command names, as keywords of an Engine."""
    method = {axis: getattr(options, axis) for axis in AXES if getattr(options, axis, None) is not None}
    return {**method, "settings": parse_settings(options.set)}


def check_method_names(method: Mapping[str, Any]) -> None:
    """Raise for a method, an option or a value that does not exist."""
    for axis, name in resolve(method).items():
        if axis in AXES:
            find(axis, name)
    check_settings(method["settings"])


def check_sampling(options: argparse.Namespace) -> None:
    """Temperature, top-p and seed, as far as the command has them."""
    names = ("temperature", "top_p", "seed")
    given = {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}
    make(GenerateOptions, given, "generate")


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
        raise OptionError(f"cannot read {name}: {error.strerror or error}") from None


def check_prompt_text(text: str) -> None:
    if not text.strip():
        raise PromptError("the prompt is empty; pass some text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError("the prompt holds bytes that are not text in this terminal's encoding; pass UTF-8")


def as_message(text: str, engine: Engine, is_raw: bool) -> OnePrompt:
    """A prompt as `generate` sends it: one user message where the tokenizer has a chat template."""
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    return text if is_raw or not has_template else [{"role": "user", "content": text}]
