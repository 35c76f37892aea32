"""Greedy elimination of sub-layers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from unittest import mock

import pytest

from pico import NUM_LAYERS, pico
from selfdraft.strategies.elimination import Network, Sample, eliminate, qualities, sample
from selfdraft.types import SkipSet
from test_knapsack import probe_of, zeroed

FREE = dict.fromkeys(range(2, 2 * NUM_LAYERS), 1.0)


@functools.cache
def samples_of(family: str) -> list[Sample]:
    return [sample(probe_of(pico(family), count)) for count in (5, 9)]


@pytest.fixture
def samples() -> list[Sample]:
    return samples_of("llama")


def test_nothing_skipped_is_the_target(samples: list[Sample]) -> None:
    (whole,) = qualities(samples, frozenset())
    assert whole.match == 1.0
    assert whole.lost == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_candidates_share_a_pass(family: str) -> None:
    samples = samples_of(family)
    skipped, candidates = frozenset({2, 7}), [3, 4, 8]
    together = qualities(samples, skipped, candidates)
    alone = [qualities(samples, skipped | extra)[0] for extra in (set(), *({number} for number in candidates))]
    for one, other in zip(together, alone, strict=True):
        assert one.lost == pytest.approx(other.lost, abs=1e-4)
        assert one.match == other.match


@pytest.mark.parametrize(("attention", "mlp"), [([2], []), ([], [3]), ([1], [2])])
def test_what_does_nothing_goes_first(attention: Sequence[int], mlp: Sequence[int]) -> None:
    samples = [sample(probe_of(zeroed(attention, mlp)))]
    planted = SkipSet.of(attention, mlp).numbers
    points = list(eliminate(samples, FREE, num_ranking=1))
    assert points[len(planted)].skipped == planted
    assert points[len(planted)].quality.match == 1.0


def test_seconds_saved_count(samples: list[Sample]) -> None:
    """What saves a thousand times as much goes first, whatever it loses."""
    assert next(itertools.islice(eliminate(samples, FREE), 1, None)).skipped != {5}
    assert next(itertools.islice(eliminate(samples, {**FREE, 5: 1000.0}), 1, None)).skipped == {5}


def test_it_ends_where_the_draft_is_of_no_use_and_goes_on_after_what_is_known(samples: list[Sample]) -> None:
    shares: list[float] = []
    points = list(eliminate(samples, FREE, min_match=0.6, progress=shares.append))
    assert shares[0] < shares[-1] == 1.0
    assert list(eliminate(samples, FREE, min_match=0.6, known=points[:3])) == points[3:]
    assert all(point.quality.match >= 0.6 for point in points[:-1])
    assert [len(point.skipped) for point in points] == list(range(len(points)))
    assert not any({0, 1} & point.skipped for point in points)


def test_lazy_scoring_scores_less(samples: list[Sample]) -> None:
    points, num_scored = [], []
    for batch in (100, 2):
        with mock.patch.object(Network, "score", autospec=True, side_effect=Network.score) as score:
            points.append(list(eliminate(samples, FREE, batch=batch)))
        num_scored.append(sum(len(call.args[1]) for call in score.call_args_list))
    assert num_scored[1] < num_scored[0]
    assert points[0][1].skipped == points[1][1].skipped
    assert [len(point.skipped) for point in points[1]] == list(range(len(points[1])))


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_going_on_is_beginning_anew_without_it(family: str) -> None:
    samples = samples_of(family)
    network = Network(samples, frozenset({2}))
    network.score([3, 4, 8], is_kept=True)
    network.go_on(4)
    new = Network(samples, frozenset({2, 4}))
    assert network.skipped == new.skipped
    for one, other in zip([network.quality, *network.score([3, 7])], [new.quality, *new.score([3, 7])], strict=True):
        assert one.lost == pytest.approx(other.lost, abs=1e-4)
        assert one.match == other.match
