"""What the experiments share: tokens per time, texts to look at, the knapsack run beside decoding, careful claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ....calibrate.texts import Text, probe_text
from ....economics import LatencyFit, PassCosts, expected_tokens
from ....protocols import Probe
from ....strategies.elimination import Sample, qualities, sample
from ....strategies.knapsack import solve
from ....strategies.knapspec import KnapSpec, acceptances, items
from ....types import SkipSet
from ...harness.records import TextRecord
from ...prompts import BenchPrompt, encode
from ...totals import ratio
from ...ways import OFF
from ..cells import figure, is_faster, speed, spread
from ..recipe import Found, Trend
from ..scale import Scale
from ..workbench import Methods, Workbench

PAPER_MODELS, PAPER_TASKS = 8, 6
MAX_DRAFTED, MIN_COSINE, SHARE = 10, 0.5, 0.5
"""The paper's: tokens of a draft at most, where states are pruned, how much may be skipped at most."""
INTERVAL = 64
"""Rounds from one plan to the next, in its code."""
LOOKED, QUICK_LOOKED = 32, 16
"""Tokens that a plan looks at, at least."""
NO_LOSS = 0.05
"""What loses less is as fast."""
SUMMARY_NOTE = "what is known of the paper is a summary of it; of this it states no numbers"
_TEXT_TOKENS = 48

# ------------------------------------------------------------------------------------------------------- methods


def num_looked_at(scale: Scale) -> int:
    """Fewer at quick scale, where a plan must not take most of the time."""
    return QUICK_LOOKED if scale.is_quick else LOOKED


def knapspec(scale: Scale, **changed: Any) -> dict[str, Any]:
    """As in the paper: it plans whatever that costs."""
    settings = {"budget": 1.0, "min_tokens": num_looked_at(scale), **changed}
    return {"strategy": "knapspec", "settings": {"knapspec": settings}}


def always(skip: SkipSet) -> dict[str, Any]:
    """One set, whether it pays or not, with what the paper uses on the other axes."""
    pairing = KnapSpec.pairs_with
    return {**pairing, "strategy": "fixed", "settings": {**pairing["settings"], "fixed": {"skip": str(skip)}}}


def compare(bench: Workbench, methods: Methods, prompts: Sequence[BenchPrompt], **call: Any) -> dict[str, Any]:
    """As the workbench does, each way with its `tokens_per_time`."""
    ways, records = bench.compare_texts(methods, prompts, **call)
    for name, found in ways.items():
        if "total" in found:
            own = [record for record in records if record.way == name]
            found["total"]["tokens_per_time"] = tokens_per_time(own, bench.latency)
    return ways


# ------------------------------------------------------------------------------------------------ tokens per time


def tokens_per_time(records: Sequence[TextRecord], fit: LatencyFit) -> float | None:
    """Tokens emitted over what the passes of their rounds take, measured alone; a verification counts as one pass."""
    seconds = sum(pass_seconds(record, fit) for record in records)
    return ratio(sum(record.num_tokens for record in records), seconds)


def pass_seconds(record: TextRecord, fit: LatencyFit) -> float:
    costs = fit.at(record.num_prompt_tokens + record.num_tokens / 2)
    saved = record.skipped_attention * costs.attention + record.skipped_mlp * fit.mlp_seconds
    return record.num_rounds * costs.plain + record.num_draft_passes * costs.draft(SkipSet()) - saved


def predicted(skip: SkipSet, acceptance: float, num_drafted: int, costs: PassCosts) -> dict[str, float]:
    """What the paper's formulas say of drafting `num_drafted` tokens in each round.

    `by_width`: tokens per time with a verification that costs what one of its width was measured to cost.
    """
    tokens = float(expected_tokens([acceptance], num_drafted)[0, num_drafted])
    seconds = num_drafted * costs.draft(skip) + costs.plain
    by_width = costs.speeds(acceptance, skip, num_drafted)[num_drafted]
    layers = num_drafted * (costs.fit.num_layers - len(skip) / 2) + costs.fit.num_layers
    return {
        "tokens_per_time": tokens / seconds,
        "by_width": float(by_width),
        "tokens_per_layer": tokens / layers,
        "acceptance": acceptance,
    }


# ------------------------------------------------------------------------------------------------- texts, knapsack


@dataclass(frozen=True)
class Network:
    """A sub-network of the knapsack, and the draft length at which it promises most."""

    skip: SkipSet
    acceptance: float
    num_drafted: int
    tokens_per_time: float

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "skip": str(self.skip)}


class References:
    """Texts that the model wrote behind prompts which are not measured. The first one shows the knapsack what to skip,
    the others how often a sub-network is right; where there is only one, it does both.
    """

    def __init__(self, bench: Workbench, prompts: Sequence[BenchPrompt], num_tokens: int | None = None) -> None:
        self._bench, self._prompts = bench, prompts
        self._num_tokens = num_tokens or max(_TEXT_TOKENS, bench.scale.tokens)

    @cached_property
    def _first(self) -> Text:
        return self._write(self._prompts[0])

    def _write(self, prompt: BenchPrompt) -> Text:
        engine = self._bench.engine
        tokens = encode(prompt, engine)
        written = engine.generate(tokens, strategy="off", max_new_tokens=self._num_tokens).tokens
        return Text((*tokens, *written), len(tokens))

    @property
    def length(self) -> int:
        return len(self._first.tokens)

    @cached_property
    def probe(self) -> Probe:
        """At the last tokens of the first text."""
        text, count = self._first, num_looked_at(self._bench.scale)
        begin = max(text.num_prompt_tokens, len(text.tokens) - count)
        return probe_text(Text(text.tokens, begin), self._bench.engine.runner)

    @cached_property
    def _samples(self) -> list[Sample]:
        texts = [self._write(prompt) for prompt in self._prompts[1:]] or [self._first]
        return [sample(probe_text(text, self._bench.engine.runner)) for text in texts]

    def match(self, skip: SkipSet) -> float:
        """How often the sub-network makes the target's choice."""
        return qualities(self._samples, skip.numbers)[0].match

    def networks(self, *, is_bound: bool = False, min_cosine: float = MIN_COSINE) -> list[Network]:
        """One for each weight that can be skipped, the lightest first."""
        costs = self._bench.latency.at(self.length)
        budget = int(SHARE * sum(costs.weights) * costs.fit.num_layers)
        every = items(costs.fit.num_layers, costs.weights, is_bound)
        candidates, states = solve(self.probe, every, budget, min_cosine)
        found = zip(candidates[1:], acceptances(self.probe, states)[1:], strict=True)
        return [_at_its_best(SkipSet.of_numbers(one.skipped), alpha, costs) for one, alpha in found]


def _at_its_best(skip: SkipSet, acceptance: float, costs: PassCosts) -> Network:
    speeds = costs.speeds(acceptance, skip, MAX_DRAFTED)[1:]
    best = int(speeds.argmax())
    return Network(skip, acceptance, best + 1, float(speeds[best]))


def best_of(networks: Sequence[Network]) -> Network | None:
    return max(networks, key=lambda one: one.tokens_per_time, default=None)


def with_references(bench: Workbench, count: int = 2) -> Workbench:
    """With at least so many prompts of each task that are not measured."""
    return replace(bench, scale=replace(bench.scale, learned_prompts=max(count, bench.scale.learned_prompts)))


# ------------------------------------------------------------------------------------------------- claims


def num_prompts(found: Found) -> int | None:
    """That were measured, in the unit that has fewest."""
    counts = [figure(found, unit, OFF, "num_prompts") for unit in found.units]
    return min((count for count in counts if count is not None), default=None)


def is_no_slower(claim: str, found: Found, first: tuple[str, str], second: tuple[str, str]) -> Trend:
    """That a way (unit, way) loses less than `NO_LOSS` against another: a wide interval says nothing."""
    other_way = is_faster(claim, found, second, first)
    one, two = speed(found, *first), speed(found, *second)
    if one is None or two is None or other_way.because.startswith("too few"):
        return other_way
    names = (first[1], second[1]) if first[1] != second[1] else (first[0], second[0])
    because = f"{names[0]} {spread(one)}, {names[1]} {spread(two)}"
    if one["low"] >= (1 - NO_LOSS) * two["value"]:
        return Trend(claim, True, because)
    if other_way.holds:
        return Trend(claim, False, because)
    return Trend(claim, None, f"too wide: {because}")
