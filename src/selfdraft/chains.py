"""A chain that is drafted at once: what it is drafted by, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .drafted import DraftStats
from .passes import ChoiceKind, Choosing, Drawn, Site

MAX_TESTED = 32
"""Tokens of a draft that is tested by what it was drawn from: that is kept until then."""


@dataclass(frozen=True)
class Choice:
    """What a draft chose at one depth."""

    candidates: torch.Tensor  # [rows, candidates] the chain's token, then its siblings, best first, PAD-filled
    confidence: torch.Tensor  # [rows]
    wants_more: torch.Tensor  # [rows] bool


Draw = Callable[[torch.Tensor, int], Drawn]
"""The winners [rows, count] of scores [rows, vocabulary] and noise."""


def nothing_to_draw(scores: torch.Tensor, count: int) -> Drawn:
    """The `Draw` of a drafter that has no scores."""
    raise AssertionError("a drafter without scores draws nothing")


class DraftRule(Hashable, Protocol):
    """How a draft chooses after its scores. Equal rules may share a recording: tensors in, tensors out."""

    @property
    def kind(self) -> ChoiceKind: ...

    @property
    def max_candidates(self) -> int: ...

    @property
    def keeps_scores(self) -> bool:
        """Whether what was drawn from must be kept: the scores after the rules, before temperature."""
        ...

    @property
    def num_changes(self) -> int | None:
        """How often what it learns has changed its choices so far; None: not known."""
        ...

    def __call__(self, stats: DraftStats, draw: Draw) -> Choice:
        """`draw` is asked where there are scores and the rule's kind is drawn."""
        ...


@dataclass(frozen=True)
class DraftTask:
    """What a chain is drafted by. Of each row: how many tokens at most, where it chooses, the engine's number."""

    rule: DraftRule
    caps: Sequence[int]
    sites: Sequence[Site]
    sequence_ids: Sequence[int]
    choosing: Choosing | None  # None: only the host can choose after scores
    rooms: Sequence[int] = ()  # how many tokens the texts have room for; known where the next draft may begin by itself
    meanwhile: Callable[[], object] = lambda: None  # for a runner that waits: what the host would do afterwards
    min_rows: int = 1  # that must go on for another token to be drafted

    @property
    def runs_on_device(self) -> bool:
        """Whether a chain with scores can be drafted without the host."""
        return self.choosing is not None


@dataclass(frozen=True)
class DraftedChain:
    """A chain on the host, depth by depth. Its scores stay on the device: the next draft may overwrite them."""

    candidates: Sequence[Sequence[Sequence[int]]]  # [depth][row] best first, PAD-filled; only PAD: the row had stopped
    confidences: Sequence[Sequence[float]]  # [depth][row]
    scores: torch.Tensor | None = None  # [depths, rows, vocabulary] what was drawn from, if the rule keeps it

    def of_rows(self, rows: Sequence[int]) -> DraftedChain:
        candidates = [[column[row] for row in rows] for column in self.candidates]
        confidences = [[column[row] for row in rows] for column in self.confidences]
        return DraftedChain(candidates, confidences, None if self.scores is None else self.scores[:, list(rows)])
