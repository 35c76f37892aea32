"""What several parsers share: types of arguments, a model, a method, prompts. Imports nothing that takes long."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from ...models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from ...options import GenerateOptions, describe
from ...registry import AXES, AXIS_HELP, DEFAULTS

MODELS = "hub id, folder, llama.cpp's GGUF file, catalogue name"
MODEL_HELP = f"{MODELS} (default: {DEFAULT_MODEL})"
DTYPES = ("float32", "bfloat16", "float16", "fp32", "bf16", "fp16")


class Help(argparse.RawDescriptionHelpFormatter):
    """Usage without the flags, which follow anyway; a flag and its text on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=shutil.get_terminal_size().columns)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+" and isinstance(action.metavar, str):
            return f"{action.metavar} ..."
        return super()._format_args(action, default_metavar)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        words = [word for one in actions if not one.option_strings for word in [self._format_args(one, one.dest)]]
        super().add_usage(usage or " ".join(["%(prog)s [options]", *words]), actions, groups, prefix)


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


def add_command(commands: Any, name: str, text: str, about: str, epilog: str) -> Any:
    """A parser; the caller adds what the command takes. `run`: the function of cli/NAME.py that does the work."""
    parser = commands.add_parser(name, help=text, description=about, epilog=epilog, formatter_class=Help)
    parser.set_defaults(run="run", parser=parser)
    return parser


def completes(action: Any, words: Iterable[str]) -> None:
    """What a shell offers for an argument that takes other words, too."""
    action.completes = tuple(words)


def add_model(
    parser: Any,
    name: str = "model",
    text: str = MODEL_HELP,
    nargs: str | None = "?",
    dtype: str = "fp32, on a GPU bf16",
) -> None:
    completes(parser.add_argument(name, nargs=nargs, help=text), CATALOGUE)
    add_place(parser, dtype)


def add_place(parser: Any, dtype: str = "fp32, on a GPU bf16") -> None:
    """Where a model is, and in which dtype."""
    device = "cpu, cuda, cuda:1 (default: cuda if there is one)"
    completes(parser.add_argument("--device", help=device), ("cpu", "cuda"))
    completes(parser.add_argument("--dtype", help=f"bf16, fp16, fp32 (default: {dtype})"), DTYPES)
    parser.add_argument("--threads", metavar="N", type=count, help="of the CPU (default: as torch has it)")


def add_generate_options(parser: argparse.ArgumentParser, title: str, is_wanted: Callable[[str], bool]) -> Any:
    """One flag for each wanted field of GenerateOptions; unset is None, text is converted when they are made."""
    group = parser.add_argument_group(title)
    for name, default, text in describe(GenerateOptions):
        if is_wanted(name):
            flag, metavar = f"--{name.replace('_', '-')}", "ID:N,ID:N" if name == "logit_bias" else "N"
            shown = f"{text} (default: {default:g})" if isinstance(default, int | float) else text
            group.add_argument(flag, metavar=metavar, dest=name, help=shown)
    return group


def add_method_options(parser: argparse.ArgumentParser, title: str = "method", has_names: bool = True) -> None:
    """`has_names`: each is told with the names that it has."""
    group = parser.add_argument_group(title)
    for axis in AXES:
        text = f"{AXIS_HELP[axis]}: {_names(axis)}" if has_names else AXIS_HELP[axis]
        completes(group.add_argument(f"--{axis}", metavar="NAME", help=text), AXES[axis])
    add_settings(group)


def _names(axis: str) -> str:
    """The default marked, or told afterwards where it is not a name."""
    return ", ".join(f"{name} (default)" if name == DEFAULTS[axis] else name for name in AXES[axis])


def add_settings(parser: Any) -> None:
    text = "METHOD.OPTION=VALUE, see info --methods; repeatable"
    parser.add_argument("--set", metavar="TEXT", action="append", default=[], help=text)
