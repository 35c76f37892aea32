"""Exactness: whatever drafts, the text is the target's own. Being registered means being tested here.

The reference of every case, ragged batches included, is one plain run per prompt. In float32 not even a tie is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
import torch

from cases import MODES, SAMPLED, SETTINGS, SIMILAR, Case, groups, matrix, name, pairwise
from learned import profile
from pico import FAMILIES, pico
from selfdraft import Engine, Generation
from selfdraft.engine import decode, draft, session
from selfdraft.engine.state import State
from selfdraft.models.families import FAMILIES as ROWS
from selfdraft.registry import ACCEPTANCES, DRAFTERS, LOOKAHEADS, STRATEGIES, TREES, find
from selfdraft.types import OFF, Plan

NUM_TOKENS = 18
MANY_TOKENS = 24
"""After fewer, some strategies have not been refused a draft, and some rules have changed nothing."""
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5], [16, 18, 3])


def of_one_family(family: str, *more: Any, name: str | None = None) -> Any:
    """A parameter whose tests run in one process: its engine and its references are made once."""
    return pytest.param(*more or (family,), marks=pytest.mark.xdist_group(f"lossless-{family}"), id=name)


@functools.cache
def engine_for(family: str) -> Engine:
    return Engine(pico(family), settings=SETTINGS, profile=profile())


def reference(family: str, mode: str, row: int, num_tokens: int = NUM_TOKENS) -> Generation:
    """One prompt, decoded plainly, alone."""
    return _written(family, mode, row, num_tokens)


@functools.cache
def _written(family: str, mode: str, row: int, num_tokens: int) -> Generation:
    return engine_for(family).generate(
        PROMPTS[row], strategy="off", sequence=row, max_new_tokens=num_tokens, **MODES[mode]
    )


def assert_lossless(case: Case, num_tokens: int = NUM_TOKENS) -> list[Generation]:
    engine = engine_for(case["family"])
    method = {axis: case[axis] for axis in ("strategy", "lookahead", "drafter", "tree", "acceptance")}
    rows = range(len(PROMPTS)) if case["batch"] == "ragged" else [0]
    options: dict[str, Any] = {"max_new_tokens": num_tokens, **MODES[case["mode"]]}
    found = engine.generate([PROMPTS[row] for row in rows], **options, **method)
    for row, generation in zip(rows, found, strict=True):
        expected = reference(case["family"], case["mode"], row, num_tokens)
        comparison = engine.compare(PROMPTS[row], expected, generation, sequence=row, **options)
        assert comparison.verdict == "equal", (row, comparison)
        assert generation.finish_reason == expected.finish_reason == "length"
    has_drafted = any(generation.stats.num_draft_steps for generation in found)
    if case["strategy"] == "off" or case["drafter"] in ("self", "model"):  # others may find nothing to draft
        assert has_drafted == (case["strategy"] != "off")
    return found


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_with_every_lookahead(strategy: str, lookahead: str, acceptance: str) -> None:
    case = {"family": "llama", "strategy": strategy, "lookahead": lookahead, "drafter": "self", "tree": "chain"}
    case |= {"acceptance": acceptance, "mode": "greedy", "batch": "single"}
    (found,) = assert_lossless(case, MANY_TOKENS)
    assert 0 < found.stats.num_accepted < found.stats.num_draft_steps or strategy == "off", "the draft is never tried"


@pytest.mark.parametrize("case", [of_one_family(case["family"], case, name=name(case)) for case in pairwise()])
def test_pairwise_over_all_axes(case: Case) -> None:
    assert_lossless(case)


@pytest.mark.full
@pytest.mark.parametrize("family", SIMILAR)
def test_pairwise_of_similar_families(family: str) -> None:
    for case in pairwise(SIMILAR):
        if case["family"] == family:
            assert_lossless(case)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("strategy", "drafter"), [("early-exit", "self"), *(("uniform", name) for name in DRAFTERS)])
def test_texts_drawn_by_rejection_are_reproducible(strategy: str, drafter: str, tree: str) -> None:
    """They have the target's distribution (tests/test_sampling.py), not the plain run's tokens."""
    method = {"strategy": strategy, "drafter": drafter, "tree": tree, "acceptance": "rejection"}
    once, again = (engine_for("llama").generate(list(PROMPTS), max_new_tokens=15, **SAMPLED, **method) for _ in "12")
    assert [generation.tokens for generation in once] == [generation.tokens for generation in again]
    assert all(len(generation.tokens) == 15 for generation in once)


WHOLE = groups(matrix(("llama", "qwen2", "gpt2", "gemma2")), "family", "strategy", "lookahead")


@pytest.mark.full
@pytest.mark.parametrize("group", WHOLE)
def test_whole_matrix(group: str) -> None:
    for case in WHOLE[group]:
        assert_lossless(case)


PER_TEXT: dict[str, dict[str, Any]] = {
    "asd": {"similarity": 0.9},
    "clasp": {"interval": 2},
    "knapspec": {"interval": 2},
    "knn": {},
}


@pytest.mark.parametrize("shared_skip", [True, False])
@pytest.mark.parametrize("strategy", PER_TEXT)
def test_texts_with_sets_of_their_own_share_one_draft(
    strategy: str, shared_skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless told otherwise; their texts are those of single plain runs, greedy and sampled."""
    monkeypatch.setattr(engine_for("llama"), "_shared_skip", shared_skip)
    settings, num_sets, num_groups = {strategy: {**SETTINGS.get(strategy, {}), **PER_TEXT[strategy]}}, [], []
    plan, groups_of = decode.make_plans, draft._groups

    def planned(*arguments: Any) -> Any:
        own: list[Plan] = []
        asked = find("strategy", strategy).plan

        def watched(*arguments: Any) -> Plan:
            own.append(asked(*arguments))
            return own[-1]

        with monkeypatch.context() as patched:
            patched.setattr(find("strategy", strategy), "plan", watched)
            plans = plan(*arguments)
        num_sets.append(len({one.skip for one in own if one != OFF}))
        return plans

    def grouped(*arguments: Any) -> Any:
        groups = groups_of(*arguments)
        num_groups.append(len(groups))
        return groups

    monkeypatch.setattr(decode, "make_plans", planned)
    monkeypatch.setattr(draft, "_groups", grouped)
    for mode in ("greedy", "sampled"):
        options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, **MODES[mode]}
        found = engine_for("llama").fork().generate(list(PROMPTS), strategy=strategy, settings=settings, **options)
        assert [one.tokens for one in found] == [reference("llama", mode, row).tokens for row in range(len(PROMPTS))]
    assert max(num_sets) > 1, "the texts' own sets do not differ"
    assert max(num_groups) == 1 if shared_skip else max(num_groups) > 1


def test_the_covering_array_is_small_and_covers_every_pair() -> None:
    cases, whole = pairwise(), matrix()
    assert len(cases) <= 240
    for one, other in itertools.combinations(cases[0], 2):
        assert {(case[one], case[other]) for case in cases} == {(case[one], case[other]) for case in whole}


@pytest.mark.parametrize("family", [*map(of_one_family, FAMILIES)])
def test_plain_decoding_equals_transformers(family: str) -> None:
    for row in (0, 2):
        prompt = PROMPTS[row]
        expected = pico(family).generate(torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False)
        assert list(reference(family, "greedy", row).tokens) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("mode", ["greedy", pytest.param("sampled", marks=pytest.mark.full)])
@pytest.mark.parametrize("family", [of_one_family(family) for family in FAMILIES if ROWS[family].parts])
def test_the_modules_own_forward_writes_the_same_texts(family: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other texts here are those of joined sub-layers, where a family has them."""
    monkeypatch.setitem(ROWS, family, dataclasses.replace(ROWS[family], parts=None))
    engine = Engine(pico(family), settings=SETTINGS, profile=profile())
    found = engine.generate(list(PROMPTS), strategy="fixed", max_new_tokens=NUM_TOKENS, **MODES[mode])
    assert [one.tokens for one in found] == [reference(family, mode, row).tokens for row in range(len(PROMPTS))]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", ["self", "lookup"])
@pytest.mark.parametrize("mode", MODES)
def test_rules_that_depend_on_the_prefix(mode: str, drafter: str, tree: str) -> None:
    """Penalties, a bias and a caller's processor act on every drafted position's own prefix, on every branch."""

    def favour_length(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """A pure function of the prefix: what is favoured changes with every token."""
        scores = scores.clone()
        scores[:, (prefix.shape[1] * 7 + prefix[0, -1]) % scores.shape[1]] += 4.0
        return scores

    options: dict[str, Any] = {
        "max_new_tokens": MANY_TOKENS,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logit_bias": {30: 2.0, 27: -3.0},
        "processors": [favour_length],
        **MODES[mode],
    }
    engine = engine_for("llama")
    drafted = engine.generate(list(PROMPTS), drafter=drafter, tree=tree, **options)
    for row, generation in enumerate(drafted):
        plain = engine.generate(PROMPTS[row], strategy="off", sequence=row, **options)
        assert generation.tokens == plain.tokens
        assert generation.tokens != reference("llama", mode, row, MANY_TOKENS).tokens, "the rules change nothing"
    steps = [step for generation in drafted for step in generation.steps]
    kept = [(step.draft, node) for step in steps for node in step.verdict.nodes]
    assert drafter == "lookup" or kept
    assert (drafter, tree) != ("self", "siblings") or any(node >= draft.chain_length for draft, node in kept)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_verified_is_never_written_again(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning, drafting and observing leave the cache below each row's verified length alone, bit by bit."""
    states: list[State] = []
    checked: list[str] = []

    def verified() -> list[torch.Tensor]:
        (state,) = states
        stores = (*state.cache.keys, *state.cache.values)
        return [
            store[row, :, :start].clone()
            for store in stores
            for row, start in zip(state.rows, state.starts, strict=True)
        ]

    def watch(owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            before = verified()
            result = original(*arguments, **keywords)
            assert all(torch.equal(old, new) for old, new in zip(before, verified(), strict=True)), attribute
            checked.append(attribute)
            return result

        monkeypatch.setattr(owner, attribute, watched)

    class Remembered(State):
        def __init__(self, cache: Any) -> None:
            super().__init__(cache)
            states.append(self)

    monkeypatch.setattr(session, "State", Remembered)
    watch(decode, "run_drafts")
    for attribute in ("plan", "observe"):
        watch(find("strategy", strategy), attribute)
    engine_for("gpt2").generate(list(PROMPTS), strategy=strategy, max_new_tokens=20)
    assert {"run_drafts", "plan", "observe"} <= set(checked)


@pytest.mark.parametrize("seed", [1, 2**40])
def test_same_seed_same_text_alone_and_as_row_of_a_batch(seed: int) -> None:
    engine, options = engine_for("qwen2"), {"temperature": 0.8, "top_p": 0.9, "seed": seed, "max_new_tokens": 30}
    batch = engine.generate(list(PROMPTS), **options)
    for row, prompt in enumerate(PROMPTS):
        alone_drafting = engine.generate(prompt, sequence=row, **options)
        alone_plain = engine.generate(prompt, sequence=row, strategy="off", **options)
        assert batch[row].tokens == alone_drafting.tokens == alone_plain.tokens
    assert engine.generate(PROMPTS[0], **options, strategy="off").tokens == batch[0].tokens
    other = engine.generate(PROMPTS[0], **{**options, "seed": seed + 1})
    assert other.tokens != batch[0].tokens


def test_rows_of_one_batch_draw_different_noise() -> None:
    twins = engine_for("llama").generate([PROMPTS[0]] * 4, max_new_tokens=30, temperature=1.5)
    assert len({generation.tokens for generation in twins}) == 4
