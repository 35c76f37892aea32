"""Token trees: every node sees its own path and nothing else, and what is kept of a tree becomes the text's cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pico import VARIANTS, VOCAB_SIZE, pico
from selfdraft import Engine, OptionError
from selfdraft.engine.draft import grow
from selfdraft.engine.verify import tree_mask
from selfdraft.models.eager import EagerRunner
from selfdraft.passes import PassRequest, Resume
from selfdraft.trees.siblings import Siblings, read_table
from selfdraft.types import ROOT, Draft

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9], [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5])
COMB = grow([[5, 6, 7], [8, 9], [10]], [[5, 8, 11, 12, 13], [20, 21], [6, 30]], max_depth=10)
SMALL = grow([[4, 0], [0, 1]], [], max_depth=10)
CHAIN = Draft.chain([9, 9, 9])


def path_to(draft: Draft, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.insert(0, draft.tokens[node])
        node = draft.parents[node]
    return path


# ------------------------------------------------------------------------------------------------ building a tree


def test_a_tree_is_the_chain_then_siblings_then_branches() -> None:
    assert COMB.tokens == (5, 8, 10, 6, 7, 9, 11, 12, 13, 20, 21, 30)
    assert COMB.parents == (-1, 0, 1, -1, -1, 0, 1, 6, 7, -1, 9, 3)
    assert COMB.depths == (1, 2, 3, 1, 1, 2, 3, 4, 5, 1, 2, 2)
    assert (COMB.chain_length, COMB.num_drawn, COMB.num_draft_steps) == (3, 6, 3)
    assert COMB.children(ROOT) == [0, 3, 4, 9]
    assert (COMB.find([5, 8, 11]), COMB.find([5, 9, 11]), COMB.find([])) == (6, None, ROOT)


def test_of_children_that_hold_one_token_the_first_counts() -> None:
    draft = Draft((5, 5, 6, 6), (ROOT, ROOT, 1, 0), 1)
    assert (draft.child(ROOT, 5), draft.child(0, 6), draft.child(1, 6), draft.child(ROOT, 6)) == (0, 3, 2, None)


def test_a_tree_stays_within_its_limits() -> None:
    levels, branches = [[5, 6, 7], [8, 9], [10]], [[40, 41, 42, 43]]
    assert grow(levels, branches, max_depth=2).tokens == (5, 8, 10, 6, 7, 9, 40, 41)
    sure = {"max_depth": 9, "confidences": [0.7, 0.8, 0.9]}
    assert grow(levels, branches, max_nodes=5, **sure).tokens == (5, 8, 10, 6, 9)
    assert grow(levels, branches, max_nodes=7, **sure).tokens == (5, 8, 10, 6, 7, 9, 40)
    assert grow(levels, branches, max_nodes=1, **sure).tokens == (5, 8, 10), "the chain is never cut"


def test_siblings_stand_first_where_the_chain_is_likeliest_to_fail() -> None:
    """At its last, unsure level, then where it is reached and less sure; the best of each level before its others."""
    levels = [[10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42, 43]]
    sure = [0.97, 0.9, 0.95, 0.4]

    def kept(max_nodes: int, confidences: list[float] = sure) -> list[int]:
        draft = grow(levels, [], max_depth=9, max_nodes=max_nodes, confidences=confidences)
        assert draft.tokens == (10, 20, 30, 40, *sorted(draft.tokens[4:])), "by depth, as drawn"
        return list(draft.tokens[4:])

    assert kept(5) == [41]
    assert kept(6) == [41, 42]
    assert kept(7) == [21, 41, 42]
    assert kept(9) == [21, 31, 41, 42, 43]
    assert kept(11) == [11, 21, 22, 31, 41, 42, 43]
    assert kept(13) == kept(99) == [11, 12, 21, 22, 31, 32, 41, 42, 43]
    assert kept(6, [0.5] * 4) == [11, 21], "a level that is hardly reached can wait"


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=6), st.integers(1, 40))
def test_every_level_keeps_its_first_tokens(shape: list[tuple[int, float]], max_nodes: int) -> None:
    """As many as there is room for: `rejection` would be wrong where a later one was tried without an earlier one."""
    levels = [[10 * depth + rank for rank in range(count)] for depth, (count, _) in enumerate(shape)]
    draft = grow(levels, [], 9, max_nodes, confidences=[sure for _, sure in shape])
    for depth, level in enumerate(levels):
        tried = [draft.tokens[node] for node in draft.children(depth - 1)]
        assert tried == level[: len(tried)] != []
    assert len(draft.tokens) == max(len(levels), min(max_nodes, sum(map(len, levels))))


token_lists = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), max_size=5), st.lists(token_lists))
def test_every_path_is_there_once(levels: list[list[int]], branches: list[list[int]]) -> None:
    draft = grow(levels, branches, max_depth=5)
    chain = [level[0] for level in levels]
    paths = [tuple(path_to(draft, node)) for node in range(len(draft.tokens))]
    assert len(set(paths)) == len(paths)
    wanted = [[*chain[:depth], token] for depth, level in enumerate(levels) for token in level]
    wanted += [branch[:end] for branch in branches for end in range(1, len(branch) + 1)]
    assert set(paths) == {tuple(path) for path in wanted}
    assert all(parent < node for node, parent in enumerate(draft.parents))
    assert [len(path) for path in paths] == list(draft.depths)


# ------------------------------------------------------------------------------------------------------- one pass


@torch.inference_mode()
def scores_of_paths(model: Any, prompt: list[int], draft: Draft) -> torch.Tensor:
    """[1 + nodes, vocabulary]: after the prompt and after each path, one plain pass each."""
    paths = [[], *(path_to(draft, node) for node in range(len(draft.tokens)))]
    return torch.stack([model(torch.tensor([[*prompt, *path]])).logits[0, -1] for path in paths])


def tree_pass(variant: str, drafts: list[Draft]) -> tuple[EagerRunner, Any, PassRequest]:
    """A runner, a cache with the first prompts but for their last tokens, and the pass that verifies these drafts."""
    runner, prompts = EagerRunner(pico(variant)), PROMPTS[: len(drafts)]
    cache, width = runner.new_cache(len(prompts), 64), max(len(draft.tokens) for draft in drafts)
    for row, prompt in enumerate(prompts):
        if len(prompt) > 1:
            runner.forward(PassRequest([prompt[:-1]], [0], rows=[row]), cache)
    rows = zip(prompts, drafts, strict=True)
    inputs = torch.tensor([[p[-1], *d.tokens, *[0] * (width - len(d.tokens))] for p, d in rows])
    starts = [len(prompt) - 1 for prompt in prompts]
    return runner, cache, PassRequest(inputs, starts, tree=tree_mask(drafts, width + 1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_node_is_scored_as_if_its_path_were_the_text(variant: str) -> None:
    drafts = [COMB, SMALL, CHAIN]
    runner, cache, request = tree_pass(variant, drafts)
    found = runner.forward(request, cache).scores
    for row, (prompt, draft) in enumerate(zip(PROMPTS, drafts, strict=True)):
        expected = scores_of_paths(copy.deepcopy(pico(variant)), prompt, draft)
        torch.testing.assert_close(found[row, : len(draft.tokens) + 1], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("point", "num_known"), [("m0", (1,)), ("m2", (3,)), ("m2", (4, 2, 1)), ("m0", (4, 0, 1))])
@pytest.mark.parametrize("variant", ["llama", "gpt2", "qwen2-sliding", "gemma3_text", "gpt_neox", "granite"])
def test_a_pass_that_starts_behind_known_states_is_the_whole_pass(
    variant: str, point: str, num_known: tuple[int, ...]
) -> None:
    """Known columns bring their states, and their keys and values below that point are in the cache."""
    runner, cache, request = tree_pass(variant, [COMB, SMALL, CHAIN][: len(num_known)])
    starts = request.starts
    whole = runner.forward(request._replace(capture=(point, "norm")), cache)
    hidden = whole.captured[point].clone()
    for row, known in enumerate(num_known):
        hidden[row, known:] = torch.nan
        for store in (*cache.keys, *cache.values):
            store[row, :, starts[row] + known :] = 99.0
    for layer in range(int(point[1:]) + 1, runner.num_layers):
        for store in (cache.keys[layer], cache.values[layer]):
            for row, start in enumerate(starts):
                store[row, :, start:] = 99.0
    resumed = runner.forward(request._replace(capture=("norm",), resume=Resume(point, num_known, hidden)), cache)
    torch.testing.assert_close(resumed.scores, whole.scores, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(resumed.captured["norm"], whole.captured["norm"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_kept_of_a_tree_is_a_chain_afterwards(variant: str) -> None:
    prompt, nodes = PROMPTS[0], [0, 1, 6, 7]
    runner, cache, request = tree_pass(variant, [COMB])
    runner.forward(request, cache)
    cache.move(0, [len(prompt) + node for node in nodes], len(prompt))
    text = [*prompt, *(COMB.tokens[node] for node in nodes), 17]
    found = runner.forward(PassRequest([[17]], [len(text) - 1]), cache).scores[0, 0]
    with torch.inference_mode():
        expected = pico(variant)(torch.tensor([text])).logits[0, -1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------------ whole texts


def test_siblings_and_branches_are_really_kept() -> None:
    """Else all exactness tests with trees would test chains."""
    settings = {"siblings": {"lookup": 2}, "uniform": {"ratio": 0.4}}
    engine = Engine(pico("llama"), strategy="uniform", tree="siblings", settings=settings)
    found = engine.generate(list(PROMPTS), max_new_tokens=60)
    steps = [step for generation in found for step in generation.steps]
    off_chain = [node for step in steps for node in step.verdict.nodes if node >= step.draft.chain_length]
    assert len(off_chain) > 10
    assert any(node >= step.draft.num_drawn for step in steps for node in step.verdict.nodes)


def test_trees_accept_more_than_chains() -> None:
    settings = {"uniform": {"ratio": 0.6}, "siblings": {"table": "swift"}}
    engine = Engine(pico("llama"), strategy="uniform", settings=settings)
    lengths = {
        tree: engine.generate(PROMPTS[0], max_new_tokens=100, tree=tree).stats.mean_generated_length
        for tree in ("chain", "siblings")
    }
    assert lengths["siblings"] > lengths["chain"] > 1


@pytest.mark.parametrize("drafter", ["self", "lookup", "ngram-pool"])
@pytest.mark.parametrize("mode", [{}, {"temperature": 0.7, "seed": 2}], ids=["greedy", "sampled"])
def test_a_model_whose_best_token_is_id_0(mode: dict[str, Any], drafter: str) -> None:
    """Padding must never pass for token 0, nor token 0 for padding."""
    model = copy.deepcopy(pico("llama"))
    with torch.no_grad():
        model.lm_head.weight[0] *= 8  # the best wherever it is positive
    settings = {"uniform": {"ratio": 0.4}, "lookup": {"min_ngram": 1}, "siblings": {"lookup": 2}}
    engine = Engine(model, strategy="uniform", settings=settings)
    drafted = engine.generate(list(PROMPTS), max_new_tokens=30, tree="siblings", drafter=drafter, **mode)
    tokens = [token for generation in drafted for token in generation.tokens]
    assert 0.2 < tokens.count(0) / len(tokens) < 1, "token 0 is not the best often enough to say anything"
    assert any(0 in step.draft.tokens for generation in drafted for step in generation.steps)
    for row, generation in enumerate(drafted):
        plain = engine.generate(PROMPTS[row], max_new_tokens=30, strategy="off", sequence=row, **mode)
        assert generation.tokens == plain.tokens


# ---------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("table", "confidence", "count"),
    [("swift", p, k) for p, k in ((0.1, 10), (0.5, 10), (0.51, 5), (0.8, 5), (0.81, 3), (0.95, 3), (0.96, 1), (1.0, 1))]
    + [("swift-code", p, k) for p, k in ((0.5, 10), (0.51, 8), (0.8, 8), (0.81, 5), (0.95, 5), (0.96, 3), (1.0, 3))]
    + [("narrow", p, k) for p, k in ((0.5, 4), (0.8, 3), (0.95, 2), (0.96, 1))]
    + [("1:7", 0.3, 7), ("0.9:2,1:1", 0.9, 2), ("0.9:2,1:1", 0.91, 1)],
)
def test_candidates_by_confidence(table: str, confidence: float, count: int) -> None:
    siblings = Siblings(Siblings.Options(table=table))
    assert siblings.num_candidates(confidence) == count
    assert siblings.max_candidates >= count


@pytest.mark.parametrize(("option", "wide", "narrow"), [(0, 62, 31), (7, 7, 7), (100, 100, 100)])
def test_as_many_nodes_as_a_pass_takes_lightly(option: int, wide: int, narrow: int) -> None:
    siblings = Siblings(Siblings.Options(max_nodes=option))
    assert (siblings.max_nodes(1, is_recorded=True), siblings.max_nodes(1, is_recorded=False)) == (wide, narrow)


@pytest.mark.parametrize("text", ["", "swiftly", "0.5:3", "0.5:3,0.4:2,1:1", "0:3,1:1", "0.5:0,1:1", "a:b", "1"])
def test_a_table_that_cannot_be_read(text: str) -> None:
    with pytest.raises(OptionError, match=r"cannot read siblings.table=.*0.5:4,.*narrow, swift, swift-code"):
        read_table(text)


def test_vocabulary_smaller_than_the_table() -> None:
    engine = Engine(pico("llama", vocab_size=6), tree="siblings", settings={"siblings": {"table": "1:50"}})
    options: dict[str, Any] = {"max_new_tokens": 20}
    assert engine.generate([1, 2], **options).tokens == engine.generate([1, 2], strategy="off", **options).tokens
    assert VOCAB_SIZE > 50
