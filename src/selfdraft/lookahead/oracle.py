"""`oracle`: draft to the first token that will be refused (DISCO, arXiv:2405.04304, section 3). A bound, not a method.

It is told what the target will say, by a run without drafting and the same seed. The refused token is drafted, too, as
the paper says it ("until a mismatch occurs"); `oracle-length` does without. At most 48 tokens a round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..drafted import DraftStats
from ..options import NoOptions
from ..types import PAD
from .base import PlainLookahead

MAX_TOKENS = 48


class Oracle(PlainLookahead):
    """`continuations[i]`: what follows the prompt of row i of the call; `first`: the call's `sequence`.

    For calls of as many rows and no more tokens (or `room`) it can be told again: the table is rewritten where it is,
    for a recorded draft reads it there.
    """

    Options = NoOptions

    def __init__(
        self, continuations: Sequence[Sequence[int]], *, first: int = 0, max_tokens: int = MAX_TOKENS, room: int = 0
    ) -> None:
        self.max_tokens, self._first = max_tokens, first
        width = max(room, *map(len, continuations)) + 1  # after every text nothing is expected
        self._known = torch.full((len(continuations), width), PAD)
        self._copies: dict[torch.device, torch.Tensor] = {}
        self.tell(continuations)

    def tell(self, continuations: Sequence[Sequence[int]]) -> None:
        width = self._known.shape[1]
        self._known = torch.tensor([[*tokens, *[PAD] * (width - len(tokens))] for tokens in continuations])
        for copy in self._copies.values():
            copy.copy_(self._known)

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        assert stats.token is not None
        return (stats.token == self._at(stats, 0)) & (stats.depth < self.max_tokens)

    def _at(self, stats: DraftStats, ahead: int) -> torch.Tensor:
        """What is known of that many tokens after these."""
        assert stats.sequences is not None
        known = self._on(stats.depth.device)
        return known[stats.sequences - self._first, (stats.index + ahead).clamp(max=known.shape[1] - 1)]

    def _on(self, device: torch.device) -> torch.Tensor:
        if device not in self._copies:
            with torch.inference_mode(False):
                self._copies[device] = self._known.to(device, copy=True)
        return self._copies[device]
