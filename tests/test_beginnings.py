"""Common beginnings: what is known of a prompt is not read again, and no text changes by it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from pico import pico
from selfdraft import Engine
from selfdraft.engine.beginnings import MIN_WAIT, Segment, Segments, hashes_of
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


def test_segments_are_found_as_a_plain_search_finds_them() -> None:
    rng, segments, plain = random.Random(3), Segments(), []
    for _ in range(400):
        text = np.array([rng.randrange(2) for _ in range(5)] * 20)[: rng.randrange(16, 90)]
        text[rng.randrange(16, 90) :: 7] = rng.randrange(3)
        blocks = [_common(text, one.tokens) // 16 for one in plain]
        hashes = list(hashes_of(text))
        found, length = segments.longest(text, hashes)
        assert length // 16 == max(blocks, default=0)
        assert found is None or _common(text, found.tokens) == length
        segments.drop_beginnings_of(text, hashes)
        plain = [one for one in plain if _common(text, one.tokens) < len(one.tokens)]
        plain.append(Segment(text, (), len(text)))
        segments.add(plain[-1], hashes)
        if rng.random() < 0.3:
            segments.drop_oldest()
            del plain[0]
        assert segments.num_bytes == sum(one.num_bytes for one in plain)
    while plain:
        segments.drop(plain.pop())
    assert not {**segments._by_block, **segments._by_end, **segments._all}


def _common(one: Any, other: Any) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
