"""Probe: sub-networks on known tokens, beside the target's keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pico import VARIANTS, pico
from selfdraft import SkipSet
from selfdraft.models.decoder import Decoder
from selfdraft.models.placement import Placement
from selfdraft.models.probe import Probe
from selfdraft.passes import States

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]
SKIPS = ["a1", "m1", "a2,m2", "a1-3,m2-3", "a3,m1"]


def target(decoder: Decoder) -> tuple[object, torch.Tensor]:
    """A cache that holds the text, and the target's scores."""
    cache = decoder.new_cache(1, len(TEXT))
    placement = Placement.chain([0], len(TEXT), decoder.device)
    return cache, decoder.forward(torch.tensor([TEXT]), placement, cache).scores


def run(probe: Probe, skips: Sequence[SkipSet]) -> torch.Tensor:
    """Each set as a row of its own from the first sub-layer on; rows that skip one are left out of it."""
    states = States.join([probe.begin()] * len(skips))
    for number in range(probe.num_sublayers):
        parts = [
            (probe.skip if number in skip.numbers else probe.run)(number, states.pick([row]))
            for row, skip in enumerate(skips)
        ]
        states = States.join(parts)
    return probe.scores(states)


@torch.inference_mode()
@pytest.mark.parametrize(("variant", "num_tokens"), [*((name, 4) for name in VARIANTS), ("qwen3", 1), ("olmo2", 1)])
def test_rows_may_be_one_behind_a_long_text(variant: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded into one row or not, the sub-networks are the same."""
    decoder = Decoder(pico(variant))
    cache, _ = target(decoder)
    folded: list[int] = []
    honest = Probe._folded_step
    monkeypatch.setattr(Probe, "_folded_step", lambda probe, rows: folded.append(rows) or honest(probe, rows))
    first = len(TEXT) - num_tokens
    together, apart = (Probe(decoder, cache, TEXT[first:], first) for _ in range(2))
    apart._end_to_fold = 0
    found = []
    for probe in (together, apart):
        states = States.join([probe.begin(), probe.skip(0, probe.begin()), probe.begin()])
        for number in range(probe.num_sublayers):
            states = probe.run(number, states)
        found.append(probe.scores(states))
    assert set(folded) == {3}
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_probed_token_is_a_drafted_one(variant: str) -> None:
    """After the target's own text, token by token: what a draft of one token with that skip set computes."""
    decoder = Decoder(pico(variant))
    cache, scores = target(decoder)
    before = [store.clone() for store in cache.stores]
    first, sets = 15, [SkipSet(), *map(SkipSet.parse, SKIPS)]
    found = run(Probe(decoder, cache, TEXT[first:], first), sets)
    assert all(torch.equal(old, new) for old, new in zip(before, cache.stores, strict=True)), "it only reads"
    torch.testing.assert_close(found[:1], scores[:, first:], rtol=1e-4, atol=1e-4)
    for position in range(first, len(TEXT), 4):
        placement, token = Placement.chain([position], 1, decoder.device), torch.tensor([[TEXT[position]]])
        for row, skip in enumerate(sets):
            drafted = decoder.forward(token, placement, cache, skip=skip).scores[0, 0]
            torch.testing.assert_close(found[row, position - first], drafted, rtol=1e-4, atol=1e-4)
            decoder.forward(token, placement, cache)


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["llama", "gpt_neox"])
def test_rows_may_begin_anywhere(variant: str) -> None:
    """A sweep: one row runs everything, and after each sub-layer a row is added that skips just that one."""
    decoder = Decoder(pico(variant))
    cache, _ = target(decoder)
    probe = Probe(decoder, cache, TEXT[4:], 4)
    states = probe.begin()
    for number in range(probe.num_sublayers):
        states = States.join([probe.run(number, states), probe.skip(number, states.pick([0]))])
    sets = [SkipSet(), *(SkipSet.of_numbers([number]) for number in range(probe.num_sublayers))]
    torch.testing.assert_close(probe.scores(states), run(probe, sets), rtol=1e-4, atol=1e-4)
