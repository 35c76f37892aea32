"""What drafters share: nothing remembered, nothing beside the chain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from ..chains import DraftedChain, DraftTask
from ..protocols import Host, Path
from ..types import Reuse, StepRecord


class PlainDrafter:
    """A drafter that learns nothing from what becomes of its drafts."""

    Options: ClassVar[type[Any]]
    needs_choices = False
    waits = False
    max_nodes = 0
    slot_bytes = 0

    def __init__(self, options: Any, host: Host) -> None:
        self.options = options

    @staticmethod
    def draft_model(options: Any) -> str:
        return ""

    def held_bytes(self, ids: Collection[int]) -> int:
        return 0

    def observe(self, step: StepRecord) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def forget(self) -> None:
        """Be as if no text had been seen."""


class PlainSession:
    """A chain and nothing else."""

    def chain(self, task: DraftTask) -> DraftedChain | None:
        return None

    def rehearse(self, task: DraftTask) -> None:
        self.chain(task)

    def branches(self, row: int) -> Sequence[Path]:
        return ()

    def reuse(self, row: int, num_tokens: int) -> Reuse | None:
        return None
