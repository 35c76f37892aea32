"""Run the plans' drafters until the lookahead says stop, and let the trees stand beside what they draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..protocols import DraftRows, DraftSession, DraftStats, Lookahead, Path, Runner, Tree
from ..types import PAD, ROOT, Draft, Plan
from .method import Method
from .sampling import Sampler, Spots
from .state import State, TextSequence


def run_drafts(runner: Runner, state: State, plans: Sequence[Plan], method: Method, sampler: Sampler) -> list[Draft]:
    """One draft per active row; rows with equal (skip set, drafter, tree) draft together.

    Rows that stand between them in the cache are carried along, so that a pass never copies keys and values.
    """
    drafts = [Draft()] * len(plans)
    spots = state.spots(runner.device)
    for members in _groups(state, plans, method):
        plan, hull = plans[members[0]], slice(members[0], members[-1] + 1)
        sequences = state.active[hull]
        caps = [_cap(plans[row], state.active[row]) if row in members else 0 for row in range(hull.start, hull.stop)]
        ids = tuple(sequence.sequence_id for sequence in sequences)
        texts = tuple(sequence.tokens for sequence in sequences)
        rows = DraftRows(hull.start, ids, texts, plan.skip, plan.reuse)
        session = method.drafter_of(plan).open(runner, state.cache, rows)
        here = Spots(spots.sequences[hull], spots.indices[hull], spots.rounds[hull])
        prefixes = [sequence.prefix for sequence in sequences] if sampler.has_prefix_rules else []
        group = GroupDraft(session, method.tree_of(plan), rows, caps, prefixes, method, sampler, here)
        for row, draft in enumerate(group.run(method.lookahead), start=hull.start):
            # Carrying a row along overwrites its scratch slots: what an earlier group had left there is gone.
            drafts[row] = draft if row in members else replace(drafts[row], reuse=None)
    return drafts


def _groups(state: State, plans: Sequence[Plan], method: Method) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for row, plan in enumerate(plans):
        if _cap(plan, state.active[row]) > 0:
            key = (plan.skip, plan.reuse, plan.drafter or method.drafter, plan.tree or method.tree)
            groups.setdefault(key, []).append(row)
    return list(groups.values())


def _cap(plan: Plan, sequence: TextSequence) -> int:
    room = sequence.max_draft_tokens
    return room if plan.max_draft_tokens is None else min(plan.max_draft_tokens, room)


class GroupDraft:
    """One round of drafting for rows that share skip set, drafter and tree.

    A row that has stopped, or may draft nothing (cap 0), is carried along until all have stopped: what it computes
    lands in scratch slots and is ignored.
    """

    def __init__(
        self,
        session: DraftSession,
        tree: Tree,
        rows: DraftRows,
        caps: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        method: Method,
        sampler: Sampler,
        spots: Spots,
    ) -> None:
        self._session, self._tree, self._rows = session, tree, rows
        self._accept, self._sampler, self._spots = method.accept, sampler, spots
        self._max_tokens, self._texts = caps, prefixes
        self._caps = torch.tensor(caps, device=spots.indices.device)
        self._last = torch.tensor([tokens[-1] for tokens in rows.committed], device=spots.indices.device)
        self._candidates: list[torch.Tensor] = []  # per depth [rows, candidates], best first, PAD-filled
        self._confidences: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []  # per depth [rows, vocabulary], where acceptance needs them

    def run(self, lookahead: Lookahead) -> list[Draft]:
        active = self._caps > 0
        for depth in range(1, max(self._max_tokens) + 1):
            stats, candidates = self._draft_token(depth, active)
            tokens = candidates[:, 0]
            self._candidates.append(candidates)
            self._confidences.append(stats.confidence)
            active = (tokens != PAD) & lookahead.wants_more(stats) & (self._caps > depth)
            if not active.any():
                break
            self._last = torch.where(tokens == PAD, self._last, tokens)
        return self._collect()

    def _draft_token(self, depth: int, active: torch.Tensor) -> tuple[DraftStats, torch.Tensor]:
        proposal = self._session.propose(self._last)
        spots = self._spots.ahead(depth - 1)
        scores = proposal.scores
        if scores is not None and self._sampler.has_prefix_rules:
            scores = self._sampler.apply_prefix_rules(scores, self._prefixes(), spots.indices)
        match_length = torch.zeros_like(spots.indices) if proposal.match_length is None else proposal.match_length
        stats = DraftStats(depth, spots.indices, match_length, self._rows.sequence_ids, scores)
        if scores is not None:
            candidates = self._choose(scores, stats, spots)
        else:
            assert proposal.tokens is not None
            candidates = proposal.tokens[:, None]
        return stats, torch.where(active[:, None], candidates, PAD)

    def _choose(self, scores: torch.Tensor, stats: DraftStats, spots: Spots) -> torch.Tensor:
        """The chain's next token and its siblings, as many as the tree wants."""
        warped = scores if self._sampler.is_greedy else self._sampler.warp(scores)
        count = self._tree.max_candidates
        values, tokens = self._accept.candidates(warped, count, self._sampler, spots)
        if self._accept.keeps_scores and not self._sampler.is_greedy:
            self._scores.append(warped)
        if count == 1:
            return tokens
        wanted = self._tree.num_candidates(stats.confidence)[:, None]
        ranks = torch.arange(tokens.shape[1], device=scores.device)
        return torch.where((ranks == 0) | ((ranks < wanted) & (values > -torch.inf)), tokens, PAD)

    def _prefixes(self) -> list[list[int]]:
        drafted = [column[:, 0].tolist() for column in self._candidates]
        return [
            [*text, *(tokens[row] for tokens in drafted if tokens[row] != PAD)] for row, text in enumerate(self._texts)
        ]

    def _collect(self) -> list[Draft]:
        candidates = [column.tolist() for column in self._candidates]
        confidences = torch.stack(self._confidences, 1).tolist()
        scores = torch.stack(self._scores, 1) if self._scores else None
        drafts = []
        for row, text in enumerate(self._rows.committed):
            levels = [[token for token in level[row] if token != PAD] for level in candidates if level[row][0] != PAD]
            branches = [*self._tree.branches(text), *self._session.branches(row)] if self._max_tokens[row] else []
            draft = grow(levels, branches, self._max_tokens[row], self._tree.max_nodes)
            length = draft.chain_length
            drafts.append(
                Draft(
                    draft.tokens,
                    draft.parents,
                    length,
                    confidences=tuple(confidences[row][:length]),
                    num_draft_steps=length,
                    num_drawn=0 if scores is None else draft.num_drawn,
                    scores=None if scores is None else scores[row, :length],
                    reuse=self._session.reuse(row, length),
                )
            )
        return drafts


def grow(
    levels: Sequence[Sequence[int]], branches: Sequence[Path], max_depth: int, max_nodes: int | None = None
) -> Draft:
    """A tree: `levels[d]` holds the chain's token at depth d and its siblings; branches merge where they agree.

    Where `max_nodes` are reached, later siblings and branches are left out; never the chain.
    """
    tokens, parents = [level[0] for level in levels], list(range(ROOT, len(levels) - 1))
    limit = None if max_nodes is None else max(len(tokens), max_nodes)
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}

    def add(parent: int, token: int) -> int | None:
        node = known.get((parent, token))
        if node is None and (limit is None or len(tokens) < limit):
            node = known[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
        return node

    for depth, level in enumerate(levels):
        for token in level[1:]:
            add(depth - 1, token)
    num_drawn = len(tokens)
    for branch in branches:
        node: int | None = ROOT
        for token in branch[:max_depth]:
            node = add(node, token) if node is not None else None
    return Draft(tuple(tokens), tuple(parents), len(levels), num_draft_steps=len(levels), num_drawn=num_drawn)
