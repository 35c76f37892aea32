"""What strategies share that plan again while a text grows: when to look at it, and how much time that may take."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..protocols import PlanContext
from ..types import OFF, Plan, StepRecord
from .base import PlainStrategy

GROWTH = 1.25
"""A plan was made for a length; beyond this multiple of it, longer or shorter, it is made again."""


@dataclass
class Text:
    """Where one text stands with its plan."""

    plan: Plan | None = None
    num_planned: int = 0  # tokens of the text when the plan was made
    num_rounds: int = 0  # since then
    window: deque[int] = field(default_factory=deque)  # tokens that the last rounds emitted


@dataclass
class Account:
    """Seconds spent on planning, and on everything, over all texts. A round's seconds are those of all its rows."""

    planning: float = 0.0
    total: float = 0.0
    last: float = 0.0  # of the last round that made a plan, before it: expected
    is_planning: bool = False

    def add(self, step: StepRecord) -> None:
        self.planning += step.optimise_seconds
        self.total += step.optimise_seconds + step.draft_seconds + step.verify_seconds
        if self.is_planning:
            self.last, self.is_planning = step.optimise_seconds, False

    def allows(self, budget: float) -> bool:
        """Another plan like the last one; one in a round."""
        return not self.is_planning and (budget >= 1 or self.planning + self.last <= budget * (self.total + self.last))


class Replanner(PlainStrategy):
    """Looks at what the last rounds emitted once these are there, then every `interval` rounds or a quarter of length.

    A text begins with the last plan there is, the first one plainly. Planning may take `budget` of all seconds: where
    it would take more, it waits, and the plan there is goes on.
    """

    def __init__(self, window: int, interval: int, budget: float, first_seconds: float = 0.0) -> None:
        """`first_seconds`: what the first plan will take, as far as that can be told."""
        self._window, self._interval, self._budget = window, interval, budget
        self._texts: dict[int, Text] = {}
        self._account = Account(last=first_seconds)
        self._last = Text()

    @abstractmethod
    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        """Plan by a look at the last `num_tokens` tokens."""

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self._texts[sequence_id] = Text(window=deque(maxlen=self._window))

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        text = self._texts[sequence_id]
        if text.plan is None and self._last.plan is not None:
            text.plan, text.num_planned, text.num_rounds = self._last.plan, self._last.num_planned, self._interval
        if self._is_due(text, context):
            self._account.is_planning = True
            text.plan = self.choose(context, sum(text.window))
            text.num_planned, text.num_rounds = context.num_context_tokens, 0
            self._last = text
        return text.plan or OFF

    def _is_due(self, text: Text, context: PlanContext) -> bool:
        if len(text.window) < self._window or not self._account.allows(self._budget):
            return False
        return text.plan is None or text.num_rounds >= self._interval or not _is_about(context, text)

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        text = self._texts[sequence_id]
        text.window.append(len(step.verdict.tokens))
        text.num_rounds += 1
        self._account.add(step)

    def end(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)


def _is_about(context: PlanContext, text: Text) -> bool:
    """Whether a text still has about the length that the plan was made for."""
    return text.num_planned <= context.num_context_tokens * GROWTH <= text.num_planned * GROWTH**2
