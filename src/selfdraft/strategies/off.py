"""`off`: never speculate. The baseline every speed-up is measured against, on the same code path."""

from __future__ import annotations

from ..options import NoOptions
from ..types import OFF, Plan, PlanContext
from .base import StatelessStrategy


class Off(StatelessStrategy):
    Options = NoOptions

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return OFF
