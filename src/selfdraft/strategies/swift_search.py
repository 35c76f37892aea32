"""SWIFT's search apart from any model: which skip sets to score next, what their scores mean, when it is over.

SWIFT (arXiv:2410.06916, section 4.1.2). A step is a pass over known tokens that scores sets beside each other.

`Published` is the paper's: one candidate a step, random or by Bayesian optimisation, of a fixed size; the best
matchness ever seen counts. `Ranked` is ours. Its first steps leave out every sub-layer alone and tell what each loses;
the next one compares sets of those that lose least, of all sizes; then small changes of the set in use are scored
beside it. Sets of one size are judged by the log-probability of the tokens: a change must gain on those it is chosen
by, and on held-out ones by more than its standard error. Sizes are judged by tokens per second at their matchness.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..economics import LatencyFit
from ..options import setting
from ..types import SkipSet
from .bayes import Point, Search
from .matching import Matched
from .prune import USUAL_LENGTH, savings
from .uniform import spread_over

SNAPSHOTS = (0, 64, 128, 512)
"""Steps at which the set in use is remembered, as the paper shows it."""
GAIN = 0.03
"""Another size is taken for this share more speed; a new set has to be recorded and tried."""
_KNOWN_TOKENS, _KNOWN_BEFORE = 384, 64
"""Matchness, where it is held out, is told by about this many tokens; that of a new set by this many of those before it
was taken, for what it was chosen by would flatter it.
"""
_MIN_RATIO, _PAPER_MIN_RATIO, _PAPER_WINDOW = 0.1, 0.4, 32

Phase = Literal["optimise", "accelerate"]


@dataclass(frozen=True)
class SwiftOptions:
    ratio: float = setting(0.45, "share of the sub-layers to skip at first", minimum=0.0, maximum=1.0)
    min_ratio: float = setting(
        0.0, f"skip at least this share; 0: {_MIN_RATIO}, {_PAPER_MIN_RATIO} under `paper`", minimum=0.0, maximum=1.0
    )
    max_ratio: float = setting(0.5, "skip at most this share; under `paper`: `ratio`", minimum=0.0, maximum=1.0)
    ratio_step: float = setting(0.05, "between shares that are compared", minimum=0.001, maximum=1.0)
    tolerance: float = setting(
        0.7, "under `paper`: skip less while fewer of the drafted tokens are accepted", minimum=0.0, maximum=1.0
    )
    window: int = setting(
        0, "generated tokens to score on; 0: 128 where passes are recorded, else, and under `paper`, 32", minimum=0
    )
    interval: int = setting(
        25, "every this many steps sizes are compared; under `paper` a candidate is Bayesian", minimum=1
    )
    max_steps: int = setting(1000, "the most passes to score sets in", minimum=1)
    patience: int = setting(300, "end the search after this many without improvement", minimum=1)
    enough: float = setting(0.95, "end the search beyond this matchness", minimum=0.0, maximum=1.0)
    paper: bool = setting(False, "as the paper and its authors' code, whatever candidates, resume, budget, always say")
    candidates: int = setting(
        0, "candidates to score in one pass; 0: 32 on a GPU, which hardly notices, else 4", minimum=0
    )
    resume: bool = setting(True, "search again when the acceptance falls below what it was")
    shift: float = setting(0.15, "fall of the acceptance that counts", minimum=0.0, maximum=1.0)
    budget: float = setting(0.05, "share of the time that optimisation may take", minimum=0.0)
    always: bool = setting(False, "draft and search even where plain decoding promises more")
    saved: bool = setting(True, "go on with the state that the profile has")
    seed: int = setting(0, "of the search", minimum=0)

    def rules(self, *, is_recorded: bool) -> SwiftOptions:
        """With `paper` and what depends on the device spelt out."""
        usual: dict[str, Any] = {"window": 128, "candidates": 32} if is_recorded else {"window": 32, "candidates": 4}
        usual["min_ratio"] = _MIN_RATIO
        forced: dict[str, Any] = {}
        if self.paper:
            usual |= {"window": _PAPER_WINDOW, "min_ratio": _PAPER_MIN_RATIO}
            forced = {"candidates": 1, "resume": False, "budget": 1.0, "always": True}
        return replace(self, **{name: getattr(self, name) or value for name, value in usual.items()} | forced)


def size_of(num_layers: int, ratio: float) -> int:
    """Sub-layers that are skipped, counted as the authors' code does: the first and the last layer always run."""
    return int(max(num_layers - 2, 0) * 2 * ratio)


def evenly(num_layers: int, size: int) -> Point:
    """Of evenly spaced layers both sub-layers, of the last one attention alone where the size is odd."""
    layers = spread_over(num_layers, -(-size // 2))
    return SkipSet.of(layers, layers[: size // 2]).numbers


class Optimisation(ABC):
    """`skipped` is the set in use, `matchness` what is known of it: None until it was scored. A step is a pass.

    `gain`: log-probability a token that it has over the set that drafts. `is_hopeless`: it would not pay even if it
    missed only half of what it misses.
    """

    is_hopeless = False

    def __init__(self, num_layers: int, options: SwiftOptions) -> None:
        self._num_layers, self._options = num_layers, options
        self.ratio = options.ratio
        self.skipped = evenly(num_layers, size_of(num_layers, self.ratio))
        self.matchness: float | None = None
        self.step = self.num_idle = self._first_step = 0
        self.gain = 0.0
        self.snapshots: dict[int, Point] = {}
        self.is_over = not self.skipped
        self._remember()

    @property
    def _universe(self) -> range:
        """The first and the last layer always run."""
        return range(2, 2 * self._num_layers - 2)

    @property
    def is_resting(self) -> bool:
        return self.is_over

    @property
    def is_ranking(self) -> bool:
        """Whether sub-layers are scored, not sets."""
        return False

    @property
    def phase(self) -> Phase:
        return "accelerate" if self.is_over else "optimise"

    @property
    def progress(self) -> float:
        """How much of the search is done, at least."""
        shares = (self.num_steps / self._options.max_steps, self.num_idle / self._options.patience)
        return 1.0 if self.is_over else min(1.0, max(shares))

    @property
    def num_steps(self) -> int:
        """Of this search."""
        return self.step - self._first_step

    @abstractmethod
    def candidates(self) -> list[Point]:
        """To be scored together. Empty: there is nothing new."""

    @abstractmethod
    def _judge(self, points: Sequence[Point], found: Matched, num_fresh: int) -> float | None: ...

    def judge(self, points: Sequence[Point], found: Matched, num_fresh: int = 0) -> float | None:
        """What the scores of `candidates()` mean; the matchness of the best of them, None where it would say nothing.

        `num_fresh`: of the held-out tokens, those that nothing was scored by before.
        """
        before = self.skipped
        told = self._judge(points, found, num_fresh)
        self.step += 1
        self.num_idle = 0 if self.skipped != before else self.num_idle + 1
        self._remember()
        self._end_if_done()
        return told

    def _remember(self) -> None:
        for step in SNAPSHOTS:
            if self.step >= step:
                self.snapshots.setdefault(step, self.skipped)

    @property
    def _is_good(self) -> bool:
        return self.matchness is not None and self.matchness > self._options.enough

    def _end_if_done(self) -> None:
        most, patience = self._options.max_steps, self._options.patience
        self.is_over = self._is_good or self.num_steps >= most or self.num_idle >= patience

    # ------------------------------------------------------------------------------------------------ its state

    def state(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "ratio": self.ratio,
            "step": self.step,
            "first_step": self._first_step,
            "num_idle": self.num_idle,
            "skip": _text(self.skipped),
            "matchness": self.matchness,
            "snapshots": {str(step): _text(point) for step, point in self.snapshots.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """LookupError, TypeError, ValueError, OptionError: it is none, or of another model."""
        self.ratio, self.step = float(state["ratio"]), int(state["step"])
        self.skipped = self._point(state["skip"])
        self.matchness = None if state["matchness"] is None else float(state["matchness"])
        self.snapshots = {int(step): self._point(text) for step, text in state["snapshots"].items()}
        self._first_step, self.num_idle = int(state["first_step"]), int(state["num_idle"])
        self._end_if_done()

    def _point(self, text: str) -> Point:
        skip = SkipSet.parse(text)
        skip.check(self._num_layers)
        if outside := sorted(skip.numbers - set(self._universe)):
            raise ValueError(f"{_text(frozenset(outside))} always runs")
        return skip.numbers


class Published(Optimisation):
    """The paper's. Evenly spaced layers come first; the ratio may be lowered."""

    def __init__(self, num_layers: int, options: SwiftOptions) -> None:
        super().__init__(num_layers, options)
        self._search = Search(self._universe, options.seed)

    def candidates(self) -> list[Point]:
        if self.matchness is None:
            return [self.skipped]
        is_bayesian = (self.step + 1) % self._options.interval == 0
        found = (self._search.suggest if is_bayesian else self._search.random)(len(self.skipped))
        self.is_over = found is None
        return [] if found is None else [found]

    def _judge(self, points: Sequence[Point], found: Matched, num_fresh: int) -> float:
        (point,), score = points, float(found.hits.double().mean())
        self._search.observe(point, score)
        if self.matchness is None or score > self.matchness:
            self.skipped, self.matchness = point, score
        return score

    def lower(self) -> bool:
        """Skip fewer sub-layers, where that is allowed: some of the set in use, evenly spread, are put back."""
        ratio = round(self.ratio - self._options.ratio_step, 6)
        if ratio < self._options.min_ratio - 1e-9:
            return False
        self.ratio = ratio
        members = sorted(self.skipped)
        num_back = max(0, len(members) - size_of(self._num_layers, ratio))
        back = {members[int((index + 0.5) * len(members) / num_back)] for index in range(num_back)}
        self.skipped, self.num_idle, self.matchness = self.skipped - back, 0, None
        self.is_over = self.is_over or not self.skipped
        return True

    def state(self) -> dict[str, Any]:
        observations = [(_text(point), score) for point, score in self._search.observations]
        return {**super().state(), "num_suggestions": self._search.num_suggestions, "observations": observations}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        observations = [(self._point(text), float(score)) for text, score in state["observations"]]
        suggested = int(state["num_suggestions"])
        self._search = Search(self._universe, self._options.seed, observations=observations, num_suggestions=suggested)


class Ranked(Optimisation):
    """Ours. What each sub-layer loses alone, sizes by what they promise, then changes of the set in use."""

    def __init__(self, num_layers: int, options: SwiftOptions, latency: LatencyFit) -> None:
        super().__init__(num_layers, options)
        self._costs, self._savings = latency.at(USUAL_LENGTH), savings(latency)
        ratios = np.arange(options.min_ratio, options.max_ratio + 1e-9, options.ratio_step)
        self.sizes = sorted({size_of(num_layers, ratio) for ratio in ratios} - {0})
        self._losses: dict[int, float] = {}
        self._last_sized: int | None = None
        self._num_known = 0  # tokens that tell matchness
        self.is_over = not self.sizes

    @property
    def is_resting(self) -> bool:
        """Over, or without hope until it is resumed."""
        return self.is_over or (self.is_hopeless and self._last_sized is not None)

    @property
    def is_ranking(self) -> bool:
        return bool(self._unranked)

    @property
    def _unranked(self) -> list[int]:
        return [number for number in self._universe if number not in self._losses]

    @property
    def _is_sizing(self) -> bool:
        return self._last_sized is None or self.step - self._last_sized >= self._options.interval

    def candidates(self) -> list[Point]:
        """The target, or the set in use, comes first."""
        if numbers := self._unranked[: self._options.candidates]:
            return [frozenset(), *(frozenset({number}) for number in numbers)]
        if self._is_sizing:
            base = frozenset() if self._last_sized is None else self.skipped
            found = [self._resized(base, size) for size in self.sizes]
        else:
            found = [self._changed(offset) for offset in range(self._options.candidates)]
        points = [point for point in dict.fromkeys([self.skipped, *found]) if point]
        self.is_over = len(points) < 2 and not self._is_sizing
        return [] if self.is_over else points

    def _resized(self, point: Point, size: int) -> Point:
        """Those of its members that lose least per second they save, and of the others where these are too few."""
        price = {number: self._losses[number] / self._savings[number] for number in self._universe}
        return frozenset(sorted(price, key=lambda number: (number not in point, price[number]))[:size])

    def _changed(self, offset: int) -> Point:
        rng = np.random.default_rng([self._options.seed, self.step, offset])
        members, others = sorted(self.skipped), sorted(set(self._universe) - self.skipped)
        count = min(int(rng.geometric(0.5)), len(members), len(others))
        left, joined = (rng.permutation(numbers)[:count].tolist() for numbers in (members, others))
        return (self.skipped - set(left)) | set(joined)

    def _judge(self, points: Sequence[Point], found: Matched, num_fresh: int) -> float | None:
        if self.is_ranking:
            lost = (found.log_probs[:1] - found.log_probs).double().mean(1).tolist()
            self._losses.update({number: one for point, one in zip(points, lost, strict=True) for number in point})
            return None
        matches: list[float] = found.hits.double().mean(1).tolist()
        if self._is_sizing:
            self._take_size(points, matches)
        else:
            self._take_change(points, found, num_fresh)
        return max(matches[1:] or matches)

    def _take_size(self, points: Sequence[Point], matches: Sequence[float]) -> None:
        speeds = [self._speed(point, match) for point, match in zip(points, matches, strict=True)]
        best = max(range(len(points)), key=speeds.__getitem__)
        if self._last_sized is None or speeds[best] > (1 + GAIN) * speeds[0]:
            self.skipped, self.matchness, self._num_known = points[best], matches[best], 0
            self.ratio, self.gain = round(len(points[best]) / len(self._universe), 2), math.inf
        match = matches[points.index(self.skipped)]
        best_case = self._costs.best_length((1 + match) / 2, SkipSet.of_numbers(self.skipped))
        self.is_hopeless = not (self._options.always or best_case[0])
        self._last_sized = self.step

    def _speed(self, point: Point, match: float) -> float:
        """Tokens per second of rounds that draft."""
        return float(self._costs.speeds(match, SkipSet.of_numbers(point))[1:].max())

    def _take_change(self, points: Sequence[Point], found: Matched, num_fresh: int) -> None:
        middle = found.hits.shape[1] // 2
        self._look(float(found.hits[0, middle:].double().mean()), num_fresh)
        gained = (found.log_probs - found.log_probs[:1]).double()
        searched = gained[:, :middle].mean(1).tolist()
        best = max(range(len(points)), key=searched.__getitem__)
        held_out = gained[best, middle:]
        mean, error = float(held_out.mean()), float(held_out.std(correction=0)) / math.sqrt(len(held_out))
        if searched[best] > 0 and mean > error:
            self.skipped = points[best]
            self.gain += mean
            self._num_known = min(self._num_known, _KNOWN_BEFORE)  # what comes next tells how good it is

    def _look(self, matchness: float, num_fresh: int) -> None:
        """The set in use has been scored once more, by this many new tokens."""
        before = matchness if self.matchness is None else self.matchness
        weight = num_fresh / max(1, self._num_known + num_fresh)
        self.matchness = before + weight * (matchness - before)
        self._num_known = min(_KNOWN_TOKENS, self._num_known + num_fresh)

    @property
    def _is_good(self) -> bool:
        """Once it is known to be, and no larger size promised more."""
        is_known = self._num_known >= _KNOWN_TOKENS and self._last_sized == self.step - 1
        return is_known and super()._is_good

    def resume(self) -> None:
        """Texts are of another kind now: what was scored before is worth nothing, the set in use is a beginning."""
        self._losses, self._last_sized, self._num_known = {}, None, 0
        self._first_step, self.num_idle, self.is_over = self.step, 0, False

    def state(self) -> dict[str, Any]:
        losses = {str(number): lost for number, lost in self._losses.items()}
        own = {"losses": losses, "last_sized": self._last_sized, "num_known": self._num_known}
        return {**super().state(), **own, "is_hopeless": self.is_hopeless}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._losses = {int(number): float(lost) for number, lost in state["losses"].items()}
        self._last_sized = None if state["last_sized"] is None else int(state["last_sized"])
        self._num_known, self.is_hopeless = int(state["num_known"]), bool(state["is_hopeless"])
        super().restore(state)


def _text(point: Point) -> str:
    return str(SkipSet.of_numbers(point))
