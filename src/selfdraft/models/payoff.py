"""Whether drafting pays: KnapSpec's tokens per second and integer weights, from measured seconds. Pure functions.

KnapSpec: arXiv:2602.20217. Two changes: a verification costs what it was measured to cost at its width, and to draft
nothing at all (length 0, plain decoding) is one of the choices.
"""

from __future__ import annotations

from ..types import LatencyFit, SkipSet

MAX_WEIGHT = 5


def integer_weights(fit: LatencyFit, num_context: float) -> tuple[int, int]:
    """Of an attention and an MLP sub-layer: the cheaper weighs 1, the dearer the rounded ratio, at most 5."""
    attention, mlp = fit.attention_seconds(num_context), fit.mlp_seconds
    return _weight(attention, mlp), _weight(mlp, attention)


def _weight(seconds: float, other: float) -> int:
    """`other` may be 0: then any seconds at all are many times as many."""
    if seconds <= other:
        return 1
    return MAX_WEIGHT if seconds >= MAX_WEIGHT * other else round(seconds / other)


def expected_tokens(acceptance: float, num_drafted: int) -> float:
    """Of a round, the target's own token included, where each drafted token is kept with probability `acceptance`."""
    if acceptance >= 1:
        return num_drafted + 1.0
    return float((1 - acceptance ** (num_drafted + 1)) / (1 - acceptance))


def tokens_per_second(
    acceptance: float, num_drafted: int, fit: LatencyFit, skip: SkipSet, num_context: float, num_layers: int
) -> float:
    """Of rounds that draft so many tokens; 0: of plain decoding."""
    if num_drafted == 0:
        return _rate(1.0, fit.plain_seconds(num_context))
    drafting = num_drafted * fit.draft_seconds(skip, num_context, num_layers)
    return _rate(expected_tokens(acceptance, num_drafted), drafting + fit.verify_seconds(num_drafted + 1, num_context))


def _rate(num_tokens: float, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 else float("inf")


def best_length(
    acceptance: float, max_drafted: int, fit: LatencyFit, skip: SkipSet, num_context: float, num_layers: int
) -> tuple[int, float]:
    """How many tokens to draft, 0: none (OFF), and the tokens per second to be expected; the shortest of equals."""
    speeds = [
        tokens_per_second(acceptance, num_drafted, fit, skip, num_context, num_layers)
        for num_drafted in range(max_drafted + 1)
    ]
    best = max(speeds)
    return speeds.index(best), best
