"""Method: the axes of one call, each with its part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

from ..lookahead.base import PlainLookahead
from ..passes import NoiseKey
from ..protocols import Drafter, Lookahead, Strategy, Tree
from ..strategies.base import ConstantStrategy, PlainStrategy
from ..types import OFF, Plan, Verdict
from .sampling import Ranked, Sampler


class Acceptance(Protocol):
    """How candidates are drawn and what is kept of them: two halves of one rule (accept.py)."""

    keeps_scores: bool  # whether `accept` needs the draft's distributions
    draft_salt: int  # of the noise that draws a draft; 0: none
    target_salt: int  # of the noise that draws after a text for which nothing was drafted

    def candidates(self, warped: torch.Tensor, count: int, sampler: Sampler, noise: NoiseKey) -> Ranked:
        """What a draft that samples proposes; a greedy one proposes its best tokens, whatever the acceptance."""

    def accept(self, targets: Any, sampler: Sampler) -> list[Verdict]: ...


@dataclass(frozen=True)
class Method:
    """Which sub-layers, how far, what drafts, what stands beside it, what is kept.

    `drafter` and `tree` name what a plan gets that asks for none.
    """

    strategy: Strategy
    lookahead: Lookahead
    drafters: Mapping[str, Drafter]
    drafter: str
    trees: Mapping[str, Tree]
    tree: str
    accept: Acceptance

    @property
    def only_plan(self) -> Plan | None:
        """Of every text and round, where the strategy has but one."""
        strategy = self.strategy
        is_constant = getattr(strategy.plan, "__func__", None) is ConstantStrategy.plan
        return strategy.known_plans[0] if is_constant else None

    @property
    def drafts(self) -> bool:
        return tuple(self.strategy.known_plans) != (OFF,)

    @property
    def learns(self) -> bool:
        """Whether its strategy or lookahead makes something of rounds without a draft, too."""
        observed = (getattr(part.observe, "__func__", None) for part in (self.strategy, self.lookahead))
        return not all(function in (PlainStrategy.observe, PlainLookahead.observe) for function in observed)

    @property
    def parts(self) -> Hashable:
        """What tells it from others of one engine."""
        return self.strategy, self.lookahead, self.drafter, self.tree, self.accept

    def is_idle(self, num_rows: int) -> bool:
        """Whether its strategy leaves rounds of that many texts plain."""
        return num_rows > self.strategy.max_rows

    @property
    def pauses(self) -> Callable[[int, int], bool] | None:
        """Where a lookahead may let rounds go without a draft: (row of the call, token it begins with) -> it does."""
        return getattr(self.lookahead, "pauses", None)

    def drafter_of(self, plan: Plan) -> Drafter:
        return self.drafters[plan.drafter or self.drafter]

    def tree_of(self, plan: Plan) -> Tree:
        return self.trees[plan.tree or self.tree]


@dataclass(frozen=True, eq=False)
class Cohort:
    """How some texts are drafted, chosen and judged: those of one cohort share drafts and tests."""

    method: Method
    sampler: Sampler
    is_shared: bool = True  # one skip set for all, where the texts do not depend on it

    @property
    def shares_skip(self) -> bool:
        return self.is_shared and not self.is_tested

    @property
    def is_tested(self) -> bool:
        """Whether drafts are tested by what they were drawn from: then a text depends on when there are any."""
        return self.method.accept.keeps_scores and not self.sampler.is_greedy

    @cached_property
    def may_do_without(self) -> bool:
        """Whether it drafts, and rounds without drafts would give the same texts."""
        return not self.is_tested and self.method.drafts

    @cached_property
    def draft_slot_bytes(self) -> int:
        """What a slot of a row takes in the cache of a draft model."""
        return self.method.drafter_of(OFF).slot_bytes if self.method.drafts else 0


Cohorts = MutableMapping[Any, Cohort]
"""By method and sampler."""


def share_skip(plans: list[Plan], rows: Sequence[int]) -> None:
    """Let rows draft together whose plans differ by their skip sets: with that of most of them, or of the first one."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        plan = plans[row]
        alike[plan.drafter, plan.tree, plan.reuse, plan.max_draft_tokens == 0].append(row)
    for members in alike.values():
        skip, _ = Counter(plans[row].skip for row in members).most_common(1)[0]
        shared = next(plans[row] for row in members if plans[row].skip == skip)
        for row in members:
            plans[row] = plans[row] if plans[row].skip == skip else shared


class Parts(Mapping[str, Any]):
    """Parts of one axis by name: the caller's choice, and others from when a plan first asks for them."""

    def __init__(self, build: Callable[[str], Any], name: str) -> None:
        self._build, self._built = build, {name: build(name)}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)
