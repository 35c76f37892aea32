"""`prune`: sub-layers dropped one after the other, whichever costs least; how many to go without is decided by seconds.

Ours. `selfdraft calibrate` drops, again and again, the sub-layer that loses least log-probability per second it saves,
and keeps every skip set on the way: the frontier. Each round drafts with the set that promises most tokens per second
here: by the seconds measured on this device, after a text of this length, and at the acceptance to be expected. That is
the share of the target's choices that the set met in calibration texts which did not choose it, (hits + 1) over
(tokens + 2) so that few cannot make it high, corrected by how much more or less often drafts of this text fail, and of
the text before it; drafts are held to be as long as they are there. Where no set promises more than plain decoding,
nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..economics import HOPE, LENGTH_STEP, MAX_DRAFTED, Array, LatencyFit, PassCosts, expected_tokens
from ..errors import OptionError, ProfileError
from ..fitting import Kit
from ..options import setting
from ..protocols import Knowledge, PlanContext
from ..types import OFF, FrontierPoint, Plan, SkipSet, StepRecord
from .base import PlainStrategy, damaged
from .elimination import MIN_MATCH, Point, Quality, Sample, eliminate, qualities, sample
from .failures import Failures
from .kept_sets import hits_of, rate_of

KNOWN_LENGTHS = (128, 512, 2048)
"""Texts for which the plan is recorded beforehand where passes are recorded."""
USUAL_LENGTH = 512
"""For which sub-layers are weighed against each other."""
_RESAMPLES = 500
_INTERVAL = 8
"""Rounds between two looks at what promises most."""


@dataclass
class Text:
    """Of one text: what drafts it, and how often that failed."""

    failures: Failures
    plan: Plan | None = None
    num_rounds: int = 0  # since it was looked at what promises most
    num_context: int = USUAL_LENGTH
    num_rows: int = 1


class Prune(PlainStrategy):
    @dataclass(frozen=True)
    class Options:
        max_tokens: int = setting(MAX_DRAFTED, "draft at most N tokens", minimum=1)
        gain: float = setting(0.03, "change the skip set for this share more speed, not for less", minimum=0.0)
        always: bool = setting(False, "draft even where plain decoding promises more")

    can_fit = True
    pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "siblings",
        "settings": {"confidence": {"threshold": 0.9}, "siblings": {"table": "swift", "lookup": 2}},
    }

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        points = read_frontier(knowledge)
        self._options, self._latency = options, knowledge.latency()
        self._plans = [Plan(point.skip, max_draft_tokens=options.max_tokens) for point in points]
        self._match = np.array([point.match for point in points])
        self._rows = {point.skip: row for row, point in enumerate(points)}
        self._texts: dict[int, Text] = {}
        self._last = Failures(HOPE)
        self._rounds: dict[tuple[int, int], Array] = {}
        texts = (Text(self._last, num_context=length) for length in KNOWN_LENGTHS)
        self.known_plans = tuple(dict.fromkeys(map(self._best, texts)))

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self._texts[sequence_id] = Text(self._last.carried())

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        text = self._texts[sequence_id]
        text.num_context, text.num_rows = context.num_context_tokens, context.num_rows
        text.plan = text.plan or self._best(text)
        return text.plan

    def meanwhile(self) -> None:
        for text in self._texts.values():
            if text.num_rounds >= _INTERVAL:
                text.plan, text.num_rounds = self._best(text), 0

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        text = self._texts[sequence_id]
        text.num_rounds += 1
        # else a set that another text's domain chose: its match is not known here
        row = self._rows.get(step.plan.skip)
        if row is not None or not step.draft.tokens:
            text.failures.observe(step, 1.0 if row is None else float(self._match[row]))

    def end(self, sequence_id: int) -> None:
        if text := self._texts.pop(sequence_id, None):
            self._last = text.failures

    def _best(self, text: Text) -> Plan:
        """What promises most tokens per second; the plan there is where that promises about as many."""
        length = min(max(round(text.failures.length), 1), self._options.max_tokens)
        rounds = self._rounds_at(text.num_context, text.num_rows)
        acceptance = np.clip(1 - (1 - self._match) * text.failures.ratio, 0, 1)
        speeds = expected_tokens(acceptance, length)[:, -1] / rounds[:, length]
        row, plain = int(speeds.argmax()), 1 / rounds[0, 0]
        is_off = not self._options.always and plain > speeds[row]
        best, promise = (OFF, plain) if is_off else (self._plans[row], speeds[row])
        if text.plan is None:
            return best
        now = speeds[self._rows[text.plan.skip]] if text.plan.skip else plain
        return best if promise > (1 + self._options.gain) * now else text.plan

    def _rounds_at(self, num_context: int, num_rows: int) -> Array:
        """Their seconds after texts of about this length, that many at a time."""
        key = (num_context // LENGTH_STEP, num_rows)
        if key not in self._rounds:
            costs, skips = self._latency.about(num_context), [plan.skip for plan in self._plans]
            self._rounds[key] = costs.rounds(skips, self._options.max_tokens, num_rows)
        return self._rounds[key]

    @staticmethod
    def fit(kit: Kit, options: Any) -> dict[str, Any]:
        """The frontier, point by point; goes on after the points that an interrupted fit had kept."""
        points = [FrontierPoint.from_json(point) for point in kit.done]
        samples = [sample(probe) for probe in kit.probes]
        count = num_fitting(len(samples))
        fitting, held_out = samples[:count], samples[count:] or samples
        found = eliminate(
            fitting,
            savings(kit.latency),
            num_ranking=-(-len(fitting) // 4),
            known=[_point(kept) for kept in kit.done],
            progress=kit.progress,
            has_time=kit.has_time,
        )
        for point in found:
            points.append(_told(held_out, SkipSet.of_numbers(point.skipped)))
            kit.keep({**points[-1].to_json(), "losses": point.losses, "fitted": vars(point.quality)})
            if point.quality.match >= MIN_MATCH and not kit.has_time():  # after it there would be more
                break
        told = {"surety": _surety(held_out, points, kit.others, kit.latency.at(USUAL_LENGTH))} if kit.others else {}
        return {"frontier": [point.to_json() for point in points], **told}


def num_fitting(num_texts: int) -> int:
    """Of the calibration texts: the first ones choose sets, the others tell how good these are."""
    return max(1, num_texts - round(num_texts / 3))


def savings(latency: LatencyFit) -> dict[int, float]:
    """Seconds that each sub-layer takes after a text of usual length; layer 0 must never be skipped."""
    attention, mlp = latency.at(USUAL_LENGTH).attention, latency.mlp_seconds
    least = 0.05 * (attention + mlp) or 1e-9  # what is too quick to be measured is not free
    parts = [max(attention, least), max(mlp, least)]
    return {number: parts[number % 2] for number in range(2, 2 * latency.num_layers)}


def _told(samples: Sequence[Sample], skip: SkipSet) -> FrontierPoint:
    """What these texts say of it."""
    (told,), num_told = qualities(samples, skip.numbers), sum(len(one.choices) for one in samples)
    return FrontierPoint(skip, told.lost, rate_of(told.match * num_told, num_told) if skip else 1.0)


def _surety(
    texts: Sequence[Sample], points: Sequence[FrontierPoint], others: Sequence[SkipSet], costs: PassCosts
) -> float:
    """That the best of these sets drafts such texts faster than the best of the others."""
    both = [point for point in points if point.skip], [_told(texts, skip) for skip in others]
    if not both[0]:
        return 0.0
    skips = [max(some, key=lambda point: costs.hoped(point.skip, [point.match])[0]).skip for some in both]
    hits = np.array([[sum(row) for row in hits_of(one.probe, skips)] for one in texts])
    return share_faster(skips, hits, np.array([len(one.choices) for one in texts]), costs)


def share_faster(skips: Sequence[SkipSet], hits: Array, num_tokens: Array, costs: PassCosts) -> float:
    """Of resamples of texts: those where the first set promises more than the second. `hits`: [texts, 2]."""
    count = len(hits)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    rates = rate_of(draws @ hits, (draws @ num_tokens)[:, None])
    first, second = (costs.hoped(skip, rate) for skip, rate in zip(skips, rates.T, strict=True))
    return float((first > second).mean())


def _point(kept: Mapping[str, Any]) -> Point:
    """As JSON has it: numbers are text."""
    remembered = {int(number): loss for number, loss in kept["losses"].items()}
    return Point(SkipSet.parse(kept["skip"]).numbers, Quality(**kept["fitted"]), remembered)


def read_frontier(knowledge: Knowledge) -> Sequence[FrontierPoint]:
    """The points that skip something."""
    artefact, command = knowledge.artefact("prune"), f"{knowledge.command('calibrate')} --strategy prune"
    try:
        points = [FrontierPoint.from_json(point) for point in artefact["frontier"]]
        for point in points:
            point.skip.check(knowledge.num_layers)
    except (LookupError, TypeError, ValueError, OptionError) as error:
        raise damaged("frontier of `prune`", error, command) from error
    kept = [point for point in points if point.skip]
    if not kept:
        raise ProfileError(f"the profile's frontier of `prune` has no skip set yet. Go on with: {command}")
    return kept
