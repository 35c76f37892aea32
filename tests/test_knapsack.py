"""The dynamic programme of CLaSp and KnapSpec."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from pico import NUM_LAYERS, pico
from selfdraft.models.decoder import Decoder
from selfdraft.models.placement import Placement
from selfdraft.models.probe import Probe
from selfdraft.passes import States
from selfdraft.strategies.knapsack import Item, solve

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


@torch.inference_mode()
def probe_of(model: object, num_tokens: int = 5) -> Probe:
    decoder = Decoder(model)
    cache = decoder.new_cache(1, len(TEXT))
    decoder.forward(torch.tensor([TEXT]), Placement.chain([0], len(TEXT), decoder.device), cache)
    first = len(TEXT) - num_tokens
    return Probe(decoder, cache, TEXT[first:], first)


def sublayers(weights: tuple[int, int] = (1, 1), pinned: Sequence[int] = (0, 1)) -> list[Item]:
    return [Item((number,), weights[number % 2], number in pinned) for number in range(2 * NUM_LAYERS)]


def literal(probe: Probe, items: Sequence[Item], budget: int, min_cosine: float) -> dict[int, tuple[set[int], float]]:
    """The recurrence as it is written, one state at a time."""
    truths = [probe.begin()]
    for item in items:
        state = truths[-1]
        for number in item.numbers:
            state = probe.run(number, state)
        truths.append(state)

    def walk(state: States, item: Item, is_run: bool) -> States:
        for number in item.numbers:
            state = (probe.run if is_run else probe.skip)(number, state)
        return state

    def closeness(state: States, depth: int) -> float:
        truth = truths[depth].hidden.float()
        return float(torch.cosine_similarity(state.hidden.float(), truth, dim=-1).mean())

    table: dict[int, tuple[States, set[int], float]] = {0: (probe.begin(), set(), 1.0)}
    for depth, item in enumerate(items, start=1):
        found: dict[int, tuple[States, set[int], float]] = {}
        for weight in range(budget + 1):
            options = []
            if weight in table:
                state, skipped, _ = table[weight]
                state = walk(state, item, True)
                options.append((closeness(state, depth), state, skipped))
            if not item.is_pinned and weight - item.weight in table:
                state, skipped, _ = table[weight - item.weight]
                state = walk(state, item, False)
                options.append((closeness(state, depth), state, skipped | set(item.numbers)))
            options = [option for option in options if weight == 0 or option[0] >= min_cosine]
            if options:
                cosine, state, skipped = max(options, key=lambda option: option[0])
                found[weight] = (state, skipped, cosine)
        table = found
    return {weight: (skipped, cosine) for weight, (_, skipped, cosine) in table.items()}


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma2"])
@pytest.mark.parametrize(("weights", "min_cosine"), [((1, 1), 0.5), ((2, 1), 0.0), ((1, 3), 0.8)])
def test_it_is_the_recurrence_as_written(family: str, weights: tuple[int, int], min_cosine: float) -> None:
    probe, items = probe_of(pico(family)), sublayers(weights)
    budget = sum(item.weight for item in items) // 2
    found, states = solve(probe, items, budget, min_cosine)
    expected = literal(probe, items, budget, min_cosine)
    assert [candidate.weight for candidate in found] == sorted(expected)
    assert len(states) == len(found)
    for candidate in found:
        skipped, cosine = expected[candidate.weight]
        assert candidate.skipped == skipped
        assert candidate.cosine == pytest.approx(cosine, abs=1e-5)
        assert sum(items[number].weight for number in candidate.skipped) == candidate.weight


def zeroed(attention: Sequence[int], mlp: Sequence[int]) -> object:
    model = copy.deepcopy(pico("llama"))
    with torch.no_grad():
        for layer in attention:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in mlp:
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    return model


def test_pinned_items_always_run() -> None:
    pinned = (0, 1, 4)
    found, _ = solve(probe_of(pico("llama")), sublayers(pinned=pinned), 2 * NUM_LAYERS, min_cosine=-1.0)
    assert not any(set(pinned) & candidate.skipped for candidate in found)
    assert max(candidate.weight for candidate in found) == 2 * NUM_LAYERS - len(pinned)
