"""Tuning: the settings of a lookahead that decode fastest, by replay first, then by the clock.

What rounds take is measured on one text, decoded with a lookahead that drafts another number of tokens in every round,
so that all lengths are measured side by side; the median of its rounds stands for each.

Replay tells what every setting of a grid would have done to texts whose traces are known, for all beginnings of a
round at once. It is exact up to a draft's first wrong token: after it a draft would go its own way, and the rule is
shown the text instead. So it serves to choose settings with, not to report speed: the few best are then measured, with
the usual setting and with plain decoding, on the same prompts in turns, and the fastest measured wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..drafted import DraftStats
from ..economics import seconds_of_width
from ..engine.engine import Engine
from ..lookahead.base import PlainLookahead
from ..lookahead.disco import Classifier, Disco, join_features
from ..lookahead.learned import Learned
from ..lookahead.perplexity import MIN_CONFIDENCE
from ..options import NoOptions
from ..progress import Progress, no_progress
from ..protocols import Runner
from ..registry import in_use
from ..types import Prompt, StepRecord
from .traces import Trace

MAX_TOKENS = 15  # the longest drafts that are tried: with the token before them, a pass of 16 columns verifies them
CONFIDENCES = (*(step / 20 for step in range(1, 20)), 0.97, 0.98, 0.99, 0.995)
PERPLEXITIES = (1.005, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
TUNABLE = ("fixed", "confidence", "perplexity")  # `disco` is tuned when it is trained, the others tune themselves

_LENGTHS = (1, 2, 4, 8)  # of drafts that are timed where no pass is recorded

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
            return in_use({**drafted_by, "lookahead": Disco.of(self.classifier, Disco.Options(**self.options))})
        settings = drafted_by.get("settings", {})
        own = {**settings.get(self.lookahead, {}), **self.options}  # a strategy may have the same name (`fixed`)
        return in_use({**drafted_by, "lookahead": self.lookahead, "settings": {**settings, self.lookahead: own}})


class Replay:
    """Traces one after another as arrays, and what rounds take: every rule is tried on all of them at once."""

    def __init__(self, traces: Sequence[Trace], seconds: RoundSeconds, max_tokens: int = MAX_TOKENS) -> None:
        self.traces, self.max_tokens, self._rounds = traces, max_tokens, seconds
        self.plain_seconds = seconds.of(0)
        self._seconds = [seconds.of(count) for count in range(max_tokens + 1)]
        self.slowest_seconds = max(self._seconds[:2])  # of a token: drafts of one that are all refused
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

    def of_first(self, count: int) -> Replay:
        """The same for the first traces alone."""
        return Replay(self.traces[:count], self._rounds, self.max_tokens)

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


# ------------------------------------------------------------------------------------------------ what rounds take


@dataclass(frozen=True)
class RoundSeconds:
    """What a round takes: `draft` for each drafted token, `verify` of N drafted ones (0: plain decoding)."""

    draft: float
    verify: Callable[[int], float]

    def of(self, num_drafted: int) -> float:
        return num_drafted * self.draft + self.verify(num_drafted)


class Sweep(PlainLookahead):
    """Drafts each of `lengths` in turn, a round each."""

    Options = NoOptions

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._num_rounds = lengths, 0
        self.max_tokens = max(lengths)
        self._length = Learned(lengths[0])

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return stats.depth < self._length.on(stats.depth.device)

    def observe(self, step: StepRecord) -> None:
        self._num_rounds += 1
        self._length.set(self._lengths[self._num_rounds % len(self._lengths)])


def measure_rounds(
    engine: Engine,
    method: Mapping[str, Any],
    prompts: Sequence[Prompt],
    num_tokens: int,
    max_tokens: int,
    progress: Progress = no_progress,
    is_over: Callable[[], bool] = lambda: False,
) -> RoundSeconds:
    """Of drafts of up to `max_tokens`, in texts of `num_tokens`; the first prompt also warms up.

    Once it `is_over` a text is left after a round of each length, and the others are left out.
    """
    lengths = lengths_to_measure(engine.runner, max_tokens)
    drafting = in_use({**method, "lookahead": Sweep(lengths)})
    plain_steps: list[StepRecord] = []
    steps: list[StepRecord] = []
    for number, prompt in enumerate((prompts[0], *prompts)):
        progress(number, len(prompts) + 1, "timing rounds")
        for kind, kept in (({"strategy": "off"}, plain_steps), (drafting, steps)):
            rounds = itertools.count()
            options: dict[str, Any] = {**kind, "cancel": lambda done=rounds: is_over() and next(done) > len(lengths)}
            generation = engine.generate(prompt.tokens, max_new_tokens=num_tokens, **options)
            kept.extend(generation.steps if number or is_over() else ())
        if is_over():
            break
    return fit_rounds(steps, plain_steps, engine.runner.is_recording)


def lengths_to_measure(runner: Runner, max_tokens: int) -> list[int]:
    """Where passes are recorded, those that fill a width; else a few."""
    recorded = [width - 1 for width in runner.recorded_widths] if runner.is_recording else _LENGTHS
    return sorted({min(length, max_tokens) for length in (*recorded, max_tokens) if length > 0})


def fit_rounds(steps: Sequence[StepRecord], plain_steps: Sequence[StepRecord], is_recorded: bool) -> RoundSeconds:
    """`steps` with drafts of several lengths, `plain_steps` without any."""
    by_length: dict[int, list[StepRecord]] = {}
    for step in (*plain_steps, *steps):
        by_length.setdefault(step.draft.num_draft_steps, []).append(step)
    rounds = {
        length: median(step.verify_seconds + step.optimise_seconds - step.record_seconds for step in some)
        for length, some in by_length.items()
    }
    drafting = {length: median(step.draft_seconds for step in some) for length, some in by_length.items() if length}
    each, once = _line(drafting)
    known = {length + 1: seconds + (once if length else 0.0) for length, seconds in rounds.items()}
    return RoundSeconds(each, lambda num_drafted: _verify_seconds(known, num_drafted, is_recorded))


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """(of each drafted token, once a round), neither negative."""
    lengths, values = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
    if not len(lengths):
        return 0.0, 0.0
    if len(lengths) == 1 or (slope := float(np.polyfit(lengths, values, 1)[0])) < 0:
        return float((values / lengths).mean()), 0.0
    once = float((values - slope * lengths).mean())
    return (slope, once) if once >= 0 else (float((lengths @ values) / (lengths @ lengths)), 0.0)


def _verify_seconds(known: Mapping[int, float], num_drafted: int, is_recorded: bool) -> float:
    """By width; what plain decoding takes says nothing about the others."""
    others = {width: seconds for width, seconds in known.items() if width > 1}
    if not num_drafted or not others:
        return known.get(1, min(known.values()))
    return max(0.0, seconds_of_width(others, num_drafted + 1, is_recorded))
