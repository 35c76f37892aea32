"""`selfdraft pull`: bring a catalogue model into the cache folder; `--list`: what there is."""

from __future__ import annotations

import argparse

from ..models.load.catalogue import DEFAULT_MODEL
from ..models.load.pull import installed, pull
from . import terminal


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
