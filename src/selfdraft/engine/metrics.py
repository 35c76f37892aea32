"""What is counted and how two outputs are compared; each metric is defined where it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..passes import NoiseKey, Site
from ..types import NO_DRAFT, Stats
from .sampling import Sampler
from .state import TextSequence

TIE_EPS = 4
"""Two choices tie when their scores differ by at most this many units of the dtype's precision at their size."""


def stats_of(sequence: TextSequence, packed_bytes: int = 0) -> Stats:
    rounds, num_tokens = sequence.rounds, sequence.num_generated
    seconds = [sum(part) for part in zip(*[kept[-1] for kept in rounds], strict=True)] or [0.0] * 4
    drafted = [(kept[1], len(kept[2].nodes)) for kept in rounds if kept[1] is not NO_DRAFT]
    # One step is one draft pass. Tokens kept from a branch that took no pass count as steps: the rate is a share.
    num_draft_steps = sum(max(draft.num_draft_steps, num_kept) for draft, num_kept in drafted)
    num_accepted = sum(num_kept for _, num_kept in drafted)
    return Stats(
        num_tokens=num_tokens,
        num_rounds=len(rounds),
        num_target_passes=len(rounds),  # one verification a round; prefill is not counted
        num_draft_steps=num_draft_steps,
        num_accepted=num_accepted,
        acceptance_rate=_ratio(num_accepted, num_draft_steps),  # accepted draft tokens per draft step
        mean_generated_length=_ratio(num_tokens, len(rounds)),  # emitted tokens per target pass, bonus included
        cached_prompt_tokens=min(sequence.num_known, sequence.num_prompt_tokens),  # not read again
        prefill_seconds=sequence.prefill_seconds,
        decode_seconds=sequence.decode_seconds,
        optimise_seconds=seconds[2],
        record_seconds=seconds[3],  # a part of optimising
        draft_seconds=seconds[0],
        verify_seconds=seconds[1],
        tokens_per_second=_ratio(num_tokens, sequence.decode_seconds),  # prefill excluded
        packed_bytes=packed_bytes,  # of weights that are held a second time, on a CPU
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class Comparison:
    """`gap`: by how much the target's own scores, noise included, separate the two choices at the first difference.

    `reason`: of a tie whose gap is wider than rounding, see routing.py.
    """

    verdict: Literal["equal", "tie", "different"]
    first_difference: int | None = None
    gap: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Contest:
    """The target's scores for one position, noise included, with truncation as set and moved by the tolerance."""

    variants: Sequence[torch.Tensor]  # each [vocab]; the first is as set
    tolerance: float

    def is_reachable(self, token: int) -> bool:
        """Whether rounding could have made `token` the choice: kept by some variant, not below the best of each."""
        value = max(float(scores[token]) for scores in self.variants)
        return value > -math.inf and value >= min(float(scores.max()) for scores in self.variants) - self.tolerance


def compare(
    tokens_a: Sequence[int], tokens_b: Sequence[int], contest_behind: Callable[[Sequence[int]], Contest]
) -> Comparison:
    """Judge two outputs for the same prompt. `contest_behind(prefix)` asks the target about the position after it."""
    first = next((i for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)) if a != b), None)
    if first is None:
        if len(tokens_a) == len(tokens_b):
            return Comparison("equal")
        return Comparison("different", min(len(tokens_a), len(tokens_b)))
    contest = contest_behind(tokens_a[:first])
    a, b = tokens_a[first], tokens_b[first]
    gap = abs(float(contest.variants[0][a] - contest.variants[0][b]))
    is_tie = contest.is_reachable(a) and contest.is_reachable(b)
    return Comparison("tie" if is_tie else "different", first, gap)


def rounding_of(scores: torch.Tensor) -> float:
    """A unit of the dtype's precision at the size of the largest."""
    return torch.finfo(scores.dtype).eps * max(1.0, float(scores.float().abs().max()))


def contest_for(scores: torch.Tensor, sampler: Sampler, site: Site, prefix: Sequence[int]) -> Contest:
    """`scores` [1, vocab]: the target's raw scores after `prefix` (prompt included)."""
    noise = NoiseKey.of([site], scores.device)
    rounding = rounding_of(scores)
    if sampler.has_prefix_rules:
        scores = sampler.apply_prefix_rules(scores, [prefix], noise.indices)
        best = abs(float(scores.max()))  # a bias may be larger than any score
        rounding = max(rounding, torch.finfo(scores.dtype).eps * best if math.isfinite(best) else 0.0)
    tolerance = TIE_EPS * rounding / (sampler.options.temperature or 1.0)
    variants = [sampler.contest(scores, noise, slack)[0] for slack in (0.0, tolerance, -tolerance)]
    return Contest(variants, tolerance)
