"""Sums over prompts, and the figures of a row that follow from them. Speeds are total tokens over total seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from ..engine.metrics import Comparison
from .costs import Costs, Round, round_of
from .ways import Output, Way

VERDICTS = ("equal", "tie", "different")


@dataclass
class Total:
    """Sums of one way over the prompts of one domain, or over all of them."""

    num_prompts: int = 0
    num_tokens: int = 0
    call_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0
    num_accepted: int = 0
    num_draft_steps: int = 0
    num_passes: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    rounds: Counter[Round] = field(default_factory=Counter)

    def __add__(self, other: Total) -> Total:
        return Total(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Total)))


def add_up(totals: Iterable[Total]) -> Total:
    return sum(totals, Total())


def total_of(output: Output, way: Way, comparison: Comparison | None) -> Total:
    """One call of this way."""
    verdicts: Counter[str] = Counter([comparison.verdict] if comparison else [])
    generation = output.generation
    if generation is None:
        return Total(
            num_prompts=1,
            num_tokens=len(output.tokens),
            call_seconds=output.call_seconds,
            first_token_seconds=output.first_token_seconds,
            verdicts=verdicts,
        )
    stats = generation.stats
    return Total(
        num_prompts=1,
        num_tokens=stats.num_tokens,
        call_seconds=output.call_seconds,
        decode_seconds=stats.decode_seconds,
        first_token_seconds=output.first_token_seconds,
        num_accepted=stats.num_accepted,
        num_draft_steps=stats.num_draft_steps,
        num_passes=stats.num_target_passes,
        verdicts=verdicts,
        rounds=Counter(round_of(step, way.drafter, way.vocabulary) for step in generation.steps),
    )


def figures(total: Total, baseline: Total | None, plain: Total, costs: Costs, floor_seconds: float) -> dict[str, Any]:
    """`baseline`: the peer that speeds are held against; `plain`: ours off. A figure that has no meaning is None."""
    call, decode = _per_token(total.call_seconds, total), _per_token(total.decode_seconds, total)
    base = _per_token(baseline.call_seconds, baseline) if baseline else None
    is_drafting = total.num_draft_steps > 0
    return {
        "num_prompts": total.num_prompts,
        "num_tokens": total.num_tokens,
        "call_seconds": total.call_seconds,
        "decode_seconds": total.decode_seconds or None,
        "tokens_per_second": ratio(1.0, call),
        "ms_per_token": _milli(call),
        "decode_ms_per_token": _milli(decode),
        "speedup": ratio(base, call),
        "speedup_over_off": ratio(_per_token(plain.call_seconds, plain), call),
        "decode_speedup_over_off": ratio(_per_token(plain.decode_seconds, plain), decode),
        "acceptance_rate": total.num_accepted / total.num_draft_steps if is_drafting else None,
        "mean_generated_length": ratio(total.num_tokens, total.num_passes),
        "first_token_ms": _milli(ratio(total.first_token_seconds, total.num_prompts)) or None,
        "floor_share": ratio(floor_seconds, decode or call),  # above 1: faster than reading all weights for each token
        **{verdict: total.verdicts[verdict] for verdict in VERDICTS},
        **_bound(total, plain, costs),
    }


def _bound(total: Total, plain: Total, costs: Costs) -> dict[str, float | None]:
    """What the costs of the passes predict, and how much of it was reached."""
    predicted = costs.predict_seconds(total.rounds) if total.rounds else None
    speedup = costs.predict_speedup(total.rounds, total.num_tokens) if total.rounds else None
    reached = ratio(_per_token(plain.decode_seconds, plain), _per_token(total.decode_seconds, total))
    return {
        "predicted_seconds": predicted,
        "predicted_speedup": speedup,
        "reached_share": ratio(reached, speedup),
        "round_overhead": None if predicted is None else ratio(total.decode_seconds - predicted, total.decode_seconds),
    }


def _per_token(seconds: float, total: Total) -> float | None:
    return seconds / total.num_tokens if total.num_tokens and seconds else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where it has no meaning."""
    return None if part is None or not whole else part / whole


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def difference(prompt_id: str, domain: str, comparison: Comparison) -> dict[str, Any]:
    gap = comparison.gap
    return {
        "id": prompt_id,
        "domain": domain,
        "verdict": comparison.verdict,
        "first_difference": comparison.first_difference,
        "gap": gap if gap is not None and math.isfinite(gap) else None,  # JSON knows no infinity
    }
