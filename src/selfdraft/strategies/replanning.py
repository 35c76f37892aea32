"""What strategies share that plan again while a text grows: when to look at it, and how much time that may take."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..economics import LatencyFit, speed_table
from ..protocols import PlanContext
from ..types import OFF, Plan, SkipSet, StepRecord
from .base import PlainStrategy

HIGH = 0.9
"""Acceptance at which the first plan must promise something: where not even that pays, nothing is planned."""
USUAL_GAIN, LEAST_GAIN = 0.05, 0.01
"""What a plan is held to bring where nothing tells, and at least: texts may become others."""
_SURPRISE = 8
"""Times the seconds of the last plan that one may be held to take."""


@dataclass(frozen=True)
class Cadence:
    """When to plan: once `window` rounds are there, then every `interval` rounds, if that pays and takes at most
    `budget` of all seconds (1: whatever it costs). With `first`, as papers' code has it: after that many rounds of a
    text, then every `interval`, and nothing else counts.
    """

    window: int
    interval: int
    budget: float
    first: int | None = None


@dataclass(frozen=True)
class Promised:
    """A plan, its tokens per second over those of plain decoding, and those of the plan in use, where that is known."""

    plan: Plan
    speed: float = 1.0
    before: float | None = None


@dataclass
class Text:
    """Where one text stands with its plan."""

    plan: Plan | None = None
    promise: float = 1.0  # of the plan, as in Promised
    num_plans: int = 0
    num_rounds: int = 0  # since the plan was made
    num_done: int = 0  # rounds in all
    num_tokens: int = 0  # emitted
    window: deque[int] = field(default_factory=deque)  # tokens that the last rounds emitted


@dataclass
class Account:
    """Seconds spent on planning, recording included, and on everything, over all texts. A round's seconds are those of
    all its rows.
    """

    planning: float = 0.0
    total: float = 0.0
    last: float = 0.0  # of the last round that made a plan, before it: expected
    is_planning: bool = False
    num_tokens: int = 0

    def add(self, step: StepRecord) -> None:
        """What takes many times as long as the last plan builds kernels, once: all of it is not held against others."""
        seconds = min(step.optimise_seconds, _SURPRISE * self.last) if self.last else step.optimise_seconds
        self.planning += seconds
        self.total += seconds + step.draft_seconds + step.verify_seconds
        self.num_tokens += len(step.verdict.tokens)
        if self.is_planning:
            self.last, self.is_planning = seconds, False

    def allows(self, budget: float) -> bool:
        """Another plan like the last one; one in a round."""
        return not self.is_planning and (budget >= 1 or self.planning + self.last <= budget * (self.total + self.last))

    @property
    def pace(self) -> float:
        """Seconds a token, without planning."""
        return (self.total - self.planning) / max(self.num_tokens, 1)


class Replanner(PlainStrategy):
    """Plans by what the last rounds emitted. A text begins with the last plan there is, the first one plainly.

    A plan pays if the share of the time that it is held to bring (at first what the economics promise, then what plans
    brought of late), over the tokens still to come, is more than what the last plan took, recording included. As many
    tokens are still to come as there are, or as a text usually has beyond them.
    """

    def __init__(self, cadence: Cadence, first_seconds: float = 0.0, first_gain: float = USUAL_GAIN) -> None:
        """`first_seconds`: what the first plan will take, as far as that can be told; `first_gain`: and bring."""
        self._cadence, self._gain = cadence, first_gain
        self._texts: dict[int, Text] = {}
        self._account = Account(last=first_seconds)
        self._last = self._current = Text()  # planned last, being planned
        self._num_ended, self._num_emitted = 0, 0

    @abstractmethod
    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        """Plan by a look at the last `num_tokens` tokens; through `_take` it tells what to expect of it, if it can."""

    def first_plan(self, context: PlanContext) -> Promised | None:
        """Of a text that nothing was seen of; None: decode plainly."""
        return None if self._last.plan is None else Promised(self._last.plan, self._last.promise)

    # ------------------------------------------------------------------------------------------------ the loop's calls

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self._texts[sequence_id] = Text(window=deque(maxlen=self._cadence.window))

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        text = self._texts[sequence_id]
        if text.plan is None and (first := self.first_plan(context)) is not None:
            text.plan, text.promise, text.num_rounds = first.plan, first.speed, self._cadence.interval
        if self._is_due(text, context):
            self._account.is_planning, self._current = True, text
            text.plan = self.choose(context, sum(text.window))
            text.num_plans, text.num_rounds = text.num_plans + 1, 0
            self._last = text
        return text.plan or OFF

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        text, num_tokens = self._texts[sequence_id], len(step.verdict.tokens)
        text.window.append(num_tokens)
        text.num_rounds, text.num_done = text.num_rounds + 1, text.num_done + 1
        text.num_tokens += num_tokens
        self._account.add(step)

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        text = self._texts[sequence_id]
        if text.plan is None:
            return {"plans": 0, "drafts": "nothing: no plan has paid so far"}
        drafts = f"without {text.plan.skip}" if text.plan.skip else "with the whole model"
        drafts = "nothing: plain decoding promises more" if text.plan == OFF else drafts
        told = {"promised": text.promise} if text.promise > 1 else {}
        return {"plans": text.num_plans, "drafts": drafts, **told}

    def end(self, sequence_id: int) -> None:
        text = self._texts.pop(sequence_id, None)
        self._account.is_planning = False  # its last round may have been interrupted
        if text is not None:
            self._num_ended, self._num_emitted = self._num_ended + 1, self._num_emitted + text.num_tokens

    # ---------------------------------------------------------------------------------------------------- when it pays

    def _is_due(self, text: Text, context: PlanContext) -> bool:
        cadence = self._cadence
        if cadence.first is not None:
            since = text.num_done - cadence.first
            return since >= 0 and since % cadence.interval == 0
        if len(text.window) < cadence.window or not (text.plan is None or text.num_rounds >= cadence.interval):
            return False
        return self._account.allows(cadence.budget) and (cadence.budget >= 1 or self._pays(context))

    def _pays(self, context: PlanContext) -> bool:
        num_generated, usual = context.num_generated_tokens, self._num_emitted / max(self._num_ended, 1)
        num_left = max(num_generated, usual - num_generated)
        return self._gain * num_left * self._account.pace >= self._account.last

    def _take(self, found: Promised) -> Plan:
        """Remember what a plan promises, and what making it has brought."""
        gain = found.speed / (found.before or self._current.promise) - 1
        self._gain = max((self._gain + max(gain, 0.0)) / 2, LEAST_GAIN)
        self._current.promise = found.speed
        return found.plan


def fastest(
    latency: LatencyFit,
    skips: Sequence[SkipSet],
    acceptances: Sequence[float],
    context: PlanContext,
    max_tokens: int,
    in_use: Plan | None = None,
    always: bool = False,
    **plan: Any,
) -> Promised:
    """Of these sets and all lengths the pair with the most tokens per second; unless it must `always` draft OFF where
    nothing beats plain decoding. `in_use`: what drafts so far; `plan`: what else a plan says.
    """
    if not skips:
        return Promised(OFF)
    rounds = latency.at(context.num_context_tokens).rounds(skips, max_tokens, context.num_rows)
    speeds = speed_table(acceptances, rounds) * rounds[0, 0]
    if always:
        speeds[:, 0] = 0.0
    row, length = (int(place) for place in np.unravel_index(speeds.argmax(), speeds.shape))
    before = float(speeds[skips.index(in_use.skip), 1:].max()) if in_use and in_use.skip in skips else None
    best = Plan(skips[row], max_draft_tokens=length, **plan) if length else OFF
    return Promised(best, float(speeds.max()), before)


def gain_of(latency: LatencyFit, skip: SkipSet, max_tokens: int) -> float:
    """What drafts with this set would bring over plain decoding of a short text if nearly all of them were kept."""
    speeds = latency.at(0).speeds(HIGH, skip, max_tokens)
    return float(speeds.max() / speeds[0]) - 1
