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
from ..drafted import DraftStats
from ..errors import OptionError
from ..options import check, setting
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
    found = [(match_length(tokens, end, max_ngram), end) for end in _earlier(tokens)]
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


def match_length(tokens: Sequence[int], end: int, longest: int) -> int:
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
    """Proposes one known continuation per row, on the host: the device is not asked.

    `confidences`: how sure of each row's tokens; without them it is certain.
    """

    device = torch.device("cpu")

    def __init__(self, matches: Sequence[Match], confidences: Sequence[float] | None = None) -> None:
        self._matches, self._confidences = matches, [1.0] * len(matches) if confidences is None else confidences
        self._depth = 0

    def chain(self, task: DraftTask) -> DraftedChain:
        """All is known beforehand, so the rule is asked about all depths at once."""
        num_depths = min(max(len(match.tokens) for match in self._matches), max(task.caps))
        if num_depths <= 0:
            return DraftedChain((), ())
        depths, numbers, confidences = range(num_depths), [], []
        for text, (sequence, index, *_), match, sure in zip(
            task.sequence_ids, task.sites, self._matches, self._confidences, strict=True
        ):
            tokens = [*match.tokens[:num_depths], *[PAD] * (num_depths - len(match.tokens))]
            numbers += [(depth + 1, index + depth, match.length, text, tokens[depth], sequence) for depth in depths]
            confidences += [sure] * num_depths
        depth, indices, lengths, ids, token, sequences = torch.tensor(numbers).unbind(1)
        peak = torch.tensor(confidences)
        stats = DraftStats(depth, indices, lengths, ids, peak=peak, token=token, sequences=sequences)
        choice = task.rule(stats, nothing_to_draw)
        goes_on = [more and number[4] != PAD for more, number in zip(choice.wants_more.tolist(), numbers, strict=True)]
        return _until_over([number[4] for number in numbers], goes_on, choice.confidence.tolist(), task.caps)

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        depth, self._depth = self._depth, self._depth + 1
        tokens = [match.tokens[depth] if depth < len(match.tokens) else PAD for match in self._matches]
        lengths = torch.tensor([match.length for match in self._matches])
        return Proposal(tokens=torch.tensor(tokens), match_length=lengths, confidence=torch.tensor(self._confidences))


def _until_over(
    tokens: Sequence[int], goes_on: Sequence[bool], confidences: Sequence[float], caps: Sequence[int]
) -> DraftedChain:
    """[row x depth] of everything -> what is drafted before every row has stopped."""
    active, num_depths = [cap > 0 for cap in caps], len(tokens) // len(caps)
    candidates, sure = [], []
    for depth in range(num_depths):
        candidates.append([[tokens[row * num_depths + depth]] if on else [PAD] for row, on in enumerate(active)])
        sure.append(list(confidences[depth::num_depths]))
        active = [on and goes_on[row * num_depths + depth] and caps[row] > depth + 1 for row, on in enumerate(active)]
        if not any(active):
            break
    return DraftedChain(candidates, sure)
