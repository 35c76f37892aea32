"""K-means of directions, and how many clusters there are.

Vectors count by their direction alone: each is brought to length 1 first, a centroid is the mean of its members brought
to length 1, and a vector belongs to the centroid of largest cosine. Of unit vectors the squared distance is
2 - 2 cosine, so that this is what K-means does on the sphere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

NUM_RESTARTS = 8
MAX_COUNT = 8
"""The most clusters where nobody says how many."""
_MAX_ROUNDS = 100


@dataclass(frozen=True)
class Clusters:
    """`loss`: the sum of 1 - cosine over all vectors and their centroids."""

    labels: Labels
    centroids: Vectors  # [count, size], of length 1
    loss: float


def normalised(vectors: Vectors) -> Vectors:
    """Each brought to length 1; one that has no direction stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    return unit


def centroid(vectors: Vectors) -> Vectors:
    return normalised(normalised(vectors).mean(0))


def kmeans(vectors: Vectors, count: int, seed: int = 0, num_restarts: int = NUM_RESTARTS) -> Clusters:
    """The best of some runs, each begun by k-means++; no more clusters than there are different vectors."""
    unit, generator = normalised(vectors.astype(np.float64)), np.random.default_rng(seed)
    count = min(count, len(np.unique(unit, axis=0)))
    runs = [_run(unit, _spread(unit, count, generator)) for _ in range(num_restarts)]
    return min(runs, key=lambda run: run.loss)


def _spread(unit: Vectors, count: int, generator: np.random.Generator) -> Vectors:
    """k-means++: each next centroid is a vector, the likelier the farther it is from those there are."""
    chosen = [int(generator.integers(len(unit)))]
    while len(chosen) < count:
        distances = _distances(unit, unit[chosen]).min(1) + np.finfo(unit.dtype).tiny
        distances[chosen] = 0.0
        chosen.append(int(generator.choice(len(unit), p=distances / distances.sum())))
    return unit[chosen]


def _run(unit: Vectors, centroids: Vectors) -> Clusters:
    labels = np.full(len(unit), -1, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        found = _assign(unit, centroids)
        if np.array_equal(found, labels):
            break
        labels = found
        centroids = np.stack([centroid(unit[labels == number]) for number in range(len(centroids))])
    loss = _distances(unit, centroids)[np.arange(len(unit)), labels].sum()
    return Clusters(labels, centroids, float(loss))


def _assign(unit: Vectors, centroids: Vectors) -> Labels:
    """An empty cluster gets the vector that is farthest from its own centroid and not alone there."""
    distances = _distances(unit, centroids)
    labels: Labels = distances.argmin(1)
    for number in range(len(centroids)):
        if not (labels == number).any():
            sizes = np.bincount(labels, minlength=len(centroids))
            own = np.where(sizes[labels] > 1, distances[np.arange(len(unit)), labels], -1.0)
            labels[own.argmax()] = number
    return labels


def _distances(unit: Vectors, centroids: Vectors) -> Vectors:
    """1 - cosine, [vectors, centroids]."""
    return np.maximum(1.0 - unit @ centroids.T, 0.0)


def choose_count(vectors: Vectors, most: int = MAX_COUNT, seed: int = 0) -> int:
    """Of 2 to `most` clusters, fewer than there are different vectors, the number of largest silhouette; else 1."""
    unit = normalised(vectors.astype(np.float64))
    counts = range(2, min(most, len(np.unique(unit, axis=0)) - 1) + 1)
    found = {count: silhouette(unit, kmeans(unit, count, seed).labels) for count in counts}
    return max(found, key=lambda count: found[count], default=1)


def silhouette(vectors: Vectors, labels: Labels) -> float:
    """The mean of `silhouettes`."""
    return float(silhouettes(vectors, labels).mean())


def silhouettes(vectors: Vectors, labels: Labels) -> Vectors:
    """(b - a) / max(a, b) of each: `a` the mean distance (1 - cosine) to the others of its own cluster, `b` the least
    mean distance to those of another one; 0 for a vector that is alone.
    """
    unit = normalised(vectors.astype(np.float64))
    members = (labels[:, None] == np.unique(labels)[None]).astype(unit.dtype)  # [vectors, clusters]
    sums, sizes, is_own = _distances(unit, unit) @ members, members.sum(0), members.astype(bool)
    own = sums[is_own] / np.maximum(sizes[None].repeat(len(unit), 0)[is_own] - 1, 1)
    other = np.where(is_own, np.inf, sums / sizes).min(1)
    is_alone = sizes[None].repeat(len(unit), 0)[is_own] == 1
    largest = np.maximum(np.maximum(own, other), np.finfo(unit.dtype).tiny)
    found: Vectors = np.where(is_alone, 0.0, (other - own) / largest)
    return found
