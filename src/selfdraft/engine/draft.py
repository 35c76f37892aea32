"""Run the plans' drafters until the lookahead says stop, and let the trees stand beside what they draft."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..chains import MAX_TESTED, Choice, DraftedChain, DraftTask, Draw
from ..drafted import DraftStats
from ..kernels.top import distribution, top
from ..passes import ChoiceKind, Drawn, NoiseKey, Site
from ..protocols import DraftRows, DraftSession, Lookahead, Path, Runner, Tree
from ..types import NO_DRAFT, PAD, ROOT, Draft, Plan
from .method import Acceptance, Method
from .sampling import Sampler
from .state import State, TextSequence

MIN_WANTING = 0.75
"""Of the rows: as many must want another token, else what it costs all of them is more than what it promises."""


def run_drafts(runner: Runner, state: State, plans: Sequence[Plan]) -> list[Draft]:
    """One draft per active row; rows of one cohort with equal (skip set, drafter, tree) draft together."""
    drafts, groups = [NO_DRAFT] * len(plans), _groups(state, plans)
    sites = state.sites if groups else []
    for row, plan in enumerate(plans):
        if plan.paths and _cap(plan, state.active[row]) and _may_draft(state, row, plan):
            drafts[row] = _found(state, row, plan, runner)
    for members in groups:
        cohort, plan = state.row_cohorts[members[0]], plans[members[0]]
        method, sampler, sequences = cohort.method, cohort.sampler, [state.active[row] for row in members]
        caps = [_cap(plans[row], state.active[row]) for row in members]
        ids = tuple(sequence.sequence_id for sequence in sequences)
        texts = tuple(sequence.tokens for sequence in sequences)
        rows = DraftRows(tuple(sequence.row for sequence in sequences), ids, texts, plan.skip, plan.reuse)
        session = method.drafter_of(plan).open(runner, state.cache, rows)
        rule = Rule.of(method, plan, sampler)
        company, max_nodes = _limits(state, members[0], plan, runner)
        min_rows = math.ceil(MIN_WANTING * sum(cap > 0 for cap in caps)) if company > 1 else 1
        own_sites = [sites[row] for row in members]
        group = GroupDraft(session, rule, rows, caps, sequences, own_sites, sampler, max_nodes, min_rows)
        for row, draft in zip(members, group.run(), strict=True):
            if len(groups) > 1 and draft.scores is not None:  # the next group's would be written over them
                draft = replace(draft, scores=draft.scores.clone())
            drafts[row] = draft
    return drafts


def _groups(state: State, plans: Sequence[Plan]) -> list[list[int]]:
    """A text that has room for one more token stays with the others: it drafts nothing, and nobody's place changes."""
    groups: dict[object, list[int]] = {}
    for row, plan in enumerate(plans):
        cohort, method = state.row_cohorts[row], state.row_cohorts[row].method
        if not plan.paths and _may_draft(state, row, plan):
            key = (cohort, plan.skip, plan.reuse, plan.drafter or method.drafter, plan.tree or method.tree)
            groups.setdefault(key, []).append(row)
    return [rows for rows in groups.values() if any(_cap(plans[row], state.active[row]) for row in rows)]


def _may_draft(state: State, row: int, plan: Plan) -> bool:
    pauses, sequence = state.row_cohorts[row].method.pauses, state.active[row]
    return plan.max_draft_tokens != 0 and not (pauses and pauses(sequence.noise_sequence, sequence.num_generated))


def asks_itself(state: State, row: int, plan: Plan) -> bool:
    """Whether the model itself is to draft for this row."""
    has_room = _cap(plan, state.active[row]) > 0 and not plan.paths
    return has_room and state.row_cohorts[row].method.drafter_of(plan).waits and _may_draft(state, row, plan)


def _limits(state: State, row: int, plan: Plan, runner: Runner) -> tuple[int, int | None]:
    """How many texts share the round, and how many nodes a draft may have then."""
    cohort = state.row_cohorts[row]
    company = len(state.active) if cohort.may_do_without else 1  # tested drafts are what they would be alone
    return company, cohort.method.tree_of(plan).max_nodes(company, is_recorded=runner.is_recording)


def _found(state: State, row: int, plan: Plan, runner: Runner) -> Draft:
    """What the strategy has found itself, as a tree."""
    (chain, *branches), cap, (_, limit) = plan.paths, _cap(plan, state.active[row]), _limits(state, row, plan, runner)
    return grow([(token,) for token in chain[:cap]], branches, cap, limit, is_drawn=False)


def _cap(plan: Plan, sequence: TextSequence) -> int:
    room = sequence.max_draft_tokens
    return room if plan.max_draft_tokens is None else min(plan.max_draft_tokens, room)


@dataclass(frozen=True)
class Rule:
    """How a draft chooses after its scores, whatever text, seed and settings: hashable, tensors in, tensors out."""

    lookahead: Lookahead
    tree: Tree
    accept: Acceptance
    kind: ChoiceKind

    @classmethod
    def of(cls, method: Method, plan: Plan, sampler: Sampler) -> Rule:
        """Where the host goes by the caller's processors, all that matters is whether it draws."""
        kind = sampler.kind or ChoiceKind(is_drawn=not sampler.is_greedy)
        kind = kind._replace(salt=method.accept.draft_salt if kind.is_drawn else 0)
        return cls(method.lookahead, method.tree_of(plan), method.accept, kind)

    @property
    def max_candidates(self) -> int:
        return self.tree.max_candidates

    @property
    def keeps_scores(self) -> bool:
        return self.accept.keeps_scores and self.kind.is_drawn

    @property
    def num_changes(self) -> int | None:
        return getattr(self.lookahead, "num_changes", None)

    def __call__(self, stats: DraftStats, draw: Draw) -> Choice:
        """Choose after `stats.scores`; a drafter that has none brings its `stats.token`."""
        scores = stats.scores
        if scores is None:
            assert stats.token is not None
            found = stats.token[:, None]
        elif self.kind.is_drawn:
            values, found, peak = draw(scores, self.max_candidates)
            found[:, 1:].masked_fill_(values[:, 1:] == -torch.inf, PAD)  # what is impossible was never drawn
            stats = replace(stats, peak=peak)
            if self.lookahead.reads_distribution:
                _, stats = self._best(stats, scores, 1)
        else:  # the same for every acceptance: the draft's best
            found, stats = self._best(stats, scores, self.max_candidates)
        stats = replace(stats, token=found[:, 0])
        return Choice(found, stats.confidence, self.lookahead.wants_more(stats))

    def _best(self, stats: DraftStats, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, DraftStats]:
        """The best tokens [rows, count], and the statistics with what was learned meanwhile."""
        if not self.lookahead.reads_distribution:
            _, found, peak = top(scores, count)
            return found, replace(stats, peak=peak)
        _, found, peak, outline = distribution(scores, count)
        return found, replace(stats, peak=peak, outline=outline)


class GroupDraft:
    """One round of drafting for rows that share skip set, drafter and tree.

    A row that has stopped is carried along until most have stopped: what it computes lands in scratch slots and is
    ignored. Going token by token is the specification; a session may be faster.
    """

    def __init__(
        self,
        session: DraftSession,
        rule: Rule,
        rows: DraftRows,
        caps: Sequence[int],
        sequences: Sequence[TextSequence],
        sites: Sequence[Site],
        sampler: Sampler,
        max_nodes: int | None,
        min_rows: int,
    ) -> None:
        self._session, self._rule, self._rows, self._max_nodes = session, rule, rows, max_nodes
        # What stands beside a chain need not await it. Without `self`: a cycle would keep the cache from its next user.
        self._branches = functools.cache(lambda: [rule.tree.branches(text) for text in rows.committed])
        self._texts, self._sampler = [sequence.text for sequence in sequences], sampler
        choosing = sampler.choosing(sites, self._texts, rule.accept.draft_salt)
        caps = [min(cap, MAX_TESTED) for cap in caps] if rule.keeps_scores else caps
        rooms = [sequence.max_draft_tokens for sequence in sequences]
        self._task = DraftTask(rule, caps, sites, rows.sequence_ids, choosing, rooms, self._branches, min_rows)
        self._candidates: list[torch.Tensor] = []  # per depth [rows, candidates], best first, PAD-filled
        self._confidences: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []  # per depth [rows, vocabulary], where acceptance needs them

    def run(self) -> list[Draft]:
        chain = self._session.chain(self._task)
        return self._collect(self._token_by_token() if chain is None else chain)

    def _token_by_token(self) -> DraftedChain:
        task, device = self._task, self._session.device
        caps, ids = torch.tensor(task.caps, device=device), torch.tensor(task.sequence_ids, device=device)
        last = torch.tensor([tokens[-1] for tokens in self._rows.committed], device=device)
        noise, active = NoiseKey.of(task.sites, device), caps > 0
        for depth in range(1, max(task.caps) + 1):
            choice = self._draft_token(last, noise.ahead(depth - 1), depth, ids)
            candidates = torch.where(active[:, None], choice.candidates, PAD)
            tokens = candidates[:, 0]
            self._candidates.append(candidates)
            self._confidences.append(choice.confidence)
            active = (tokens != PAD) & choice.wants_more & (caps > depth)
            if active.sum() < task.min_rows:
                break
            last = torch.where(tokens == PAD, last, tokens)
        scores = torch.stack(self._scores) if self._scores else None
        confidences = torch.stack(self._confidences).tolist()
        return DraftedChain([column.tolist() for column in self._candidates], confidences, scores)

    def _draft_token(self, last: torch.Tensor, noise: NoiseKey, depth: int, ids: torch.Tensor) -> Choice:
        proposal = self._session.propose(last)
        scores = proposal.scores
        if scores is not None and self._sampler.has_prefix_rules:
            scores = self._sampler.apply_prefix_rules(scores, self._prefixes(), noise.indices)
        match_length = torch.zeros_like(noise.indices) if proposal.match_length is None else proposal.match_length
        place = (torch.full_like(noise.indices, depth), noise.indices, match_length, ids)
        stats = DraftStats(*place, scores, proposal.confidence, proposal.tokens, noise.sequences)
        return self._rule(stats, lambda scores, count: self._draw(scores, count, noise))

    def _draw(self, scores: torch.Tensor, count: int, noise: NoiseKey) -> Drawn:
        if self._rule.keeps_scores:
            self._scores.append(scores)
        warped = self._sampler.warp(scores)
        return Drawn(*self._rule.accept.candidates(warped, count, self._sampler, noise), None)

    def _prefixes(self) -> list[list[int]]:
        drafted = [column[:, 0].tolist() for column in self._candidates]
        return [
            [*text.lead, *text.tokens, *(tokens[row] for tokens in drafted if tokens[row] != PAD)]
            for row, text in enumerate(self._texts)
        ]

    def _levels(self, chain: DraftedChain, row: int) -> list[Sequence[int]]:
        """At each depth the chain's token and its siblings, as many as the tree wants."""
        wanted, levels = self._rule.tree.num_candidates, []
        for tokens, sure in zip(chain.candidates, chain.confidences, strict=True):
            level = tokens[row][: wanted(sure[row])]
            level = level[: level.index(PAD)] if PAD in level else level
            if not level:
                break
            levels.append(level)
        return levels

    def _collect(self, chain: DraftedChain) -> list[Draft]:
        scores, drafts = chain.scores, []
        for row, cap in enumerate(self._task.caps):
            if not cap:
                drafts.append(NO_DRAFT)
                continue
            levels = self._levels(chain, row)
            branches = [*self._branches()[row], *self._session.branches(row)]
            length = len(levels)
            confidences = [column[row] for column in chain.confidences[:length]]
            drawn_from, reuse = None if scores is None else scores[:length, row], self._session.reuse(row, length)
            more: dict[str, Any] = {"confidences": confidences, "scores": drawn_from, "reuse": reuse}
            drafts.append(grow(levels, branches, cap, self._max_nodes, is_drawn=scores is not None, **more))
        return drafts


def grow(
    levels: Sequence[Sequence[int]],
    branches: Sequence[Path],
    max_depth: int,
    max_nodes: int | None = None,
    *,
    is_drawn: bool = True,
    confidences: Sequence[float] = (),
    **more: Any,
) -> Draft:
    """A tree: `levels[d]` holds the chain's token at depth d and its siblings; branches merge where they agree.

    Where `max_nodes` are reached, siblings that promise least and later branches are left out; never the chain.
    `is_drawn`: the levels come from a distribution. `more`: what else is known of the draft.
    """
    tokens, parents = [level[0] for level in levels], list(range(ROOT, len(levels) - 1))
    num_drawn = len(tokens)
    if branches or max(map(len, levels), default=1) > 1:
        limit = None if max_nodes is None else max(len(tokens), max_nodes)
        if limit is not None:
            levels = within(levels, confidences or [0.0] * len(levels), limit)
        num_drawn = add_beside(tokens, parents, levels, [branch[:max_depth] for branch in branches], limit)
    more.update(num_draft_steps=len(levels), num_drawn=num_drawn if is_drawn else 0, confidences=tuple(confidences))
    return Draft(tuple(tokens), tuple(parents), len(levels), **more)


def add_beside(
    tokens: list[int], parents: list[int], levels: Sequence[Path], branches: Sequence[Path], limit: int | None
) -> int:
    """Add the siblings of a chain, then branches, up to `limit` nodes; how many there are without the branches."""
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
        for token in branch:
            node = add(node, token) if node is not None else None
    return num_drawn


def within(levels: Sequence[Sequence[int]], confidences: Sequence[float], limit: int) -> Sequence[Sequence[int]]:
    """The levels cut to `limit` tokens in all: each keeps its first ones, as `rejection` demands.

    A sibling counts if the chain holds up to its level and fails there, by the draft's own word likeliest where it
    stopped because it was unsure, and if it is the right one: about as 1 / rank squared.
    """
    if sum(map(len, levels)) <= limit:
        return levels
    reached = itertools.accumulate(confidences, operator.mul, initial=1.0)
    fails = [share * (1 - sure) for share, sure in zip(reached, confidences, strict=False)]
    siblings = [(depth, rank) for depth, level in enumerate(levels) for rank in range(1, len(level))]
    siblings.sort(key=lambda place: -fails[place[0]] / place[1] ** 2)
    counts = Counter(depth for depth, _ in siblings[: limit - len(levels)])
    return [level[: 1 + counts[depth]] for depth, level in enumerate(levels)]
