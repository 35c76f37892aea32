"""The optimiser: its Gaussian process, what it suggests, and that it finds more than chance does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from selfdraft.strategies.bayes import Point, Posterior, Search, log_likelihoods

NUMBERS = range(2, 26)
SIZE = 10


def score(point: Point) -> float:
    """Something without meaning that is never the same twice."""
    return math.sin(sum(number**2 for number in point)) + len(point)


def searched(search: Search, count: int, size: int | None, score: Callable[[Point], float] = score) -> list[Point]:
    suggested = []
    for _ in range(count):
        point = search.suggest(size)
        assert point is not None
        search.observe(point, score(point))
        suggested.append(point)
    return suggested


# ------------------------------------------------------------------------------------------------ the process


@pytest.mark.parametrize("num_observed", [1, 5, 90])
def test_the_posterior_is_the_textbooks(num_observed: int) -> None:
    rng = np.random.default_rng(1)
    rows, others = rng.random((num_observed, 14)) < 0.5, rng.random((6, 14)) < 0.5
    scores, alpha, length = rng.normal(size=num_observed), 1e-2, 1.7

    def kernel(one: np.ndarray, other: np.ndarray) -> float:
        distance = math.sqrt(5 * sum((a - b) ** 2 for a, b in zip(one.tolist(), other.tolist(), strict=True))) / length
        return (1 + distance + distance**2 / 3) * math.exp(-distance)

    covariance = np.array([[kernel(one, other) for other in rows] for one in rows]) + alpha * np.eye(num_observed)
    shared = np.array([[kernel(one, other) for other in others] for one in rows])
    mean, deviation = Posterior.of(rows, scores, length, alpha).at(others)
    assert np.allclose(mean, shared.T @ np.linalg.solve(covariance, scores), atol=1e-8)
    variance = 1 - np.diag(shared.T @ np.linalg.solve(covariance, shared))
    assert np.allclose(deviation**2, variance, atol=1e-5)
    _, log_determinant = np.linalg.slogdet(covariance)
    expected = -0.5 * scores @ np.linalg.solve(covariance, scores) - 0.5 * log_determinant
    assert log_likelihoods(rows, scores, [1.0, length], alpha)[1] == pytest.approx(expected, abs=1e-8)


# ------------------------------------------------------------------------------------------------ suggestions


@pytest.mark.parametrize(("num", "size"), [(7, 3), (6, None), (5, 0), (4, 4), (0, None), (0, 0)])
@pytest.mark.parametrize("way", ["suggest", "random"])
def test_every_set_once_and_then_none(num: int, size: int | None, way: str) -> None:
    search = Search(range(10, 10 + num))
    found = []
    while (point := getattr(search, way)(size)) is not None:
        assert point <= set(range(10, 10 + num))
        search.observe(point, score(point))
        found.append(point)
    sizes = range(num + 1) if size is None else [size]
    every = {frozenset(one) for k in sizes for one in itertools.combinations(range(10, 10 + num), k)}
    assert len(found) == len(every)
    assert set(found) == every


def test_what_was_only_suggested_or_excluded_counts_as_seen() -> None:
    search = Search(range(5), excluded=[frozenset({0, 1}), frozenset({2})])
    search.observe(frozenset({3, 4}), 1.0)
    calls = itertools.cycle([lambda: search.suggest(2), lambda: search.random(2)])
    found = [next(calls)() for _ in range(8)]
    assert len(set(found)) == 8
    assert None not in found
    assert set(found).isdisjoint({frozenset({0, 1}), frozenset({3, 4})})
    assert search.suggest(2) is None
    assert search.random(2) is None
    assert search.suggest(1) is not None


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("num_before", [1, 11, 30])
def test_a_saved_search_goes_on_as_it_would_have(size: int | None, num_before: int) -> None:
    whole = Search(range(12), seed=3, max_observations=20)
    expected = searched(whole, num_before + 12, size)
    before = Search(range(12), seed=3, max_observations=20)
    assert searched(before, num_before, size) == expected[:num_before]
    kept = {"observations": before.observations, "num_suggestions": before.num_suggestions}
    after = Search(range(12), seed=3, max_observations=20, **kept)
    assert searched(after, 12, size) == expected[num_before:]
    assert after.best == whole.best
    assert searched(Search(range(12), seed=4), 12, size) != expected[:12]


def test_the_best_by_the_mean_of_its_scores() -> None:
    search = Search(range(4))
    assert search.best is None
    lucky, good = frozenset({1}), frozenset({2})
    for point, value in [(lucky, 9.0), (good, 5.0), (lucky, 0.0), (good, 5.0)]:
        search.observe(point, value)
    assert search.best == good
    assert [value for _, value in search.observations] == [9, 5, 0, 5]


@pytest.mark.parametrize(
    ("point", "value", "message"),
    [
        ({1}, math.nan, r"the score of \[1\] must be a number"),
        ({1}, math.inf, r"the score of \[1\] must be a number"),
        ({1, 7}, 1.0, "7 is not one of the sub-layers to choose from"),
    ],
    ids=str,
)
def test_what_cannot_be_observed_is_refused(point: set[int], value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search(range(3)).observe(frozenset(point), value)
    with pytest.raises(ValueError, match="no set of 4 out of 3 sub-layers"):
        Search(range(3)).suggest(4)


# ------------------------------------------------------------------------------------------------ against chance


def planted(seed: int) -> Callable[[Point], float]:
    """Each sub-layer has its value, one pair in ten something of its own."""
    rng, num = np.random.default_rng([77, seed]), len(NUMBERS)
    values = rng.normal(size=num)
    pairs = np.triu(rng.normal(size=(num, num)) * (rng.random((num, num)) < 0.1), 1)

    def value(point: Point) -> float:
        members = np.isin(np.array(NUMBERS), list(point)).astype(float)
        return float(values @ members + 0.5 * members @ pairs @ members)

    return value


def found_by(way: str, seed: int, num_evaluations: int = 60) -> float:
    """The true value of what looked best through noise."""
    value, noise, search = planted(seed), np.random.default_rng([78, seed]), Search(NUMBERS, seed)
    for _ in range(num_evaluations):
        point = getattr(search, way)(SIZE)
        search.observe(point, value(point) + 0.5 * noise.normal())
    assert search.best is not None
    return value(search.best)


@pytest.mark.full
def test_it_finds_more_than_chance_at_equal_evaluations() -> None:
    seeds = range(20)
    gains = np.array([found_by("suggest", seed) - found_by("random", seed) for seed in seeds])
    rng = np.random.default_rng(0)
    means = rng.choice(gains, (4000, len(gains))).mean(1)
    assert np.quantile(means, 0.025) > 0
