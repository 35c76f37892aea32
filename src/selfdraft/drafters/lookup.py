"""`lookup`: propose what followed the last words the last time they occurred (prompt lookup decoding).

The longest n-gram that ends the text and occurs earlier in prompt or output wins; among equals the newest. No pass of
the model is needed, so a wrong guess costs only verification width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..errors import OptionError
from ..options import check, setting
from ..protocols import Cache, DraftedChain, DraftRows, DraftTask, Proposal, Runner
from ..types import PAD
from .base import PlainDrafter, PlainSession


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
    text = np.asarray(tokens, dtype=np.int64)
    lengths = _suffix_matches(text, min(max_ngram, len(text) - 1))
    ends = np.flatnonzero(lengths >= min_ngram)[::-1]
    matches: list[Match] = []
    for end in ends[np.argsort(-lengths[ends], kind="stable")]:
        found = text[end + 1 : end + 1 + max_tokens].tolist()
        if not any(list(match.tokens[: len(found)]) == found for match in matches):
            matches.append(Match(found, int(lengths[end])))
        if len(matches) == max_matches:
            break
    return matches


def _suffix_matches(text: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
    """For each position but the last: how many tokens ending there equal the text's last ones, up to `longest`."""
    lengths = np.zeros(max(len(text) - 1, 0), dtype=np.int64)
    ends = np.arange(len(lengths))
    for offset in range(longest):
        ends = ends[ends >= offset]
        ends = ends[text[ends - offset] == text[-1 - offset]]
        lengths[ends] = offset + 1
    return lengths


class Lookup(PlainDrafter):
    @dataclass(frozen=True)
    class Options:
        max_ngram: int = setting(8, "longest n-gram to look for", minimum=1)
        min_ngram: int = setting(2, "shortest n-gram that counts as a match", minimum=1)
        max_tokens: int = setting(12, "tokens to propose behind a match", minimum=1)

        def __post_init__(self) -> None:
            check(self, "lookup")
            if self.min_ngram > self.max_ngram:
                raise OptionError(
                    f"lookup.min_ngram={self.min_ngram} is above lookup.max_ngram={self.max_ngram}; nothing would match"
                )

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> LookupSession:
        options = self.options
        found = [
            find_matches(tokens, options.max_ngram, options.min_ngram, options.max_tokens) for tokens in rows.committed
        ]
        return LookupSession([matches[0] if matches else Match() for matches in found])


class LookupSession(PlainSession):
    """Proposes one known continuation per row, token by token, on the host: the device is not asked."""

    def __init__(self, matches: Sequence[Match]) -> None:
        super().__init__(torch.device("cpu"))
        width = max(len(match.tokens) for match in matches) + 1
        padded = [[*match.tokens, *[PAD] * (width - len(match.tokens))] for match in matches]
        self._tokens = torch.tensor(padded)
        self._match_length = torch.tensor([match.length for match in matches])
        self._depth = 0

    def chain(self, task: DraftTask) -> DraftedChain | None:
        """Where nothing is known, nothing need be asked."""
        return DraftedChain((), ()) if self._tokens.shape[1] == 1 else None

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        column = min(self._depth, self._tokens.shape[1] - 1)
        self._depth += 1
        return Proposal(tokens=self._tokens[:, column], match_length=self._match_length)
