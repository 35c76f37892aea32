"""What one way of choosing sub-layers did, summed over prompts, and the figures of a table's row that follow from it.

A drafted token's cost is the share of a plain pass that drafting it takes: by the weights it reads, by the seconds that
were fitted to this device, and as measured while decoding. The three are means over draft passes; what is skipped is a
mean over the rounds that drafted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from ...economics import LatencyFit
from ...models.info import ModelInfo
from ...types import Generation, Plan, SkipSet
from ..costs import weight_share
from ..totals import VERDICTS, ratio


@dataclass(frozen=True)
class Prices:
    """What a drafted token costs of a plain pass. Drafts are priced with the whole head, whatever their vocabulary."""

    fit: LatencyFit
    shares: tuple[tuple[float, float], ...]  # of attention and MLP, layer by layer: what a pass reads

    @classmethod
    def of(cls, info: ModelInfo, fit: LatencyFit) -> Prices:
        return cls(fit, tuple((layer.attention_share, layer.mlp_share) for layer in info.layers))

    def by_weights(self, skip: SkipSet) -> float:
        return weight_share(self.shares, skip)

    def by_seconds(self, skip: SkipSet, num_context: float) -> float:
        costs = self.fit.at(num_context)
        return costs.draft(skip) / costs.plain


@dataclass
class Sums:
    """Of one way over the prompts of one domain, or over all of them."""

    num_prompts: int = 0
    num_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    planning_seconds: float = 0.0
    draft_seconds: float = 0.0
    capture_seconds: float = 0.0  # of decoding: recording graphs
    num_accepted: int = 0
    num_draft_steps: int = 0
    num_rounds: int = 0
    num_drafting_rounds: int = 0
    num_own_rounds: int = 0  # of these: drafted by the model itself
    num_draft_passes: int = 0
    skipped_attention: int = 0  # over the rounds that drafted
    skipped_mlp: int = 0
    weights_read: float = 0.0  # by all draft passes, in whole passes
    fit_draft_seconds: float = 0.0
    fit_plain_seconds: float = 0.0  # of as many plain passes as there were draft passes, behind the same texts
    num_new_plans: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    plans: Counter[Plan] = field(default_factory=Counter)  # rounds

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Sums)))


def add_up(parts: Iterable[Sums]) -> Sums:
    return sum(parts, Sums())


def sums_of(
    generation: Generation,
    prices: Prices,
    verdict: str | None,
    capture_seconds: float = 0.0,
    is_own_draft: bool = True,
) -> Sums:
    """One text; `verdict`: how it compares with the plain one, if it is another.

    `is_own_draft`: by the model itself; what others draft skips no sub-layer and takes none of its passes.
    """
    stats = generation.stats
    sums = Sums(
        num_prompts=1,
        num_tokens=stats.num_tokens,
        prefill_seconds=stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        planning_seconds=stats.optimise_seconds,
        draft_seconds=stats.draft_seconds,
        capture_seconds=capture_seconds,
        num_accepted=stats.num_accepted,
        num_draft_steps=stats.num_draft_steps,
        num_rounds=stats.num_rounds,
        num_new_plans=_num_new_plans(generation),
        verdicts=Counter([verdict] if verdict else []),
        plans=Counter(step.plan for step in generation.steps),
    )
    num_context = generation.num_prompt_tokens
    for step in generation.steps:
        sums.num_drafting_rounds += bool(step.draft.tokens)
        if is_own_draft and step.draft.num_draft_steps:
            _add_round(sums, step.plan.skip, step.draft.num_draft_steps, num_context, prices)
        num_context += len(step.verdict.tokens)
    return sums


def _num_new_plans(generation: Generation) -> int:
    """How often a round went by another plan than the one before; the first plan of a text counts if it drafts."""
    plans = [step.plan for step in generation.steps]
    changes = sum(after is not before for before, after in itertools.pairwise(plans))
    return changes + (bool(plans) and plans[0].max_draft_tokens != 0)


def _add_round(sums: Sums, skip: SkipSet, num_passes: int, num_context: int, prices: Prices) -> None:
    sums.num_own_rounds += 1
    sums.num_draft_passes += num_passes
    sums.skipped_attention += len(skip.attention)
    sums.skipped_mlp += len(skip.mlp)
    sums.weights_read += num_passes * prices.by_weights(skip)
    sums.fit_draft_seconds += num_passes * prices.fit.at(num_context).draft(skip)
    sums.fit_plain_seconds += num_passes * prices.fit.plain.at(num_context)


def figures(sums: Sums, plain: Sums) -> dict[str, Any]:
    """`plain`: of `off` on the same prompts. A figure that has no meaning is None.

    `control`: of a way that never drafted, its speed-up without its planning. It did what `off` did: what is not 1
    here is how much the device wavered.
    """
    per_token, plain_per_token = (ratio(one.decode_seconds, one.num_tokens) for one in (sums, plain))
    unplanned_per_token = ratio(sums.decode_seconds - sums.planning_seconds, sums.num_tokens)
    per_draft = ratio(sums.draft_seconds, sums.num_draft_passes)
    return {
        "num_prompts": sums.num_prompts,
        "num_tokens": sums.num_tokens,
        "decode_seconds": sums.decode_seconds,
        "ms_per_token": None if per_token is None else 1000 * per_token,
        "speedup": ratio(plain_per_token, per_token),
        "control": None if sums.num_drafting_rounds else ratio(plain_per_token, unplanned_per_token),
        "drafting_share": ratio(sums.num_drafting_rounds, sums.num_rounds),
        "skipped_attention": ratio(sums.skipped_attention, sums.num_own_rounds),
        "skipped_mlp": ratio(sums.skipped_mlp, sums.num_own_rounds),
        "cost_by_weights": ratio(sums.weights_read, sums.num_draft_passes),
        "cost_by_seconds": ratio(sums.fit_draft_seconds, sums.fit_plain_seconds),
        "cost_measured": ratio(per_draft, plain_per_token),
        "acceptance_rate": ratio(sums.num_accepted, sums.num_draft_steps),
        "mean_generated_length": ratio(sums.num_tokens, sums.num_rounds),
        "planning_seconds": sums.planning_seconds,
        "planning_share": ratio(sums.planning_seconds, sums.decode_seconds),
        "num_new_plans": sums.num_new_plans,
        "prefill_ratio": ratio(sums.prefill_seconds, plain.prefill_seconds),
        "capture_seconds": sums.capture_seconds,
        **{verdict: sums.verdicts[verdict] for verdict in VERDICTS},
    }


def plan_figures(plans: Counter[Plan]) -> list[dict[str, Any]]:
    """Each distinct plan, the most used first."""
    return [
        {
            "skip": str(plan.skip),
            "attention": len(plan.skip.attention),
            "mlp": len(plan.skip.mlp),
            "max_draft_tokens": plan.max_draft_tokens,
            "num_rounds": num_rounds,
        }
        for plan, num_rounds in plans.most_common()
    ]
