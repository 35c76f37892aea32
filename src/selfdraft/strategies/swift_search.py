"""SWIFT's search apart from any model: which skip sets to score next, what their scores mean, when it is over.

SWIFT (arXiv:2410.06916, section 4.1.2). A step is a pass over known tokens that scores sets beside each other.

`Published` is the paper's: one candidate a step, random or by Bayesian optimisation, of a fixed size; the best
matchness ever seen counts. Ours is in swift_ranked.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..options import setting
from ..types import SkipSet
from .bayes import Point, Search
from .matching import Matched
from .uniform import spread_over

SNAPSHOTS = (0, 64, 128, 512)
"""Steps at which the set in use is remembered, as the paper shows it."""
_MIN_RATIO, _RATIO_STEP = 0.1, 0.1
_PAPER_MIN_RATIO, _PAPER_RATIO_STEP, _PAPER_WINDOW = 0.4, 0.05, 32
_PAPER_STEPS, _NO_LIMIT = 1000, 10**9

Phase = Literal["optimise", "accelerate"]


@dataclass(frozen=True)
class SwiftOptions:
    ratio: float = setting(0.45, "share to skip at first, evenly, under `paper` or `always`", minimum=0.0, maximum=1.0)
    min_ratio: float = setting(
        0.0, f"skip at least this share; 0: {_MIN_RATIO}, {_PAPER_MIN_RATIO} under `paper`", minimum=0.0, maximum=1.0
    )
    max_ratio: float = setting(
        0.7, "skip at most this share; not of `paper`, which begins with `ratio`", minimum=0.0, maximum=1.0
    )
    ratio_step: float = setting(
        0.0, "between shares that are compared; 0: 0.1, under `paper` 0.05", minimum=0.0, maximum=1.0
    )
    tolerance: float = setting(
        0.7, "under `paper`: skip less while fewer of the drafted tokens are accepted", minimum=0.0, maximum=1.0
    )
    window: int = setting(
        0, "tokens to score on; 0: 256 where passes are recorded, else 64; 32 generated ones under `paper`", minimum=0
    )
    interval: int = setting(
        25, "every this many steps sizes are compared; under `paper` a candidate is Bayesian", minimum=1
    )
    max_steps: int = setting(0, "the most passes to score sets in; 0: 1000 under `paper`, else no limit", minimum=0)
    patience: int = setting(300, "end the search after this many without improvement", minimum=1)
    enough: float = setting(0.95, "end the search beyond this matchness", minimum=0.0, maximum=1.0)
    paper: bool = setting(False, "as the paper and its authors' code, whatever candidates, resume, budget, always say")
    candidates: int = setting(0, "candidates to score in one pass; 0: 7 where passes are recorded, else 4", minimum=0)
    resume: bool = setting(True, "search again when the acceptance falls below what it was")
    shift: float = setting(0.15, "fall of the acceptance that counts", minimum=0.0, maximum=1.0)
    budget: float = setting(
        0.02,
        "share of the time that optimisation may take, five times as much while sub-layers are dropped",
        minimum=0.0,
    )
    always: bool = setting(False, "draft and search even where plain decoding promises more")
    saved: bool = setting(True, "go on with the state that the profile has")
    seed: int = setting(0, "of the search", minimum=0)

    def rules(self, *, is_recorded: bool) -> SwiftOptions:
        """With `paper` and what depends on the device spelt out."""
        usual: dict[str, Any] = {"window": 256, "candidates": 7} if is_recorded else {"window": 64, "candidates": 4}
        usual |= {"min_ratio": _MIN_RATIO, "ratio_step": _RATIO_STEP, "max_steps": _NO_LIMIT}
        forced: dict[str, Any] = {}
        if self.paper:
            usual |= {"window": _PAPER_WINDOW, "min_ratio": _PAPER_MIN_RATIO, "ratio_step": _PAPER_RATIO_STEP}
            usual |= {"max_steps": _PAPER_STEPS}
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

    `gain`: log-probability a token that it has over the set that drafts. `can_pay`: some set would, if it missed only
    half of what it misses; `is_hopeless`: all were compared, and none would.
    """

    can_pay, is_hopeless = True, False

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
    def is_growing(self) -> bool:
        """Whether there is nothing to draft with yet, or little."""
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
            "skip": text_of(self.skipped),
            "matchness": self.matchness,
            "snapshots": {str(step): text_of(point) for step, point in self.snapshots.items()},
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
            raise ValueError(f"{text_of(frozenset(outside))} always runs")
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
        observations = [(text_of(point), score) for point, score in self._search.observations]
        return {**super().state(), "num_suggestions": self._search.num_suggestions, "observations": observations}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        observations = [(self._point(text), float(score)) for text, score in state["observations"]]
        suggested = int(state["num_suggestions"])
        self._search = Search(self._universe, self._options.seed, observations=observations, num_suggestions=suggested)


def text_of(point: Point) -> str:
    return str(SkipSet.of_numbers(point))
