"""The dynamic programme of CLaSp and KnapSpec."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch

from pico import NUM_LAYERS, pico
from selfdraft.models.decoder import Decoder
from selfdraft.models.gpu.graphs import Graphs
from selfdraft.models.placement import Placement
from selfdraft.models.probe import Probe
from selfdraft.passes import States
from selfdraft.strategies.knapsack import Item, solve
from tape import TapeRecorder

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
MIN_COSINE = 0.85
"""Some sub-networks of random numbers are further from the target."""


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


class RandomNetwork(Probe):
    """Residual branches of random numbers. `redraw` makes it another one in the same tensors, as a replay needs it."""

    def __init__(self, num_sublayers: int = 10, num_tokens: int = 3, num_padding: int = 2, size: int = 8) -> None:
        self.num_sublayers, self.num_tokens, self.size = num_sublayers, num_tokens, size
        self.vocab_size = 0
        self.embedded = torch.empty(1, num_tokens + num_padding, size)
        self.branches = torch.empty(num_sublayers, size, size)
        self.is_token = torch.arange(num_tokens + num_padding) < num_tokens
        self.graphs = Graphs(TapeRecorder())

    def redraw(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for tensor, scale in ((self.embedded, 1.0), (self.branches, 2.0 * self.size**-0.5)):
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))

    def begin(self) -> States:
        return States(self.embedded)

    def run(self, number: int, states: States) -> States:
        return States(states.hidden + torch.tanh(states.hidden @ self.branches[number]))

    def skip(self, number: int, states: States) -> States:
        return states

    def record(self, work: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        recording, results = self.graphs.get(work, lambda record: record(lambda: work(self, *inputs)))
        recording.replay()
        return results

    @property
    def unpadded(self) -> RandomNetwork:
        """The same network, not recorded."""
        twin = copy.copy(self)
        twin.embedded, twin.is_token = self.embedded[:, : self.num_tokens], self.is_token[: self.num_tokens]
        twin.record = lambda work, *inputs: work(twin, *inputs)  # type: ignore[method-assign]
        return twin


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (1, 4), (3, 4), (2, 5)])
def test_random_networks_are_solved_as_written(weights: tuple[int, int]) -> None:
    """Run by themselves and recorded, 5 of each weights: what is recorded sees another network and replays."""
    network = RandomNetwork()
    items = [Item((number,), weights[number % 2], number < 2) for number in range(network.num_sublayers)]
    budget, num_dropped = sum(item.weight for item in items) // 2, 0
    for seed in range(5):
        network.redraw(seed)
        plain = network.unpadded
        expected = literal(plain, items, budget, MIN_COSINE)
        num_dropped += len(solve(plain, items, budget, -1.0)[0]) - len(expected)
        for probe in (plain, network):
            found, states = solve(probe, items, budget, MIN_COSINE)
            assert {one.weight: one.skipped for one in found} == {key: one[0] for key, one in expected.items()}
            assert [one.cosine for one in found] == pytest.approx([expected[one.weight][1] for one in found], abs=1e-5)
        for one, stream in zip(found, states.hidden, strict=True):
            alone = plain.begin()
            for number in sorted(set(range(network.num_sublayers)) - one.skipped):
                alone = plain.run(number, alone)
            torch.testing.assert_close(stream, alone.hidden[0])
    assert num_dropped, "some were too far from the target"
    assert network.graphs.num_captures == 1


def test_of_equals_the_one_that_runs_the_item() -> None:
    """Two sub-layers that do nothing: skipping either leaves the same stream, so the first one goes."""
    network = RandomNetwork(num_sublayers=4)
    network.redraw(1)
    network.branches[1:3] = 0
    for probe in (network.unpadded, network):
        found, _ = solve(probe, [Item((number,)) for number in range(4)], 2, min_cosine=-1.0)
        assert [one.skipped for one in found] == [set(), {1}, {1, 2}]


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
