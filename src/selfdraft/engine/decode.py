"""The loop: draft, verify, accept, commit. Every method runs through it; none is named in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..protocols import Drafter, Lookahead, Runner, Strategy
from ..types import Draft, Plan, StepRecord, Verdict
from .draft import run_drafts
from .sampling import Sampler
from .state import State, prefill
from .verify import Targets, verify


@dataclass(frozen=True)
class Method:
    """The four axes of one call: which sub-layers, how far, what drafts, what is kept."""

    strategy: Strategy
    lookahead: Lookahead
    drafters: Mapping[str, Drafter]
    drafter: str
    accept: Callable[..., list[Verdict]]


def decode(
    runner: Runner, state: State, method: Method, sampler: Sampler, is_cancelled: Callable[[], bool]
) -> Iterator[list[StepRecord]]:
    """Rounds until every sequence is finished; each yields one record per sequence that took part."""
    strategy, lookahead = method.strategy, method.lookahead
    observe_seconds = 0.0
    try:
        prefill(runner, state, strategy)
        while state.unfinished and not is_cancelled():
            began = runner.seconds()
            plans = [strategy.plan(sequence.sequence_id, sequence.context) for sequence in state.active]
            planned = runner.seconds()
            drafts = run_drafts(runner, state, plans, lookahead, method.drafters, method.drafter, sampler)
            drafted = runner.seconds()
            targets = verify(runner, state, drafts, sampler, capture=strategy.needs)
            verdicts = method.accept(targets.drafts, targets.scores, sampler, targets.sequences, targets.indices)
            verdicts = state.commit(verdicts)
            verified = runner.seconds()

            seconds = (drafted - planned, verified - drafted, planned - began + observe_seconds)
            steps = make_records(state, plans, drafts, verdicts, targets, seconds)
            for step in steps:
                strategy.observe(step.sequence_id, step)
                lookahead.observe(step)
            ended = runner.seconds()
            observe_seconds = ended - verified
            for sequence, step in zip(state.active, steps, strict=True):
                sequence.record(step, ended - began)
            state.drop_finished()
            yield steps
    finally:
        state.cancel()
        for sequence in state.begun:
            strategy.end(sequence.sequence_id)


def make_records(
    state: State,
    plans: Sequence[Plan],
    drafts: Sequence[Draft],
    verdicts: Sequence[Verdict],
    targets: Targets,
    seconds: tuple[float, float, float],
) -> list[StepRecord]:
    """What happened to each row; captured states end with the last emitted token's input."""
    records = []
    for row, sequence in enumerate(state.active):
        captured = {name: states[row, : len(verdicts[row].tokens)] for name, states in targets.captured.items()}
        records.append(StepRecord(sequence.sequence_id, plans[row], drafts[row], verdicts[row], *seconds, captured))
    return records
