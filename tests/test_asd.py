"""`asd`: which sub-layers the three rules skip."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from learned import knowledge
from pico import NUM_LAYERS, pico
from selfdraft import Engine, SkipSet
from selfdraft.passes import PassRequest
from selfdraft.strategies.asd import Asd, skip_set
from test_knapsack import TEXT, zeroed

COSINES = [0.2, 0.99, 0.99, 0.5, 0.985, 0.9, 0.99, 0.99, 0.99]


@pytest.mark.parametrize(
    ("options", "skipped"),
    [
        ({"cosines": []}, "a2,a5,m2,m5"),  # a prompt of one token has none
        ({}, "a1-2,a4-6,m2,m5"),  # one-based: 2, 3, 5, 7 by cosine, 3 and 6 by the rule, 8 and 9 kept
        ({"last": 0}, "a1-2,a4-8,m2,m5,m8"),
        ({"every": 0}, "a1-2,a4,a6"),
        ({"similarity": 1.5}, "a2,a5,m2,m5"),
        ({"similarity": 1.5, "every": 0}, ""),
        ({"every": 4, "last": 3}, "a1-4,m3"),
    ],
)
def test_the_rules(options: dict[str, Any], skipped: str) -> None:
    cosines = options.pop("cosines", COSINES)
    assert skip_set(cosines, len(COSINES), Asd.Options(**options)) == SkipSet.parse(skipped)


@pytest.mark.parametrize("attention", [[2], [1, 3]])
def test_an_attention_that_does_nothing_is_skipped(attention: list[int]) -> None:
    settings = {"asd": {"similarity": 0.9999, "every": 0, "last": 0}}
    found = Engine(zeroed(attention, [])).generate(TEXT, max_new_tokens=4, strategy="asd", settings=settings)
    assert {step.plan.skip for step in found.steps} == {SkipSet.of(attention, [])}


def test_similarities_are_those_of_the_prompt() -> None:
    """Whatever the parts the prefill comes in."""
    asd = Asd(Asd.Options(), knowledge(NUM_LAYERS))
    runner = Engine(pico("llama")).runner
    cache = runner.new_cache(1, 64)

    def cosines(start: int, end: int) -> torch.Tensor:
        request = PassRequest([TEXT[start:end]], [start], capture=asd.prefill_needs, needs_scores=False)
        return asd.condense(runner.forward(request, cache).captured)["cosines"]

    whole, parts = cosines(0, len(TEXT)), [cosines(0, 7), cosines(7, len(TEXT))]
    assert whole.shape == (1, len(TEXT), NUM_LAYERS)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_each_text_of_a_batch_has_its_own_set() -> None:
    settings = {"asd": {"similarity": 0.6, "every": 0, "last": 0}}
    engine = Engine(pico("llama"), strategy="asd", settings=settings)
    prompts = [TEXT, [90, 91, 92, 17, 18], [5]]
    together = engine.generate(prompts, max_new_tokens=4)
    alone = [engine.generate(prompt, max_new_tokens=4) for prompt in prompts]
    assert [one.steps[0].plan for one in together] == [one.steps[0].plan for one in alone]
