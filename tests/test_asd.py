"""`asd`: which sub-layers the three rules skip."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from learned import knowledge, latency
from pico import NUM_LAYERS, pico
from rounds import step_of
from selfdraft import Engine, SkipSet
from selfdraft.passes import PassRequest
from selfdraft.strategies.asd import Asd, Rules, Trial, skip_set
from selfdraft.types import OFF
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
    assert skip_set(cosines, len(COSINES), Rules(**options)) == SkipSet.parse(skipped)


@pytest.mark.parametrize("seed", range(20))
def test_the_set_is_that_of_algorithm_1(seed: int) -> None:
    """As the paper writes it, layers from 1 to L."""
    chance = random.Random(seed)
    num_layers, threshold = chance.randint(2, 40), chance.uniform(-1, 1)
    m, n = chance.randint(1, 8), chance.randint(0, 5)
    cosines = {layer: chance.uniform(-1, 1) for layer in range(1, num_layers + 1)}
    attentions = {layer for layer in cosines if cosines[layer] >= threshold and layer <= num_layers - n}
    mlps = {j * m for j in range(1, num_layers + 1) if j * m <= num_layers - n}
    expected = SkipSet.of([layer - 1 for layer in attentions | mlps], [layer - 1 for layer in mlps])
    assert skip_set(list(cosines.values()), num_layers, Rules(threshold, m, n)) == expected


def test_nothing_is_drafted_where_plain_rounds_are_faster() -> None:
    """After both were tried; recording counts as drafting. The paper's drafts always."""
    for always in (False, True):
        asd = Asd(Asd.Options(always=always), knowledge(NUM_LAYERS))
        kinds = []
        for text in range(12):
            asd.begin(text, {})
            for _ in range(10):
                plan = asd.plan(text, None)  # type: ignore[arg-type]
                kinds.append(bool(plan.skip))
                num_drafted, recorded = (2, 0.05) if plan.skip else (0, 0.0)
                asd.observe(text, step_of(num_drafted, 0, plan=plan, seconds=(0.0, 0.01), record_seconds=recorded))
            report = asd.report(text)["drafts"]
            asd.end(text)
        assert kinds[0], "drafting comes first"
        assert all(kinds) if always else not any(kinds[-40:])
        assert report.startswith("without a" if always else "nothing")


def test_what_calibration_found_hopeless_is_not_tried() -> None:
    known = {"similarity": 0.5, "every": 4, "last": 1, "predicted": 0.8}
    asd, other = (
        Asd(Asd.Options(every=every), replace(knowledge(NUM_LAYERS), known=lambda name: known)) for every in (None, 2)
    )
    for one in (asd, other):
        one.begin(0, {})
    assert asd.plan(0, None) == OFF  # type: ignore[arg-type]
    assert other.plan(0, None).skip == skip_set([], NUM_LAYERS, Rules(0.5, 2, 1))  # type: ignore[arg-type]


def test_rules_that_skip_nothing_do_not_win() -> None:
    """They would, where drafts are slower than plain decoding: with a match of 1 that says nothing."""
    nothing, some, sometimes = Rules(0.999, 0, 1), Rules(0.9, 0, 1), Rules(0.95, 0, 1)
    trial, skip, costs = Trial([nothing, some, sometimes]), SkipSet.of([1]), latency().at(100)
    trial.add(costs, [SkipSet(), skip, skip], {str(skip): 1}, 10)
    trial.add(costs, [SkipSet(), skip, SkipSet()], {str(skip): 3}, 10)
    found = trial.best()
    assert (found["similarity"], found["match"], found["num_tried"]) == (0.95, 0.1, 2)
    assert found["predicted"] < 1
    trial.add(costs, [SkipSet(), skip, SkipSet.of([2])], {str(skip): 3}, 10)
    assert trial.best()["similarity"] == 0.9, "what there was no time for is out"
    nobody = Trial([nothing])
    nobody.add(costs, [SkipSet()], {}, 10)
    assert nobody.best() == Trial([]).best() == {"num_tried": 0}


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
