"""Rounds as an engine records them: drafted, kept, and what they took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfdraft.types import Draft, Plan, StepRecord, Verdict


def step_of(
    num_drafted: int,
    num_kept: int,
    confidences: Sequence[float] = (),
    *,
    text: int = 0,
    plan: Plan = Plan(),  # noqa: B008
    seconds: tuple[float, float] = (0.0, 0.0),
    **others: Any,
) -> StepRecord:
    """A chain; `seconds` of drafting and of verification."""
    sure = tuple(confidences) or (0.5,) * num_drafted
    draft = Draft((0,) * num_drafted, tuple(range(-1, num_drafted - 1)), num_drafted, sure, num_draft_steps=num_drafted)
    return StepRecord(text, plan, draft, Verdict((0,) * (num_kept + 1), tuple(range(num_kept))), *seconds, **others)
