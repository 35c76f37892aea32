"""`clasp`: skip a number of whole layers; which ones, the last accepted token's hidden states tell.

CLaSp: in-context layer skip for self-speculative decoding (arXiv:2505.24196). A dynamic programme, that of `knapspec`
with whole layers of weight 1, finds the layers whose absence turns the hidden states of the token accepted last least.
A quarter of the layers goes: the authors of `knapspec` (arXiv:2602.20217) skip 22 to 31 % of them where they compare
the two. With `paper` it plans as their code of it: after 2 rounds, then every 64, and until then the whole model
drafts.

Unlike that code the first and the last layer always run. Unlike it by default: it plans when that pays, a text begins
with the last plan, the first one plainly, and drafts end below 0.8, after 12 tokens at most (theirs: 0.7, 10).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import setting
from ..protocols import Knowledge, PlanContext
from ..types import OFF, Plan, SkipSet
from .knapsack import Item, solve
from .replanning import Cadence, Promised, Replanner

_PAPER_FIRST = 2


class Clasp(Replanner):
    @dataclass(frozen=True)
    class Options:
        paper: bool = setting(False, "plan as the authors' code, whatever budget (below) says")
        ratio: float = setting(0.25, "share of the layers to skip", minimum=0.0, maximum=1.0)
        interval: int = setting(64, "plan again after N rounds", minimum=1)
        budget: float = setting(0.05, "plan where it pays, in at most this share of the time; 1: always", minimum=0.0)

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._options = options
        super().__init__(Cadence(1, options.interval, options.budget, _PAPER_FIRST if options.paper else None))
        last = knowledge.num_layers - 1
        self._items = [Item((2 * layer, 2 * layer + 1), 1, layer in (0, last)) for layer in range(last + 1)]
        self._num_skipped = min(round(options.ratio * (last + 1)), max(0, last - 1))

    def first_plan(self, context: PlanContext) -> Promised | None:
        if self._options.paper:
            return Promised(Plan()) if context.num_generated_tokens else None
        return super().first_plan(context)

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        candidates, _ = solve(context.probe(1), self._items, self._num_skipped, min_cosine=-1.0)
        skip = SkipSet.of_numbers(candidates[-1].skipped)
        return Plan(skip) if skip else OFF
