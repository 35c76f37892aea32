"""Whether drafting pays, by the clock: drafting and plain rounds are both timed, and the faster kind is used."""

from __future__ import annotations

import math
from dataclasses import dataclass

TRIAL = 32
"""Tokens of a trial."""
GLANCE, HOPELESS = 8, 1.3
"""Tokens after which a trial may end early, where its rounds are 1.3 times slower than the others."""
LEAST_RETRY, RETRY, MAX_RETRY, SHARE = 128, 1024, 16384, 0.01
"""Tokens after which the slower kind is tried again: as a trial may have been unlucky, those in which it loses SHARE of
the time, its first round included; twice as many each time that it stays slower."""
_MEMORY = 0.995
"""What a token leaves of the weight of those before it."""


@dataclass
class Rounds:
    """Tokens and seconds of the last rounds of one kind."""

    tokens: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0  # seconds of one round

    def add(self, num_tokens: float, seconds: float) -> None:
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

    def is_hopeless_beside(self, other: Rounds) -> bool:
        """Even without its slowest round, which something else may have held up."""
        seconds = self.seconds - self.slowest
        return other.is_known and self.tokens >= GLANCE and seconds > HOPELESS * other.pace * self.tokens


class DraftSwitch:
    """`is_drafting`: whether to draft. Both kinds of rounds are tried first, the slower one again occasionally.

    The first round after a change is not counted: nothing has run ahead for it.
    """

    def __init__(self) -> None:
        self._drafting, self._plain = Rounds(), Rounds()
        self.is_drafting = True
        self._last: bool | None = None
        self._is_faster: bool | None = None  # drafting, when that was last known
        self._retry: float = RETRY
        self._first = 0.0  # seconds of the last draft that was not counted
        self._num_left: float = TRIAL  # tokens until the next decision
        self._num_since = 0.0  # tokens since the other kind was tried

    @property
    def is_slower(self) -> bool:
        """Drafting, as far as that is known."""
        return self._is_faster is False

    def renew(self, is_promising: bool = True) -> None:
        """Drafts are others now. What promises nothing is not tried at first, only much later."""
        self._drafting = Rounds() if is_promising else Rounds(TRIAL, math.inf)
        self.is_drafting, self._last = is_promising, None
        self._is_faster, self._retry = (None, RETRY) if is_promising else (False, MAX_RETRY)
        self._num_left, self._num_since = TRIAL, 0

    def observe(self, has_drafted: bool, num_tokens: float, seconds: float) -> None:
        """A round, and what it emitted."""
        if has_drafted == self._last:
            (self._drafting if has_drafted else self._plain).add(num_tokens, seconds)
        elif has_drafted:
            self._first = seconds
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
        """Between trials the faster kind is used, and both are compared every few tokens."""
        self._num_left = TRIAL
        if not self._can_tell:
            self.is_drafting = not self._drafting.is_known
            return
        is_faster = self._drafting.pace < self._plain.pace
        if is_faster != self._is_faster:
            faster, slower = sorted((self._drafting.pace, self._plain.pace))
            lost = TRIAL * (slower - faster) + self._first
            self._retry = min(max(lost / SHARE / faster, LEAST_RETRY), RETRY) if faster else RETRY
            self._is_faster, self._num_since = is_faster, 0
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
        """What was known of the slower kind is out of date."""
        self.is_drafting, self._num_since = drafts, 0
        self._retry = min(2 * self._retry, MAX_RETRY)
        if drafts:
            self._drafting = Rounds()
        else:
            self._plain = Rounds()
