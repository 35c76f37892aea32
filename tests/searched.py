"""What searching strategies might leave in a profile: `knn`, `swift`, `draft-verify`. Made up, seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from selfdraft.profiles.profile import Artefact
from selfdraft.types import SkipSet

DOMAINS = ("code", "math", "chat", "translation", "summarisation", "extraction", "writing", "roleplay")
DRAFT_VERIFY = {
    "sets": {
        "first": {"skip": "a1", "tokens_per_second": 290.0, "plain": 580.0, "num_tried": 12, "is_complete": False},
        "mixed": {"skip": "a1-2,m3", "tokens_per_second": 609.0, "plain": 580.0, "num_tried": 87, "is_complete": True},
    }
}
NOTHING_FOUND = {"frontier": [{"skip": "", "lost": 0.0, "match": 1.0}]}
"""A frontier whose fit was ended before its first set."""


def some(random: np.random.Generator, num_layers: int, count: int) -> SkipSet:
    """So many sub-layers behind layer 0."""
    return SkipSet.of_numbers(map(int, random.choice(np.arange(2, 2 * num_layers), count, replace=False)))


def frontier(random: np.random.Generator, num_layers: int, slope: float = 0.006) -> list[dict[str, Any]]:
    order = [int(number) for number in random.permutation(np.arange(2, 2 * num_layers))]
    skips = [SkipSet.of_numbers(order[:count]) for count in range(num_layers)]
    return [{"skip": str(skip), "lost": 0.01 * n, "match": max(0.0, 1 - slope * n)} for n, skip in enumerate(skips)]


def knn(num_domains: int = 2, num_layers: int = 5, *, search: str = "prune", seed: int = 0, size: int = 64) -> Artefact:
    """One domain in three has a frontier that does not pay."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(num_domains, size)) + 2.0
    samples = centres[:, None] + 0.9 * random.normal(size=(num_domains, 40, size))
    anchors = samples[:, :10] * 0.5 + centres[:, None] * 0.5
    domains = []
    for place in range(num_domains):
        slope = 0.006 if place % 3 != 2 else 0.5
        found: dict[str, Any] = {"frontier": frontier(random, num_layers, slope)}
        if search == "draft-verify":
            skip = str(some(random, num_layers, num_layers // 2))
            found = {"sets": {"mixed": {**DRAFT_VERIFY["sets"]["mixed"], "skip": skip}}}
        domains.append({"name": DOMAINS[place], "num_vectors": 40, "threshold": 0.931, "found": found})
    general = {"frontier": frontier(random, num_layers)}
    labels = torch.arange(num_domains)
    arrays = {
        "anchors": torch.tensor(anchors.reshape(-1, size), dtype=torch.float32),
        "anchor_domains": labels.repeat_interleave(10),
        "samples": torch.tensor(samples.reshape(-1, size), dtype=torch.float16),
        "sample_domains": labels.repeat_interleave(40),
    }
    return Artefact({"feature": "mean", "search": search, "domains": domains, "general": general}, arrays)


def swift(
    num_steps: int = 40, num_texts: int = 4, num_layers: int = 5, *, settles_at: int = 0, seed: int = 0
) -> Artefact:
    """A search of so many steps, then acceleration if `settles_at` is a step; the ratio falls after a third of them."""
    random = np.random.default_rng(seed)
    best, tokens, steps, sets = 0.0, 32, [], {0: some(random, num_layers, num_layers)}
    for step in range(1, num_steps + 1):
        matchness = float(np.clip(0.3 + 0.06 * np.log1p(step) + 0.12 * random.normal(), 0, 0.97))
        is_best = matchness > best
        best = max(best, matchness)
        ratio = 0.45 if step < num_steps / 3 or num_steps < 10 else 0.4
        figures = {"step": step, "num_tokens": tokens, "seconds": 0.01 * tokens, "matchness": matchness}
        steps.append({**figures, "best": best, "ratio": ratio, "is_best": is_best})
        sets[step] = some(random, num_layers, round(2 * num_layers * ratio)) if is_best else sets[step - 1]
        tokens += int(random.integers(1, 6))
    texts, end = [], 0
    length = max(64, round(1.5 * tokens / max(1, num_texts)))
    for _ in range(num_texts):
        end += length
        known = [step for step in steps if step["num_tokens"] <= end]
        is_done = bool(settles_at) and end > tokens
        plain = length / 100
        gain = 1.0 + 0.5 * (known[-1]["matchness"] - 0.4) + (0.15 if is_done else 0) + 0.1 * random.normal()
        texts.append(
            {
                "num_tokens": length,
                "seconds": plain / gain,
                "optimise_seconds": 0.0 if is_done else 0.04 * plain,
                "plain_seconds": plain,
                "matchness": max(step["matchness"] for step in known),
                "phase": "accelerate" if is_done else "optimise",
                "ratio": known[-1]["ratio"],
            }
        )
    phase = texts[-1]["phase"] if texts else "optimise"
    state = {"phase": phase, "ratio": steps[-1]["ratio"], "step": num_steps, "skip": str(sets[num_steps])}
    snapshots = {str(step): str(sets[step]) for step in (0, 64, 128, 512) if step <= num_steps}
    observed = [["a1,m2", 0.53]]
    return Artefact(
        {**state, "matchness": best, "observations": observed, "snapshots": snapshots, "steps": steps, "texts": texts}
    )
