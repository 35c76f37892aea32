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

from ..options import setting
from ..protocols import Cache, DraftRows, Proposal, Runner
from ..types import PAD


@dataclass(frozen=True)
class Match:
    tokens: Sequence[int] = ()
    length: int = 0


def find_match(tokens: Sequence[int], max_ngram: int, min_ngram: int, max_tokens: int) -> Match:
    """The continuation of the longest, newest earlier occurrence of the text's last n tokens."""
    text = np.asarray(tokens, dtype=np.int64)
    longest = min(max_ngram, len(text) - 1)
    lengths = _suffix_matches(text, longest)
    if len(lengths) == 0 or lengths.max() < min_ngram:
        return Match()
    length = int(lengths.max())
    newest_end = int(np.flatnonzero(lengths == length)[-1]) + 1
    return Match(text[newest_end : newest_end + max_tokens].tolist(), length)


def _suffix_matches(text: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
    """For each position but the last: how many tokens ending there equal the text's last ones, up to `longest`."""
    lengths = np.zeros(max(len(text) - 1, 0), dtype=np.int64)
    ends = np.arange(len(lengths))
    for offset in range(longest):
        ends = ends[ends >= offset]
        ends = ends[text[ends - offset] == text[-1 - offset]]
        lengths[ends] = offset + 1
    return lengths


class Lookup:
    @dataclass(frozen=True)
    class Options:
        max_ngram: int = setting(8, "longest n-gram to look for", minimum=1)
        min_ngram: int = setting(2, "shortest n-gram that counts as a match", minimum=1)
        max_tokens: int = setting(12, "tokens to propose behind a match", minimum=1)

    def __init__(self, options: Options) -> None:
        self.options = options

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> LookupSession:
        options = self.options
        matches = [
            find_match(tokens, options.max_ngram, options.min_ngram, options.max_tokens) for tokens in rows.committed
        ]
        return LookupSession(matches, runner.device)


class LookupSession:
    def __init__(self, matches: Sequence[Match], device: torch.device) -> None:
        width = max(len(match.tokens) for match in matches) + 1
        padded = [[*match.tokens, *[PAD] * (width - len(match.tokens))] for match in matches]
        self._tokens = torch.tensor(padded, device=device)
        self._match_length = torch.tensor([match.length for match in matches], device=device)
        self._depth = 0

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        column = min(self._depth, self._tokens.shape[1] - 1)
        self._depth += 1
        return Proposal(tokens=self._tokens[:, column], match_length=self._match_length)
