"""`knapspec`: what to skip, and how far to draft, is a knapsack: measured seconds against closeness to the target.

KnapSpec (arXiv:2602.20217). Attention grows dearer with the text, an MLP (feed-forward block) does not; so the
sub-layers' weights are their seconds after the text as it is, as small whole numbers. The tokens of the last rounds are
run through a dynamic programme that finds for each weight skipped a sub-network close to the target. How often each of
these would have drafted what the target said there gives its acceptance, (hits + 1) / (tokens + 2); the one with the
most tokens per second, at its best length, drafts.

Unlike the paper's code, the length found is used, a verification costs what it was measured to cost at its width, and
not to draft at all is one of the choices. Few tokens cannot show a high acceptance, and rounds that draft nothing emit
one token each: so a minimum of tokens is looked at, else nothing would be drafted, and so it would stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..economics import LatencyFit
from ..options import setting
from ..passes import States
from ..protocols import Knowledge, PlanContext, Probe
from ..types import OFF, Plan, SkipSet
from .knapsack import Item, solve
from .matching import choices_after
from .replanning import Replanner


class KnapSpec(Replanner):
    @dataclass(frozen=True)
    class Options:
        window: int = setting(5, "look at the tokens of N rounds", minimum=1)
        min_tokens: int = setting(32, "but at least at N tokens, of the prompt if need be; 0: as the paper", minimum=0)
        interval: int = setting(64, "plan again after N rounds, or a quarter more text", minimum=1)
        max_tokens: int = setting(10, "draft at most N tokens", minimum=1)
        min_cosine: float = setting(0.5, "drop sub-networks below this", minimum=-1.0, maximum=1.0)
        share: float = setting(0.5, "of the seconds of all sub-layers: skip at most", minimum=0.0, maximum=1.0)
        bound: bool = setting(False, "skip attention and MLP of a layer together or not at all (the ablation)")
        budget: float = setting(0.05, "plan only while that takes at most this share of the time", minimum=0.0)

    pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "chain",
        "settings": {"confidence": {"threshold": 0.7, "max_tokens": 10}},
    }

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._options, self._latency = options, knowledge.latency()
        num_tokens = max(options.window, options.min_tokens)
        seconds = plan_seconds(self._latency, num_tokens)
        super().__init__(options.window, options.interval, options.budget, seconds)

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        options, num_layers = self._options, self._latency.num_layers
        costs = self._latency.at(context.num_context_tokens)
        budget = int(options.share * sum(costs.weights) * num_layers)
        probe = context.probe(max(num_tokens, options.min_tokens))
        candidates, states = solve(probe, items(num_layers, costs.weights, options.bound), budget, options.min_cosine)
        best, best_speed = OFF, 0.0
        for candidate, acceptance in list(zip(candidates, acceptances(probe, states), strict=True))[1:]:
            skip = SkipSet.of_numbers(candidate.skipped)
            num_drafted, speed = costs.best_length(acceptance, skip, options.max_tokens)
            if speed > best_speed:
                best, best_speed = (Plan(skip, max_draft_tokens=num_drafted) if num_drafted else OFF), speed
        return best


def plan_seconds(fit: LatencyFit, num_tokens: int) -> float:
    """About what a plan takes: as many rows as weights can be skipped, half of them alive on average."""
    return fit.num_layers / 2 * fit.at(0).verify(num_tokens)


def items(num_layers: int, weights: tuple[int, int], is_bound: bool = False) -> list[Item]:
    """Every sub-layer, or every layer; the first and the last layer always run."""
    found = []
    for layer in range(num_layers):
        is_pinned = layer in (0, num_layers - 1)
        numbers = (2 * layer, 2 * layer + 1)
        if is_bound:
            found.append(Item(numbers, sum(weights), is_pinned))
        else:
            found += [Item((number,), weight, is_pinned) for number, weight in zip(numbers, weights, strict=True)]
    return found


def acceptances(probe: Probe, states: States) -> Sequence[float]:
    """Of each sub-network, the first of which is the target: how often it says the same."""
    choices = choices_after(probe, states.hidden)
    hits = (choices == choices[0]).sum(1)
    return [(count + 1) / (choices.shape[1] + 2) for count in hits.tolist()]
