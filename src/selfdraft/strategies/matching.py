"""What sub-networks would have drafted: several skip sets beside each other in one pass over known tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..passes import States
from ..protocols import Probe

MAX_BYTES = 1 << 31
"""Of the scores that are there at once, in float32: those of 8 sets, 256 tokens and 152k words of a vocabulary."""


@dataclass(frozen=True)
class Matched:
    """What sub-networks make of known tokens; on the host."""

    hits: torch.Tensor  # [sets, tokens] bool: the sub-network's choice is the wanted token
    log_probs: torch.Tensor  # [sets, tokens] float32: of the wanted token under the sub-network


@torch.inference_mode()
def matched(probe: Probe, skips: Sequence[Collection[int]], wanted: Sequence[int]) -> Matched:
    """The model without these sub-layers, by number: what it makes of the token `wanted` after each probed one."""
    hidden = _streams(probe, skips)
    tokens = torch.tensor(list(wanted)).to(hidden.device, non_blocking=True)
    parts = []
    for scores in scores_of(probe, hidden):
        log_probs = scores.log_softmax(-1, dtype=torch.float32)
        hits = scores.argmax(-1) == tokens
        parts.append(torch.stack((hits.float(), log_probs.gather(-1, tokens.expand_as(hits)[..., None])[..., 0])))
    hits, log_probs = torch.cat(parts, dim=1).cpu()
    return Matched(hits > 0, log_probs)


@torch.inference_mode()
def choices(probe: Probe, skips: Sequence[Collection[int]]) -> torch.Tensor:
    """[skip sets, tokens]: after each token, what the model without these sub-layers, by number, would say."""
    return choices_after(probe, _streams(probe, skips))


def choices_after(probe: Probe, hidden: torch.Tensor) -> torch.Tensor:
    """[rows, tokens]: what follows from the streams after the last sub-layer."""
    return torch.cat([scores.argmax(-1) for scores in scores_of(probe, hidden)])


def scores_of(probe: Probe, hidden: torch.Tensor) -> Iterator[torch.Tensor]:
    """[rows, tokens, vocabulary] of as many rows at once as there is room for: the head is read each time."""
    num_rows = max(1, MAX_BYTES // (hidden.shape[1] * probe.vocab_size * 4))
    for first in range(0, len(hidden), num_rows):
        yield probe.scores(States(hidden[first : first + num_rows]))


def _streams(probe: Probe, skips: Sequence[Collection[int]]) -> torch.Tensor:
    """[skip sets, tokens, hidden] after the last sub-layer."""
    runs = torch.tensor([[number not in skip for skip in skips] for number in range(probe.num_sublayers)])
    (hidden,) = probe.record(_through, runs.long())
    return hidden[:, : probe.num_tokens]


def _through(probe: Probe, runs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`runs` [sub-layers, sets]: 1 where a set runs it."""
    states = States(probe.begin().hidden.expand(runs.shape[1], -1, -1))
    for number, is_run in enumerate(runs.unbind()):
        states = probe.run_some(number, states, is_run > 0)
    return (states.hidden,)
