"""SWIFT's search apart from any model: which skip sets to score next, what their scores mean, when it is over.

SWIFT (arXiv:2410.06916, section 4.1.2). There are two rules for a candidate. The paper's: its matchness on the window
against the best matchness ever seen. Ours: beside the set in use on the same tokens; it must do better on those it was
chosen by, and no worse on held-out ones, by which matchness is told. So a lucky window is forgotten, not kept for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..options import setting
from ..types import SkipSet
from .bayes import Point, Search
from .uniform import spread

SNAPSHOTS = (0, 64, 128, 512)
"""Steps at which the set in use is remembered, as the paper shows it."""
_KNOWN_TOKENS, _KNOWN_BEFORE = 384, 64
"""Matchness, where it is held out, is told by about this many tokens; that of a new set by this many of those before it
was taken, for what it was chosen by would flatter it.
"""

Phase = Literal["optimise", "accelerate"]


@dataclass(frozen=True)
class SwiftOptions:
    ratio: float = setting(0.45, "share of the sub-layers to skip", minimum=0.0, maximum=1.0)
    min_ratio: float = setting(0.4, "lower it to this at most", minimum=0.0, maximum=1.0)
    ratio_step: float = setting(0.05, "how much less at a time", minimum=0.001, maximum=1.0)
    tolerance: float = setting(0.7, "while fewer of the drafted tokens are accepted", minimum=0.0, maximum=1.0)
    window: int = setting(32, "number of generated tokens to score on", minimum=2)
    interval: int = setting(25, "every this many steps a candidate comes from Bayesian optimisation", minimum=1)
    max_steps: int = setting(1000, "the most candidates to score", minimum=1)
    patience: int = setting(300, "end the search after this many without improvement", minimum=1)
    enough: float = setting(0.95, "end the search beyond this matchness", minimum=0.0, maximum=1.0)
    paper: bool = setting(False, "as the paper, whatever sliding to always (below) say")
    sliding: bool = setting(True, "the window: the last generated tokens instead of a text's first ones")
    held_out: bool = setting(True, "believe a candidate by as many tokens again, which it was not chosen by")
    local: bool = setting(True, "candidates that differ a little from the set in use instead of random ones")
    candidates: int = setting(
        0, "candidates to score in one pass; 0: 32 on a GPU, which hardly notices, else 4", minimum=0
    )
    resume: bool = setting(True, "search again when the acceptance falls below what it was")
    shift: float = setting(0.15, "fall of the acceptance that counts", minimum=0.0, maximum=1.0)
    budget: float = setting(0.05, "share of the time that optimisation may take", minimum=0.0)
    always: bool = setting(False, "draft even where plain decoding promises more")
    saved: bool = setting(True, "go on with the state that the profile has")
    seed: int = setting(0, "of the search", minimum=0)

    @property
    def rules(self) -> SwiftOptions:
        """With `paper` spelt out."""
        if not self.paper:
            return self
        return replace(
            self, sliding=False, held_out=False, local=False, candidates=1, resume=False, budget=1.0, always=True
        )


def uniform(num_layers: int, ratio: float) -> Point:
    """Evenly spaced layers, first and last kept."""
    layers = spread(num_layers, ratio)
    return SkipSet.of(layers, layers).numbers


class Optimisation:
    """`skipped` is the best set, `matchness` what is known of it: None until it was scored. A step is a candidate.

    `gain`: by how much more it matches than the set that drafts, as far as both were scored on the same tokens.
    """

    def __init__(self, num_layers: int, options: SwiftOptions) -> None:
        self._num_layers, self._options = num_layers, options
        self._num_known = 0  # tokens that tell matchness
        self.ratio = options.ratio
        self.skipped = uniform(num_layers, self.ratio)
        self.matchness: float | None = None
        self.step = 0
        self.gain = 0.0
        self.snapshots: dict[int, Point] = {}
        self._begin(Search(self._universe, options.seed))
        self._remember()

    @property
    def _universe(self) -> range:
        """The first and the last layer always run."""
        return range(2, 2 * self._num_layers - 2)

    def _begin(self, search: Search) -> None:
        self._search = search
        self.num_idle, self._first_step, self.is_over = 0, self.step, not self.skipped

    @property
    def phase(self) -> Phase:
        return "accelerate" if self.is_over else "optimise"

    @property
    def progress(self) -> float:
        """How much of the search is done, at least."""
        options = self._options
        shares = (self.num_steps / options.max_steps, self.num_idle / options.patience)
        return 1.0 if self.is_over else min(1.0, max(shares))

    @property
    def num_steps(self) -> int:
        """Of this search."""
        return self.step - self._first_step

    # ------------------------------------------------------------------------------------------------ step by step

    def candidates(self) -> list[Point]:
        """To be scored together; the set in use first, where it is scored as well. Empty: there is nothing new."""
        if not self._options.held_out and self.matchness is None:
            return [self.skipped]
        found = [self._candidate(self.step + offset) for offset in range(1, self._options.candidates + 1)]
        known = [point for point in found if point is not None]
        if not known:
            self.is_over = True
            return []
        return [self.skipped, *known] if self._options.held_out else known

    def _candidate(self, step: int) -> Point | None:
        size = len(self.skipped)
        if step % self._options.interval == 0:
            return self._search.suggest(size)
        if not self._options.local:
            return self._search.random(size)
        num_swaps = int(np.random.default_rng([self._options.seed, step]).geometric(0.5))
        return self._search.neighbour(self.skipped, min(num_swaps, size))

    def judge(
        self, points: Sequence[Point], searched: Sequence[float], held_out: Sequence[float] = (), num_fresh: int = 0
    ) -> bool:
        """By the matchness of each of `candidates()`: whether another set is in use now.

        `num_fresh`: of the held-out tokens, those that nothing was scored by before.
        """
        before = self.skipped
        if self._options.held_out:
            self.look(held_out[0], num_fresh)
            self._judge_beside(points, searched, held_out)
        else:
            self._judge_alone(points, searched)
        self.num_idle = 0 if self.skipped != before else self.num_idle + self._num_scored(points)
        self._remember()
        self._end_if_done()
        return self.skipped != before

    def _num_scored(self, points: Sequence[Point]) -> int:
        return len(points) - self._options.held_out

    def _judge_alone(self, points: Sequence[Point], scores: Sequence[float]) -> None:
        for point, score in zip(points, scores, strict=True):
            self.step += 1
            self._search.observe(point, score)
            if self.matchness is None or score > self.matchness:
                self.gain += 0.0 if self.matchness is None else score - self.matchness
                self.skipped, self.matchness = point, score

    def _judge_beside(self, points: Sequence[Point], searched: Sequence[float], held_out: Sequence[float]) -> None:
        """Scores are told relative to the set in use: other tokens are easier or harder for all."""
        assert self.matchness is not None
        for point, score in zip(points[1:], searched[1:], strict=True):
            self.step += 1
            self._search.observe(point, self.matchness + score - searched[0])
        best = max(range(1, len(points)), key=lambda row: (searched[row], held_out[row]))
        if searched[best] > searched[0] and held_out[best] >= held_out[0]:
            self.skipped = points[best]
            self.gain += held_out[best] - held_out[0]
            self._num_known = min(self._num_known, _KNOWN_BEFORE)  # what comes next tells how good it is

    def look(self, matchness: float, num_fresh: int) -> None:
        """The set in use has been scored once more."""
        if self.matchness is None:
            self.matchness, self._num_known = matchness, 0
        weight = num_fresh / max(1, self._num_known + num_fresh)
        self.matchness += weight * (matchness - self.matchness)
        self._num_known = min(_KNOWN_TOKENS, self._num_known + num_fresh)

    def _remember(self) -> None:
        for step in SNAPSHOTS:
            if self.step >= step:
                self.snapshots.setdefault(step, self.skipped)

    def _end_if_done(self) -> None:
        options = self._options
        is_known = not options.held_out or self._num_known >= _KNOWN_TOKENS
        is_good = is_known and self.matchness is not None and self.matchness > options.enough
        self.is_over = is_good or self.num_steps >= options.max_steps or self.num_idle >= options.patience

    # ------------------------------------------------------------------------------------------------ other turns

    def lower(self) -> bool:
        """Skip fewer sub-layers, where that is allowed: some of the set in use, evenly spread, are put back."""
        ratio = round(self.ratio - self._options.ratio_step, 6)
        if ratio < self._options.min_ratio - 1e-9:
            return False
        self.ratio = ratio
        members = sorted(self.skipped)
        num_back = max(0, len(members) - len(uniform(self._num_layers, ratio)))
        back = {members[int((index + 0.5) * len(members) / num_back)] for index in range(num_back)}
        self.skipped, self.num_idle = self.skipped - back, 0
        self.matchness, self._num_known = None, 0
        self.is_over = self.is_over or not self.skipped
        return True

    def resume(self) -> None:
        """Texts are of another kind now: what was scored before is worth nothing, the set in use is a beginning."""
        self.matchness, self._num_known = None, 0
        self._begin(Search(self._universe, self._options.seed, num_suggestions=self._search.num_suggestions))

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
            "num_known": self._num_known,
            "num_suggestions": self._search.num_suggestions,
            "observations": [(_text(point), score) for point, score in self._search.observations],
            "snapshots": {str(step): _text(point) for step, point in self.snapshots.items()},
        }

    @classmethod
    def of_state(cls, num_layers: int, options: SwiftOptions, state: Mapping[str, Any]) -> Optimisation:
        """LookupError, TypeError, ValueError, OptionError: it is none, or of another model."""
        found = cls(num_layers, options)
        found.ratio, found.step = float(state["ratio"]), int(state["step"])
        found.skipped = _point(state["skip"], num_layers)
        if outside := sorted(found.skipped - set(found._universe)):
            raise ValueError(f"{_text(frozenset(outside))} always runs")
        found.matchness = None if state["matchness"] is None else float(state["matchness"])
        found.snapshots = {int(step): _point(text, num_layers) for step, text in state["snapshots"].items()}
        observations = [(_point(text, num_layers), float(score)) for text, score in state["observations"]]
        found._search = Search(
            found._universe, options.seed, observations=observations, num_suggestions=int(state["num_suggestions"])
        )
        found._first_step, found.num_idle = int(state["first_step"]), int(state["num_idle"])
        found._num_known = int(state["num_known"])
        found._end_if_done()
        return found


def _text(point: Point) -> str:
    return str(SkipSet.of_numbers(point))


def _point(text: str, num_layers: int) -> Point:
    skip = SkipSet.parse(text)
    skip.check(num_layers)
    return skip.numbers
