"""`ngram-pool`: guesses that the target makes while it verifies, gathered as n-grams (Lookahead decoding).

Fu et al. (arXiv:2402.02057): beside the candidates, every verification pass carries a window of guesses for positions
further on. What the target says after each of them becomes the next guess there (Jacobi iteration), and the runs of
guesses over time are n-grams for the pool; those that begin with the text's last token are the next candidates. With
`window=0` the last pass's own words are the next draft: plain Jacobi (parallel) decoding, arXiv:2305.10427. Guesses are
the target's best tokens by its raw scores, also when sampling or under a penalty.

The window is a comb of paths: its first level is a chain, and from the chain's w-th token hang the guesses that
followed it in later rounds. Nothing but the draft's tree carries it, and a path that proves right is kept as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..options import setting
from ..protocols import Cache, DraftRows, Host, Path, Runner
from ..types import Draft, StepRecord
from .base import PlainDrafter
from .lookup import LookupSession, Match

MAX_POOL_KEYS = 50_000


class NgramPool(PlainDrafter):
    needs_choices = True

    @dataclass(frozen=True)
    class Options:
        window: int = setting(5, "positions guessed ahead in every pass; 0: plain Jacobi decoding", minimum=0)
        ngram: int = setting(4, "length of the n-grams, their first token included", minimum=2)
        guesses: int = setting(4, "n-grams to verify in a round", minimum=1)
        tokens: int = setting(8, "tokens guessed in a round of plain Jacobi decoding", minimum=1)

    def __init__(self, options: Options, host: Host) -> None:
        super().__init__(options, host)
        self._texts: dict[int, Guesses] = {}
        inner = options.ngram - 1
        self.max_nodes = inner * (options.window + options.guesses) if options.window else options.tokens

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> NgramSession:
        candidates, windows = [], []
        for sequence_id, committed in zip(rows.sequence_ids, rows.committed, strict=True):
            if sequence_id not in self._texts:
                self._texts[sequence_id] = Guesses(self.options, tuple(committed))
            guesses = self._texts[sequence_id]
            candidates.append(guesses.candidates(committed[-1]))
            windows.append(guesses.paths())
        return NgramSession(candidates, windows)

    def observe(self, step: StepRecord) -> None:
        self._texts[step.sequence_id].learn(step)

    def end(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)


@dataclass
class Guesses:
    """What is guessed of one text. `levels[l][w]`: a guess for the token w + l + 1 after the text."""

    options: NgramPool.Options
    committed: Sequence[int]
    pool: dict[int, list[Path]] = field(default_factory=dict)
    chain: list[int] = field(default_factory=list)
    _fill: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        options = self.options
        self.levels = [[self._filler() for _ in range(options.window)] for _ in range(options.ngram - 1)]
        self.chain = [self._filler() for _ in range(options.tokens)]

    def candidates(self, last_token: int) -> list[Path]:
        if not self.options.window:
            return [self.chain]
        return self.pool.get(last_token, [])[: self.options.guesses]

    def paths(self) -> list[Path]:
        """The window, column by column."""
        if not self.options.window:
            return []
        first, *later = self.levels
        return [[*first[: column + 1], *(level[column] for level in later)] for column in range(len(first))]

    def learn(self, step: StepRecord) -> None:
        if self.options.window:
            self._learn_window(step)
        else:
            self._learn_chain(step)

    def _learn_chain(self, step: StepRecord) -> None:
        """What the target said after each guess is the next guess there; off the chain there is none."""
        is_on_chain = all(node < step.draft.chain_length for node in step.verdict.nodes)
        said = step.choices[1 + step.verdict.num_accepted : 1 + step.draft.chain_length] if is_on_chain else ()
        self.chain = [*said, *(self._filler() for _ in range(self.options.tokens - len(said)))]

    def _learn_window(self, step: StepRecord) -> None:
        said = [self._word_after(step.draft, step.choices, path) for path in self.paths()]
        for column, word in enumerate(said):
            if word is not None:
                self._remember([*(level[column] for level in self.levels), word])
        moved = len(step.verdict.tokens) - 1  # the oldest level leaves: one position; the text may have come further
        levels: list[Sequence[int | None]] = [*self.levels[1:], said]
        self.levels = [self._shifted(level, moved) for level in levels]

    def _word_after(self, draft: Draft, choices: Sequence[int], path: Path) -> int | None:
        node = draft.find(path)
        return None if node is None else choices[node + 1]

    def _shifted(self, level: Sequence[int | None], moved: int) -> list[int]:
        kept = [self._filler() if token is None else token for token in level[moved:]]
        return [*kept, *(self._filler() for _ in range(self.options.window - len(kept)))]

    def _remember(self, ngram: Sequence[int]) -> None:
        """Newest first; each first token keeps as many as are verified at once."""
        if len(self.pool) >= MAX_POOL_KEYS:
            self.pool.clear()
        first, rest = ngram[0], list(ngram[1:])
        known = [path for path in self.pool.get(first, []) if path != rest]
        self.pool[first] = [rest, *known][: self.options.guesses]

    def _filler(self) -> int:
        """A token to begin with: the text's own, spread out."""
        return self.committed[next(self._fill) * 7 % len(self.committed)]


class NgramSession(LookupSession):
    """The newest n-gram is the chain; the others and the window stand beside it."""

    def __init__(self, candidates: Sequence[Sequence[Path]], windows: Sequence[Sequence[Path]]) -> None:
        super().__init__([Match(paths[0], 1) if paths else Match() for paths in candidates])
        self._branches = [[*paths[1:], *window] for paths, window in zip(candidates, windows, strict=True)]

    def branches(self, row: int) -> Sequence[Path]:
        return self._branches[row]
