"""`chain`: verify what the drafter proposes and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence

from ..options import NoOptions
from ..protocols import Path


class Chain:
    Options = NoOptions
    max_candidates = 1

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def max_nodes(self, num_rows: int, *, is_recorded: bool) -> None:
        return None

    def num_candidates(self, confidence: float) -> int:
        return 1

    def branches(self, committed: Sequence[int]) -> Sequence[Path]:
        return ()
