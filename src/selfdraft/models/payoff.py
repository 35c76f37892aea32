"""Whether drafting pays: KnapSpec's tokens per second and integer weights, from measured seconds. Pure functions.

KnapSpec: arXiv:2602.20217. Two changes: a verification costs what it was measured to cost at its width, and to draft
nothing at all (length 0, plain decoding) is one of the choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..types import LatencyFit, SkipSet

Array = npt.NDArray[np.float64]

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


def expected_tokens(acceptances: Sequence[float] | Array, max_drafted: int) -> Array:
    """[acceptances, lengths from 0 on]: of a round that drafts so many tokens, the target's own included.

    Each drafted token is kept with that probability, if those before it were.
    """
    alpha = np.asarray(acceptances, dtype=np.float64)[:, None]
    found: Array = np.cumsum(alpha ** np.arange(max_drafted + 1), axis=1)
    return found


def speed_table(
    acceptances: Sequence[float] | Array,
    max_drafted: int,
    fit: LatencyFit,
    skips: Sequence[SkipSet],
    num_context: float,
    num_layers: int,
) -> Array:
    """[skip sets, lengths from 0 on]: tokens per second of rounds that draft so many tokens; 0: of plain decoding."""
    lengths = np.arange(1, max_drafted + 1)
    drafting = np.array([fit.draft_seconds(skip, num_context, num_layers) for skip in skips])
    verifying = np.array([fit.verify_seconds(int(length) + 1, num_context) for length in lengths])
    plain = np.full((len(skips), 1), fit.plain_seconds(num_context))
    seconds = np.hstack((plain, drafting[:, None] * lengths + verifying))
    with np.errstate(divide="ignore"):
        speeds: Array = expected_tokens(acceptances, max_drafted) / seconds
    return speeds


def tokens_per_second(
    acceptance: float, num_drafted: int, fit: LatencyFit, skip: SkipSet, num_context: float, num_layers: int
) -> float:
    """Of rounds that draft so many tokens; 0: of plain decoding."""
    return float(speed_table([acceptance], num_drafted, fit, [skip], num_context, num_layers)[0, -1])


def best_length(
    acceptance: float, max_drafted: int, fit: LatencyFit, skip: SkipSet, num_context: float, num_layers: int
) -> tuple[int, float]:
    """How many tokens to draft, 0: none (OFF), and the tokens per second to be expected; the shortest of equals."""
    speeds = speed_table([acceptance], max_drafted, fit, [skip], num_context, num_layers)[0]
    best = int(speeds.argmax())
    return best, float(speeds[best])
