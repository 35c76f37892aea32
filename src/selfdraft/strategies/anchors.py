"""The vectors that domains are told apart by: how a prompt becomes one, and which domain is nearest to it.

A prompt's vector is the final hidden state, after the last norm, of its prefill: of all its tokens but the last. It is
computed in float32 and brought to length 1: cosines decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .kmeans import Labels, Vectors, centroid, kmeans, normalised

POINT = "norm"
"""What is captured."""
FEATURES = ("mean", "last")
REPRESENTATIVES = ("kmeans", "central")
_SUM, _COUNT, _LAST = "vector sum", "vector count", "vector last"
_OWN = (_SUM, _COUNT, _LAST)
NO_THRESHOLD = -1.0
"""No cosine is below it."""


# ------------------------------------------------------------------------------------------------ a prompt's vector


def condense(feature: str) -> Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Of a part of a prefill, [rows, tokens, hidden], one token that stands for all."""

    def reduce(captured: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states = captured[POINT]
        if feature == "last":
            return {_LAST: states[:, -1:].to(torch.float32, copy=True)}
        count = torch.full((len(states), 1, 1), float(states.shape[1]), device=states.device)
        return {_SUM: states.sum(1, keepdim=True, dtype=torch.float32), _COUNT: count}

    return reduce


def vector_of(prefill: Mapping[str, torch.Tensor]) -> Vectors | None:
    """Of what `condense` left of each part, [parts, ...]; None for a prompt of one token. Waits for the device once."""
    if _LAST in prefill:
        states = prefill[_LAST][-1]
    elif _SUM in prefill:
        states = prefill[_SUM].sum(0) / prefill[_COUNT].sum()
    else:
        return None
    found: Vectors = normalised(states.cpu().numpy())
    return found


def others(prefill: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is not the vector's."""
    return {name: states for name, states in prefill.items() if name not in _OWN}


# ------------------------------------------------------------------------------------------------ domains and anchors


@dataclass(frozen=True)
class Domain:
    """`found`: what its own search found. `threshold`: what is less similar to its anchors does not belong to it."""

    name: str
    num_vectors: int
    threshold: float
    found: Mapping[str, Any]
    anchors: Vectors
    samples: Vectors

    @property
    def values(self) -> dict[str, Any]:
        names = ("name", "num_vectors", "threshold", "found")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Nearest:
    domain: int
    similarity: float


@dataclass(frozen=True)
class Anchors:
    """All domains' anchors, [n, hidden], and whose they are."""

    vectors: Vectors
    owners: Labels

    def nearest(self, vector: Vectors) -> Nearest:
        similarities = self.vectors @ vector
        best = int(similarities.argmax())
        return Nearest(int(self.owners[best]), float(similarities[best]))


def representatives(vectors: Vectors, count: int, how: str, seed: int = 0) -> list[int]:
    """Numbers of the vectors that stand for all. `central`: those nearest to their centroid, the nearest first.

    `kmeans`: the nearest to each of `count` centres, that of most vectors first; where fewer differ, central ones, too.
    """
    central = np.argsort(-(normalised(vectors) @ centroid(vectors)), kind="stable").tolist()
    chosen = _nearest_to_centres(vectors, count, seed) if how == "kmeans" else []
    return [*chosen, *(number for number in central if number not in chosen)][:count]


def _nearest_to_centres(vectors: Vectors, count: int, seed: int) -> list[int]:
    """Each a member of its own cluster."""
    found = kmeans(vectors, count, seed)
    similarities = np.where(
        found.labels[:, None] == np.arange(len(found.centroids)), normalised(vectors) @ found.centroids.T, -np.inf
    )
    nearest, sizes = similarities.argmax(0), np.bincount(found.labels)
    return [int(nearest[cluster]) for cluster in np.argsort(-sizes, kind="stable")]


def threshold_of(vectors: Vectors, anchors: Sequence[int]) -> float | None:
    """Below the least similarity of a domain's n vectors to their nearest anchor, itself left out, by their spread:
    lowest - (1 + 4 / n) standard deviations. None where fewer than two can be compared.
    """
    similarities = vectors @ vectors[list(anchors)].T
    similarities[list(anchors), range(len(anchors))] = -np.inf
    nearest = similarities.max(1)
    known = nearest[np.isfinite(nearest)]
    if len(known) < 2:
        return None
    return max(NO_THRESHOLD, float(known.min() - (1 + 4 / len(known)) * known.std()))


# ------------------------------------------------------------------------------------------------ as a profile has them


def pack(domains: Sequence[Domain]) -> dict[str, Any]:
    """Values, and arrays as tensors."""

    def owners(parts: Sequence[Vectors]) -> torch.Tensor:
        return torch.tensor([number for number, part in enumerate(parts) for _ in part], dtype=torch.int64)

    anchors, samples = [one.anchors for one in domains], [one.samples for one in domains]
    return {
        "domains": [one.values for one in domains],
        "anchors": torch.from_numpy(np.concatenate(anchors).astype(np.float32)),
        "anchor_domains": owners(anchors),
        "samples": torch.from_numpy(np.concatenate(samples).astype(np.float16)),
        "sample_domains": owners(samples),
    }


def unpack(artefact: Mapping[str, Any]) -> list[Domain]:
    """LookupError, TypeError, ValueError, AttributeError: it is damaged."""
    arrays = [artefact[name].numpy() for name in ("anchors", "anchor_domains", "samples", "sample_domains")]
    anchors, anchor_owners, samples, sample_owners = arrays
    if anchors.ndim != 2 or len(anchors) != len(anchor_owners) or len(samples) != len(sample_owners):
        raise ValueError(f"{len(anchors)} anchors of {len(anchor_owners)}, {len(samples)} samples")
    if not np.isfinite(anchors).all():
        raise ValueError("an anchor is not a vector")
    domains = [
        Domain(
            str(values["name"]),
            int(values["num_vectors"]),
            float(values["threshold"]),
            dict(values["found"]),
            anchors[anchor_owners == number],
            samples[sample_owners == number],
        )
        for number, values in enumerate(artefact["domains"])
    ]
    if not domains or not all(len(one.anchors) for one in domains):
        raise ValueError("a domain has no anchors")
    return domains
