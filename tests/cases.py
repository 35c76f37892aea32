"""The axes along which exactness is tested, and a pairwise covering array over them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pico import FAMILIES, pico
from selfdraft.registry import ACCEPTANCES, DRAFTERS, LOOKAHEADS, STRATEGIES, TREES

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "auto": {"always": True},
    "fixed": {"skip": "a1-2,m2-3", "tokens": 4},
    "uniform": {"ratio": 0.4},
    "confidence": {"threshold": 0.4},
    "early-exit": {"layers": 2},
    "dynamic-exit": {"interval": 5, "budget": 1.0, "always": True},
    "asd": {"always": True},
    "clasp": {"interval": 5, "budget": 1.0},
    "knapspec": {"interval": 5, "budget": 1.0},
    "prune": {"always": True},
    "swift": {"window": 4, "budget": 1.0, "always": True, "ratio": 0.7, "min_ratio": 0.7, "max_ratio": 0.7},
    "knn": {"always": True},
    "lookup": {"min_ngram": 1},
    "ngram-pool": {"window": 4, "ngram": 3},
    "model": {"source": pico("llama", num_hidden_layers=2)},
    "siblings": {"table": "0.6:4,0.9:2,1:1", "lookup": 2},
}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
PENALISED = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {3: 1.5, 7: -2.0},
    "min_new_tokens": 4,
}
MODES: Mapping[str, Mapping[str, Any]] = {"greedy": {}, "sampled": SAMPLED, "penalised": PENALISED}
BATCHES = ("single", "ragged")
SIMILAR = ("olmo3", "exaone4", "seed_oss", "ministral", "mixtral")
"""Families of which every part is some other family's, too: what others test in their place is in the full suite."""
EVERYDAY = tuple(family for family in FAMILIES if family not in SIMILAR)
by_family = pytest.mark.parametrize(
    "family", [*EVERYDAY, *(pytest.param(family, marks=pytest.mark.full) for family in SIMILAR)]
)
AXES: Mapping[str, Sequence[str]] = {
    "family": EVERYDAY,
    "strategy": tuple(STRATEGIES),
    "lookahead": tuple(LOOKAHEADS),
    "drafter": tuple(DRAFTERS),
    "tree": tuple(TREES),
    "acceptance": tuple(ACCEPTANCES),
    "mode": tuple(MODES),
    "batch": BATCHES,
}

Case = dict[str, str]


def matrix(families: Sequence[str] = EVERYDAY) -> list[Case]:
    """All combinations whose text is the plain run's; sampled by rejection it is only distributed alike."""
    values = {**AXES, "family": families}
    cases = [dict(zip(AXES, combination, strict=True)) for combination in itertools.product(*values.values())]
    return [case for case in cases if (case["acceptance"], case["mode"]) != ("rejection", "sampled")]


@functools.cache
def pairwise(families: Sequence[str] = EVERYDAY) -> list[Case]:
    """Few cases that hold every pair of values of every two axes: repeatedly the case with most pairs still missing."""
    candidates = matrix(families)
    values = np.stack([_numbered([case[axis] for case in candidates]) for axis in AXES])
    pairs = np.stack([one * (1 + other.max()) + other for one, other in itertools.combinations(values, 2)])
    pairs += np.arange(len(pairs), dtype=np.int32)[:, None] * (1 + pairs.max())  # a number for each of each two axes
    missing = np.zeros(1 + pairs.max(), dtype=bool)
    missing[pairs] = True
    chosen = []
    num_missing = np.full(len(candidates), len(pairs), dtype=np.int32)
    while missing.any():
        best = int(num_missing.argmax())
        chosen.append(candidates[best])
        for column in pairs[missing[pairs[:, best]]]:
            num_missing -= column == column[best]
        missing[pairs[:, best]] = False
    return chosen


def _numbered(values: Sequence[str]) -> np.ndarray:
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int32)


def groups(cases: Sequence[Case], *axes: str) -> dict[str, list[Case]]:
    """Cases with the same values of these axes, by these."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault("-".join(case[axis] for axis in axes), []).append(case)
    return found


def name(case: Case) -> str:
    return "-".join(case.values())
