"""What a profile would say about pico models: seconds at which drafting pays, and a frontier. Nothing is timed."""

from __future__ import annotations

from typing import Any

from selfdraft.profiles.key import ProfileKey
from selfdraft.profiles.profile import SCHEMA, Artefact, Profile
from selfdraft.protocols import Knowledge
from selfdraft.types import LatencyFit, Line

FRONTIER = [
    {"skip": "", "lost": 0.0, "match": 1.0},
    {"skip": "a1", "lost": 0.1, "match": 0.9},
    {"skip": "a1,m2", "lost": 0.2, "match": 0.8},
    {"skip": "a1-2,m2", "lost": 0.3, "match": 0.75},
    {"skip": "a1-2,m2-3", "lost": 0.4, "match": 0.7},
]


def latency(**changed: Any) -> LatencyFit:
    """Five layers of 3 ms behind a short text; attention grows; a verification costs what a token costs."""
    values: dict[str, Any] = {
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


def profile(fit: LatencyFit | None = None, **artefacts: Any) -> Profile:
    key = ProfileKey("pico", "cpu", "float32", name="pico")
    found = {"prune": {"frontier": FRONTIER}, **artefacts}
    kept = {name: Artefact(values) for name, values in found.items()}
    return Profile(key, SCHEMA, "2026-01-01", "2026-01-01", {}, (fit or latency()).to_json(), kept)


def knowledge(num_layers: int, fit: LatencyFit | None = None) -> Knowledge:
    return Knowledge(num_layers, lambda: fit or latency(), lambda name: {"frontier": FRONTIER})
