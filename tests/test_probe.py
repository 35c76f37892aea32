"""Probe: sub-networks on known tokens, beside the target's keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pico import NUM_LAYERS, VARIANTS, pico
from selfdraft import SkipSet
from selfdraft.models.decoder import Decoder
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu import graphs
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.models.placement import Placement
from selfdraft.models.probe import Probe
from selfdraft.passes import PassRequest, States
from selfdraft.strategies import matching
from selfdraft.strategies.knapsack import Item, solve
from selfdraft.strategies.matching import Matched, matched
from tape import TapeRecorder

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


# ------------------------------------------------------------------------------------------------ what is recorded

ITEMS = [Item((number,), 1 + number % 2, number < 2) for number in range(2 * NUM_LAYERS)]
BUDGET = sum(item.weight for item in ITEMS) // 2


def skips_of(texts: Sequence[str]) -> list[frozenset[int]]:
    return [SkipSet.parse(text).numbers for text in texts]


class Pair:
    """Probes of an eager and of a recorded runner at the same tokens of two texts, which are rows of one cache."""

    def __init__(self, variant: str, **options: Any) -> None:
        model, recorded = pico(variant), {"make_recorder": TapeRecorder, **options}
        self.runners = EagerRunner(model), GraphRunner(model, **recorded)
        self.texts = (TEXT, TEXT[::-1])
        self.caches = [runner.new_cache(2, len(TEXT)) for runner in self.runners]
        for runner, cache in zip(self.runners, self.caches, strict=True):
            runner.forward(PassRequest(self.texts, [0, 0], needs_scores=False), cache)

    def probes(self, first: int, end: int = len(TEXT), row: int = 0) -> list[Probe]:
        pairs = zip(self.runners, self.caches, strict=True)
        return [runner.probe(cache, self.texts[row][first:end], first, row) for runner, cache in pairs]

    @property
    def num_recorded(self) -> int:
        return self.runners[1].graphs.num_captures


PLACES = [(15, len(TEXT), 0), (15, len(TEXT), 0), (3, 14, 1), (20, 21, 0), (0, 9, 0)]
"""The last tokens twice; elsewhere in the other row; a single one; from the beginning on."""


def assert_same(found: Matched, expected: Matched) -> None:
    assert torch.equal(found.hits, expected.hits)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("variant", "num_slots"), [("llama", 256), ("gpt2", 256), ("gpt_neox", 32), ("gemma2", 32)])
def test_what_is_recorded_is_what_is_run(variant: str, num_slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One recording each, made when something is asked for again, sees other tokens, rows, positions and sets.

    With few slots, rows are not folded into one.
    """
    monkeypatch.setattr(graphs, "MIN_SLOTS", num_slots)
    pair = Pair(variant)
    for place, (first, end, row) in enumerate(PLACES):
        eager, recorded = pair.probes(first, end, row)
        (plans, states), (expected, streams) = (solve(probe, ITEMS, BUDGET) for probe in (recorded, eager))
        assert [(one.weight, one.skipped) for one in plans] == [(one.weight, one.skipped) for one in expected]
        assert [one.cosine for one in plans] == pytest.approx([one.cosine for one in expected], abs=1e-4)
        torch.testing.assert_close(states.hidden, streams.hidden, rtol=1e-3, atol=1e-3)
        skips, wanted = skips_of(["", *SKIPS[place % 2 :][:4]]), pair.texts[row][first:end]
        assert_same(*(matched(probe, skips, wanted) for probe in (recorded, eager)))
        assert pair.num_recorded == (0 if place == 0 else 2)
    assert {key.cache[0] for key in pair.runners[1].graph_keys} == {pair.caches[1].address}, "they go with the cache"


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["llama", "gpt_neox", "gemma2"])
def test_matched_is_what_single_passes_say(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best token and the log-probability of the wanted one, also where the head is read for a few sets at once."""
    pair, first, skips = Pair(variant), 15, skips_of(["", *SKIPS])
    decoder, cache = pair.runners[0].decoder, pair.caches[0]
    expected = []
    for position in range(first, len(TEXT)):
        token, place = torch.tensor([[TEXT[position]]]), Placement.chain([position], 1, decoder.device)
        sets = map(SkipSet.of_numbers, [*skips, frozenset()])  # the last one leaves the target's keys again
        expected += [decoder.forward(token, place, cache, skip=skip).scores[0, 0] for skip in sets]
    scores = torch.stack(expected).view(-1, len(skips) + 1, expected[0].shape[-1]).transpose(0, 1)[:-1]
    wanted = [one if place % 2 else 7 for place, one in enumerate(scores[0].argmax(-1).tolist())]
    hits = scores.argmax(-1) == torch.tensor(wanted)
    log_probs = scores.log_softmax(-1)[:, torch.arange(len(wanted)), wanted]
    assert 0 < hits.sum() < hits.numel()
    assert_same(matched(pair.probes(first)[0], skips, wanted), Matched(hits, log_probs))
    monkeypatch.setattr(matching, "MAX_BYTES", 2 * 4 * scores[0].numel())
    for _ in range(3):
        assert_same(matched(pair.probes(first)[1], skips, wanted), Matched(hits, log_probs))


def test_one_head_product_serves_all_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    honest = Probe.scores
    monkeypatch.setattr(
        Probe, "scores", lambda one, states: shapes.append(states.hidden.shape[:2]) or honest(one, states)
    )
    for probe in Pair("llama").probes(15):
        matched(probe, skips_of(SKIPS), TEXT[15:])
        matching.choices(probe, skips_of(SKIPS))
    assert shapes == [(len(SKIPS), 9)] * 4


def test_rows_that_skip_are_not_computed_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    honest = Probe.run
    monkeypatch.setattr(
        Probe, "run", lambda one, number, states: rows.append(len(states)) or honest(one, number, states)
    )
    matched(Pair("llama").probes(15)[0], skips_of(["a1,m1", "a1", ""]), TEXT[15:])
    assert rows == [3, 3, 1, 2, *[3] * (2 * NUM_LAYERS - 4)]


@pytest.mark.parametrize("work", ["solve", "matched"])
def test_a_replay_is_read_once(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, reads = Pair("llama"), []
    for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
        honest = getattr(torch.Tensor, name)

        def counted(tensor: torch.Tensor, *arguments: Any, name: str = name, honest: Any = honest) -> Any:
            reads.append(name)
            return honest(tensor, *arguments)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for _ in range(3):
        probe = pair.probes(15)[1]
        reads.clear()
        if work == "solve":
            solve(probe, ITEMS, BUDGET)
        else:
            matched(probe, skips_of(SKIPS), TEXT[15:])
    inputs = ["numpy"] if work == "matched" else []  # of the host
    assert reads == [*inputs, "tolist" if work == "solve" else "cpu"]


def test_what_cannot_be_recorded_is_run(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(TapeRecorder):
        def __call__(self, function: Any, reset: Any = None, is_warm: bool = False) -> Any:
            raise RuntimeError("not here")

    caplog.set_level("INFO")
    pair = Pair("llama", make_recorder=Refusing)
    for _ in range(3):
        eager, recorded = pair.probes(15)
        found, expected = (solve(probe, ITEMS, BUDGET)[0] for probe in (recorded, eager))
        assert [one.skipped for one in found] == [one.skipped for one in expected]
    assert [one.message for one in caplog.records if "without recordings" in one.message] == [
        "LlamaForCausalLM is probed without recordings: RuntimeError: not here"
    ]
    assert pair.runners[1].fallback_reason is None, "passes may be recorded all the same"
