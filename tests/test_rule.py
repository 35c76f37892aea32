"""After a draft's scores the rule chooses the same, and shows a lookahead the same, however it got there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfdraft.chains import Choice
from selfdraft.drafted import DraftStats, Outline
from selfdraft.engine.accept import Coupled
from selfdraft.engine.draft import Rule
from selfdraft.engine.sampling import Sampler
from selfdraft.kernels.top import distribution, top
from selfdraft.options import GenerateOptions
from selfdraft.passes import Drawn, NoiseKey

ROWS = 4


class Watcher:
    """Goes on where the draft is sure, and keeps what it was shown."""

    reads_distribution = False
    shown: DraftStats

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        self.shown = stats
        return (stats.top_probs[:, 0] > 0.2) & (stats.entropy < 3)


class Reader(Watcher):
    reads_distribution = True


def scores_of(size: int) -> torch.Tensor:
    scores = torch.randn(ROWS, size, generator=torch.Generator().manual_seed(size)) * 3
    scores[1, : size // 2] = -torch.inf
    scores[2, size // 2 :] = scores[2].max()  # ties
    return scores


def expected_outline(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition, in float64."""
    probs = scores.double().softmax(-1)
    best = probs.sort(dim=-1, descending=True).values[:, :10]
    return torch.nn.functional.pad(best, (0, 10 - best.shape[-1])), torch.special.entr(probs).sum(-1)


def choose(lookahead: Any, scores: torch.Tensor, num_candidates: int, **options: Any) -> Choice:
    rows = torch.arange(ROWS)
    sampler, noise = Sampler(GenerateOptions(**options)), NoiseKey(rows, rows, rows, torch.zeros_like(rows))

    def draw(scores: torch.Tensor, count: int) -> Drawn:
        return Drawn(*Coupled.candidates(sampler.warp(scores), count, sampler, noise), None)

    assert sampler.kind is not None
    rule = Rule(lookahead, SimpleNamespace(max_candidates=num_candidates), Coupled(), sampler.kind)
    return rule(DraftStats(rows + 1, rows, torch.zeros_like(rows), rows, scores), draw)


by_size = pytest.mark.parametrize("size", [1, 4, 10, 50, 1280, 4096, 5001])


@by_size
@pytest.mark.parametrize("num_candidates", [1, 3, 12])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 20, "seed": 7}], ids=["greedy", "sampled"])
def test_a_lookahead_that_reads_the_distribution_changes_nothing(size, num_candidates, options):
    scores, watcher, reader = scores_of(size), Watcher(), Reader()
    expected = choose(watcher, scores, num_candidates, **options)
    found = choose(reader, scores, num_candidates, **options)
    assert torch.equal(found.candidates, expected.candidates)
    assert torch.equal(found.wants_more, expected.wants_more)
    assert torch.allclose(found.confidence, expected.confidence, rtol=1e-6)
    assert (watcher.shown.outline, watcher.shown.peak) == (None, None)
    assert reader.shown.outline is not None
    top_probs, entropy = expected_outline(scores)  # of the raw scores, also where the draft samples
    for stats in (watcher.shown, reader.shown):
        assert stats.top_probs.shape == (ROWS, 10)
        assert torch.allclose(stats.top_probs.double(), top_probs, rtol=1e-5, atol=1e-30)
        assert torch.allclose(stats.entropy.double(), entropy, rtol=1e-5, atol=1e-6)
        assert torch.allclose(stats.confidence.double(), top_probs[:, 0], rtol=1e-5)
        assert torch.equal(stats.token, found.candidates[:, 0])


@by_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 4])
def test_distribution_is_top_and_an_outline(size, dtype, count):
    scores = scores_of(size).to(dtype)
    values, tokens, peak, outline = distribution(scores, count)
    assert torch.equal(values, top(scores, count)[0])
    assert torch.equal(tokens, top(scores, count)[1])
    top_probs, entropy = expected_outline(scores)
    assert torch.allclose(outline.top_probs.double(), top_probs, rtol=1e-5, atol=1e-30)
    assert torch.allclose(outline.entropy.double(), entropy, rtol=1e-5, atol=1e-6)
    assert torch.equal(peak, outline.top_probs[:, 0])


def test_the_outline_of_a_single_possible_token():
    scores = torch.full((1, 30), -torch.inf)
    scores[0, 11] = -4.0
    outline = Outline.of(scores)
    assert outline.top_probs.tolist() == [[1.0] + [0.0] * 9]
    assert outline.entropy.tolist() == [0.0]
