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
    """The table on the device: after each item a row for each weight; a cosine of -inf: there is no such state."""

    items: tuple[Item, ...]
    budget: int
    min_cosine: float

    def __call__(self, probe: Probe) -> tuple[torch.Tensor, ...]:
        """[1 + items, weights]: the cosines, and after which items a state has skipped it; and the streams."""
        states = probe.begin()
        cosines, reach = torch.ones_like(states.hidden[:, 0, 0], dtype=torch.float32), 0
        found = []
        for item in self.items:
            reach += 0 if item.is_pinned else item.weight
            num_rows = max(len(states), min(self.budget + 1, -(-(reach + 1) // ROWS) * ROWS))
            states, cosines, is_skipped = self._after(probe, item, states, cosines, num_rows)
            found.append(is_skipped)
        pointers = [_moved(is_skipped.float(), 0, len(states), 0.0) for is_skipped in found]
        return torch.stack([cosines, *pointers]), states.hidden

    def _after(
        self, probe: Probe, item: Item, states: States, cosines: torch.Tensor, num_rows: int
    ) -> tuple[States, torch.Tensor, torch.Tensor]:
        """States, their cosines, and whether they skip the item; of equals the one that runs it."""
        is_alive = cosines > -torch.inf
        run = skipped = states
        for number in item.numbers:
            run, skipped = probe.run_some(number, run, is_alive), probe.skip(number, skipped)
        truth = run.hidden[:1]  # weight 0 has run everything: the target's own stream

        def reached(by: States, weight: int) -> tuple[States, torch.Tensor]:
            """The rows at the weights that they have now."""
            found = torch.where(is_alive, _cosines(by.hidden, truth, probe.is_token), -torch.inf)
            found = _moved(found, weight, num_rows, -torch.inf)
            is_allowed = (found >= self.min_cosine) | (torch.arange(num_rows, device=found.device) == 0)
            source = None if by.source is None else _moved(by.source, weight, num_rows, 0.0)
            moved = States(_moved(by.hidden, weight, num_rows, 0.0), source)
            return moved, torch.where(is_allowed, found, -torch.inf)

        run, by_running = reached(run, 0)
        if item.is_pinned:
            return run, by_running, torch.zeros_like(by_running, dtype=torch.bool)
        skipped, by_skipping = reached(skipped, item.weight)
        is_skipped = by_skipping > by_running
        return States.where(is_skipped, skipped, run), torch.maximum(by_running, by_skipping), is_skipped


def _moved(rows: torch.Tensor, by: int, num_rows: int, filling: float) -> torch.Tensor:
    """As `num_rows` rows, of which these are the ones from `by` on."""
    kept = rows[: max(0, num_rows - by)]
    before = min(by, num_rows)
    return F.pad(kept, (0, 0) * (rows.dim() - 1) + (before, num_rows - before - len(kept)), value=filling)


def _cosines(hidden: torch.Tensor, truth: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, hidden] against [1, tokens, hidden]: the mean over the tokens, [rows]."""
    hidden, truth = hidden.float(), F.normalize(truth.float(), dim=-1)
    cosines = (hidden * truth).sum(-1) / hidden.norm(dim=-1).clamp(min=1e-12)
    mean: torch.Tensor = (cosines * is_token).sum(-1) / is_token.sum()
    return mean
