"""Where `knn` sends prompts: those of the domains it knows, and strangers; and how long it takes to decide."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calibrate.kit import EngineKit, ScoredTexts, Workshop
from ...engine.engine import Engine
from ...fitting import CalibrationPrompt
from ...profiles.profile import Profile
from ..prompts import BenchPrompt
from .learning import as_calibration
from .names import GENERAL, ROUTE, SIMILARITY, knn


@dataclass(frozen=True)
class Routed:
    """One prompt. `seconds`: of the decision, the prefill not included."""

    domain: str
    route: str
    similarity: float | None  # None: nothing is known of the prompt
    seconds: float


def route(
    engine: Engine, profile: Profile, groups: Mapping[str, Sequence[BenchPrompt]], workshop: Workshop
) -> list[Routed]:
    """`engine` goes by the profile."""
    engine.remember(profile)
    strategy: Any = engine.method(**knn()).strategy
    kit = EngineKit(workshop, [], lambda: ScoredTexts(engine.runner, []), workshop.journal("routing"), 0.0, "routing")
    prompts = as_calibration([prompt for group in groups.values() for prompt in group], engine)
    return [_route(strategy, kit, number, prompt, engine) for number, prompt in enumerate(prompts)]


def _route(strategy: Any, kit: EngineKit, number: int, prompt: CalibrationPrompt, engine: Engine) -> Routed:
    points = tuple(dict.fromkeys((*strategy.needs, *strategy.prefill_needs)))
    seen = kit.hidden(prompt, points, strategy.condense)
    began = engine.runner.seconds()
    strategy.begin(number, seen)
    seconds = engine.runner.seconds() - began
    report = strategy.report(number)
    strategy.end(number)
    return Routed(prompt.domain, str(report[ROUTE]), report[SIMILARITY], seconds)


def figures(found: Sequence[Routed], domains: Sequence[str]) -> dict[str, Any]:
    """`domains`: those that `knn` knows; the first decision is not timed: it may have something to set up."""
    own = [one for one in found if one.domain in domains]
    others = [one for one in found if one.domain not in domains]
    seconds = [one.seconds for one in found[1:]]
    return {
        "own": {
            "num_prompts": len(own),
            "accuracy": _share([one.route == one.domain for one in own]),
            "general": _share([one.route == GENERAL for one in own]),
            "similarity": _spread(own),
            "confusion": _confusion(own),
        },
        "others": {
            "num_prompts": len(others),
            "general": _share([one.route == GENERAL for one in others]),
            "similarity": _spread(others),
            "confusion": _confusion(others),
        },
        "seconds": {
            "mean": statistics.fmean(seconds) if seconds else None,
            "median": statistics.median(seconds) if seconds else None,
            "max": max(seconds, default=None),
        },
    }


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _spread(found: Sequence[Routed]) -> dict[str, float | None]:
    values = [one.similarity for one in found if one.similarity is not None]
    return {"mean": statistics.fmean(values) if values else None, "lowest": min(values, default=None)}


def _confusion(found: Sequence[Routed]) -> dict[str, dict[str, int]]:
    """Domain -> route -> prompts."""
    domains = dict.fromkeys(one.domain for one in found)
    return {domain: dict(Counter(one.route for one in found if one.domain == domain)) for domain in domains}
