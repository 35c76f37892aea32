"""What is kept of a draft: pure functions of the draft and the target's scores.

An acceptance has two halves that belong together: how the draft draws its candidates, and what the target keeps of
them. Both walk the draft's tree from the committed text down and end with a token of the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..noise import uniform
from ..passes import NoiseKey, PassOutput, Site
from ..types import ROOT, Draft, Verdict
from .sampling import Ranked, Sampler

_DRAW, _TEST, _REST = 1, 2, 3
"""Salts: noise that draws the draft, tests it, and draws what is left. They must not know of each other."""


@dataclass(frozen=True)
class Targets:
    """The target's word on every row's committed text and on every node of its draft."""

    drafts: Sequence[Draft]
    output: PassOutput
    prefixes: Sequence[Sequence[int]]  # committed text of each row, as processors see it
    sites: Sequence[Site]  # of the first token each row may emit
    are_chosen: bool = False  # whether `choices` are the target's own, and not only the best raw scores

    @property
    def scores(self) -> torch.Tensor:
        """[rows, 1 + nodes, vocabulary], raw; column 0 stands after the committed text."""
        return self.output.scores

    @cached_property
    def choices(self) -> list[list[int]]:
        """[row][column] what the target says after each column; if it was not asked to choose, its best token."""
        return self.output.choices()

    @cached_property
    def noise(self) -> NoiseKey:
        return NoiseKey.of(self.sites, self.scores.device)


@dataclass
class Walk:
    """One row's path down its tree: the tokens it emits, and which nodes they are."""

    draft: Draft
    node: int = ROOT
    tokens: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    is_over: bool = False

    def follow(self, child: int) -> None:
        """Keep a child of the node."""
        self.node = child
        self.nodes.append(child)
        self.tokens.append(self.draft.tokens[child])

    def end(self, token: int) -> None:
        """The target's own word."""
        self.tokens.append(token)
        self.is_over = True

    @property
    def children(self) -> list[int]:
        return self.draft.children(self.node)

    @property
    def verdict(self) -> Verdict:
        return Verdict(tuple(self.tokens), tuple(self.nodes))


class Coupled:
    """Draft and target choose with the same noise; a token is kept if it is the target's choice after its prefix.

    Every emitted token is the target's own choice, so the draft can change nothing but the speed: the same seed gives
    the same text with speculation on or off. Greedy is the case without noise.
    """

    keeps_scores = False
    draft_salt = target_salt = 0

    @staticmethod
    def candidates(warped: torch.Tensor, count: int, sampler: Sampler, noise: NoiseKey) -> Ranked:
        """What the draft would choose, best first."""
        return sampler.best(warped, count, noise.sequences, noise.indices)

    @staticmethod
    def accept(targets: Targets, sampler: Sampler) -> list[Verdict]:
        if targets.are_chosen:
            return [_follow(draft, choices) for draft, choices in zip(targets.drafts, targets.choices, strict=True)]
        walks = [Walk(draft) for draft in targets.drafts]
        rows = list(range(len(walks)))
        while rows:
            scores, noise = _scores_at(targets, sampler, walks, rows)
            choices = sampler.choose(scores, noise.sequences, noise.indices).tolist()
            for row, token in zip(rows, choices, strict=True):
                child = walks[row].draft.child(walks[row].node, token)
                walks[row].end(token) if child is None else walks[row].follow(child)
            rows = [row for row in rows if not walks[row].is_over]
        return [walk.verdict for walk in walks]


class Rejection:
    """Speculative sampling by rejection (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318).

    A drawn token x is kept with probability min(1, p(x) / q(x)), where q is the draft's distribution and p the
    target's; otherwise p becomes max(p - q, 0), normalised, and q loses x. Siblings are drawn without replacement, so
    each is tested likewise with what is left of p and q (SpecInfer, arXiv:2305.09781); the last word is a draw
    from the p that remains. A guess without a distribution is a point mass: kept with p(x), else p loses x. The text
    has exactly the target's distribution, but depends on the draft; with temperature 0 this is `coupled`.
    """

    keeps_scores = True
    draft_salt, target_salt = _DRAW, _REST

    @staticmethod
    def candidates(warped: torch.Tensor, count: int, sampler: Sampler, noise: NoiseKey) -> Ranked:
        """Draws from the draft without replacement, in order."""
        # The round is part of the key: what an earlier round learned from this noise must not steer it now.
        return sampler.best(warped, count, noise.sequences, noise.indices, noise.rounds, _DRAW)

    @staticmethod
    def accept(targets: Targets, sampler: Sampler) -> list[Verdict]:
        if sampler.is_greedy or (targets.are_chosen and not any(draft.tokens for draft in targets.drafts)):
            return Coupled.accept(targets, sampler)
        walks = [Walk(draft) for draft in targets.drafts]
        rows = list(range(len(walks)))
        while rows:
            scores, noise = _scores_at(targets, sampler, walks, rows)
            open_walks = [walks[row] for row in rows]
            num_tests = max(len(walk.children) for walk in open_walks)
            tests = uniform(sampler.options.seed, noise.sequences, noise.indices, num_tests, noise.rounds, _TEST)
            kept, rest = try_children(open_walks, sampler.warp(scores).double().softmax(-1), tests)
            drawn = sampler.best(rest.log(), 1, noise.sequences, noise.indices, noise.rounds, _REST)[1][:, 0].tolist()
            for walk, child, token in zip(open_walks, kept, drawn, strict=True):
                walk.end(token) if child is None else walk.follow(child)
            rows = [row for row in rows if not walks[row].is_over]
        return [walk.verdict for walk in walks]


def _follow(draft: Draft, choices: Sequence[int]) -> Verdict:
    """Down the tree along what the target would choose after each node; `choices[0]`: after the text."""
    tokens, nodes, node = [choices[0]], [], draft.child(ROOT, choices[0])
    while node is not None:
        tokens.append(choices[node + 1])
        nodes.append(node)
        node = draft.child(node, tokens[-1])
    return Verdict(tuple(tokens), tuple(nodes))


def try_children(
    walks: Sequence[Walk], target_probs: torch.Tensor, tests: torch.Tensor
) -> tuple[list[int | None], torch.Tensor]:
    """For each row the first child that is kept, if any, and what the tests left of the target's distribution.

    `target_probs` [rows, vocabulary]; `tests` [rows, children]: independent numbers between 0 and 1.
    """
    kept: list[int | None] = [None] * len(walks)
    draft_scores = _draft_scores(walks, target_probs)
    for rank in range(tests.shape[1]):
        pending = [row for row, walk in enumerate(walks) if kept[row] is None and rank < len(walk.children)]
        if not pending:
            break
        rows = torch.tensor(pending, device=target_probs.device)
        children = [walks[row].children[rank] for row in pending]
        tokens = torch.tensor([walks[row].draft.tokens[child] for row, child in zip(pending, children, strict=True)])
        tokens = tokens.to(target_probs.device)
        is_token = torch.nn.functional.one_hot(tokens, target_probs.shape[1])
        is_drawn = [child < walks[row].draft.num_drawn for row, child in zip(pending, children, strict=True)]
        drawn_from = draft_scores[rows].softmax(-1)
        offered = torch.where(torch.tensor(is_drawn, device=rows.device)[:, None], drawn_from, is_token.double())
        threshold = tests[rows, rank] * offered.gather(1, tokens[:, None])[:, 0]
        is_kept = threshold < target_probs[rows, tokens]
        left = _normalised((target_probs[rows] - offered).clamp(min=0.0), target_probs[rows])
        target_probs = target_probs.index_copy(0, rows, torch.where(is_kept[:, None], target_probs[rows], left))
        # Taken away as a score, not as a probability: what is left may be too small for the latter.
        draft_scores = draft_scores.index_copy(0, rows, draft_scores[rows].masked_fill(is_token.bool(), -torch.inf))
        for row, child, keep in zip(pending, children, is_kept.tolist(), strict=True):
            kept[row] = child if keep else None
    return kept, target_probs


def _draft_scores(walks: Sequence[Walk], target_probs: torch.Tensor) -> torch.Tensor:
    """What the drawn children of each row were drawn from; anything where there are none."""
    draft_scores = torch.zeros_like(target_probs)
    for row, walk in enumerate(walks):
        scores, depth = walk.draft.scores, len(walk.nodes)
        if scores is not None and depth < len(scores):
            draft_scores[row] = scores[depth]
    return draft_scores


def _normalised(probs: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Rows that sum to 1; where rounding left nothing of one, the row of `otherwise`."""
    total = probs.sum(-1, keepdim=True)
    return torch.where(total > 0, probs / total.clamp(min=1e-300), otherwise)


def _scores_at(
    targets: Targets, sampler: Sampler, walks: Sequence[Walk], rows: Sequence[int]
) -> tuple[torch.Tensor, NoiseKey]:
    """The target's scores after what these rows have emitted so far, prefix rules applied."""
    device = targets.scores.device
    index = torch.tensor(rows, device=device)
    columns = torch.tensor([walks[row].node + 1 for row in rows], device=device)
    emitted = torch.tensor([len(walks[row].tokens) for row in rows], device=device)
    scores = targets.scores[index, columns]
    noise = targets.noise.at(index).ahead(emitted)
    if sampler.has_prefix_rules:
        prefixes = [[*targets.prefixes[row], *walks[row].tokens] for row in rows]
        scores = sampler.apply_prefix_rules(scores, prefixes, noise.indices)
    return scores, noise
