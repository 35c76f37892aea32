"""Ties by routing: what flips by rounding is told with its reason, every other difference stays one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import selfdraft
from pico import letter_tokenizer, pico
from selfdraft.cli import compare as compared
from selfdraft.cli import verify as verified
from selfdraft.engine import audit
from selfdraft.engine.routing import Routing, flip_between
from selfdraft.measure.records import Record

MIXTURES = ("qwen3_moe", "mixtral", "gpt_oss")
PROMPTS = [[3 + (7 * number + 13 * index) % 100 for index in range(12)] for number in range(6)]
CALL: dict[str, Any] = {"max_new_tokens": 40}
FLIP = "routing: layer 0 chooses expert "


def engine_for(family: str, dtype: torch.dtype = torch.bfloat16, are_alike: bool = True) -> selfdraft.Engine:
    """`are_alike`: the first router scores experts 1 and 2 alike."""
    model = copy.deepcopy(pico(family)).to(dtype)
    engine = selfdraft.Engine(model, letter_tokenizer(), strategy="uniform")
    if are_alike:
        router = first_router(engine)
        for parameter in router.parameters():
            parameter.data[2] = parameter.data[1]
    return engine


def first_router(engine: selfdraft.Engine) -> Any:
    return engine.runner.decoder.routers()["a0"][1]


@pytest.fixture
def flip(monkeypatch: pytest.MonkeyPatch) -> Callable[[selfdraft.Engine], None]:
    """From now on, passes of several tokens take expert 2 where others take 1, and 1 where they take 2."""

    def begin(engine: selfdraft.Engine) -> None:
        router = first_router(engine)
        plain = type(router).forward

        def forward(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            scores, weights, chosen = plain(self, hidden)
            is_flipped = self is router and len(hidden) > 1
            return scores, weights, chosen.new_tensor([0, 2, 1, 3])[chosen] if is_flipped else chosen

        monkeypatch.setattr(type(router), "forward", forward)

    return begin


def comparisons(engine: selfdraft.Engine) -> list[selfdraft.Comparison]:
    def compare(prompt: list[int]) -> selfdraft.Comparison:
        plain, drafted = (engine.generate(prompt, **CALL, strategy=name) for name in ("off", "uniform"))
        return engine.compare(prompt, plain, drafted, **CALL)

    return [compare(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("family", MIXTURES)
def test_a_flip_by_rounding_is_a_tie_with_its_reason(family, flip):
    engine = engine_for(family)
    flip(engine)
    found = comparisons(engine)
    print(found)
    assert "different" not in [one.verdict for one in found]
    reasons = [one.reason for one in found if one.reason is not None]
    assert len(reasons) >= 3
    assert all(reason.startswith((f"{FLIP}1 or 2 (scores ", f"{FLIP}2 or 1 (scores ")) for reason in reasons)


@pytest.mark.parametrize("family", MIXTURES)
def test_a_flip_by_more_than_rounding_is_a_difference(family, flip):
    engine = engine_for(family, are_alike=False)
    flip(engine)
    found = comparisons(engine)
    print(found)
    assert [one.verdict for one in found].count("different") >= 3


def test_float32_is_not_excused(flip):
    engine = engine_for("mixtral", torch.float32)
    flip(engine)
    found = comparisons(engine)
    print(found)
    assert {one.verdict for one in found} == {"different"}
