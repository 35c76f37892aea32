"""Calibration: measure latency, fit the strategies, try them, and keep all of it in the profile.

Each result is kept at once: steps of a fit in a journal, whole fits in the profile. So whatever ends a calibration
costs at most one step, and asking the same again goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from ..economics import LatencyFit
from ..engine.engine import Engine
from ..errors import OptionError
from ..measure.cores import Watch
from ..measure.figures import Figures, Measured
from ..measure.records import OFF, Record
from ..measure.run import WARM_UP_TOKENS, MeasurePlan, run_whole
from ..models.latency import BUDGET_SECONDS, check_budget, measure
from ..options import Settings, setting
from ..profiles.journal import Journal
from ..profiles.profile import Artefact, Profile, as_json
from ..profiles.store import Store
from ..progress import Budget, Progress, Say, Steps, no_progress
from ..prompts.arrange import digest, hold_out, in_turn
from ..registry import STRATEGIES, check_settings, find, in_use, options_for, resolve, settings_of
from ..types import FrontierPoint, Prompt, SkipSet
from .fit_session import FitSession, ScoredTexts, repair
from .writing import to_continue

# Of the budget: what measuring passes may take; when texts, fits and trials must be over.
_SHARE_OF_LATENCY, _SHARE_OF_TEXTS, _SHARE_OF_FIT, _SHARE_OF_TRIALS = 0.2, 0.5, 0.8, 0.95
_LEAST_TRIAL_TOKENS = 16
_OVERRUN = 0.1  # of the budget: what is told
USUAL_TOKENS, USUAL_TOKENS_ON_CPU = 2048, 512
GO_ON = "the same command with a larger --budget goes on from there"
_NOTHING_TO_LEARN = ("off", "fixed")
TRIAL_TOKENS = 128  # of each text
_NUM_SETS = 4  # of a frontier, that are tried beside the strategy itself

Item = TypeVar("Item")


@dataclass(frozen=True)
class CalibrateOptions:
    """`num_tokens`: to fit to, None: as many as the device is good for. `num_trial_prompts`: how many of the prompts
    held out to try with, None: all. `again`: whatever is there. `settings`: of the strategies, as in `Engine`.
    """

    budget_seconds: float = 1200.0
    num_tokens: int | None = setting(None, "to fit to", minimum=1)
    num_trial_prompts: int | None = setting(None, "to try with", minimum=0)
    again: bool = False
    settings: Settings = field(default_factory=dict)


def check_strategies(strategies: Sequence[str]) -> None:
    """Raise where there is nothing to calibrate."""
    for name in strategies:
        find("strategy", name)
        if name in _NOTHING_TO_LEARN:
            others = ", ".join(other for other in STRATEGIES if other not in _NOTHING_TO_LEARN)
            raise OptionError(f"there is nothing to learn for the strategy {name!r}; name some of: {others}")


def calibrate(
    engine: Engine,
    prompts: Sequence[Prompt],
    strategies: Sequence[str] = ("prune",),
    options: CalibrateOptions | None = None,
    *,
    progress: Progress = no_progress,
    say: Say = lambda text: None,
) -> Profile:
    """Learn about the engine's model on its device. The engine goes by the profile afterwards."""
    options = options or CalibrateOptions()
    check_strategies(strategies)
    check_settings(options.settings)
    if not prompts:
        raise OptionError("calibration needs prompts; pass at least one")
    return _Calibration(engine, prompts, options, progress, say).run(strategies)


@dataclass
class _Calibration:
    engine: Engine
    prompts: Sequence[Prompt]
    options: CalibrateOptions
    progress: Progress
    say: Say
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self._journals: list[Journal] = []
        self.budget, self.watch = Budget(self.options.budget_seconds), Watch()
        self.progress = self.watch.beside(self.progress, self.engine.device)
        self.key = self.engine.knowledge.key
        fitting, held_out = hold_out(self.prompts)
        is_slow = self.engine.device.type == "cpu"
        self.num_tokens = self.options.num_tokens or (USUAL_TOKENS_ON_CPU if is_slow else USUAL_TOKENS)
        self.fitting = shortest_first(in_turn(fitting), self.num_tokens)
        self.trial_prompts = held_out[: self.options.num_trial_prompts]
        self.question = {"prompts": digest(self.fitting), "num_tokens": self.num_tokens}

    def run(self, strategies: Sequence[str]) -> Profile:
        repair(self.store, self.key, self.say)
        self.latency = self._find_latency()
        self._remember()
        names = list(dict.fromkeys(strategies))
        are_complete = [self._learn(name, names[number:]) for number, name in enumerate(names)]
        if all(are_complete):  # until then the same question finds all of its answers
            for journal in self._journals:
                journal.finish()
        self._tell_overrun()
        return self._remember()

    def _tell_overrun(self) -> None:
        over = -self.budget.left()
        if over > _OVERRUN * self.budget.seconds and "_texts" in vars(self):
            longest = max(self._texts.texts, key=lambda text: text.read_seconds)
            prompt = f"a prompt of {longest.num_prompt_tokens} tokens takes {longest.read_seconds:.1f} s to read"
            self.say(f"that took {over:.0f} s more than the budget ({prompt}). Give more, or shorter prompts")

    def _remember(self) -> Profile:
        profile = self.store.load(self.key)
        assert profile is not None  # latency was kept
        self.engine.remember(profile)
        return profile

    def _find_latency(self) -> LatencyFit:
        profile = self.store.load(self.key)
        if profile is not None and profile.latency is not None and not self.options.again:
            try:
                return LatencyFit.from_json(profile.latency, self.engine.runner.num_layers)
            except (TypeError, LookupError, ValueError) as error:
                cause = f"{type(error).__name__}: {error}"
                self.say(f"the profile's latency cannot be read ({cause}); it is measured again")
        self.say("measuring what passes take")
        check_budget(self.engine.runner, self.budget.left())
        seconds = min(BUDGET_SECONDS, _SHARE_OF_LATENCY * self.budget.left())
        latency = measure(self.engine.runner, budget_seconds=seconds, progress=self.progress)
        self.store.set_latency(self.key, latency.to_json())
        return latency

    @cached_property
    def _session(self) -> FitSession:
        return FitSession(self.engine, self.num_tokens, self._journal, self.progress, say=self.say)

    def _journal(self, name: str, **question: Any) -> Journal:
        journal = self.store.journal(self.key, name, {**self.question, **question})
        if self.options.again:
            journal.drop_all()
        self._journals.append(journal)
        return journal

    @cached_property
    def _texts(self) -> ScoredTexts:
        self.say(f"letting the model continue {len(self.fitting)} prompts")
        return self._session.write(self.fitting, has_time=Steps(self.budget, _SHARE_OF_TEXTS).has_time)

    def _num_searches(self, name: str) -> int:
        options = options_for("strategy", name, settings_of("strategy", name, self.options.settings))
        count: int = find("strategy", name).num_searches(options, len({prompt.domain for prompt in self.fitting}))
        return count

    def _learn(self, name: str, left: Sequence[str]) -> bool:
        """Whether it is complete: else the journal is kept, to go on with. It and what else is `left` share the time,
        by how much each has to search for.
        """
        kind, settings = find("strategy", name), settings_of("strategy", name, self.options.settings)
        is_tried_only = not (kind.can_fit or kind.learns_online)
        own = Budget(self.budget.left() * self._num_searches(name) / sum(map(self._num_searches, left)))
        if own.left() <= 0:
            self.say(f"{name}: no time is left; {GO_ON}")
            return False
        if self.trial_prompts or not kind.learns_online:
            _ = self._texts  # before it has its time: what all are judged by
        question = as_json({"options": repr(options_for("strategy", name, settings)), **self.question})
        found = {"question": question, **({} if is_tried_only else self._find(name, own))}
        is_complete = bool(found.get("is_complete", True))
        known = self._known(name)
        if not is_complete and known.get("is_complete") and known.get("question") == question:
            self.say(f"{name}: time is up, and the profile keeps the complete result that it has; {GO_ON}")
            return False
        found = {"is_complete": True, **self._circumstances(name), **found, "trials": []}
        self._keep(name, found)
        points = [FrontierPoint.from_json(point) for point in found.get("frontier", ())]
        has_something = "frontier" not in found or any(point.skip for point in points)
        if has_something and self.trial_prompts:
            methods = methods_of(name, points)
            for key, one in methods.items():
                methods[key] = in_use({**one, "settings": {**one.get("settings", {}), **settings}})
            self._keep(name, {**found, "trials": self._try(methods, own)})
        return is_complete

    def _circumstances(self, name: str) -> dict[str, Any]:
        """Of the texts it was fitted to; who practises writes its own."""
        if find("strategy", name).learns_online:
            return {}
        texts = self._texts.texts
        return {
            "num_texts": len(texts),
            "num_tokens": sum(text.num_generated for text in texts),
            "domains": list(dict.fromkeys(prompt.domain for prompt in self.fitting)),
        }

    def _keep(self, name: str, found: Mapping[str, Any]) -> None:
        busy = self.watch.summary(self.engine.device)
        self.store.update(self.key, name, Artefact.of({**found, **({"busy": busy} if busy else {})}))
        self._remember()

    def _known(self, name: str) -> Mapping[str, Any]:
        found = self._remember().artefacts.get(name)
        return found.content if found else {}

    def _find(self, name: str, own: Budget) -> dict[str, Any]:
        """What its fit finds, or what it learns while it generates, going on from what is known or from the start."""
        known, can_fit = {} if self.options.again else self._known(name), find("strategy", name).can_fit
        if not can_fit and not known:
            profile = self._remember()
            others = {key: artefact for key, artefact in profile.artefacts.items() if key != name}
            self.engine.remember(replace(profile, artefacts=others))
        texts = self._texts if can_fit else None
        seconds = max(0.0, own.left(_SHARE_OF_FIT))
        return self._session.fit(name, self.options.settings, self.fitting, seconds, known=known, texts=texts)

    def _try(self, methods: Mapping[str, Mapping[str, Any]], own: Budget) -> list[dict[str, Any]]:
        """How much faster methods are on prompts that nothing was fitted to, and how much faster they should be.

        Where time is short texts are shorter, or the strategy is tried alone; then remaining prompts are left out.
        """
        seconds = own.left(_SHARE_OF_TRIALS)
        for some in (methods, dict([*methods.items()][:1])):
            num_tokens = min(TRIAL_TOKENS, self._affordable(seconds / (1 + len(some))))
            if num_tokens >= min(TRIAL_TOKENS, _LEAST_TRIAL_TOKENS):
                plan = MeasurePlan(self.trial_prompts, some, max_new_tokens=num_tokens, prices=self.latency)
                found = run_whole(self.engine, plan, self.progress, Budget(seconds)).all_of
                return [self._trial(found, name, some[name]) for name in some if name in found.arms]
        self.say(f"no time is left to try {next(iter(methods))}; {GO_ON}")
        return []

    def _affordable(self, seconds: float) -> int:
        """Tokens that a method has time for, after it has warmed up and read the prompt."""
        length = len(self.trial_prompts[0].tokens)
        costs, is_recording = self.latency.at(length), self.engine.runner.is_recording
        reading = costs.verify(length) + (0.0 if is_recording else costs.verify(length) + WARM_UP_TOKENS * costs.plain)
        texts = 3 if is_recording else 1  # warmed up with two of the same length
        slowest = costs.draft(SkipSet()) + costs.verify(2)  # of a token: drafts of one that are all refused
        return int((seconds - 2 * reading) / max(texts * max(slowest, costs.plain), 1e-9))

    def _trial(self, found: Measured, name: str, method: Mapping[str, Any]) -> dict[str, Any]:
        records, total = found.of(name), found.figures(name)
        assert total is not None
        skip, speedup = usual_skip(records), total.speedup
        lengths = [record.num_prompt_tokens + record.num_tokens / 2 for record in records]  # while it was written
        own, plain = (sum(record.predicted_seconds or 0.0 for record in found.of(arm)) for arm in (name, OFF))
        return {
            "strategy": method["strategy"],
            "method": method,
            "skip": str(skip),
            "match": self._texts.match(skip),
            "num_context": round(sum(lengths) / max(1, len(lengths))),
            "predicted": plain / own if own else 1.0,  # the same rounds, and plain ones, by the seconds of passes
            "measured": speedup.value if speedup else 1.0,
            **({"low": speedup.low, "high": speedup.high} if speedup else {}),
            "is_faster": bool(speedup and speedup.is_above(1.0)),
            **rates(total),
        }


def shortest_first(prompts: Sequence[Prompt], num_tokens: int) -> list[Prompt]:
    """Of those that are continued: whatever the budget, one of them is."""
    shortest = min(to_continue(prompts, num_tokens), key=lambda prompt: len(prompt.tokens))
    return [shortest, *(prompt for prompt in prompts if prompt is not shortest)]


def rates(total: Figures) -> dict[str, Any]:
    """What profiles and documents tell of a method beside its speed."""
    return {
        "acceptance_rate": total.acceptance_rate or 0.0,
        "mean_generated_length": total.mean_generated_length,
        "num_tokens": total.num_tokens,
        "num_prompts": total.num_prompts,
    }


def usual_skip(records: Sequence[Record]) -> SkipSet:
    """Of most draft passes; empty: most rounds were plain."""
    passes: Counter[str] = Counter()
    for record in records:
        passes.update(record.skips or {})
    if 2 * passes.total() < sum(record.num_rounds for record in records):
        return SkipSet()
    return SkipSet.parse(passes.most_common(1)[0][0])


def methods_of(strategy: str, points: Sequence[FrontierPoint] = ()) -> dict[str, dict[str, Any]]:
    """The strategy itself, and fixed sets spread over its frontier with all else as the strategy has it."""
    pairing = {name: value for name, value in resolve({"strategy": strategy}).items() if name != "strategy"}
    spread = thinned([point for point in points if point.skip], _NUM_SETS + 2)
    methods: dict[str, dict[str, Any]] = {strategy: {"strategy": strategy}}
    for point in spread[1:-1] or spread:  # at its ends a frontier skips next to nothing, and nearly all
        settings = {**pairing["settings"], "fixed": {"skip": str(point.skip)}}
        methods[str(point.skip)] = {**pairing, "strategy": "fixed", "settings": settings}
    return methods


def thinned(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]
