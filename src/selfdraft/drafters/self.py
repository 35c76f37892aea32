"""`self`: the model drafts for itself with the plan's sub-layers skipped, on the target's own cache.

It reads the verified keys and values of the target and writes its own behind them; verification overwrites those.
"""

from __future__ import annotations

import torch

from ..options import NoOptions
from ..protocols import Cache, DraftRows, Proposal, Runner


class Self:
    Options = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> SelfSession:
        return SelfSession(runner, cache, rows)


class SelfSession:
    def __init__(self, runner: Runner, cache: Cache, rows: DraftRows) -> None:
        self._runner, self._cache, self._rows = runner, cache, rows
        self._starts = [len(tokens) - 1 for tokens in rows.committed]

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        self._cache.reserve(max(self._starts) + 1)
        output = self._runner.forward(
            last_tokens[:, None], self._starts, self._cache, first_row=self._rows.first_row, skip=self._rows.skip
        )
        self._starts = [start + 1 for start in self._starts]
        return Proposal(scores=output.scores[:, -1])
