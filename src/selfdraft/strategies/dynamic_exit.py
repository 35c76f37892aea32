"""`dynamic-exit`: draft with the first layers; how many, the known tokens tell: what would each layer have said?

DEL, dynamic exit layer (arXiv:2504.05598). The tokens of the last rounds run through the model once, and the head reads
them after every layer: how often a layer says what the last one says is its acceptance. The layer with the most tokens
per second, at its best length, drafts; where passes are not recorded, verification goes on where the draft stopped.

Unlike the authors' code: seconds as measured instead of numbers of layers, and plain decoding is one of the choices
(unless told to draft `always`: until the first look half of the layers draft); it looks in a pass of its own, again
when that pays, where theirs reads what each verification computed; the acceptance is (hits + 1) / (tokens + 2) of the
last rounds, theirs of all rounds, decayed; a text begins with the last plan; the lookahead ends drafts, theirs a
threshold of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..options import setting
from ..protocols import Knowledge, PlanContext, Probe
from ..types import Plan, SkipSet
from .kept_sets import rate_of
from .replanning import Cadence, Promised, Replanner, fastest, gain_of


class DynamicExit(Replanner):
    @dataclass(frozen=True)
    class Options:
        window: int = setting(5, "look at the tokens of N rounds", minimum=1)
        min_tokens: int = setting(32, "but at least at N tokens, of the prompt if need be", minimum=1)
        interval: int = setting(64, "plan again after N rounds", minimum=1)
        max_tokens: int = setting(10, "draft at most N tokens", minimum=1)
        budget: float = setting(0.05, "plan where it pays, in at most this share of the time; 1: always", minimum=0.0)
        always: bool = setting(False, "draft even where plain decoding promises more, and before the first look")

    pairs_with: ClassVar[Mapping[str, Any]] = {"lookahead": "confidence", "tree": "chain"}

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._options, self._latency = options, knowledge.latency()
        num_layers = knowledge.num_layers
        self._skips = [exit_after(count, num_layers) for count in range(1, num_layers)]
        half = exit_after(num_layers // 2, num_layers)
        self._usual = Plan(half, max_draft_tokens=options.max_tokens, reuse=True)
        gain = gain_of(self._latency, half, options.max_tokens)
        seconds = self._latency.at(0).verify(options.min_tokens) * 2  # half of it for the head after every layer
        super().__init__(Cadence(options.window, options.interval, options.budget), seconds, gain)

    def first_plan(self, context: PlanContext) -> Promised | None:
        return super().first_plan(context) or (Promised(self._usual) if self._options.always else None)

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        options = self._options
        rates = acceptances(context.probe(max(num_tokens, options.min_tokens)))
        told: dict[str, Any] = {"in_use": self._current.plan, "always": options.always, "reuse": True}
        return self._take(fastest(self._latency, self._skips, rates, context, options.max_tokens, **told))


def exit_after(num_drafting: int, num_layers: int) -> SkipSet:
    skipped = range(num_drafting, num_layers)
    return SkipSet.of(skipped, skipped)


def acceptances(probe: Probe) -> list[float]:
    """Of each layer but the last: how often the head, reading after it, says what it says after the last one."""
    states, said = probe.begin(), []
    for number in range(probe.num_sublayers):
        states = probe.run(number, states)
        if number % 2:
            said.append(probe.scores(states)[0].argmax(-1))
    choices = torch.stack(said)
    hits: list[int] = (choices[:-1] == choices[-1]).sum(1).tolist()
    return [rate_of(count, choices.shape[1]) for count in hits]
