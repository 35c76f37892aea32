"""What a profile would say about pico models: seconds at which drafting pays, skip sets, classifiers for `disco`.

Nothing is timed, nothing is trained.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfdraft.economics import LatencyFit, Line
from selfdraft.lookahead.disco import NUM_FEATURES, Classifier, artefact_name
from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import SCHEMA, Artefact, Profile
from selfdraft.protocols import Knowledge
from selfdraft.registry import DRAFTERS

HIDDEN_SIZE = 32
FRONTIER = [
    {"skip": "", "lost": 0.0, "match": 1.0},
    {"skip": "a1", "lost": 0.1, "match": 0.9},
    {"skip": "a1,m2", "lost": 0.2, "match": 0.8},
    {"skip": "a1-2,m2", "lost": 0.3, "match": 0.75},
    {"skip": "a1-2,m2-3", "lost": 0.4, "match": 0.7},
]
SETS = {"mixed": {"skip": "a1-2,m2", "tokens_per_second": 80.0, "plain": 64.0, "num_tried": 9, "is_complete": True}}
"""What `draft-verify` finds."""


def latency(**changed: Any) -> LatencyFit:
    """Five layers of 3 ms after a short text; attention grows; a verification costs what a token costs."""
    values: dict[str, Any] = {
        "num_layers": 5,
        "attention": Line(1e-5, 1e-3),
        "mlp_seconds": 2e-3,
        "rest_seconds": 5e-4,
        "plain": Line(5e-5, 15.5e-3),
        "widths": (1, 16),
        "verify": (Line(5e-5, 15.5e-3), Line(5e-5, 16e-3)),
        "is_recorded": False,
        "lengths": (64, 512),
        "rms_error": 0.0,
        "max_error": 0.0,
    }
    return LatencyFit(**{**values, **changed})


def know_latency(patch: pytest.MonkeyPatch) -> None:
    """Neither calibration nor an engine without a profile times anything."""
    for place in ("calibrate.calibrate", "engine.knowledge"):
        measure = f"selfdraft.{place}.measure"
        patch.setattr(measure, lambda runner, *told, **options: latency(num_layers=runner.num_layers))


def classifier(**changed: Any) -> Classifier:
    """Goes on where the draft is sure (its best token, and its entropy), less so the longer the text is."""
    hidden_weight = torch.zeros(3, NUM_FEATURES)
    for unit, feature in enumerate((0, NUM_FEATURES - 2, NUM_FEATURES - 1)):
        hidden_weight[unit, feature] = 1.0
    values: dict[str, Any] = {
        "hidden_weight": hidden_weight,
        "hidden_bias": torch.zeros(3),
        "output_weight": torch.tensor([8.0, -0.1, -0.02]),
        "output_bias": torch.tensor(-3.0),
        "last_position": 100.0,
        "threshold": 0.5,
        "max_tokens": 6,
    }
    return Classifier(**{**values, **changed})


def disco(drafter: str, **changed: Any) -> Artefact:
    """What `selfdraft calibrate --lookahead disco` would keep."""
    made = classifier()
    facts = {"drafter": drafter, "strategy": "uniform", "settings": "{}", "label": "match", "domains": ["chat"]}
    scores = {"num_tokens": 512, "f1": 0.9, "f1_static": 0.8, "trained": "2026-01-01"}
    return Artefact({**made.values(), **facts, **scores, **changed}, made.arrays())


def knn(**changed: Any) -> Artefact:
    """Two domains whose anchors are at right angles, and sets of their own; half of the prompts are strangers."""
    generator = torch.Generator().manual_seed(0)
    anchors, _ = torch.linalg.qr(torch.randn(HIDDEN_SIZE, 4, generator=generator))
    domains = [
        {"name": name, "num_vectors": 2, "threshold": 0.1, "found": {"frontier": frontier}}
        for name, frontier in (("code", FRONTIER[:4]), ("chat", FRONTIER[:3]))
    ]
    values = {"feature": "mean", "search": "prune", "domains": domains, "general": {"frontier": FRONTIER}}
    owners = torch.tensor([0, 0, 1, 1])
    arrays = {"anchors": anchors.T.contiguous(), "anchor_domains": owners}
    arrays |= {"samples": anchors.T.half().contiguous(), "sample_domains": owners}
    return Artefact({**values, **changed}, arrays)


def profile(fit: LatencyFit | None = None, **artefacts: Any) -> Profile:
    key = ProfileKey("pico", "cpu", "float32", name="pico")
    found = {"prune": {"frontier": FRONTIER}, "draft-verify": {"sets": SETS}, **artefacts}
    kept = {name: Artefact(values) for name, values in found.items()}
    kept.setdefault("knn", knn())
    kept |= {artefact_name(drafter): disco(drafter) for drafter in DRAFTERS}
    return Profile(key, SCHEMA, "2026-01-01", "2026-01-01", {}, (fit or latency()).to_json(), kept)


def knowledge(num_layers: int, fit: LatencyFit | None = None) -> Knowledge:
    artefacts = {"knn": knn().content}
    usual = {"frontier": FRONTIER, "sets": SETS}
    return Knowledge(
        num_layers, lambda: fit or latency(num_layers=num_layers), lambda name, *told: artefacts.get(name, usual)
    )
