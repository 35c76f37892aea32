"""What the next round does: plain, a copy, or a draft of the skipped self, by expected tokens and seconds.

A round that emits t tokens in s seconds is worth t - r s, where r is what its time would bring otherwise: the rate,
tokens per second, of plain rounds or of drafts, whichever is more. Plain rounds are always a choice. What copies bring
elsewhere does not count: where nothing is repeated the next words have to be written all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .costs import KNOTS, Costs
from .numbers import bounded

Kind = Literal["off", "copy", "skip"]
TRIAL, GLANCE, HOPELESS = 8, 3, 1.3
"""Rounds of a trial; after how many it may end early, and how much slower than plain ones they are then."""
RETRY, MAX_RETRY = 1024, 16384
"""Tokens after which what is slower is tried again; twice as many each time that it stays slower."""
MAX_LOST, FREE = 0.01, 8
"""Share of all seconds that trials may lose, beyond those of a few plain rounds."""
BACK: Mapping[Kind, float] = {"off": 0.4, "skip": 0.6}
"""Plain rounds that are lost where copies end and rounds are of that kind again: nothing has run ahead for these."""
KEEPS = 1.05
"""What is usual stays so until something else is faster by this factor: a change costs, and rounds differ by luck."""
PROMISED = 32
"""Rounds that weigh as much as a calibration's trial."""
_ARM_MEMORY, _TEXT_MEMORY, _FADING = 0.985, 0.9, 0.98
"""What a round leaves of the weight of those before it: of all texts, of one, and if it was another kind of round."""
_TEXT_PRIOR, _SMOOTH = 20.0, 1.0
"""Rounds of one text that weigh as much as those of all others; usual ones that soften its first disappointments."""


@dataclass
class Tally:
    """Rounds of late, what they emitted and what they took."""

    memory: float
    rounds: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.rounds = self.memory * self.rounds + 1
        self.tokens = self.memory * self.tokens + tokens
        self.seconds = self.memory * self.seconds + seconds

    def fade(self) -> None:
        """Nothing was learned: what is long ago says less."""
        self.rounds, self.tokens, self.seconds = (_FADING * one for one in (self.rounds, self.tokens, self.seconds))

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Choice(NamedTuple):
    """What a round does, and what is expected of it. `num_drafted`: of a copy."""

    kind: Kind = "off"
    num_drafted: int = 0
    tokens: float = 1.0
    seconds: float = 0.0
    is_trial: bool = False

    def with_copies(self, chances: Sequence[float]) -> Choice:
        """These stand beside it. Where the copy's first token is right, so are all of its; else the draft's may be."""
        more = sum(chances) - chances[0] * (self.tokens - 1) if chances else 0.0
        return self._replace(tokens=self.tokens + max(0.0, more))


@dataclass
class Arm:
    """Drafts of the skipped self: rounds of all texts, their seconds in plain rounds; and when they are tried again."""

    total: Tally = field(default_factory=lambda: Tally(_ARM_MEMORY))
    num_since: float = 0.0  # tokens since they were used
    retry: int = RETRY
    is_hopeless: bool = False

    @property
    def is_known(self) -> bool:
        return self.is_hopeless or self.total.rounds >= TRIAL - 1

    def expect(self, text: Tally) -> tuple[float, float]:
        """Tokens and plain rounds' seconds of a round in this text. The more it disappoints, the less others count."""
        total = self.total
        if not total.rounds:
            return 1.0, 1.0
        usual = total.tokens / total.rounds
        shown = (text.tokens + _SMOOTH * usual) / ((text.rounds + _SMOOTH) * usual)
        prior = _TEXT_PRIOR * min(1.0, shown) ** 3
        return (text.tokens + prior * usual) / (text.rounds + prior), total.seconds / total.rounds

    def observe(self, tokens: float, seconds: float) -> None:
        self.total.add(tokens, seconds)
        self.num_since = 0.0
        if GLANCE <= self.total.rounds < TRIAL - 1 and HOPELESS * self.total.rate < 1:
            self.is_hopeless, self.retry = True, min(2 * self.retry, MAX_RETRY)

    @classmethod
    def promised(cls, tokens: float, speed: float) -> Arm:
        """By a calibration: what a round emitted, and tokens per second in those of plain decoding."""
        return cls(Tally(_ARM_MEMORY, PROMISED, PROMISED * tokens, PROMISED * tokens / speed))

    def start_again(self) -> None:
        """What was known is out of date."""
        self.total, self.is_hopeless, self.num_since = Tally(_ARM_MEMORY), False, 0.0
        self.retry = min(2 * self.retry, MAX_RETRY)

    def state(self) -> dict[str, Any]:
        total = {"rounds": self.total.rounds, "tokens": self.total.tokens, "seconds": self.total.seconds}
        return {**total, "num_since": self.num_since, "retry": self.retry, "is_hopeless": self.is_hopeless}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Arm:
        rounds, tokens, seconds, since = (bounded(state[name]) for name in ("rounds", "tokens", "seconds", "num_since"))
        retry = int(bounded(state["retry"], RETRY, MAX_RETRY))
        if rounds and not (tokens >= rounds and seconds > 0):
            raise ValueError("its rounds emitted nothing, or took no time")
        return cls(Tally(_ARM_MEMORY, rounds, tokens, seconds), since, retry, bool(state["is_hopeless"]))


class Company:
    """Rounds of about as many rows: what they cost, what they bring, and the choice between them.

    Without `clock` nothing is timed: what is known of seconds stays, and rounds count as long as is expected of them.
    `runs_ahead`: passes are begun before they are asked for. That is lost where rounds change their kind.
    """

    def __init__(self, guess: Sequence[float], clock: bool = True, runs_ahead: bool = False) -> None:
        self.costs, self.skipping = Costs(guess), Arm()
        self._clock, self._runs_ahead = clock, runs_ahead
        self._seconds, self._lost = 0.0, 0.0  # of all rounds, and by trials
        self._usual: Kind = "off"  # what rounds are where nothing is copied

    def choose(
        self,
        chances: Sequence[float] = (),
        text: Tally | None = None,
        can_skip: bool = False,
        num_beside: int = 0,
        *,
        always: bool = False,
        last: Kind | None = None,
    ) -> Choice:
        """`chances`: that the first 1, 2, ... tokens of a copy are all kept; none where nothing is to be copied.
        `num_beside`: as many of them stand beside a draft; `last`: what the round before was.
        """
        plain = self.costs.seconds(1)
        options = [Choice("off", 0, 1.0, plain)]
        skip = self._skip(text) if can_skip else None
        if skip and skip.is_trial and not always:
            return skip
        if skip and (always or self.skipping.is_known):
            options.append(skip)
        usual = max(options, key=lambda one: one.tokens / one.seconds * (KEEPS if one.kind == self._usual else 1.0))
        self._usual, rate = usual.kind, usual.tokens / usual.seconds
        options[1:] = [one.with_copies(chances[:num_beside]) for one in options[1:]]
        if chances:
            options.append(self._best_copy(chances, rate))
        if always:
            options = options[1:] or options
        return max(options, key=lambda one: one.tokens - rate * (one.seconds + plain * self._late(one.kind, last)))

    def _late(self, kind: Kind, last: Kind | None) -> float:
        """Plain rounds that are lost as nothing has run ahead: now, or where what is usual comes after a copy."""
        if not self._runs_ahead:
            return 0.0
        if kind == "copy":
            return BACK[self._usual] if last == self._usual else 0.0
        is_new = last == "copy" if kind == self._usual else kind == "skip" and last != "skip"
        return BACK[kind] if is_new else 0.0

    def _best_copy(self, chances: Sequence[float], rate: float) -> Choice:
        """As long as its tokens are worth their time. Between two knots that changes little."""
        tokens, best, found = 1.0, -math.inf, (0, 1.0, 0.0)
        for count, chance in enumerate(chances, 1):
            tokens += chance
            if count + 1 in KNOTS or count == len(chances):
                seconds = self.costs.seconds(count + 1)
                if (worth := tokens - rate * seconds) > best:
                    best, found = worth, (count, tokens, seconds)
        return Choice("copy", *found)

    def _skip(self, text: Tally | None) -> Choice:
        arm, plain = self.skipping, self.costs.seconds(1)
        tokens, plains = arm.expect(text or Tally(_TEXT_MEMORY))
        may_try = self._clock and self._may_lose
        if arm.is_known and may_try and arm.num_since >= arm.retry:
            arm.start_again()
        is_trial = not arm.is_known and self.costs.is_known and may_try
        return Choice("skip", 0, tokens if arm.is_known else 1.0, plain * (plains if arm.is_known else 1.0), is_trial)

    @property
    def _may_lose(self) -> bool:
        return self._lost <= MAX_LOST * self._seconds + FREE * self.costs.seconds(1)

    def observe(
        self,
        choice: Choice,
        width: int,
        tokens: float,
        seconds: float,
        text: Tally | None = None,
        last: Kind | None = None,
        own: float | None = None,
    ) -> None:
        """A round; `tokens` of each row, on average, and its `own` ones without those that copies beside it brought.
        Where nothing has run ahead for it, it tells nothing of others.
        """
        is_usual = choice.kind in ("copy", last) or not (self._runs_ahead or choice.is_trial)
        if self._clock and choice.kind != "skip" and is_usual:
            self.costs.observe(width, seconds)
        seconds = seconds if self._clock else choice.seconds
        arm, plain = self.skipping, self.costs.seconds(1)
        own = tokens if own is None else own
        if choice.kind != "skip":
            arm.num_since += tokens
            if text is not None:
                text.fade()
        elif is_usual:
            arm.observe(own, seconds / plain)
            if text is not None:
                text.add(own, seconds)
            if arm.is_known and arm.total.rate > 1:
                arm.retry = RETRY
        if choice.is_trial:
            self._lost += max(0.0, seconds - tokens * plain)
        self._seconds += seconds

    @staticmethod
    def new_text() -> Tally:
        return Tally(_TEXT_MEMORY)

    def state(self) -> dict[str, Any]:
        return {"costs": self.costs.state(), "skipping": self.skipping.state()}

    def restore(self, state: Mapping[str, Any], has_same_sets: bool = True) -> None:
        """What other sets brought says nothing."""
        self.costs.restore(state["costs"])
        if has_same_sets:
            self.skipping = Arm.of_state(state["skipping"])
