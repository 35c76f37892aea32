"""Common beginnings: what is known of a prompt is not read again, and no text changes by it."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pico import pico
from selfdraft import Engine
from selfdraft.engine.beginnings import MIN_WAIT, Beginnings, Segments
from selfdraft.engine.state import TextSequence
from selfdraft.models.cache import LayerShape, SlotCache
from selfdraft.models.eager import EagerRunner
from selfdraft.passes import PassOutput, PassRequest
from test_graphs import new_engine

LONG = [5 + (7 * place) % 90 for place in range(100)]


def engine_of(kind: str, **options: Any) -> Engine:
    return new_engine(pico("llama"), **options) if kind == "recorded" else Engine(pico(kind), **options)


@contextmanager
def reading(engine: Engine) -> Iterator[list[int]]:
    """The tokens of each pass that reads prompts."""
    runner, counts = engine.runner, []
    forward = runner.forward

    def watched(request: PassRequest, cache: Any) -> PassOutput:
        if not request.needs_scores:
            counts.append(sum(map(len, request.tokens)))
        return forward(request, cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "forward", watched)
        yield counts


@pytest.mark.parametrize("kind", ["llama", "gpt2", "recorded"])
def test_three_turns_of_a_chat_read_the_new_part_only(kind: str) -> None:
    engine, whole = engine_of(kind), engine_of(kind, prefix_cache=False)
    text, known = list(LONG), 0
    for turn in range(3):
        with reading(engine) as counts:
            found = engine.generate(text, max_new_tokens=12)
        assert sum(counts) == len(text) - 1 - known
        assert found.stats.cached_prompt_tokens == known
        assert found.tokens == whole.generate(text, max_new_tokens=12).tokens
        text += found.tokens
        known = len(text) - 1  # the last token has not gone through the model
        text += [9 + turn, 11, 60, 33]


@pytest.mark.parametrize("options", [{}, {"strategy": "uniform", "tree": "siblings"}, {"temperature": 0.9, "seed": 3}])
def test_the_same_prompt_again_reads_nothing(options: dict[str, Any]) -> None:
    engine = engine_of("llama")
    first = engine.generate(LONG, **options, max_new_tokens=20)
    with reading(engine) as counts:
        again = engine.generate(LONG, **options, max_new_tokens=20)
    assert (counts, again.tokens) == ([], first.tokens)
    assert (first.stats.cached_prompt_tokens, again.stats.cached_prompt_tokens) == (0, len(LONG) - 1)


def test_texts_that_join_together_wait_for_their_common_beginning() -> None:
    engine, prompts = engine_of("llama"), [[*LONG, 5 + place, 6] for place in range(5)]
    with reading(engine) as counts:
        found = engine.generate(prompts, max_new_tokens=8)
    assert sum(counts) == len(LONG) + 1 + 4  # the last token of each is none of them
    alone = engine_of("llama", prefix_cache=False)
    assert [one.tokens for one in found] == [one.tokens for one in alone.generate(prompts, max_new_tokens=8)]


def test_nobody_waits_for_a_short_one() -> None:
    engine, prompts = engine_of("llama"), [[*LONG[: MIN_WAIT - 2], 5 + place, 6, 7] for place in range(4)]
    with reading(engine) as counts:
        engine.generate(prompts, max_new_tokens=2)
    assert counts == [4 * (MIN_WAIT)]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_nobody_waits_for_another_prompt(prefix_cache: bool) -> None:
    engine = engine_of("llama", prefix_cache=prefix_cache)
    with reading(engine) as counts:
        engine.generate([[5 + place, *LONG] for place in range(4)], max_new_tokens=2)
    assert counts == [4 * len(LONG)]


def test_a_text_takes_what_one_beside_it_has() -> None:
    engine = engine_of("llama")
    with engine.session() as session, reading(engine) as counts:
        session.add(LONG, max_new_tokens=30)
        session.step()
        session.add([*LONG, 17, 18], max_new_tokens=5)
        session.step()
    assert counts == [len(LONG) - 1, 1]  # its last token has gone through the model, and the other's has not


@pytest.mark.parametrize("kind", ["llama", "recorded"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_texts_of_one_prompt_share_one_reading(kind: str, prefix_cache: bool) -> None:
    engine, options = engine_of(kind, prefix_cache=prefix_cache), {"temperature": 1.0, "max_new_tokens": 10, "seed": 4}
    with reading(engine) as counts:
        found = engine.generate(LONG[:20], n=4, **options)
    assert counts == [19]
    alone = [engine.generate(LONG[:20], sequence=place, **options).tokens for place in range(4)]
    assert [one.tokens for one in found] == alone
    assert len(set(alone)) > 1
    assert [one.stats.cached_prompt_tokens for one in found] == [0, 19, 19, 19]


def test_several_of_several_prompts_come_one_prompt_after_the_other() -> None:
    engine, options = engine_of("llama"), {"temperature": 1.0, "max_new_tokens": 6}
    found = engine.generate([LONG[:9], LONG[3:8]], n=2, sequence=5, **options)
    alone = [
        engine.generate(prompt, sequence=5 + place, **options).tokens
        for place, prompt in enumerate((LONG[:9], LONG[:9], LONG[3:8], LONG[3:8]))
    ]
    assert [one.tokens for one in found] == alone


def test_a_strategy_that_needs_states_of_the_prompt_reads_all_of_it() -> None:
    engine = engine_of("llama")
    engine.generate(LONG, max_new_tokens=2)
    found = engine.generate(LONG, max_new_tokens=6, strategy="asd")
    assert found.stats.cached_prompt_tokens == 0
    assert found.tokens == engine.generate(LONG, max_new_tokens=6, strategy="off").tokens


def test_other_weights_have_other_keys() -> None:
    engine = Engine(copy.deepcopy(pico("llama")))
    engine.generate(LONG, max_new_tokens=4)
    with torch.no_grad():
        next(iter(engine.model.model.layers[0].parameters())).mul_(1.5)
    found = engine.generate(LONG, max_new_tokens=12)
    assert found.stats.cached_prompt_tokens == 0
    assert found.tokens == Engine(engine.model, prefix_cache=False).generate(LONG, max_new_tokens=12).tokens


def test_hooks_may_do_anything_so_nothing_is_kept() -> None:
    engine = Engine(copy.deepcopy(pico("llama")))
    handle = engine.model.model.layers[0].register_forward_hook(lambda *_: None)
    engine.generate(LONG, max_new_tokens=4)
    assert engine.generate(LONG, max_new_tokens=4).stats.cached_prompt_tokens == 0
    handle.remove()
    engine.generate(LONG, max_new_tokens=4)
    assert engine.generate(LONG, max_new_tokens=4).stats.cached_prompt_tokens == len(LONG) - 1


def test_forks_know_nothing_and_forget_forgets() -> None:
    engine = engine_of("llama")
    engine.generate(LONG, max_new_tokens=4)
    assert engine.fork().generate(LONG, max_new_tokens=4).stats.cached_prompt_tokens == 0
    engine.forget()
    assert engine.generate(LONG, max_new_tokens=4).stats.cached_prompt_tokens == 0
    silent = engine.fork(prefix_cache=False)
    silent.generate(LONG, max_new_tokens=4)
    assert silent.generate(LONG, max_new_tokens=4).stats.cached_prompt_tokens == 0


def test_what_was_used_last_stays() -> None:
    runner = EagerRunner(pico("llama"))
    engine = Engine(pico("llama"), prefix_cache=runner.slot_bytes * 250)
    prompts = [[number, *LONG] for number in (5, 6, 7)]

    def known(prompt: list[int]) -> bool:
        return engine.generate(prompt, max_new_tokens=2).stats.cached_prompt_tokens > 0

    assert [known(prompt) for prompt in (prompts[0], prompts[1], prompts[0])] == [False, False, True]
    assert not known(prompts[2])  # which drops the second
    assert [known(prompts[0]), known(prompts[1])] == [True, False]


def test_what_texts_begin_with_is_stored_once() -> None:
    engine = Engine(pico("llama", max_position_embeddings=1024))
    prompts = [[*LONG * 5, *LONG[:12], 5 + place, *LONG[place : place + 61]] for place in range(10)]
    found = [engine.generate(prompt, max_new_tokens=3) for prompt in prompts]
    store, slot_bytes = engine._beginnings, engine.runner.slot_bytes
    assert [one.stats.cached_prompt_tokens for one in found] == [0, *[512] * 9]
    assert store.num_bytes == stored_bytes(store) == (512 + 10 * 64) * slot_bytes
    assert [engine.generate(one, max_new_tokens=3).tokens for one in prompts] == [one.tokens for one in found]
    assert store.num_bytes == (512 + 10 * 64) * slot_bytes
    engine.generate([*prompts[3], *found[3].tokens, 7, 8], max_new_tokens=2)
    assert store.num_bytes == (512 + 10 * 64 + 4) * slot_bytes, "the next turn adds what is new"


class Texts:
    """A store, and a cache of which each slot tells the tokens up to it."""

    def __init__(self, max_slots: int) -> None:
        runner = EagerRunner(pico("llama"))
        self.store = Beginnings(runner, max_slots * runner.slot_bytes)
        self.store.refresh()
        shape = [LayerShape(1, 1, 1)] * 2
        self.cache = SlotCache(shape, 3, 128, dtype=torch.float64, device=torch.device("cpu"), shared_block=8)

    def end(self, text: list[int]) -> None:
        known = self.begin(text, row=0)
        self.cache.storage[:, :, 0, 0, known : len(text), 0] = marks(text)[known:]
        self.store.keep(self.cache, TextSequence(0, [*text, 1], 1, row=0))

    def begin(self, text: list[int], row: int = 1) -> int:
        """How many tokens are known."""
        sequence = TextSequence(0, [*text, 1], 1, row=row)
        self.cache.free_rows([row])
        self.cache.storage[:, :, row] = -1.0
        self.store.fill(self.cache, [sequence], [])
        return sequence.num_known

    def row(self, row: int, length: int) -> torch.Tensor:
        return self.cache.beginning(row, length)[0][0, 1, 0, :, 0]


def marks(text: list[int]) -> torch.Tensor:
    return torch.tensor([hash(tuple(text[: place + 1])) % (1 << 50) for place in range(len(text))], dtype=torch.float64)


def stored_bytes(store: Beginnings) -> int:
    parts = [part.untyped_storage() for one in store._segments._all for part in one.parts]
    return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


@pytest.mark.parametrize("max_slots", [100, 400, 100_000])
def test_what_is_known_is_what_a_plain_search_finds(max_slots: int) -> None:
    """Texts that branch anywhere: none is lost but for room, and nothing is there twice."""
    rng, texts, ended = random.Random(max_slots), Texts(max_slots), []
    for _ in range(300):
        old = rng.choice(ended) if ended and rng.random() < 0.8 else []
        start = len(old) if rng.random() < 0.4 else rng.randrange(len(old) + 1)
        text = [*old[:start], *(rng.randrange(3) for _ in range(rng.randrange(40)))][:100]
        known, plain = texts.begin(text), max((_common(text, one) for one in ended), default=0)
        assert torch.equal(texts.row(1, known), marks(text)[:known])
        assert known <= plain
        assert known == plain or plain < 16 or max_slots < 1000
        texts.end(text)
        ended += [text] * (len(text) >= 16)
        assert texts.begin(text) == len(text) or len(text) < 16
        assert texts.store.num_bytes <= max_slots * texts.store._runner.slot_bytes
        check(texts.store._segments)
    if max_slots > 1000:
        beginnings = {tuple(text[: place + 1]) for text in ended for place in range(len(text))}
        assert texts.store._segments.num_slots == sum(
            1 if len(one) > 16 else 16 for one in beginnings if len(one) >= 16
        )
    while texts.store._segments._all:
        texts.store._segments.drop_oldest()
        check(texts.store._segments)
    assert texts.store.num_bytes == 0


def check(segments: Segments) -> None:
    """It is one tree, of dense tensors that hold no others."""
    reached = [segments._root]
    for one in reached:
        reached += one.after.values()
        for key, after in one.after.items():
            assert segments._all[after] is one
            assert (after.start, one.key(after.tokens)) == (one.end, key)
            for part in after.parts:
                assert part.is_contiguous()
                assert part.shape[-2] == len(after.tokens)
                assert part.untyped_storage().nbytes() == part.nbytes
    assert set(reached[1:]) == set(segments._all)
    assert segments.num_slots == sum(len(one.tokens) for one in segments._all)


def test_a_chat_is_one_segment_again_when_its_branches_are_gone() -> None:
    texts = Texts(120)
    for end in (40, 60, 80):
        texts.end(LONG[:end])
        assert texts.begin(LONG[:end]) == end
        assert texts.cache.segments[1].length == end // 8 * 8, "a row refers to all of it"
    texts.end([*LONG[:50], *[7] * 20])
    assert [len(one.tokens) for one in texts.store._segments._all] == [50, 30, 20]
    texts.end([8] * 30)  # which drops the oldest end
    texts.end([*LONG[:50], *[7] * 20, 9])
    assert sorted(len(one.tokens) for one in texts.store._segments._all) == [30, 71]


def test_the_end_that_was_used_longest_ago_goes_first() -> None:
    texts, own = Texts(100), [[*LONG[:40], *[90 + place] * 20] for place in range(4)]
    for text in own[:3]:
        texts.end(text)
    texts.begin(own[0])
    texts.end(own[3])
    assert [texts.begin(text) for text in own] == [60, 40, 60, 60]
    texts.end([3] * 90)
    assert [texts.begin(text) for text in own] == [0] * 4


def test_a_row_keeps_what_it_refers_to() -> None:
    texts = Texts(200)
    texts.end(LONG[:60])
    assert [texts.begin(LONG[:60], row) for row in (1, 2)] == [60, 60]
    texts.end([*LONG[:30], *[7] * 9])
    assert torch.equal(texts.row(1, 60), marks(LONG[:60])), "it was split"
    texts.store.clear()
    assert torch.equal(texts.row(2, 60), marks(LONG[:60]))


def test_rows_of_one_text_refer_to_one_copy_also_where_it_has_branched() -> None:
    texts, text = Texts(500), [*LONG[:20], *[7] * 60]
    texts.end(LONG[:50])
    texts.end(text)
    rows = [TextSequence(row, [*text, 1], 1, row=row, request=row) for row in range(3)]
    for row, sequence in enumerate(rows):
        texts.cache.free_rows([row])
        texts.store.fill(texts.cache, [sequence], rows[:row])
    assert len({one.part.data_ptr() for one in texts.cache.segments.values()}) == 1
    assert [texts.cache.segments[row].length for row in range(3)] == [80] * 3
    assert all(torch.equal(texts.row(row, 80), marks(text)) for row in range(3))


def test_what_is_cleared_frees_its_memory_at_once() -> None:
    texts = Texts(500)
    for end in (20, 30, 40):
        texts.end([*LONG[:end], *[7] * 20])
    texts.cache.resize(1, 64, is_empty=True)
    alive = [weakref.ref(part) for one in texts.store._segments._all for part in one.parts]
    gc.disable()
    try:
        texts.store.clear()
        assert not any(one() is not None for one in alive)
    finally:
        gc.enable()


def _common(one: Any, other: Any) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
