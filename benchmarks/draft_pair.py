"""Make a draft model of some whole layers of a model: a pair for speculative decoding on any machine.

    python benchmarks/draft_pair.py --layers 0-9,20-29 --output draft
    selfdraft bench lookahead --drafter model --set model.source=draft

The draft model has the embeddings, these layers in their order, the last norm and the head; the tokenizer is the same.
Nothing is trained, so layers in the middle are those that may be missing. It shows DISCO's own setting (a separate
draft model with a cache of its own), not a good draft model.
"""

from __future__ import annotations

import argparse
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from selfdraft.cli.inputs import MODEL_HELP, add_device_options
from selfdraft.errors import OptionError, SelfdraftError
from selfdraft.models.families import family_of
from selfdraft.models.load.loading import load
from selfdraft.types import SkipSet


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        model, tokenizer = load(options.model, device=options.device, dtype=options.dtype)
        kept = keep_layers(model, options.layers)
        model.save_pretrained(options.output)
        tokenizer.save_pretrained(options.output)
    except (SelfdraftError, OSError) as error:
        print(f"draft_pair: error: {error}", file=sys.stderr)
        return 2
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{options.output}: layers {', '.join(map(str, kept))}; {num_weights / 1e6:.1f} million weights")
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(found)
    found.add_argument("--layers", metavar="LIST", required=True, help="those to keep, counted from 0: 0-9,20-29")
    found.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="where the draft model goes")
    return found


def keep_layers(model: Any, text: str) -> list[int]:
    """Leave only these layers in the model; their numbers. They are counted anew when it is loaded again."""
    path, _, name = family_of(model).layers.rpartition(".")
    holder = attrgetter(path)(model)
    layers = getattr(holder, name)
    kept = read_layers(text, len(layers))
    setattr(holder, name, torch.nn.ModuleList([layers[number] for number in kept]))
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [config.layer_types[number] for number in kept]
    config.num_hidden_layers = len(kept)
    return kept


def read_layers(text: str, num_layers: int) -> list[int]:
    """Written as a skip set is, without the letters."""
    named = SkipSet.parse(",".join(f"m{part.strip()}" for part in text.split(",") if part.strip()))
    named.check(num_layers)
    if not named:
        raise OptionError("a draft model needs layers; name some like 0-9,20-29")
    return sorted(named.mlp)


if __name__ == "__main__":
    sys.exit(main())
