"""What rounds take on this machine: a guess by the columns of their pass, which every round that runs corrects."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from ...economics import LatencyFit, Line
from .numbers import bounded

KNOTS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64)
"""Columns of a pass between which seconds are interpolated: products take columns by powers of two, so there are steps
after these.
"""
GUESS = (1.0, 1.1, 1.15, 1.3, 1.4, 1.7, 2.0, 2.6, 3.5, 4.5, 6.0)
RECORDED_GUESS = (1.0, 1.15, 1.2, 1.2, 1.25, 1.25, 1.3, 1.35, 1.4, 1.5, 1.6)
"""Rounds of that many columns, in plain ones, until some have run: low, so that they are tried."""
_USUAL_GAIN, _USUAL_SCALE_GAIN = 0.1, 0.05
"""What one more round counts at least, for its columns and for the machine as a whole."""
_MOST_LOG = 30.0
"""Of seconds that are believed."""
_DOUBT = 0.002
"""What a round takes from the difference between what is known and a lower guess."""
_FIRST_LIMIT, _LIMIT, _NUM_FIRST = math.log(4), math.log(1.5), 4
"""A round is taken to be off its expectation by this much at most: something else held it up."""


def _near(width: int) -> tuple[int, float, int, float]:
    """The knots beside a width, and how near each is."""
    place = min(bisect_right(KNOTS, width) - 1, len(KNOTS) - 2)
    share = (width - KNOTS[place]) / (KNOTS[place + 1] - KNOTS[place])
    return place, 1 - share, place + 1, share


_NEAR = [_near(max(width, 1)) for width in range(KNOTS[-1] + 1)]


class Costs:
    """Seconds of a round of some rows, by the columns of each.

    What all rounds take more (the text grows, the machine is busy) moves all of them; the rest moves the nearest knots.
    """

    def __init__(self, guess: Sequence[float] = GUESS) -> None:
        self._guess = [math.log(one) for one in guess]
        self._logs = list(self._guess)
        self._counts = [0.0] * len(KNOTS)
        self._scale, self.num_rounds = 0.0, 0
        self._seconds: dict[int, float] = {}  # by width, of those that were asked for

    def begin(self, plain: float) -> None:
        """Seconds of a plain round that were measured beforehand."""
        self._scale, self.num_rounds, self._counts[0] = math.log(plain) - self._logs[0], _NUM_FIRST, _NUM_FIRST
        self._seconds = {}

    @property
    def num_plain(self) -> float:
        """Plain rounds that have been timed."""
        return self._counts[0]

    @property
    def is_known(self) -> bool:
        """Whether plain rounds have been timed."""
        return self.num_plain >= _NUM_FIRST

    def seconds(self, width: int) -> float:
        """In plain rounds, where none has run. Beyond the last knot each column takes as long as those before it."""
        if width not in self._seconds:
            self._seconds[width] = self._find(width)
        return self._seconds[width]

    def _find(self, width: int) -> float:
        first, share, second, other = _NEAR[min(width, len(_NEAR) - 1)]
        log = self._scale + share * self._logs[first] + other * self._logs[second]
        return math.exp(log) * max(1.0, width / KNOTS[-1])

    def observe(self, width: int, seconds: float) -> None:
        """A round, recording apart."""
        if not seconds > 0:
            return
        off = math.log(seconds / self.seconds(width))
        if not self.num_rounds:
            self._scale, off = self._scale + off, 0.0
        limit = _FIRST_LIMIT if self.num_rounds < _NUM_FIRST else _LIMIT
        off = min(max(off, -limit), limit)
        moved = max(1 / (self.num_rounds + 1), _USUAL_SCALE_GAIN) * off
        self.num_rounds += 1
        self._scale += moved
        # what was found dear is less and less believed to be: else nobody would look whether it still is
        self._logs = [log - _DOUBT * max(0.0, log - guess) for log, guess in zip(self._logs, self._guess, strict=True)]
        first, share, second, other = _NEAR[min(width, len(_NEAR) - 1)]
        for knot, weight in ((first, share), (second, other)):
            self._logs[knot] += weight * max(1 / (self._counts[knot] + 1), _USUAL_GAIN) * (off - moved)
            self._counts[knot] += weight
        self._seconds = {width: self._find(width) for width in self._seconds}  # here nobody waits for it

    def fit(self, shares: tuple[float, float], num_layers: int, *, is_recorded: bool) -> LatencyFit:
        """Seconds of sub-layers, as if these took as much of a plain round as of its weights."""
        plain, (attention, mlp) = self.seconds(1), shares
        return LatencyFit(
            num_layers=num_layers,
            attention=Line(0.0, attention * plain),
            mlp_seconds=mlp * plain,
            rest_seconds=max(0.0, 1 - num_layers * (attention + mlp)) * plain,
            plain=Line(0.0, plain),
            widths=KNOTS,
            verify=tuple(Line(0.0, self.seconds(width)) for width in KNOTS),
            is_recorded=is_recorded,
            lengths=(0,),
            rms_error=0.0,
            max_error=0.0,
        )

    def state(self) -> dict[str, Any]:
        return {"logs": self._logs, "counts": self._counts, "scale": self._scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Seconds of an earlier process are soon corrected; how fast the machine is now, the first round tells."""
        logs = [bounded(one, -_MOST_LOG, _MOST_LOG) for one in state["logs"]]
        counts = [bounded(one) for one in state["counts"]]
        if not len(logs) == len(counts) == len(KNOTS):
            raise ValueError("its costs do not fit its widths")
        self._logs, self._counts = logs, [min(one, _NUM_FIRST) for one in counts]
        self._scale, self.num_rounds = bounded(state["scale"], -_MOST_LOG, _MOST_LOG), 0
        self._seconds = {}
