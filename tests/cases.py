"""The axes along which exactness is tested, and a pairwise covering array over them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pico import FAMILIES, pico
from selfdraft.registry import ACCEPTANCES, DRAFTERS, LOOKAHEADS, STRATEGIES, TREES

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fixed": {"skip": "a1-2,m2-3", "tokens": 4},
    "uniform": {"ratio": 0.4},
    "confidence": {"threshold": 0.4},
    "early-exit": {"layers": 2},
    "clasp": {"interval": 5, "budget": 1.0},
    "knapspec": {"interval": 5, "budget": 1.0},
    "prune": {"always": True},
    "swift": {"window": 4, "budget": 1.0, "always": True},
    "knn": {"always": True},
    "lookup": {"min_ngram": 1},
    "ngram-pool": {"window": 4, "ngram": 3},
    "model": {"source": pico("llama", num_hidden_layers=2)},
    "siblings": {"table": "0.6:4,0.9:2,1:1", "lookup": 2},
}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
MODES: Mapping[str, Mapping[str, Any]] = {"greedy": {}, "sampled": SAMPLED}
BATCHES = ("single", "ragged")
AXES: Mapping[str, Sequence[str]] = {
    "family": FAMILIES,
    "strategy": tuple(STRATEGIES),
    "lookahead": tuple(LOOKAHEADS),
    "drafter": tuple(DRAFTERS),
    "tree": tuple(TREES),
    "acceptance": tuple(ACCEPTANCES),
    "mode": tuple(MODES),
    "batch": BATCHES,
}

Case = dict[str, str]


def matrix(families: Sequence[str] = FAMILIES) -> list[Case]:
    """All combinations whose text is the plain run's; sampled by rejection it is only distributed alike."""
    values = {**AXES, "family": families}
    cases = [dict(zip(AXES, combination, strict=True)) for combination in itertools.product(*values.values())]
    return [case for case in cases if (case["acceptance"], case["mode"]) != ("rejection", "sampled")]


def pairwise(families: Sequence[str] = FAMILIES) -> list[Case]:
    """Few cases that hold every pair of values of every two axes: repeatedly the case with most pairs still missing."""
    candidates = matrix(families)
    bits: dict[object, int] = {}
    masks = [sum(1 << bits.setdefault(pair, len(bits)) for pair in _pairs(case)) for case in candidates]
    missing = (1 << len(bits)) - 1
    chosen = []
    while missing:
        best = max(range(len(masks)), key=lambda index: (masks[index] & missing).bit_count())
        chosen.append(candidates[best])
        missing &= ~masks[best]
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(case.items(), 2))


def name(case: Case) -> str:
    return "-".join(case.values())
