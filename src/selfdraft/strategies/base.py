"""What strategies share: nothing captured, nothing remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..errors import ProfileError
from ..fitting import Kit
from ..protocols import PlanContext
from ..types import Plan, StepRecord


class PlainStrategy:
    """A strategy that learns nothing from what becomes of its plans, and does not know them beforehand."""

    Options: ClassVar[type[Any]]
    pairs_with: ClassVar[Mapping[str, Any]] = {}
    paper_pairs_with: ClassVar[Mapping[str, Any]] = {}
    can_fit: ClassVar[bool] = False
    learns_online: ClassVar[bool] = False
    is_kept: bool = False
    max_rows: ClassVar[float] = math.inf
    practice: ClassVar[Mapping[str, Any]] = {}
    needs: tuple[str, ...] = ()
    prefill_needs: tuple[str, ...] = ()
    known_plans: Sequence[Plan] = ()

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return captured

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        pass

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        pass

    def meanwhile(self) -> None:
        pass

    def rehearse(self, context: PlanContext) -> None:
        pass

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        return {}

    def end(self, sequence_id: int) -> None:
        pass

    @staticmethod
    def fit(kit: Kit, options: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def num_searches(options: Any, num_domains: int) -> int:
        """That its fit consists of: strategies share the time by them."""
        return 1

    def state(self) -> dict[str, Any]:
        return {}

    @property
    def is_settled(self) -> bool:
        return True


class ConstantStrategy(PlainStrategy):
    """One plan for every text and round."""

    def __init__(self, plan: Plan) -> None:
        self.known_plans = (plan,)

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self.known_plans[0]


def damaged(what: str, error: Exception, command: str) -> ProfileError:
    """Of a part of the profile, and the command that makes it."""
    reason = f"{type(error).__name__}: {error}"
    return ProfileError(f"the profile's {what} cannot be read ({reason}). Make it again with: {command}")
