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
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..kernels.top import runs_triton
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
    programme = Programme(tuple(items), budget, min_cosine)
    facts, hidden = probe.record(programme)
    numbers = iter(facts.tolist())
    *skips, cosines = (list(itertools.islice(numbers, count)) for count in (*programme.num_rows, len(hidden)))
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
        """After each item which states have skipped it, after the last one their cosines; and the streams."""
        states, found = probe.begin(), []
        choose = Choice(probe.is_token / probe.is_token.sum(), self.min_cosine)
        cosines = torch.ones_like(states.hidden[:, 0, 0], dtype=torch.float32)
        for item, num_rows in zip(self.items, self.num_rows, strict=True):
            run, skipped, is_alive = states, states, cosines > -torch.inf
            for number in item.numbers:
                run, skipped = probe.run_some(number, run, is_alive, False), probe.skip(number, skipped)
            options = run, None if item.is_pinned else skipped
            states, cosines, is_skipped = choose(*options, cosines, num_rows, item.weight)
            found.append(is_skipped)
        return torch.cat([*found, cosines]), states.hidden

    @property
    def num_rows(self) -> list[int]:
        """After each item: enough for what can be skipped up to there."""
        reach = itertools.accumulate(0 if item.is_pinned else item.weight for item in self.items)
        return [min(self.budget + 1, -(-(most + 1) // ROWS) * ROWS) if most else 1 for most in reach]


@dataclass(frozen=True)
class Choice:
    """Of two states for each weight the one that is closer to the target, if it is close enough."""

    shares: torch.Tensor  # of the tokens: 1 in all
    min_cosine: float

    def __call__(
        self, run: States, skipped: States | None, cosines: torch.Tensor, num_rows: int, weight: int
    ) -> tuple[States, torch.Tensor, torch.Tensor]:
        """For `num_rows` weights the states after an item, their cosines, and 1 where it was skipped.

        Those that ran it and those that skipped it stand by weight before it; None: it is pinned.
        """
        if run.source is None and runs_triton(run.hidden.device):
            from ..kernels.closest import closest

            streams = run.hidden, None if skipped is None else skipped.hidden
            hidden, *facts = closest(*streams, cosines, self.shares, num_rows, weight, self.min_cosine)
            return States(hidden), facts[0], facts[1]
        both = run if skipped is None else States.join([run, skipped])
        known = torch.where(cosines > -torch.inf, _cosines(both.hidden, self.shares).view(-1, len(run)), -torch.inf)
        places, least = self._options(len(run), num_rows, None if skipped is None else weight)
        options = known.flatten()[places]
        best, choice = torch.where(options >= least, options, -torch.inf).max(0)  # of equals the one that runs it
        return both.pick(places.gather(0, choice[None])[0]), best, choice.float()

    @functools.cached_property
    def _options(self) -> Callable[[int, int, int | None], tuple[torch.Tensor, torch.Tensor]]:
        return functools.cache(functools.partial(_options, self.shares.device, self.min_cosine))


def _options(
    device: torch.device, min_cosine: float, before: int, after: int, weight: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """[run (and skipped), weights]: the row of each of `after` weights, and the least cosine it may have there.

    There are `before` rows that have run an item, then as many that have skipped it. At least inf: no such row.
    """
    weights = torch.arange(after, device=device)
    sources = torch.stack([weights] if weight is None else [weights, weights - weight])
    is_there = (sources >= 0) & (sources < before)
    least = torch.where(is_there, torch.where(weights == 0, -torch.inf, min_cosine), torch.inf)
    firsts = before * torch.arange(len(sources), device=device)[:, None]
    return firsts + sources.clamp(0, before - 1), least


def _cosines(hidden: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Of rows [rows, tokens, hidden] with the first, the target's own stream: [rows], tokens by their shares."""
    dots = (hidden * hidden[:1].float()).sum(-1)
    norms: torch.Tensor = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32)
    return (dots / (norms * norms[:1]).clamp(min=1e-12) * shares).sum(-1)
