"""Prompts as the decoder's own sub-layers read them: of any family, on any device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from ..passes import PassOutput, PassRequest
from .cache import SlotCache
from .decoder import Decoder
from .placement import Placement


def read_prompts(
    decoder: Decoder, request: PassRequest, cache: SlotCache, padded: Callable[[int], int] = int
) -> PassOutput:
    """A chain in each row, no scores. Rows of one padded width share a pass; what pads them is scratch."""
    numbers, groups = request.numbers, defaultdict[int, list[int]](list)
    for place, row in enumerate(numbers):
        groups[padded(len(row))].append(place)
    found: list[dict[str, torch.Tensor]] = [{} for _ in numbers]
    for width, places in groups.items():
        starts, rows = ([values[place] for place in places] for values in (request.starts, request.cache_rows))
        tokens = [[*numbers[place], *[0] * (width - len(numbers[place]))] for place in places]
        cache.reserve(max(starts) + width)
        placement = Placement.chain(starts, width, decoder.device, rows)
        output = decoder.forward(
            torch.tensor(tokens, device=decoder.device),
            placement,
            cache,
            skip=request.skip,
            capture=request.capture,
            needs_scores=False,
        )
        for index, place in enumerate(places):
            found[place] = {name: states[index, : len(numbers[place])] for name, states in output.captured.items()}
    return packed(decoder, {name: torch.cat([row[name] for row in found]) for name in request.capture}, len(numbers))


def packed(decoder: Decoder, states: Mapping[str, torch.Tensor], num_rows: int) -> PassOutput:
    """What a pass without scores returns; `states` [tokens, hidden], row after row."""
    embedding = decoder.embedding
    nothing = embedding.new_empty(num_rows, 0, embedding.shape[1])
    return PassOutput(nothing, {name: part[None] for name, part in states.items()})
