"""What is compared, by name: the strategies that search, as they are asked for, and how they are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import resolve
from ..selection.methods import OWN_PAIRING, Method, as_all, strategies

SWIFT, DRAFT_VERIFY, KNN, PRUNE = "swift", "draft-verify", "knn", "prune"
SWIFT_PAPER, UNIFORM = "swift paper", "uniform 0.45"
SSD_F, SSD_M = "ssd-f", "ssd-m"
SEARCH = PRUNE
"""What `knn` finds the sets of its domains with."""
SWIFT_RATIO = 0.45
NEED_NOTHING = ("uniform 0.25", "asd", "clasp", "knapspec")
"""Strategies that are not calibrated."""
FIRST, MIXED = "first", "mixed"
"""KNN-SSD's SSD_F and SSD_M: which prompts `draft-verify` is calibrated on."""
ROUTE, SIMILARITY, GENERAL = "domain", "similarity", "general"
"""What `knn` reports of a text, and its route where a prompt is far from every anchor."""


def swift_stream() -> dict[str, Method]:
    """`swift`, as its paper has it, and its beginning for ever: evenly spaced layers, the rest alike."""
    pairing = resolve({"strategy": SWIFT})
    uniform = {**pairing, "strategy": "uniform"}
    uniform["settings"] = {**pairing["settings"], "uniform": {"ratio": SWIFT_RATIO}}
    return {
        SWIFT: {"strategy": SWIFT},
        SWIFT_PAPER: {"strategy": SWIFT, "settings": {SWIFT: {"paper": True}}},
        UNIFORM: uniform,
    }


def draft_verify(calibrate_on: str) -> Method:
    return {"strategy": DRAFT_VERIFY, "settings": {DRAFT_VERIFY: {"calibrate_on": calibrate_on}}}


def knn() -> Method:
    return {"strategy": KNN, "settings": {KNN: {"search": SEARCH}}}


def mixed_streams() -> dict[str, Method]:
    """All as chains with the same lookahead, so that the choice of sets alone differs; two as they are meant, too."""
    alike: dict[str, Method] = {
        SSD_F: draft_verify(FIRST),
        SSD_M: draft_verify(MIXED),
        SWIFT: {"strategy": SWIFT, "settings": {SWIFT: {"saved": False}}},
        PRUNE: {"strategy": PRUNE},
        KNN: knn(),
    }
    own = {f"{name}, {OWN_PAIRING}": alike[name] for name in (PRUNE, KNN)}
    return {**{name: as_all(method) for name, method in alike.items()}, **own}


def at_equal_time(num_layers: int) -> dict[str, Method]:
    """Each with its own pairing."""
    known = strategies(num_layers)
    learned: Mapping[str, Method] = {
        PRUNE: known[PRUNE],
        DRAFT_VERIFY: draft_verify(MIXED),
        SWIFT: {"strategy": SWIFT},
        KNN: knn(),
    }
    return {**{name: known[name] for name in NEED_NOTHING}, **learned}


def one_set(skip: str) -> Method:
    """A fixed set, with what all have alike; nothing to skip: plain decoding."""
    return as_all({"strategy": "fixed", "settings": {"fixed": {"skip": skip}}}) if skip else {"strategy": "off"}


def settings_of(method: Method) -> dict[str, Any]:
    return {name: dict(values) for name, values in method.get("settings", {}).items()}
