"""Verification packed: rows with drafts of several sizes are what each is alone. On a tape instead of CUDA graphs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import test_session
from pico import pico
from selfdraft.engine.draft import grow
from selfdraft.engine.verify import tree_mask
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu import graphs as gpu_graphs
from selfdraft.models.gpu import runner as gpu_runner
from selfdraft.models.gpu.forward import ModuleForward
from selfdraft.models.gpu.graphs import Graphs
from selfdraft.passes import PassRequest
from selfdraft.types import Draft
from test_drafts_ahead import METHODS
from test_graphs import (  # noqa: F401 - its fixtures run here, too
    begins_with_sublayers,
    method_name,
    new_engine,
    new_runner,
    short_buckets,
)
from test_lossless import PROMPTS

ROWS = [0, 1, 3, 4]


class PackedForward(ModuleForward):
    """Computes all columns, and hands on those that it was asked for."""

    packs = True

    def begin(self, buffers: Any, *inputs: Any, **options: Any) -> Any:
        return super().begin(buffers, *inputs, **options), buffers.places

    def finish(self, state: Any, vocabulary: int | None = None) -> Any:
        begun, places = state
        scores, captured = super().finish(begun, vocabulary)
        return scores[places], {name: states[places] for name, states in captured.items()}


@pytest.fixture(autouse=True)
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runner, "ModuleForward", PackedForward)
    monkeypatch.setattr(gpu_graphs, "MIN_TOKENS", 1)


def num_packed(graphs: Graphs) -> int:
    return sum(0 < key.tokens < key.rows * key.width for key in graphs.keys if key.kind == "pass")


def some_draft(rng: random.Random, is_chain: bool) -> Draft:
    """Of nothing, of some tokens in a line, or of a tree with branches."""
    levels = [[rng.randrange(100) for _ in range(1 if is_chain else 3)] for _ in range(rng.randrange(5))]
    branches = [] if is_chain else [[rng.randrange(100) for _ in range(rng.randrange(1, 4))]]
    return grow(levels, branches, 6) if levels else Draft()


def verification(drafts: Sequence[Draft], starts: Sequence[int], rows: Sequence[int], **options: Any) -> PassRequest:
    widths = [1 + len(draft.tokens) for draft in drafts]
    tokens = [[17, *draft.tokens, *[0] * (max(widths) - 1 - len(draft.tokens))] for draft in drafts]
    tree = None if all(draft.is_chain for draft in drafts) else tree_mask(drafts, max(widths))
    return PassRequest(tokens, starts, rows, tree=tree, widths=widths, **options)


@pytest.mark.parametrize("is_chain", [True, False], ids=["chains", "trees"])
@pytest.mark.parametrize("capture", [(), ("a1", "norm")], ids=["", "captured"])
def test_rows_of_several_sizes_are_single_rows(is_chain: bool, capture: tuple[str, ...]) -> None:
    """Scores, choices and captured states, and where they go on: keys and values."""
    runner, eager, rng = new_runner(pico("llama")), EagerRunner(pico("llama")), random.Random(1)
    together, alone = runner.new_cache(6, 64), eager.new_cache(6, 256)
    together.storage.copy_(torch.randn(together.storage.shape, generator=torch.Generator().manual_seed(2)))
    alone.storage.copy_(together.storage)
    starts = [9, 1, 20, 14]
    for _ in range(6):
        drafts = [some_draft(rng, is_chain) for _ in ROWS]
        found = runner.forward(verification(drafts, starts, ROWS, capture=capture), together)
        for number, (draft, start, row) in enumerate(zip(drafts, starts, ROWS, strict=True)):
            width = 1 + len(draft.tokens)
            expected = eager.forward(verification([draft], [start], [row], capture=capture), alone)
            torch.testing.assert_close(found.scores[number, :width], expected.scores[0], rtol=1e-4, atol=1e-4)
            assert found.choices()[number][:width] == expected.choices()[0]
            for point, states in expected.captured.items():
                torch.testing.assert_close(found.captured[point][number, :width], states[0], rtol=1e-4, atol=1e-4)
            kept = slice(start, start + width)
            both = (cache.storage[:, :, row, :, kept] for cache in (together, alone))
            torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
        starts = [start + 1 for start in starts]
    assert num_packed(runner.graphs) > 1
    assert runner.fallback_reason is None


@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_a_batch_is_its_texts_one_by_one(method: dict[str, Any]) -> None:
    """Also by drafts that are begun before they are asked for."""
    engine = new_engine(pico("llama"))
    found = engine.generate(list(PROMPTS), max_new_tokens=10, **method)
    expected = [
        engine.generate(prompt, max_new_tokens=10, sequence=row, **method) for row, prompt in enumerate(PROMPTS)
    ]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert num_packed(engine._runner.graphs) > 0


@pytest.mark.parametrize("seed", range(100, 104))
def test_every_text_of_a_session_is_that_of_a_single_call(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_session, "engine_of", lambda kind: engine)
    engine = new_engine(pico("llama"))
    test_session.check_schedule("recorded", seed)
