"""Machines and texts that are only numbers: what rounds cost, how often copies hold, and the best that can be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selfdraft.drafters.lookup import Match
from selfdraft.strategies.choosing.company import Choice, Company
from selfdraft.strategies.choosing.copies import MAX_TOKENS, CopiedText, Copies
from selfdraft.strategies.choosing.costs import GUESS, KNOTS

CHEAP = (1.0, 1.02, 1.1, 1.4, 1.5, 1.8, 2.2, 2.6, 3.5, 4.0, 6.0)
DEAR = (1.0, 2.4, 2.6, 2.8, 3.0, 3.3, 4.0, 4.2, 6.0, 6.2, 9.0)
"""Seconds of passes of as many columns as there are knots."""
LENGTHS = (0, 1, 2, 4, 8)
"""Of a round's match; 0: there is none."""
_BLOCK = 20
"""Rounds in which each length comes as often as it should."""


@dataclass
class World:
    """`matches`: how often a round has a match of each length; `holds`: the chance of each token of it; `skips`: tokens
    and seconds of a round that the skipped self drafts.
    """

    costs: Sequence[float] = CHEAP
    matches: Sequence[float] = (0.5, 0.2, 0.1, 0.1, 0.1)
    holds: Mapping[int, float] = field(default_factory=lambda: {1: 0.25, 2: 0.5, 4: 0.7, 8: 0.9})
    skips: tuple[float, float] | None = None
    noise: float = 0.05
    scale: Callable[[int], float] = lambda number: 1.0
    """Seconds of round so and so, of whatever kind, over the usual ones."""

    def seconds(self, width: int) -> float:
        return float(np.interp(width, KNOTS, self.costs))

    def best_rate(self) -> float:
        """Tokens per second of who knows all this: what is worth most by one rate gives a higher one."""
        rate = 1 / self.seconds(1)
        for _ in range(50):
            done = [max(self._options(length), key=lambda one, r=rate: one[0] - r * one[1]) for length in LENGTHS]
            tokens, seconds = np.average(done, axis=0, weights=self.matches)
            rate = float(tokens / seconds)
        return rate

    def _options(self, length: int) -> list[tuple[float, float]]:
        """Tokens and seconds of all that a round could do."""
        kinds = [Choice("off"), *([Choice("skip")] if self.skips else [])]
        copies = [Choice("copy", count) for count in range(1, MAX_TOKENS + 1)] if length else []
        return [self.expected(choice, length) for choice in (*kinds, *copies)]

    def expected(self, choice: Choice, length: int) -> tuple[float, float]:
        """Tokens and seconds, on average."""
        if choice.kind == "skip":
            assert self.skips is not None
            return self.skips
        hold = self.holds[length] if choice.num_drafted else 0.0
        return sum(hold**count for count in range(choice.num_drafted + 1)), self.seconds(1 + choice.num_drafted)


@dataclass
class Run:
    """Rounds of one chooser in worlds that may change."""

    company: Company = field(default_factory=lambda: Company(GUESS))
    copies: Copies = field(default_factory=Copies)
    seed: int = 0
    done: list[tuple[Choice, float, float]] = field(default_factory=list)
    """What rounds did, and tokens and seconds of such a round on average: without the luck of those that ran."""

    def __post_init__(self) -> None:
        self._rng, self._text = np.random.default_rng(self.seed), CopiedText(self.copies)
        self._skipped = Company.new_text()
        self._lengths: list[int] = []
        self._world: World | None = None

    def rounds(self, world: World, count: int) -> float:
        """Tokens per second of that many of them."""
        first = len(self.done)
        for _ in range(count):
            self._round(world)
        tokens, seconds = (sum(one[place] for one in self.done[first:]) for place in (1, 2))
        return float(tokens / seconds)

    def _round(self, world: World) -> None:
        rng, length = self._rng, self._length(world)
        chances = self._text.chances(Match([0] * MAX_TOKENS, length)) if length else []
        choice = self.company.choose(chances, self._skipped, can_skip=world.skips is not None)
        mean, seconds = world.expected(choice, length)
        self.done.append((choice, mean, seconds))
        kept = self._kept(world.holds[length], length) if length else 0
        tokens = 1.0 + min(kept, choice.num_drafted)
        if choice.kind == "skip":
            tokens = float(1 + rng.binomial(8, (mean - 1) / 8))
        seconds *= world.scale(len(self.done)) * float(rng.lognormal(0, world.noise))
        self.company.observe(choice, 1 + choice.num_drafted, tokens, seconds, self._skipped)

    def _length(self, world: World) -> int:
        """In any order, but as often as they should be: else luck would decide which world is good."""
        if not self._lengths or self._world is not world:
            counts = [round(_BLOCK * share) for share in world.matches]
            self._world, self._lengths = world, self._rng.permutation(np.repeat(LENGTHS, counts)).tolist()
        return self._lengths.pop()

    def _kept(self, hold: float, length: int) -> int:
        """Of a match: all of it is told by the tokens that come, as where they are decoded one by one."""
        kept = min(int(self._rng.geometric(1 - hold)) - 1, MAX_TOKENS)
        for place in range(min(kept + 1, MAX_TOKENS)):
            self._text.count(length, place, place < kept)
        return kept

    def share(self, kind: str, last: int) -> float:
        """Of the last rounds: those of this kind."""
        return sum(one[0].kind == kind for one in self.done[-last:]) / last
