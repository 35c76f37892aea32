"""Whether drafting pays, by the clock: seconds a token of rounds that draft against those of rounds that do not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..types import StepRecord

TRIAL = 32
"""Tokens that a way is tried for before it is believed."""
GLANCE, HOPELESS = 8, 1.3
"""Tokens behind which a trial may end early, where the way tried is so many times slower than the other one."""
RETRY, MAX_RETRY = 1024, 16384
"""Tokens behind which the slower way is tried again; twice as many each time that it stays the slower one."""
_MEMORY = 0.995
"""What a token leaves of the weight of those before it."""


@dataclass
class Way:
    """Tokens and seconds of late."""

    tokens: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0  # seconds of one round

    def add(self, num_tokens: int, seconds: float) -> None:
        fades = _MEMORY**num_tokens
        self.slowest = max(self.slowest, seconds)
        self.tokens, self.seconds = fades * self.tokens + num_tokens, fades * self.seconds + seconds

    @property
    def is_known(self) -> bool:
        return self.tokens >= TRIAL / 2

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / self.tokens

    def is_hopeless_beside(self, other: Way) -> bool:
        """Even without its slowest round, which may have recorded what the others replay."""
        seconds = self.seconds - self.slowest
        return other.is_known and self.tokens >= GLANCE and seconds > HOPELESS * other.pace * self.tokens


class Pace:
    """`is_drafting`: which way to go. The other one is tried first, and again from time to time.

    The first round behind a change is not counted: it may have to record what others replay.
    """

    def __init__(self) -> None:
        self._drafting, self._plain = Way(), Way()
        self.is_drafting = True
        self._last: bool | None = None
        self._is_faster: bool | None = None  # drafting, when that was last known
        self._retry = RETRY
        self._num_left = TRIAL  # tokens until the next decision
        self._num_since = 0  # tokens since the other way was tried

    def renew(self, is_promising: bool = True) -> None:
        """Drafts are others now. What promises nothing is not tried at first, only much later."""
        self._drafting = Way() if is_promising else Way(TRIAL, math.inf)
        self.is_drafting, self._last = is_promising, None
        self._is_faster, self._retry = (None, RETRY) if is_promising else (False, MAX_RETRY)
        self._num_left, self._num_since = TRIAL, 0

    def observe(self, step: StepRecord) -> None:
        has_drafted, num_tokens = bool(step.draft.tokens), len(step.verdict.tokens)
        if has_drafted == self._last:
            way = self._drafting if has_drafted else self._plain
            way.add(num_tokens, step.draft_seconds + step.verify_seconds)
        self._last = has_drafted
        self._num_left -= num_tokens
        self._num_since += num_tokens
        if self._num_left <= 0 or self._is_trial_hopeless:
            self._decide()

    @property
    def _is_trial_hopeless(self) -> bool:
        tried, other = (self._drafting, self._plain) if self.is_drafting else (self._plain, self._drafting)
        return not tried.is_known and tried.is_hopeless_beside(other)

    def _decide(self) -> None:
        """Between trials the way that is faster so far is gone, and looked at every few tokens."""
        self._num_left = TRIAL
        if not self._can_tell:
            self.is_drafting = not self._drafting.is_known
            return
        is_faster = self._drafting.pace < self._plain.pace
        if is_faster != self._is_faster:
            self._is_faster, self._retry, self._num_since = is_faster, RETRY, 0
        if self._num_since < self._retry:
            self.is_drafting = is_faster
        else:
            self._try_again(not is_faster)

    @property
    def _can_tell(self) -> bool:
        drafting, plain = self._drafting, self._plain
        is_clear = drafting.is_hopeless_beside(plain) or plain.is_hopeless_beside(drafting)
        return is_clear or (drafting.is_known and plain.is_known)

    def _try_again(self, drafts: bool) -> None:
        """What was known of the slower way is long ago."""
        self.is_drafting, self._num_since = drafts, 0
        self._retry = min(2 * self._retry, MAX_RETRY)
        if drafts:
            self._drafting = Way()
        else:
            self._plain = Way()
