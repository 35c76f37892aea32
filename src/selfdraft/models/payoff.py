"""Whether drafting pays: KnapSpec's tokens per second and integer weights, from measured seconds. Pure functions.

KnapSpec: arXiv:2602.20217. Two changes: a verification costs what it was measured to cost at its width, and to draft
nothing at all (length 0, plain decoding) is one of the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class RoundCosts:
    """Seconds behind a text of one length: of a drafted token by skip set, of verifying 1, 2, ... drafted ones."""

    drafting: Array
    verifying: Array
    plain: float

    @classmethod
    def at(
        cls, fit: LatencyFit, skips: Sequence[SkipSet], max_drafted: int, num_context: float, num_layers: int
    ) -> RoundCosts:
        drafting = [fit.draft_seconds(skip, num_context, num_layers) for skip in skips]
        verifying = [fit.verify_seconds(length + 1, num_context) for length in range(1, max_drafted + 1)]
        return cls(np.array(drafting), np.array(verifying), fit.plain_seconds(num_context))

    def speeds(self, acceptances: Sequence[float] | Array) -> Array:
        """[skip sets, lengths from 0 on]: tokens per second of rounds that draft so many; 0: of plain decoding."""
        lengths = np.arange(1, len(self.verifying) + 1)
        rounds = self.drafting[:, None] * lengths + self.verifying
        seconds = np.hstack((np.full((len(rounds), 1), self.plain), rounds))
        with np.errstate(divide="ignore"):
            speeds: Array = expected_tokens(acceptances, len(lengths)) / seconds
        return speeds


def speed_table(
    acceptances: Sequence[float] | Array,
    max_drafted: int,
    fit: LatencyFit,
    skips: Sequence[SkipSet],
    num_context: float,
    num_layers: int,
) -> Array:
    """As `RoundCosts.speeds`."""
    return RoundCosts.at(fit, skips, max_drafted, num_context, num_layers).speeds(acceptances)


def best_length(
    acceptance: float, max_drafted: int, fit: LatencyFit, skip: SkipSet, num_context: float, num_layers: int
) -> tuple[int, float]:
    """How many tokens to draft, 0: none (OFF), and the tokens per second to be expected; the shortest of equals."""
    speeds = speed_table([acceptance], max_drafted, fit, [skip], num_context, num_layers)[0]
    best = int(speeds.argmax())
    return best, float(speeds[best])
