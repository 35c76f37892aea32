"""The search of `swift` as it is by default; the paper's is in swift_search.py.

Its first steps leave out every sub-layer alone and tell what each loses. Then sub-layers are dropped, two in a step:
the cheapest of those that seem so are scored beside the set so far, and go. Sets on the way are kept, by size; the one
in use is the one that promises most tokens per second at its matchness. After that small changes of it are scored
beside it, and sometimes all that is kept. What counts is the log-probability of the tokens: a change must gain on those
it is chosen by, and on held-out ones by more than its standard error. Matchness is told by tokens that are new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..economics import LatencyFit
from ..types import SkipSet
from .bayes import Point
from .matching import Matched
from .prune import USUAL_LENGTH, savings
from .swift_search import Optimisation, SwiftOptions, size_of, text_of

GAIN = 0.03
"""Another size is taken for this share more speed; a new set has to be recorded and tried."""
_DROPPED = 2
"""Sub-layers that go in one step."""
_LEAST_MATCH = 0.5
"""Of a set, over that of the whole model, which meets fewer of a text's tokens where they were drawn; nothing more is
dropped then.
"""
_KNOWN_TOKENS, _KNOWN_BEFORE = 384, 64
"""Matchness is told by about this many tokens; that of a changed set by this many of those before it was taken."""


@dataclass
class Kept:
    """`num_known`: tokens that tell its matchness."""

    point: Point
    matchness: float
    num_known: int = 0

    def look(self, matchness: float, num_fresh: int) -> None:
        """It has been scored once more, by this many new tokens."""
        weight = num_fresh / max(1, self.num_known + num_fresh)
        self.matchness += weight * (matchness - self.matchness)
        self.num_known = min(_KNOWN_TOKENS, self.num_known + num_fresh)

    def to_json(self) -> dict[str, Any]:
        return {"skip": text_of(self.point), "matchness": self.matchness, "num_known": self.num_known}


class Ranked(Optimisation):
    """`failures`: of drafts, over those that matchness lets expect. `kept`: by size."""

    def __init__(self, num_layers: int, options: SwiftOptions, latency: LatencyFit) -> None:
        super().__init__(num_layers, options)
        self._costs, self._savings = latency.at(USUAL_LENGTH), savings(latency)
        ratios = np.arange(options.min_ratio, options.max_ratio + 1e-9, options.ratio_step)
        self.sizes = sorted({size_of(num_layers, ratio) for ratio in ratios} - {0})
        self.failures = 1.0
        self.kept: dict[int, Kept] = {}
        self._whole = Kept(frozenset(), 1.0)
        self._size: int | None = None
        self._losses: dict[int, float] = {}
        self._path: Point = frozenset()  # dropped so far
        self._is_grown = False
        self._last_review: int | None = None
        self.is_over = not self.sizes

    def resume(self) -> None:
        """Texts are of another kind now: what was scored before is worth nothing, what is kept is a beginning."""
        self._losses, self._path, self._is_grown, self._last_review = {}, frozenset(), False, None
        for kept in self.kept.values():
            kept.num_known = 0
        self.failures = 1.0
        self._first_step, self.num_idle, self.is_over = self.step, 0, False

    def look_again(self) -> None:
        """After a rest: without hope only at what is kept. Drafts were none, so how they fare is not known."""
        if self.is_over:
            self.resume()
        self._last_review, self.failures = None, 1.0

    # ------------------------------------------------------------------------------------------------ what is scored

    @property
    def is_resting(self) -> bool:
        """Over, or without hope until it is resumed."""
        return self.is_over or (self.is_hopeless and self._last_review is not None)

    @property
    def is_growing(self) -> bool:
        """Whether sub-layers are still ranked or dropped."""
        return not self._is_grown

    @property
    def _unranked(self) -> list[int]:
        return [number for number in self._universe if number not in self._losses]

    @property
    def _is_reviewing(self) -> bool:
        return self._last_review is None or self.step - self._last_review >= self._options.interval

    def candidates(self) -> list[Point]:
        """What the others are compared with comes first."""
        count = self._options.candidates
        if numbers := self._unranked[:count]:
            return [frozenset(), *(frozenset({number}) for number in numbers)]
        if self.is_growing:
            cheapest = sorted(set(self._universe) - self._path, key=self._price)[:count]
            return [self._path, *(self._path | {number} for number in cheapest)]
        if self._is_reviewing:
            return [kept.point for kept in self.kept.values()]
        points = list(dict.fromkeys([self.skipped, *(self._changed(offset) for offset in range(count))]))
        self.is_over = len(points) < 2
        return [] if self.is_over else points

    def _price(self, number: int) -> float:
        return self._losses[number] / self._savings[number]

    def _changed(self, offset: int) -> Point:
        """Some members replaced by others, if there are such of their kind: then it takes as long."""
        rng = np.random.default_rng([self._options.seed, self.step, offset])
        others = rng.permutation(sorted(set(self._universe) - self.skipped)).tolist()
        changed = self.skipped
        for member in rng.permutation(sorted(self.skipped))[: int(rng.geometric(0.5))].tolist():
            if others:
                others.sort(key=lambda other, member=member: (other - member) % 2)
                changed = changed - {member} | {others.pop(0)}
        return changed

    # ------------------------------------------------------------------------------------------------ what it means

    def _judge(self, points: Sequence[Point], found: Matched, num_fresh: int) -> float | None:
        fresh = found.hits[:, found.hits.shape[1] - num_fresh :] if num_fresh else found.hits
        matches: list[float] = fresh.double().mean(1).tolist()
        if self._unranked:
            self._losses.update(zip((number for point in points for number in point), _lost(found), strict=True))
            self._whole.look(matches[0], fresh.shape[1])
            return None
        if self.is_growing:
            self._drop(points, found, matches[0], num_fresh)
        elif self._is_reviewing:
            self._review(matches, num_fresh)
        else:
            self._take_change(points, found, matches[0], num_fresh)
        self.choose()
        return max(matches)

    def _drop(self, points: Sequence[Point], found: Matched, match: float, num_fresh: int) -> None:
        """The set so far is kept where its size is due. What a sub-layer lost before still counts half."""
        due = max((size for size in self.sizes if size <= len(self._path)), default=None)
        if due is not None and not (due in self.kept and self.kept[due].point <= self._path):
            self.kept[due] = Kept(self._path, match, num_fresh)
            self.gain = math.inf if due == self._size else self.gain
        scored = [next(iter(point - self._path)) for point in points[1:]]
        for number, lost in zip(scored, _lost(found), strict=True):
            self._losses[number] = (self._losses[number] + lost) / 2
        is_poor = match < _LEAST_MATCH * self._whole.matchness
        self._is_grown = len(self._path) >= self.sizes[-1] or (bool(self.kept) and is_poor)
        if not self._is_grown:
            count = min(_DROPPED, min(size for size in self.sizes if size > len(self._path)) - len(self._path))
            self._path |= set(sorted(scored, key=self._price)[:count])

    def _review(self, matches: Sequence[float], num_fresh: int) -> None:
        """Where the largest of them is the best, more may go."""
        for kept, match in zip(self.kept.values(), matches, strict=True):
            kept.look(match, num_fresh)
        self._last_review = self.step
        self.choose()
        if self._size == max(self.kept) < self.sizes[-1]:
            self._path, self._is_grown = self.skipped, False

    def _could_pay(self, kept: Kept) -> bool:
        """If it missed only half of what it misses."""
        acceptance = (1 + self._acceptance(kept)) / 2
        return self._costs.best_length(acceptance, SkipSet.of_numbers(kept.point))[0] > 0

    def _take_change(self, points: Sequence[Point], found: Matched, match: float, num_fresh: int) -> None:
        assert self._size is not None
        kept, middle = self.kept[self._size], found.hits.shape[1] // 2
        kept.look(match, num_fresh)
        gained = (found.log_probs - found.log_probs[:1]).double()
        searched = gained[:, :middle].mean(1).tolist()
        best = max(range(len(points)), key=searched.__getitem__)
        held_out = gained[best, middle:]
        mean, error = float(held_out.mean()), float(held_out.std(correction=0)) / math.sqrt(len(held_out))
        if searched[best] > 0 and mean > error:
            self.kept[self._size] = Kept(points[best], kept.matchness, min(kept.num_known, _KNOWN_BEFORE))
            self.gain += mean

    # ------------------------------------------------------------------------------------------------ the set in use

    def choose(self) -> None:
        """The size that promises most; another one than so far only where that is noticeably more."""
        if not self.kept:
            return
        speeds = {size: self.speed(kept) for size, kept in self.kept.items()}
        best = max(speeds, key=speeds.__getitem__)
        if self._size is None or speeds[best] > (1 + GAIN) * speeds[self._size]:
            self._size, self.gain = best, math.inf
        kept = self.kept[self._size]
        self.skipped, self.matchness = kept.point, kept.matchness
        self.ratio = round(len(kept.point) / len(self._universe), 2)
        self.can_pay = self._options.always or any(map(self._could_pay, self.kept.values()))
        self.is_hopeless = self._last_review is not None and not self.can_pay

    def speed(self, kept: Kept) -> float:
        """Tokens per second of rounds that draft."""
        return float(self._costs.speeds(self._acceptance(kept), SkipSet.of_numbers(kept.point))[1:].max())

    def _acceptance(self, kept: Kept) -> float:
        return min(max(1 - (1 - kept.matchness) * self.failures, 0.0), 1.0)

    @property
    def _is_good(self) -> bool:
        """Once it is known to be, and no larger size promised more."""
        if self._size is None or self.is_growing or self._last_review != self.step - 1:
            return False
        return self.kept[self._size].num_known >= _KNOWN_TOKENS and super()._is_good

    # ------------------------------------------------------------------------------------------------ its state

    def state(self) -> dict[str, Any]:
        own = {
            "losses": {str(number): lost for number, lost in self._losses.items()},
            "path": text_of(self._path),
            "is_grown": self._is_grown,
            "whole": self._whole.to_json(),
            "kept": {str(size): kept.to_json() for size, kept in self.kept.items()},
            "size": self._size,
            "last_review": self._last_review,
            "is_hopeless": self.is_hopeless,
        }
        return {**super().state(), **own}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._losses = {int(number): float(lost) for number, lost in state["losses"].items()}
        self._path, self._is_grown = self._point(state["path"]), bool(state["is_grown"])
        self._whole = self._kept_of(state["whole"])
        self.kept = {int(size): self._kept_of(kept) for size, kept in state["kept"].items()}
        self._size, self._last_review = (
            None if value is None else int(value) for value in (state["size"], state["last_review"])
        )
        if self._size is not None and self._size not in self.kept:
            raise ValueError(f"nothing is kept of size {self._size}")
        self.is_hopeless = bool(state["is_hopeless"])
        self.can_pay = not self.is_hopeless
        super().restore(state)
        self.is_over |= not self.sizes

    def _kept_of(self, kept: Mapping[str, Any]) -> Kept:
        return Kept(self._point(kept["skip"]), float(kept["matchness"]), int(kept["num_known"]))


def _lost(found: Matched) -> list[float]:
    """Log-probability a token that each set has less than the first; more is chance."""
    lost: list[float] = (found.log_probs[:1] - found.log_probs)[1:].double().mean(1).clamp(min=0).tolist()
    return lost
