"""Recording ahead of time: what single texts of one method will ask for is run once in a scratch cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..chains import DraftTask
from ..options import GenerateOptions
from ..passes import PassRequest, Site
from ..protocols import DraftRows, PlanContext, Probe, Runner
from ..types import Plan
from .draft import Rule
from .method import Method
from .prefill import prefill_needs, prompt_chunk
from .sampling import Sampler
from .state import DRAFT_SLOTS

CHAIN_NODES, TREE_NODES = 15, 31
"""Drafted tokens to be ready for where a method does not say how many there may be."""
_NOBODY = -1
_ASKED = 2
"""Times that a look at known tokens must be asked for until it is recorded."""


def prepare(runner: Runner, method: Method, num_tokens: int) -> None:
    """In caches of every size that such texts get: a recording may be bound to its cache, which a text takes over."""
    plans = method.strategy.known_plans
    widest = max(max_width(method, plan) for plan in plans or (Plan(),))
    for num_slots in runner.recorded_slots(num_tokens + DRAFT_SLOTS):
        scratch = _Scratch(runner, method, runner.new_cache(1, num_slots), num_slots, num_tokens)
        scratch.record_prompts()
        scratch.record_passes(widest)
        for plan in plans:
            if plan.max_draft_tokens != 0:
                scratch.record_drafts(plan, widest)
        scratch.rehearse_plans()


def max_width(method: Method, plan: Plan) -> int:
    """Columns of the widest verification: the last committed token and what may be drafted after it."""
    limits = (plan.max_draft_tokens, method.lookahead.max_tokens)
    depth = min((limit for limit in limits if limit is not None), default=CHAIN_NODES)
    if not depth:
        return 1
    tree = method.tree_of(plan)
    unknown = TREE_NODES if tree.max_candidates > 1 else 0
    nodes = tree.max_nodes(1, is_recorded=True)
    return 1 + max(depth, unknown if nodes is None else nodes, method.drafter_of(plan).max_nodes)


@dataclass(frozen=True)
class _Scratch:
    """A cache of one row; texts in it have at most `num_tokens` tokens."""

    runner: Runner
    method: Method
    cache: Any
    num_slots: int
    num_tokens: int

    def record_prompts(self) -> None:
        """All but the last token of each: that one's pass has scores."""
        needs = prefill_needs(self.method.strategy)
        longest = min(self.num_tokens - 1, prompt_chunk(self.runner))
        for narrower, width in pairwise((0, *self.runner.recorded_prompts)):
            if narrower < longest and width <= self.num_slots:
                tokens = [[0] * min(width, longest)]
                self.runner.forward(PassRequest(tokens, [0], capture=needs, needs_scores=False), self.cache)

    def record_passes(self, widest: int) -> None:
        needs = self.method.strategy.needs
        for tokens, width in self._passes(widest):
            for start in self._starts(width):
                request = PassRequest(tokens, [start], capture=needs, run_ahead=width == 1 and not needs)
                self.runner.forward(request, self.cache)

    def _passes(self, widest: int) -> Iterator[tuple[torch.Tensor, int]]:
        """As few columns as get each width: none of them stands after the model's last position."""
        for narrower, width in pairwise((0, *self.runner.recorded_widths)):
            if narrower < widest:
                yield torch.zeros(1, narrower + 1, dtype=torch.long), width

    def record_drafts(self, plan: Plan, widest: int) -> None:
        """With what follows the verification of each, which is the same wherever that stands."""
        sampler, drafter = Sampler(GenerateOptions()), self.method.drafter_of(plan)
        sites = [Site(0, 0, 0)]
        task = DraftTask(Rule.of(self.method, plan, sampler), [1], sites, [_NOBODY], sampler.choosing(sites, ()), [1])
        for start in self._starts(1):
            rows = DraftRows((0,), (_NOBODY,), ([0] * (start + 1),), plan.skip, plan.reuse)
            drafter.open(self.runner, self.cache, rows).rehearse(task)
            for tokens, width in () if start or self.method.strategy.needs else self._passes(widest):
                if width > 1:
                    self.runner.forward(PassRequest(tokens, [start], run_ahead=True), self.cache)
        drafter.end(_NOBODY)

    def rehearse_plans(self) -> None:
        """Of texts that reach each number of slots that passes are recorded for."""
        for num_slots in self.runner.recorded_slots(self.num_slots):
            tokens = [0] * min(self.num_tokens, num_slots)

            def probe(count: int, before: int = 0, text: Sequence[int] = tokens) -> Probe:
                first = max(0, len(text) - before - count)
                return self.runner.probe(self.cache, text[first : len(text) - before], first, 0)

            for _ in range(_ASKED):  # the first token is a prompt
                self.method.strategy.rehearse(PlanContext(len(tokens), len(tokens) - 1, probe, tokens))

    def _starts(self, width: int) -> Iterator[int]:
        """For each number of slots that passes are recorded for: the first place where a pass reads that many."""
        for fewer, num_slots in pairwise((0, *self.runner.recorded_slots(self.num_slots))):
            start = max(fewer - width + 1, 0)
            if width <= num_slots and start <= self.num_tokens - 2:
                yield start
