"""What the loop promises to every strategy: its calls, its captured states, and freedom to plan as it likes."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import learned
from pico import NUM_LAYERS, pico
from selfdraft import Engine, Plan, ProfileError, SkipSet, StepRecord
from selfdraft.engine import decode
from selfdraft.engine.draft import GroupDraft
from selfdraft.engine.method import share_skip
from selfdraft.engine.prefill import PREFILL_CHUNK
from selfdraft.models.eager import EagerRunner
from selfdraft.options import NoOptions
from selfdraft.passes import PassRequest
from selfdraft.protocols import Knowledge, PlanContext
from selfdraft.registry import STRATEGIES, find
from selfdraft.strategies.base import PlainStrategy
from selfdraft.types import OFF

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5], [16, 18, 3])
PLANS = (
    Plan(SkipSet.of([1], [2])),
    Plan(SkipSet.of(range(NUM_LAYERS), range(NUM_LAYERS)), max_draft_tokens=3),
    OFF,
    Plan(drafter="lookup"),
    Plan(SkipSet.of([0, 2, 3]), drafter="self", max_draft_tokens=1),
    Plan(max_draft_tokens=100),
    Plan(SkipSet.of([2]), tree="siblings"),
    Plan(SkipSet.of([2, 3, 4], [2, 3, 4]), reuse=True),
    Plan(SkipSet.of([2, 3, 4], [2, 3, 4]), tree="siblings", reuse=True),
    Plan(drafter="ngram-pool", tree="siblings"),
    Plan(drafter="model"),
)
SETTINGS = {
    "lookup": {"min_ngram": 1},
    "model": {"source": pico("llama", num_hidden_layers=2)},
    "siblings": {"lookup": 1},
}


class Restless(PlainStrategy):
    """Another plan for every row in every round; remembers what it was told."""

    Options = NoOptions
    needs = ("embedding", "a1", "m2", "norm")
    last: Restless

    def __init__(self, options: NoOptions, knowledge: Knowledge) -> None:
        self.prefills: dict[int, Mapping[str, torch.Tensor]] = {}
        self.contexts: dict[int, list[PlanContext]] = {}
        self.steps: dict[int, list[StepRecord]] = {}
        self.ended: Counter[int] = Counter()
        Restless.last = self

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        assert sequence_id not in self.prefills, "two texts share an id"
        self.prefills[sequence_id] = prefill

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        contexts = self.contexts.setdefault(sequence_id, [])
        contexts.append(context)
        return PLANS[(sequence_id + len(contexts)) % len(PLANS)]

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self.steps.setdefault(sequence_id, []).append(step)

    def end(self, sequence_id: int) -> None:
        self.ended[sequence_id] += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(STRATEGIES, "restless", f"{__name__}:Restless")  # type: ignore[arg-type]
    return Engine(pico("gemma2"), strategy="restless", settings=SETTINGS, shared_skip=False)


@functools.cache
def plain(row: int, **options: float) -> tuple[int, ...]:
    engine = Engine(pico("gemma2"), strategy="off")
    return engine.generate(PROMPTS[row], sequence=row, max_new_tokens=24, **options).tokens


@pytest.mark.parametrize("shared_skip", [False, True], ids=["own sets", "one set"])
@pytest.mark.parametrize("needs", [Restless.needs, ()], ids=["capturing", "not capturing"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}], ids=str)
def test_rows_may_plan_differently_in_every_round(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, float],
    needs: tuple[str, ...],
    shared_skip: bool,
) -> None:
    monkeypatch.setattr(Restless, "needs", needs)
    monkeypatch.setattr(engine, "_shared_skip", shared_skip)
    found = engine.generate(list(PROMPTS), max_new_tokens=24, **options)
    assert [one.tokens for one in found] == [plain(row, **options) for row in range(len(PROMPTS))]
    drafted = [len(step.draft.tokens) for generation in found for step in generation.steps]
    assert len(set(drafted)) >= 4, "the plans did not differ"


class ByText(Restless):
    """A set for each text, the longer the text the more of it; some decode plainly."""

    needs = ()
    sets: tuple[Plan, ...] = ()

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        place = context.num_context_tokens - context.num_generated_tokens
        return self.sets[place % len(self.sets)]


ONE, OTHER = Plan(SkipSet.of([1], [2])), Plan(SkipSet.of([2, 3], [1]), max_draft_tokens=2)
SIBLINGS = Plan(SkipSet.of([3]), tree="siblings")


def drafts_of(plans: tuple[Plan, ...], monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[list[int]]:
    """Of the first rounds of texts with these plans: how many rows drafted together. Texts are those of single runs."""
    monkeypatch.setitem(STRATEGIES, "by-text", f"{__name__}:ByText")  # type: ignore[arg-type]
    monkeypatch.setattr(ByText, "sets", plans)
    engine = Engine(pico("llama"), strategy="by-text", shared_skip=options.pop("shared_skip", True))
    rounds: list[list[int]] = []
    run, run_all = GroupDraft.run, decode.run_drafts

    def watched(group: GroupDraft) -> Any:
        rounds[-1].append(len(group._rows.rows))
        return run(group)

    def watched_all(*arguments: Any) -> Any:
        rounds.append([])
        return run_all(*arguments)

    prompts = [list(range(5, 5 + len(plans) + place)) for place in range(len(plans))]
    alone = [engine.generate(one, sequence=row, max_new_tokens=20, **options) for row, one in enumerate(prompts)]
    assert {step.plan for one in alone for step in one.steps} == set(plans)
    with monkeypatch.context() as patched:
        patched.setattr(GroupDraft, "run", watched)
        patched.setattr(decode, "run_drafts", watched_all)
        found = engine.generate(prompts, max_new_tokens=20, **options)
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    seen = [Restless.last.steps[number] for number in sorted(Restless.last.steps)[-len(plans) :]]
    assert [[step.plan for step in one.steps] for one in found] == [[step.plan for step in steps] for steps in seen]
    return rounds


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 4}, {"repetition_penalty": 1.2}], ids=str)
def test_rows_with_several_sets_draft_together(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plans = (ONE, OTHER, OFF, SIBLINGS, OTHER)
    assert drafts_of(plans, monkeypatch, **options)[0] == [3, 1]
    assert sorted(drafts_of(plans, monkeypatch, **options, shared_skip=False)[0]) == [1, 1, 2]


def test_what_rejection_tests_is_drafted_with_the_set_of_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"temperature": 0.9, "acceptance": "rejection"}
    assert drafts_of((ONE, OTHER, OTHER), monkeypatch, **options)[0] == [1, 2]
    assert drafts_of((ONE, OTHER, OTHER), monkeypatch, acceptance="rejection")[0] == [3]


def test_rows_take_the_set_of_most_of_them() -> None:
    long = replace(ONE, max_draft_tokens=7)
    plans = [OTHER, ONE, OFF, SIBLINGS, long]
    share_skip(plans, [0, 1, 2, 3, 4])
    assert plans == [ONE, ONE, OFF, SIBLINGS, long], "who has the set keeps its own limit"
    plans = [OTHER, ONE, OFF]
    share_skip(plans, [2, 1, 0])
    assert plans == [ONE, ONE, OFF], "of equals the first one's"


class TwoTrees(Restless):
    """One exact point for all rows, but groups that draft one after the other and carry each other's rows along."""

    needs = ()

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        upper = range(2, NUM_LAYERS)
        return Plan(SkipSet.of(upper, upper), reuse=True, tree="siblings" if sequence_id % 2 else "chain")


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_exact_states_that_another_group_overwrote_are_not_used(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "two-trees", f"{__name__}:TwoTrees")  # type: ignore[arg-type]
    engine = Engine(pico(family), strategy="two-trees", lookahead="fixed", settings={"fixed": {"tokens": 4}})
    found = engine.generate(list(PROMPTS), max_new_tokens=30)
    for row, prompt in enumerate(PROMPTS):
        assert found[row].tokens == engine.generate(prompt, strategy="off", max_new_tokens=30).tokens


def test_captured_states_are_those_of_the_verified_tokens(engine: Engine) -> None:
    """Prefill and rounds together hold one state per token but the last, equal to a plain pass over the text."""
    engine.generate([list(prompt) for prompt in PROMPTS], max_new_tokens=20)
    strategy = Restless.last
    for sequence_id, prompt in enumerate(PROMPTS):
        steps = strategy.steps[sequence_id]
        tokens = [*prompt, *itertools.chain.from_iterable(step.verdict.tokens for step in steps)]
        runner = engine._runner
        request = PassRequest([tokens[:-1]], [0], capture=Restless.needs)
        expected = runner.forward(request, runner.new_cache(1, len(tokens))).captured
        for name in Restless.needs:
            parts = [strategy.prefills[sequence_id][name]] if strategy.prefills[sequence_id] else []
            states = torch.cat([*parts, *(step.captured[name] for step in steps)])
            assert torch.allclose(states, expected[name][0], atol=1e-4), name


def test_a_prompt_of_several_chunks_is_captured_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "restless", f"{__name__}:Restless")  # type: ignore[arg-type]
    engine = Engine(pico("llama", max_position_embeddings=4096), strategy="restless", settings=SETTINGS)
    prompt = [(7 * index * index + 3) % 100 for index in range(PREFILL_CHUNK * 2 + 60)]
    found = engine.generate(prompt, max_new_tokens=5)
    runner = engine._runner
    request = PassRequest([prompt[:-1]], [0], capture=("norm",))
    expected = runner.forward(request, runner.new_cache(1, len(prompt))).captured["norm"]
    assert torch.allclose(Restless.last.prefills[0]["norm"], expected[0], atol=1e-4)
    assert found.tokens == engine.generate(prompt, max_new_tokens=5, strategy="off").tokens
    plain = engine.model.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
    assert list(found.tokens) == plain[0, len(prompt) :].tolist()


def test_an_error_while_prefilling_is_not_hidden(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = EagerRunner.forward

    def breaks(runner: Any, request: PassRequest, cache: Any) -> Any:
        if request.is_prompt and 1 in request.rows:
            raise MemoryError("full")
        return forward(runner, request, cache)

    monkeypatch.setattr(EagerRunner, "forward", breaks)
    with engine.session() as session:
        session.add(PROMPTS[0], max_new_tokens=50)
        session.step()
        session.add(PROMPTS[2], max_new_tokens=50)
        with pytest.raises(MemoryError, match="full"):
            session.step()
    assert Restless.last.ended == Counter([0]), "only what had begun may end"


def test_planning_time_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Restless.plan

    def slow(*arguments: Any) -> Plan:
        time.sleep(0.01)
        return plan(*arguments)

    monkeypatch.setattr(Restless, "plan", slow)
    stats = engine.generate(PROMPTS[0], max_new_tokens=5).stats
    assert stats.optimise_seconds >= 0.01 * stats.num_rounds


def test_captured_states_do_not_outlive_the_round(engine: Engine) -> None:
    assert all(not step.captured for step in engine.generate(PROMPTS[0], max_new_tokens=5).steps)


def test_plans_see_where_the_text_stands(engine: Engine) -> None:
    engine.generate(PROMPTS[0], max_new_tokens=20)
    contexts, steps = Restless.last.contexts[0], Restless.last.steps[0]
    emitted = itertools.accumulate((len(step.verdict.tokens) for step in steps), initial=0)
    assert [context.num_generated_tokens for context in contexts] == list(emitted)[:-1]
    assert all(c.num_context_tokens == len(PROMPTS[0]) + c.num_generated_tokens for c in contexts)


def test_every_text_has_its_own_id_and_ends_once(engine: Engine) -> None:
    """Also where streams of one engine interleave, are abandoned, or break."""

    def breaks(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mine")

    streams = [engine.stream([PROMPTS[0], PROMPTS[3]], max_new_tokens=30) for _ in range(2)]
    for _ in itertools.islice(zip(*streams, strict=False), 3):
        pass
    for stream in streams:
        stream.close()
    with pytest.raises(RuntimeError, match="mine"):
        engine.generate(PROMPTS[0], processors=[breaks])
    strategy = Restless.last
    assert sorted(strategy.prefills) == [0, 1, 2, 3, 4]
    assert strategy.ended == Counter(range(5))


@pytest.mark.parametrize(
    ("strategy", "name", "options", "told"),
    [
        ("prune", None, {}, "MODEL --strategy prune"),
        ("knn", "pico", {}, "pico --strategy knn --domain-field domain --prompts FILE"),
        ("draft-verify", "pico", {"calibrate_on": "first"}, "pico .* --set draft-verify.calibrate_on=first"),
    ],
)
def test_without_calibration_the_command_is_named(strategy: str, name: Any, options: Any, told: str) -> None:
    message = f"the strategy '{strategy}' needs to know the model.*Run: selfdraft calibrate {told}"
    with pytest.raises(ProfileError, match=message):
        Engine(pico("llama"), name=name, profile=None, strategy=strategy, settings={strategy: options})


DAMAGED: list[tuple[str, Any, str]] = [
    ("prune", {}, "cannot be read (KeyError"),
    ("prune", {"frontier": [{"skip": "a99", "lost": 0, "match": 1}]}, "the model has 5 layers"),
    ("prune", {"frontier": [{"skip": "", "lost": 0, "match": 1}]}, "has no skip set yet"),
    ("prune", {"frontier": [{"skip": "x"}]}, "cannot read 'x'"),
    ("draft-verify", {"sets": {"first": {"skip": "a1"}}}, "for calibrate_on=mixed; what it has: first. Run: "),
    ("draft-verify", {"sets": {}}, "what it has: nothing. Run: "),
    ("draft-verify", {}, "cannot be read (KeyError: 'sets'). Make it again with: "),
    ("draft-verify", {"sets": {"mixed": "a1"}}, "cannot be read (TypeError: "),
    ("draft-verify", {"sets": {"mixed": {"skip": "b7"}}}, "cannot read 'b7'"),
    ("draft-verify", {"sets": {"mixed": {"skip": 7}}}, "cannot be read (AttributeError: "),
    ("draft-verify", {"sets": {"mixed": {"skip": "a9"}}}, "attention layer 9, but the model has 5 layers"),
]
DAMAGED += [
    ("knn", {**learned.knn().content, **damage}, "domains of `knn` cannot be read")
    for damage in (
        {"anchors": torch.zeros(3)},
        {"anchors": torch.full((4, learned.HIDDEN_SIZE), torch.nan)},
        {"anchor_domains": torch.zeros(4, dtype=torch.int64)},
        {"domains": [{"name": "low"}]},
        {"domains": []},
        {"general": {"frontier": [{"skip": "a99", "lost": 0.0, "match": 1.0}]}},
        {"general": {}},
        {"samples": None},
    )
]


@pytest.mark.parametrize(("strategy", "content", "message"), DAMAGED)
def test_what_cannot_be_read_is_named_with_the_command(strategy: str, content: Any, message: str) -> None:
    kind = find("strategy", strategy)
    knowledge = Knowledge(NUM_LAYERS, learned.latency, lambda name, *told: content)
    with pytest.raises(ProfileError) as caught:
        kind(kind.Options(), knowledge)
    assert message in str(caught.value)
    assert f"selfdraft calibrate MODEL --strategy {strategy}" in str(caught.value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_says_what_it_can(name: str) -> None:
    kind = find("strategy", name)
    assert kind.can_fit == (kind.fit is not PlainStrategy.fit)
    assert (kind.learns_online or kind.is_kept) == (kind.state is not PlainStrategy.state)
    assert kind.learns_online == (kind.is_settled is not PlainStrategy.is_settled)
