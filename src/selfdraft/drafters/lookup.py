"""`lookup`: propose what followed the last words the last time they occurred (prompt lookup decoding).

Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding). The longest n-gram that ends the
text and occurs earlier in prompt or output wins; among equals the newest. No pass of the model is needed, so a wrong
guess costs only verification width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..chains import DraftedChain, DraftTask, nothing_to_draw
from ..errors import OptionError
from ..options import check, setting
from ..passes import DraftStats
from ..protocols import Cache, DraftRows, Host, Proposal, Runner
from ..types import PAD, StepRecord
from .base import PlainDrafter, PlainSession

MAX_PLACES = 128
"""Earlier places of the last token that are looked at."""


@dataclass(frozen=True)
class Match:
    tokens: Sequence[int] = ()
    length: int = 0


def find_matches(
    tokens: Sequence[int], max_ngram: int, min_ngram: int, max_tokens: int, max_matches: int = 1
) -> list[Match]:
    """Different continuations of earlier occurrences of the text's last n tokens: the longest n first, then the newest.

    A continuation that only shortens an earlier one is not different.
    """
    found = [(_match_length(tokens, end, max_ngram), end) for end in _earlier(tokens)]
    matches: list[Match] = []
    for length, end in sorted(found, reverse=True):
        path = list(tokens[end + 1 : end + 1 + max_tokens])
        if length < min_ngram or len(matches) == max_matches:
            break
        if not any(list(match.tokens[: len(path)]) == path for match in matches):
            matches.append(Match(path, length))
    return matches


def _earlier(tokens: Sequence[int]) -> list[int]:
    """Where the last token stood before: the newest places."""
    places, last = [], len(tokens) - 1
    place = tokens.index(tokens[-1])
    while place < last:
        places.append(place)
        place = tokens.index(tokens[-1], place + 1)
    return places[-MAX_PLACES:]


def _match_length(tokens: Sequence[int], end: int, longest: int) -> int:
    """How many tokens ending at `end` equal the text's last ones."""
    length = 1
    while length < longest and length <= end and tokens[end - length] == tokens[-1 - length]:
        length += 1
    return length


class Lookup(PlainDrafter):
    @dataclass(frozen=True)
    class Options:
        max_ngram: int = setting(8, "longest n-gram to look for", minimum=1)
        min_ngram: int = setting(2, "shortest n-gram that counts as a match", minimum=1)
        max_tokens: int = setting(12, "tokens to propose after a match", minimum=1)

        def __post_init__(self) -> None:
            check(self, "lookup")
            if self.min_ngram > self.max_ngram:
                raise OptionError(
                    f"lookup.min_ngram={self.min_ngram} is above lookup.max_ngram={self.max_ngram}; nothing would match"
                )

    def __init__(self, options: Options, host: Host) -> None:
        super().__init__(options, host)
        self.reliability = Reliability()
        self._lengths: dict[int, int] = {}  # of the match that each text drafts by

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> LookupSession:
        options = self.options
        found = [
            find_matches(tokens, options.max_ngram, options.min_ngram, options.max_tokens) for tokens in rows.committed
        ]
        matches = [some[0] if some else Match() for some in found]
        self._lengths.update((text, match.length) for text, match in zip(rows.sequence_ids, matches, strict=True))
        return LookupSession(matches, [self.reliability.of(match.length) for match in matches])

    def observe(self, step: StepRecord) -> None:
        self.reliability.learn(self._lengths[step.sequence_id], step.chain_outcomes)

    def end(self, sequence_id: int) -> None:
        self._lengths.pop(sequence_id, None)

    def forget(self) -> None:
        self.reliability = Reliability()


class Reliability:
    """How often a looked-up token is kept: 1 - 2^-n after a match of n tokens, until experience says otherwise."""

    PRIOR, MEMORY = 4.0, 0.98
    """What the first guess weighs against tokens seen, and what is left of these after each round."""

    def __init__(self) -> None:
        self._kept: dict[int, float] = {}
        self._seen: dict[int, float] = {}

    def of(self, length: int) -> float:
        guess = 1.0 - 2.0**-length
        return (self.PRIOR * guess + self._kept.get(length, 0.0)) / (self.PRIOR + self._seen.get(length, 0.0))

    def learn(self, length: int, outcomes: Sequence[bool]) -> None:
        self._kept[length] = self.MEMORY * self._kept.get(length, 0.0) + sum(outcomes)
        self._seen[length] = self.MEMORY * self._seen.get(length, 0.0) + len(outcomes)


class LookupSession(PlainSession):
    """Proposes one known continuation per row, token by token, on the host: the device is not asked.

    `confidences`: how sure of each row's tokens; without them it is certain.
    """

    device = torch.device("cpu")

    def __init__(self, matches: Sequence[Match], confidences: Sequence[float] | None = None) -> None:
        width = max(len(match.tokens) for match in matches) + 1
        padded = [[*match.tokens, *[PAD] * (width - len(match.tokens))] for match in matches]
        self._tokens = torch.tensor(padded)
        self._match_length = torch.tensor([match.length for match in matches])
        self._confidence = torch.ones(len(matches)) if confidences is None else torch.tensor(confidences)
        self._depth = 0

    def chain(self, task: DraftTask) -> DraftedChain:
        """All is known beforehand, so the rule is asked about all depths at once."""
        num_rows, num_depths = len(task.caps), min(self._tokens.shape[1] - 1, max(task.caps))
        if num_depths <= 0:
            return DraftedChain((), ())
        depth = torch.arange(num_depths).repeat(num_rows)
        sequences, indices, _ = torch.tensor(task.sites).repeat_interleave(num_depths, 0).unbind(1)
        ids, lengths = torch.tensor(task.sequence_ids), self._match_length
        rows = [part.repeat_interleave(num_depths) for part in (lengths, ids, self._confidence)]
        tokens = self._tokens[:, :num_depths]
        stats = DraftStats(
            depth + 1, indices + depth, rows[0], rows[1], peak=rows[2], token=tokens.flatten(), sequences=sequences
        )
        choice = task.rule(stats, nothing_to_draw)
        wants_more, confidence = (part.view(num_rows, -1) for part in (choice.wants_more, choice.confidence))
        goes_on = (tokens != PAD) & wants_more & (torch.tensor(task.caps)[:, None] > depth.view(num_rows, -1) + 1)
        return _until_over(tokens.tolist(), goes_on.tolist(), confidence.tolist(), task.caps)

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        column = min(self._depth, self._tokens.shape[1] - 1)
        self._depth += 1
        return Proposal(tokens=self._tokens[:, column], match_length=self._match_length, confidence=self._confidence)


def _until_over(
    tokens: Sequence[Sequence[int]],
    goes_on: Sequence[Sequence[bool]],
    confidences: Sequence[Sequence[float]],
    caps: Sequence[int],
) -> DraftedChain:
    """[row][depth] of everything -> what is drafted before every row has stopped."""
    active = [cap > 0 for cap in caps]
    candidates = []
    for depth in range(len(tokens[0])):
        candidates.append([[row[depth]] if on else [PAD] for row, on in zip(tokens, active, strict=True)])
        active = [on and row[depth] for row, on in zip(goes_on, active, strict=True)]
        if not any(active):
            break
    return DraftedChain(candidates, [list(column) for column in zip(*confidences, strict=True)][: len(candidates)])
