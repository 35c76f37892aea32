"""Trials: how much faster methods are on prompts that nothing was fitted to, and how much faster they should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..economics import LatencyFit
from ..engine.engine import Engine
from ..measure.figures import Figures, Measured
from ..measure.records import Record
from ..measure.run import MeasurePlan, run_whole
from ..profiles.contents import KnownSet
from ..progress import Progress
from ..registry import resolve
from ..types import FrontierPoint, Prompt, SkipSet

NUM_TOKENS = 128  # of each text
_NUM_SETS = 4

Item = TypeVar("Item")


@dataclass(frozen=True)
class Trials:
    """Where methods are tried: `match` tells how often a skip set meets the target's choices."""

    engine: Engine
    prompts: Sequence[Prompt]
    latency: LatencyFit
    match: Callable[[SkipSet], float]
    progress: Progress

    def run(self, methods: Mapping[str, Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
        """A result for each method; where time is up the remaining prompts are left out, the first never."""
        plan = MeasurePlan(self.prompts, methods, max_new_tokens=NUM_TOKENS, seconds=max(0.0, seconds))
        found = run_whole(self.engine, plan, self.progress).all_of
        return [self._result(found, name, methods[name]["strategy"]) for name in methods if name in found.arms]

    def _result(self, found: Measured, name: str, strategy: str) -> dict[str, Any]:
        records, total = found.of(name), found.figures(name)
        assert total is not None
        skip, speedup = usual_skip(records), total.speedup
        lengths = [record.num_prompt_tokens + record.num_tokens / 2 for record in records]  # while it was written
        match, costs = self.match(skip), self.latency.at(sum(lengths) / max(1, len(lengths)))
        return {
            "strategy": strategy,
            "skip": str(skip),
            "match": match,
            "predicted": KnownSet.at(costs, skip, match).predicted if skip else 1.0,
            "measured": speedup.value if speedup else 1.0,
            **({"low": speedup.low, "high": speedup.high} if speedup else {}),
            **rates(total),
        }


def rates(total: Figures) -> dict[str, Any]:
    """What profiles and documents tell of a method beside its speed."""
    return {
        "acceptance_rate": total.acceptance_rate or 0.0,
        "mean_generated_length": total.mean_generated_length,
        "num_tokens": total.num_tokens,
        "num_prompts": total.num_prompts,
    }


def usual_skip(records: Sequence[Record]) -> SkipSet:
    """Of most draft passes; empty: most rounds were plain."""
    passes: Counter[str] = Counter()
    for record in records:
        passes.update(record.skips or {})
    if 2 * passes.total() < sum(record.num_rounds for record in records):
        return SkipSet()
    return SkipSet.parse(passes.most_common(1)[0][0])


def methods_of(strategy: str, points: Sequence[FrontierPoint] = ()) -> dict[str, dict[str, Any]]:
    """The strategy itself, and fixed sets spread over its frontier with all else as the strategy has it."""
    pairing = {name: value for name, value in resolve({"strategy": strategy}).items() if name != "strategy"}
    spread = thinned([point for point in points if point.skip], _NUM_SETS + 2)
    methods: dict[str, dict[str, Any]] = {strategy: {"strategy": strategy}}
    for point in spread[1:-1] or spread:  # at its ends a frontier skips next to nothing, and nearly all
        settings = {**pairing["settings"], "fixed": {"skip": str(point.skip)}}
        methods[str(point.skip)] = {**pairing, "strategy": "fixed", "settings": settings}
    return methods


def thinned(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]
