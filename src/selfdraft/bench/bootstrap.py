"""Speed-ups with intervals: 95 % of what other prompts like these would give, by bootstrap over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

NUM_RESAMPLES = 1000


class Pair(NamedTuple):
    """One prompt in one way, and plainly."""

    num_tokens: int
    seconds: float
    plain_tokens: int
    plain_seconds: float

    def joined(self, other: Pair) -> Pair:
        """Both as one prompt."""
        return Pair(
            self.num_tokens + other.num_tokens,
            self.seconds + other.seconds,
            self.plain_tokens + other.plain_tokens,
            self.plain_seconds + other.plain_seconds,
        )


class SpeedUp(NamedTuple):
    """All tokens over all seconds, against plain decoding."""

    value: float
    low: float
    high: float


def speed_up(pairs: Sequence[Pair], seed: int) -> SpeedUp | None:
    """None: there is no prompt."""
    if not pairs:
        return None
    found = np.array(pairs, dtype=float)
    picks = np.random.default_rng(seed).integers(len(found), size=(NUM_RESAMPLES, len(found)))
    low, high = np.quantile(_ratios(found[picks].sum(1)), (0.025, 0.975))
    return SpeedUp(float(_ratios(found.sum(0)[None])[0]), float(low), float(high))


def _ratios(sums: Any) -> Any:
    tokens, seconds, plain_tokens, plain_seconds = sums.T
    return (tokens / seconds) / (plain_tokens / plain_seconds)
