"""What searching strategies might leave in a profile: `knn`, `swift`, `draft-verify`. Made up, seeded."""

from __future__ import annotations

from typing import Any

import torch

from selfdraft.profiles.profile import Artefact
from selfdraft.types import SkipSet

DRAFT_VERIFY = {
    "sets": {
        "first": {"skip": "a1", "tokens_per_second": 290.0, "plain": 580.0, "num_tried": 12, "is_complete": False},
        "mixed": {"skip": "a1-2,m3", "tokens_per_second": 609.0, "plain": 580.0, "num_tried": 87, "is_complete": True},
    }
}
NOTHING_FOUND = {"frontier": [{"skip": "", "lost": 0.0, "match": 1.0}]}
"""A frontier whose fit was ended before its first set."""


def skipping(count: int) -> str:
    """The first sub-layers after layer 0."""
    return str(SkipSet.of_numbers(range(2, 2 + count)))


def frontier(slope: float = 0.006) -> dict[str, Any]:
    points = ({"skip": skipping(n), "lost": 0.01 * n, "match": max(0.0, 1 - slope * n)} for n in range(5))
    return {"frontier": list(points)}


def knn(num_domains: int = 2, search: str = "prune") -> Artefact:
    """The third domain has a frontier that does not pay."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(num_domains, 1, 64, generator=generator) + 2
    samples = centres + 0.9 * torch.randn(num_domains, 40, 64, generator=generator)
    by_clock = {"sets": {"mixed": DRAFT_VERIFY["sets"]["mixed"]}}
    found = [by_clock if search == "draft-verify" else frontier(slope) for slope in (0.006, 0.006, 0.5)[:num_domains]]
    domains = [
        {"name": name, "num_vectors": 40, "threshold": 0.931, "found": one}
        for name, one in zip(("code", "math", "chat"), found, strict=False)
    ]
    labels = torch.arange(num_domains)
    arrays = {
        "anchors": ((samples[:, :10] + centres) / 2).flatten(0, 1),
        "anchor_domains": labels.repeat_interleave(10),
        "samples": samples.flatten(0, 1).half(),
        "sample_domains": labels.repeat_interleave(40),
    }
    return Artefact({"feature": "mean", "search": search, "domains": domains, "general": frontier()}, arrays)


def swift(num_steps: int = 40, num_texts: int = 4) -> Artefact:
    """A search that finds a better set with every third step; the ratio falls halfway."""
    steps = [
        {
            "step": step,
            "num_tokens": 32 + 3 * step,
            "seconds": 0.3 + 0.03 * step,
            "matchness": 0.3 + 0.01 * step - 0.05 * bool(step % 3),
            "best": 0.3 + 0.01 * (step - step % 3),
            "ratio": 0.45 if step <= num_steps / 2 else 0.4,
            "is_best": step % 3 == 0,
        }
        for step in range(1, num_steps + 1)
    ]
    text = {"num_tokens": 64, "seconds": 0.6, "optimise_seconds": 0.02, "plain_seconds": 0.64, "matchness": 0.5}
    state = {"phase": "optimise", "ratio": 0.4, "step": num_steps, "skip": skipping(4), "matchness": steps[-1]["best"]}
    return Artefact(
        {
            **state,
            "observations": [["a1,m2", 0.53]],
            "snapshots": {"0": skipping(5), str(num_steps): skipping(4)},
            "steps": steps,
            "texts": [{**text, "phase": "optimise", "ratio": 0.45}] * num_texts,
        }
    )
