"""`selfdraft list`: the catalogue, and what of it is here."""

from __future__ import annotations

import argparse
from typing import Any

from ..models.load.catalogue import DEFAULT_MODEL
from ..models.load.pull import installed
from .terminal import size

EXAMPLES = """\
Any Hugging Face model of a supported family works with --model; these are the ones that need no model hub.

example:
  selfdraft list
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "list",
        help="show the models of the catalogue",
        description="Show the models that `selfdraft pull` can bring, and which are here.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    for model, folder, num_bytes in installed():
        mark = " (default)" if model.name == DEFAULT_MODEL else ""
        print(f"{model.name}{mark}")
        print(f"    {model.description}")
        print(f"    here: {folder} ({size(num_bytes)})" if folder else f"    not here: selfdraft pull {model.name}")
    return 0
