"""A draft model cut from a model: some of its layers are left out, the weights of the others are shared."""

from __future__ import annotations

import copy
from collections.abc import Collection
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from ...errors import OptionError
from ..families import family_of


def cut(model: Any, layers: Collection[int]) -> Any:
    """Without these, counted from 0: a model of its own, with its own config."""
    tensors = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    made = copy.deepcopy(model, tensors)  # what it is told of is not copied
    parent, _, name = family_of(made).layers.rpartition(".")
    blocks = getattr(attrgetter(parent)(made), name)
    kept = [number for number in range(len(blocks)) if number not in layers]
    if not kept or not {*layers} <= {*range(len(blocks))}:
        raise OptionError(f"the model has {len(blocks)} layers, 0 to {len(blocks) - 1}, and some must stay")
    setattr(attrgetter(parent)(made), name, nn.ModuleList(blocks[number] for number in kept))
    for place, number in enumerate(kept):
        for module in blocks[number].modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = place
    config = made.config.get_text_config(decoder=True)
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == len(blocks):  # one entry for each layer
            setattr(config, key, [value[number] for number in kept])
    config.num_hidden_layers = len(kept)
    return made
