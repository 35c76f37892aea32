"""What strategies share: nothing captured, nothing remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ..types import Plan, PlanContext, StepRecord


class ConstantStrategy:
    """A strategy with one plan for every text and round."""

    Options: ClassVar[type[Any]]
    needs: tuple[str, ...] = ()

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        pass

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self._plan

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass
