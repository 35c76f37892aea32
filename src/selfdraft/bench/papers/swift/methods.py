"""SWIFT and what its paper holds it against, as ways to generate.

SWIFT is the paper's own form here (`paper`): it drafts even where plain decoding is faster, for that is what the tables
are about. The form that people use switches itself off there.
"""

from __future__ import annotations

from typing import Any

from ....registry import resolve

Method = dict[str, Any]

VANILLA, PARALLEL, LOOKAHEAD, SWIFT = "Vanilla", "Parallel", "Lookahead", "SWIFT"
LAYER_SKIP, SELF_SD, SELF_SD_FEW = "LayerSkip, untrained", "Self-SD", "Self-SD c"
NO_STOPPING, NO_SIBLINGS, NO_SEARCH = "w/o early-stopping", "w/o dynamic ver.", "w/o optimization"
RATIO, MAX_DRAFTED = 0.45, 25
EXIT_RATIO = 0.8
"""What LayerSkip leaves out in table 10."""


def swift(**options: Any) -> Method:
    """While it searches."""
    return {"strategy": "swift", "settings": {"swift": {"paper": True, **options}}}


def accelerating(**options: Any) -> Method:
    """Behind the search: with what it learned, and no step more. In the paper steps are 0.8 % of the time."""
    return swift(max_steps=1, **options)


def jacobi() -> dict[str, Method]:
    """Guesses of the model itself: the last pass's words (parallel decoding), and a pool of n-grams (Lookahead)."""
    pool = {"strategy": "uniform", "drafter": "ngram-pool"}
    return {PARALLEL: {**pool, "settings": {"ngram-pool": {"window": 0}}}, LOOKAHEAD: pool}


def parts() -> dict[str, Method]:
    """SWIFT, and without one part each: fixed drafts of its greatest length, no siblings, evenly spaced layers."""
    whole = accelerating()
    fixed = {**whole["settings"], "fixed": {"tokens": MAX_DRAFTED}}
    return {
        SWIFT: whole,
        NO_STOPPING: {**whole, "lookahead": "fixed", "settings": fixed},
        NO_SIBLINGS: {**whole, "tree": "chain"},
        NO_SEARCH: paired_as_swift("uniform", ratio=RATIO),
    }


def paired_as_swift(strategy: str, **options: Any) -> Method:
    """Another strategy with SWIFT's early stopping and its siblings."""
    pairing = resolve({"strategy": "swift"})
    return {**pairing, "strategy": strategy, "settings": {**pairing["settings"], strategy: options}}


def early_exit(num_layers: int) -> Method:
    """LayerSkip's drafts without its training."""
    layers = min(max(1, round((1 - EXIT_RATIO) * num_layers)), num_layers - 1)
    return {"strategy": "early-exit", "settings": {"early-exit": {"layers": layers}}}


def with_siblings(name: str) -> str:
    """A row of the same set with SWIFT's early stopping and siblings."""
    return f"{name} w/ dynamic ver."


def self_sd(name: str, skip: str) -> dict[str, Method]:
    """A set that Self-SD's search found: with its own adaptive stopping, and paired as SWIFT."""
    return {
        name: {"strategy": "fixed", "lookahead": "adaptive", "tree": "chain", "settings": {"fixed": {"skip": skip}}},
        with_siblings(name): paired_as_swift("fixed", skip=skip),
    }
