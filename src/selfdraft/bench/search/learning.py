"""What strategies know before they are measured: each learns on prompts of its own, within seconds of its own.

Texts that the model writes for a strategy are part of its seconds, however often others had them written. What was
learned is kept in a folder of profiles; asked the same again, it is read from there. The user's own profiles are
neither read nor written.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...calibrate.kit import EngineKit, Workshop
from ...calibrate.practice import practise
from ...calibrate.texts import digest
from ...economics import LatencyFit
from ...engine.engine import Engine
from ...errors import SelfdraftError
from ...fitting import CalibrationPrompt
from ...models.latency import measure
from ...profiles.profile import Artefact, Profile
from ...profiles.store import Store
from ...registry import find, options_for
from ..pace import Say, Told
from ..prompts import BenchPrompt, encode
from ..selection.calibration import journal
from ..selection.methods import Method
from .names import DRAFT_VERIFY, settings_of

_BENCH = "bench"
"""The artefact that says what was asked when the others were learned."""
LENGTHS = (64, 512, 2048)
"""Of the texts that passes are timed behind."""


@dataclass(frozen=True)
class Lesson:
    """`name`: of its row; `method`: the strategy, and how it is set."""

    name: str
    method: Method
    prompts: Sequence[BenchPrompt]
    seconds: float
    num_tokens: int

    @property
    def strategy(self) -> str:
        return str(self.method["strategy"])


@dataclass(frozen=True)
class Facts:
    """What learning took and saw. `num_steps`: skip sets that were tried, or points that were found."""

    strategy: str
    allowed_seconds: float
    seconds: float
    num_prompts: int
    num_steps: int | None
    is_complete: bool
    is_known: bool = False  # read, not learned now
    error: str | None = None


def as_calibration(prompts: Sequence[BenchPrompt], engine: Engine) -> list[CalibrationPrompt]:
    return [CalibrationPrompt(one.id, one.domain, tuple(encode(one, engine))) for one in prompts]


class School:
    """Where strategies learn; `store` keeps what they learned, and the seconds of passes."""

    def __init__(self, engine: Engine, store: Store, say: Say) -> None:
        self._engine, self._store, self._say = engine, store, say
        self._key = engine.knowledge.key
        self.facts: dict[str, Facts] = {}

    @property
    def profile(self) -> Profile:
        found = self._store.load(self._key)
        assert found is not None  # latency comes first
        return found

    @property
    def latency(self) -> LatencyFit:
        return LatencyFit.from_json(self.profile.latency or {}, self._engine.runner.num_layers)

    def time_passes(self, seconds: float) -> None:
        """Unless it is known."""
        profile = self._store.load(self._key)
        if profile is None or profile.latency is None:
            self._say("measuring what passes take")
            told = Told(self._say, "latency")
            self.take_latency(measure(self._engine.runner, LENGTHS, seconds, told))

    def take_latency(self, latency: LatencyFit) -> None:
        self._store.set_latency(self._key, latency.to_json())

    def learn(self, lesson: Lesson) -> None:
        if self.knows(lesson):
            self._say(f"{lesson.name}: what was learned before is used")
            self.facts[lesson.name] = Facts(**{**self._lessons[lesson.name]["facts"], "is_known": True})
            return
        self._say(f"{lesson.name} learns, for at most {lesson.seconds:.0f} s")
        began = self._engine.runner.seconds()
        try:
            found = self._find(lesson, as_calibration(lesson.prompts, self._engine))
        except SelfdraftError as error:  # what cannot be learned is left out, the others are measured
            self._say(f"{lesson.name} learned nothing: {error}")
            seconds, count = self._engine.runner.seconds() - began, len(lesson.prompts)
            self.facts[lesson.name] = Facts(
                lesson.strategy, lesson.seconds, seconds, count, None, False, error=str(error)
            )
            return
        self._keep(lesson, found, self._engine.runner.seconds() - began)

    def knows(self, lesson: Lesson) -> bool:
        """Whether it has learned just that."""
        known = self._lessons.get(lesson.name)
        is_there = lesson.strategy in self.profile.artefacts
        return is_there and known is not None and known["question"] == self._question(lesson)

    def _question(self, lesson: Lesson) -> dict[str, Any]:
        return {
            "prompts": digest(as_calibration(lesson.prompts, self._engine)),
            "tokens": lesson.num_tokens,
            "seconds": lesson.seconds,
            "settings": settings_of(lesson.method),
        }

    def _keep(self, lesson: Lesson, found: Mapping[str, Any], seconds: float) -> None:
        facts = Facts(
            lesson.strategy,
            lesson.seconds,
            seconds,
            len(lesson.prompts),
            num_steps(_of_lesson(lesson, found)),
            bool(found["is_complete"]),
        )
        self._store.update(self._key, lesson.strategy, Artefact.of(found))
        answer = {"question": self._question(lesson), "facts": asdict(facts)}
        lessons = {**self._lessons, lesson.name: answer}
        self._store.update(self._key, _BENCH, Artefact({"lessons": lessons}))
        self.facts[lesson.name] = facts
        self._say(f"{lesson.name}: {facts.num_steps} steps in {seconds:.0f} s")

    @property
    def _lessons(self) -> Mapping[str, Any]:
        artefact = self.profile.artefacts.get(_BENCH)
        return artefact.values["lessons"] if artefact else {}

    def _find(self, lesson: Lesson, prompts: Sequence[CalibrationPrompt]) -> dict[str, Any]:
        kind, settings = find("strategy", lesson.strategy), settings_of(lesson.method)
        engine = self._engine.fork(replace(self.profile, artefacts={}))
        has_time = _clock(lesson.seconds)
        if not hasattr(kind, "fit"):
            told = Told(self._say, lesson.name)
            return practise(engine, lesson.strategy, settings, prompts, has_time=has_time, progress=told)
        with tempfile.TemporaryDirectory() as folder:
            told, pages = Told(self._say, lesson.name), partial(journal, Store(Path(folder)), self._key)
            workshop = Workshop(engine, self.latency, lesson.num_tokens, pages, told)
            kit = EngineKit(
                workshop,
                prompts,
                lambda: workshop.write(prompts),
                workshop.journal(lesson.name),
                lesson.seconds,
                f"fitting {lesson.name}",
                self._known(lesson.strategy),
            )
            found = kind.fit(kit, options_for("strategy", lesson.strategy, settings))
        return {**found, "is_complete": bool(found.get("is_complete", True)) and not kit.is_out_of_time}

    def _known(self, strategy: str) -> Mapping[str, Any] | None:
        """What the fit must keep: of `draft-verify` the set for other prompts."""
        artefact = self.profile.artefacts.get(strategy)
        return artefact.content if artefact and strategy == DRAFT_VERIFY else None

    def figures(self) -> dict[str, Any]:
        return {name: asdict(facts) for name, facts in self.facts.items()}


def _clock(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _of_lesson(lesson: Lesson, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of `draft-verify`, the one set that this lesson was about."""
    which = settings_of(lesson.method).get(DRAFT_VERIFY, {}).get("calibrate_on")
    return {"sets": {which: found["sets"][which]}} if which and "sets" in found else found


def num_steps(found: Mapping[str, Any] | None) -> int | None:
    """Points of a frontier, sets that were tried, steps of a search; of several domains all of them."""
    if found is None:
        return None
    if "frontier" in found:
        return sum(bool(point["skip"]) for point in found["frontier"])
    if "sets" in found:
        return sum(int(one["num_tried"]) for one in found["sets"].values())
    if "domains" in found:
        parts = [num_steps(domain["found"]) for domain in found["domains"]]
        return sum(count or 0 for count in (*parts, num_steps(found.get("general"))))
    steps: int | None = found.get("step")
    return steps
