"""Room: rows are counted before texts are let in, those that do not fit wait, and nothing grows over many requests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pico import pico
from selfdraft import Engine, OptionError
from selfdraft.drafters.model import Model
from selfdraft.engine import room as room_module
from selfdraft.engine.method import Cohort
from selfdraft.engine.room import Room
from selfdraft.engine.session import Session
from selfdraft.models import free_memory
from selfdraft.models.cache import SlotCache
from selfdraft.types import Generation

METHODS: tuple[dict[str, Any], ...] = (
    *[{"strategy": "off"}] * 6,
    {"strategy": "uniform", "tree": "siblings"},
    {"strategy": "uniform", "drafter": "lookup", "lookahead": "heuristic"},
    {"strategy": "asd"},
)


def run(session: Session) -> tuple[dict[int, Generation], list[int]]:
    """What comes of all texts, and the cache's bytes after each round."""
    found, sizes = {}, []
    while session.num_open:
        for event in session.step():
            if event.generation is not None:
                found[event.id] = event.generation
        cache = session._rows._room.cache
        sizes.append(0 if cache is None else cache.num_bytes)
    return found, sizes


def slots(engine: Engine, count: int) -> int:
    """Bytes of that many slots."""
    return engine.runner.slot_bytes * count


def test_a_long_text_among_short_ones_waits_until_it_fits() -> None:
    engine = Engine(pico("llama"))
    limit = slots(engine, 4 * 128)
    lengths = [10, 10, 10, 10, 200, 10, 10]
    with engine.session(max_rows=8, cache_bytes=limit) as session:
        numbers = [session.add([5 + place, 6], max_new_tokens=size) for place, size in enumerate(lengths)]
        found, sizes = run(session)
    assert max(sizes) <= limit
    for place, (number, size) in enumerate(zip(numbers, lengths, strict=True)):
        assert found[number].tokens == engine.generate([5 + place, 6], max_new_tokens=size).tokens


def test_after_a_long_text_there_are_many_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, most = Engine(pico("llama")), []
    limit = slots(engine, 4 * 128)
    with engine.session(max_rows=8, cache_bytes=limit) as session:
        for place, size in enumerate([200, *[10] * 16]):
            session.add([5 + place, 6], max_new_tokens=size)
        while session.num_open:
            session.step()
            most.append(len(session._rows._live))
    assert most[0] == 1
    assert max(most) >= 4


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = Engine(pico("llama"))
    with engine.session(cache_bytes=slots(engine, 128)) as session:
        with pytest.raises(OptionError, match=r"3 tokens with max_new_tokens=253 needs .* GiB .* cache_bytes allows"):
            session.add([5, 6, 7], max_new_tokens=500)
        session.add([5, 6, 7], max_new_tokens=20)
        assert len(run(session)[0]) == 1


def test_without_free_memory_a_call_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"), prefix_cache=False)
    monkeypatch.setattr(type(engine.runner), "free_bytes", 1000)
    with pytest.raises(OptionError, match=r"memory that is free allows 4.66e-07 GiB; lower max_new_tokens"):
        engine.generate([5, 6, 7], max_new_tokens=5)


SMALL = pico("llama", num_hidden_layers=2)
DRAFTING: dict[str, Any] = {"drafter": "model", "strategy": "uniform", "settings": {"model": {"source": SMALL}}}


def with_draft_model(engine: Engine) -> tuple[Model, int]:
    """And what a slot of a row takes in both caches."""
    drafter = engine.method(**DRAFTING).drafters["model"]
    assert drafter.slot_bytes * pico("llama").config.num_hidden_layers == engine.runner.slot_bytes * 2
    return drafter, drafter.slot_bytes + engine.runner.slot_bytes


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_caches_of_a_draft_model_are_counted(prefix_cache: bool) -> None:
    """Texts that are drafted by one wait for its rows, too; those that are not need none."""
    engine = Engine(pico("llama"), prefix_cache=prefix_cache)
    drafter, both = with_draft_model(engine)
    limit, lengths, most, live = 3 * 128 * both, [10, 40, 10, 9, 120, 10, 10, 30], [], []
    with engine.session(max_rows=8, cache_bytes=limit) as session:
        session._rows._room._first_rows = 1
        asked = {session.add([5 + one, 6], max_new_tokens=size, **DRAFTING): one for one, size in enumerate(lengths)}
        found = {}
        while session.num_open:
            found |= {event.id: event.generation for event in session.step() if event.generation}
            live.append(len(session._rows._live))
            texts = {text.sequence.sequence_id for text in session._rows._live}
            cache = session._rows._room.cache
            most.append((cache.num_bytes if cache else 0) + drafter.held_bytes(texts))
    assert max(most) <= limit
    assert max(live) == 3
    assert not drafter.held_bytes(asked)
    for number, place in asked.items():
        alone = engine.generate([5 + place, 6], max_new_tokens=lengths[place], strategy="off")
        assert found[number].tokens == alone.tokens
        assert found[number].stats.num_draft_steps
    with engine.session(max_rows=8, cache_bytes=limit) as session:
        for place in range(8):
            session.add([5 + place, 6], max_new_tokens=20, **({} if place else DRAFTING))
        session.step()
        assert len(session._rows._live) == 3 * both // engine.runner.slot_bytes - 1


def test_who_can_never_be_drafted_by_a_model_is_told_what_that_takes() -> None:
    engine = Engine(pico("llama"))
    _, both = with_draft_model(engine)
    with engine.session(cache_bytes=128 * both - 1) as session:
        with pytest.raises(OptionError, match=r"GiB of cache \(.* GiB of it for the draft model\), and cache_bytes"):
            session.add([5, 6, 7], max_new_tokens=20, **DRAFTING)
        session.add([5, 6, 7], max_new_tokens=20)
        session.add([5, 6, 7], max_new_tokens=20, strategy="off")
        assert len(run(session)[0]) == 2


def test_what_a_draft_model_holds_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is less by what it has; the texts that it drafts may keep that."""
    engine = Engine(pico("llama"), prefix_cache=False)
    drafter, _ = with_draft_model(engine)
    with engine.session(max_rows=8) as session:
        session._rows._room._first_rows = 1
        for place in range(4):
            session.add([5 + place, 6], max_new_tokens=40, **DRAFTING)
        session.step()
        texts = {text.sequence.sequence_id for text in session._rows._live}
        assert drafter.held_bytes(texts) == 4 * 128 * drafter.slot_bytes
        monkeypatch.setattr(type(engine.runner), "free_bytes", 12 * slots(engine, 128))
        session.add([9, 6], max_new_tokens=40, **DRAFTING)
        session.step()
        assert len(session._rows._live) == 5


@pytest.mark.parametrize(("name", "value"), [("max_rows", 0), ("cache_bytes", 0), ("max_rows", 1.5)])
def test_limits_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name):
        Engine(pico("llama")).session(**{name: value})


def test_any_number_of_prompts_goes_through_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sizes = Engine(pico("llama")), []
    place = SlotCache._place

    def watched(cache: SlotCache, num_rows: int, *more: Any) -> None:
        sizes.append(num_rows)
        place(cache, num_rows, *more)

    monkeypatch.setattr(SlotCache, "_place", watched)
    monkeypatch.setattr(room_module, "MAX_ROWS", 16)
    prompts = [[5 + number % 90, 6 + number // 90] for number in range(200)]
    found = engine.generate(prompts, max_new_tokens=3)
    assert max(sizes) == 16
    assert len(found) == 200
    for number in (0, 17, 150, 199):
        assert found[number].tokens == engine.generate(prompts[number], max_new_tokens=3).tokens


def test_rows_are_added_when_more_texts_come() -> None:
    engine = Engine(pico("llama"))
    with engine.session(max_rows=64) as session:
        session._rows._room._first_rows = 2
        numbers = [session.add([5, 6], max_new_tokens=40, repetition_penalty=1.2)]
        session.step()
        numbers += [session.add([5 + place, 6], max_new_tokens=9) for place in range(9)]
        found, _ = run(session)
    assert found[numbers[0]].tokens == engine.generate([5, 6], max_new_tokens=40, repetition_penalty=1.2).tokens
    assert found[numbers[5]].tokens == engine.generate([9, 6], max_new_tokens=9).tokens


@pytest.mark.parametrize(("first", "number"), [(200, 320), pytest.param(400, 2000, marks=pytest.mark.full)])
def test_memory_is_flat(first: int, number: int) -> None:
    """Mixed methods and options: no tensor, object or block of memory stays of them."""
    engine = Engine(pico("llama"), prefix_cache=1 << 18)
    with engine.session(max_rows=16) as session:
        serve(session, range(first))
        before = held(session)
        serve(session, range(first, number))
        after = held(session)
    assert after[0] == before[0]
    assert after[1] <= before[1] + 8
    assert after[2] <= before[2] + 200 + (number - first) / 2  # caches fill up; a request leaves less than half a block


def serve(session: Session, numbers: range) -> None:
    """Some are cancelled before they begin, some later."""
    for number in numbers:
        options = {**METHODS[number // 20 % len(METHODS)], "max_new_tokens": 1 + number % 2, "seed": number % 7}
        prompt = [5 + (number * place) % 90 for place in range(20 if number % 9 == 0 else 1 + number % 6)]
        asked = session.add(prompt, **options, temperature=0.8 * (number % 3 == 0))
        if number % 7 == 0:
            session.cancel(asked)
        while session.num_open > 15:
            session.step()
        if number % 11 == 0:
            session.cancel(asked)
    while session.num_open:
        session.step()


def held(session: Session) -> tuple[int, int, int]:
    """Bytes of the cache, tensors, blocks of Python's memory."""
    gc.collect()
    num_tensors = sum(isinstance(one, torch.Tensor) for one in gc.get_objects())
    cache = session._rows._room.cache
    return 0 if cache is None else cache.num_bytes, num_tensors, sys.getallocatedblocks()


def test_free_memory_is_told_everywhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_memory.free_bytes(torch.device("cpu")) > 1 << 20
    for name, value in (("current", "300"), ("max", "1000"), ("stat", "anon 5\ninactive_file 50\n")):
        (tmp_path / f"memory.{name}").write_text(value)
    assert free_memory._free_in_container(tmp_path) == 750
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory._free_in_container(tmp_path) > 1 << 60
    monkeypatch.setattr(free_memory.Path, "read_text", lambda path: "")
    assert free_memory._free_in_system() > 1 << 20
    counts = {name: {"all": {"current": count}} for name, count in (("reserved_bytes", 70), ("allocated_bytes", 30))}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counts)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
    assert free_memory.free_bytes(torch.device("cuda")) == 540


def test_options_that_differ_leave_nothing_behind() -> None:
    with Engine(pico("llama")).session() as session:
        for place in range(20):
            session.add([5, 6], temperature=0.5 + place / 100, max_new_tokens=2, strategy="off")
        while session.num_open:
            session.step()
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Cohort)]


def test_after_a_round_that_fails_nothing_is_open() -> None:
    def fails(prefix: Sequence[int], scores: torch.Tensor) -> torch.Tensor:
        raise ValueError("no scores today")

    with Engine(pico("llama")).session() as session:
        session.add([5, 6], processors=[fails])
        with pytest.raises(ValueError, match="no scores today"):
            session.step()
        assert (session.num_open, session.step()) == (0, [])


def test_a_text_that_no_longer_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less memory is free when it comes to it than when it was let in: it does not wait for ever."""
    engine = Engine(pico("llama"), prefix_cache=False)
    with engine.session() as session:
        session.add([5, 6])
        monkeypatch.setattr(type(engine.runner), "free_bytes", 0)
        with pytest.raises(OptionError, match="the memory that is free allows 0 GiB"):
            session.step()


def test_who_waits_is_not_counted_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"), prefix_cache=False)
    slots = engine.runner.cache_slots(70)
    with engine.session(cache_bytes=2 * slots * engine.runner.slot_bytes) as session:
        for _ in range(6):
            session.add([5, 6], max_new_tokens=4, strategy="off")
        asked: list[Any] = []
        limit = Room._limit
        monkeypatch.setattr(Room, "_limit", lambda room, *bytes: asked.append(bytes) or limit(room, *bytes))
        found, _ = run(session)
    assert len(found) == 6
    assert 3 <= len(asked) <= 7, "when texts have left, and once in vain"


def test_the_share_of_the_cache_that_holds_tokens() -> None:
    engine = Engine(pico("llama"))
    with engine.session(max_rows=2, cache_bytes=slots(engine, 1000)) as session:
        assert session.cache_usage == 0
        for size in (20, 60):
            session.add([5, 6, 7, 8], max_new_tokens=size, strategy="off")
        num_told = sum(len(event.pieces) for event in session.step())
        assert session.cache_usage == pytest.approx((2 * 4 + num_told) / 1000)
        run(session)
        assert session.cache_usage == 0
