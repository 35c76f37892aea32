"""The values that go into a pass of the model, come out of it, and tell where its tokens are chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .lazy import Made
from .types import Draft, SkipSet

T = TypeVar("T")
Tokens = torch.Tensor | Sequence[Sequence[int]]
"""[rows, width]: numbers on the host, or a tensor on any device."""


@dataclass(frozen=True)
class TreeMask:
    """How the columns of one pass hang together: column 0 is the last committed token, the others draft nodes.

    On the host: a runner sends it to its device as it likes.
    """

    depths: Sequence[Sequence[int]]  # [row][column] tokens after column 0
    sees: Sequence[Sequence[int]]  # [row][column] the columns it attends to, itself included: bit j is column j

    @property
    def matrix(self) -> npt.NDArray[np.bool_]:
        """`sees` as [rows, width, width]."""
        columns = range(len(self.depths[0]))
        return np.array([[[bits >> column & 1 for column in columns] for bits in row] for row in self.sees], dtype=bool)


@dataclass(frozen=True)
class Resume:
    """Columns of a pass whose hidden states after the capture point `point` are known: they start there.

    Row i knows its first `num_known[i]` columns; their keys and values below the point are in the cache.
    """

    point: str
    num_known: tuple[int, ...]
    hidden: torch.Tensor  # [rows, width, hidden]; read in the known columns only


class ChoiceKind(NamedTuple):
    """Which steps lead from scores to choices: what a recording freezes of them. The numbers are `Choosing`'s."""

    is_drawn: bool = False  # by temperature and noise; else the best
    salt: int = 0  # of the noise, which then goes by the round, too
    has_top_k: bool = False
    has_top_p: bool = False
    has_min_p: bool = False
    has_rules: bool = False  # penalties, biases, bans: what goes by the text so far
    is_masked: bool = False  # only allowed tokens
    is_tested: bool = False  # a draft, token by token (`rejection`): what comes of it are verdicts, not choices
    num_rivals: int = 0  # draws from one distribution after which another token may be tested, or a few more
    num_logprobs: int | None = None  # likeliest tokens told beside a choice, with log-probabilities; None: not even its

    @property
    def is_best(self) -> bool:
        """Whether a choice is the largest raw score and nothing else."""
        return self == ChoiceKind(num_logprobs=self.num_logprobs)


SETTINGS = (
    *("key", "second_key", "round", "temperature", "top_k", "top_p", "min_p"),
    *("repetition", "presence", "frequency", "min_new_tokens", "num_nodes", "num_drawn"),
)
"""The numbers a row chooses by, each an int64; what is not whole is written as the bits of a float64."""


class Text(NamedTuple):
    """One row's text as rules see it. `tokens` grows; the last of them is the pass's first token."""

    lead: Sequence[int]  # seen before the text by rules alone
    tokens: Sequence[int]
    num_prompt_tokens: int
    biases: Sequence[tuple[int, float]] = ()  # added to tokens' scores
    eos_tokens: Sequence[int] = ()  # banned as long as the text is too short


class Choosing(NamedTuple):
    """How the rows of a pass choose after each of their columns."""

    kind: ChoiceKind
    settings: Sequence[Sequence[int]]  # [row] in the order of `SETTINGS`
    indices: Sequence[int]  # [row] position in the generated text of what stands after column 0
    texts: Sequence[Text] = ()  # as rules see them
    allowed: torch.Tensor | None = None  # [rows, width, vocabulary / 32] int32, a bit a token; on the device
    drawn_from: Sequence[torch.Tensor | None] = ()  # [row] `Draft.scores`, where drafts are tested

    def over(self, drafts: Sequence[Draft], is_tested: bool = False) -> Choosing:
        """The same rows, which know the sizes of these drafts and, if asked, test them."""
        kind, drawn_from = self.kind, self.drawn_from
        if is_tested:
            most = max(map(_num_rivals, drafts))
            num_rivals = next((number for number in (0, 1, 4, 10) if number >= most), most)  # few: each is recorded
            kind = kind._replace(is_tested=True, num_rivals=num_rivals)
            drawn_from = [draft.scores for draft in drafts]
        settings = of_drafts(self.settings, drafts)
        return Choosing(kind, settings, self.indices, self.texts, self.allowed, drawn_from)


def joined(parts: Sequence[Choosing], places: Sequence[Sequence[int]]) -> Choosing | None:
    """The rows of several, at their places among all rows; None: what they do is too different to be done at once.

    What only some of them do, the others do with settings that change nothing.
    """
    kinds = [part.kind for part in parts]
    if len({(kind.salt, kind.num_logprobs, kind.is_masked, kind.is_tested) for kind in kinds}) > 1:
        return None
    flags = {name: any(getattr(kind, name) for kind in kinds) for name in ChoiceKind._fields if name.startswith("has_")}
    kind = kinds[0]._replace(is_drawn=any(kind.is_drawn for kind in kinds), **flags)

    def merged(columns: Sequence[Sequence[T]]) -> Made[T]:
        return Made(lambda: [value for _, value in sorted(_placed(columns, places), key=lambda one: one[0])])

    settings, indices = merged([part.settings for part in parts]), merged([part.indices for part in parts])
    return Choosing(kind, settings, indices, merged([part.texts for part in parts]) if kind.has_rules else ())


def _placed(columns: Sequence[Sequence[T]], places: Sequence[Sequence[int]]) -> Iterator[tuple[int, T]]:
    for column, own in zip(columns, places, strict=True):
        yield from zip(own, column, strict=True)


def of_drafts(settings: Sequence[Sequence[int]], drafts: Sequence[Draft]) -> list[list[int]]:
    """The settings of rows with the sizes of their drafts."""
    return [[*row[:-2], len(draft.tokens), draft.num_drawn] for row, draft in zip(settings, drafts, strict=True)]


def _num_rivals(draft: Draft) -> int:
    """See `ChoiceKind`."""
    num_children, num_draws = Counter(draft.parents), Counter(draft.parents[: draft.num_drawn])
    return max((min(count, num_children[node] - 1) for node, count in num_draws.items()), default=0)


@dataclass(frozen=True)
class Columns:
    """Where and how the columns of a pass choose, on the device: tensors that stay where they are.

    A column stands `depths` tokens after its row's index; the tokens before it that `words` does not know yet are
    those of `path` whose bit is set in `on_path`. Scores come in lines, row by row: `places` says which column a line
    belongs to, `first` with which line a row begins. Columns that only pad need not have one.
    """

    settings: torch.Tensor  # [rows, SETTINGS]
    indices: torch.Tensor  # [rows]
    depths: torch.Tensor  # [rows, width]
    path: torch.Tensor  # [rows, up to 63] tokens
    on_path: torch.Tensor  # [rows, width] bits
    rows: torch.Tensor  # [rows] of `words` and `biases`
    first: torch.Tensor  # [rows + 1 or more]
    places: torch.Tensor  # [lines] row * width + column
    words: torch.Tensor | None = None  # [cache rows, vocabulary] int32; see `WORD_COUNT`
    biases: torch.Tensor | None = None  # [cache rows, vocabulary]
    allowed: torch.Tensor | None = None  # [rows, width, vocabulary / 32]


WORD_COUNT, WORD_PROMPT, WORD_EOS = 0xFFFF, 1 << 16, 1 << 17
"""What is known of a token in a text: how often it was generated, whether it stands before that, whether it ends it."""


class Drawn(NamedTuple):
    """The winners [n, count] of scores and noise, best first; a value of -inf: impossible."""

    values: torch.Tensor
    tokens: torch.Tensor
    peak: torch.Tensor | None  # [n] the largest probability before temperature, if it came along


class PassRequest(NamedTuple):
    """One pass: `tokens` [rows, width], row i in the slots from `starts[i]` on of the cache row `rows[i]`.

    Rows that are prompts may differ in width: on the host, one list each.
    """

    tokens: Tokens
    starts: Sequence[int]
    rows: Sequence[int] = ()  # ascending; empty: 0, 1, ...
    skip: SkipSet = SkipSet()
    capture: Sequence[str] = ()  # points whose hidden states are wanted
    needs_scores: bool = True
    tree: TreeMask | None = None  # None: each row is a chain, position = slot
    resume: Resume | None = None
    run_ahead: bool = False  # the caller goes by `choices()` alone and will probably ask for what follows from them
    choosing: Choosing | None = None  # None: the best
    widths: Sequence[int] = ()  # [row] columns that are not padding; empty: all

    @property
    def is_prompt(self) -> bool:
        """Whether its rows are chains that only go into the cache."""
        return not (self.needs_scores or self.tree or self.resume)

    @property
    def numbers(self) -> Sequence[Sequence[int]]:
        """The tokens on the host."""
        if isinstance(self.tokens, torch.Tensor):
            known: list[list[int]] = self.tokens.tolist()
            return known
        return self.tokens

    @property
    def cache_rows(self) -> tuple[int, ...]:
        """`rows`, spelled out."""
        return tuple(self.rows) or tuple(range(len(self.starts)))

    @property
    def row_widths(self) -> Sequence[int]:
        """`widths`, spelled out."""
        return self.widths or [len(self.tokens[0])] * len(self.starts)

    @property
    def kind(self) -> ChoiceKind:
        return ChoiceKind() if self.choosing is None else self.choosing.kind


def serves(num_running: int, num_rows: int) -> bool:
    """Whether a pass of `num_running` rows is worth running for `num_rows` of them: theirs would be of that size."""
    return num_rows > 0 and (num_running - 1).bit_length() == (num_rows - 1).bit_length()


@dataclass(frozen=True)
class PassOutput:
    """What one pass through the model returns. Read it before the next pass: a runner may write that over it."""

    found: torch.Tensor | Callable[[], torch.Tensor]  # the scores, or what puts them together
    captured: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Point -> [rows, width, hidden]; of prompts row after row, [1, tokens, hidden]."""
    read_choices: Callable[[], list[list[int]]] | None = field(default=None, repr=False)  # where a runner knows better
    read_verdicts: Callable[[], list[list[int]]] | None = field(default=None, repr=False)  # see `kernels/top.reject`
    read_logprobs: Callable[[], list[list[list[float]]]] | None = field(default=None, repr=False)  # `top.logprobs`
    is_compact: bool = False  # whether the slots of what follows from the choices have been moved together
    best: torch.Tensor | None = None  # [rows, width] tokens of the largest scores, where they were found on the way

    def of_rows(self, rows: Sequence[int]) -> PassOutput:
        """What it says of these rows, without captured states."""

        def part(read: Callable[[], Sequence[T]] | None) -> Callable[[], list[T]] | None:
            return None if read is None else lambda: [read()[row] for row in rows]

        choices, logprobs = part(self.read_choices), part(self.read_logprobs)
        best = None if self.best is None else self.best[list(rows)]
        return PassOutput(lambda: self.scores[list(rows)], {}, choices, None, logprobs, best=best)

    @cached_property
    def scores(self) -> torch.Tensor:
        """[rows, width, vocabulary]; width 0 where no head was asked for. Of columns that only pad, anything."""
        return self.found if isinstance(self.found, torch.Tensor) else self.found()

    def choices(self) -> list[list[int]]:
        """The best token after each column of each row, on the host."""
        if self.read_choices is not None:
            return self.read_choices()
        best = self.scores.argmax(-1) if self.best is None else self.best
        tokens: list[list[int]] = best.tolist()
        return tokens


class Site(NamedTuple):
    """Where a row chooses, and by which seed."""

    sequence: int  # the caller's number of the text
    position: int  # in the generated text
    round: int  # rounds before it
    seed: int = 0


Salt = torch.Tensor | int


@dataclass(frozen=True)
class NoiseKey:
    """Where tokens are chosen: all that their noise depends on. Each [n]."""

    sequences: torch.Tensor  # the caller's number of the text
    indices: torch.Tensor  # position in the generated text
    rounds: torch.Tensor  # rounds the text has had
    seeds: torch.Tensor  # of 64 bits: the largest are negative here

    @classmethod
    def of(cls, sites: Sequence[Site], device: torch.device) -> NoiseKey:
        numbers = [(*site[:-1], site.seed - (site.seed >> 63 << 64)) for site in sites]
        return cls(*torch.tensor(numbers, device=device).unbind(1))

    def at(self, rows: torch.Tensor) -> NoiseKey:
        return NoiseKey(self.sequences[rows], self.indices[rows], self.rounds[rows], self.seeds[rows])

    def ahead(self, count: torch.Tensor | int) -> NoiseKey:
        """The same texts, `count` tokens on."""
        return NoiseKey(self.sequences, self.indices + count, self.rounds, self.seeds)


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

    @classmethod
    def where(cls, chosen: torch.Tensor, these: States, others: States) -> States:
        """Row by row: of `these` where `chosen` [rows], else of the others."""
        is_chosen = chosen[:, None, None]
        hidden = torch.where(is_chosen, these.hidden, others.hidden)
        if these.source is None and others.source is None:
            return cls(hidden)
        first, second = (one.hidden if one.source is None else one.source for one in (these, others))
        return cls(hidden, torch.where(is_chosen, first, second))
