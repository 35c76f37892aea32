"""`self`: the model drafts for itself with the plan's sub-layers skipped, on the target's own cache.

It reads the verified keys and values of the target and writes its own after them; verification overwrites those.
Below the first skipped sub-layer, draft and target compute the same: with `reuse` those hidden states are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..chains import DraftedChain, DraftTask
from ..options import setting
from ..passes import PassRequest, Tokens
from ..protocols import Cache, DraftRows, Proposal, Runner
from ..types import Reuse, SkipSet
from .base import PlainDrafter, PlainSession


class Self(PlainDrafter):
    waits = True

    @dataclass(frozen=True)
    class Options:
        vocabulary: int = setting(
            0,
            "propose only this many of the vocabulary's first tokens; 0: all (low numbers are frequent)",
            minimum=0,
        )

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> SelfSession:
        return SelfSession(runner, cache, rows, self.options.vocabulary or None)


class SelfSession(PlainSession):
    def __init__(self, runner: Runner, cache: Cache, rows: DraftRows, vocabulary: int | None = None) -> None:
        self._runner, self._cache, self._rows, self._vocabulary = runner, cache, rows, vocabulary
        self._starts = [len(tokens) - 1 for tokens in rows.committed]
        self._point = last_exact_point(rows.skip) if rows.reuse and runner.saves_by_reuse else None
        self._exact: list[torch.Tensor] = []  # per pass [rows, 1, hidden]

    @property
    def device(self) -> torch.device:
        return self._runner.device

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        self._cache.reserve(max(self._starts) + 1)
        capture = () if self._point is None else (self._point,)
        output = self._runner.forward(self._request(last_tokens[:, None], capture), self._cache)
        if self._point is not None:
            self._exact.append(output.captured[self._point])
        self._starts = [start + 1 for start in self._starts]
        return Proposal(scores=_only_first(output.scores[:, -1], self._vocabulary))

    def chain(self, task: DraftTask) -> DraftedChain | None:
        if self._point is not None or not task.runs_on_device:
            return None
        last = [[tokens[-1]] for tokens in self._rows.committed]
        return self._runner.draft(task, self._request(last), self._cache, self._vocabulary)

    def _request(self, tokens: Tokens, capture: Sequence[str] = ()) -> PassRequest:
        return PassRequest(tokens, self._starts, self._rows.rows, self._rows.skip, capture)

    def reuse(self, row: int, num_tokens: int) -> Reuse | None:
        """A row that stopped earlier was carried along: of its passes only those of its own tokens count."""
        if self._point is None:
            return None
        own = self._exact[: num_tokens + 1]
        return Reuse(self._point, torch.cat([hidden[row] for hidden in own]))


def _only_first(scores: torch.Tensor, count: int | None) -> torch.Tensor:
    """[rows, vocabulary] with nothing left but the first tokens."""
    if count is None or count >= scores.shape[-1]:
        return scores
    return torch.cat((scores[:, :count], torch.full_like(scores[:, count:], -torch.inf)), dim=-1)


def last_exact_point(skip: SkipSet) -> str | None:
    """The capture point after the last whole layer below the first skipped sub-layer."""
    first = min(skip.attention | skip.mlp, default=0)
    return f"m{first - 1}" if first > 0 else None
