"""What became of each token, and what rounds did, for pages that show it: asked for by `selfdraft.details`."""

from __future__ import annotations

from collections import deque
from typing import Any

from ..engine.session import Event
from ..explanation import kind_of
from ..types import ROOT, Generation, StepRecord

PLAIN, DRAFTED, CORRECTED, BONUS = "plain", "drafted", "corrected", "bonus"
"""Of a token: no draft was there; it was drafted and accepted; it stands where a draft was refused; or after a draft of
which all was accepted."""


class Details:
    """Of one text. Tokens are told when their text is, which may be rounds later."""

    def __init__(self) -> None:
        self._kinds: deque[str] = deque()

    def of(self, told: Event) -> dict[str, Any]:
        steps = told.steps
        for step in steps:
            self._kinds.extend(kinds_of(step))
        pieces = [[piece.text, self._kinds.popleft() if self._kinds else PLAIN] for piece in told.pieces]
        found: dict[str, Any] = {"pieces": pieces, "rounds": [_round(step) for step in steps]}
        return {**found, **_whole(told.generation)} if told.generation else found


def kinds_of(step: StepRecord) -> list[str]:
    """Of the tokens that a round emitted."""
    nodes, num_tokens = step.verdict.nodes, len(step.verdict.tokens)
    last = nodes[-1] if nodes else ROOT
    own = PLAIN if not step.draft.tokens else CORRECTED if last in step.draft.parents else BONUS
    return [*[DRAFTED] * len(nodes), own][:num_tokens]


def _round(step: StepRecord) -> dict[str, Any]:
    skip = step.plan.skip if step.draft.tokens and kind_of(step) == "skip" else None
    return {
        "kind": kind_of(step),
        "num_drafted": len(step.draft.tokens),
        "num_accepted": step.verdict.num_accepted,
        "seconds": step.draft_seconds + step.verify_seconds,
        "skipped_attention": sorted(skip.attention) if skip else [],
        "skipped_mlp": sorted(skip.mlp) if skip else [],
    }


def _whole(generation: Generation) -> dict[str, Any]:
    stats = generation.stats
    return {
        "explanation": list(generation.explain().lines),
        "num_tokens": stats.num_tokens,
        "acceptance_rate": stats.acceptance_rate,
        "tokens_per_second": stats.tokens_per_second,
        "prefill_seconds": stats.prefill_seconds,
        "seed": generation.seed,
    }
