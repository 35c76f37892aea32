"""The sequences of a batch: committed tokens, cache rows, stop rules."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from ..passes import PassRequest, Site, Text
from ..protocols import Cache, Runner, Strategy
from ..types import FinishReason, Source, StepRecord, TokenLogprobs, Verdict
from .method import Cohort

PREFILL_CHUNK = 512
"""Prompt tokens a pass; bounds the memory that masks and activations of a long prompt take."""
Limit = Literal["length", "context"]
DRAFT_SLOTS = 64
"""Cache slots after the longest text, for what is drafted and not kept."""


def never_stops(token: int) -> bool:
    return False


@dataclass(frozen=True)
class RowRules:
    """What one row of a call has for itself; `stops_behind` is asked once after every emitted token."""

    eos_tokens: frozenset[int] = frozenset()
    stops_behind: Callable[[int], bool] = never_stops
    lead: tuple[int, ...] = ()
    ends_at: Limit = "length"


@dataclass
class TextSequence:
    """One text in the making. All tokens but the last are in the cache: the last is the next pass's first input.

    `sequence_id` is the engine's own and unique among its texts; `noise_sequence` is the caller's number of the row.
    `lead` is what processors alone see before the text (a caller's padding); it never meets the model. `ends_at` says
    what `max_new_tokens` is: the caller's limit, or all that the model's context has room for. `emitted` was generated
    elsewhere: the text goes on from there. `request` is the same number for texts of one prompt and call. `row` is its
    row of the cache, from `State.join` to its end; `num_known` tokens were there before its prompt was read.
    """

    sequence_id: int
    tokens: list[int]
    max_new_tokens: int
    ends_at: Limit = "length"
    noise_sequence: int = 0
    seed: int = 0
    eos_tokens: frozenset[int] = frozenset()
    stops_behind: Callable[[int], bool] = never_stops
    lead: tuple[int, ...] = ()
    emitted: Sequence[int] = ()
    request: int = -1
    row: int = 0
    num_known: int = 0
    sources: list[Source] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # empty where not asked for
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.request = self.sequence_id if self.request < 0 else self.request
        self.tokens.extend(self.emitted)
        self.sources.extend("target" for _ in self.emitted)

    @property
    def prefix(self) -> list[int]:
        """The text as processors see it."""
        return [*self.lead, *self.tokens]

    @property
    def text(self) -> Text:
        """As rules see it; it grows."""
        return Text(self.lead, self.tokens, self.num_prompt_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_cached(self) -> int:
        return len(self.tokens) - 1

    @property
    def num_slots(self) -> int:
        """Of the cache, at most."""
        return self.num_prompt_tokens + self.max_new_tokens + DRAFT_SLOTS

    @property
    def max_draft_tokens(self) -> int:
        """A round emits one token more than it drafts, so the last token needs no draft."""
        return self.max_new_tokens - self.num_generated - 1

    def append(self, verdict: Verdict) -> Verdict:
        """Commit token by token; the first stop rule that strikes discards the rest."""
        for count, (token, source) in enumerate(zip(verdict.tokens, verdict.sources, strict=True), start=1):
            self.tokens.append(token)
            self.sources.append(source)
            self.finish_reason = self.reason_to_stop(token)
            if self.finish_reason is not None:
                return verdict.cut(count)
        return verdict

    def record(self, step: StepRecord, round_seconds: float) -> None:
        """Remember a round; hidden states and distributions are for `observe` alone."""
        if step.draft.scores is not None or step.draft.reuse is not None:
            step = replace(step, draft=replace(step.draft, scores=None, reuse=None))
        if step.captured or step.choices:
            step = replace(step, captured={}, choices=())
        self.steps.append(step)
        self.logprobs.extend(step.logprobs)
        self.decode_seconds += round_seconds

    def reason_to_stop(self, token: int) -> FinishReason | None:
        """Which rule ends the text after `token`, its last one."""
        if token in self.eos_tokens:
            return "eos"
        if self.stops_behind(token):
            return "stop"
        return self.ends_at if self.num_generated >= self.max_new_tokens else None


class State:
    """The unfinished sequences, in the order of their cache rows. A row keeps its place while others come and go."""

    def __init__(self, sequences: Sequence[TextSequence], cache: Cache) -> None:
        self.active: list[TextSequence] = []
        self._seat(sequences)
        self.begun: dict[int, TextSequence] = {}  # what the method's parts know of, by sequence id
        self.cohorts: dict[int, Cohort] = {}  # by sequence id
        self.cache = cache

    @property
    def unfinished(self) -> bool:
        return bool(self.active)

    @property
    def rows(self) -> list[int]:
        """Of the cache."""
        return [sequence.row for sequence in self.active]

    @property
    def starts(self) -> list[int]:
        return [sequence.num_cached for sequence in self.active]

    @property
    def sites(self) -> list[Site]:
        """Where each row chooses its next token."""
        return [Site(item.noise_sequence, item.num_generated, len(item.steps), item.seed) for item in self.active]

    def join(self, sequences: Sequence[TextSequence], cohort: Cohort) -> None:
        self._seat(sequences)
        self.cohorts.update((sequence.sequence_id, cohort) for sequence in sequences)

    def _seat(self, sequences: Sequence[TextSequence]) -> None:
        """Give them the lowest free rows, in this order."""
        taken = set(self.rows)
        for sequence, row in zip(sequences, (row for row in itertools.count() if row not in taken), strict=False):
            sequence.row = row
        self.active = sorted((*self.active, *sequences), key=lambda sequence: sequence.row)

    def cohort(self, row: int) -> Cohort:
        return self.cohorts[self.active[row].sequence_id]

    @property
    def groups(self) -> list[tuple[Cohort, list[int]]]:
        """The places in `active` of each cohort."""
        rows: dict[Cohort, list[int]] = defaultdict(list)
        for row in range(len(self.active)):
            rows[self.cohort(row)].append(row)
        return list(rows.items())

    def commit(self, verdicts: Sequence[Verdict], is_compact: bool = False) -> list[Verdict]:
        """Append what each row may emit; what a tree kept moves to the end of its verified slots, or `is_compact`."""
        for sequence, verdict in zip(self.active, () if is_compact else verdicts, strict=False):
            first = sequence.num_cached + 1
            self.cache.move(sequence.row, [first + node for node in verdict.nodes], first)
        return [sequence.append(verdict) for sequence, verdict in zip(self.active, verdicts, strict=True)]

    def drop_finished(self) -> list[TextSequence]:
        """Give up the cache rows of finished sequences, which are returned; the others stay where they are."""
        finished = [sequence for sequence in self.active if sequence.finish_reason is not None]
        if finished:
            self.active = [sequence for sequence in self.active if sequence.finish_reason is None]
            self.cache.free_rows([sequence.row for sequence in finished])
        return finished

    def cancel(self) -> None:
        for sequence in self.active:
            sequence.finish_reason = "cancelled"
        self.active = []


def prefill(runner: Runner, state: State, strategy: Strategy, joined: Sequence[TextSequence]) -> float:
    """Fill the cache with what is not known of these texts, but their last tokens.

    Neighbours of one length share passes: no row is padded.

    What the strategy does with a prompt is not part of the prefill: those seconds are returned, and decoding has them.
    """
    begin_seconds = 0.0
    for span, group in itertools.groupby(joined, key=lambda sequence: (sequence.num_known, sequence.num_cached)):
        sequences = list(group)
        began = runner.seconds()
        captured = _prefill_rows(runner, state, sequences, span, strategy)
        filled = runner.seconds()
        for index, sequence in enumerate(sequences):
            sequence.prefill_seconds = filled - began
            strategy.begin(sequence.sequence_id, {name: tensor[index] for name, tensor in captured.items()})
            state.begun[sequence.sequence_id] = sequence
        begin_seconds += runner.seconds() - filled
    for sequence in joined:
        sequence.decode_seconds = begin_seconds
    return begin_seconds


def prefill_needs(strategy: Strategy) -> tuple[str, ...]:
    """The points captured of a prompt."""
    return tuple(dict.fromkeys((*strategy.needs, *strategy.prefill_needs)))


def prompt_chunk(runner: Runner, num_rows: int, needs: Sequence[str]) -> int:
    """Tokens of each row in one pass."""
    return max(PREFILL_CHUNK, max(runner.recorded_prompts, default=0) // (num_rows * max(1, len(needs))))


def _prefill_rows(
    runner: Runner, state: State, sequences: Sequence[TextSequence], span: tuple[int, int], strategy: Strategy
) -> dict[str, torch.Tensor]:
    """What the strategy keeps of the captured states, [rows, span, ...]; nothing for prompts of one token."""
    needs = prefill_needs(strategy)
    captured: dict[str, list[torch.Tensor]] = defaultdict(list)
    size, rows = prompt_chunk(runner, len(sequences), needs), [sequence.row for sequence in sequences]
    for start in range(*span, size):
        end = min(start + size, span[1])
        chunk = [sequence.tokens[start:end] for sequence in sequences]
        request = PassRequest(chunk, [start] * len(rows), rows, capture=needs, needs_scores=False)
        output = runner.forward(request, state.cache)
        for name, states in strategy.condense(output.captured).items():
            captured[name].append(states)
    return {name: torch.cat(parts, dim=1) for name, parts in captured.items()}
