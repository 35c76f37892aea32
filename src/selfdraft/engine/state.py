"""The sequences of a batch: committed tokens, cache rows, stop rules."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ..lazy import Made
from ..passes import Site, Text
from ..protocols import Cache
from ..types import Draft, FinishReason, Plan, Source, StepRecord, TokenLogprobs, Verdict
from .method import Cohort

Limit = Literal["length", "context"]
DRAFT_SLOTS = 64
"""Cache slots after the longest text, for what is drafted and not kept."""
Seconds = tuple[float, float, float, float]
"""Of a round: drafting, verification, optimising, and what recording has of that."""
KeptRound = tuple[Plan, Draft, Verdict, tuple[TokenLogprobs, ...], Seconds]
"""What is remembered of a text's round: a tuple costs a twentieth of the `StepRecord` that a reader gets."""


def never_stops(token: int) -> bool:
    return False


class RowRules(NamedTuple):
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
    row of the cache, from `State.join` to its end; `num_known` tokens were there before its prompt was read, `num_read`
    are by now. `prefill_seconds` is its share, by tokens, of the passes that read them.
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
    num_read: int = 0
    sources: list[Source] = field(default_factory=list)
    rounds: list[KeptRound] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # empty where not asked for
    finish_reason: FinishReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self._end = len(self.tokens) + self.max_new_tokens
        self.request = self.sequence_id if self.request < 0 else self.request
        self.tokens.extend(self.emitted)
        self.sources.extend("target" for _ in self.emitted)

    @property
    def prefix(self) -> list[int]:
        """The text as processors see it."""
        return [*self.lead, *self.tokens]

    @cached_property
    def text(self) -> Text:
        """As rules see it; it grows."""
        return Text(self.lead, self.tokens, self.num_prompt_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def is_read(self) -> bool:
        return self.num_read >= len(self.tokens) - 1

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
        return self._end - len(self.tokens) - 1

    def append(self, verdict: Verdict) -> Verdict:
        """Commit token by token; the first stop rule that strikes discards the rest."""
        num_drafted = len(verdict.nodes)
        for count, token in enumerate(verdict.tokens):
            self.tokens.append(token)
            self.sources.append("draft" if count < num_drafted else "target")
            self.finish_reason = self.reason_to_stop(token)
            if self.finish_reason is not None:
                return verdict.cut(count + 1)
        return verdict

    def reason_to_stop(self, token: int) -> FinishReason | None:
        """Which rule ends the text after `token`, its last one."""
        if token in self.eos_tokens:
            return "eos"
        if self.stops_behind(token):
            return "stop"
        return self.ends_at if len(self.tokens) >= self._end else None


def steps_of(sequence_id: int, rounds: Sequence[KeptRound]) -> tuple[StepRecord, ...]:
    """A text's rounds as their readers know them."""
    return tuple(
        StepRecord(sequence_id, plan, draft, verdict, *seconds, logprobs=logprobs)
        for plan, draft, verdict, logprobs, seconds in rounds
    )


class State:
    """The unfinished sequences. A row keeps its place while others come and go.

    `active` take part in rounds, in the order of their cache rows. `reading` have a row, too, in the order in which
    they came: not all of their tokens are in the cache yet.
    """

    def __init__(self, cache: Cache) -> None:
        self.active: list[TextSequence] = []
        self.rows: list[int] = []  # of the cache
        self.reading: list[TextSequence] = []
        self.begun: dict[int, TextSequence] = {}  # what the method's parts know of, by sequence id
        self.cohorts: dict[int, Cohort] = {}  # by sequence id
        self.cache = cache

    @property
    def starts(self) -> list[int]:
        return [len(sequence.tokens) - 1 for sequence in self.active]

    @property
    def rooms(self) -> list[int]:
        """What each row may draft."""
        return [sequence.max_draft_tokens for sequence in self.active]

    @property
    def sites(self) -> Sequence[Site]:
        """Where each row chooses its next token."""
        counts = [(len(item.tokens) - item.num_prompt_tokens, len(item.rounds)) for item in self.active]
        texts = [(item.noise_sequence, item.seed) for item in self.active]
        return Made(lambda: [Site(number, *count, seed) for (number, seed), count in zip(texts, counts, strict=True)])

    def join(self, sequences: Sequence[TextSequence], cohort: Cohort) -> None:
        self.seat(sequences)
        self.cohorts.update((sequence.sequence_id, cohort) for sequence in sequences)

    def seat(self, sequences: Sequence[TextSequence]) -> None:
        """Give them the lowest free rows, in this order."""
        taken = {sequence.row for sequence in (*self.active, *self.reading)}
        for sequence, row in zip(sequences, (row for row in itertools.count() if row not in taken), strict=False):
            sequence.row = row
        self.reading += sequences

    def begin(self, sequences: Sequence[TextSequence]) -> None:
        """They have been read and take part from now on."""
        begun = {sequence.sequence_id for sequence in sequences}
        self.reading = [sequence for sequence in self.reading if sequence.sequence_id not in begun]
        self._keep(sorted((*self.active, *sequences), key=lambda sequence: sequence.row))

    def _keep(self, active: list[TextSequence]) -> None:
        """Others than before."""
        self.active, self.rows = active, [sequence.row for sequence in active]
        for name in ("row_cohorts", "groups"):
            vars(self).pop(name, None)

    @cached_property
    def row_cohorts(self) -> list[Cohort]:
        """In the order of `active`."""
        return [self.cohorts[sequence.sequence_id] for sequence in self.active]

    @cached_property
    def groups(self) -> list[tuple[Cohort, list[int]]]:
        """The places in `active` of each cohort."""
        rows: dict[Cohort, list[int]] = defaultdict(list)
        for row, cohort in enumerate(self.row_cohorts):
            rows[cohort].append(row)
        return list(rows.items())

    def commit(self, verdicts: Sequence[Verdict], is_compact: bool = False) -> list[Verdict]:
        """Append what each row may emit; what a tree kept moves to the end of its verified slots, or `is_compact`."""
        for sequence, verdict in zip(self.active, () if is_compact else verdicts, strict=False):
            if verdict.nodes:
                first = sequence.num_cached + 1
                self.cache.move(sequence.row, [first + node for node in verdict.nodes], first)
        return [sequence.append(verdict) for sequence, verdict in zip(self.active, verdicts, strict=True)]

    def record(self, rounds: Sequence[KeptRound], round_seconds: float) -> None:
        """Remember a round of each row; hidden states and distributions are not kept."""
        for sequence, kept in zip(self.active, rounds, strict=True):
            plan, draft, verdict, logprobs, seconds = kept
            if draft.scores is not None or draft.reuse is not None:
                kept = plan, replace(draft, scores=None, reuse=None), verdict, logprobs, seconds
            sequence.rounds.append(kept)
            sequence.decode_seconds += round_seconds
            if logprobs:
                sequence.logprobs += logprobs

    @property
    def finished(self) -> list[TextSequence]:
        """Those that have ended and still have a row."""
        return [sequence for sequence in (*self.active, *self.reading) if sequence.finish_reason is not None]

    def drop_finished(self) -> list[TextSequence]:
        """Give up the cache rows of finished sequences, which are returned; the others stay where they are."""
        finished = self.finished
        if finished:
            self._keep([sequence for sequence in self.active if sequence.finish_reason is None])
            self.reading = [sequence for sequence in self.reading if sequence.finish_reason is None]
            self.cache.free_rows([sequence.row for sequence in finished])
        return finished

    def cancel(self) -> list[TextSequence]:
        """All that have not ended."""
        cancelled, self.active, self.reading = [*self.active, *self.reading], [], []
        for sequence in cancelled:
            sequence.finish_reason = "cancelled"
        self._keep([])
        return cancelled
