"""How copies fare: how often what followed the last words before follows them again.

Every decoded token tells it, drafted or not: what a match says is held against what comes, used or not.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...drafters.lookup import MAX_PLACES, Match, match_length
from .numbers import bounded

MAX_LENGTH, MIN_LENGTH, MAX_TOKENS = 8, 1, 12
"""Of a match, and tokens that it proposes: as the drafter `lookup` is set here."""
MAX_BESIDE = 8
"""Tokens of a copy that stands beside something else."""
FIRST = (0.25, 0.45, 0.55, 0.65, 0.75, 0.8, 0.85, 0.85)
"""Chances of the first token after a match of 1, 2, ... tokens, until some were seen."""
LATER = 0.75
"""And of each further one, if those before it were kept."""
_DEPTHS = (0, 1, 2, 2, *[3] * (MAX_TOKENS - 4))
"""Which tokens of a match have their chances in common: the third and the fourth, and all after these."""
_NUM_DEPTHS = 4
_PRIOR, _MEMORY = 6.0, 0.99
"""What a first guess weighs against tokens seen, and what each leaves of the weight of those before it."""
_TEXT_PRIOR, _TEXT_MEMORY = 1.5, 0.95
"""The same of what one text tells about itself: refusals, over those to be expected."""
_LEAST, _MOST = 0.02, 0.99


class Copies:
    """Chances by the length of the match and by how deep a token stands, over all texts."""

    def __init__(self) -> None:
        self._kept = [[0.0] * _NUM_DEPTHS for _ in FIRST]
        self._seen = [[0.0] * _NUM_DEPTHS for _ in FIRST]
        self._chances = [[first, LATER, LATER, LATER] for first in FIRST]

    def by_depth(self, length: int) -> list[float]:
        """That a token is kept, if those before it were."""
        return self._chances[min(length, MAX_LENGTH) - MIN_LENGTH]

    def learn(self, length: int, place: int, is_kept: bool) -> None:
        """`place`: of a token after the match, from 0."""
        row, depth = min(length, MAX_LENGTH) - MIN_LENGTH, _DEPTHS[place]
        self._kept[row][depth] = _MEMORY * self._kept[row][depth] + is_kept
        self._seen[row][depth] = _MEMORY * self._seen[row][depth] + 1
        self._chances[row][depth] = self._chance(row, depth)

    def _chance(self, row: int, depth: int) -> float:
        guess = LATER if depth else FIRST[row]
        return (_PRIOR * guess + self._kept[row][depth]) / (_PRIOR + self._seen[row][depth])

    def state(self) -> dict[str, Any]:
        return {"kept": self._kept, "seen": self._seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        kept, seen = ([[bounded(one) for one in row] for row in state[name]] for name in ("kept", "seen"))
        if not all(len(rows) == len(FIRST) and {len(row) for row in rows} == {_NUM_DEPTHS} for rows in (kept, seen)):
            raise ValueError("its counts of copied tokens do not fit")
        if not all(
            0 <= one <= other for pair in zip(kept, seen, strict=True) for one, other in zip(*pair, strict=True)
        ):
            raise ValueError("more copied tokens were kept than seen")
        self._kept, self._seen = kept, seen
        self._chances = [[self._chance(row, depth) for depth in range(_NUM_DEPTHS)] for row in range(len(FIRST))]


@dataclass
class Pending:
    """A match, and how many of its tokens have come true."""

    place: int  # tokens of the text when it was found
    match: Match
    num_kept: int = 0


@dataclass
class CopiedText:
    """The matches of one text, and how often they fail here beside how often they do elsewhere."""

    copies: Copies
    refused: float = 0.0
    expected: float = 0.0
    pending: list[Pending] = field(default_factory=list)
    places: dict[int, list[int]] = field(default_factory=dict)  # of each token, as far as the text was read
    num_read: int = 0
    match: Match = Match()  # the last one

    def look(self, tokens: Sequence[int]) -> Match:
        """What the text repeats now; matches that were found before are judged by what has come since."""
        self._judge(tokens)
        self._read(tokens)
        self.match = match = self._longest(tokens)
        if match.length:
            self.pending.append(Pending(len(tokens), match))
        return match

    def other(self, tokens: Sequence[int]) -> Sequence[int]:
        """What else followed the last words, after a match of at least two; none where nothing did."""
        best: int = 1
        path: Sequence[int] = ()
        for end in reversed(self.places.get(tokens[-1], ())[-MAX_PLACES:]):
            length, first = match_length(tokens, end, MAX_LENGTH), tokens[end + 1]
            if length > best and first != self.match.tokens[0]:
                best, path = length, tokens[end + 1 : end + 1 + MAX_BESIDE]
        return path

    def _read(self, tokens: Sequence[int]) -> None:
        """Of a text that grows, what is new, but for its last token."""
        places, last = self.places, len(tokens) - 1
        for place in range(self.num_read, last):
            places.setdefault(tokens[place], []).append(place)
        self.num_read = max(self.num_read, last)

    def _longest(self, tokens: Sequence[int]) -> Match:
        """The longest match, the newest of equals: what the drafter `lookup` finds."""
        best, best_end = 0, 0
        for end in reversed(self.places.get(tokens[-1], ())[-MAX_PLACES:]):
            length = match_length(tokens, end, MAX_LENGTH)
            if length > best:
                best, best_end = length, end
            if best == MAX_LENGTH:
                break
        return Match(tokens[best_end + 1 : best_end + 1 + MAX_TOKENS], best) if best else Match()

    def _judge(self, tokens: Sequence[int]) -> None:
        self.pending = [one for one in self.pending if self._is_open(one, tokens)]

    def _is_open(self, one: Pending, tokens: Sequence[int]) -> bool:
        """After all of it that is known was counted."""
        said = one.match.tokens
        while one.num_kept < len(said) and one.place + one.num_kept < len(tokens):
            is_kept = said[one.num_kept] == tokens[one.place + one.num_kept]
            self.count(one.match.length, one.num_kept, is_kept)
            if not is_kept:
                return False
            one.num_kept += 1
        return one.num_kept < len(said)

    def count(self, length: int, place: int, is_kept: bool) -> None:
        self.refused = _TEXT_MEMORY * self.refused + (not is_kept)
        self.expected = _TEXT_MEMORY * self.expected + 1 - self.copies.by_depth(length)[_DEPTHS[place]]
        self.copies.learn(length, place, is_kept)

    def chances(self, match: Match) -> list[float]:
        """[tokens]: that the first 1, 2, ... of them are all kept."""
        ratio = (self.refused + _TEXT_PRIOR) / (self.expected + _TEXT_PRIOR)
        holds = [min(max(1 - (1 - one) * ratio, _LEAST), _MOST) for one in self.copies.by_depth(match.length)]
        return list(itertools.accumulate([holds[depth] for depth in _DEPTHS[: len(match.tokens)]], operator.mul))
