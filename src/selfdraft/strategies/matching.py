"""What sub-networks would have drafted: several skip sets beside each other in one pass over known tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ..passes import States
from ..protocols import Probe


def choices(probe: Probe, skips: Sequence[Collection[int]]) -> torch.Tensor:
    """[skip sets, tokens]: behind each token, what the model without these sub-layers, by number, would say."""
    states = probe.begin()
    if len(skips) > 1:
        states = states.pick([0] * len(skips))
    for number in range(probe.num_sublayers):
        states = _behind(probe, number, states, [number in skip for skip in skips])
    return torch.stack([probe.scores(states.pick([row]))[0].argmax(-1) for row in range(len(skips))])


def _behind(probe: Probe, number: int, states: States, is_skipped: Sequence[bool]) -> States:
    if not any(is_skipped):
        return probe.run(number, states)
    if all(is_skipped):
        return probe.skip(number, states)
    running = [row for row, skipped in enumerate(is_skipped) if not skipped]
    passing = [row for row, skipped in enumerate(is_skipped) if skipped]
    joined = States.join([probe.run(number, states.pick(running)), probe.skip(number, states.pick(passing))])
    places = {row: place for place, row in enumerate((*running, *passing))}
    return joined.pick([places[row] for row in range(len(is_skipped))])
