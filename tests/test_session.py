"""A session of rows: whatever joins, leaves, is cancelled or goes on elsewhere, every text is that of a single call."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

from pico import pico
from selfdraft import Engine, Generation, OptionError
from selfdraft.engine.draft import GroupDraft
from selfdraft.engine.state import State, TextSequence
from selfdraft.types import Draft
from test_graphs import new_engine

NUM_SCHEDULES, NUM_MORE = 25, 475
COMMON = [5 + 11 * place % 90 for place in range(70)]
METHODS: tuple[dict[str, Any], ...] = (
    {"strategy": "off"},
    {"strategy": "uniform"},
    {"strategy": "uniform", "tree": "siblings"},
    {"strategy": "uniform", "lookahead": "fixed"},
    {"drafter": "lookup", "strategy": "uniform"},
    {"strategy": "swift"},
)
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.8, "seed": 2**64 - 3},
    {"temperature": 1.2, "top_p": 0.9, "seed": 2},
    {"temperature": 0.7, "top_k": 20, "seed": 2, "sequence": 3},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.6, "min_new_tokens": 5, "temperature": 0.9},
    {"logit_bias": {30: 2.0, 27: -3.0}, "logprobs": 2},
)


@functools.cache
def engine_of(kind: str) -> Engine:
    return new_engine(pico("llama")) if kind == "recorded" else Engine(pico(kind), strategy="off")


def some_request(rng: random.Random) -> tuple[list[int], dict[str, Any]]:
    prompt = [*COMMON[: rng.choice((0, 0, 20, 33, 70))]]
    prompt += [rng.randrange(5, 100) for _ in range(rng.choice((1, 2, 5, 9, 9, 20, 70)))]
    options = {**rng.choice(METHODS), **rng.choice(CHOICES), "max_new_tokens": rng.choice((1, 2, 7, 15, 30))}
    options["min_new_tokens"] = min(options.get("min_new_tokens", 0), options["max_new_tokens"])
    return prompt, options


def run_schedule(engine: Engine, seed: int) -> list[tuple[list[int], dict[str, Any], Generation]]:
    """Requests join at random; some are cancelled, and of these some go on in another row."""
    rng = random.Random(seed)
    waiting = [some_request(rng) for _ in range(rng.randrange(3, 9))]
    asked: dict[int, tuple[list[int], dict[str, Any]]] = {}
    moved: set[int] = set()
    done = []
    with engine.session(max_rows=rng.randrange(1, 6)) as session:
        while waiting or session.num_open:
            while waiting and rng.random() < 0.5:
                request = waiting.pop()
                asked[session.add(request[0], **request[1])] = request
            if asked and rng.random() < 0.15:
                number = rng.choice(list(asked))
                session.cancel(number)
                moved |= {number} if rng.random() < 0.7 else set()
            for event in session.step():
                if event.generation is None:
                    continue
                prompt, options = asked.pop(event.id)
                if event.finish_reason == "cancelled" and event.id in moved:
                    asked[session.add(prompt, event.generation.tokens, **options)] = (prompt, options)
                else:
                    done.append((prompt, options, event.generation))
    return done


def check_schedule(kind: str, seed: int) -> None:
    engine = engine_of(kind)
    plain = engine.fork(prefix_cache=False)
    for prompt, options, found in run_schedule(engine, seed):
        alone = plain.generate(prompt, **{**options, "strategy": "off"})
        if found.finish_reason == "cancelled":
            assert found.tokens == alone.tokens[: len(found.tokens)]
        else:
            assert (found.tokens, found.finish_reason) == (alone.tokens, alone.finish_reason)


@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
def test_every_text_is_that_of_a_single_call(seed: int) -> None:
    check_schedule(("llama", "gpt2", "recorded")[seed % 3], seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(NUM_SCHEDULES, NUM_SCHEDULES + NUM_MORE))
def test_every_text_is_that_of_a_single_call_many_times(seed: int) -> None:
    check_schedule(("llama", "gpt2", "recorded")[seed % 3], seed)


@pytest.mark.parametrize("kind", ["llama", "recorded"])
def test_no_row_moves_when_a_neighbour_leaves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values stay where they are, bit by bit, and the next text takes the row that is free."""
    rows: list[dict[int, int]] = []
    drop = State.drop_finished

    def watched(state: State) -> list[TextSequence]:
        storage: Any = state.cache.storage  # type: ignore[attr-defined]
        before = storage.clone()
        finished = drop(state)
        assert torch.equal(storage, before)
        rows.append({sequence.sequence_id: sequence.row for sequence in state.active})
        return finished

    monkeypatch.setattr(State, "drop_finished", watched)
    with engine_of(kind).session(max_rows=3) as session:
        lengths = (12, 3, 20, 9)
        numbers = [session.add([5 + place, 6, 7], max_new_tokens=size) for place, size in enumerate(lengths)]
        while session.num_open:
            session.step()
    taken = [{row for known in rows for number, row in known.items() if number == one} for one in numbers]
    assert taken == [{0}, {1}, {2}, {1}]


def test_a_text_goes_on_where_another_stopped() -> None:
    engine = engine_of("llama")
    options: dict[str, Any] = {"temperature": 0.8, "frequency_penalty": 0.5, "max_new_tokens": 20}
    whole = engine.generate([5, 6, 7], **options)
    with engine.session() as session:
        number = session.add([5, 6, 7], whole.tokens[:9], **options)
        events = [event for _ in range(30) for event in session.step()]
    assert [event.id for event in events] == [number] * len(events)
    assert [piece.token for event in events for piece in event.pieces] == list(whole.tokens[9:])
    assert events[-1].generation is not None
    assert events[-1].generation.tokens == whole.tokens


@pytest.mark.parametrize("kind", ["llama", "recorded"])
def test_texts_that_differ_by_their_seeds_draft_together(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seeds, drafted = engine_of(kind), (0, 1, 7, 2**63 + 5), []
    run = GroupDraft.run

    def watched(group: GroupDraft) -> list[Draft]:
        drafted.append(len(group._rows.sequence_ids))
        return run(group)

    options: dict[str, Any] = {"temperature": 0.9, "strategy": "uniform", "max_new_tokens": 12}
    alone = {seed: engine.generate([5, 6, 7], **options, seed=seed).tokens for seed in seeds}
    assert len(set(alone.values())) == len(seeds)
    monkeypatch.setattr(GroupDraft, "run", watched)
    with engine.session() as session:
        asked = {session.add([5, 6, 7], **options, seed=seed): seed for seed in seeds}
        while session.num_open:
            for event in session.step():
                assert event.generation is None or event.generation.tokens == alone[asked[event.id]]
        assert drafted[:2] == [4, 4]  # one draft a round


def test_nothing_is_emitted_after_a_whole_text() -> None:
    with engine_of("llama").session() as session, pytest.raises(OptionError, match="max_new_tokens=4 allows no more"):
        session.add([5, 6], [1, 2, 3, 4], max_new_tokens=4)


def test_a_closed_session_says_so() -> None:
    session = engine_of("llama").session()
    session.add([5, 6])
    session.close()
    assert session.step() == []
    with pytest.raises(OptionError, match="closed"):
        session.add([5, 6])


def test_more_requests_than_rows_wait_their_turn() -> None:
    engine = engine_of("llama")
    with engine.session(max_rows=2) as session:
        numbers = [session.add([5 + place, 6], max_new_tokens=4) for place in range(5)]
        order = []
        while session.num_open:
            order += [event.id for event in session.step() if event.generation]
    assert order == numbers


def test_a_request_that_is_cancelled_leaves_before_the_next_round() -> None:
    engine = engine_of("llama")
    with engine.session(max_rows=1) as session:
        first, second = session.add([5, 6], max_new_tokens=50), session.add([7, 8], max_new_tokens=3)
        session.step()
        session.cancel(first)
        events = session.step()
        assert [(event.id, event.finish_reason) for event in events] == [(first, "cancelled"), (second, None)]
        assert session.num_open == 1
