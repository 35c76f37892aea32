"""What is kept of a draft: pure functions of the draft and the target's scores.

An acceptance has two halves that belong together: how the draft draws its candidates, and what the target keeps of
them. Both walk the draft's tree from the committed text down and end with a token of the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch

from ..kernels.reject_reference import walk
from ..models.gpu.memory import reads_are_free
from ..noise import DRAW, REST
from ..passes import Columns, NoiseKey, PassOutput, Site, of_drafts
from ..types import ROOT, Draft, Verdict
from .sampling import Ranked, Sampler


@dataclass(frozen=True)
class Targets:
    """The target's word on every row's committed text and on every node of its draft."""

    drafts: Sequence[Draft]
    output: PassOutput
    prefixes: Sequence[Sequence[int]]  # committed text of each row, as processors see it
    sites: Sequence[Site]  # of the first token each row may emit
    are_chosen: bool = False  # whether `choices` are the target's own, or there are verdicts; else the best raw scores

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
        return sampler.best(warped, count, noise)

    @staticmethod
    def accept(targets: Targets, sampler: Sampler) -> list[Verdict]:
        if targets.are_chosen:
            return [
                _follow(draft, choices) if draft.tokens else alone(choices[0])
                for draft, choices in zip(targets.drafts, targets.choices, strict=True)
            ]
        walks = [Walk(draft) for draft in targets.drafts]
        rows = list(range(len(walks)))
        while rows:
            scores, noise = _scores_at(targets, sampler, walks, rows)
            choices = sampler.choose(scores, noise).tolist()
            for row, token in zip(rows, choices, strict=True):
                child = walks[row].draft.child(walks[row].node, token)
                walks[row].end(token) if child is None else walks[row].follow(child)
            rows = [row for row in rows if not walks[row].is_over]
        return [walk.verdict for walk in walks]


class Rejection:
    """Speculative sampling by rejection (Leviathan et al., arXiv:2211.17192).

    The text has exactly the target's distribution, but depends on the draft; with temperature 0 this is `coupled`.
    """

    keeps_scores = True
    draft_salt, target_salt = DRAW, REST

    @staticmethod
    def candidates(warped: torch.Tensor, count: int, sampler: Sampler, noise: NoiseKey) -> Ranked:
        """Draws from the draft without replacement, in order."""
        # The round is part of the key: what an earlier round learned from this noise must not steer it now.
        return sampler.best(warped, count, noise, noise.rounds, DRAW)

    @staticmethod
    def accept(targets: Targets, sampler: Sampler) -> list[Verdict]:
        if sampler.is_greedy or (targets.are_chosen and not any(draft.tokens for draft in targets.drafts)):
            return Coupled.accept(targets, sampler)
        read = targets.output.read_verdicts
        found = _tested(targets, sampler) if read is None else read()
        return [_verdict(draft, numbers) for draft, numbers in zip(targets.drafts, found, strict=True)]


@lru_cache(maxsize=1 << 14)
def alone(token: int) -> Verdict:
    """Nothing was drafted. Rounds that emit the same token share it."""
    return Verdict((token,))


def _follow(draft: Draft, choices: Sequence[int]) -> Verdict:
    """Down the tree along what the target would choose after each node; `choices[0]`: after the text."""
    tokens, nodes, node = [choices[0]], [], draft.child(ROOT, choices[0])
    while node is not None:
        tokens.append(choices[node + 1])
        nodes.append(node)
        node = draft.child(node, tokens[-1])
    return Verdict(tuple(tokens), tuple(nodes))


def _verdict(draft: Draft, numbers: Sequence[int]) -> Verdict:
    """From what `kernels/top.reject` returns for its row."""
    nodes = tuple(column - 1 for column in numbers[1 : 1 + numbers[0]])
    return Verdict((*(draft.tokens[node] for node in nodes), numbers[-1]), nodes)


def _tested(targets: Targets, sampler: Sampler) -> list[list[int]]:
    """As `kernels/top.reject`, after rules that run on the host."""
    drafts, scores = targets.drafts, _ruled(targets, sampler)
    rows, width, vocab_size = scores.shape
    numbers = []
    for draft in drafts:
        padding = [0] * (width - 1 - len(draft.tokens))
        columns_before = [parent - ROOT for parent in draft.parents]
        numbers.append([[0, *part, *padding] for part in (draft.depths, draft.tokens, columns_before)])
    depths, tokens, parents = torch.tensor(numbers, device=scores.device).unbind(1)
    settings = torch.tensor(of_drafts(sampler.settings(targets.sites), drafts), device=scores.device)
    columns = Columns(settings, targets.noise.indices, depths, tokens, parents, *[depths[:, 0]] * 3)  # not read
    num_depths = max(1, *(draft.chain_length for draft in drafts))
    drawn_from = torch.zeros(rows, num_depths, vocab_size, device=scores.device)
    for row, draft in enumerate(drafts):
        if draft.scores is not None:
            known = drawn_from[row, : len(draft.scores)].fill_(-torch.inf)
            known[:, : draft.scores.shape[1]] = draft.scores
    target, draft_scores = (sampler.warp(part.flatten(0, 1)).view(part.shape) for part in (scores, drawn_from))
    found: list[list[int]] = walk(target, draft_scores, columns, parents, reads_are_free(depths)).tolist()
    return found


def _ruled(targets: Targets, sampler: Sampler) -> torch.Tensor:
    """The target's scores after every node, prefix rules applied."""
    if not sampler.has_prefix_rules:
        return targets.scores
    places, prefixes = [], []
    for row, (draft, prefix) in enumerate(zip(targets.drafts, targets.prefixes, strict=True)):
        own = [list(prefix)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            own.append([*own[parent - ROOT], token])
        places += [(row, column) for column in range(len(own))]
        prefixes += own
    rows, columns = torch.tensor(places, device=targets.scores.device).unbind(1)
    emitted = [len(prefix) - len(targets.prefixes[row]) for (row, _), prefix in zip(places, prefixes, strict=True)]
    indices = targets.noise.indices[rows] + torch.tensor(emitted, device=rows.device)
    scores = targets.scores.float().clone()
    scores[rows, columns] = sampler.apply_prefix_rules(scores[rows, columns], prefixes, indices)
    return scores


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
