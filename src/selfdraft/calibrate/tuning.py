"""Tuning: the settings of a lookahead that decode fastest, by replay first, then by the clock.

Replay (replay.py) tells what every setting of a grid would have done to texts whose traces are known; how many tokens
a round drafts is a function of where it begins, so it is computed for all beginnings at once. The few best are then
measured, with the usual setting and with plain decoding, on the same prompts in turns: the fastest measured wins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import unknown_name
from ..lookahead.disco import Classifier, Disco, join_features
from ..lookahead.perplexity import MIN_CONFIDENCE
from .replay import RoundSeconds
from .traces import Trace

MAX_TOKENS = 15
"""The longest drafts that are tried: with the token they stand behind, a pass of 16 columns verifies them."""
CONFIDENCES = (*(step / 20 for step in range(1, 20)), 0.97, 0.98, 0.99, 0.995)
PERPLEXITIES = (1.005, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
TUNABLE = ("fixed", "confidence", "perplexity")
"""By `selfdraft tune`; the classifier of `disco` is tuned when it is trained, and the others tune themselves."""

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidate:
    """Settings of a lookahead, and how many tokens per second replay finds with them."""

    lookahead: str
    options: Mapping[str, Any]
    predicted: float = 0.0
    classifier: Classifier | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return " ".join((self.lookahead, *(f"{name}={value:g}" for name, value in self.options.items())))

    @property
    def flags(self) -> str:
        """On the command line."""
        settings = (f"--set {self.lookahead}.{name}={value:g}" for name, value in self.options.items())
        return " ".join((f"--lookahead {self.lookahead}", *settings))

    def method(self, drafted_by: Mapping[str, Any]) -> dict[str, Any]:
        """As keywords of `Engine.generate`, beside those that say what drafts."""
        if self.classifier is not None:
            return {**drafted_by, "lookahead": Disco.of(self.classifier, Disco.Options(**self.options))}
        settings = {**drafted_by.get("settings", {}), self.lookahead: self._settings(drafted_by)}
        return {**drafted_by, "lookahead": self.lookahead, "settings": settings}

    def _settings(self, drafted_by: Mapping[str, Any]) -> dict[str, Any]:
        """A strategy may have the same name, and options of its own (`fixed`)."""
        return {**drafted_by.get("settings", {}).get(self.lookahead, {}), **self.options}


class Replay:
    """Traces behind one another as arrays, and what rounds take: every rule is tried on all of them at once."""

    def __init__(self, traces: Sequence[Trace], seconds: RoundSeconds, max_tokens: int = MAX_TOKENS) -> None:
        self.traces, self.max_tokens = traces, max_tokens
        self.num_tokens = sum(map(len, traces))
        self.confidences: Numbers = np.concatenate([trace.confidences.numpy() for trace in traces])
        self.places: Counts = np.arange(self.num_tokens)
        ends = np.cumsum([len(trace) for trace in traces])
        self._until_end = np.repeat(ends, [len(trace) for trace in traces]) - self.places
        is_drafted = np.concatenate([trace.is_drafted.numpy() for trace in traces])
        is_kept = np.concatenate([trace.is_kept.numpy() for trace in traces])
        self._can_draft = np.minimum(next_place(~is_drafted) - self.places, self._until_end)
        self._can_keep = next_place(~(is_drafted & is_kept)) - self.places
        self._seconds = [seconds.of(count) for count in range(max_tokens + 1)]

    def tokens_per_second(self, num_wanted: Counts) -> float:
        """`num_wanted` [tokens]: how many a round would draft that begins there."""
        drafted = np.minimum(num_wanted, self._can_draft)
        emitted = np.minimum(np.minimum(drafted, self._can_keep) + 1, self._until_end)
        seconds, steps, lengths = 0.0, emitted.tolist(), drafted.tolist()
        place = 0
        while place < self.num_tokens:
            seconds += self._seconds[lengths[place]]
            place += steps[place]
        return self.num_tokens / seconds if seconds else math.inf

    def behind_stops(self, is_stop: Flags) -> Counts:
        """[tokens] how many a round drafts that goes on until the first of these, however long."""
        found: Counts = next_place(is_stop) - self.places + 1
        return found


def next_place(flags: Flags) -> Counts:
    """[places] the first place from here on whose flag is set; their number where there is none."""
    places = np.where(flags, np.arange(len(flags)), len(flags))
    found: Counts = np.minimum.accumulate(places[::-1])[::-1]
    return found


def rank(lookahead: str, replay: Replay, classifier: Classifier | None = None) -> list[Candidate]:
    """Settings of the lookahead, the most promising first; of each threshold the maximum that goes best with it.

    `disco` needs its classifier.
    """
    maxima = range(1, replay.max_tokens + 1)
    if lookahead == "fixed":
        found = [predicted(Candidate("fixed", {"tokens": length}), replay) for length in maxima]
    else:
        found = [_at_threshold(lookahead, bar, maxima, replay, classifier) for bar in _grid(lookahead)]
    return sorted(found, key=lambda candidate: -candidate.predicted)


def _grid(lookahead: str) -> Sequence[float]:
    grids = {"confidence": CONFIDENCES, "perplexity": PERPLEXITIES, "disco": CONFIDENCES}
    if lookahead not in grids:
        raise unknown_name("lookahead to tune", lookahead, TUNABLE)
    return grids[lookahead]


def _at_threshold(
    lookahead: str, threshold: float, maxima: Sequence[int], replay: Replay, classifier: Classifier | None
) -> Candidate:
    wanted = wanted_at(lookahead, threshold, replay, classifier)
    speeds = {maximum: replay.tokens_per_second(np.minimum(wanted, maximum)) for maximum in maxima}
    best = max(speeds, key=lambda maximum: speeds[maximum])
    return Candidate(lookahead, {"threshold": threshold, "max_tokens": best}, speeds[best], classifier)


def predicted(candidate: Candidate, replay: Replay) -> Candidate:
    """With what replay says of it."""
    options = candidate.options
    if candidate.lookahead == "fixed":
        wanted = np.full(replay.num_tokens, min(options["tokens"], replay.max_tokens))
    else:
        wanted = wanted_at(candidate.lookahead, options["threshold"], replay, candidate.classifier)
        wanted = np.minimum(wanted, min(options["max_tokens"], replay.max_tokens))
    return replace(candidate, predicted=replay.tokens_per_second(wanted))


def wanted_at(lookahead: str, threshold: float, replay: Replay, classifier: Classifier | None = None) -> Counts:
    """[tokens] how many a round drafts that begins there, whatever the maximum."""
    if lookahead == "perplexity":
        return _until_perplexity(replay, threshold)
    if lookahead == "disco":
        assert classifier is not None
        return replay.behind_stops(chances(classifier, replay.traces) < np.float32(threshold))
    return replay.behind_stops(replay.confidences < np.float32(threshold))


def _until_perplexity(replay: Replay, threshold: float) -> Counts:
    """While the perplexity of all that the round has drafted is at most the threshold."""
    surprise = np.cumsum([0.0, *-np.log(np.maximum(replay.confidences, MIN_CONFIDENCE))])
    wanted = np.full(replay.num_tokens, replay.max_tokens)
    goes_on = np.ones(replay.num_tokens, dtype=bool)
    for depth in range(1, replay.max_tokens):
        ends = np.minimum(replay.places + depth, replay.num_tokens)
        is_sure = surprise[ends] - surprise[replay.places] <= depth * math.log(threshold)
        wanted = np.where(goes_on & ~is_sure, depth, wanted)
        goes_on &= is_sure
    return wanted


@torch.inference_mode()
def chances(classifier: Classifier, traces: Sequence[Trace]) -> Numbers:
    """[tokens] that each drafted token is kept, by the classifier."""
    parts = [
        join_features(trace.top_probs, trace.entropies, torch.arange(len(trace)), classifier.last_position)
        for trace in traces
    ]
    found: Numbers = classifier.logits(torch.cat(parts)).sigmoid().numpy()
    return found


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The most promising; of those that did just the same the first."""
    different: dict[float, Candidate] = {}
    for candidate in candidates:
        different.setdefault(candidate.predicted, candidate)
    return list(different.values())[:count]
