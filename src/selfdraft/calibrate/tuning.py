"""Tuning: the settings of a lookahead that decode fastest, by replay first, then by the clock.

Replay tells what every setting of a grid would have done to texts whose traces are known, for all beginnings of a
round at once. It is exact up to a draft's first wrong token: after it a draft would go its own way, and the rule is
shown the text instead. So it serves to choose settings with, not to report speed: the few best are then measured, with
the usual setting and with plain decoding, on the same prompts in turns, and the fastest measured wins.
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
from .round_seconds import RoundSeconds
from .traces import Trace

MAX_TOKENS = 15  # the longest drafts that are tried: with the token before them, a pass of 16 columns verifies them
CONFIDENCES = (*(step / 20 for step in range(1, 20)), 0.97, 0.98, 0.99, 0.995)
PERPLEXITIES = (1.005, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
TUNABLE = ("fixed", "confidence", "perplexity")  # `disco` is tuned when it is trained, the others tune themselves

Counts = npt.NDArray[np.int64]
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
        settings = drafted_by.get("settings", {})
        own = {**settings.get(self.lookahead, {}), **self.options}  # a strategy may have the same name (`fixed`)
        return {**drafted_by, "lookahead": self.lookahead, "settings": {**settings, self.lookahead: own}}


class Replay:
    """Traces one after another as arrays, and what rounds take: every rule is tried on all of them at once."""

    def __init__(self, traces: Sequence[Trace], seconds: RoundSeconds, max_tokens: int = MAX_TOKENS) -> None:
        self.traces, self.max_tokens = traces, max_tokens
        self.plain_seconds = seconds.of(0)
        self._seconds = [seconds.of(count) for count in range(max_tokens + 1)]
        self.places: Counts = np.arange(sum(map(len, traces)))
        lengths: Counts = np.array([len(trace) for trace in traces])
        ends = np.cumsum(lengths)
        self._until_end = np.repeat(ends, lengths) - self.places
        self._begins: Counts = np.repeat(ends - lengths, lengths)
        self._has_scores = np.repeat([trace.has_scores for trace in traces], lengths)
        is_drafted = np.concatenate([trace.is_drafted.numpy() for trace in traces])
        is_kept = np.concatenate([trace.is_kept.numpy() for trace in traces])
        self._can_keep = next_place(~(is_drafted & is_kept)) - self.places
        undrafted = next_place(~is_drafted) - self.places
        # Where it has gone wrong already, a draft has something to propose even if the text itself suggests nothing.
        self._can_draft = np.where(self._can_keep < undrafted, self._until_end, np.minimum(undrafted, self._until_end))

    def tokens_per_second(self, num_wanted: Counts) -> float:
        """`num_wanted` [tokens]: how many a round would draft that begins there."""
        drafted = np.minimum(num_wanted, self._can_draft)
        emitted = np.minimum(np.minimum(drafted, self._can_keep) + 1, self._until_end)
        place, seconds, steps, lengths = 0, 0.0, emitted.tolist(), drafted.tolist()
        while place < len(self.places):
            seconds += self._seconds[lengths[place]]
            place += steps[place]
        return len(self.places) / seconds if seconds else math.inf

    def shown(self, depth: int) -> tuple[Counts, Counts]:
        """[tokens] where the token stands that a rule is shown at this depth of a round, and its position in its text.

        Of a looked-up draft all that is ever known is the match it began with.
        """
        ahead = np.minimum(self.places + depth - 1, len(self.places) - 1)
        return np.where(self._has_scores, ahead, self.places), self.places - self._begins + depth - 1


def next_place(flags: npt.NDArray[np.bool_]) -> Counts:
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
        certainty = certainties(lookahead, replay, classifier)
        found = []
        for threshold in PERPLEXITIES if lookahead == "perplexity" else CONFIDENCES:
            wanted = _until_below(certainty, lookahead, threshold)
            speeds = {maximum: replay.tokens_per_second(np.minimum(wanted, maximum)) for maximum in maxima}
            best = max(speeds, key=speeds.__getitem__)
            options = {"threshold": threshold, "max_tokens": best}
            found.append(Candidate(lookahead, options, speeds[best], classifier))
    return sorted(found, key=lambda candidate: -candidate.predicted)


def predicted(candidate: Candidate, replay: Replay) -> Candidate:
    """With what replay says of it."""
    options = candidate.options
    maximum = min(options.get("tokens", options.get("max_tokens")), replay.max_tokens)
    wanted = np.full(len(replay.places), maximum)
    if candidate.lookahead != "fixed":
        certainty = certainties(candidate.lookahead, replay, candidate.classifier)
        wanted = np.minimum(_until_below(certainty, candidate.lookahead, options["threshold"]), maximum)
    return replace(candidate, predicted=replay.tokens_per_second(wanted))


def certainties(lookahead: str, replay: Replay, classifier: Classifier | None = None) -> Numbers:
    """[depths, tokens] what the rule goes by at each depth of a round that begins there: high enough, it goes on."""
    depths = range(1, replay.max_tokens + 1)
    if lookahead == "disco":
        assert classifier is not None
        return np.stack([_chances(classifier, replay, depth) for depth in depths])
    if lookahead not in TUNABLE:
        raise unknown_name("lookahead to tune", lookahead, TUNABLE)
    known = np.concatenate([trace.confidences.numpy() for trace in replay.traces])
    confidences: Numbers = np.stack([known[replay.shown(depth)[0]] for depth in depths])
    if lookahead == "confidence":
        return confidences
    surprise = np.cumsum(-np.log(np.maximum(confidences, MIN_CONFIDENCE)), axis=0, dtype=np.float64)
    found: Numbers = np.exp(-surprise / np.array(depths)[:, None]).astype(np.float32)
    return found


def _until_below(certainty: Numbers, lookahead: str, threshold: float) -> Counts:
    """[tokens] how many a round drafts: up to the first that falls below, and that one; else as many as there are."""
    is_stop = certainty < np.float32(1 / threshold if lookahead == "perplexity" else threshold)
    found: Counts = np.where(is_stop.any(0), is_stop.argmax(0) + 1, len(certainty))
    return found


@torch.inference_mode()
def _chances(classifier: Classifier, replay: Replay, depth: int) -> Numbers:
    """[tokens] that the token at this depth is kept, by the classifier."""
    top_probs = torch.cat([trace.top_probs for trace in replay.traces])
    entropies = torch.cat([trace.entropies for trace in replay.traces])
    rows, positions = map(torch.from_numpy, replay.shown(depth))
    features = join_features(top_probs[rows], entropies[rows], positions, classifier.last_position)
    found: Numbers = classifier.logits(features).sigmoid().numpy()
    return found


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The most promising; of those that did just the same the first."""
    different: dict[float, Candidate] = {}
    for candidate in candidates:
        different.setdefault(candidate.predicted, candidate)
    return list(different.values())[:count]
