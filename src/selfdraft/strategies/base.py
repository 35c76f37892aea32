"""What strategies share: nothing captured, nothing remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ..types import Plan, PlanContext, StepRecord


class StatelessStrategy:
    """A strategy whose plan depends on its options and the model's size alone."""

    Options: ClassVar[type[Any]]
    needs: tuple[str, ...] = ()

    def __init__(self, options: Any, num_layers: int) -> None:
        self.options = options
        self.num_layers = num_layers

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        pass

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        raise NotImplementedError

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass
