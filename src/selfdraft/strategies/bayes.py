"""Bayesian optimisation over sets of sub-layers, for strategies that search: SWIFT, Draft & Verify.

A Gaussian process (Matern 5/2 of the distance of binary vectors, noise on normalised scores) tells what an unseen set
would score and how sure that is. Suggested is the set with the largest upper confidence bound among random ones and
small changes of the best ones. No set is suggested twice.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Point = frozenset[int]
Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.bool_]  # [sets, universe]

LENGTH_SCALES = (0.15, 0.25, 0.4, 0.7, 1.2, 2.0)
"""Tried, as shares of the largest distance there is."""
_FIRST_FIT, _GROWTH = 4, 1.25
"""The length scale is chosen after this many observations, and whenever there are this many times more."""
_NUM_RANDOM, _NUM_NEAR, _NUM_FURTHER = 32, 96, 48
"""Candidates: random sets, changes of the best observed sets, changes of the best of these candidates."""
_NUM_BEST, _MAX_CHANGES = 8, 3
_NUM_TRIES = 64
_MAX_JUDGING = 64
"""Observations that length scales are judged by."""
_SMALL = 20
"""A matrix of fewer rows is inverted as it is."""


def matern(squared: Floats, length_scale: float) -> Floats:
    """Matern 5/2 of squared distances."""
    scaled = np.sqrt(5.0 * squared) / length_scale
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))


def log_likelihoods(rows: Rows, scores: Floats, length_scales: Sequence[float], alpha: float) -> list[float]:
    """Of normalised scores under each length scale, up to what all have in common."""
    differences, found = _differences(rows, rows), []
    for length_scale in length_scales:
        factor = _factor(matern(np.arange(rows.shape[1] + 1.0), length_scale)[differences], alpha)
        whitened = np.linalg.solve(factor, scores)
        found.append(-0.5 * float(whitened @ whitened) - float(np.log(np.diag(factor)).sum()))
    return found


def _factor(covariance: Floats, alpha: float) -> Floats:
    """Cholesky's, with noise."""
    covariance[np.diag_indices(len(covariance))] += alpha
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


@dataclass(frozen=True)
class Posterior:
    """What a Gaussian process with unit variance makes of observed sets, in units of normalised scores."""

    rows: Rows
    kernel: Floats  # by the number of sub-layers in which two sets differ
    inverse: NDArray[np.float32]  # of the Cholesky factor of the observed sets' covariance
    weights: Floats

    @classmethod
    def of(cls, rows: Rows, scores: Floats, length_scale: float, alpha: float) -> Posterior:
        """`scores` are normalised; `alpha`: the variance of their noise."""
        kernel = matern(np.arange(rows.shape[1] + 1.0), length_scale)
        inverse = _inverse_of_lower(_factor(kernel[_differences(rows, rows)], alpha))
        return cls(rows, kernel, inverse.astype(np.float32), inverse.T @ (inverse @ scores))

    def at(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and standard deviation."""
        shared = self.kernel[_differences(self.rows, rows)]
        known = np.square(self.inverse @ shared.astype(np.float32)).sum(0)  # exact enough, and twice as fast
        return self.weights @ shared, np.sqrt(np.maximum(1.0 - known, 0.0))


class Means:
    """The mean score of each point; what was observed last comes last."""

    def __init__(self, observations: Iterable[tuple[Point, float]] = ()) -> None:
        self.of: dict[Point, float] = {}
        self._counts: dict[Point, int] = {}
        for point, score in observations:
            self.add(point, score)

    def add(self, point: Point, score: float) -> None:
        count = self._counts[point] = self._counts.get(point, 0) + 1
        before = self.of.pop(point, 0.0)
        self.of[point] = before + (score - before) / count

    def best(self, count: int) -> list[Point]:
        """The best first."""
        return heapq.nlargest(count, self.of, key=self.of.__getitem__)


class Search:
    """Points are sets of numbers out of `universe`. All that was suggested, observed or excluded is never suggested.

    Given the `observations` of another search, what it had excluded and its `num_suggestions`, it goes on as that one
    would. `size`: of the sets; None: any.
    """

    def __init__(
        self,
        universe: Iterable[int],
        seed: int = 0,
        alpha: float = 1e-2,
        kappa: float = 2.5,
        max_observations: int = 200,
        *,
        observations: Iterable[tuple[Point, float]] = (),
        excluded: Iterable[Point] = (),
        num_suggestions: int = 0,
    ) -> None:
        """`max_observations`: the process is fitted to this many at most, the best half and the latest ones."""
        self._universe = tuple(sorted(set(universe)))
        self._index = {number: index for index, number in enumerate(self._universe)}
        self._seed, self._alpha, self._kappa, self._max = seed, alpha, kappa, max_observations
        self._rows: dict[Point, Rows] = {}
        self._seen: set[bytes] = set()
        self._length_scale = (0, 1.0)  # after how many observations it was chosen, and what it is
        self.num_suggestions = num_suggestions
        self.observations: list[tuple[Point, float]] = []
        self._means = Means()
        for point in excluded:
            self._see(point)
        for point, score in observations:
            self.observe(point, score)

    # ------------------------------------------------------------------------------------------------ what is known

    def observe(self, point: Point, score: float) -> None:
        """Several scores of one point count as their mean."""
        if not math.isfinite(score):
            raise ValueError(f"the score of {sorted(point)} must be a number, got {score}")
        self._see(point)
        self.observations.append((point, float(score)))
        self._means.add(point, score)

    @property
    def best(self) -> Point | None:
        """The point with the best mean score."""
        return next(iter(self._means.best(1)), None)

    def _see(self, point: Point) -> None:
        self._rows[point] = self._row(point)
        self._seen.update(_keys(self._rows[point][None]))

    def _row(self, point: Point) -> Rows:
        outside = sorted(point - self._index.keys())
        if outside:
            raise ValueError(f"{outside[0]} is not one of the sub-layers to choose from: {self._universe}")
        row = np.zeros(len(self._universe), dtype=bool)
        row[[self._index[number] for number in point]] = True
        return row

    # ------------------------------------------------------------------------------------------------ suggestions

    def suggest(self, size: int | None) -> Point | None:
        """What promises most; None: every set has been seen."""
        if not self.observations:
            return self.random(size)
        rng, posterior = self._rng(), self._posterior()
        best = np.array([self._rows[point] for point in self._means.best(_NUM_BEST)])
        candidates = self._unseen([self._random_rows(rng, _NUM_RANDOM, size), _near(rng, best, _NUM_NEAR, size)])
        if not len(candidates):
            return self._take(self._rest(size), posterior)
        order = np.argsort(-self._bound(posterior, candidates), kind="stable")[:_NUM_BEST]
        further = self._unseen([candidates[order], _near(rng, candidates[order], _NUM_FURTHER, size)])
        return self._take(further, posterior)

    def random(self, size: int | None) -> Point | None:
        """An unseen random set; None: there is none."""
        rng = self._rng()
        rows = self._unseen([self._random_rows(rng, _NUM_TRIES, size)])
        if not len(rows):
            rows = rng.permutation(self._rest(size))
        return self._take(rows)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.num_suggestions])

    def _take(self, rows: Rows, posterior: Posterior | None = None) -> Point | None:
        """The row that promises most, or the first."""
        if not len(rows):
            return None
        row = rows[int(self._bound(posterior, rows).argmax())] if posterior else rows[0]
        point = frozenset(self._universe[index] for index in np.flatnonzero(row).tolist())
        self._see(point)
        self.num_suggestions += 1
        return point

    def _bound(self, posterior: Posterior, rows: Rows) -> Floats:
        mean, deviation = posterior.at(rows)
        return mean + self._kappa * deviation

    # ------------------------------------------------------------------------------------------------ candidates

    def _random_rows(self, rng: np.random.Generator, count: int, size: int | None) -> Rows:
        num = len(self._universe)
        if size is not None and not 0 <= size <= num:
            raise ValueError(f"there is no set of {size} out of {num} sub-layers")
        sizes = rng.integers(0, num + 1, count) if size is None else np.full(count, size)
        return _smallest(rng.random((count, num)), sizes)

    def _unseen(self, parts: Sequence[Rows]) -> Rows:
        """Each once."""
        rows = np.concatenate(parts)
        first = {key: index for index, key in reversed(list(enumerate(_keys(rows)))) if key not in self._seen}
        return rows[sorted(first.values())]

    def _rest(self, size: int | None) -> Rows:
        """Some of the unseen sets where nearly all have been seen."""
        numbers = range(len(self._universe))
        sizes = range(len(numbers) + 1) if size is None else (size,)
        every = itertools.chain.from_iterable(itertools.combinations(numbers, one) for one in sizes)
        return np.array(list(itertools.islice(self._unseen_of(every), _NUM_TRIES)), dtype=bool)

    def _unseen_of(self, members: Iterable[tuple[int, ...]]) -> Iterator[Rows]:
        for indices in members:
            row = np.zeros(len(self._universe), dtype=bool)
            row[list(indices)] = True
            if self._seen.isdisjoint(_keys(row[None])):
                yield row

    # ------------------------------------------------------------------------------------------------ the process

    def _posterior(self) -> Posterior:
        rows, scores = self._sample(self._means)
        return Posterior.of(rows, scores, self._fitted_length_scale(), self._alpha)

    def _sample(self, means: Means) -> tuple[Rows, Floats]:
        """What the process is fitted to; scores normalised."""
        points = list(means.of)
        if len(points) > self._max:
            best = dict.fromkeys(means.best(self._max // 2))
            others = [point for point in points if point not in best]
            points = [*best, *others[len(best) - self._max :]]
        scores = np.array([means.of[point] for point in points])
        spread = float(scores.std()) or 1.0
        return np.array([self._rows[point] for point in points]), (scores - scores.mean()) / spread

    def _fitted_length_scale(self) -> float:
        """Of largest likelihood; a function of the observations alone, so that a search can go on elsewhere."""
        count = _last_fit(len(self.observations))
        if count != self._length_scale[0]:
            rows, scores = self._sample(Means(self.observations[:count]))
            every = -(-len(rows) // _MAX_JUDGING)
            scales = [share * math.sqrt(max(rows.shape[1], 1)) for share in LENGTH_SCALES]
            likelihoods = log_likelihoods(rows[::every], scores[::every], scales, self._alpha)
            self._length_scale = (count, scales[int(np.argmax(likelihoods))])
        return self._length_scale[1]


def _last_fit(num_observations: int) -> int:
    count = min(_FIRST_FIT, num_observations)
    while (following := max(count + 1, int(_GROWTH * count))) <= num_observations:
        count = following
    return count


def _near(rng: np.random.Generator, rows: Rows, count: int, size: int | None) -> Rows:
    """`count` small changes of the rows in turn; of the given size, whatever size these have."""
    rows = rows[np.arange(count) % len(rows)]
    changes = rng.integers(1, _MAX_CHANGES + 1, count)
    if size is None:
        return _flipped(rng, rows, changes)
    surplus = rows.sum(1) - size
    return _exchanged(rng, rows, changes + np.maximum(surplus, 0), changes + np.maximum(-surplus, 0))


def _exchanged(rng: np.random.Generator, rows: Rows, num_out: NDArray[Any], num_in: NDArray[Any]) -> Rows:
    """Where members or others are fewer, that many fewer on both sides."""
    num_members = rows.sum(1)
    missing = np.maximum(np.maximum(num_out - num_members, num_in - (rows.shape[1] - num_members)), 0)
    order = rng.random(rows.shape)
    leave = _smallest(np.where(rows, order, 2.0), num_out - missing)
    enter = _smallest(np.where(rows, 2.0, order), num_in - missing)
    return np.asarray((rows & ~leave) | enter)


def _flipped(rng: np.random.Generator, rows: Rows, num_flips: NDArray[Any]) -> Rows:
    return np.asarray(rows ^ _smallest(rng.random(rows.shape), num_flips))


def _smallest(values: Floats, counts: NDArray[Any]) -> Rows:
    """Where the `counts` smallest values of each row are, all where there are fewer."""
    bounds = np.concatenate([np.full((len(values), 1), -1.0), np.sort(values, 1)], axis=1)
    return np.asarray(values <= np.take_along_axis(bounds, np.minimum(counts, values.shape[1])[:, None], 1))


def _inverse_of_lower(factor: Floats) -> Floats:
    """Of a triangular matrix, by halves."""
    half = len(factor) // 2
    if half < _SMALL:
        return np.asarray(np.linalg.inv(factor), np.float64)
    first, second = _inverse_of_lower(factor[:half, :half]), _inverse_of_lower(factor[half:, half:])
    inverse = np.zeros_like(factor)
    inverse[:half, :half], inverse[half:, half:] = first, second
    inverse[half:, :half] = -second @ (factor[half:, :half] @ first)
    return inverse


def _differences(one: Rows, other: Rows) -> NDArray[np.intp]:
    """[one, other]: in how many sub-layers they differ, which is their squared distance."""
    signs, halves = np.where(one, np.float32(1), np.float32(-1)), np.where(other, np.float32(0.5), np.float32(-0.5))
    return np.asarray(one.shape[1] / 2 - signs @ halves.T).astype(np.intp)


def _keys(rows: Rows) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(rows, axis=1)]
