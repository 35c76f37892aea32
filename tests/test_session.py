"""A session of rows: whatever joins, leaves, is cancelled or goes on elsewhere, every text is that of a single call."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest
import torch

from cases import SETTINGS
from learned import profile
from pico import CONTEXT_LENGTH, pico
from selfdraft import Engine, Generation, OptionError, Session
from selfdraft.engine import prefill
from selfdraft.engine.draft import GroupDraft
from selfdraft.engine.prefill import Prompts
from selfdraft.engine.state import State, TextSequence
from selfdraft.passes import PassOutput, PassRequest
from selfdraft.strategies.base import PlainStrategy
from selfdraft.types import Draft
from test_graphs import new_engine, new_runner
from test_segments import sharing_runner

Request = tuple[list[int], dict[str, Any]]
RUNNERS = {"recorded": new_runner, "sharing": sharing_runner}
KINDS = ("llama", "gpt2", "recorded", "llama", "gpt2", "sharing")
NUM_SCHEDULES, NUM_MORE = 18, 482
COMMON = [5 + 11 * place % 90 for place in range(70)]
METHODS: tuple[dict[str, Any], ...] = (
    {"strategy": "off"},
    {"strategy": "uniform"},
    {"strategy": "uniform", "tree": "siblings"},
    {"strategy": "uniform", "lookahead": "fixed"},
    {"drafter": "lookup", "strategy": "uniform"},
    {"drafter": "model", "strategy": "uniform"},
    {"strategy": "swift"},
    {"strategy": "clasp"},
    {"strategy": "asd"},
    {"strategy": "uniform", "acceptance": "rejection", "lookahead": "fixed"},
    {"strategy": "uniform", "acceptance": "rejection", "lookahead": "confidence", "tree": "siblings"},
    {"drafter": "lookup", "strategy": "uniform", "acceptance": "rejection", "lookahead": "fixed"},
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


@pytest.fixture(autouse=True)
def prompts_are_read_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("PREFILL_CHUNK", 40), ("FIRST_CHUNK", 16), ("CHUNK_STEP", 8)):
        monkeypatch.setattr(prefill, name, size)


@functools.cache
def engine_of(kind: str) -> Engine:
    if kind in RUNNERS:
        return new_engine(pico("llama"), RUNNERS[kind])
    return Engine(pico(kind), strategy="off", settings=SETTINGS, profile=profile())


def some_request(rng: random.Random) -> Request:
    prompt = [*COMMON[: rng.choice((0, 0, 20, 33, 70))]]
    prompt += [rng.randrange(5, 100) for _ in range(rng.choice((1, 2, 5, 9, 9, 20, 70)))]
    options = {**rng.choice(METHODS), **rng.choice(CHOICES), "max_new_tokens": rng.choice((1, 2, 7, 12, 20))}
    options["min_new_tokens"] = min(options.get("min_new_tokens", 0), options["max_new_tokens"])
    return prompt, options


def is_tested(options: dict[str, Any]) -> bool:
    """Whether the text depends on its drafts."""
    return "acceptance" in options and "temperature" in options


def ask(session: Session, request: Request, n: int) -> dict[int, Request]:
    """The requests of single texts, by their numbers."""
    prompt, options = request
    first = options.get("sequence", 0)
    numbers = session.add(prompt, n=n, **options) if n > 1 else (session.add(prompt, **options),)
    return {number: (prompt, {**options, "sequence": first + place}) for place, number in enumerate(numbers)}


def run_schedule(engine: Engine, seed: int) -> list[tuple[list[int], dict[str, Any], Generation]]:
    """Requests join at random; some are cancelled, and of these some go on in another row."""
    rng = random.Random(seed)
    waiting = [some_request(rng) for _ in range(rng.randrange(3, 7))]
    asked: dict[int, Request] = {}
    moved: set[int] = set()
    done = []
    with engine.session(max_rows=rng.randrange(1, 6)) as session:
        while waiting or session.num_open:
            while waiting and rng.random() < 0.5:
                request = waiting.pop()
                asked |= ask(session, request, rng.choice((1, 1, 1, 2, 3)) if "temperature" in request[1] else 1)
            if asked and rng.random() < 0.15:
                number = rng.choice(list(asked))
                session.cancel(number)
                moved |= {number} if rng.random() < 0.7 and not is_tested(asked[number][1]) else set()
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
    single = engine.fork(prefix_cache=False)
    for prompt, options, found in run_schedule(engine, seed):
        alone = single.generate(prompt, **options if is_tested(options) else {**options, "strategy": "off"})
        if found.finish_reason == "cancelled":
            assert found.tokens == alone.tokens[: len(found.tokens)]
        else:
            assert (found.tokens, found.finish_reason) == (alone.tokens, alone.finish_reason)


@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
def test_every_text_is_that_of_a_single_call(seed: int) -> None:
    check_schedule(KINDS[seed % len(KINDS)], seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(NUM_SCHEDULES, NUM_SCHEDULES + NUM_MORE))
def test_every_text_is_that_of_a_single_call_many_times(seed: int) -> None:
    check_schedule(KINDS[seed % len(KINDS)], seed)


@pytest.mark.parametrize("kind", ["llama", "recorded"])
def test_no_row_moves_when_a_neighbour_leaves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values stay where they are, bit by bit, and the next text takes the row that is free."""
    rows: list[dict[int, int]] = []
    drop = State.drop_finished

    def watched(state: State) -> list[TextSequence]:
        storage: Any = state.cache.storage
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


@pytest.mark.parametrize("kind", ["llama", "recorded"])
def test_several_texts_of_a_prompt_are_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(kind)
    options: dict[str, Any] = {"temperature": 0.9, "strategy": "uniform", "max_new_tokens": 12, "seed": 3}
    alone = [engine.generate(COMMON[:30], **options, sequence=2 + place).tokens for place in range(4)]
    engine = engine.fork(prefix_cache=False)
    passes = Passes(engine, monkeypatch)
    with engine.session() as session:
        numbers = session.add(COMMON[:30], n=4, sequence=2, **options)
        found = {event.id: event.generation for _ in range(40) for event in session.step() if event.generation}
        only = session.add(COMMON[:30], n=1, **options)
    assert isinstance(only, tuple)
    assert [found[number].tokens for number in numbers] == alone
    assert len(set(alone)) == 4
    assert sum(sum(one.values()) for one in passes.seen) == 29


def test_several_texts_go_on_after_one_beginning() -> None:
    engine, options = engine_of("llama"), {"temperature": 0.9, "max_new_tokens": 12}
    begun = engine.generate([5, 6, 7], **options).tokens[:4]
    with engine.session() as session:
        numbers = *session.add([5, 6, 7], begun, n=2, **options), session.add([5, 6, 7], begun, sequence=1, **options)
        texts = {event.id: event.generation for _ in range(20) for event in session.step() if event.generation}
    found = [texts[number].tokens for number in numbers]
    assert found[0] == engine.generate([5, 6, 7], **options).tokens
    assert found[1] == found[2] != found[0]


def test_what_cancels_several_texts_is_asked_once_a_round() -> None:
    asked = iter(range(100))
    with engine_of("llama").session(max_rows=2) as session:
        options = {"temperature": 0.9, "max_new_tokens": 50, "strategy": "off", "cancel": lambda: next(asked) >= 5}
        session.add([5, 6, 7], n=3, **options)
        found = [event.generation for _ in range(6) for event in session.step() if event.generation]
    assert [one.finish_reason for one in found] == ["cancelled"] * 3
    assert [len(one.tokens) for one in found] == [5, 5, 0]


def test_greedy_texts_of_a_request_are_all_equal() -> None:
    with engine_of("llama").session() as session, pytest.warns(UserWarning, match="n=2 asks for several") as caught:
        session.add([5, 6], n=2)
    assert caught[0].filename == __file__
    with engine_of("llama").session() as session, pytest.raises(OptionError, match="n must be at least 1, got 0"):
        session.add([5, 6], n=0)


@pytest.mark.parametrize(
    ("prompt", "emitted", "options", "reason"),
    [
        ([5, 6], [1, 2, 3, 4], {"max_new_tokens": 4}, "4 tokens were emitted, and max_new_tokens allows 4"),
        ([5] * (CONTEXT_LENGTH - 2), [7, 8], {}, "2 tokens were emitted, and the model's context allows 2"),
        ([5, 6], [1, 49], {}, "2 tokens were emitted, and the last one, 49, ends texts"),
    ],
)
def test_nothing_is_emitted_after_a_whole_text(
    prompt: list[int], emitted: list[int], options: dict[str, Any], reason: str
) -> None:
    engine = Engine(copy.deepcopy(pico("llama")))
    engine.model.generation_config.eos_token_id = 49
    with engine.session() as session, pytest.raises(OptionError, match=f"{reason}; the text is complete"):
        session.add(prompt, emitted, **options)


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


LONG = [5 + place * 7 % 90 for place in range(90)]


class Passes:
    """Of prompts, as a runner sees them: tokens of each row."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[dict[int, int]] = []
        forward = engine.runner.forward

        def watched(request: PassRequest, cache: Any) -> PassOutput:
            if request.is_prompt:
                self.seen.append({row: len(tokens) for row, tokens in zip(request.rows, request.tokens, strict=True)})
            return forward(request, cache)

        monkeypatch.setattr(engine.runner, "forward", watched)

    def new(self) -> list[dict[int, int]]:
        seen, self.seen = self.seen, []
        return seen


@pytest.mark.parametrize("kind", ["llama", "recorded"])
def test_a_long_prompt_is_read_beside_rounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part a round, first come first read; whoever decodes gets a token in each of them."""
    engine = engine_of(kind)
    passes = Passes(engine, monkeypatch)
    with engine.session(max_rows=4, max_stall_seconds=0.0) as session:
        first = session.add([5, 6, 7, 8], max_new_tokens=40)
        session.step()
        assert passes.new() == [{0: 3}]
        numbers = [session.add(LONG, max_new_tokens=3), session.add([9, 8, 7], max_new_tokens=3)]
        parts, found = [], {}
        while session.num_open:
            events = session.step()
            assert len(passes.seen) <= 1
            parts += passes.new()
            found |= {event.id: event.generation for event in events if event.generation}
            assert parts[-1:] != [{1: 16}] or first in [event.id for event in events]
    assert parts[:2] == [{1: 16}, {1: 8}]
    assert sum(part.get(1, 0) for part in parts) == 89
    assert parts[-1] == {1: 1, 2: 2}
    for number, prompt in zip([first, *numbers], ([5, 6, 7, 8], LONG, [9, 8, 7]), strict=True):
        tokens = engine.generate(prompt, max_new_tokens=40, strategy="off").tokens
        assert found[number].tokens == tokens[: len(found[number].tokens)]
        assert found[number].stats.prefill_seconds > 0


def test_where_nothing_decodes_prompts_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pico("llama"), strategy="off", prefix_cache=False)
    passes = Passes(engine, monkeypatch)
    found = engine.generate([LONG, LONG[:21], LONG[:3]], max_new_tokens=4)
    assert passes.new() == [{0: 40}, {0: 40}, {0: 9, 1: 20, 2: 2}]
    assert found[0].stats.prefill_seconds > found[1].stats.prefill_seconds > found[2].stats.prefill_seconds > 0


def test_a_text_is_cancelled_while_its_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is free at once; no strategy hears of it."""
    engine, ended = engine_of("llama"), []
    with engine.session(max_rows=2) as session:
        first = session.add([5, 6], max_new_tokens=30)
        session.step()
        cancelled = session.add(LONG, max_new_tokens=5)
        session.step()
        session.cancel(cancelled)
        monkeypatch.setattr(engine._method({}).strategy, "end", lambda number: ended.append(number))
        other = session.add([7, 8, 9], max_new_tokens=3)
        passes = Passes(engine, monkeypatch)
        events = session.step()
        assert (events[0].id, events[0].finish_reason) == (cancelled, "cancelled")
        assert events[0].generation is not None
        assert events[0].generation.tokens == ()
        assert passes.new() == [{1: 2}], "the row of the one that has gone"
        done = {event.id: event.generation for _ in range(40) for event in session.step() if event.generation}
    assert ended == [other, first]
    for number, prompt in ((first, [5, 6]), (other, [7, 8, 9])):
        assert done[number].tokens == engine.generate(prompt, max_new_tokens=len(done[number].tokens)).tokens


class Clock:
    """A runner whose passes of prompts take 1 ms, 10 us a token, and some ns for each slot a token looks back at."""

    recorded_prompts, record_seconds, now = (2048,), 0.0, 0.0

    def __init__(self, look_seconds: float = 0.0, noise: float = 0.0) -> None:
        self.sizes: list[int] = []
        self.took: list[float] = []
        self._look_seconds, self._noise, self._random = look_seconds, noise, random.Random(3)

    def seconds(self) -> float:
        return self.now

    def forward(self, request: PassRequest, cache: Any) -> PassOutput:
        self.sizes.append(sum(map(len, request.tokens)))
        looks = sum(
            len(row) * (start + len(row) / 2) for row, start in zip(request.tokens, request.starts, strict=True)
        )
        seconds = 1e-3 + 1e-5 * self.sizes[-1] + looks * self._look_seconds
        self.took.append(seconds * self._random.uniform(1 - self._noise, 1 + self._noise))
        self.now += self.took[-1]
        return PassOutput(torch.empty(0))


@pytest.mark.parametrize(("max_seconds", "size"), [(3e-3, 192), (1.5e-3, 64), (5e-3, 384), (None, 256), (9.0, 2048)])
def test_parts_are_as_large_as_time_allows(max_seconds: float, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    runner: Any = Clock()
    state = State(None)
    state.seat([TextSequence(0, [1] * 100_000, 1)])
    prompts = Prompts(runner, state, lambda _: PlainStrategy())
    for _ in range(12):
        prompts.read_some(max_seconds)
    assert runner.sizes[0] == 256
    assert runner.sizes[-1] == size


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_parts_get_smaller_after_long_pasts(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """None takes longer than allowed, nor does the first one after another text, which looks back at nothing."""
    monkeypatch.undo()
    runner: Any = Clock(look_seconds=2e-9, noise=noise)
    state = State(None)
    state.seat([TextSequence(number, [1] * 16_385, 1) for number in range(2)])
    prompts = Prompts(runner, state, lambda _: PlainStrategy())
    while any(not one.is_read for one in state.reading):
        prompts.read_some(4e-3)
    assert max(runner.took[1:]) <= 4e-3 * (1 + 2 * noise), "the first one is a guess"
    first = runner.sizes[: len(runner.sizes) // 2 - 2]
    assert first[0] == 256
    assert first[-1] == 64
    assert max(runner.sizes[len(first) :]) >= 256
    assert sum(runner.sizes) == 2 * 16_384


def test_reading_beside_a_round_loses_no_pass_that_runs_ahead() -> None:
    """Only when the text joins is the pass under way another one than is asked for."""
    engine = engine_of("recorded")
    runner: Any = engine.runner
    with engine.session(max_rows=2, max_stall_seconds=0.0) as session:
        session.add([5, 6, 7], strategy="off", max_new_tokens=40)
        for _ in range(3):
            session.step()
        session.add(LONG, strategy="off", max_new_tokens=9)
        hits, num_rounds = runner.num_hits, 0
        while session.num_open:
            session.step()
            num_rounds += 1
    assert num_rounds > 20
    assert runner.num_hits - hits >= num_rounds - 4, "but those in which a text joins or leaves"


def test_a_prompt_in_the_row_of_a_pass_that_runs_ahead() -> None:
    """It is not what that pass has read, even where places and tokens are the same."""
    runner: Any = engine_of("recorded").runner
    cache = runner.new_cache(2, 64)

    def read(row: int, tokens: list[int]) -> None:
        runner.forward(PassRequest([tokens], [0], [row], needs_scores=False), cache)

    for row, hits in ((1, 1), (0, 0)):
        read(0, [5, 6, 7])
        token = runner.forward(PassRequest([[8]], [3], [0], run_ahead=True), cache).choices()[0][0]
        before = runner.num_hits
        read(row, [50, 60, 70, 8])
        scores = runner.forward(PassRequest([[token]], [4], [0]), cache).scores.clone()
        assert runner.num_hits - before == hits
        whole = [5, 6, 7, 8, token] if row else [50, 60, 70, 8, token]
        expected = runner.forward(PassRequest([whole], [0], [0]), runner.new_cache(1, 64)).scores
        torch.testing.assert_close(scores[0, -1], expected[0, -1], rtol=1e-4, atol=1e-4)


def test_a_known_beginning_in_a_row_that_runs_along() -> None:
    """A row whose text has ended takes part in passes that run ahead: they must not write into what begins there."""
    engine = new_engine(pico("llama"))
    known = [(7 * place) % 90 + 5 for place in range(60)]
    expected = engine.generate(known, max_new_tokens=20, strategy="off").tokens
    with engine.session(max_rows=4) as session:
        for number in range(4):
            session.add([5 + number, 6, 7], strategy="off", max_new_tokens=5 if number == 1 else 40)
        while session.num_open == 4:
            session.step()
        runner: Any = engine.runner
        hits = runner.num_hits
        session.step()
        assert runner.num_hits > hits, "the others keep their pass"
        number, found = session.add(known, strategy="off", max_new_tokens=20), None
        while found is None:
            found = next((event.generation for event in session.step() if event.id == number), None)
    assert found.stats.cached_prompt_tokens == 59
    assert found.tokens == expected
