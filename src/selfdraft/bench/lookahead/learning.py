"""What the rules that must be tuned learn of a domain: its train prompts train, its validation prompts choose settings.

DISCO's classifier, and of `static-opt`, `perplexity` and DISCO the settings that would decode the validation texts
fastest, by replay (calibrate/replay.py) with what rounds were measured to take.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calibrate.replay import RoundSeconds
from ...calibrate.round_seconds import measure_rounds
from ...calibrate.traces import Trace, collect
from ...calibrate.training import train, tuned
from ...calibrate.tuning import MAX_TOKENS, Candidate, Replay, rank
from ...engine.engine import Engine
from ...fitting import CalibrationPrompt
from ...lookahead.disco import Classifier
from ..pace import Say, Told

_NUM_TIMED = 3
"""Texts that rounds are timed in."""
_SHOWN_LENGTHS = (0, 1, 2, 4, 8, MAX_TOKENS)


@dataclass(frozen=True)
class Lesson:
    """Of one domain. Of `fixed`, `perplexity` and `disco` the best settings; the classifier has its own already."""

    domain: str
    classifier: Classifier
    best: Mapping[str, Candidate]
    num_train_tokens: int
    num_validation_tokens: int
    match: float  # the share of drafted tokens of all these texts that would be kept

    def figures(self) -> dict[str, Any]:
        return {
            "num_train_tokens": self.num_train_tokens,
            "num_validation_tokens": self.num_validation_tokens,
            "match": self.match,
            "best": {name: dict(candidate.options) for name, candidate in self.best.items()},
            "predicted": {name: candidate.predicted for name, candidate in self.best.items()},
        }


@dataclass(frozen=True)
class Lessons:
    """Of all domains. `seconds`: what rounds take; `took`: what each part of learning did."""

    by_domain: Mapping[str, Lesson]
    seconds: RoundSeconds
    took: Mapping[str, float]

    def figures(self) -> dict[str, Any]:
        verify = {str(length): 1000 * self.seconds.verify(length) for length in _SHOWN_LENGTHS}
        return {
            "domains": {domain: lesson.figures() for domain, lesson in self.by_domain.items()},
            "draft_ms": 1000 * self.seconds.draft,
            "verify_ms": verify,
            "seconds": dict(self.took),
        }


@dataclass(frozen=True)
class School:
    """Where it is learned: what drafts, how long texts are, and who wants to know how far it is."""

    engine: Engine
    method: Mapping[str, Any]
    num_tokens: int
    say: Say

    def traces(self, prompts: Sequence[CalibrationPrompt], num_tokens: int | None = None) -> list[Trace]:
        return collect(self.engine, self.method, prompts, num_tokens or self.num_tokens, Told(self.say, "learning"))

    def learn(
        self, train_prompts: Sequence[CalibrationPrompt], validation_prompts: Sequence[CalibrationPrompt]
    ) -> Lessons:
        clock = [time.perf_counter()]
        self.say(f"learning: what rounds take, and {len(train_prompts) + len(validation_prompts)} texts")
        seconds = self._round_seconds(validation_prompts)
        clock.append(time.perf_counter())
        training, validation = self.traces(train_prompts), self.traces(validation_prompts)
        clock.append(time.perf_counter())
        domains = list(dict.fromkeys(prompt.domain for prompt in train_prompts))
        lessons = {domain: _lesson(domain, training, validation, seconds) for domain in domains}
        clock.append(time.perf_counter())
        took = [after - before for before, after in itertools.pairwise(clock)]
        return Lessons(lessons, seconds, dict(zip(("rounds", "texts", "training"), took, strict=True)))

    def _round_seconds(self, prompts: Sequence[CalibrationPrompt]) -> RoundSeconds:
        """Of a prompt of each of the first domains."""
        first = {prompt.domain: prompt for prompt in reversed(prompts)}
        timed = [first[domain] for domain in dict.fromkeys(prompt.domain for prompt in prompts)][:_NUM_TIMED]
        told = Told(self.say, "learning")
        return measure_rounds(self.engine, self.method, timed, self.num_tokens, MAX_TOKENS, told)


def _lesson(domain: str, training: Sequence[Trace], validation: Sequence[Trace], seconds: RoundSeconds) -> Lesson:
    seen, checked = ([trace for trace in traces if trace.domain == domain] for traces in (training, validation))
    classifier = train(seen, checked)
    replay = Replay(checked, seconds)
    best = {
        "fixed": rank("fixed", replay)[0],
        "perplexity": rank("perplexity", replay)[0],
        "disco": rank("disco", replay, classifier)[0],
    }
    num_drafted = sum(int(trace.is_drafted.sum()) for trace in (*seen, *checked))
    num_kept = sum(int(trace.is_kept.sum()) for trace in (*seen, *checked))
    return Lesson(
        domain=domain,
        classifier=tuned(classifier, **best["disco"].options),
        best=best,
        num_train_tokens=sum(map(len, seen)),
        num_validation_tokens=sum(map(len, checked)),
        match=num_kept / max(1, num_drafted),
    )
