"""The loop: draft, verify, accept, commit. Every method runs through it; none is named in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..protocols import PlanContext, Probe, Runner
from ..types import OFF, Plan, StepRecord, Verdict
from .draft import run_drafts
from .logprobs import emitted_logprobs
from .method import Cohort, Method
from .prefill import Prompts
from .state import State, TextSequence
from .verify import Judged, TargetPass
from .worth import Worth

T = TypeVar("T")
STALL_ROUNDS = 1.5
"""What is read of prompts beside a round takes as long as this many rounds, unless told otherwise."""


class Rounds:
    """Texts join between rounds and leave when they end. After a failure it is over for all of them.

    Where nothing decodes, the prompts of all that have joined are read at once; else a part of them beside each round,
    which takes no longer than `max_stall_seconds` (None: one and a half rounds).
    """

    def __init__(
        self, runner: Runner, state: State, worth: Worth | None = None, max_stall_seconds: float | None = None
    ) -> None:
        self._runner, self._state, self._worth = runner, state, worth
        self._prompts = Prompts(runner, state, lambda one: state.cohorts[one.sequence_id].method.strategy)
        self._max_stall_seconds = max_stall_seconds
        self._round_seconds: float | None = None  # of the last one
        self._optimise_seconds = 0.0  # since the last round was planned

    def join(self, sequences: Sequence[TextSequence], cohort: Cohort) -> None:
        self._state.join(sequences, cohort)

    def step(self) -> list[StepRecord]:
        """One round: a record of each sequence that takes part."""
        runner, state = self._runner, self._state
        if not state.active:
            self._prompts.read_all()
        self._optimise_seconds += self._prompts.begin()
        if not state.active:
            return []
        watch = Stopwatch(runner)
        switch = self._worth.of(state) if self._worth else None
        plans = make_plans(runner, state, switch is None or switch.is_drafting)
        self._optimise_seconds += watch.lap()
        target_pass = TargetPass(runner, state)
        drafts = run_drafts(runner, state, plans)
        draft_seconds = watch.lap()
        self._read_beside(watch)
        judged, output = target_pass(drafts)
        verdicts = by_row(judged, lambda one: one.cohort.method.accept.accept(one.targets, one.cohort.sampler))
        verdicts = state.commit(verdicts, output.is_compact)
        verify_seconds = watch.lap()

        recorded = watch.record_seconds
        seconds = (draft_seconds, verify_seconds, self._optimise_seconds + recorded, recorded)
        steps = by_row(judged, lambda one: make_records(state, one, plans, verdicts, output.captured, seconds))
        watch.lap()
        observe(state, steps)
        self._optimise_seconds = watch.lap()
        for sequence, step in zip(state.active, steps, strict=True):
            sequence.record(step, watch.seconds)
        self._round_seconds = watch.seconds - recorded
        if switch is not None and not recorded:
            switch.observe(any(draft.tokens for draft in drafts), mean_tokens(verdicts), watch.seconds)
        self.drop_finished()
        return steps

    def _read_beside(self, watch: Stopwatch) -> None:
        """Here, nothing that was begun ahead of time is lost: a draft has been taken, and a pass goes by other rows."""
        if self._state.reading:
            allowed = self._max_stall_seconds
            if allowed is None and self._round_seconds is not None:
                allowed = STALL_ROUNDS * self._round_seconds
            with watch.paused():
                self._prompts.read_some(allowed)

    def drop_finished(self) -> None:
        """Those that have ended leave, for whatever reason."""
        end(self._state, self._state.drop_finished())

    def close(self) -> None:
        end(self._state, self._state.cancel())


def by_row(judged: Sequence[Judged], function: Callable[[Judged], Sequence[T]]) -> list[T]:
    """What the function finds for the rows of each cohort, in the order of all rows."""
    found = {row: value for one in judged for row, value in zip(one.rows, function(one), strict=True)}
    return [found[row] for row in range(len(found))]


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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count; what is under way belongs to the lap."""
        began, recorded = self._runner.seconds(is_idle=True), self._runner.record_seconds
        yield
        seconds, recorded = self._runner.seconds() - began, self._runner.record_seconds - recorded
        self._began, self._last = self._began + seconds, self._last + seconds
        self._recorded_before, self._recorded = self._recorded_before + recorded, self._recorded + recorded

    @property
    def seconds(self) -> float:
        """Of all laps, recording included."""
        return self._last - self._began

    @property
    def record_seconds(self) -> float:
        return self._recorded - self._recorded_before


def mean_tokens(verdicts: Sequence[Verdict]) -> float:
    """Emitted by a row."""
    return sum(len(verdict.tokens) for verdict in verdicts) / len(verdicts)


def make_plans(runner: Runner, state: State, drafts: bool) -> list[Plan]:
    """What each row drafts with; if not `drafts`, nothing where the text does not depend on it."""
    plans = []
    for row, sequence in enumerate(state.active):
        cohort = state.cohort(row)
        is_asked = drafts or not cohort.may_do_without
        context = context_of(runner, state, sequence)
        plans.append(cohort.method.strategy.plan(sequence.sequence_id, context) if is_asked else OFF)
    return plans


def context_of(runner: Runner, state: State, sequence: TextSequence) -> PlanContext:
    def probe(num_tokens: int, before: int = 0) -> Probe:
        end = len(sequence.tokens) - before
        first = max(0, end - num_tokens)
        return runner.probe(state.cache, sequence.tokens[first:end], first, sequence.row)

    return PlanContext(len(sequence.tokens), sequence.num_generated, probe, sequence.tokens, len(state.active))


def make_records(
    state: State,
    judged: Judged,
    plans: Sequence[Plan],
    verdicts: Sequence[Verdict],
    captured: Mapping[str, torch.Tensor],
    seconds: tuple[float, float, float, float],
) -> list[StepRecord]:
    """What happened to the rows of a cohort."""
    (method, sampler), targets, records = (judged.cohort.method, judged.cohort.sampler), judged.targets, []
    own = [verdicts[row] for row in judged.rows]
    logprobs = emitted_logprobs(targets, own, sampler.options.logprobs)
    for place, (row, verdict) in enumerate(zip(judged.rows, own, strict=True)):
        plan, draft = plans[row], targets.drafts[place]
        states = states_of(verdict, row, {name: captured[name] for name in method.strategy.needs})
        wants_choices = bool(draft.tokens) and method.drafter_of(plan).needs_choices
        choices = tuple(targets.choices[place]) if wants_choices else ()
        sequence_id = state.active[row].sequence_id
        records.append(StepRecord(sequence_id, plan, draft, verdict, *seconds, states, choices, logprobs[place]))
    return records


def states_of(verdict: Verdict, row: int, captured: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Captured states of the inputs of what the row emitted."""
    return {name: hidden[row, verdict.columns] for name, hidden in captured.items()}


def observe(state: State, steps: Sequence[StepRecord]) -> None:
    for row, step in enumerate(steps):
        method = state.cohort(row).method
        method.strategy.observe(step.sequence_id, step)
        method.lookahead.observe(step)
        if step.draft.tokens:
            method.drafter_of(step.plan).observe(step)


def end(state: State, sequences: Sequence[TextSequence]) -> None:
    """Let go of what the methods' parts remember of these texts."""
    for sequence in sequences:
        method: Method = state.cohorts.pop(sequence.sequence_id).method
        if state.begun.pop(sequence.sequence_id, None) is None:  # its prompt was still being read
            continue
        sequence.report = method.strategy.report(sequence.sequence_id)
        method.strategy.end(sequence.sequence_id)
        method.lookahead.end(sequence.sequence_id)
        for drafter in method.drafters.values():
            drafter.end(sequence.sequence_id)
