"""What experiments measure with: an engine, prompts by task, ways that take turns, methods that learn beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...economics import LatencyFit
from ...engine.engine import Engine
from ...profiles.key import as_file_name
from ...profiles.profile import Artefact, Profile
from ...profiles.store import Store
from ..harness.plan import BenchPlan
from ..harness.records import TextRecord
from ..harness.run import MethodBench
from ..prompts import BenchPrompt
from ..search.learning import Lesson, School
from .recipe import Unit, Values
from .scale import Scale
from .tasks import Task, Tasks

Methods = Mapping[str, Mapping[str, Any]]
_FIGURES = (
    *("num_prompts", "num_tokens", "decode_seconds", "tokens_per_second", "speedup", "call_speedup"),
    *("acceptance_rate", "mean_generated_length", "skipped_attention", "skipped_mlp", "cost_measured", "expected"),
    *("split", "capture_seconds", "equal", "tie", "different"),
)
LATENCY_SECONDS = 20.0


@dataclass(frozen=True)
class Learned:
    """What a strategy knows: its artefact, and `facts` of learning it: seconds, num_steps, is_complete, error."""

    strategy: str
    facts: Mapping[str, Any]
    artefacts: Mapping[str, Artefact]

    @property
    def values(self) -> Mapping[str, Any]:
        """Of its artefact; nothing where it learned nothing."""
        found = self.artefacts.get(self.strategy)
        return found.values if found else {}


@dataclass
class Workbench:
    """`folder`: of lessons, apart from the user's own profiles; an interrupted run has them again."""

    engine: Engine
    prompts: Sequence[BenchPrompt]
    scale: Scale
    folder: Path
    seed: int = 0
    say: Callable[[str], None] = lambda text: None
    _failed: dict[str, Learned] = field(default_factory=dict)

    # -------------------------------------------------------------------------------------------------- prompts

    @cached_property
    def tasks(self) -> Tasks:
        return Tasks(self.prompts, self.scale.prompts, self.scale.learned_prompts, self.seed)

    def for_each(self, names: Sequence[str], measure: Callable[[Task], Values], prefix: str = "") -> list[Unit]:
        """A unit per task; of one without prompts why."""
        units = []
        for name in names:
            task = self.tasks.find(name)
            if task is None:
                units.append(Unit(prefix + name, missing=self.tasks.why_missing(name)))
            else:
                units.append(Unit(prefix + name, partial(measure, task)))
        return units

    # -------------------------------------------------------------------------------------------------- lessons

    @cached_property
    def _base(self) -> School:
        """Knows what passes take, and nothing else."""
        school = School(self.engine, Store(self.folder / "latency"), self.say)
        school.time_passes(min(LATENCY_SECONDS, self.scale.lesson_seconds))
        return school

    @property
    def latency(self) -> LatencyFit:
        return self._base.latency

    def apart(self) -> Engine:
        """An engine that knows what passes take and nothing else; what it learns stays its own."""
        return self.engine.fork(replace(self._base.profile, artefacts={}))

    def learn(
        self,
        name: str,
        method: Mapping[str, Any],
        prompts: Sequence[BenchPrompt],
        seconds: float | None = None,
        num_tokens: int | None = None,
    ) -> Learned:
        """Let a strategy learn from prompts that are not measured; asked the same again, it is read.

        `name` tells the lessons of one strategy apart; `seconds`, `num_tokens`: other than those of the scale. Raises
        nothing: what could not be learned has an `error`, and is not tried again in this run.
        """
        allowed = self.scale.lesson_seconds if seconds is None else seconds
        lesson = Lesson(name, dict(method), prompts, allowed, num_tokens or self.scale.lesson_tokens)
        if repr(lesson) in self._failed:
            return self._failed[repr(lesson)]
        school = School(self.engine, Store(self.folder / as_file_name(name)), self.say)
        school.take_latency(self.latency)
        school.learn(lesson)
        learned = Learned(lesson.strategy, asdict(school.facts[name]), school.profile.artefacts)
        if learned.facts["error"]:
            self._failed[repr(lesson)] = learned
        return learned

    def profile(self, knows: Sequence[Learned] = ()) -> Profile:
        """What passes take, and these lessons."""
        artefacts = {name: found for learned in knows for name, found in learned.artefacts.items()}
        return replace(self._base.profile, artefacts=artefacts)

    # ------------------------------------------------------------------------------------------------ measuring

    def compare(self, methods: Methods, prompts: Sequence[BenchPrompt], **asked: Any) -> dict[str, Any]:
        """The figures of `compare_texts` alone."""
        return self.compare_texts(methods, prompts, **asked)[0]

    def compare_texts(
        self,
        methods: Methods,
        prompts: Sequence[BenchPrompt],
        *,
        knows: Sequence[Learned] = (),
        tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
    ) -> tuple[dict[str, Any], list[TextRecord]]:
        """Figures of each way (by row name, `off` among them): `total`, and by domain; all take turns on each prompt.

        And the record of every text, for what follows a stream. `knows`: what their strategies learned.
        """
        plan = BenchPlan(
            prompts=_with_own_ids(prompts),
            methods=methods,
            max_new_tokens=tokens or self.scale.tokens,
            temperature=temperature,
            top_p=top_p,
            seed=self.seed,
        )
        self.engine.remember(self.profile(knows))
        bench = MethodBench(self.engine, plan)
        ways = bench.run()["ways"]
        return {way["name"]: _slim(way) for way in ways}, bench.records


def _with_own_ids(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """A stream may have a prompt twice."""
    met: dict[str, itertools.count[int]] = {}
    named = []
    for prompt in prompts:
        number = next(met.setdefault(prompt.id, itertools.count(1)))
        named.append(prompt if number == 1 else replace(prompt, id=f"{prompt.id}-{number}"))
    return named


def _slim(way: Mapping[str, Any]) -> dict[str, Any]:
    """What tables are made of; of a way that could not run the reason."""
    if "total" not in way:
        return {"error": way.get("error") or "it was not measured"}
    domains = {domain: _figures(found) for domain, found in way["domains"].items()}
    return {"total": _figures(way["total"]), "domains": domains, "skips": way["skips"]}


def _figures(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in _FIGURES}


def num_compared(values: Any) -> int:
    """Outputs that were compared with plain decoding: those of whole units, not once more by domain."""
    if isinstance(values, Mapping):
        total = values.get("total")
        if isinstance(total, Mapping) and "equal" in total:
            return sum(int(total[verdict]) for verdict in ("equal", "tie", "different"))
        return sum(map(num_compared, values.values()))
    return sum(map(num_compared, values)) if isinstance(values, list | tuple) else 0


def num_different(values: Any) -> int:
    """Outputs that were not those of plain decoding, anywhere in what units found."""
    if isinstance(values, Mapping):
        own = values.get("different", 0)
        return (own if isinstance(own, int) else 0) + sum(num_different(one) for one in values.values())
    return sum(map(num_different, values)) if isinstance(values, list | tuple) else 0
