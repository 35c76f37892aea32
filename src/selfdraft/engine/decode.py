"""The loop: draft, verify, accept, commit. Every method runs through it; none is named in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..protocols import PlanContext, Probe, Runner
from ..types import NO_DRAFT, OFF, Plan, StepRecord, TokenLogprobs, Verdict
from .beginnings import Beginnings
from .draft import run_drafts
from .logprobs import emitted_logprobs
from .method import Cohort, Method, share_skip
from .prefill import Prompts
from .state import KeptRound, State, TextSequence
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
        self,
        runner: Runner,
        state: State,
        beginnings: Beginnings,
        worth: Worth | None = None,
        max_stall_seconds: float | None = None,
    ) -> None:
        self._runner, self._state, self._beginnings, self._worth = runner, state, beginnings, worth
        self._prompts = Prompts(runner, state, lambda one: state.cohorts[one.sequence_id].method.strategy, beginnings)
        self._max_stall_seconds = max_stall_seconds
        self._round_seconds: float | None = None  # of the last one
        self._optimise_seconds = 0.0  # since the last round was planned

    def join(self, sequences: Sequence[TextSequence], cohort: Cohort) -> None:
        self._state.join(sequences, cohort)

    def step(self, others_come: bool = False) -> None:
        """One round. `others_come`: into the rows of those that leave."""
        runner, state = self._runner, self._state
        if not state.active:
            self._prompts.read_all()
        self._optimise_seconds += self._prompts.begin()
        if not state.active:
            return
        watch = Stopwatch(runner)
        switch = self._worth.of(state) if self._worth else None
        plans = make_plans(runner, state, switch is None or switch.is_drafting)
        self._optimise_seconds += watch.lap()
        target_pass = TargetPass(runner, state)
        is_waiting = target_pass.drafts_wait(plans)
        drafts = [NO_DRAFT] * len(plans) if is_waiting else run_drafts(runner, state, plans)
        draft_seconds = watch.lap()
        self._read_beside(watch)
        judged, output = target_pass(drafts, is_waiting)
        for cohort, _ in state.groups:
            cohort.method.strategy.meanwhile()
        verdicts = by_row(judged, lambda one: one.cohort.method.accept.accept(one.targets, one.cohort.sampler))
        verdicts = state.commit(verdicts, output.is_compact)
        verify_seconds = watch.lap()

        recorded = watch.record_seconds
        seconds = (draft_seconds, verify_seconds, self._optimise_seconds + recorded, recorded)
        verified = by_row(judged, lambda one: one.targets.drafts)
        logprobs = by_row(judged, lambda one: logprobs_of(one, verdicts))
        rounds = [(*row, seconds) for row in zip(plans, verified, verdicts, logprobs, strict=True)]
        steps = make_records(state, judged, rounds, output.captured)
        watch.lap()
        observe(state, steps)
        self._optimise_seconds = watch.lap()
        state.record(rounds, watch.seconds)
        self._round_seconds = watch.seconds - recorded
        if switch is not None and not recorded:
            counts = {one.sequence_id: len(verdict.tokens) for one, verdict in zip(state.active, verdicts, strict=True)}
            switch.observe_rows(any(draft.tokens for draft in drafts), counts, watch.seconds, others_come)
        self.drop_finished()

    def _read_beside(self, watch: Stopwatch) -> None:
        """Here, nothing that was begun ahead of time is lost: a draft has been taken, and a pass goes by other rows."""
        if self._state.reading:
            allowed = self._max_stall_seconds
            if allowed is None and self._round_seconds is not None:
                allowed = STALL_ROUNDS * self._round_seconds
            with watch.paused():
                self._prompts.read_some(allowed)

    def drop_finished(self) -> None:
        """Those that have ended leave, for whatever reason; what was read and written stays known."""
        for sequence in self._state.finished:
            if sequence.sequence_id in self._state.begun:  # else not all of it is in its row
                self._beginnings.keep(self._state.cache, sequence)
        end(self._state, self._state.drop_finished())

    def close(self) -> None:
        end(self._state, self._state.cancel())


def by_row(judged: Sequence[Judged], function: Callable[[Judged], Iterable[T]]) -> list[T]:
    """What the function finds for the rows of each cohort, in the order of all rows."""
    if len(judged) == 1:
        return list(function(judged[0]))
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


def make_plans(runner: Runner, state: State, drafts: bool) -> list[Plan]:
    """What each row drafts with; if not `drafts`, nothing where the text does not depend on it."""

    def known(cohort: Cohort) -> Plan | None:
        is_plain = not drafts or cohort.method.is_idle(len(state.active))
        return OFF if is_plain and cohort.may_do_without else cohort.method.only_plan

    same = {cohort: known(cohort) for cohort, _ in state.groups}
    plans = [
        same[cohort] or cohort.method.strategy.plan(sequence.sequence_id, context_of(runner, state, sequence))
        for sequence, cohort in zip(state.active, state.row_cohorts, strict=True)
    ]
    for cohort, rows in state.groups:
        if same[cohort] is None and cohort.shares_skip and len(rows) > 1:
            share_skip(plans, sorted(rows, key=lambda row: state.active[row].sequence_id))
    return plans


def context_of(runner: Runner, state: State, sequence: TextSequence) -> PlanContext:
    def probe(num_tokens: int, before: int = 0) -> Probe:
        end = len(sequence.tokens) - before
        first = max(0, end - num_tokens)
        return runner.probe(state.cache, sequence.tokens[first:end], first, sequence.row)

    # Tested drafts are what they would be alone.
    num_rows = 1 if state.cohorts[sequence.sequence_id].is_tested else len(state.active)
    return PlanContext(len(sequence.tokens), sequence.num_generated, probe, sequence.tokens, num_rows)


def logprobs_of(judged: Judged, verdicts: Sequence[Verdict]) -> list[tuple[TokenLogprobs, ...]]:
    """Of what the rows of a cohort emitted, where they were asked for."""
    own = [verdicts[row] for row in judged.rows]
    return emitted_logprobs(judged.targets, own, judged.cohort.sampler.options.logprobs)


def make_records(
    state: State, judged: Sequence[Judged], rounds: Sequence[KeptRound], captured: Mapping[str, torch.Tensor]
) -> list[StepRecord]:
    """What happened to the rows, for the methods' parts to learn from; nothing where none of them does."""

    def of_cohort(one: Judged) -> Iterator[StepRecord]:
        method = one.cohort.method
        for place, row in enumerate(one.rows):
            plan, draft, verdict, logprobs, seconds = rounds[row]
            states = states_of(verdict, row, {name: captured[name] for name in method.strategy.needs})
            wants_choices = bool(draft.tokens) and method.drafter_of(plan).needs_choices
            choices = tuple(one.targets.choices[place]) if wants_choices else ()
            sequence_id = state.active[row].sequence_id
            yield StepRecord(sequence_id, plan, draft, verdict, *seconds, states, choices, logprobs)

    def asks(one: Judged) -> bool:
        method = one.cohort.method
        learns = method.learns and not (one.cohort.may_do_without and method.is_idle(len(state.active)))
        return learns or any(draft.tokens for draft in one.targets.drafts)

    is_asked = any(map(asks, judged))
    return by_row(judged, of_cohort) if is_asked else []


def states_of(verdict: Verdict, row: int, captured: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Captured states of the inputs of what the row emitted."""
    return {name: hidden[row, verdict.columns] for name, hidden in captured.items()}


def observe(state: State, steps: Sequence[StepRecord]) -> None:
    for cohort, step in zip(state.row_cohorts, steps, strict=False):
        method = cohort.method
        method.strategy.observe(step.sequence_id, step)
        method.lookahead.observe(step)
        if step.draft.tokens and not step.plan.paths:
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
