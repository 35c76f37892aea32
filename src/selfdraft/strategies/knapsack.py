"""The dynamic programme of CLaSp and KnapSpec: for each weight skipped, a sub-network that stays close to the target.

An item is a sub-layer, or sub-layers that are skipped together; its weight is what skipping it saves. After the first i
items, the state of weight j is the stream of a sub-network that has skipped items of weight j in all: either item i is
run after the state j, or it is skipped after the state j - weight, whichever is closer (by cosine, over the probed
tokens) to the target's own stream at that depth. States below `min_cosine` are dropped. A state is the best by this
recurrence, not of all sub-networks of its weight.

CLaSp: in-context layer skip (ACL 2025); KnapSpec: arXiv:2602.20217, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..passes import States
from ..protocols import Probe


@dataclass(frozen=True)
class Item:
    """Sub-layers by number (attention 0, MLP 0, attention 1, ...) that are skipped together, or never."""

    numbers: tuple[int, ...]
    weight: int = 1
    is_pinned: bool = False


@dataclass(frozen=True)
class Candidate:
    """A sub-network: the numbers it skips, the weight these have, and how close its last stream is to the target's."""

    skipped: frozenset[int]
    weight: int
    cosine: float


@dataclass
class _Table:
    """The live states of one depth, by weight."""

    weights: list[int]
    skipped: list[frozenset[int]]
    cosines: list[float]
    states: States


def solve(probe: Probe, items: Sequence[Item], budget: int, min_cosine: float = 0.5) -> tuple[list[Candidate], States]:
    """The best sub-network for each weight up to `budget` that can be had, lightest saving first, and their streams.

    The first one skips nothing: the target itself.
    """
    table = _Table([0], [frozenset()], [1.0], probe.begin())
    for item in items:
        table = _after(probe, item, table, budget, min_cosine)
    rows = zip(table.skipped, table.weights, table.cosines, strict=True)
    return [Candidate(*row) for row in rows], table.states


def _after(probe: Probe, item: Item, table: _Table, budget: int, min_cosine: float) -> _Table:
    run = skipped = table.states
    for number in item.numbers:
        run, skipped = probe.run(number, run), probe.skip(number, skipped)
    both = States.join([run, skipped])
    cosines = _cosines(both.hidden, run.hidden[:1]).tolist()  # weight 0 has run everything: the target's own stream
    count = len(table.weights)
    best: dict[int, int] = {}
    for source, weight in enumerate(table.weights):
        options = [(weight, source)] if item.is_pinned else [(weight, source), (weight + item.weight, count + source)]
        for reached, row in options:
            is_allowed = reached <= budget and (reached == 0 or cosines[row] >= min_cosine)
            if is_allowed and (reached not in best or _is_better(row, best[reached], cosines, count)):
                best[reached] = row
    weights = sorted(best)
    rows = [best[weight] for weight in weights]
    sets = [table.skipped[row % count].union(item.numbers if row >= count else ()) for row in rows]
    return _Table(weights, sets, [cosines[row] for row in rows], both.pick(rows))


def _is_better(row: int, other: int, cosines: Sequence[float], count: int) -> bool:
    """Of equals the one that runs the item."""
    return (cosines[row], row < count) > (cosines[other], other < count)


def _cosines(hidden: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, hidden] against [1, tokens, hidden]: the mean over the tokens, [rows]."""
    hidden, truth = hidden.float(), torch.nn.functional.normalize(truth.float(), dim=-1)
    norms: torch.Tensor = hidden.norm(dim=-1).clamp(min=1e-12)
    return ((hidden * truth).sum(-1) / norms).mean(-1)
