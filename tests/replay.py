"""Replay, round by round: what a lookahead would have done to texts whose traces are known.

For any lookahead, and slow: the replay of calibrate/tuning.py, which is fast, is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from selfdraft.calibrate.traces import Trace
from selfdraft.calibrate.tuning import RoundSeconds
from selfdraft.passes import DraftStats, Outline
from selfdraft.protocols import Lookahead
from selfdraft.types import Draft, Plan, StepRecord, Verdict

Rule = Callable[[Trace, int, int], bool]
"""Whether to draft on after the token at a position, as the one of that depth in its round."""


@dataclass(frozen=True)
class Round:
    """Of one text: where it began, and how many tokens were drafted, kept and emitted."""

    position: int
    drafted: int
    kept: int
    emitted: int


@dataclass
class Replayed:
    seconds_of: RoundSeconds
    rounds: list[Round] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0

    def add(self, one: Round) -> None:
        self.rounds.append(one)
        self.num_tokens += one.emitted
        self.seconds += self.seconds_of.of(one.drafted)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


def replay(traces: Iterable[Trace], lookahead: Lookahead, seconds: RoundSeconds, max_tokens: int = 48) -> Replayed:
    """It is told what became of its rounds and what they took, so it learns as it does elsewhere."""
    found = Replayed(seconds)
    for number, trace in enumerate(traces):
        for one in _rounds(trace, _ask(lookahead, number), max_tokens):
            found.add(one)
            lookahead.observe(_record(number, trace, one, seconds))
        lookahead.end(number)
    return found


def _rounds(trace: Trace, rule: Rule, max_tokens: int) -> Iterator[Round]:
    position = 0
    while position < len(trace):
        drafted = _draft(trace, position, rule, max_tokens)
        kept = _num_kept(trace, position, drafted)
        yield (one := Round(position, drafted, kept, min(kept + 1, len(trace) - position)))
        position += one.emitted


def _ask(lookahead: Lookahead, number: int) -> Rule:
    return lambda trace, index, depth: bool(lookahead.wants_more(stats_of(trace, index, depth, number)))


def stats_of(trace: Trace, index: int, depth: int, number: int = 0) -> DraftStats:
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


def _draft(trace: Trace, position: int, rule: Rule, max_tokens: int) -> int:
    """Where it has gone wrong already, a draft has something to propose even if the text itself suggests nothing."""
    drafted, agrees = 0, True
    while (place := position + drafted) < len(trace) and drafted < max_tokens:
        if agrees and not trace.is_drafted[place]:
            break
        agrees = agrees and bool(trace.is_kept[place])
        drafted += 1
        if not rule(trace, place, drafted):
            break
    return drafted


def _num_kept(trace: Trace, position: int, drafted: int) -> int:
    kept = 0
    while kept < drafted and trace.is_kept[position + kept]:
        kept += 1
    return kept


def _record(number: int, trace: Trace, one: Round, seconds: RoundSeconds) -> StepRecord:
    seen = trace.confidences[one.position : one.position + one.drafted].tolist()
    confidences = tuple(seen if trace.has_scores else seen[:1] * one.drafted)
    parents = tuple(range(-1, one.drafted - 1))
    draft = Draft((0,) * one.drafted, parents, one.drafted, confidences, num_draft_steps=one.drafted)
    verdict = Verdict((0,) * one.emitted, tuple(range(min(one.kept, one.emitted))))
    return StepRecord(number, Plan(), draft, verdict, one.drafted * seconds.draft, seconds.verify(one.drafted))
