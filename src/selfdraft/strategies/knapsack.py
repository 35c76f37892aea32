"""The dynamic programme of CLaSp and KnapSpec: for each weight skipped, a sub-network that stays close to the target.

An item is a sub-layer, or sub-layers that are skipped together; its weight is what skipping it saves. After the first i
items, the state of weight j is the stream of a sub-network that has skipped items of weight j in all: either item i is
run after the state j, or it is skipped after the state j - weight, whichever is closer (by cosine, over the probed
tokens) to the target's own stream at that depth. States below `min_cosine` are dropped. A state is the best by this
recurrence, not of all sub-networks of its weight.

CLaSp: in-context layer skip (ACL 2025); KnapSpec: arXiv:2602.20217, section 4.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

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


ROWS = 8
"""A table grows by as many: each number of rows is prepared for itself."""


def solve(probe: Probe, items: Sequence[Item], budget: int, min_cosine: float = 0.5) -> tuple[list[Candidate], States]:
    """The best sub-network for each weight up to `budget` that can be had, lightest saving first, and their streams.

    The first one skips nothing: the target itself. What the device found is read once.
    """
    facts, hidden = probe.record(Programme(tuple(items), budget, min_cosine))
    cosines, *skips = facts.tolist()
    weights = [weight for weight, cosine in enumerate(cosines) if cosine > -torch.inf]
    found = [Candidate(_skipped(items, skips, weight), weight, cosines[weight]) for weight in weights]
    return found, States(hidden[weights, : probe.num_tokens])


def _skipped(items: Sequence[Item], skips: Sequence[Sequence[float]], weight: int) -> frozenset[int]:
    """From the last item back: what the state of this weight has skipped."""
    numbers: set[int] = set()
    for item, is_skipped in zip(reversed(items), reversed(skips), strict=True):
        if is_skipped[weight]:
            numbers.update(item.numbers)
            weight -= item.weight
    return frozenset(numbers)


@dataclass(frozen=True)
class Programme:
    """The table on the device: after each item a row for each weight; a cosine of -inf: there is no such state.

    Nothing is read on the way, and few kernels are launched: recorded, they take as long as the products.
    """

    items: tuple[Item, ...]
    budget: int
    min_cosine: float

    def __call__(self, probe: Probe) -> tuple[torch.Tensor, ...]:
        """[1 + items, weights]: the cosines, and after which items a state has skipped it; and the streams."""
        states, reach = probe.begin(), 0
        cosines = torch.ones_like(states.hidden[:, 0, 0], dtype=torch.float32)
        places = functools.cache(functools.partial(_places, states.hidden.device))
        shares, found = probe.is_token / probe.is_token.sum(), []
        for item in self.items:
            run, skipped, is_alive = states, states, cosines > -torch.inf
            for number in item.numbers:
                run, skipped = probe.run_some(number, run, is_alive, False), probe.skip(number, skipped)
            both = run if item.is_pinned else States.join([run, skipped])
            by_option = _cosines(both.hidden, shares).view(-1, len(states))
            reach += 0 if item.is_pinned else item.weight
            options = self._options(torch.where(is_alive, by_option, -torch.inf), item.weight, self._num_rows(reach))
            is_skipped = options[-1] > options[0]  # of equals the one that runs it
            if not item.is_pinned:
                both = both.pick(torch.where(is_skipped, *places(len(states), options.shape[1], item.weight)))
            states, cosines = both, options.amax(0)
            found.append(is_skipped.float())
        return torch.stack([cosines, *(_moved(one, 0, len(states), 0.0) for one in found)]), states.hidden

    def _num_rows(self, reach: int) -> int:
        return min(self.budget + 1, -(-(reach + 1) // ROWS) * ROWS) if reach else 1

    def _options(self, cosines: torch.Tensor, weight: int, num_rows: int) -> torch.Tensor:
        """[run (and skipped), states before] at the weights that are reached: [run (and skipped), weights]."""
        moved = [_moved(one, by, num_rows, -torch.inf) for one, by in zip(cosines, (0, weight), strict=False)]
        options = torch.stack(moved)
        is_nothing_skipped = torch.arange(num_rows, device=options.device) == 0
        return torch.where((options >= self.min_cosine) | is_nothing_skipped, options, -torch.inf)


def _places(device: torch.device, before: int, after: int, weight: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each weight: its row where the item was skipped, after the `before` rows that have run it, and where not."""
    weights = torch.arange(after, device=device)
    return before + (weights - weight).clamp(0, before - 1), weights.clamp(max=before - 1)


def _moved(rows: torch.Tensor, by: int, num_rows: int, filling: float) -> torch.Tensor:
    """`num_rows`, of which these stand from `by` on, as far as there is room."""
    before = min(by, num_rows)
    kept = rows[: num_rows - before]
    return F.pad(kept, (before, num_rows - before - len(kept)), value=filling)


def _cosines(hidden: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Of rows [rows, tokens, hidden] with the first, the target's own stream: [rows], tokens by their shares."""
    dots = (hidden * hidden[:1].float()).sum(-1)
    norms: torch.Tensor = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32)
    return (dots / (norms * norms[:1]).clamp(min=1e-12) * shares).sum(-1)
