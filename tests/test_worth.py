"""Batches stop drafting where plain rounds are quicker, by the clock, and their texts stay the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pico import pico
from selfdraft import Engine
from selfdraft.engine import room
from selfdraft.engine.worth import BatchSwitch, Worth
from selfdraft.strategies.draft_switch import GLANCE
from test_graphs import new_engine

_JUDGE = Worth.of  # conftest puts another one in its place
PROMPTS = [[1, 2, 3, 4], [5, 6, 7], [9, 8, 7, 6, 5]]
DRAFTING = {"strategy": "fixed", "lookahead": "fixed", "settings": {"fixed": {"skip": "m1", "tokens": 2}}}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(Worth, "of", _JUDGE)
    return Engine(pico("llama"), **DRAFTING)


class Clock:
    """Passes take what they are told to; nothing else takes any time."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.now, forward = 0.0, engine.runner.forward

        def timed(request: Any, cache: Any) -> Any:
            kind = "draft" if request.skip else "verify" if len(request.tokens[0]) > 1 else "plain"
            self.now += seconds[kind]
            return forward(request, cache)

        monkeypatch.setattr(engine.runner, "forward", timed)
        monkeypatch.setattr(engine.runner, "seconds", lambda: self.now)


def drafted(generation: Any) -> list[bool]:
    return [bool(step.draft.tokens) for step in generation.steps]


@pytest.mark.parametrize(("verify", "pays"), [(1.0, True), (40.0, False)])
def test_a_batch_drafts_where_that_is_quicker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, verify: float, pays: bool
) -> None:
    plain = engine.generate(PROMPTS, max_new_tokens=130, strategy="off")
    Clock(engine, monkeypatch, draft=0.01, verify=verify, plain=1.0)
    for turn in range(2):
        found = engine.generate(PROMPTS, max_new_tokens=130)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        rounds = drafted(found[0])
        assert rounds[0] == (turn == 1 and pays), "what was learned is remembered"
        assert pays or sum(rounds) <= 2 * GLANCE, "what is hopeless ends early"
        assert rounds[-40:-20] == [pays] * 20  # in the end there are fewer rows, which have to be tried themselves


@pytest.mark.parametrize("others_come", [False, True])
def test_the_slowest_decides_unless_others_come(others_come: bool) -> None:
    """Rounds with drafts take 1.5 times as long: one text gains by them, the other one does not."""
    switch = BatchSwitch()
    for _ in range(400):
        drafts = switch.is_drafting
        switch.observe_rows(drafts, {0: 1, 1: 3 if drafts else 1}, 1.5 if drafts else 1.0, others_come)
    assert switch.is_drafting == others_come


def test_others_come_in_a_session_and_while_prompts_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(BatchSwitch, "observe_rows", lambda switch, *args: told.append(args[-1]))
    engine.generate(PROMPTS, max_new_tokens=12)
    assert set(told) == {False}
    monkeypatch.setattr(room, "MAX_ROWS", 2)
    told.clear()
    engine.generate(PROMPTS + PROMPTS, max_new_tokens=12)
    assert told == sorted(told, reverse=True)
    assert set(told) == {True, False}, "until the last one has a row"
    told.clear()
    with engine.session() as session:
        for prompt in PROMPTS:
            session.add(prompt, max_new_tokens=12)
        while session.num_open:
            session.step()
    assert set(told) == {True}


def test_who_leaves_and_who_joins_next_go_by_one_switch() -> None:
    worth, cohort = Worth(), SimpleNamespace(method=SimpleNamespace(parts=("fixed",)), may_do_without=True)
    found = [_JUDGE(worth, SimpleNamespace(active=[0] * rows, groups=[(cohort, [])])) for rows in range(1, 10)]
    places = [found.index(switch) for switch in found]
    assert found[0] is None
    assert places == [0, 1, 2, 2, 4, 4, 4, 4, 8]


def test_drafts_may_be_asked_for_whatever_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worth, "of", _JUDGE)
    engine = Engine(pico("llama"), economics=False, **DRAFTING)
    Clock(engine, monkeypatch, draft=0.01, verify=40.0, plain=1.0)
    assert all(drafted(engine.generate(PROMPTS, max_new_tokens=100)[0])[:-2])


def test_one_text_and_tested_drafts_go_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text drafts as its method says; what rejection tests is part of the text."""
    Clock(engine, monkeypatch, draft=0.01, verify=40.0, plain=1.0)
    assert all(drafted(engine.generate(PROMPTS[0], max_new_tokens=60))[:-2])
    tested = {"temperature": 0.8, "acceptance": "rejection", "seed": 3}
    assert all(drafted(engine.generate(PROMPTS, max_new_tokens=60, **tested)[0])[:-2])
    coupled = {"temperature": 0.8, "seed": 3}
    assert not all(drafted(engine.generate(PROMPTS, max_new_tokens=60, **coupled)[0])[:-2])


@pytest.mark.parametrize("kind", ["eager", "recorded"])
@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_a_batch_drafts_while_most_rows_want_to(kind: str, acceptance: str) -> None:
    """Unless drafts are part of what is drawn: then each row drafts as it would alone."""
    make = Engine if kind == "eager" else new_engine
    engine, prompts = make(pico("llama")), [*PROMPTS, [2, 9, 4]]
    method = {"strategy": "uniform", "lookahead": "confidence", "settings": {"confidence": {"threshold": 0.05}}}
    options = {"max_new_tokens": 15, "temperature": 0.8, "seed": 3, "acceptance": acceptance, **method}
    found = engine.generate(prompts, **options)
    alone = [engine.generate(prompt, sequence=place, **options) for place, prompt in enumerate(prompts)]
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    lengths = [[step.draft.num_draft_steps for step in one.steps] for one in found]
    if acceptance == "rejection":
        assert lengths == [[step.draft.num_draft_steps for step in one.steps] for one in alone]
        return
    whole = min(map(len, lengths)) - 1  # rounds of all rows
    counts = [[sum(own[place] > depth for own in lengths) for depth in range(1, 20)] for place in range(whole)]
    assert all(count == 0 or count >= 3 for round_counts in counts for count in round_counts)
    assert any(len({own[place] for own in lengths}) - 1 > 0 for place in range(whole)), "they stop at different depths"
