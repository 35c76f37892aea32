"""The loop: draft, verify, accept, commit. Every method runs through it; none is named in it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

import torch

from ..protocols import PlanContext, Probe, Runner, Strategy
from ..types import Draft, Plan, StepRecord, TokenLogprobs, Verdict
from .accept import Targets
from .draft import run_drafts
from .logprobs import emitted_logprobs
from .method import Method
from .sampling import Sampler
from .state import State, TextSequence, prefill
from .verify import TargetPass


def decode(
    runner: Runner, state: State, method: Method, sampler: Sampler, is_cancelled: Callable[[], bool]
) -> Generator[list[StepRecord], None, None]:
    """Rounds until every sequence is finished; each yields one record per sequence that took part."""
    strategy = method.strategy
    optimise_seconds = 0.0  # since the last round was planned
    try:
        optimise_seconds = prefill(runner, state, strategy)
        while state.unfinished and not is_cancelled():
            watch = Stopwatch(runner)
            plans = make_plans(runner, state, strategy)
            optimise_seconds += watch.lap()
            target_pass = TargetPass(runner, state, method, sampler)
            drafts = run_drafts(runner, state, plans, method, sampler)
            draft_seconds = watch.lap()
            targets, captured = target_pass(drafts)
            verdicts = state.commit(method.accept.accept(targets, sampler), targets.output.is_compact)
            verify_seconds = watch.lap()

            recorded = watch.record_seconds
            seconds = (draft_seconds, verify_seconds, optimise_seconds + recorded, recorded)
            logprobs = emitted_logprobs(targets, verdicts, sampler.options.logprobs)
            steps = make_records(state, plans, verdicts, targets, captured, method, seconds, logprobs)
            watch.lap()
            observe(method, steps)
            optimise_seconds = watch.lap()
            for sequence, step in zip(state.active, steps, strict=True):
                sequence.record(step, watch.seconds)
            end(method, state, state.drop_finished())
            yield steps
    finally:
        state.cancel()
        end(method, state, list(state.begun.values()))


class Stopwatch:
    """Laps by the runner's clock, without what recording takes: that is summed up apart."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._began = self._last = runner.seconds()
        self._recorded_before = self._recorded = runner.record_seconds

    def lap(self) -> float:
        """Since the last one."""
        last, recorded = self._last, self._recorded
        self._last, self._recorded = self._runner.seconds(), self._runner.record_seconds
        return self._last - last - (self._recorded - recorded)

    @property
    def seconds(self) -> float:
        """Of all laps, recording included."""
        return self._last - self._began

    @property
    def record_seconds(self) -> float:
        return self._recorded - self._recorded_before


def make_plans(runner: Runner, state: State, strategy: Strategy) -> list[Plan]:
    """What each row drafts with."""
    contexts = (context_of(runner, state, row) for row in range(len(state.active)))
    return [strategy.plan(row.sequence_id, context) for row, context in zip(state.active, contexts, strict=True)]


def context_of(runner: Runner, state: State, row: int) -> PlanContext:
    sequence = state.active[row]

    def probe(num_tokens: int, before: int = 0) -> Probe:
        end = len(sequence.tokens) - before
        first = max(0, end - num_tokens)
        return runner.probe(state.cache, sequence.tokens[first:end], first, row)

    return PlanContext(len(sequence.tokens), sequence.num_generated, probe, sequence.tokens)


def make_records(
    state: State,
    plans: Sequence[Plan],
    verdicts: Sequence[Verdict],
    targets: Targets,
    captured: Mapping[str, torch.Tensor],
    method: Method,
    seconds: tuple[float, float, float, float],
    logprobs: Sequence[tuple[TokenLogprobs, ...]],
) -> list[StepRecord]:
    """What happened to each row."""
    records = []
    for row, (sequence, plan, verdict) in enumerate(zip(state.active, plans, verdicts, strict=True)):
        draft: Draft = targets.drafts[row]
        states = states_of(verdict, row, captured) if captured else {}
        wants_choices = bool(draft.tokens) and method.drafter_of(plan).needs_choices
        choices = tuple(targets.choices[row]) if wants_choices else ()
        step = StepRecord(sequence.sequence_id, plan, draft, verdict, *seconds, states, choices, logprobs[row])
        records.append(step)
    return records


def states_of(verdict: Verdict, row: int, captured: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Captured states of the inputs of what the row emitted."""
    return {name: hidden[row, verdict.columns] for name, hidden in captured.items()}


def observe(method: Method, steps: Sequence[StepRecord]) -> None:
    for step in steps:
        method.strategy.observe(step.sequence_id, step)
        method.lookahead.observe(step)
        if step.draft.tokens:
            method.drafter_of(step.plan).observe(step)


def end(method: Method, state: State, sequences: Sequence[TextSequence]) -> None:
    """Let go of what the method's parts remember of these texts."""
    for sequence in sequences:
        del state.begun[sequence.sequence_id]
        sequence.report = method.strategy.report(sequence.sequence_id)
        method.strategy.end(sequence.sequence_id)
        method.lookahead.end(sequence.sequence_id)
        for drafter in method.drafters.values():
            drafter.end(sequence.sequence_id)
