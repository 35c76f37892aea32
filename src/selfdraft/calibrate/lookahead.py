"""How far to draft, learned on a device: the best settings of a lookahead, and the classifier of `disco`.

Both take the same steps: what is drafted in texts of the target (traces.py), what rounds take and what promises most by
replay (tuning.py), and what is fastest by the clock.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..lookahead.disco import Classifier, artefact_name
from ..measure.estimate import as_json
from ..measure.figures import Figures
from ..measure.records import OFF
from ..measure.run import WARM_UP_TOKENS, MeasurePlan, run_whole
from ..profiles.profile import Artefact
from ..profiles.store import Store
from ..progress import Budget, Progress, Say, Steps, no_progress
from ..prompts.arrange import hold_out
from ..registry import DRAFTING, find, options_for
from ..types import Prompt
from .calibrate import rates
from .fit_session import repair
from .traces import Trace, collect
from .training import Label, classifier_hits, f1, static_hits, train
from .tuning import MAX_TOKENS, TUNABLE, Candidate, Replay, measure_rounds, predicted, rank, shortlist

USUAL_TOKENS = 128  # of each text
_NUM_TRIED, _NUM_TRIED_STATIC = 3, 2  # of the most promising settings
_NUM_TIMED, _TIMED_TOKENS = 2, 64  # prompts after which rounds are timed, and how far
_SHARE_OF_TRACES, _SHARE_OF_ROUNDS = 0.5, 0.7  # of the budget, when texts are collected, and rounds timed
_LEAST_TOKENS = 8  # of a text
_NUM_PASSES, _NUM_READ = 40, 16  # plain passes that the least work takes for each token of a text; prompts it reads


@dataclass(frozen=True)
class LookaheadOptions:
    """`num_tokens`: of each text. `label` and `seed` are for training alone."""

    num_tokens: int = USUAL_TOKENS
    budget_seconds: float = 600.0
    max_tokens: int = MAX_TOKENS
    label: Label = "match"
    seed: int = 0


@dataclass(frozen=True)
class Tried:
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
            "speedup": as_json(self.total.speedup),
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
        num_drafted = sum(int(trace.is_drafted.sum()) for trace in traces)
        return cls(sum(map(len, traces)), num_drafted, sum(int(trace.is_kept.sum()) for trace in traces))

    @property
    def kept_share(self) -> float:
        return self.num_kept / max(1, self.num_drafted)


@dataclass(frozen=True)
class Tuned:
    """`rows`: plain decoding, then the settings that were tried."""

    rows: Sequence[Tried]
    counts: DraftCounts

    @property
    def plain(self) -> Tried:
        return self.rows[0]

    def fastest(self, lookahead: str) -> Tried:
        own = [row for row in self.rows if row.candidate is not None and row.candidate.lookahead == lookahead]
        return min(own, key=lambda row: row.seconds_per_token)


@dataclass(frozen=True)
class Trained(Tuned):
    """A classifier, tuned, and the facts that the profile keeps with it."""

    classifier: Classifier
    facts: Mapping[str, Any]


def check_tunable(lookahead: str) -> None:
    if lookahead not in TUNABLE:
        raise unknown_name("lookahead to tune", lookahead, TUNABLE)


def check_enough(prompts: Iterable[tuple[str, object]]) -> None:
    """`prompts`: domain and text. Raise where none is left to tune with."""
    domains = list({text: domain for domain, text in reversed(list(prompts))}.values())  # of a text its first
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
    work = LookaheadFit(engine, method, options or LookaheadOptions(), progress, say)
    unique = list({prompt.tokens: prompt for prompt in prompts}.values())
    traces = work.collect(unique, "to tune with")
    replay = work.replay(traces, unique)
    usual = Candidate(lookahead, asdict(options_for("lookahead", lookahead, work.method["settings"])))
    rows = work.race(usual, shortlist(rank(lookahead, replay), _NUM_TRIED), unique, replay)
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
    work = LookaheadFit(engine, method, options, progress, say)
    repair(work.store, engine.knowledge.key, say)
    fitting, held_out = hold_out(prompts)
    validation = work.collect(held_out, "to tune with")
    training = work.collect(fitting, "to train with")
    classifier = train(training, validation, options.label, options.seed)
    replay = work.replay(validation, held_out)
    usual = Candidate("disco", {name: classifier.values()[name] for name in ("threshold", "max_tokens")}, 0, classifier)
    static = shortlist(rank("fixed", replay), _NUM_TRIED_STATIC)
    promising = shortlist(rank("disco", replay, classifier), _NUM_TRIED)
    rows = work.race(usual, [*static, *promising], held_out, replay)
    return work.keep(rows, classifier, training, validation)


class LookaheadFit:
    """The steps, for one method; `method` says what drafts, the lookahead is ours to choose."""

    def __init__(
        self, engine: Engine, method: Mapping[str, Any], options: LookaheadOptions, progress: Progress, say: Say
    ) -> None:
        self.engine, self.options, self.store = engine, options, Store()
        self._progress, self._say, self._budget = progress, say, Budget(options.budget_seconds)
        known = engine.names(**{"strategy": DRAFTING, **method})
        self.method = {name: known[name] for name in ("strategy", "drafter", "tree", "settings")}
        self.num_tokens, self._reading = 0, 0.0  # of each text, and seconds of a prompt; known once a text was begun

    def _affordable(self, prompt: Prompt) -> int:
        """As many as were asked for, or as many as the least that has to be done has time for."""
        stats = self.engine.generate(prompt.tokens, max_new_tokens=_LEAST_TOKENS, strategy=OFF).stats
        seconds = _NUM_PASSES * stats.decode_seconds / max(1, stats.num_tokens - 1)
        self._reading = stats.prefill_seconds
        left = self._budget.left() - _NUM_READ * self._reading
        affordable = min(self.options.num_tokens, left // max(seconds, 1e-9))
        if affordable < min(self.options.num_tokens, _LEAST_TOKENS):
            least = 1.1 * (self._budget.spent + _NUM_READ * self._reading + _LEAST_TOKENS * seconds)
            raise OptionError(
                f"the time is too short for what has to be done; give a --budget of at least {least:.0f}s"
            )
        if affordable < self.options.num_tokens:
            self._say(f"texts have {affordable:.0f} tokens each, so that the budget is enough for all steps")
        return int(affordable)

    def collect(self, prompts: Sequence[Prompt], purpose: str) -> list[Trace]:
        self.num_tokens = self.num_tokens or self._affordable(prompts[0])
        count = f"{len(prompts)} prompt{'s' * (len(prompts) > 1)}"
        self._say(f"letting the target continue {count} {purpose}, and the draft propose a token after each token")
        traces = collect(
            self.engine,
            self.method,
            prompts,
            self.num_tokens,
            lambda done, total, label: self._progress(done, total, f"{label} {purpose}"),
            has_time=Steps(self._budget, _SHARE_OF_TRACES).has_time,
        )
        if len(traces) < len(prompts):
            self._say(f"time is up after {len(traces)} of {len(prompts)} prompts; a larger --budget uses more of them")
        if not any(bool(trace.is_drafted.any()) for trace in traces):
            raise OptionError(
                f"the drafter {self.method['drafter']!r} with the strategy {self.method['strategy']!r} drafted nothing "
                "in these texts, so there is nothing to learn. Take another strategy or drafter, or other prompts"
            )
        return traces

    def replay(self, traces: Sequence[Trace], prompts: Sequence[Prompt]) -> Replay:
        num_tokens, max_tokens = min(self.num_tokens, _TIMED_TOKENS), self.options.max_tokens
        asked = (self.engine, self.method, prompts[:_NUM_TIMED], num_tokens, max_tokens, self._progress)
        rounds = measure_rounds(*asked, is_over=lambda: self._budget.left(_SHARE_OF_ROUNDS) <= 0)
        return Replay(traces, rounds, max_tokens)

    def race(
        self, usual: Candidate, candidates: Sequence[Candidate], prompts: Sequence[Prompt], replay: Replay
    ) -> list[Tried]:
        """Plain decoding, the usual setting and the others, measured in turns; predictions are of the same prompts."""
        prompts = prompts[: len(replay.traces)]
        each = 2 * self._reading + (self.num_tokens + WARM_UP_TOKENS) * replay.slowest_seconds
        affordable = min(len(candidates), self._budget.left() / max(each, 1e-9) - 2)  # on one text at least
        candidates = candidates[: max(1, int(affordable))]
        others = [one for one in candidates if (one.lookahead, one.options) != (usual.lookahead, usual.options)]
        tried = {str(one): one for one in (usual, *others)}
        self._say(f"measuring {len(tried)} settings and plain decoding in turns, on {len(prompts)} of the prompts")
        methods = {name: one.method(self.method) for name, one in tried.items()}
        plan = MeasurePlan(prompts, methods, max_new_tokens=self.num_tokens)
        found = run_whole(self.engine, plan, self._progress, self._budget)
        if failed := [arm.error for arm in found.arms if arm.error]:
            raise OptionError(failed[0])
        known = {arm.name: arm.total for arm in found.arms if arm.total}
        replay = replay.of_first(known[OFF].num_prompts)
        tried = {name: predicted(one, replay) for name, one in tried.items()}
        rows = [Tried(known[name], 1 / one.predicted, one, name == str(usual)) for name, one in tried.items()]
        return [Tried(known[OFF], replay.plain_seconds), *rows]

    def facts(self, classifier: Classifier) -> dict[str, Any]:
        """What a profile must say of a classifier, so that it is used for these drafts only."""
        drafter, strategy, settings = (self.method[name] for name in ("drafter", "strategy", "settings"))
        return {
            **classifier.values(),
            "drafter": drafter,
            "source": find("drafter", drafter).draft_model(options_for("drafter", drafter, settings)),
            "fingerprint": self.engine.knowledge.key.fingerprint,
            "strategy": strategy,
            "strategy_options": repr(options_for("strategy", strategy, settings)),
        }

    def keep(
        self, rows: Sequence[Tried], classifier: Classifier, training: Sequence[Trace], validation: Sequence[Trace]
    ) -> Trained:
        """The classifier with the fastest settings goes into the profile, in one piece."""
        found = Tuned(rows, DraftCounts.of([*training, *validation]))
        best, static = found.fastest("disco"), found.fastest("fixed")
        assert best.candidate
        assert static.candidate
        static_tokens: int = static.candidate.options["tokens"]
        classifier = replace(classifier, **best.candidate.options)
        by_kind = {"plain": found.plain, "static": static, "disco": best}
        lengths = range(1, self.options.max_tokens + 1)
        facts = {
            **self.facts(classifier),
            "settings": json.dumps(self.method["settings"], default=lambda value: type(value).__name__, sort_keys=True),
            "label": self.options.label,
            "domains": list(dict.fromkeys(trace.domain for trace in training)),
            "num_tokens": sum(map(len, training)),
            "num_validation_tokens": sum(map(len, validation)),
            "f1": f1(classifier_hits(classifier, trace) for trace in validation),
            "f1_at_half": f1(classifier_hits(classifier, trace, 0.5) for trace in validation),
            "f1_static": f1(static_hits(trace, static_tokens) for trace in validation),
            "f1_any_static": max(f1(static_hits(trace, length) for trace in validation) for length in lengths),
            "static_tokens": static_tokens,
            "seconds_per_token": {name: row.seconds_per_token for name, row in by_kind.items()},
            "trained": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
        key = self.engine.knowledge.key
        self.store.update(key, artefact_name(self.method["drafter"]), Artefact(facts, classifier.arrays()))
        self.engine.remember(self.store.load(key))
        return Trained(rows, found.counts, classifier, facts)
