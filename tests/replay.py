"""Replay, round by round: what a lookahead would have done to texts whose traces are known.

For any lookahead, and slow: the replay of calibrate/tuning.py, which is fast, is held against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from selfdraft.calibrate.traces import Trace
from selfdraft.calibrate.tuning import RoundSeconds
from selfdraft.drafted import DraftStats, Outline
from selfdraft.protocols import Lookahead
from selfdraft.types import Draft, Plan, StepRecord, Verdict


@dataclass(frozen=True)
class Round:
    """Of one text: where it began, and how many tokens were drafted, kept and emitted."""

    position: int
    drafted: int
    kept: int
    emitted: int


@dataclass(frozen=True)
class Replayed:
    rounds: list[Round]
    seconds: RoundSeconds

    @property
    def tokens_per_second(self) -> float:
        return sum(one.emitted for one in self.rounds) / sum(self.seconds.of(one.drafted) for one in self.rounds)


def replay(traces: Iterable[Trace], lookahead: Lookahead, seconds: RoundSeconds, max_tokens: int = 48) -> Replayed:
    """It is told what became of its rounds and what they took, so it learns as it does elsewhere."""
    found = Replayed([], seconds)
    for number, trace in enumerate(traces):
        asked = lambda index, depth: bool(lookahead.wants_more(_stats(trace, index, depth, number)))  # noqa: B023, E731
        for one in _rounds(trace, asked, max_tokens):
            found.rounds.append(one)
            lookahead.observe(_record(number, trace, one, seconds))
        lookahead.end(number)
    return found


def _rounds(trace: Trace, wants_more: Callable[[int, int], bool], max_tokens: int) -> Iterator[Round]:
    position = 0
    while position < len(trace):
        drafted = _draft(trace, position, wants_more, max_tokens)
        kept = len(list(itertools.takewhile(bool, trace.is_kept[position : position + drafted])))
        yield (one := Round(position, drafted, kept, min(kept + 1, len(trace) - position)))
        position += one.emitted


def _draft(trace: Trace, position: int, wants_more: Callable[[int, int], bool], max_tokens: int) -> int:
    """Where it has gone wrong already, a draft has something to propose even if the text itself suggests nothing."""
    drafted, agrees = 0, True
    while (place := position + drafted) < len(trace) and drafted < max_tokens:
        if agrees and not trace.is_drafted[place]:
            break
        agrees = agrees and bool(trace.is_kept[place])
        drafted += 1
        if not wants_more(place, drafted):
            break
    return drafted


def _stats(trace: Trace, index: int, depth: int, number: int) -> DraftStats:
    """What a lookahead is shown after the token at `index` of text `number`; of a looked-up draft its first match."""
    seen = index if trace.has_scores else index - depth + 1
    row = slice(seen, seen + 1)
    return DraftStats(
        depth=torch.tensor([depth]),
        index=torch.tensor([index]),
        match_length=trace.match_lengths[row],
        sequence_ids=torch.tensor([number]),
        scores=torch.zeros(1, 1) if trace.has_scores else None,
        peak=trace.confidences[row],
        outline=Outline(trace.top_probs[row], trace.entropies[row]),
    )


def _record(number: int, trace: Trace, one: Round, seconds: RoundSeconds) -> StepRecord:
    seen = trace.confidences[one.position : one.position + one.drafted].tolist()
    confidences = tuple(seen if trace.has_scores else seen[:1] * one.drafted)
    parents = tuple(range(-1, one.drafted - 1))
    draft = Draft((0,) * one.drafted, parents, one.drafted, confidences, num_draft_steps=one.drafted)
    verdict = Verdict((0,) * one.emitted, tuple(range(min(one.kept, one.emitted))))
    return StepRecord(number, Plan(), draft, verdict, one.drafted * seconds.draft, seconds.verify(one.drafted))
