"""`draft-verify`: the skip set that decoded fastest in calibration, found by Bayesian optimisation, fixed afterwards.

Draft & Verify (arXiv:2309.08168). Each sub-layer is a binary variable; what is maximised is tokens per second, measured
on a few prompts of a few tokens each. With `calibrate_on` these come from one domain or from all: the two forms that
KNN-SSD (arXiv:2505.16162) compares itself with.

What differs from the paper:
- layer 0 is always kept (`first_layer`), and the search begins with evenly spaced layers;
- where plain decoding was fastest nothing is drafted (`always`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import OptionError, ProfileError, unknown_name
from ..fitting import Kit
from ..options import setting
from ..protocols import Knowledge
from ..registry import find
from ..types import OFF, Plan, Prompt, SkipSet
from .base import ConstantStrategy, damaged
from .bayes import Search
from .uniform import spread

CHOICES = ("first", "mixed")
_PLAIN: Mapping[str, Any] = {"strategy": "off"}
_FIRST_RATIO = 0.5
"""Of the layers, skipped by the first set that is tried."""


class DraftVerify(ConstantStrategy):
    @dataclass(frozen=True)
    class Options:
        calibrate_on: str = setting("mixed", "prompts to decode: of the first domain (first) or of all (mixed)")
        iterations: int = setting(1000, "skip sets to try in calibration", minimum=1)
        num_prompts: int = setting(8, "prompts to try each one on", minimum=1)
        num_tokens: int = setting(32, "tokens to decode after each prompt", minimum=1)
        timed_with: str = setting("adaptive", "the lookahead while sets are timed")
        first_layer: bool = setting(False, "layer 0 may be skipped, too")
        always: bool = setting(False, "draft even where plain decoding was faster")
        seed: int = setting(0, "of the search", minimum=0)

        def __post_init__(self) -> None:
            if self.calibrate_on not in CHOICES:
                raise unknown_name("value of draft-verify.calibrate_on", self.calibrate_on, CHOICES)
            find("lookahead", self.timed_with)

    can_fit = True
    pairs_with: ClassVar[Mapping[str, Any]] = {"lookahead": "adaptive"}

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        skip = _known_skip(options, knowledge)
        super().__init__(Plan(skip) if skip else OFF)

    @staticmethod
    def fit(kit: Kit, options: Options) -> dict[str, Any]:
        """Sets and their speeds, one after the other; goes on after those that an interrupted fit had kept."""
        trying = _Trying(kit, options)
        found = trying.run()
        sets = kit.known.get("sets")
        return {"sets": {**(sets if isinstance(sets, Mapping) else {}), options.calibrate_on: found}}


class _Trying:
    """A fit: what each set reached so far, and the search that says which to try next."""

    def __init__(self, kit: Kit, options: DraftVerify.Options) -> None:
        self._kit, self._options = kit, options
        self._prompts = prompts_of(kit.prompts, options.calibrate_on, options.num_prompts)
        layers = spread(kit.latency.num_layers, _FIRST_RATIO)
        self._first = SkipSet.of(layers, layers).numbers
        self._speeds = {SkipSet.parse(step["skip"]).numbers: step["tokens_per_second"] for step in kit.done}
        observations = [(point, speed) for point, speed in self._speeds.items() if point]
        self._search = Search(
            range(0 if options.first_layer else 2, 2 * kit.latency.num_layers),
            options.seed,
            observations=observations,
            excluded=[frozenset()],  # plain decoding, which says nothing about drafting with little skipped
            num_suggestions=len(observations) - (self._first in self._speeds),
        )

    def run(self) -> dict[str, Any]:
        if not self._speeds:
            self._measure(_PLAIN, self._prompts[:1])  # whatever is done once is done then
            self._keep(frozenset(), self._measure(_PLAIN, self._prompts))
        is_complete = self._search_on()
        drafting = self._fastest(point for point in self._speeds if point)
        return {
            **(self._fastest(self._speeds) or {}),
            "drafting": drafting,  # the best of those that draft, even where plain decoding was faster
            "plain": self._speeds[frozenset()],
            "num_tried": self._num_tried,
            "is_complete": is_complete,
        }

    def _fastest(self, points: Iterable[frozenset[int]]) -> dict[str, Any] | None:
        best = max(points, key=lambda point: self._speeds[point], default=None)
        if best is None:
            return None
        return {"skip": str(SkipSet.of_numbers(best)), "tokens_per_second": self._speeds[best]}

    @property
    def _num_tried(self) -> int:
        return len(self._speeds) - 1

    def _search_on(self) -> bool:
        """Whether it came to an end before the time did."""
        while self._num_tried < self._options.iterations:
            is_first = bool(self._first) and self._first not in self._speeds
            point = self._first if is_first else self._search.suggest(None)
            if point is None:
                break
            if not self._kit.has_time():
                return False
            speed = self._measure(_method(SkipSet.of_numbers(point), self._options.timed_with), self._prompts)
            self._keep(point, speed)
            self._search.observe(point, speed)
            self._kit.progress(self._num_tried / self._options.iterations)
        return True

    def _measure(self, method: Mapping[str, Any], prompts: Sequence[Prompt]) -> float:
        return self._kit.tokens_per_second(method, prompts, self._options.num_tokens)

    def _keep(self, point: frozenset[int], speed: float) -> None:
        self._speeds[point] = speed
        self._kit.keep({"skip": str(SkipSet.of_numbers(point)), "tokens_per_second": speed})


def prompts_of(prompts: Sequence[Prompt], calibrate_on: str, count: int) -> list[Prompt]:
    """At most `count`; prompts come in turn from each domain."""
    if calibrate_on == "first":
        prompts = [prompt for prompt in prompts if prompt.domain == prompts[0].domain]
    return list(prompts[:count])


def _method(skip: SkipSet, lookahead: str) -> dict[str, Any]:
    settings = {"fixed": {"skip": str(skip)}}
    return {"strategy": "fixed", "settings": settings, "lookahead": lookahead, "tree": "chain"}


def skip_in(found: Mapping[str, Any], options: DraftVerify.Options) -> SkipSet:
    """The set that a fit found; empty: plain decoding was fastest, or nothing was tried. Raises where it is damaged."""
    known = found["sets"][options.calibrate_on]
    return SkipSet.parse((known["drafting"] or {"skip": ""} if options.always else known)["skip"])


def _known_skip(options: DraftVerify.Options, knowledge: Knowledge) -> SkipSet:
    calibrate_on = options.calibrate_on
    command = f"{knowledge.command('calibrate')} --strategy draft-verify --set draft-verify.calibrate_on={calibrate_on}"
    artefact = knowledge.artefact("draft-verify", "the strategy 'draft-verify'", command)
    sets = artefact.get("sets")
    if isinstance(sets, Mapping) and calibrate_on not in sets:
        others = ", ".join(sorted(sets)) or "nothing"
        raise ProfileError(
            f"the profile has no skip set of `draft-verify` for calibrate_on={calibrate_on}; what it has: {others}. "
            f"Run: {command}"
        )
    try:
        skip = skip_in(artefact, options)
        skip.check(knowledge.num_layers)
        return skip
    except (LookupError, TypeError, ValueError, AttributeError, OptionError) as error:
        raise damaged("skip set of `draft-verify`", error, command) from error
