"""Machines and texts that are only numbers: what rounds cost, how often copies hold, and the best that can be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selfdraft.drafters.lookup import Match
from selfdraft.strategies.choosing.company import BACK, Choice, Company, Kind
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
    num_beside: int = 0
    """Tokens of a copy that stand beside the draft of the skipped self."""
    noise: float = 0.05
    runs_ahead: bool = False
    """Whether rounds of one kind run ahead of each other: a change of kinds costs what `BACK` says."""
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

    def simple_rates(self) -> dict[str, float]:
        """Tokens per second of who does the same all the time, or copies what is repeated and else does the same."""
        share, rates = 1 - self.matches[0], {}
        known = [self.expected(Choice("copy", MAX_TOKENS), length) for length in LENGTHS[1:]]
        copy = np.average(known, axis=0, weights=self.matches[1:])
        for kind in ("off", "skip") if self.skips else ("off",):
            always = np.average(
                [self.expected(Choice(kind), length) for length in LENGTHS], axis=0, weights=self.matches
            )
            rates[kind] = float(always[0] / always[1])
            both = share * copy + (1 - share) * np.array(self.expected(Choice(kind), 0))
            rates[f"copy, {kind}"] = float(both[0] / (both[1] + share * (1 - share) * BACK[kind] * self.runs_ahead))
        return rates

    def _options(self, length: int) -> list[tuple[float, float]]:
        """Tokens and seconds of all that a round could do."""
        kinds = [Choice("off"), *([Choice("skip")] if self.skips else [])]
        copies = [Choice("copy", count) for count in range(1, MAX_TOKENS + 1)] if length else []
        return [self.expected(choice, length) for choice in (*kinds, *copies)]

    def expected(self, choice: Choice, length: int) -> tuple[float, float]:
        """Tokens and seconds, on average."""
        if choice.kind == "skip":
            assert self.skips is not None
            tokens, seconds = self.skips
            beside = [self.holds[length] ** count for count in range(1, 1 + self.num_beside)] if length else []
            return Choice("skip", 0, tokens).with_copies(beside).tokens, seconds
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
        self._last: Kind | None = None
        self._world: World | None = None

    def rounds(self, world: World, count: int) -> float:
        """Tokens per second of that many of them."""
        first = len(self.done)
        for _ in range(count):
            self._round(world)
        tokens, seconds = (sum(one[place] for one in self.done[first:]) for place in (1, 2))
        return float(tokens / seconds)

    def tokens(self, world: World, count: int) -> float:
        """Seconds of that many of them."""
        first = len(self.done)
        while sum(one[1] for one in self.done[first:]) < count:
            self._round(world)
        return sum(one[2] for one in self.done[first:])

    def _round(self, world: World) -> None:
        rng, length = self._rng, self._length(world)
        chances = self._text.chances(Match([0] * MAX_TOKENS, length)) if length else []
        may = world.skips is not None, world.num_beside
        choice = self.company.choose(chances, self._skipped, *may, last=self._last)
        mean, seconds = world.expected(choice, length)
        if world.runs_ahead and choice.kind not in ("copy", self._last):
            seconds += BACK[choice.kind] * world.seconds(1)
        self.done.append((choice, mean, seconds))
        kept, own = self._kept(world.holds[length], length) if length else 0, None
        tokens = 1.0 + min(kept, choice.num_drafted)
        if choice.kind == "skip" and world.skips:
            own = float(1 + rng.binomial(11, (world.skips[0] - 1) / 11))
            tokens = max(own, 1.0 + min(kept, world.num_beside))
        seconds *= world.scale(len(self.done)) * float(rng.lognormal(0, world.noise))
        self.company.observe(choice, 1 + choice.num_drafted, tokens, seconds, self._skipped, self._last, own)
        self._last = choice.kind

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
