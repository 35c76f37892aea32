"""Rejection on the device: the same verdicts as going down each tree level by level, in plain vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch

from on_device import DEVICE, HAS_GPU, VOCAB, by_path, even_columns
from selfdraft import GenerateOptions
from selfdraft.engine.draft import grow
from selfdraft.engine.sampling import Sampler
from selfdraft.engine.verify import tree_mask
from selfdraft.kernels import reject_reference, top
from selfdraft.noise import DRAW, REST, TEST, gumbel, keys_of, mixed, uniform_at
from selfdraft.passes import NoiseKey, Site
from selfdraft.types import ROOT, Draft

SEED = 2**40 + 7
WARPINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.01},
    {"temperature": 0.7, "top_k": 1000, "top_p": 0.9},
    {"temperature": 0.02},
]


def rejecter(path: str) -> Any:
    if path == "torch":
        return reject_reference.reject
    from selfdraft.kernels.reject import reject

    return reject


class Case:
    """Rows of random drafts: the target is the draft with some noise, so that all kinds of verdicts come about."""

    def __init__(self, options: dict[str, Any], number: int, dtype: torch.dtype = torch.float32) -> None:
        self.sampler = Sampler(GenerateOptions(**options))
        random = torch.Generator().manual_seed(number)
        self.sites = [Site(4 + row, 9 * row, number + row, SEED) for row in range(3)]
        peaked = torch.randn(3, 3, VOCAB, generator=random) * 3
        self.drawn_from = peaked.to(DEVICE, dtype)
        self.drafts = [
            self.draft(row, 3 - row, 1 if number % 3 == 0 else 4, number % 2 == 0, random) for row in range(3)
        ]
        self.width = 1 + max(len(draft.tokens) for draft in self.drafts)
        scores = torch.randn(3, self.width, VOCAB, generator=random)
        for row, draft in enumerate(self.drafts):
            for column, depth in enumerate((0, *draft.depths)):
                scores[row, column] += peaked[row, min(depth, 2)]
        self.scores = scores.to(DEVICE, dtype)

    def draft(self, row: int, depths: int, count: int, has_branches: bool, random: torch.Generator) -> Draft:
        """As the engine draws it: candidates without replacement, branches from nowhere."""
        place, levels = NoiseKey.of([self.sites[row]], DEVICE), []
        for depth in range(depths):
            warped = self.sampler.warp(self.drawn_from[row, depth : depth + 1])
            values, tokens = self.sampler.best(warped, count, place.ahead(depth), place.rounds, DRAW)
            levels.append([token for value, token in zip(values[0], tokens[0].tolist(), strict=True) if value > -1e30])
        guesses = torch.randint(VOCAB, (2, 3), generator=random).tolist() if has_branches else []
        branches = [*guesses, [levels[0][0], *guesses[0]], [int(self.drawn_from[row, 0].argmax())]] if guesses else []
        return replace(grow(levels, branches, 4), scores=self.drawn_from[row, :depths])

    def judged_by(self, path: str, is_packed: bool = False) -> list[list[int]]:
        choosing = self.sampler.choosing(self.sites, (), REST).over(self.drafts, is_tested=True)
        padding = [[0] * (self.width - 1 - len(draft.tokens)) for draft in self.drafts]
        mask = tree_mask(self.drafts, self.width)
        tokens = [[7, *draft.tokens, *more] for draft, more in zip(self.drafts, padding, strict=True)]
        numbers = (choosing.settings, choosing.indices, mask.depths, tokens, mask.sees, [0] * len(tokens))
        columns = even_columns(*(torch.tensor(part, device=DEVICE) for part in numbers))
        scores = self.scores.flatten(0, 1)
        if is_packed:
            widths = [1 + len(draft.tokens) for draft in self.drafts]
            places = [self.width * row + column for row, width in enumerate(widths) for column in range(width)]
            first, lines = (torch.tensor(part, device=DEVICE) for part in ([0, *accumulate(widths)], places))
            scores, columns = scores[lines], replace(columns, first=first, places=lines)
        found = rejecter(path)(scores, self.drawn_from.clone(), columns, choosing.kind)
        return found.tolist()

    def expected(self, row: int) -> tuple[list[int], int]:
        """The nodes that are kept, and the last word."""
        draft, site, node, kept = self.drafts[row], self.sites[row], ROOT, []
        while True:
            target = self.sampler.warp(self.scores[row, node + 1 : node + 2])[0].double().softmax(-1)
            place = NoiseKey.of([site], DEVICE).ahead(len(kept))
            index = place.indices.cpu()
            keys = tuple(mixed(torch.tensor(key), index, site.round, TEST) for key in keys_of(SEED, site.sequence))
            tests = uniform_at(keys, len(draft.children(node)))[0].tolist()
            child = None
            offered = None
            for one, chance in zip(draft.children(node), tests, strict=True):
                token = draft.tokens[one]
                if one < draft.num_drawn:
                    if offered is None:
                        offered = self.sampler.warp(draft.scores[len(kept)][None])[0].double()
                    share = offered.softmax(-1)
                else:
                    share = torch.zeros_like(target)
                    share[token] = 1.0
                if chance * share[token] < target[token]:
                    child = one
                    break
                target = (target - share).clamp(min=0)
                target = target / target.sum()
                if offered is not None:
                    offered[token] = -torch.inf
            if child is None:
                noise = gumbel(place, VOCAB, place.rounds, REST)
                return kept, int((target.log() + noise[0]).argmax())
            kept.append(child)
            node = child


def kept_by(numbers: Sequence[int]) -> tuple[list[int], int]:
    return [column - 1 for column in numbers[1 : 1 + numbers[0]]], numbers[-1]


@by_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_verdicts_are_those_of_the_walk_level_by_level(path: str, dtype: torch.dtype) -> None:
    """Chains and trees, with branches that come from no distribution; rows of several sizes, packed or padded."""
    num_kept, num_refused = set(), set()
    is_slow = path == "triton" and not HAS_GPU  # Triton's interpreter is
    for number in ([1] if dtype == torch.bfloat16 else [4, 6]) if is_slow else range(40):
        case = Case(WARPINGS[number % len(WARPINGS)], number, dtype)
        found = [kept_by(numbers) for numbers in case.judged_by(path, is_packed=number % 4 > 1)]
        assert found == [case.expected(row) for row in range(3)], number
        for draft, (nodes, _) in zip(case.drafts, found, strict=True):
            num_kept.add(len(nodes))
            num_refused.add(len(draft.children(nodes[-1] if nodes else ROOT)))
    assert is_slow or num_kept >= {0, 1, 2}
    assert is_slow or num_refused >= {0, 1, 4}


def test_what_is_said_after_the_columns_that_are_kept() -> None:
    """Its own token after each that a kept one follows, the last word after the last."""
    num_kept = set()
    for number in range(10):
        case = Case(WARPINGS[number % len(WARPINGS)], number)
        verdicts = torch.tensor(case.judged_by("torch"))
        tokens = torch.tensor(
            [[7, *draft.tokens, *[0] * (case.width - 1 - len(draft.tokens))] for draft in case.drafts]
        )
        found = top.said(verdicts, tokens).tolist()
        assert tokens.shape == (3, case.width) == (len(found), len(found[0]))
        for row, (draft, numbers) in enumerate(zip(case.drafts, verdicts.tolist(), strict=True)):
            nodes, last = kept_by(numbers)
            emitted = [*(draft.tokens[node] for node in nodes), last]
            assert [found[row][column] for column in (0, *(node + 1 for node in nodes))] == emitted
            num_kept.add(len(nodes))
    assert num_kept >= {0, 1, 2}
