"""What each method does, by itself: which layers, how far, which draft."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pico import pico
from selfdraft import Engine
from selfdraft.drafted import DraftStats
from selfdraft.drafters.lookup import Match, find_matches
from selfdraft.lookahead.confidence import Confidence
from selfdraft.lookahead.fixed import Fixed
from selfdraft.strategies.uniform import spread

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def find_match(*arguments: Any) -> Match:
    return next(iter(find_matches(*arguments)), Match())


class TestUniform:
    @pytest.mark.parametrize(
        ("num_layers", "ratio", "layers"),
        [
            (10, 0.3, (2, 5, 7)),
            (30, 0.25, (2, 6, 9, 13, 16, 20, 23, 27)),
            (5, 0.0, ()),
            (2, 1.0, ()),
            (4, 1.0, (1, 2)),
            (1, 0.5, ()),
        ],
    )
    def test_examples(self, num_layers: int, ratio: float, layers: tuple[int, ...]) -> None:
        assert spread(num_layers, ratio) == layers

    @given(num_layers=st.integers(1, 100), ratio=st.floats(0, 1))
    def test_the_first_and_the_last_layer_are_kept_and_gaps_are_even(self, num_layers: int, ratio: float) -> None:
        layers = spread(num_layers, ratio)
        assert len(layers) == len(set(layers)) == min(round(ratio * num_layers), max(num_layers - 2, 0))
        assert all(0 < layer < num_layers - 1 for layer in layers)
        gaps = {after - before for before, after in itertools.pairwise(layers)}
        assert not gaps or max(gaps) - min(gaps) <= 1


class TestLookup:
    @pytest.mark.parametrize(
        ("text", "max_ngram", "min_ngram", "max_tokens", "found"),
        [
            ([1, 2, 3, 9, 1, 2], 8, 1, 2, ([3, 9], 2)),
            ([1, 2, 3, 1, 2, 4, 1, 2], 8, 1, 1, ([4], 2)),  # the newest of equals
            ([5, 1, 2, 3, 6, 2, 4, 5, 1, 2], 8, 1, 1, ([3], 3)),  # the longest before the newest
            ([5, 1, 2, 3, 6, 2, 4, 5, 1, 2], 1, 1, 1, ([4], 1)),  # not longer than allowed
            ([1, 2, 3, 2], 8, 2, 5, ([], 0)),  # too short to count
            ([1, 2, 3], 8, 1, 5, ([], 0)),
            ([7], 8, 1, 5, ([], 0)),
            ([7, 7, 7], 8, 1, 5, ([7], 2)),  # a match may overlap the end
        ],
    )
    def test_examples(
        self, text: list[int], max_ngram: int, min_ngram: int, max_tokens: int, found: tuple[list[int], int]
    ) -> None:
        match = find_match(text, max_ngram, min_ngram, max_tokens)
        assert (list(match.tokens), match.length) == found

    @given(text=st.lists(st.integers(0, 3), min_size=1, max_size=40), max_ngram=st.integers(1, 6))
    def test_longest_then_newest_against_a_plain_search(self, text: list[int], max_ngram: int) -> None:
        expected: tuple[list[int], int] = ([], 0)
        for length in range(min(max_ngram, len(text) - 1), 0, -1):
            ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
            if ends:
                expected = (text[ends[-1] : ends[-1] + 5], length)
                break
        match = find_match(text, max_ngram, 1, 5)
        assert (list(match.tokens), match.length) == expected

    def test_a_text_that_repeats_itself_is_drafted_in_long_runs(self) -> None:
        """Made to count to five again and again: after the first time, whole drafts are accepted."""

        def count_to_five(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores.index_fill(1, (prefix[0, -1:] + 1) % 5, 1e3)

        engine = Engine(pico("qwen2"), drafter="lookup")
        found = engine.generate([0], max_new_tokens=100, processors=[count_to_five])
        assert found.tokens == tuple(index % 5 for index in range(1, 101))
        assert [step.verdict.num_accepted for step in found.steps[-5:-1]] == [5] * 4  # the newest match is one lap old
        assert found.stats.num_rounds < 30


def stats_for(probabilities: list[list[float]], depth: int = 1) -> DraftStats:
    rows = torch.arange(len(probabilities))
    depths = torch.full_like(rows, depth)
    return DraftStats(depths, rows, torch.zeros_like(rows), rows, torch.tensor(probabilities).log() + 3)


class TestLookaheads:
    def test_confidence_goes_on_at_and_above_its_threshold_and_fixed_counts(self) -> None:
        confidence = Confidence(Confidence.Options(threshold=0.6, max_tokens=3))
        rows = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]
        assert confidence.wants_more(stats_for(rows)).tolist() == [True, False, True]
        assert confidence.wants_more(stats_for(rows, depth=3)).tolist() == [False] * 3
        fixed = Fixed(Fixed.Options(tokens=2))
        assert [fixed.wants_more(stats_for(rows, depth)).tolist() for depth in (1, 2)] == [[True] * 3, [False] * 3]

    def test_statistics_of_a_distribution(self) -> None:
        """A lookup is a point mass."""
        stats = stats_for([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
        assert stats.confidence.tolist() == pytest.approx([0.5, 1.0])
        assert stats.entropy.tolist() == pytest.approx([1.0397, 0.0], abs=1e-4)
        assert stats.top_probs.shape == (2, 10)
        assert stats.top_probs[0, :4].tolist() == pytest.approx([0.5, 0.25, 0.25, 0.0])
        rows = torch.arange(2)
        found = DraftStats(rows + 1, rows, rows, rows)
        assert (found.confidence.tolist(), found.entropy.tolist()) == ([1.0, 1.0], [0.0, 0.0])
        assert found.top_probs[:, :2].tolist() == [[1.0, 0.0]] * 2

    @pytest.mark.parametrize("lookahead", ["fixed", "confidence"])
    def test_a_draft_knows_its_confidence_at_every_depth(self, lookahead: str) -> None:
        found = Engine(pico("llama")).generate(PROMPT, max_new_tokens=20, lookahead=lookahead)
        assert all(len(step.draft.confidences) == len(step.draft.tokens) for step in found.steps)
        assert all(0 < value <= 1 for step in found.steps for value in step.draft.confidences)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.2, "seed": 9},
        {"temperature": 1.2, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.4, "seed": 9},
    ],
    ids=str,
)
def test_a_draft_that_skips_nothing_is_always_right(options: dict[str, Any]) -> None:
    """Same scores, same rules, same noise at the same index: every draft token is the target's choice."""
    engine = Engine(pico("gpt2"), strategy="uniform", lookahead="fixed", settings={"uniform": {"ratio": 0.0}})
    for generation in engine.generate([PROMPT, [7], [2, 7, 1]], max_new_tokens=31, **options):
        assert generation.stats.acceptance_rate == 1.0
        assert generation.stats.num_rounds == 6  # 5 drafted tokens and one more each, the last round one
