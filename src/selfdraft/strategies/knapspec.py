"""`knapspec`: what to skip, and how far to draft, is a knapsack: measured seconds against closeness to the target.

KnapSpec (arXiv:2602.20217). Attention grows dearer with the text, an MLP (feed-forward block) does not; so the
sub-layers' weights are their seconds after the text as it is, as small whole numbers. The tokens of the last rounds are
run through a dynamic programme that finds for each weight skipped a sub-network close to the target. How often each of
these would have drafted what the target said there gives its acceptance; the one with the most tokens per second, at
its best length, drafts; how far, the lookahead says, as in the authors' code. `selfdraft calibrate` keeps sets found
so: then a plan only scores these.

With `paper` as the authors' code: one plan after 7 rounds, by the tokens of the last 5, then one every 64 rounds; hits
over tokens; weights by rounding, at most 5; a verification costs a plain pass; until then the whole model drafts.
Unlike that code, in either case:

- a probed token sees the target's keys and values of the tokens before it, not the sub-network's own;
- seconds of sub-layers come from whole passes, not from a layer timed alone;
- drafts end by the best token's probability, not by the drawn one's after temperature and top-k.

Unlike it by default:

- plans are made when what they can bring is more than what they take, and a text begins with the last one, the first
  one plainly;
- not to draft at all is one of the choices;
- drafts stop earlier, at 0.9, and are verified with siblings, and branches looked up in the text, beside them;
- a draft also costs its head, and a verification what it was measured to cost at its width;
- the acceptance is (hits + 1) / (tokens + 2), or with a profile drawn towards the match found in calibration;
- at least 32 tokens are looked at: few cannot show a high acceptance, and rounds that draft nothing emit one each;
- weights are the smallest whole numbers near the ratio, so 3 : 4 instead of 1 : 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..economics import LatencyFit, PassCosts, expected_tokens
from ..errors import OptionError
from ..fitting import Kit
from ..options import setting
from ..passes import States
from ..protocols import Knowledge, PlanContext, Probe
from ..types import OFF, Plan, SkipSet
from .base import damaged
from .kept_sets import MAX_SETS, KeptSet, best_drafting, hits_of, keep_best, rate_of
from .knapsack import Item, solve
from .matching import choices_after
from .prune import Prune
from .replanning import Cadence, Promised, Replanner, fastest, gain_of

_PAPER_LENGTHS, _PAPER_WAIT = 18, 2
"""Draft lengths that the authors' code tries, 0 included; rounds before those that it looks at."""
_PRIOR_TOKENS = 8
"""Tokens of a text that weigh as much as what calibration says."""


@dataclass(frozen=True)
class KnapSpecOptions:
    paper: bool = setting(False, "as the authors' code, whatever min_tokens, max_weight, budget, saved say")
    window: int = setting(5, "look at the tokens of N rounds", minimum=1)
    min_tokens: int = setting(32, "but at least at N tokens, of the prompt if need be; 0: as the paper", minimum=0)
    interval: int = setting(64, "plan again after N rounds", minimum=1)
    max_tokens: int = setting(10, "draft at most N tokens", minimum=1)
    min_cosine: float = setting(0.5, "drop sub-networks below this", minimum=-1.0, maximum=1.0)
    share: float = setting(0.5, "of the seconds of all sub-layers: skip at most", minimum=0.0, maximum=1.0)
    max_weight: int = setting(8, "seconds as whole numbers up to N: fewer make plans quicker", minimum=1, maximum=16)
    bound: bool = setting(False, "skip attention and MLP of a layer together or not at all (the ablation)")
    budget: float = setting(0.05, "plan where it pays, in at most this share of the time; 1: always", minimum=0.0)
    saved: bool = setting(True, "choose among the sets that the profile has, if it has some")

    @property
    def rules(self) -> KnapSpecOptions:
        """With `paper` spelt out."""
        return replace(self, min_tokens=0, budget=1.0, saved=False) if self.paper else self

    @property
    def cadence(self) -> Cadence:
        first = self.window + _PAPER_WAIT if self.paper else None
        return Cadence(self.window, self.interval, self.budget, first)


class KnapSpec(Replanner):
    Options = KnapSpecOptions
    can_fit = True
    pairs_with: ClassVar[Mapping[str, Any]] = Prune.pairs_with
    paper_pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "chain",
        "settings": {"confidence": {"threshold": 0.7, "max_tokens": 10}},
    }

    def __init__(self, options: KnapSpecOptions, knowledge: Knowledge) -> None:
        self._options, self._latency = options.rules, knowledge.latency()
        self._known = read_known(knowledge) if self._options.saved else ()
        self.known_plans = tuple(Plan(one.skip, max_draft_tokens=options.max_tokens) for one in self._known)
        num_layers, num_tokens = self._latency.num_layers, max(options.window, options.min_tokens)
        layers = range(1, int(options.share * num_layers) + 1)
        gain = gain_of(self._latency, SkipSet.of(layers, layers), options.max_tokens)
        num_rows = 1 + len(self._known)
        seconds = self._latency.at(0).verify(num_rows * num_tokens) if self._known else None
        super().__init__(self._options.cadence, seconds or plan_seconds(self._latency, num_tokens, options), gain)

    def first_plan(self, context: PlanContext) -> Promised | None:
        """As calibrated for this length; else as the last text was drafted. The paper's: with the whole model."""
        max_tokens = self._options.max_tokens
        if self._options.paper:
            return Promised(Plan(max_draft_tokens=max_tokens)) if context.num_generated_tokens else None
        if not self._known:
            return super().first_plan(context)
        skips, rates = [one.skip for one in self._known], [one.match for one in self._known]
        return self._fastest(skips, rates, context)

    def choose(self, context: PlanContext, num_tokens: int) -> Plan:
        options, costs = self._options, self._latency.at(context.num_context_tokens)
        probe = context.probe(max(num_tokens, options.min_tokens))
        if self._known:
            skips = [one.skip for one in self._known]
            hits = hits_of(probe, skips)
            priors = [_PRIOR_TOKENS * one.match for one in self._known]
            rates = [(sum(own) + prior) / (len(own) + _PRIOR_TOKENS) for own, prior in zip(hits, priors, strict=True)]
        else:
            skips, rates = networks(probe, costs, options)
        if options.paper:
            return Plan(paper_choice(costs, skips, rates), max_draft_tokens=options.max_tokens)
        return self._take(self._fastest(skips, rates, context, self._current.plan))

    def _fastest(
        self, skips: Sequence[SkipSet], rates: Sequence[float], context: PlanContext, in_use: Plan | None = None
    ) -> Promised:
        """Up to `max_tokens` the lookahead says where a draft ends: it sees how sure the draft is."""
        found = fastest(self._latency, skips, rates, context, self._options.max_tokens, in_use)
        drafting = replace(found.plan, max_draft_tokens=self._options.max_tokens)
        return found if found.plan == OFF else replace(found, plan=drafting)

    @staticmethod
    def fit(kit: Kit, options: KnapSpecOptions) -> dict[str, Any]:
        """At most 8 sets: of all that the knapsack finds on any text those that promise most, at each length measured.

        Goes on after the texts that an interrupted fit had kept.
        """
        lengths, found, probes = [kit.latency.at(length) for length in kit.latency.lengths], [], []
        for number, probe in enumerate(kit.probes):
            if number == len(kit.done):
                if number and not kit.has_time():
                    break
                kit.keep({"sets": [str(skip) for skip in best_networks(probe, lengths, options)]})
            found.append([SkipSet.parse(text) for text in kit.done[number]["sets"]])
            probes.append(probe)
            kit.progress((number + 1) / (len(kit.probes) + 1))
        return {"known": [one.to_json() for one in keep_best(probes, found, lengths, MAX_SETS)]}


# ---------------------------------------------------------------------------------------------------- sub-networks


def networks(probe: Probe, costs: PassCosts, options: KnapSpecOptions) -> tuple[list[SkipSet], list[float]]:
    """What the dynamic programme finds, the lightest saving first, and how often each says what the target says."""
    num_layers, weights = costs.fit.num_layers, weights_of(costs, options)
    budget = int(options.share * sum(weights) * num_layers)
    candidates, states = solve(probe, items(num_layers, weights, options.bound), budget, options.min_cosine)
    rates = acceptances(probe, states, is_smoothed=not options.paper)
    return [SkipSet.of_numbers(one.skipped) for one in candidates[1:]], list(rates[1:])


def best_networks(probe: Probe, lengths: Sequence[PassCosts], options: KnapSpecOptions) -> list[SkipSet]:
    """Of one text: for each length the set that drafts fastest."""
    found, by_weights = [], {}
    for costs in lengths:
        weights = weights_of(costs, options)
        if weights not in by_weights:
            by_weights[weights] = networks(probe, costs, options)
        skips, rates = by_weights[weights]
        if skips:
            found.append(skips[int(best_drafting(costs, skips, rates).argmax())])
    return list(dict.fromkeys(found))


def paper_choice(costs: PassCosts, skips: Sequence[SkipSet], rates: Sequence[float]) -> SkipSet:
    """The set with the most tokens per time by the authors' formula at any length; nothing where there is none."""
    if not skips:
        return SkipSet()
    rest, lengths = costs.fit.rest_seconds, np.arange(_PAPER_LENGTHS)
    target, drafts = costs.draft(SkipSet()) - rest, np.array([costs.draft(skip) - rest for skip in skips])
    speeds = expected_tokens(rates, _PAPER_LENGTHS - 1) / (drafts[:, None] * lengths + target)
    return skips[int(speeds.argmax()) // _PAPER_LENGTHS]


def weights_of(costs: PassCosts, options: KnapSpecOptions) -> tuple[int, int]:
    return costs.paper_weights if options.paper else costs.weights_up_to(options.max_weight)


def plan_seconds(fit: LatencyFit, num_tokens: int, options: KnapSpecOptions) -> float:
    """About what a plan takes: as many rows as weights can be skipped, half of them alive on average."""
    num_rows = options.share * sum(weights_of(fit.at(0), options)) * fit.num_layers
    return num_rows / 2 * fit.at(0).verify(num_tokens)


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


def acceptances(probe: Probe, states: States, is_smoothed: bool = True) -> Sequence[float]:
    """Of each sub-network, the first of which is the target: how often it says the same."""
    choices = choices_after(probe, states.hidden)
    hits, num_tokens = (choices == choices[0]).sum(1).tolist(), choices.shape[1]
    return [rate_of(count, num_tokens) if is_smoothed else count / num_tokens for count in hits]


def read_known(knowledge: Knowledge) -> Sequence[KeptSet]:
    """What calibration kept; nothing where it did not run."""
    try:
        found = [KeptSet.from_json(one) for one in knowledge.known("knapspec").get("known", ())]
        for one in found:
            one.skip.check(knowledge.num_layers)
    except (LookupError, TypeError, ValueError, AttributeError, OptionError) as error:
        raise damaged("sets of `knapspec`", error, f"{knowledge.command('calibrate')} --strategy knapspec") from error
    return found
