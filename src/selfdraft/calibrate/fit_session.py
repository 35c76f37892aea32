"""Fitting strategies: a session's engine, texts and journals, and the kit that one fit gets of them (fitting.Kit).

A strategy with a `fit` is fitted to texts that the model wrote. One that learns while it generates practises: it
generates until it has learned enough or time is up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any

import torch

from ..economics import LatencyFit
from ..engine.engine import Engine
from ..engine.state import State, TextSequence, prefill
from ..errors import OptionError
from ..fitting import Condense
from ..measure.figures import Measured
from ..measure.run import MeasurePlan, run_whole
from ..options import Settings
from ..profiles.journal import Journal
from ..profiles.key import ProfileKey
from ..profiles.profile import Artefact
from ..profiles.store import Store
from ..progress import Progress, Say, no_progress
from ..prompts.arrange import digest
from ..protocols import Probe, Runner
from ..registry import find, options_for
from ..strategies.base import PlainStrategy
from ..strategies.elimination import qualities, sample
from ..types import FrontierPoint, Prompt, SkipSet
from .texts import Text, probe_text, write_texts

PRACTICE_TOKENS = 128
_STATE = "state"
_FEWER_TOKENS = 2
"""A fit inside a fit has texts of N times fewer tokens."""


@dataclass(frozen=True)
class Budget:
    """Seconds from now on."""

    seconds: float
    began: float = field(default_factory=lambda: monotonic())

    def left(self, share: float = 1.0) -> float:
        """Of the first `share` of it."""
        return share * self.seconds - (monotonic() - self.began)


class ScoredTexts:
    """The calibration texts as strategies are judged by them; read into caches when first asked for."""

    def __init__(self, runner: Runner, texts: Sequence[Text]) -> None:
        self._runner, self.texts = runner, texts
        self._matches: dict[SkipSet, float] = {SkipSet(): 1.0}

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe_text(text, self._runner) for text in self.texts)

    def match(self, skip: SkipSet) -> float:
        """How often the sub-network makes the target's choice."""
        if skip not in self._matches:
            samples = [sample(probe) for probe in self.probes]
            self._matches[skip] = qualities(samples, skip.numbers)[0].match
        return self._matches[skip]

    def remember(self, matches: Mapping[SkipSet, float]) -> None:
        """What a fit has found anyway."""
        self._matches.update(matches)


@dataclass(frozen=True)
class FitSession:
    """What fits share. `journal(name, **question)`: where steps are kept as they are done.

    `text_tokens`: new ones of each text that a strategy practises with.
    """

    engine: Engine
    num_tokens: int
    journal: Callable[..., Journal]
    progress: Progress = no_progress
    text_tokens: int = PRACTICE_TOKENS
    say: Say = lambda text: None

    @property
    def latency(self) -> LatencyFit:
        return self.engine.knowledge.latency()

    def write(self, prompts: Sequence[Prompt], num_tokens: int | None = None, name: str = "texts") -> ScoredTexts:
        """What the model says after them, `num_tokens` in all; each text is written once."""
        num_tokens = num_tokens or self.num_tokens
        journal = self.journal(name, texts=digest(prompts), tokens_of_texts=num_tokens)
        return ScoredTexts(self.engine.runner, write_texts(self.engine, prompts, num_tokens, journal, self.progress))

    def fit(
        self,
        strategy: str,
        settings: Settings,
        prompts: Sequence[Prompt],
        seconds: float,
        *,
        name: str | None = None,
        known: Mapping[str, Any] | None = None,
        texts: ScoredTexts | None = None,
    ) -> dict[str, Any]:
        """What it found, `is_complete` and `seconds` among it; `known`: what the profile has of it already."""
        kind, name = find("strategy", strategy), name or strategy
        options = options_for("strategy", strategy, settings)
        journal = self.journal(name, strategy=strategy, options=repr(options))
        if not kind.can_fit:
            self.say(f"practising {name}, for at most {seconds:.0f} s")
            return self._practise(strategy, settings, prompts, Budget(seconds), journal)
        write = (lambda: texts) if texts is not None else (lambda: self.write(prompts))
        kit = EngineKit(self, prompts, write, journal, seconds, f"fitting {name}", known)
        before = f", going on after {len(kit.done)} steps" if kit.done else ""
        self.say(f"fitting {name}{before}, for at most {seconds:.0f} s")
        found = kind.fit(kit, options)
        if texts is not None:
            points = [FrontierPoint.from_json(point) for point in found.get("frontier", ())]
            texts.remember({point.skip: point.match for point in points})
        is_complete = bool(found.get("is_complete", True)) and not kit.is_out_of_time
        return {**found, "seconds": kit.seconds, "is_complete": is_complete}

    def _practise(
        self, name: str, settings: Settings, prompts: Sequence[Prompt], budget: Budget, journal: Journal
    ) -> dict[str, Any]:
        """Its state at the end. It goes on from what the journal or the engine's profile knows, prompt after prompt.

        All of the time may be spent on learning: its `practice` options see to it. What it knows is noted after every
        text, so that an interruption costs at most one.
        """
        profile = self.engine.knowledge.profile
        if profile is not None and _STATE in journal.done:
            self.engine.remember(replace(profile, artefacts={**profile.artefacts, name: journal.done[_STATE]}))
        own = {**settings.get(name, {}), **find("strategy", name).practice}
        method = {"strategy": name, "settings": {**settings, name: own}}
        strategy: Any = self.engine.method(**method).strategy
        num_idle, progressed = 0, strategy.progress

        def is_over() -> bool:
            return strategy.is_settled or budget.left() <= 0

        for prompt in itertools.cycle(prompts):
            if is_over() or num_idle >= len(prompts):
                break
            self.engine.generate(prompt.tokens, max_new_tokens=self.text_tokens, cancel=is_over, **method)
            num_idle = 0 if strategy.progress != progressed else num_idle + 1  # texts may be too short to learn from
            progressed = strategy.progress
            journal.record(_STATE, Artefact.of({**strategy.state(), "is_complete": strategy.is_settled}))
            self.progress(round(100 * strategy.progress), 100, f"practising {name}, percent")
        return {**strategy.state(), "is_complete": strategy.is_settled}


def take_turns(
    engine: Engine,
    methods: Mapping[str, Mapping[str, Any]],
    prompts: Sequence[Prompt],
    num_tokens: int,
    seconds: float,
    progress: Progress = no_progress,
) -> Measured:
    """Methods by name and plain decoding, prompt by prompt; when `seconds` are over, no other prompt is begun."""
    plan = MeasurePlan(prompts, methods, max_new_tokens=num_tokens, seconds=seconds)
    found = run_whole(engine, plan, progress)
    for arm in found.arms:
        if arm.error:
            raise OptionError(f"{arm.name} cannot run: {arm.error}")
    return found.all_of


def repair(store: Store, key: ProfileKey, say: Say) -> None:
    """What cannot be written to is found out before it costs any time."""
    if problem := store.repair(key):
        say(f"the profile {store.path_of(key)} could not be used ({problem.__cause__}); it is made again")


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


class EngineKit:
    """One fit. `is_out_of_time` once it was told so; `seconds` counts what earlier, interrupted runs took as well."""

    def __init__(
        self,
        session: FitSession,
        prompts: Sequence[Prompt],
        texts: Callable[[], ScoredTexts],
        journal: Journal,
        deadline: float,
        label: str,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """`deadline`: seconds from now. `texts`: after the prompts, written when first asked for."""
        self._session, self.prompts, self._write = session, prompts, texts
        self._journal, self._label = journal, label
        self.known = known or {}
        self._began, self._deadline = monotonic(), monotonic() + deadline
        self._seconds_before = max((kept.values["seconds"] for kept in journal.done.values()), default=0.0)
        self._share = 0.0
        self.is_out_of_time = False

    @property
    def num_layers(self) -> int:
        return self._session.engine.runner.num_layers

    @property
    def latency(self) -> LatencyFit:
        return self._session.latency

    @cached_property
    def texts(self) -> ScoredTexts:
        return self._write()

    @property
    def probes(self) -> Sequence[Probe]:
        return self.texts.probes

    def hidden(self, prompt: Prompt, points: Sequence[str], condense: Condense) -> Mapping[str, torch.Tensor]:
        runner, caught = self._session.engine.runner, _Caught(points, condense)
        state = State([TextSequence(0, list(prompt.tokens), 1)], runner.new_cache(1, len(prompt.tokens)))
        prefill(runner, state, caught)
        return caught.found

    def tokens_per_second(self, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int) -> float:
        engine = self._session.engine
        recorded_before = engine.runner.capture_seconds
        stats = [engine.generate(prompt.tokens, max_new_tokens=num_tokens, **method).stats for prompt in prompts]
        seconds = sum(one.decode_seconds for one in stats) - (engine.runner.capture_seconds - recorded_before)
        return sum(one.num_tokens for one in stats) / max(seconds, 1e-9)

    def among(self, prompts: Sequence[Prompt], name: str, share: float) -> EngineKit:
        journal = self._session.journal(name, inside=self._label, prompts_inside=digest(prompts))
        seconds = share * (self._deadline - monotonic())
        num_tokens = max(1, self._session.num_tokens // _FEWER_TOKENS)

        def write() -> ScoredTexts:
            return self._session.write(prompts, num_tokens, f"texts of {name}")

        return EngineKit(self._session, prompts, write, journal, seconds, f"fitting {name}")

    @property
    def done(self) -> Sequence[Mapping[str, Any]]:
        """Without gaps from the first on."""
        kept = self._journal.done
        found: list[Mapping[str, Any]] = []
        while (step := _name(len(found))) in kept:
            found.append(kept[step].values["found"])
        return found

    def keep(self, found: Mapping[str, Any]) -> None:
        self._journal.record(_name(len(self.done)), Artefact({"found": found, "seconds": self.seconds}))

    @property
    def seconds(self) -> float:
        return self._seconds_before + monotonic() - self._began

    def has_time(self) -> bool:
        self.is_out_of_time = monotonic() >= self._deadline
        return not self.is_out_of_time

    def progress(self, share: float) -> None:
        self._share = max(self._share, share)  # an estimate may take something back, a bar may not
        self._session.progress(round(100 * self._share), 100, f"{self._label}, percent")


class _Caught(PlainStrategy):
    """Sees a prompt as a strategy would, and keeps it."""

    def __init__(self, points: Sequence[str], condense: Condense) -> None:
        self.prefill_needs, self._condense = tuple(points), condense
        self.found: Mapping[str, torch.Tensor] = {}

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return self._condense(captured)

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self.found = prefill

    def plan(self, sequence_id: int, context: Any) -> Any:
        raise AssertionError("nothing is generated")


def _name(number: int) -> str:
    """Of a step, in the order of the alphabet."""
    return f"{number:06d}"
