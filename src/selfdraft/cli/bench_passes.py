"""`selfdraft bench passes`: what passes cost at published sizes, with random weights made on the device."""

from __future__ import annotations

import argparse
import json

import torch

from ..bench.passes import ShapeBench, read_config
from ..bench.passes_page import as_text
from ..bench.shapes import chosen_shapes
from ..bench.shapes.results import ShapesFile, ShapesHead
from ..errors import unknown_name
from ..measure.circumstances import SHAPING, machine_circumstances
from ..models.load import loading
from ..version import __version__
from . import terminal
from .inputs import check_output
from .parsers.measure import SHAPE_PEERS


def run(options: argparse.Namespace) -> int:
    shapes = {name: read_config(name, content) for name, content in chosen_shapes(options.shape).items()}
    for peer in options.peers:
        if peer not in SHAPE_PEERS:
            raise unknown_name("peer", peer, SHAPE_PEERS)
    device = loading.choose_device(options.device)
    dtype = loading.choose_dtype(options.dtype, device)
    if options.output:
        check_output(options.output)
    if options.threads:
        torch.set_num_threads(options.threads)
    file = ShapesFile(options.output, _head(options, device, dtype), options.again)
    left = {name: config for name, config in shapes.items() if name not in file.lines}
    is_interrupted = False
    with terminal.Progress("shapes") as bar:
        try:
            for line in ShapeBench(device, dtype, options.seconds, options.peers, bar).run(left):
                file.add(line)
                terminal.say(f"{line.name}: {line.missing or 'measured'}")
        except KeyboardInterrupt:
            is_interrupted = True
    lines = [file.lines[name] for name in shapes if name in file.lines]
    document = {**file.head.question, **file.head.circumstances, "shapes": [line.to_json() for line in lines]}
    print(json.dumps(document) if options.json else as_text([(file.head, lines)]))
    if is_interrupted:
        kept = f"{options.output} has what was measured, the same command goes on"
        terminal.say(f"interrupted: {kept if options.output else 'the table has what was measured'}")
        return 130
    return 0 if any(line.missing is None for line in lines) else 1


def _head(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> ShapesHead:
    where = machine_circumstances(device, dtype)
    if options.commit:
        where["commit"] = options.commit
    question = {"selfdraft": __version__, **{name: where[name] for name in SHAPING}}
    return ShapesHead({**question, "peers": options.peers, "seconds": options.seconds}, where)
