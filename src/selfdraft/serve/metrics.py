"""What Prometheus is told: in the words of vLLM, so that its dashboards fit; what rounds did, and what that brought."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from ..engine.engine import Engine
from ..engine.session import Event
from ..explanation import NAMES, kind_of
from ..types import Generation
from .answers import reason_of
from .scheduler import Scheduler

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
PREFIX = "selfdraft"
_NUM_RECENT = 64
"""Texts whose speed-up is told."""


Speeds = tuple[float, float, float]
"""Of one text the seconds that plain decoding would have taken, those it took, and those that were expected."""


def speed_up(texts: Sequence[Speeds], is_predicted: bool = False) -> float:
    """Of these together; nan: nothing is known."""
    plain, *took = map(sum, zip(*texts, strict=True)) if texts else (0.0, 0.0, 0.0)
    return plain / took[is_predicted] if plain else math.nan


class Metrics:
    """Of one server; what stands now (rows, cache, speed-up) is asked for when somebody reads."""

    def __init__(self, engine: Engine, scheduler: Scheduler, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        counters = {
            "prompt_tokens": "tokens of prompts",
            "generation_tokens": "tokens of texts",
            "spec_decode_num_drafts": "rounds that checked a draft",
            "spec_decode_num_draft_tokens": "tokens that were drafted",
            "spec_decode_num_accepted_tokens": "drafted tokens that the model accepted",
        }
        self._counters = {name: self._counter(name, text) for name, text in counters.items()}
        for counter in self._counters.values():
            counter.labels(model)  # dashboards find the model before anybody has asked
        self._accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "drafted tokens accepted, by their place", "position"
        )
        self._requests = self._counter("request_success", "requests that were answered", "finished_reason")
        self._errors = self._counter("request_errors", "requests that were refused or failed", "status")
        self._first = self._histogram("time_to_first_token_seconds", "from a request to its first token", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "between tokens of a text", _SHORT_SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "from a request to its end", _SECONDS)
        self._gauge("num_requests_running", "texts that are being decoded", lambda: scheduler.num_running)
        self._gauge("num_requests_waiting", "requests that wait", lambda: scheduler.num_waiting)
        self._gauge(
            "kv_cache_usage_perc", "share of the cache's memory that holds tokens", lambda: scheduler.cache_usage
        )
        self._rounds = self._counter("rounds", "rounds, by what they did: plain, copied, drafted", "kind")
        self._plan = Info(f"{PREFIX}:plan", "of the last text's last round", ("model_name",), registry=self._registry)
        self._recent = deque[Speeds](maxlen=_NUM_RECENT)
        told = f"over plain decoding, of the last {_NUM_RECENT} texts"
        self._gauge("speedup", told, lambda: speed_up(self._recent))
        self._gauge("speedup_predicted", f"as promised, {told}", lambda: speed_up(self._recent, is_predicted=True))

    def render(self) -> bytes:
        return bytes(generate_latest(self._registry))

    def refused(self, status: int) -> None:
        self._errors.labels(self._model, str(status)).inc()

    def watch(self) -> Watch:
        return Watch(self)

    def _did(self, one: Generation) -> None:
        if one.steps:
            plan = one.steps[-1].plan
            told = {
                "skip": str(plan.skip),
                "drafter": plan.drafter or "",
                "max_draft_tokens": str(plan.max_draft_tokens),
            }
            self._plan.labels(self._model).info(told)
        explained = one.explain()
        expected = explained.expected_tokens_per_second
        if explained.plain_seconds and expected:
            num = explained.num_tokens
            self._recent.append((num * explained.plain_seconds, explained.seconds, num / expected))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}:{name}", text, ("model_name", *labels), registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}:{name}", text, ("model_name",), buckets=buckets, registry=self._registry)

    def _gauge(self, name: str, text: str, ask: Callable[[], float]) -> None:
        gauge = Gauge(f"{PREFIX}:{name}", text, ("model_name",), registry=self._registry)
        gauge.labels(self._model).set_function(ask)


class Watch:
    """The clock of one request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._began = metrics, time.monotonic()
        self._last: dict[int, float] = {}  # when each text was told of last

    def told(self, index: int, told: Event) -> None:
        now, metrics = time.monotonic(), self._metrics
        if told.pieces:
            before = self._last.get(index)
            if before is None and not self._last:
                metrics._first.labels(metrics._model).observe(now - self._began)
            if before is not None:
                for _ in told.pieces:
                    metrics._between.labels(metrics._model).observe((now - before) / len(told.pieces))
            self._last[index] = now

    def ended(self, groups: Sequence[Sequence[Generation]]) -> None:
        """`groups`: the texts of each prompt."""
        metrics = self._metrics
        metrics._whole.labels(metrics._model).observe(time.monotonic() - self._began)
        counts = dict.fromkeys(metrics._counters, 0)
        counts["prompt_tokens"] = sum(group[0].num_prompt_tokens for group in groups)
        for one in itertools.chain.from_iterable(groups):
            metrics._requests.labels(metrics._model, reason_of(one)).inc()
            metrics._did(one)
            counts["generation_tokens"] += len(one.tokens)
            for step in one.steps:
                metrics._rounds.labels(metrics._model, NAMES[kind_of(step)]).inc()
                if step.draft.tokens:
                    counts["spec_decode_num_drafts"] += 1
                    counts["spec_decode_num_draft_tokens"] += len(step.draft.tokens)
                    counts["spec_decode_num_accepted_tokens"] += step.verdict.num_accepted
                    for place in range(step.verdict.num_accepted):
                        metrics._accepted_at.labels(metrics._model, str(place)).inc()
        for name, count in counts.items():
            metrics._counters[name].labels(metrics._model).inc(count)
