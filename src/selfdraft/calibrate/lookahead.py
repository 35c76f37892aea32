"""How far to draft, learned on a device: the best settings of a lookahead, and the classifier of `disco`.

Both go the same way: what would be drafted in texts that the target writes (traces.py), what rounds take
(round_seconds.py), what promises most by replay, and what is fastest by the clock (tuning.py).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..lookahead.disco import Classifier, artefact_name, draft_model
from ..measure.figures import Figures
from ..measure.run import Measurement, MeasurePlan
from ..profiles.profile import Artefact
from ..profiles.store import Store
from ..progress import Progress, Say, no_progress
from ..prompts.arrange import hold_out
from ..registry import options_for
from ..types import Prompt
from .fit_session import Budget
from .round_seconds import measure_rounds
from .traces import Trace, collect
from .training import Label, classifier_f1, static_f1, train, tuned
from .trials import rates
from .tuning import MAX_TOKENS, TUNABLE, Candidate, Replay, predicted, rank, shortlist

USUAL_TOKENS = 128
"""Of each text."""
_NUM_TRIED = 3
"""Of the most promising settings."""
_NUM_TRIED_STATIC = 2
_NUM_TIMED, _TIMED_TOKENS = 2, 64
"""Prompts behind which rounds are timed, and how far."""
_SHARE_OF_TRACES = 0.5
"""Of the budget, for collecting; the first texts are collected in any case."""


@dataclass(frozen=True)
class LookaheadOptions:
    """`num_tokens`: of each text. `label` and `seed` are for training alone."""

    num_tokens: int = USUAL_TOKENS
    budget_seconds: float = 600.0
    max_tokens: int = MAX_TOKENS
    label: Label = "match"
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """What decoding with a setting took, and what it takes by replay; without a setting it is plain decoding."""

    total: Figures
    predicted_seconds: float
    candidate: Candidate | None = None
    is_usual: bool = False

    @property
    def seconds_per_token(self) -> float:
        return (self.total.milliseconds or 0.0) / 1000

    def to_json(self) -> dict[str, Any]:
        chosen = self.candidate
        return {
            "lookahead": chosen.lookahead if chosen else None,
            "options": dict(chosen.options) if chosen else {},
            "is_usual": self.is_usual,
            "predicted_ms": 1000 * self.predicted_seconds,
            "measured_ms": 1000 * self.seconds_per_token,
            **rates(self.total),
        }


@dataclass(frozen=True)
class DraftCounts:
    """Of the tokens in traces, how many had a draft, and how many a right one."""

    num_tokens: int
    num_drafted: int
    num_kept: int

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> DraftCounts:
        num_drafted, num_kept = (
            sum(int(flags.sum()) for flags in column)
            for column in zip(*((trace.is_drafted, trace.is_kept) for trace in traces), strict=True)
        )
        return cls(sum(map(len, traces)), num_drafted, num_kept)

    @property
    def kept_share(self) -> float:
        return self.num_kept / max(1, self.num_drafted)


@dataclass(frozen=True)
class Tuned:
    """`rows`: plain decoding, then the settings that were tried."""

    rows: Sequence[Measured]
    counts: DraftCounts

    @property
    def plain(self) -> Measured:
        return self.rows[0]

    def fastest(self, lookahead: str) -> Measured:
        own = [row for row in self.rows if row.candidate is not None and row.candidate.lookahead == lookahead]
        return min(own, key=lambda row: row.seconds_per_token)


@dataclass(frozen=True)
class Trained(Tuned):
    """A classifier, tuned, and the facts that the profile keeps with it."""

    classifier: Classifier
    facts: Mapping[str, Any]


def check_tunable(lookahead: str) -> None:
    if lookahead == "disco":
        raise OptionError(
            "the classifier of 'disco' is tuned when it is trained: use selfdraft calibrate --lookahead disco"
        )
    if lookahead not in TUNABLE:
        raise unknown_name("lookahead to tune", lookahead, TUNABLE)


def check_enough(prompts: Iterable[tuple[str, object]]) -> None:
    """`prompts`: domain and text. Raise where none is left to tune with."""
    texts: dict[object, str] = {}
    for domain, text in prompts:
        texts.setdefault(text, domain)
    domains = list(texts.values())
    if not any(domains.count(domain) > 1 for domain in domains):
        raise OptionError(
            "training needs at least two different prompts of one domain: to train with, and to tune and measure with. "
            "Pass more prompts"
        )


def tune(
    engine: Engine,
    method: Mapping[str, Any],
    lookahead: str,
    prompts: Sequence[Prompt],
    options: LookaheadOptions | None = None,
    *,
    progress: Progress = no_progress,
    say: Say = lambda text: None,
) -> Tuned:
    """The best settings of a lookahead for these drafts; `method` names strategy, drafter, tree and settings."""
    check_tunable(lookahead)
    if not prompts:
        raise OptionError("tuning needs prompts; pass at least one")
    work = _Work(engine, _complete(engine, method), options or LookaheadOptions(), progress, say)
    unique = list({prompt.tokens: prompt for prompt in prompts}.values())
    traces = work.collect(unique, "to tune with")
    replay = work.replay(traces, unique)
    usual = Candidate(lookahead, asdict(options_for("lookahead", lookahead, work.method["settings"])))
    promising = shortlist(rank(lookahead, replay), _NUM_TRIED)
    rows = work.race(predicted(usual, replay), promising, unique, replay.plain_seconds)
    return Tuned(rows, DraftCounts.of(traces))


def train_lookahead(
    engine: Engine,
    method: Mapping[str, Any],
    prompts: Sequence[Prompt],
    options: LookaheadOptions | None = None,
    *,
    progress: Progress = no_progress,
    say: Say = lambda text: None,
) -> Trained:
    """Train the classifier of `disco` for these drafts and keep it in the profile, which the engine goes by then.

    About a quarter of the prompts of each domain is held out: to end the training, to tune, and to measure.
    """
    check_enough((prompt.domain, prompt.tokens) for prompt in prompts)
    options = options or LookaheadOptions()
    work = _Work(engine, _complete(engine, method), options, progress, say)
    work.repair()
    fitting, held_out = hold_out(prompts)
    validation = work.collect(held_out, "to tune with")
    training = work.collect(fitting, "to train with")
    classifier = train(training, validation, options.label, options.seed)
    replay = work.replay(validation, held_out)
    usual = Candidate("disco", {name: classifier.values()[name] for name in ("threshold", "max_tokens")}, 0, classifier)
    static = shortlist(rank("fixed", replay), _NUM_TRIED_STATIC)
    promising = shortlist(rank("disco", replay, classifier), _NUM_TRIED)
    rows = work.race(predicted(usual, replay), [*static, *promising], held_out, replay.plain_seconds)
    return work.keep(rows, classifier, training, validation)


def _complete(engine: Engine, method: Mapping[str, Any]) -> dict[str, Any]:
    """With nothing left open of what drafts; the lookahead is ours to choose."""
    known = engine.names(**method)
    return {name: known[name] for name in ("strategy", "drafter", "tree", "settings")}


@dataclass
class _Work:
    engine: Engine
    method: Mapping[str, Any]
    options: LookaheadOptions
    progress: Progress
    say: Say
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self._budget = Budget(self.options.budget_seconds)

    def _has_time(self, share: float = 1.0) -> bool:
        return self._budget.left(share) > 0

    def repair(self) -> None:
        """What cannot be written to is found out before it costs any time."""
        key = self.engine.knowledge.key
        if problem := self.store.repair(key):
            path = self.store.path_of(key)
            self.say(f"the profile {path} could not be used ({problem.__cause__}); it is made again")

    def collect(self, prompts: Sequence[Prompt], purpose: str) -> list[Trace]:
        count = f"{len(prompts)} prompt{'s' * (len(prompts) > 1)}"
        self.say(f"letting the target continue {count} {purpose}, and the draft propose a token after each token")
        traces = collect(
            self.engine,
            self.method,
            prompts,
            self.options.num_tokens,
            lambda done, total, label: self.progress(done, total, f"{label} {purpose}"),
            has_time=partial(self._has_time, _SHARE_OF_TRACES),
        )
        if len(traces) < len(prompts):
            self.say(f"time is up after {len(traces)} of {len(prompts)} prompts; a larger --budget uses more of them")
        if not any(bool(trace.is_drafted.any()) for trace in traces):
            raise OptionError(
                f"the drafter {self.method['drafter']!r} with the strategy {self.method['strategy']!r} drafted nothing "
                "in these texts, so there is nothing to learn. Take another strategy or drafter, or other prompts"
            )
        return traces

    def replay(self, traces: Sequence[Trace], prompts: Sequence[Prompt]) -> Replay:
        num_tokens, max_tokens = min(self.options.num_tokens, _TIMED_TOKENS), self.options.max_tokens
        timed = prompts[:_NUM_TIMED]
        seconds = measure_rounds(self.engine, self.method, timed, num_tokens, max_tokens, self.progress)
        return Replay(traces, seconds, max_tokens)

    def race(
        self,
        usual: Candidate,
        candidates: Sequence[Candidate],
        prompts: Sequence[Prompt],
        plain_seconds: float,
    ) -> list[Measured]:
        """Plain decoding, the usual setting and the others, measured in turns."""
        others = [one for one in candidates if (one.lookahead, one.options) != (usual.lookahead, usual.options)]
        tried = [usual, *others]
        self.say(f"measuring {len(tried)} settings and plain decoding in turns, on {len(prompts)} of the prompts")
        methods = {str(candidate): candidate.method(self.method) for candidate in tried}
        seconds = max(0.0, self._budget.left())
        plan = MeasurePlan(prompts, methods, max_new_tokens=self.options.num_tokens, seconds=seconds)
        found = Measurement(self.engine, plan, progress=self.progress).run()
        if failed := [arm.error for arm in found.arms if arm.error]:
            raise OptionError(failed[0])
        plain, *totals = (arm.total for arm in found.arms if arm.total)
        rows = [Measured(total, 1 / one.predicted, one, one is usual) for one, total in zip(tried, totals, strict=True)]
        return [Measured(plain, plain_seconds), *rows]

    def keep(
        self, rows: Sequence[Measured], classifier: Classifier, training: Sequence[Trace], validation: Sequence[Trace]
    ) -> Trained:
        """The classifier with the fastest settings goes into the profile, in one piece."""
        counts = DraftCounts.of([*training, *validation])
        found = Tuned(rows, counts)
        best, static = found.fastest("disco"), found.fastest("fixed")
        assert best.candidate is not None
        assert static.candidate is not None
        static_tokens: int = static.candidate.options["tokens"]
        classifier = tuned(classifier, **best.candidate.options)
        drafter, settings = self.method["drafter"], self.method["settings"]
        timed = {"plain": found.plain, "static": static, "disco": best}
        facts = {
            **classifier.values(),
            "drafter": drafter,
            "source": draft_model(options_for("drafter", drafter, settings)),
            "fingerprint": self.engine.knowledge.key.fingerprint,
            "strategy": self.method["strategy"],
            "strategy_options": repr(options_for("strategy", self.method["strategy"], settings)),
            "settings": json.dumps(settings, default=lambda value: type(value).__name__, sort_keys=True),
            "label": self.options.label,
            "domains": list(dict.fromkeys(trace.domain for trace in training)),
            "num_tokens": sum(map(len, training)),
            "num_validation_tokens": sum(map(len, validation)),
            "f1": classifier_f1(classifier, validation),
            "f1_at_half": classifier_f1(classifier, validation, 0.5),
            "f1_static": static_f1(validation, static_tokens),
            "f1_any_static": max(static_f1(validation, length) for length in range(1, self.options.max_tokens + 1)),
            "static_tokens": static_tokens,
            "seconds_per_token": {name: row.seconds_per_token for name, row in timed.items()},
            "trained": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
        self.store.update(self.engine.knowledge.key, artefact_name(drafter), Artefact(facts, classifier.arrays()))
        self.engine.remember(self.store.load(self.engine.knowledge.key))
        return Trained(rows, counts, classifier, facts)
