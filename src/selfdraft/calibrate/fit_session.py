"""Fitting strategies: a session's engine, texts and journals, and the kit that one fit gets of them (fitting.Kit).

A strategy with a `fit` is fitted to texts that the model wrote. One that learns while it generates practises: it
generates until it has learned enough or time is up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from ..engine.engine import Engine
from ..engine.prefill import read_prompt
from ..fitting import Condense
from ..options import Settings
from ..profiles.journal import Journal
from ..profiles.key import ProfileKey
from ..profiles.profile import Artefact
from ..profiles.store import Store
from ..progress import Budget, Progress, Say, Steps, no_progress
from ..prompts.arrange import digest
from ..protocols import Probe, Runner
from ..registry import find, in_use, options_for
from ..strategies.base import PlainStrategy
from ..strategies.elimination import qualities, sample
from ..types import FrontierPoint, Generation, Prompt, SkipSet
from .writing import ALWAYS, HasTime, Text, probe_text, to_continue, write_texts

PRACTICE_TOKENS = 256
_STATE = "state"


class ScoredTexts:
    """The calibration texts, read into caches when first asked for. `are_whole`: time cut none, and left none out."""

    def __init__(self, runner: Runner, texts: Sequence[Text], are_whole: bool = True) -> None:
        self._runner, self.texts, self.are_whole = runner, texts, are_whole
        self.matches: dict[SkipSet, float] = {SkipSet(): 1.0}  # known so far

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe_text(text, self._runner) for text in self.texts)

    def match(self, skip: SkipSet) -> float:
        """How often the sub-network makes the target's choice."""
        if skip not in self.matches:
            self.matches[skip] = qualities([sample(probe) for probe in self.probes], skip.numbers)[0].match
        return self.matches[skip]


@dataclass(frozen=True)
class FitSession:
    """What fits share. `journal(name, **question)`: where steps are kept as they are done."""

    engine: Engine
    num_tokens: int
    journal: Callable[..., Journal]
    progress: Progress = no_progress
    text_tokens: int = PRACTICE_TOKENS  # new ones of each text that a strategy practises with
    say: Say = lambda text: None

    def write(self, prompts: Sequence[Prompt], name: str = "texts", has_time: HasTime = ALWAYS) -> ScoredTexts:
        """What the model says after them, `num_tokens` in all; each text is written once."""
        journal = self.journal(name, texts=digest(prompts), tokens_of_texts=self.num_tokens)
        texts = write_texts(self.engine, prompts, self.num_tokens, journal, self.progress, has_time)
        are_whole = len(journal.done) == len(to_continue(prompts, self.num_tokens))
        return ScoredTexts(self.engine.runner, texts, are_whole)

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
        cut = {} if texts is None or texts.are_whole else {"cut": [text.num_generated for text in texts.texts]}
        journal = self.journal(name, strategy=strategy, options=repr(options), **cut)
        if not kind.can_fit:
            self.say(f"practising {name}, for at most {seconds:.0f} s")
            return self._practise(strategy, settings, prompts, Budget(seconds), journal)
        write = partial(self.write, prompts) if texts is None else lambda has_time: texts
        kit = EngineKit(self, prompts, write, journal, seconds, f"fitting {name}", known)
        before = f", going on after {len(kit.done)} steps" if kit.done else ""
        self.say(f"fitting {name}{before}, for at most {seconds:.0f} s")
        found = kind.fit(kit, options)
        if texts is not None:
            points = [FrontierPoint.from_json(point) for point in found.get("frontier", ())]
            texts.matches.update({point.skip: point.match for point in points})
        is_complete = bool(found.get("is_complete", True)) and not (kit.is_out_of_time or cut)
        return {**found, "seconds": kit.seconds, "is_complete": is_complete}

    def _practise(
        self, name: str, settings: Settings, prompts: Sequence[Prompt], budget: Budget, journal: Journal
    ) -> dict[str, Any]:
        """Its state at the end. It goes on from what the journal or the engine's profile knows, prompt after prompt.

        All of the time may be spent on learning (its `practice` options); an interruption costs at most one text.
        """
        profile = self.engine.knowledge.profile
        if profile is not None and _STATE in journal.done:
            self.engine.remember(replace(profile, artefacts={**profile.artefacts, name: journal.done[_STATE]}))
        own = {**settings.get(name, {}), **find("strategy", name).practice}
        method = in_use({"strategy": name, "settings": {**settings, name: own}})
        strategy: Any = self.engine.method(**method).strategy
        num_idle, waiting = 0, itertools.cycle(prompts)

        def is_over() -> bool:
            return strategy.is_settled or budget.left() <= 0

        while not is_over() and num_idle < len(prompts):
            before = strategy.progress
            self.engine.generate(next(waiting).tokens, max_new_tokens=self.text_tokens, cancel=is_over, **method)
            num_idle = 0 if strategy.progress != before else num_idle + 1  # texts may be too short to learn from
            journal.record(_STATE, Artefact.of({**strategy.state(), "is_complete": strategy.is_settled}))
            self.progress(round(100 * strategy.progress), 100, f"practising {name}, percent")
        return {**strategy.state(), "is_complete": strategy.is_settled}


def repair(store: Store, key: ProfileKey, say: Say) -> None:
    """What cannot be written to is found out before it costs any time."""
    if problem := store.repair(key):
        say(f"the profile {store.path_of(key)} could not be used ({problem.__cause__}); it is made again")


class EngineKit:
    """One fit. `is_out_of_time` once it was told so; `seconds` counts what earlier, interrupted runs took as well."""

    def __init__(
        self,
        session: FitSession,
        prompts: Sequence[Prompt],
        texts: Callable[..., ScoredTexts],
        journal: Journal,
        seconds: float,
        label: str,
        known: Mapping[str, Any] | None = None,
        others: Sequence[SkipSet] = (),
    ) -> None:
        """`texts(has_time=...)`: after the prompts, written when first asked for."""
        self._session, self.prompts, self._write = session, prompts, texts
        self._journal, self._label, self._budget = journal, label, Budget(seconds)
        self.known, self.others, self.latency = known or {}, others, session.engine.knowledge.latency()
        self._seconds_before = max((kept.values["seconds"] for kept in journal.done.values()), default=0.0)
        self._share, self._steps, self.is_out_of_time = 0.0, Steps(self._budget), False

    @cached_property
    def probes(self) -> Sequence[Probe]:
        return self._write(has_time=self.has_time).probes

    def hidden(self, prompt: Prompt, points: Sequence[str], condense: Condense) -> Mapping[str, torch.Tensor]:
        runner, caught = self._session.engine.runner, _Caught(points, condense)
        read_prompt(runner, caught, 0, prompt.tokens)
        return caught.found

    def tokens_per_second(self, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int) -> float:
        """Where time is up, of a few rounds."""
        engine, rounds, stats = self._session.engine, itertools.count(), []

        def is_over() -> bool:
            return self._budget.left() <= 0 and next(rounds) >= 4

        for prompt in prompts:
            written: Generation = engine.generate(prompt.tokens, max_new_tokens=num_tokens, cancel=is_over, **method)
            stats.append(written.stats)
            if self._budget.left() <= 0:
                break
        seconds = sum(one.decode_seconds - one.record_seconds for one in stats)
        return sum(one.num_tokens for one in stats) / max(seconds, 1e-9)

    def among(self, prompts: Sequence[Prompt], name: str, share: float, others: Sequence[SkipSet] = ()) -> EngineKit:
        journal = self._session.journal(name, inside=self._journal.question, prompts_inside=digest(prompts))
        write = partial(self._session.write, prompts, name=f"texts of {name}")
        seconds, label = share * self._budget.left(), f"fitting {name}"
        return EngineKit(self._session, prompts, write, journal, seconds, label, others=others)

    @property
    def done(self) -> Sequence[Mapping[str, Any]]:
        """Without gaps from the first on."""
        kept = self._journal.done
        names = itertools.takewhile(kept.__contains__, map(_name, itertools.count()))
        return [kept[name].values["found"] for name in names]

    def keep(self, found: Mapping[str, Any]) -> None:
        self._journal.record(_name(len(self.done)), Artefact({"found": found, "seconds": self.seconds}))

    @property
    def seconds(self) -> float:
        return self._seconds_before + self._budget.spent

    def has_time(self, expected: float | None = None) -> bool:
        has_time = self._steps.has_time(expected)
        self.is_out_of_time |= not has_time  # a shorter step may be begun, but something was left out
        return has_time

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
