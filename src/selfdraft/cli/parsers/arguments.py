"""What several parsers share: types of arguments, a model, a method, prompts. Imports nothing that takes long."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any

from ...models.load.catalogue import DEFAULT_MODEL
from ...options import GenerateOptions, describe
from ...registry import AXES, AXIS_HELP, DEFAULT_HELP, DEFAULTS

MODEL_HELP = f"hub id, folder, GGUF file or catalogue name (default: {DEFAULT_MODEL})"
DTYPE_DEFAULT = "float32 on the CPU, else bfloat16"


class Help(argparse.RawDescriptionHelpFormatter):
    """Usage without the flags, which follow anyway; a flag and its text on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

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


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)


def add_device_options(parser: argparse.ArgumentParser, dtype_default: str = DTYPE_DEFAULT) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    parser.add_argument("--dtype", help=f"float32, bf16, fp16, ... (default: {dtype_default})")
    parser.add_argument("--threads", metavar="N", type=count, help="of the CPU (default: as torch has it)")


def add_generate_options(parser: argparse.ArgumentParser, title: str, is_wanted: Callable[[str], bool]) -> Any:
    """One flag for each wanted field of GenerateOptions; unset is None, text is converted when they are made."""
    group = parser.add_argument_group(title)
    for name, default, text in describe(GenerateOptions):
        if is_wanted(name):
            flag = f"--{name.replace('_', '-')}"
            group.add_argument(flag, metavar="N", dest=name, help=f"{text} (default: {default})")
    return group


def add_method_options(parser: argparse.ArgumentParser, title: str = "method", has_names: bool = True) -> None:
    """`has_names`: each is told with the names that it has."""
    group = parser.add_argument_group(title)
    for axis in AXES:
        text = f"{AXIS_HELP[axis]}: {_names(axis)}" if has_names else AXIS_HELP[axis]
        group.add_argument(f"--{axis}", metavar="NAME", help=text)
    add_settings(group)


def _names(axis: str) -> str:
    """The default marked, or told afterwards where it is not a name."""
    if axis in DEFAULT_HELP:
        return f"{', '.join(AXES[axis])} (default: {DEFAULT_HELP[axis]})"
    return ", ".join(f"{name} (default)" if name == DEFAULTS[axis] else name for name in AXES[axis])


def add_settings(parser: Any) -> None:
    text = "METHOD.OPTION=VALUE, see `selfdraft info --methods`; repeatable"
    parser.add_argument("--set", metavar="TEXT", action="append", default=[], help=text)


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--domain", metavar="NAME", nargs="+", help="the prompts of these domains (default: of all)")


def add_label_options(parser: argparse.ArgumentParser) -> None:
    """For a command that can do without labels. A field that was asked for must be there."""
    text = "the field of a line that names its domain; not given: `domain`, and a line without it belongs to the "
    text += "file's name where there are several, to 'all' where there is one"
    parser.add_argument("--domain-field", metavar="NAME", help=text)
