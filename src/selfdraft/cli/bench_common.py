"""What the benchmarks of `selfdraft bench` share: options, files, and the document that they keep."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..bench import plot
from ..bench.circumstances import shown_name
from ..bench.prompts import OWN_PROMPTS
from ..models.load.catalogue import DEFAULT_MODEL
from .inputs import count
from .outputs import check_output, write_file

_LEFT_OUT = ("run", "command", "benchmark", "model", "output", "plot", "commit")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """How long, and what is kept of it."""
    add = parser.add_argument
    add("--seconds", metavar="N", type=seconds, help="begin no prompt but the first later than so long after the start")
    add("--output", metavar="FILE", help="keep the JSON document here, rewritten after each prompt")
    add("--plot", metavar="FILE.png", help="draw it; needs matplotlib")
    add(
        "--commit",
        metavar="TEXT",
        help="what the JSON says was measured, where git does not know (default: git's word)",
    )


def add_prompt_options(parser: argparse.ArgumentParser, per_domain: int | None, max_new_tokens: int) -> None:
    add: Any = parser.add_argument
    number = {"metavar": "N", "type": count}
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    usual = "all" if per_domain is None else per_domain
    add("--per-domain", **number, default=per_domain, help=f"the first N prompts of each domain (default: {usual})")
    add("--max-new-tokens", **number, default=max_new_tokens, help="default: %(default)s")


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}")
    return value


def check_outputs(options: argparse.Namespace) -> None:
    if options.plot:
        plot.require_matplotlib()
    for file in filter(None, (options.output, options.plot)):
        check_output(file)


def complete(document: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """With what was asked for, as far as it shapes the figures; files by name."""
    values = {name: value for name, value in vars(options).items() if name not in _LEFT_OUT}
    files = {
        "prompts": [Path(file).name for file in options.prompts or [OWN_PROMPTS]],
        "set": ["=".join(map(shown_name, word.split("=", 1))) for word in options.set],
    }
    model = shown_name(options.model or DEFAULT_MODEL)
    asked = {"selfdraft": __version__, "model": model, "options": {**values, **files}}
    return {**asked, **document, **({"commit": options.commit} if options.commit else {})}


def save(document: Mapping[str, Any], file: str | None) -> bool:
    """What cannot be kept can still be printed in the end."""
    try:
        if file:
            write_file(file, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        say(f"selfdraft bench: error: cannot write {file}: {error}")
        return False
    return True


def draw(document: Mapping[str, Any], file: str | None, drawing: Callable[[Mapping[str, Any], str], None]) -> bool:
    """Whatever goes wrong here must not cost the figures."""
    try:
        if file:
            drawing(document, file)
    except Exception as error:
        say(f"selfdraft bench: error: cannot draw {file}: {type(error).__name__}: {error}")
        return False
    return True


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
