"""What sub-networks would have drafted: several skip sets beside each other in one pass over known tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ..passes import States
from ..protocols import Probe


@dataclass(frozen=True)
class Matched:
    """What sub-networks say of tokens that are known."""

    hits: torch.Tensor  # [sets, tokens] bool: the sub-network's choice is the wanted token
    log_probs: torch.Tensor  # [sets, tokens] float32: of the wanted token under the sub-network


def matched(probe: Probe, skips: Sequence[Collection[int]], wanted: Sequence[int]) -> Matched:
    """`wanted`: what follows each probed token in the text."""
    states = _through(probe, skips)
    following = torch.tensor(list(wanted), device=states.hidden.device)
    hits, log_probs = [], []
    for row in range(len(skips)):  # scores of all rows at once would not fit
        scores = probe.scores(states.pick([row]))[0]
        hits.append(scores.argmax(-1) == following)
        log_probs.append(scores.float().log_softmax(-1).gather(-1, following[:, None])[:, 0])
    return Matched(torch.stack(hits), torch.stack(log_probs))


def choices(probe: Probe, skips: Sequence[Collection[int]]) -> torch.Tensor:
    """[skip sets, tokens]: after each token, what the model without these sub-layers, by number, would say."""
    states = _through(probe, skips)
    return torch.stack([probe.scores(states.pick([row]))[0].argmax(-1) for row in range(len(skips))])


def _through(probe: Probe, skips: Sequence[Collection[int]]) -> States:
    states = probe.begin()
    if len(skips) > 1:
        states = states.pick([0] * len(skips))
    skipped = [[number in skip for skip in skips] for number in range(probe.num_sublayers)]
    masks = torch.tensor(skipped, device=states.hidden.device)[:, :, None, None] if states.hidden.is_cuda else None
    for number, is_skipped in enumerate(skipped):
        if not any(is_skipped):
            states = probe.run(number, states)
        elif all(is_skipped):
            states = probe.skip(number, states)
        elif masks is not None:
            states = behind_all(probe, number, states, masks[number])
        else:
            states = behind_some(probe, number, states, is_skipped)
    return states


def behind_some(probe: Probe, number: int, states: States, is_skipped: Sequence[bool]) -> States:
    """Only the rows that run it do."""
    running = [row for row, skipped in enumerate(is_skipped) if not skipped]
    passing = [row for row, skipped in enumerate(is_skipped) if skipped]
    joined = States.join([probe.run(number, states.pick(running)), probe.skip(number, states.pick(passing))])
    places = {row: place for place, row in enumerate((*running, *passing))}
    return joined.pick([places[row] for row in range(len(is_skipped))])


def behind_all(probe: Probe, number: int, states: States, is_skipped: torch.Tensor) -> States:
    """Every row runs it, and those that should not have are put back: a GPU computes sooner than it is told to."""
    ran, passed = probe.run(number, states), probe.skip(number, states)
    hidden = torch.where(is_skipped, passed.hidden, ran.hidden)
    if ran.source is None and passed.source is None:
        return States(hidden)
    put_back, kept = (one.hidden if one.source is None else one.source for one in (passed, ran))
    return States(hidden, torch.where(is_skipped, put_back, kept))
