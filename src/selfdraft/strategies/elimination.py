"""Greedy elimination: drop, one after the other, the sub-layer that loses least log-probability per second it saves.

Scored teacher-forced on calibration texts with the target's keys and values: behind every token, how much less probable
does the sub-network find what the target would say (on average over the target's distribution: their divergence)? All
candidates of a step share one pass: a row that runs all that is left, and behind each candidate one more row, which has
just left it out. What a candidate loses changes little from step to step, so all are ranked once, on a few of the
texts, and then only the most promising are scored again, until the best of them beats what all others promised when
last seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F

from ..passes import States
from ..protocols import Probe

MIN_MATCH = 0.5
"""A draft that meets fewer of the target's choices never pays."""
MAX_ROWS = 16
"""Candidates of one pass; bounds its memory."""


@dataclass(frozen=True)
class Sample:
    """Known tokens, and what the target says behind each of them."""

    probe: Probe
    log_probs: torch.Tensor  # [tokens, vocabulary], the target's

    @cached_property
    def choices(self) -> torch.Tensor:
        """[tokens] the target's."""
        return self.log_probs.argmax(-1)


@dataclass(frozen=True)
class Quality:
    """Mean over the tokens of all samples: log-probability lost, and how often the target's choice is met."""

    lost: float
    match: float


@dataclass(frozen=True)
class Point:
    """One sub-network of the frontier: what it skips, how well it drafts, what each candidate lost when last seen."""

    skipped: frozenset[int]
    quality: Quality
    losses: Mapping[int, float] = field(default_factory=dict)


def sample(probe: Probe) -> Sample:
    """With the target's own choices: those of the row that skips nothing."""
    states = probe.begin()
    for number in range(probe.num_sublayers):
        states = probe.run(number, states)
    return Sample(probe, _log_probs(probe, states))


def qualities(samples: Sequence[Sample], skipped: frozenset[int], candidates: Sequence[int] = ()) -> list[Quality]:
    """Of the sub-network, and of it without each candidate (in ascending order) as well."""
    totals = [_totals(one, skipped, frozenset(candidates)) for one in samples]
    count = sum(len(one.choices) for one in samples)
    return [Quality(lost / count, match / count) for lost, match in torch.stack(totals).sum(0).tolist()]


def _totals(one: Sample, skipped: frozenset[int], candidates: frozenset[int]) -> torch.Tensor:
    """[rows, 2]: sums of what is lost and of matches."""
    states = _sweep(one.probe, skipped, candidates)
    rows = []
    for row in range(len(states)):  # scores of all rows at once would not fit
        found = _log_probs(one.probe, states.pick([row]))
        lost = F.kl_div(found, one.log_probs, reduction="sum", log_target=True)
        rows.append(torch.stack((lost.double(), (found.argmax(-1) == one.choices).double().sum())))
    return torch.stack(rows)


@torch.inference_mode()
def _log_probs(probe: Probe, states: States) -> torch.Tensor:
    """[tokens, vocabulary] of a single row."""
    return probe.scores(states)[0].float().log_softmax(-1)


def _sweep(probe: Probe, skipped: frozenset[int], candidates: frozenset[int]) -> States:
    states = probe.begin()
    for number in range(probe.num_sublayers):
        before = states
        states = (probe.skip if number in skipped else probe.run)(number, before)
        if number in candidates:
            states = States.join([states, probe.skip(number, before.pick([0]))])
    return states


def eliminate(
    samples: Sequence[Sample],
    savings: Mapping[int, float],
    *,
    min_match: float = MIN_MATCH,
    batch: int = 3,
    num_ranking: int | None = None,
    known: Sequence[Point] = (),
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Point]:
    """The frontier, point by point, from nothing skipped on, until fewer than `min_match` of the choices are met.

    `savings`: the seconds that each sub-layer which may go takes. `num_ranking`: of the samples, for the first look at
    all candidates; None: all. `known`: points found before, to go on behind them.
    """
    skipped: frozenset[int] = known[-1].skipped if known else frozenset()
    (quality,) = [known[-1].quality] if known else qualities(samples, skipped)
    if not known:
        yield Point(skipped, quality)
    losses = dict(known[-1].losses) if known else {}
    while len(skipped) < len(savings) and quality.match >= min_match:
        losses = losses or rank(samples[:num_ranking], skipped, [one for one in savings if one not in skipped])
        number, quality = _cheapest(samples, skipped, quality, savings, losses, batch)
        skipped |= {number}
        progress(max(len(skipped) / len(savings), min(1.0, (1 - quality.match) / (1 - min_match))))
        yield Point(skipped, quality, dict(losses))


def rank(samples: Sequence[Sample], skipped: frozenset[int], candidates: Sequence[int]) -> dict[int, float]:
    """What each candidate loses."""
    losses: dict[int, float] = {}
    for first in range(0, len(candidates), MAX_ROWS):
        chosen = sorted(candidates[first : first + MAX_ROWS])
        base, *found = qualities(samples, skipped, chosen)
        losses.update({number: one.lost - base.lost for number, one in zip(chosen, found, strict=True)})
    return losses


def _cheapest(
    samples: Sequence[Sample],
    skipped: frozenset[int],
    base: Quality,
    savings: Mapping[int, float],
    losses: dict[int, float],
    batch: int,
) -> tuple[int, Quality]:
    """The sub-layer to drop next, and what is left without it; `losses` remembers what each lost when last scored."""
    seen: dict[int, Quality] = {}

    def price(number: int) -> float:
        return losses[number] / savings[number]

    while True:
        waiting = sorted((number for number in savings if number not in skipped and number not in seen), key=price)
        best = min(seen, key=price, default=None)
        if best is not None and (not waiting or price(best) <= price(waiting[0])):
            return best, seen[best]
        chosen = sorted(waiting[:batch])
        _, *found = qualities(samples, skipped, chosen)
        seen.update(zip(chosen, found, strict=True))
        losses.update({number: one.lost - base.lost for number, one in zip(chosen, found, strict=True)})
