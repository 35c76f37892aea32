"""The next draft is begun right after the verification, before the host has read it: no text and no draft changes."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from pico import letter_tokenizer, pico
from selfdraft import Engine, Generation, SkipSet
from selfdraft.engine.accept import Coupled
from selfdraft.engine.state import State
from selfdraft.lookahead.fixed import Fixed
from selfdraft.lookahead.oracle import Oracle
from selfdraft.lookahead.oracle_length import OracleLength
from selfdraft.models.cache import SlotCache
from selfdraft.models.gpu import accept as gpu_accept
from selfdraft.models.gpu import drafts as gpu_drafts
from selfdraft.models.gpu import forward as gpu_forward
from selfdraft.models.gpu import graphs as gpu_graphs
from selfdraft.models.gpu.draft import DraftOutputs
from selfdraft.models.gpu.forward import ModuleForward
from selfdraft.models.gpu.runner import GraphRunner, make_runner
from selfdraft.models.placement import Placement
from selfdraft.types import Plan, Verdict
from test_graphs import DRAWN, RULES, drafts_of, loose_runner, new_engine, new_runner, tokens_of
from test_lossless import PROMPTS

CHAIN = {"strategy": "fixed", "lookahead": "fixed"}
TREE = {"strategy": "fixed", "tree": "siblings"}
TESTED = {"acceptance": "rejection", **DRAWN}
METHODS = [CHAIN, TREE, {**CHAIN, **DRAWN}, {**TREE, **DRAWN}, {**TREE, **RULES}, {**CHAIN, **TESTED}]
METHODS += [{**TREE, **TESTED}, {**CHAIN, **TESTED, **RULES}]
SKIPS = ("a1-2,m2-3", "a1,m3")


def method_name(method: dict[str, Any]) -> str:
    names = [value for value in method.values() if isinstance(value, str)]
    return "-".join([*names, *["drawn"] * ("seed" in method), *["rules"] * ("logit_bias" in method)])


@pytest.fixture(autouse=True)
def begins_with_sublayers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_forward, "HEAD_START", 3)


def waiting_runner(model: Any, *_: Any) -> GraphRunner:
    """Never begins what was not asked for."""
    runner = new_runner(model)
    runner._drafts.runs_ahead = False
    return runner


def hits_of(engine: Engine) -> tuple[int, int]:
    """And misses."""
    runner: Any = engine._runner
    found: tuple[int, int] = runner.drafts_ahead
    return found


def waiting_engine(**options: Any) -> Engine:
    return new_engine(pico("llama"), waiting_runner, **options)


def assert_same_drafts(found: list[Generation], waited: list[Generation]) -> None:
    """Rows that run along change the size of products, and with it the last digits."""
    for one, other in zip(itertools.chain(*drafts_of(found)), itertools.chain(*drafts_of(waited)), strict=True):
        assert one.confidences == pytest.approx(other.confidences, abs=1e-4)
        assert replace(one, confidences=()) == replace(other, confidences=())


LOOSE = (CHAIN, TREE, {**TREE, **TESTED})
"""Methods that are also tried on recordings which know one cache alone; the others in `make test-full`."""


@pytest.mark.parametrize(
    ("method", "make", "slots"),
    [
        *((method, new_runner, 16) for method in METHODS),
        *(
            pytest.param(method, loose_runner, 256, marks=[] if method in LOOSE else [pytest.mark.full])
            for method in METHODS
        ),
    ],
    ids=lambda value: method_name(value) if isinstance(value, dict) else getattr(value, "__name__", str(value)),
)
def test_nothing_changes_but_the_time(
    method: dict[str, Any], make: Callable[..., Any], slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single texts of several lengths and a batch, one after the other; also over bucket borders."""
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", slots)
    engines = new_engine(pico("llama"), make), waiting_engine(), new_engine(pico("llama"), make_runner)
    texts = [([PROMPTS[0]], 30), ([PROMPTS[2]], 10), (list(PROMPTS), 8)]
    for prompts, count in texts if make is new_runner else texts[:1]:  # the loose one's recordings know one cache
        found, waited, eager = (engine.generate(prompts, max_new_tokens=count, **method) for engine in engines)
        assert tokens_of(found) == tokens_of(eager)
        assert_same_drafts(found, waited)
    hits, misses = hits_of(engines[0])
    assert hits > 2
    assert misses <= len(texts)
    assert hits_of(engines[1]) == (0, 0)


@pytest.mark.parametrize("method", METHODS[:5], ids=method_name)
def test_texts_that_end_anywhere(method: dict[str, Any]) -> None:
    """By length, by an end-of-text token inside what was accepted, by a stop string; then the next text is right."""
    engine, plain = new_engine(pico("llama")), Engine(pico("llama"), strategy="off")
    drawn = {key: value for key, value in method.items() if key in {*DRAWN, *RULES}}
    expected = plain.generate(PROMPTS[0], max_new_tokens=24, **drawn).tokens
    for count in (1, 2, 3, 4, 9):
        assert engine.generate(PROMPTS[0], max_new_tokens=count, **method).tokens == expected[:count]
    for place in (5, 8, 13):
        with mock.patch.object(engine.model.generation_config, "eos_token_id", expected[place]):
            found = engine.generate(PROMPTS[0], max_new_tokens=24, **method)
        assert found.finish_reason == "eos"
        assert found.tokens == expected[: expected.index(expected[place]) + 1]
        assert engine.generate(PROMPTS[0], max_new_tokens=14, **method).tokens == expected[:14]
    assert hits_of(engine)[0] > 10


@pytest.mark.parametrize("choosing", [{}, {"temperature": 0.9, "acceptance": "rejection"}], ids=str)
def test_tokens_that_the_device_writes_to_the_host(choosing: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As our kernels do, which CUDA alone runs; recordings that are made in the middle of a draft leave them alone."""
    monkeypatch.setattr(gpu_graphs, "MIN_SLOTS", 16)
    expected = new_engine(pico("llama")).generate(PROMPTS[0], max_new_tokens=36, **TREE, **choosing)

    def at_host(*arguments: Any) -> DraftOutputs:
        outputs = DraftOutputs(*arguments)
        outputs.drafted, outputs.progress, outputs._is_at_host = outputs._host_drafted, outputs._host_progress, True
        return outputs

    monkeypatch.setattr(gpu_drafts, "DraftOutputs", at_host)
    found = new_engine(pico("llama")).generate(PROMPTS[0], max_new_tokens=36, **TREE, **choosing)
    assert found.tokens == expected.tokens
    assert [step.draft.tokens for step in found.steps] == [step.draft.tokens for step in expected.steps]


def test_texts_that_end_by_a_stop_string() -> None:
    engines = [new_engine(pico("llama"), make, tokenizer=letter_tokenizer()) for make in (new_runner, waiting_runner)]
    text = engines[1].generate(PROMPTS[0], max_new_tokens=30, **TREE).text
    for place in range(4, 20, 3):
        found, expected = (
            engine.generate(PROMPTS[0], max_new_tokens=30, stop=[text[place : place + 2]], **TREE) for engine in engines
        )
        assert (found.text, found.tokens, found.finish_reason) == (expected.text, expected.tokens, "stop")
    assert hits_of(engines[0])[0] > 0


@pytest.mark.parametrize("tree", ["chain", "siblings"])
def test_plans_that_change(tree: str) -> None:
    """Skip sets and lengths: what was begun for the plan before is not taken; what changes often is not begun."""
    engine, waiting = new_engine(pico("llama"), tree=tree), waiting_engine(tree=tree)
    skips = [SkipSet.parse(skip) for skip in SKIPS]

    def texts(plans: Callable[[], Iterator[Plan]]) -> tuple[int, int]:
        before = hits_of(engine)
        found = []
        for one in (engine, waiting):
            with mock.patch.object(one._method({}).strategy, "plan", side_effect=plans()):
                found.append(one.generate([PROMPTS[0]], max_new_tokens=45))
        assert tokens_of(found[0]) == tokens_of(found[1])
        assert drafts_of(found[0]) == drafts_of(found[1])
        hits, misses = (after - known for after, known in zip(hits_of(engine), before, strict=True))
        return hits, misses

    hits, misses = texts(lambda: (Plan(skips[round_ // 4 % 2], max_draft_tokens=2) for round_ in itertools.count()))
    assert hits > misses > 1
    hits, misses = texts(lambda: (Plan(skips[round_ % 2], max_draft_tokens=2) for round_ in itertools.count()))
    assert (hits, misses) == (0, 0)
    hits, misses = texts(lambda: (Plan(skips[0], max_draft_tokens=1 + round_ // 5 % 3) for round_ in itertools.count()))
    assert hits > misses > 1
    texts(lambda: (Plan(skips[0], max_draft_tokens=3 * (round_ % 4 > 0)) for round_ in itertools.count()))


@pytest.mark.parametrize("lookahead", ["adaptive", "heuristic", "roc", "tpt"])
def test_a_lookahead_that_has_learned_is_asked_again(lookahead: str) -> None:
    """What it decided by what it knew before is not taken. `tpt` goes by the clock, so its drafts are never alike."""
    method = {**CHAIN, "lookahead": lookahead}
    engine, waiting = new_engine(pico("llama")), waiting_engine()
    found, waited = (one.generate([PROMPTS[0], PROMPTS[2]], max_new_tokens=40, **method) for one in (engine, waiting))
    assert tokens_of(found) == tokens_of(waited)
    if lookahead != "tpt":
        assert drafts_of(found) == drafts_of(waited)


def test_what_the_device_cannot_foresee_is_not_begun() -> None:
    """Processors, and a caller's own parts that do not say enough."""

    class Mine(Coupled):
        """It might keep less."""

    class Silent(Fixed):
        num_changes: Any = None

    engine = new_engine(pico("llama"))
    silent = Silent(Fixed.Options())
    for more in (
        {"processors": [lambda prefix, scores: scores]},
        {"acceptance": Mine()},
        {"lookahead": silent},
        {"drafter": "model"},
        {"drafter": "lookup"},
        {"strategy": "off"},
    ):
        engine.generate(PROMPTS[0], max_new_tokens=20, **{**CHAIN, **more})
        assert hits_of(engine) == (0, 0), more
    assert engine.generate(PROMPTS[0], max_new_tokens=20, **CHAIN)
    assert hits_of(engine)[0] > 0


def test_rounds_that_pause_are_foreseen() -> None:
    """Told its lengths the oracle has no plain pass begun that is not asked for."""
    engine = new_engine(pico("llama"))
    plain = engine.generate(PROMPTS[0], strategy="off", max_new_tokens=40).tokens
    found = engine.generate(PROMPTS[0], max_new_tokens=40, **{**CHAIN, "lookahead": Oracle([plain])})
    kept = [source == "draft" for source in found.sources]
    runner: Any = engine._runner
    hits = runner.num_hits
    run_ahead = mock.patch.object(runner._passes, "_run_ahead", side_effect=runner._passes._run_ahead)
    with run_ahead as run:
        exact = engine.generate(PROMPTS[0], max_new_tokens=40, **{**CHAIN, "lookahead": OracleLength([kept])})
    assert (exact.tokens, exact.sources) == (plain, found.sources)
    assert exact.stats.num_draft_steps == sum(kept)
    assert {bool(step.draft.tokens) for step in exact.steps} == {True, False}
    assert run.call_count == runner.num_hits - hits


def test_kept_slots_are_moved_once() -> None:
    """By the device where the next draft was begun, else by the host."""
    engine, waiting = new_engine(pico("llama")), waiting_engine()
    counts: list[int] = []
    kept: list[list[bool]] = []
    commit = State.commit

    def watched(state: State, verdicts: list[Verdict], is_compact: bool) -> list[Verdict]:
        kept[-1] += [bool(verdict.nodes) for verdict in verdicts if not is_compact]
        return commit(state, verdicts, is_compact)

    for one in (engine, waiting):
        kept.append([])
        with (
            mock.patch.object(SlotCache, "move", autospec=True, side_effect=SlotCache.move) as move,
            mock.patch.object(State, "commit", watched),
        ):
            found = one.generate(PROMPTS[0], max_new_tokens=40, **TREE)
        counts.append(move.call_count)
    num_rounds = len(found.steps)
    assert any(node != place for step in found.steps for place, node in enumerate(step.verdict.nodes))
    assert list(map(len, kept)) == [num_rounds - sum(hits_of(engine)), num_rounds]
    assert counts == list(map(sum, kept))


def test_texts_in_turn() -> None:
    """Round by round on one engine, with another begun and left in between."""
    engine, plain = new_engine(pico("llama")), Engine(pico("llama"), strategy="off")
    expected = [plain.generate(prompt, max_new_tokens=40).tokens for prompt in PROMPTS[:2]]
    streams = [engine.stream(prompt, max_new_tokens=40, **TREE) for prompt in PROMPTS[:2]]
    running = [iter(stream) for stream in streams]
    for number in itertools.count():
        if number % 5 == 4:
            left = engine.stream(PROMPTS[2], max_new_tokens=30, **TREE)
            for _ in itertools.islice(left, number):
                pass
            left.close()
        running = [one for one in running if next(one, None) is not None]
        if not running:
            break
    assert [stream.generation.tokens for stream in streams] == expected
    hits_before = hits_of(engine)[0]
    assert engine.generate(PROMPTS[0], max_new_tokens=40, **TREE).tokens == expected[0]
    assert hits_of(engine)[0] > hits_before


def test_a_round_that_fails_leaves_the_next_text_right() -> None:
    """The host fails while what it has not asked for is under way, or while it is being taken."""
    engine, plain = new_engine(pico("llama")), Engine(pico("llama"), strategy="off")
    expected = plain.generate(PROMPTS[0], max_new_tokens=40).tokens
    engine.generate(PROMPTS[0], max_new_tokens=40, **TREE)
    runner: Any = engine._runner
    for owner, name in (
        (engine._method(TREE).strategy, "observe"),
        (engine._method(TREE).trees["siblings"], "branches"),
    ):
        waits: list[int] = []
        failing = mock.patch.object(owner, name, side_effect=[*[()] * 6, RuntimeError("out of luck")])
        with failing, pytest.raises(RuntimeError, match="luck"):
            engine.generate(PROMPTS[2], max_new_tokens=40, **TREE)
        with mock.patch.object(runner._device, "wait", lambda waits=waits: waits.append(1)):
            assert engine.generate(PROMPTS[0], max_new_tokens=40, **TREE).tokens == expected
        assert len(waits) == 2, "for what was under way, and after the prefill"


def test_a_text_that_is_left_leaves_its_history_at_once() -> None:
    """While what it has not asked for is under way; otherwise the next text would find no recording."""
    engine, counts = new_engine(pico("llama")), []
    runner: Any = engine._runner
    gc.disable()
    try:
        for _ in range(4):
            stream = engine.stream(PROMPTS[0], max_new_tokens=60, **TREE, **RULES)
            for _ in itertools.islice(stream, 12):
                pass
            stream.close()
            del stream
            counts.append(runner.graphs.num_captures)
    finally:
        gc.enable()
    assert hits_of(engine)[1] > 0
    assert counts[1:] == counts[:1] * 3


def test_what_cannot_be_recorded_between_drafts_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Passes and drafts stay recorded; the host moves what is kept."""
    engine, plain = new_engine(pico("llama")), Engine(pico("llama"), strategy="off")
    with mock.patch.object(gpu_accept, "compact", side_effect=RuntimeError("no room")) as compact:
        found = engine.generate(PROMPTS[0], max_new_tokens=40, **TREE)
    assert found.tokens == plain.generate(PROMPTS[0], max_new_tokens=40).tokens
    assert engine._runner.fallback_reason is None
    assert compact.call_count == len(caplog.messages) == 1
    assert "drafts wait for the host" in caplog.messages[0]
    assert hits_of(engine) == (0, 0)


def test_the_clock_does_not_wait_for_what_was_not_asked_for() -> None:
    engine = new_engine(pico("llama"))
    runner: Any = engine._runner
    with mock.patch.object(runner._device, "wait") as wait:
        engine.generate(PROMPTS[0], max_new_tokens=40, **TREE)
    assert hits_of(engine)[0] > 5
    assert wait.call_count == 1, "after the prefill"


# ------------------------------------------------------------------------------------------ texts that join and leave


class HeaderForward(ModuleForward):
    """As the fused one: its rows are those of the header, whatever the recording was made for; a power of two."""

    holds_cache = False

    def begin(self, buffers: Any, cache: Any, end: int, skip: SkipSet, capture: Any = ()) -> Any:
        starts = torch.where(buffers.is_row[:, 0], buffers.starts, cache.num_slots - 64)  # what pads writes there
        placement = Placement.recorded(starts, buffers.depths, buffers.sees, end, buffers.header[8:])
        num_first = gpu_forward.head_start(self._decoder.active_sublayers(skip))
        return self._decoder.begin(buffers.tokens, placement, cache, skip=skip, num_sublayers=num_first), capture


def header_runner(model: Any, *_: Any) -> GraphRunner:
    return new_runner(model, make_forwards=lambda decoder: (HeaderForward(decoder),))


def keep_busy(engine: Engine, num_rows: int, per_row: int, **method: Any) -> tuple[list[Generation], list[Any]]:
    """The texts of a session whose rows never wait for another text, and their requests."""
    rng, done = random.Random(1), {}
    prompts = [[rng.randrange(5, 100) for _ in range(rng.choice((2, 9, 40)))] for _ in range(num_rows * per_row)]
    requests = [(prompt, rng.choice((20, 30, 50))) for prompt in prompts]
    with engine.session(max_rows=num_rows) as session:
        ids = [session.add(prompt, max_new_tokens=count, **method) for prompt, count in requests]
        while session.num_open:
            done |= {event.id: event.generation for event in session.step() if event.generation}
    return [done[number] for number in ids], requests


@pytest.mark.parametrize(
    ("method", "make", "eos"),
    [
        (CHAIN, header_runner, None),
        (TREE, header_runner, 82),
        pytest.param(TREE, new_runner, None, marks=pytest.mark.full),
        ({**CHAIN, **RULES}, header_runner, None),
        ({**TREE, **DRAWN}, header_runner, None),
        ({**TREE, **TESTED}, header_runner, 82),
    ],
    ids=lambda value: method_name(value) if isinstance(value, dict) else getattr(value, "__name__", str(value)),
)
def test_who_joins_or_leaves_costs_the_others_little(
    method: dict[str, Any], make: Callable[..., Any], eos: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that was begun serves those who stay; only where a text joins is there none, and none in vain."""
    engine, plain = (new_engine(pico("llama"), one, prefix_cache=False) for one in (make, make_runner))
    for one in (engine, plain):
        monkeypatch.setattr(one.model.generation_config, "eos_token_id", eos)
    run = gpu_drafts.Drafts.run
    with mock.patch.object(gpu_drafts.Drafts, "run", autospec=True, side_effect=run) as asked:
        found, requests = keep_busy(engine, 3, 2, **method)
    own = method if "acceptance" in method else {**method, "strategy": "off", "lookahead": "fixed", "tree": "chain"}
    expected = [plain.generate(prompt, max_new_tokens=count, **own) for prompt, count in requests]
    assert tokens_of(found) == tokens_of(expected)
    hits, misses = hits_of(engine)
    assert misses <= 4, "of texts that end together"
    assert hits > asked.call_count / 2


def test_a_text_that_leaves_may_have_drafted_farther() -> None:
    """Its row runs along once more, and asks for tokens that those who stay have no room for."""
    method, rng = {**CHAIN, **TESTED}, random.Random(3)
    engine, plain = (new_engine(pico("llama"), one, prefix_cache=False) for one in (header_runner, make_runner))
    prompts = [[rng.randrange(5, 100) for _ in range(9)] for _ in range(4)]
    expected = [plain.generate(prompt, max_new_tokens=12, **method).tokens for prompt in prompts[:3]]
    for num_rounds in range(2, 9):
        done = {}
        with engine.session(max_rows=4) as session:
            *ids, leaves = (
                session.add(one, max_new_tokens=60 if one is prompts[3] else 12, **method) for one in prompts
            )
            for step in range(60):
                done |= {event.id: event.generation for event in session.step() if event.generation}
                if step == num_rounds - 1:
                    session.cancel(leaves)
        assert [done[number].tokens for number in ids] == expected, num_rounds
