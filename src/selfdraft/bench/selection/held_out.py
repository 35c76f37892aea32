"""How well the frontier of `prune` drafts texts that it was not fitted on: those of the prompts that are measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocols import Probe
from ...strategies.elimination import qualities, sample
from ...types import FrontierPoint
from .sums import Prices

MIN_MATCH, MAX_COST = 0.74, 0.53
"""What is asked of the frontier: does some point meet so many of the target's choices for so much of the weights?"""


@dataclass
class Tally:
    """Over the tokens of some texts."""

    num_tokens: int = 0
    lost: float = 0.0
    matches: float = 0.0

    def add(self, num_tokens: int, lost: float, match: float) -> None:
        self.num_tokens += num_tokens
        self.lost += lost * num_tokens
        self.matches += match * num_tokens

    @property
    def match(self) -> float | None:
        return self.matches / self.num_tokens if self.num_tokens else None

    @property
    def mean_lost(self) -> float | None:
        return self.lost / self.num_tokens if self.num_tokens else None


@dataclass
class HeldOut:
    """`add` looks at a text; each point is scored on every generated token, given what stands before it."""

    points: Sequence[FrontierPoint]
    prices: Prices
    tallies: dict[str, dict[str, Tally]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Tally)))
    contexts: Counter[int] = field(default_factory=Counter)

    def add(self, domain: str, probe: Probe, first: int, num_tokens: int) -> None:
        """`probe`: of the `num_tokens` tokens from position `first` on, behind each of which one was generated."""
        samples = [sample(probe)]
        for point in self.points:
            (quality,) = qualities(samples, point.skip.numbers)
            self.tallies[str(point.skip)][domain].add(num_tokens, quality.lost, quality.match)
        self.contexts.update(range(first + 1, first + num_tokens + 1))

    @property
    def num_tokens(self) -> int:
        return self.contexts.total()

    @property
    def mean_context(self) -> float | None:
        count = self.num_tokens
        return sum(length * times for length, times in self.contexts.items()) / count if count else None

    def figures(self) -> dict[str, Any]:
        points = [self._point(point) for point in self.points]
        return {
            "num_tokens": self.num_tokens,
            "mean_context": self.mean_context,
            "points": points,
            "answer": answer(points) if self.num_tokens else None,
        }

    def _point(self, point: FrontierPoint) -> dict[str, Any]:
        by_domain = self.tallies[str(point.skip)]
        whole = Tally()
        for tally in by_domain.values():
            whole = Tally(whole.num_tokens + tally.num_tokens, whole.lost + tally.lost, whole.matches + tally.matches)
        context = self.mean_context
        return {
            "skip": str(point.skip),
            "attention": len(point.skip.attention),
            "mlp": len(point.skip.mlp),
            "cost_by_weights": self.prices.by_weights(point.skip),
            "cost_by_seconds": None if context is None else self.prices.by_seconds(point.skip, context),
            "calibration_match": point.match,
            "calibration_lost": point.lost,
            "match": whole.match,
            "lost": whole.mean_lost,
            "domains": {domain: {"match": tally.match, "lost": tally.mean_lost} for domain, tally in by_domain.items()},
        }


def answer(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The points that match enough and cost little enough; else what comes closest from either side."""
    matching = [point for point in points if point["match"] >= MIN_MATCH]
    cheap = [point for point in points if point["cost_by_weights"] <= MAX_COST]
    return {
        "min_match": MIN_MATCH,
        "max_cost_by_weights": MAX_COST,
        "skips": [point["skip"] for point in matching if point in cheap],
        "cheapest_matching": min(matching, key=lambda point: point["cost_by_weights"], default=None),
        "best_cheap": max(cheap, key=lambda point: point["match"], default=None),
    }
