"""What rounds take on this machine: a guess by the columns of their pass, which every round that runs corrects."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KNOTS = (1, 2, 4, 8, 16, 32, 64)
"""Columns of a pass between which seconds are interpolated."""
GUESS = (1.0, 1.1, 1.15, 1.4, 2.0, 3.5, 6.0)
RECORDED_GUESS = (1.0, 1.15, 1.2, 1.25, 1.3, 1.4, 1.6)
"""Rounds of so many columns in plain ones, until some have run: low, so that they are tried."""
_USUAL_GAIN, _USUAL_SCALE_GAIN = 0.1, 0.05
"""What one more round counts at least, for its columns and for the machine as a whole."""
_FIRST_LIMIT, _LIMIT, _NUM_FIRST = math.log(4), math.log(1.5), 4
"""A round is taken to be off its expectation by this much at most: something else held it up."""


class Costs:
    """Seconds of a round of some rows, by the columns of each.

    What all rounds take more (the text grows, the machine is busy) moves all of them; the rest moves the nearest knots.
    """

    def __init__(self, guess: Sequence[float] = GUESS) -> None:
        self._logs = [math.log(one) for one in guess]
        self._counts = [0.0] * len(KNOTS)
        self._scale, self._num_rounds = 0.0, 0

    @property
    def is_known(self) -> bool:
        """Whether plain rounds have been timed."""
        return self._counts[0] >= _NUM_FIRST

    def seconds(self, width: int) -> float:
        """In plain rounds, where none has run."""
        return math.exp(self._scale + self._log(width))

    def observe(self, width: int, seconds: float) -> None:
        """A round, recording apart."""
        if not seconds > 0:
            return
        off = math.log(seconds) - self._scale - self._log(width)
        if not self._num_rounds:
            self._scale, off = self._scale + off, 0.0
        limit = _FIRST_LIMIT if self._num_rounds < _NUM_FIRST else _LIMIT
        off = min(max(off, -limit), limit)
        moved = max(1 / (self._num_rounds + 1), _USUAL_SCALE_GAIN) * off
        self._num_rounds += 1
        self._scale += moved
        for knot, share in self._near(width):
            self._logs[knot] += share * max(1 / (self._counts[knot] + 1), _USUAL_GAIN) * (off - moved)
            self._counts[knot] += share

    def _log(self, width: int) -> float:
        return sum(share * self._logs[knot] for knot, share in self._near(width))

    @staticmethod
    def _near(width: int) -> Iterator[tuple[int, float]]:
        """The knots beside a width, and how near each is."""
        place = min(bisect_right(KNOTS, width) - 1, len(KNOTS) - 2)
        share = min((width - KNOTS[place]) / (KNOTS[place + 1] - KNOTS[place]), 1.0)
        yield from ((knot, one) for knot, one in ((place, 1 - share), (place + 1, share)) if one)

    def state(self) -> dict[str, Any]:
        return {"logs": self._logs, "counts": self._counts, "scale": self._scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Seconds of an earlier process are soon corrected; how fast the machine is now, the first round tells."""
        logs, counts = ([float(one) for one in state[name]] for name in ("logs", "counts"))
        if not len(logs) == len(counts) == len(KNOTS) or not all(map(math.isfinite, logs)):
            raise ValueError("its costs do not fit its widths")
        self._logs, self._counts = logs, [min(one, _NUM_FIRST) for one in counts]
        self._scale, self._num_rounds = float(state["scale"]), 0
