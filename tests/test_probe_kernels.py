"""Kernels of probes: attention against float64, choices against torch. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from heads import FEATURES, heads_of, prepared, scored
from needs_triton import DEVICE, HAS_GPU
from selfdraft.kernels.closest import closest
from selfdraft.kernels.features import Heads
from selfdraft.kernels.known import attend_known
from selfdraft.passes import States
from selfdraft.strategies import knapsack
from test_knapsack import MIN_COSINE, RandomNetwork, literal

DTYPE, TOLERANCE = (torch.bfloat16, 1e-2) if HAS_GPU else (torch.float32, 1e-5)
SHAPES = {
    "grouped": heads_of(6, 2, 32, 32**-0.5),
    "single": heads_of(2, 2, 64, 0.3),
    "window": heads_of(4, 2, 32, 0.25, window=9),
    "wide window": heads_of(2, 1, 32, 0.25, window=70),
    **FEATURES,
}
CACHE_ROWS, ROW, NUM_SLOTS = 3, 1, 192


def expected(qkv: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int, heads: Heads) -> torch.Tensor:
    """Of one row of tokens: the slots before each, its own key and value after them."""
    sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    query, key, value = qkv.double().unflatten(-1, (-1, heads.dim)).split(sizes, 1)
    positions, slots = first + torch.arange(len(qkv), device=DEVICE), torch.arange(keys.shape[1], device=DEVICE)
    query, key = prepared(query, heads, heads.query_norm, positions), prepared(key, heads, heads.key_norm, positions)
    group = heads.num_heads // heads.num_kv_heads
    known, mixed = (part.double().repeat_interleave(group, 0) for part in (keys, values))
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    ages = positions[:, None] - slots
    is_seen = (ages > 0) & (ages < (heads.window or NUM_SLOTS + 1))
    scores = scored(torch.einsum("thd,hsd->hts", query, known), heads).masked_fill(~is_seen, -torch.inf)
    own = scored((query * key).sum(-1), heads).transpose(0, 1)[..., None]
    probs = torch.cat((scores, own), -1).softmax(-1)
    return torch.einsum("hts,hsd->thd", probs[..., :-1], mixed) + probs[..., -1].transpose(0, 1)[..., None] * value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("num_rows", "width", "first"), [(3, 9, 0), (1, 5, 130), (2, 33, 60)])
def test_a_token_sees_what_is_known_before_it_and_itself(shape: str, num_rows: int, width: int, first: int) -> None:
    """From the first token of a text on; several rows, whose tokens share programs, do not see each other."""
    heads, generator = SHAPES[shape], torch.Generator().manual_seed(7)
    stores = torch.randn(2, CACHE_ROWS, heads.num_kv_heads, NUM_SLOTS, heads.dim, generator=generator)
    stores[..., first + width :, :] = torch.nan  # not there yet
    keys, values = stores.to(DEVICE, DTYPE)
    size = (heads.num_heads + 2 * heads.num_kv_heads) * heads.dim
    qkv = torch.randn(num_rows, width, size, generator=generator).to(DEVICE, DTYPE)
    place = torch.tensor([ROW, first], device=DEVICE)
    found = attend_known(qkv.flatten(0, 1), place, keys, values, width, NUM_SLOTS, heads)
    found = found.view(num_rows, width, heads.num_heads, heads.dim)
    for row in range(num_rows):
        known = (part[ROW, :, : first + width] for part in (keys, values))
        truth = expected(qkv[row], *known, first, heads)
        assert float((found[row].double() - truth).norm() / truth.norm()) < TOLERANCE


def test_tokens_that_pad_may_stand_after_the_last_slot() -> None:
    heads = SHAPES["grouped"]
    keys, values = torch.randn(2, 1, 2, 64, heads.dim).to(DEVICE, DTYPE)
    qkv = torch.randn(16, 10 * heads.dim).to(DEVICE, DTYPE)
    found = attend_known(qkv, torch.tensor([0, 60], device=DEVICE), keys, values, 16, 64, heads)
    truth = expected(qkv[:4], keys[0], values[0], 60, heads).flatten(1)
    assert float((found[:4].double() - truth).norm() / truth.norm()) < TOLERANCE
    assert found.isfinite().all()


@pytest.mark.parametrize(("before", "after", "weight"), [(1, 8, 3), (8, 8, 1), (8, 16, 3), (9, 9, 4), (1, 1, None)])
def test_the_closest_streams_are_those_that_torch_finds(before, after, weight, monkeypatch) -> None:
    """Of equals the one that ran; some are too far away, some were not there before. Without a weight it is pinned."""
    monkeypatch.setattr(knapsack, "runs_triton", lambda device: False)
    generator = torch.Generator().manual_seed(before + after)
    run, skipped = torch.randn(2, before, 5, 48, generator=generator) + 2 * torch.randn(5, 48, generator=generator)
    skipped[1::3] = run[:-1][: len(skipped[1::3])] if before > 1 else skipped[1::3]
    run[1::4] = run[:1]
    if weight is not None and before > weight:
        run[weight] = skipped[0]  # equals
    known = torch.rand(before, generator=generator)
    known[2::5] = -torch.inf
    shares = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0])
    run, skipped, known, shares = (one.to(DEVICE) for one in (run, skipped, known, shares))
    others = None if weight is None else skipped
    for min_cosine in (-1.0, 0.8):
        truth = knapsack.Choice(shares, min_cosine)(
            States(run), None if others is None else States(others), known, after, weight or 1
        )
        found = closest(run, others, known, shares, after, weight or 1, min_cosine)
        torch.testing.assert_close(found[0], truth[0].hidden, rtol=0, atol=0)
        torch.testing.assert_close(found[1], truth[1])
        assert torch.equal(found[2], truth[2])


@pytest.mark.parametrize("weights", [(1, 1), (5, 1), (3, 4), (2, 5)])
def test_random_networks_are_solved_by_kernels_as_written(weights: tuple[int, int], monkeypatch) -> None:
    """As test_knapsack has it, on the device's own path."""
    monkeypatch.setattr(knapsack, "runs_triton", lambda device: True)
    network = RandomNetwork(num_sublayers=8)
    for name in ("embedded", "branches", "is_token"):
        setattr(network, name, getattr(network, name).to(DEVICE))
    items = [knapsack.Item((number,), weights[number % 2], number < 2) for number in range(network.num_sublayers)]
    budget = sum(item.weight for item in items) // 2
    for seed in range(2):
        network.redraw(seed)
        plain = network.unpadded
        expected = literal(plain, items, budget, MIN_COSINE)
        found, _ = knapsack.solve(plain, items, budget, MIN_COSINE)
        assert {one.weight: one.skipped for one in found} == {key: one[0] for key, one in expected.items()}
        assert [one.cosine for one in found] == pytest.approx([expected[one.weight][1] for one in found], abs=1e-5)
