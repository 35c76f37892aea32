"""Calibration: measure latency, fit the strategies, try them, and keep all of it in the profile.

Each result is kept as soon as it is there: steps of a fit in a journal, whole fits in the profile. So whatever ends a
calibration costs at most one step, and asking the same again goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError
from ..models.latency import BUDGET_SECONDS, measure
from ..models.pull import Progress
from ..profiles.journal import Journal
from ..profiles.profile import Artefact, Profile
from ..profiles.store import Store
from ..registry import STRATEGIES, find
from ..types import FrontierPoint, LatencyFit
from .kit import Budget, EngineKit, Looks
from .texts import CalibrationPrompt, digest, hold_out, write_texts
from .trials import Trials, methods_of

Say = Callable[[str], None]

_SHARE_OF_LATENCY, _SHARE_OF_FIT = 0.2, 0.8
"""Of the budget: what measuring passes may take, and when fits must be over, so that there is time to try them."""
USUAL_TOKENS, USUAL_TOKENS_ON_CPU = 2048, 512
GO_ON = "the same command with a larger --budget goes on from there"
_NOTHING_TO_LEARN = ("off", "fixed")


@dataclass(frozen=True)
class CalibrateOptions:
    """`num_tokens`: fit to so many, None: as many as the device is good for. `num_trial_prompts`: try with so many of
    the prompts held out, None: with all. `again`: whatever is there.
    """

    budget_seconds: float = 1200.0
    num_tokens: int | None = None
    num_trial_prompts: int | None = None
    again: bool = False


def check_strategies(strategies: Sequence[str]) -> None:
    """Raise where there is nothing to calibrate."""
    for name in strategies:
        find("strategy", name)
        if name in _NOTHING_TO_LEARN:
            others = ", ".join(other for other in STRATEGIES if other not in _NOTHING_TO_LEARN)
            raise OptionError(f"there is nothing to learn for the strategy {name!r}; name some of: {others}")


def calibrate(
    engine: Engine,
    prompts: Sequence[CalibrationPrompt],
    strategies: Sequence[str] = ("prune",),
    options: CalibrateOptions | None = None,
    *,
    progress: Progress = lambda done, total, label: None,
    say: Say = lambda text: None,
) -> Profile:
    """Learn about the engine's model on its device. The engine goes by the profile afterwards."""
    check_strategies(strategies)
    if not prompts:
        raise OptionError("calibration needs prompts; pass at least one")
    return _Calibration(engine, prompts, options or CalibrateOptions(), progress, say).run(strategies)


@dataclass
class _Calibration:
    engine: Engine
    prompts: Sequence[CalibrationPrompt]
    options: CalibrateOptions
    progress: Progress
    say: Say
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self._journals: list[Journal] = []
        self.budget = Budget(self.options.budget_seconds)
        self.key = self.engine.memory.key
        self.fitting, self.held_out = hold_out(self.prompts)
        is_slow = self.engine.device.type == "cpu"
        self.num_tokens = self.options.num_tokens or (USUAL_TOKENS_ON_CPU if is_slow else USUAL_TOKENS)
        self.question = {"prompts": digest(self.fitting), "num_tokens": self.num_tokens}

    def run(self, strategies: Sequence[str]) -> Profile:
        self._repair()
        self.latency = self._known_latency() or self._measure_latency()
        self._remember()
        are_complete = [self._learn(strategy) for strategy in dict.fromkeys(strategies)]
        if all(are_complete):  # until then the same question finds all of its answers
            for journal in self._journals:
                journal.finish()
        return self._remember()

    def _repair(self) -> None:
        if problem := self.store.repair(self.key):
            path = self.store.path_of(self.key)
            self.say(f"the profile {path} could not be used ({problem.__cause__}); it is made anew")

    def _remember(self) -> Profile:
        profile = self.store.load(self.key)
        assert profile is not None  # latency was kept
        self.engine.remember(profile)
        return profile

    # -------------------------------------------------------------------------------------------- latency

    def _known_latency(self) -> LatencyFit | None:
        profile = self.store.load(self.key)
        if profile is None or profile.latency is None or self.options.again:
            return None
        try:
            return LatencyFit.from_json(profile.latency)
        except (TypeError, LookupError, ValueError) as error:
            self.say(f"the profile's latency cannot be read ({type(error).__name__}: {error}); it is measured anew")
            return None

    def _measure_latency(self) -> LatencyFit:
        self.say("measuring what passes take")
        seconds = min(BUDGET_SECONDS, _SHARE_OF_LATENCY * self.options.budget_seconds)
        latency = measure(self.engine.runner, budget_seconds=seconds, progress=self.progress)
        self.store.set_latency(self.key, latency.to_json())
        return latency

    # -------------------------------------------------------------------------------------------- texts

    def _journal(self, name: str, **question: Any) -> Journal:
        journal = self.store.journal(self.key, name, {**self.question, **question})
        if self.options.again:
            journal.drop_all()
        self._journals.append(journal)
        return journal

    @cached_property
    def _texts_journal(self) -> Journal:
        return self._journal("texts")

    @cached_property
    def _looks(self) -> Looks:
        journal = self._texts_journal
        if not journal.done:
            self.say(f"letting the model continue {len(self.fitting)} prompts")
        texts = write_texts(self.engine, self.fitting, self.num_tokens, journal, self.progress)
        return Looks(self.engine.runner, texts)

    # -------------------------------------------------------------------------------------------- one strategy

    def _learn(self, name: str) -> bool:
        """Whether it is complete: else the journal is kept, to go on with."""
        journal = self._journal(name, strategy=name)
        values, points = self._fit(name, journal) if hasattr(find("strategy", name), "fit") else ({}, [])
        is_complete = bool(values.get("is_complete", True))
        if not is_complete and self._has_complete(name):
            self.say(f"{name}: time is up, and the profile keeps the complete result that it has; {GO_ON}")
            return False
        values = {**self._circumstances(), **values, "trials": []}
        self._keep(name, values)
        has_something = "frontier" not in values or any(point.skip for point in points)
        if has_something and self._trial_prompts:
            self._keep(name, {**values, "trials": self._trials.run(methods_of(name, points))})
        return is_complete

    def _circumstances(self) -> dict[str, Any]:
        texts = self._looks.texts
        return {
            "num_texts": len(texts),
            "num_tokens": sum(text.num_generated for text in texts),
            "domains": list(dict.fromkeys(prompt.domain for prompt in self.fitting)),
            "is_complete": True,
        }

    def _keep(self, name: str, values: Mapping[str, Any]) -> None:
        self.store.update(self.key, name, Artefact(values))
        self._remember()

    def _has_complete(self, name: str) -> bool:
        known = self._remember().artefacts.get(name)
        return known is not None and bool(known.values.get("is_complete"))

    def _fit(self, name: str, journal: Journal) -> tuple[dict[str, Any], list[FrontierPoint]]:
        """What it found, and its frontier, if it has one."""
        looks = self._looks
        deadline = self.budget.left(_SHARE_OF_FIT)
        kit = EngineKit(
            self.engine.runner, self.latency, looks, journal, deadline, partial(self._tell, f"fitting {name}, percent")
        )
        before = f", going on behind {len(kit.done)} steps" if kit.done else ""
        self.say(f"fitting {name}{before}, for at most {max(0, deadline):.0f} s")
        found = find("strategy", name).fit(kit)
        points = [FrontierPoint.from_json(point) for point in found.get("frontier", ())]
        looks.remember({point.skip: point.match for point in points})
        return {**found, "seconds": kit.seconds, "is_complete": not kit.is_out_of_time}, points

    def _tell(self, label: str, done: int, count: int) -> None:
        self.progress(done, count, label)

    # -------------------------------------------------------------------------------------------- trials

    @property
    def _trial_prompts(self) -> Sequence[CalibrationPrompt]:
        return self.held_out[: self.options.num_trial_prompts]

    @cached_property
    def _trials(self) -> Trials:
        return Trials(
            engine=self.engine,
            prompts=self._trial_prompts,
            latency=self.latency,
            match=self._looks.match,
            has_time=lambda: self.budget.left() > 0,
            progress=self.progress,
        )
