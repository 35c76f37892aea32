"""What passes cost, and the bound that follows: the least time that a method's rounds could have taken.

A round drafts with some passes and verifies with one; whatever else it does is overhead. Passes are priced by the
latency fit (economics.py): a verification as a whole pass over a chain of its width. `early-exit`, which goes on where
its draft stopped, may do better.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..economics import PassCosts
from ..engine.engine import Engine
from ..models.load.info import describe
from ..types import SkipSet, StepRecord
from .device import copy_bandwidth

CONTEXT = 320  # tokens of the text that passes are priced after


def predicted_seconds(steps: Iterable[StepRecord], drafter: str, costs: PassCosts) -> float | None:
    """Of the passes of these rounds and nothing else; `drafter`: where a plan leaves it open. None: another model's."""
    seconds = 0.0
    for step in steps:
        name, num_steps = step.plan.drafter or drafter, step.draft.num_draft_steps
        if num_steps and name == "model":
            return None
        if name == "self":  # others take no pass of the model
            seconds += num_steps * costs.draft(step.plan.skip)
        width = 1 + len(step.draft.tokens)
        seconds += costs.plain if width == 1 else costs.verify(width)
    return seconds


def cost_figures(
    engine: Engine, costs: PassCosts, skips: Iterable[SkipSet], bandwidth: float | None = None
) -> dict[str, Any]:
    """`floor_seconds`: reading all weights once at the bandwidth of a large copy."""
    pass_bytes, bandwidth = describe(engine.runner.decoder).pass_bytes, bandwidth or copy_bandwidth(engine.device)
    wider = {str(width): costs.verify(width) for width in costs.fit.widths if width > 1}
    return {
        "context": int(costs.num_context),
        "width_seconds": {"1": costs.plain, **wider},
        "drafts": [{"skip": str(skip), "seconds": costs.draft(skip)} for skip in sorted(set(skips), key=str)],
        "pass_bytes": pass_bytes,
        "copy_bytes_per_second": bandwidth,
        "floor_seconds": pass_bytes / bandwidth,
    }
