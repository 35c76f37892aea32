"""The values that go into a pass of the model, come out of it, and tell where its tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

Tokens = torch.Tensor | Sequence[Sequence[int]]
"""[rows, width]: numbers on the host, or a tensor on any device."""


@dataclass(frozen=True)
class PassOutput:
    """What one pass through the model returns. Read it before the next pass: a runner may write that over it."""

    scores: torch.Tensor  # [rows, width, vocabulary]; width 0 where no head was asked for
    captured: Mapping[str, torch.Tensor] = field(default_factory=dict)  # point -> [rows, width, hidden]
    read_choices: Callable[[], list[list[int]]] | None = field(default=None, repr=False)  # where a runner knows better

    def choices(self) -> list[list[int]]:
        """The best token behind each column of each row, on the host."""
        if self.read_choices is not None:
            return self.read_choices()
        best: list[list[int]] = self.scores.argmax(-1).tolist()
        return best


@dataclass(frozen=True)
class TreeMask:
    """How the columns of one pass hang together: column 0 is the last committed token, the others draft nodes.

    On the host: a runner sends it to its device as it likes.
    """

    depths: Sequence[Sequence[int]]  # [row][column] tokens behind column 0
    sees: Sequence[Sequence[int]]  # [row][column] the columns it attends to, itself included: bit j is column j

    @property
    def matrix(self) -> npt.NDArray[np.bool_]:
        """`sees` as [rows, width, width]."""
        columns = range(len(self.depths[0]))
        return np.array([[[bits >> column & 1 for column in columns] for bits in row] for row in self.sees], dtype=bool)


@dataclass(frozen=True)
class Resume:
    """Columns of a pass whose hidden states behind the capture point `point` are known: they start there.

    Row i knows its first `num_known[i]` columns; their keys and values below the point are in the cache.
    """

    point: str
    num_known: tuple[int, ...]
    hidden: torch.Tensor  # [rows, width, hidden]; read in the known columns only


Place = tuple[int, int, int]
"""Where a row chooses: the caller's number of the text, position in the generated text, rounds behind it."""
Salt = torch.Tensor | int
Seed = int | tuple[Salt, Salt]
"""As one number or as its two 32-bit halves, the low one first."""


@dataclass(frozen=True)
class Spots:
    """Where tokens are chosen; noise is a function of it. Each [n]."""

    sequences: torch.Tensor  # the caller's number of the text
    indices: torch.Tensor  # position in the generated text
    rounds: torch.Tensor  # rounds the text has behind it

    @classmethod
    def of(cls, places: Sequence[Place], device: torch.device) -> Spots:
        return cls(*torch.tensor(places, device=device).unbind(1))

    def at(self, rows: torch.Tensor) -> Spots:
        return Spots(self.sequences[rows], self.indices[rows], self.rounds[rows])

    def ahead(self, count: torch.Tensor | int) -> Spots:
        """The same texts, `count` tokens on."""
        return Spots(self.sequences, self.indices + count, self.rounds)


@dataclass(frozen=True)
class DraftStats:
    """What a lookahead may look at after a token was drafted; each value is computed when it is read.

    `scores` are the draft's after prefix-dependent processors and before temperature and truncation. A drafter
    without a distribution (prompt lookup) has none: it is a point mass, and what it believes of it is the `peak`. It
    may be asked about several depths at once, which then stand as rows of their own.
    """

    depth: torch.Tensor  # [rows] tokens drafted in this round, this one included
    index: torch.Tensor  # [rows] position of the drafted token in the generated text
    match_length: torch.Tensor  # [rows] length of the n-gram a lookup matched, else 0
    sequence_ids: torch.Tensor  # [rows]
    scores: torch.Tensor | None = None  # [rows, vocabulary]
    peak: torch.Tensor | None = None  # [rows] the largest probability, where it is known already
    token: torch.Tensor | None = None  # [rows] what was drafted
    sequences: torch.Tensor | None = None  # [rows] the caller's number of the text

    NUM_TOP: ClassVar[int] = 10

    @cached_property
    def log_probs(self) -> torch.Tensor:
        """[rows, vocabulary], float32."""
        if self.scores is None:
            return self.confidence[:, None].log()
        return torch.log_softmax(self.scores.float(), dim=-1)

    @cached_property
    def confidence(self) -> torch.Tensor:
        """[rows] the draft's largest probability (never the drawn token's)."""
        if self.peak is not None:
            return self.peak
        if self.scores is None:
            return torch.ones(len(self.index), device=self.index.device)
        scores = self.scores.float()
        return torch.exp(scores.amax(-1) - scores.logsumexp(-1))

    @cached_property
    def top_probs(self) -> torch.Tensor:
        """[rows, 10] the largest probabilities, largest first, zero-filled."""
        best = self.log_probs.topk(min(self.NUM_TOP, self.log_probs.shape[-1]), dim=-1).values.exp()
        return torch.nn.functional.pad(best, (0, self.NUM_TOP - best.shape[-1]))

    @cached_property
    def entropy(self) -> torch.Tensor:
        """[rows] in nats; 0 of a point mass."""
        if self.scores is None:
            return torch.zeros(len(self.index), device=self.index.device)
        return -torch.xlogy(self.log_probs.exp(), self.log_probs.exp()).sum(-1)


@dataclass(frozen=True)
class States:
    """The streams of some sub-networks [rows, tokens, hidden] somewhere in the model.

    `source`: what the MLP of a parallel block will read, between its attention and itself; None: the stream.
    """

    hidden: torch.Tensor
    source: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.hidden)

    def pick(self, rows: torch.Tensor | Sequence[int] | slice) -> States:
        return States(self.hidden[rows], None if self.source is None else self.source[rows])

    @classmethod
    def join(cls, parts: Sequence[States]) -> States:
        hidden = torch.cat([part.hidden for part in parts])
        if all(part.source is None for part in parts):
            return cls(hidden)
        return cls(hidden, torch.cat([part.hidden if part.source is None else part.source for part in parts]))
