"""Greedy elimination: drop, one after the other, the sub-layer that loses least log-probability per second it saves.

Scored teacher-forced on calibration texts with the target's keys and values: after every token, how much less probable
does the sub-network find what the target would say (on average over the target's distribution: their divergence)? A
candidate branches off the sub-network so far where it is left out, and candidates share a pass. What one loses changes
little from step to step, so all are ranked once, on a few of the texts, and then only the most promising are scored
again, until the best of them beats what all others promised when last seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from ..passes import States
from ..protocols import Probe

MIN_MATCH = 0.55
"""A draft that meets fewer of the target's choices never pays."""
MAX_ROWS = 16
"""Candidates of one pass; bounds its memory."""


@dataclass(frozen=True)
class Sample:
    """Known tokens, and what the target says after each of them."""

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
    network = Network(samples, skipped)
    return [network.quality, *(network.score(sorted(candidates)) if candidates else ())]


class Network:
    """A sub-network on its way through all samples: its streams before every sub-layer, where candidates branch off.

    So a candidate costs only what comes after it. The streams of those scored last are kept: one of them goes on.
    """

    def __init__(self, samples: Sequence[Sample], skipped: frozenset[int]) -> None:
        self._samples, self.skipped = samples, skipped
        self._streams = [_streams(one.probe, skipped) for one in samples]
        self._branches: dict[int, list[list[States]]] = {}

    @cached_property
    def quality(self) -> Quality:
        ends = [streams[-1] for streams in self._streams]
        return _mean([_sums(one, end)[0] for one, end in zip(self._samples, ends, strict=True)], self._samples)

    def score(self, candidates: Sequence[int], is_kept: bool = False) -> list[Quality]:
        """Of the sub-network without each of them as well, in ascending order."""
        sums = []
        for one, streams in zip(self._samples, self._streams, strict=True):
            after = self._branch_off(one.probe, streams, candidates)
            sums.append(_sums(one, after[-1]))
            if is_kept:
                self._keep(candidates, after)
        return [_mean(list(rows), self._samples) for rows in zip(*sums, strict=True)]

    def _branch_off(self, probe: Probe, streams: Sequence[States], candidates: Sequence[int]) -> list[States]:
        """The streams after every sub-layer from the first candidate on; each candidate adds a row."""
        found: list[States] = []
        for number in range(candidates[0], probe.num_sublayers):
            parts = [_after(probe, number, found[-1], self.skipped)] if found else []
            if number in candidates:
                parts.append(probe.skip(number, streams[number]))
            found.append(States.join(parts) if len(parts) > 1 else parts[0])
        return found

    def _keep(self, candidates: Sequence[int], after: Sequence[States]) -> None:
        for row, number in enumerate(candidates):
            own = [states.pick(slice(row, row + 1)) for states in after[number - candidates[0] :]]
            self._branches.setdefault(number, []).append(own)

    def go_on(self, number: int) -> None:
        """Without this one, which was scored and kept: what it saw is copied, what the others saw is let go."""
        for streams, own in zip(self._streams, self._branches[number], strict=True):
            streams[number + 1 :] = [States(*map(_copied, (states.hidden, states.source))) for states in own]
        self.skipped |= {number}
        self.__dict__.pop("quality", None)
        self.forget()

    def forget(self) -> None:
        self._branches = {}


def _streams(probe: Probe, skipped: frozenset[int]) -> list[States]:
    """Before every sub-layer, and after the last."""
    found = [probe.begin()]
    for number in range(probe.num_sublayers):
        found.append(_after(probe, number, found[-1], skipped))
    return found


def _after(probe: Probe, number: int, states: States, skipped: frozenset[int]) -> States:
    return (probe.skip if number in skipped else probe.run)(number, states)


def _copied(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.clone()


def _sums(one: Sample, states: States) -> list[torch.Tensor]:
    """Of each row [2]: what is lost, and matches."""
    rows = []
    for row in range(len(states)):  # scores of all rows at once would not fit
        found = _log_probs(one.probe, states.pick([row]))
        matches = (found.argmax(-1) == one.choices).double().sum()
        rows.append(torch.stack((lost(found, one).double(), matches)))
    return rows


def lost(log_probs: torch.Tensor, one: Sample) -> torch.Tensor:
    """Log-probability that the sub-network lost, on average over what the target might say; the sum over tokens."""
    return F.kl_div(log_probs, one.log_probs, reduction="sum", log_target=True)


def _mean(sums: Sequence[torch.Tensor], samples: Sequence[Sample]) -> Quality:
    count = sum(len(one.choices) for one in samples)
    total, matches = torch.stack(list(sums)).sum(0).tolist()
    return Quality(total / count, matches / count)


@torch.inference_mode()
def _log_probs(probe: Probe, states: States) -> torch.Tensor:
    """[tokens, vocabulary] of a single row."""
    return probe.scores(states)[0].float().log_softmax(-1)


def eliminate(
    samples: Sequence[Sample],
    savings: Mapping[int, float],
    *,
    min_match: float = MIN_MATCH,
    batch: int = 2,
    num_ranking: int | None = None,
    known: Sequence[Point] = (),
    progress: Callable[[float], None] = lambda share: None,
    has_time: Callable[[], bool] = lambda: True,
) -> Iterator[Point]:
    """The frontier, point by point, from nothing skipped on, until fewer than `min_match` of the choices are met.

    `savings`: the seconds that each sub-layer which may go takes. `num_ranking`: of the samples, for the first look at
    all candidates; None: all. `known`: points found before, to go on from there. `has_time`: without it a point that is
    not found yet is left out.
    """
    network = Network(samples, known[-1].skipped if known else frozenset())
    quality = known[-1].quality if known else network.quality
    if not known:
        yield Point(network.skipped, quality)
    losses = dict(known[-1].losses) if known else {}
    while len(network.skipped) < len(savings) and quality.match >= min_match:
        losses = losses or rank(samples[:num_ranking], network.skipped, savings, has_time)
        found = _cheapest(network, quality, savings, losses, batch, has_time) if losses else None
        if found is None:
            return
        number, quality = found
        network.go_on(number)
        progress(max(len(network.skipped) / len(savings), min(1.0, (1 - quality.match) / (1 - min_match))))
        yield Point(network.skipped, quality, dict(losses))


def rank(
    samples: Sequence[Sample], skipped: frozenset[int], candidates: Iterable[int], has_time: Callable[[], bool]
) -> dict[int, float]:
    """What each candidate that is still there loses; nothing where time is up."""
    network, waiting = Network(samples, skipped), sorted(set(candidates) - skipped)
    losses: dict[int, float] = {}
    for first in range(0, len(waiting), MAX_ROWS):
        if not has_time():
            return {}
        chosen = waiting[first : first + MAX_ROWS]
        found = network.score(chosen)
        losses.update({number: one.lost - network.quality.lost for number, one in zip(chosen, found, strict=True)})
    return losses


def _cheapest(
    network: Network,
    base: Quality,
    savings: Mapping[int, float],
    losses: dict[int, float],
    batch: int,
    has_time: Callable[[], bool],
) -> tuple[int, Quality] | None:
    """The sub-layer to drop next, and what is left without it; `losses` remembers what each lost when last scored.

    None: time is up.
    """
    seen: dict[int, Quality] = {}

    def price(number: int) -> float:
        return losses[number] / savings[number]

    while True:
        left = (number for number in savings if number not in network.skipped and number not in seen)
        waiting = sorted(left, key=price)
        best = min(seen, key=price, default=None)
        if best is not None and (not waiting or price(best) <= price(waiting[0])):
            return best, seen[best]
        if not has_time():
            return None
        chosen = sorted(waiting[:batch])
        found = network.score(chosen, is_kept=True)
        seen.update(zip(chosen, found, strict=True))
        losses.update({number: one.lost - base.lost for number, one in zip(chosen, found, strict=True)})
