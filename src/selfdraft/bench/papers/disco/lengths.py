"""How far the oracle drafted: mean, spread, histogram, and course over the generation (DISCO, table 3, figures 2-5)."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...types import Generation

NUM_BUCKETS = 20

Texts = Sequence[Sequence[int]]
"""Of each text, round by round: how many drafted tokens were kept."""


def lengths_of(generation: Generation) -> list[int]:
    return [step.verdict.num_accepted for step in generation.steps]


def figures(texts: Texts) -> dict[str, Any]:
    """`histogram[n]`: rounds that kept n tokens; `course[i]`: their mean in the i-th twentieth of a text's rounds."""
    lengths = list(itertools.chain.from_iterable(texts))
    counts = Counter(lengths)
    return {
        "num_rounds": len(lengths),
        "mean": statistics.fmean(lengths) if lengths else None,
        "std": statistics.pstdev(lengths) if lengths else None,
        "histogram": [counts[length] for length in range(max(lengths, default=-1) + 1)],
        "course": course(texts),
    }


def course(texts: Texts) -> list[float | None]:
    """Round j of n stands at j / (n - 1); a bucket that no round falls into is None."""
    buckets: list[list[int]] = [[] for _ in range(NUM_BUCKETS)]
    for lengths in texts:
        for index, length in enumerate(lengths):
            place = index / (len(lengths) - 1) if len(lengths) > 1 else 0.0
            buckets[min(int(NUM_BUCKETS * place), NUM_BUCKETS - 1)].append(length)
    return [statistics.fmean(bucket) if bucket else None for bucket in buckets]
