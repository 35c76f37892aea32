"""Trials: how much faster methods are on prompts that nothing was fitted to, and how much faster they should be.

For each prompt plain decoding and all methods take turns; speed is total tokens over total seconds of decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..economics import LatencyFit
from ..engine.engine import Engine
from ..fitting import CalibrationPrompt
from ..models.pull import Progress
from ..profiles.contents import KnownSet
from ..registry import resolve
from ..types import FrontierPoint, Generation, SkipSet, StepRecord

NUM_TOKENS = 128
"""Of each text."""
_NUM_SETS = 4
_WARM_UP_TOKENS = 8
OFF: Mapping[str, Any] = {"strategy": "off"}

Item = TypeVar("Item")


@dataclass(frozen=True)
class Trials:
    """Where methods are tried: `match` tells how often a skip set meets the target's choices."""

    engine: Engine
    prompts: Sequence[CalibrationPrompt]
    latency: LatencyFit
    match: Callable[[SkipSet], float]
    has_time: Callable[[], bool]
    progress: Progress

    def run(self, methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A result for each method; where time is up the remaining prompts are left out, the first never."""
        turns = [OFF, *methods]
        plain, *others = take_turns(self.engine, turns, self.prompts, NUM_TOKENS, self.has_time, self.progress)
        return [self._result(method["strategy"], total, plain) for method, total in zip(methods, others, strict=True)]

    def _result(self, strategy: str, total: Total, plain: Total) -> dict[str, Any]:
        skip = total.usual_skip
        match = self.match(skip)
        known = KnownSet.at(self.latency.at(total.num_context), skip, match)
        return {
            "strategy": strategy,
            "skip": str(skip),
            "match": match,
            "predicted": known.predicted if skip else 1.0,  # nothing is drafted
            "measured": total.tokens_per_second / plain.tokens_per_second,
            "acceptance_rate": total.num_accepted / max(1, total.num_draft_steps),
            "mean_generated_length": total.num_tokens / max(1, total.num_passes),
            "num_tokens": total.num_tokens,
            "num_prompts": total.num_texts,
        }


def take_turns(
    engine: Engine,
    methods: Sequence[Mapping[str, Any]],
    prompts: Sequence[CalibrationPrompt],
    num_tokens: int,
    has_time: Callable[[], bool],
    progress: Progress,
) -> list[Total]:
    """What each method did, all of them prompt by prompt; where time is up the remaining prompts are left out."""
    for method in methods:
        _warm_up(engine, method, prompts, num_tokens)
    totals = [Total() for _ in methods]
    for number, prompt in enumerate(prompts):
        if number and not has_time():
            break
        for turn, (method, total) in enumerate(zip(methods, totals, strict=True), start=1):
            total.add(engine.generate(prompt.tokens, max_new_tokens=num_tokens, **method))
            progress(number * len(methods) + turn, len(prompts) * len(methods), "trying it")
    return totals


def _warm_up(engine: Engine, method: Mapping[str, Any], prompts: Sequence[CalibrationPrompt], num_tokens: int) -> None:
    """Where passes are recorded, a whole text records all of them."""
    longest = max(prompts, key=lambda prompt: len(prompt.tokens)).tokens
    engine.prepare(len(longest) + num_tokens, **method)
    num_tokens = num_tokens if engine.runner.recorded_slots(1) else min(num_tokens, _WARM_UP_TOKENS)
    engine.generate(longest, max_new_tokens=num_tokens, **method)


@dataclass
class Total:
    """What one method did in all texts."""

    num_texts: int = 0
    num_tokens: int = 0
    num_passes: int = 0
    num_draft_steps: int = 0
    num_accepted: int = 0
    seconds: float = 0.0
    lengths: float = 0.0
    skips: Counter[SkipSet] = field(default_factory=Counter)

    def add(self, generation: Generation) -> None:
        stats = generation.stats
        self.num_texts += 1
        self.num_tokens += stats.num_tokens
        self.num_passes += stats.num_target_passes
        self.num_draft_steps += stats.num_draft_steps
        self.num_accepted += stats.num_accepted
        self.seconds += stats.decode_seconds
        self.lengths += generation.num_prompt_tokens + stats.num_tokens / 2
        self.skips.update(map(_skip_of, generation.steps))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / max(self.seconds, 1e-9)

    @property
    def num_context(self) -> float:
        """The mean length of a text while it was written."""
        return self.lengths / max(1, self.num_texts)

    @property
    def usual_skip(self) -> SkipSet:
        """Of most rounds; empty: most were plain."""
        ((skip, _),) = self.skips.most_common(1) or [(SkipSet(), 0)]
        return skip


def _skip_of(step: StepRecord) -> SkipSet:
    return SkipSet() if step.plan.max_draft_tokens == 0 else step.plan.skip


def methods_of(strategy: str, points: Sequence[FrontierPoint] = ()) -> list[dict[str, Any]]:
    """The strategy itself, and fixed sets spread over its frontier with all else as the strategy has it."""
    pairing = {name: value for name, value in resolve({"strategy": strategy}).items() if name != "strategy"}
    spread = thinned([point for point in points if point.skip], _NUM_SETS + 2)
    fixed = [
        {**pairing, "strategy": "fixed", "settings": {**pairing["settings"], "fixed": {"skip": str(point.skip)}}}
        for point in spread[1:-1] or spread  # at its ends a frontier skips next to nothing, and nearly all
    ]
    return [{"strategy": strategy}, *fixed]


def thinned(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]
