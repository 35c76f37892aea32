"""Run the plans' drafters until the lookahead says stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..protocols import Drafter, DraftRows, DraftSession, DraftStats, Lookahead, Proposal, Runner
from ..types import PAD, Draft, Plan, SkipSet
from .sampling import Sampler
from .state import State, TextSequence


def run_drafts(
    runner: Runner,
    state: State,
    plans: Sequence[Plan],
    lookahead: Lookahead,
    drafters: Mapping[str, Drafter],
    default_drafter: str,
    sampler: Sampler,
) -> list[Draft]:
    """One draft per active row; rows with equal (skip set, drafter) draft together.

    Rows that stand between them in the cache are carried along, so that a pass never copies keys and values.
    """
    drafts = [Draft()] * len(plans)
    groups: dict[tuple[SkipSet, str], list[int]] = {}
    for row, plan in enumerate(plans):
        if _cap(plan, state.active[row]) > 0:
            groups.setdefault((plan.skip, plan.drafter or default_drafter), []).append(row)
    for (skip, drafter), members in groups.items():
        first, last = members[0], members[-1]
        sequences = state.active[first : last + 1]
        caps = [_cap(plans[row], state.active[row]) if row in members else 0 for row in range(first, last + 1)]
        rows = DraftRows(first, tuple(sequence.tokens for sequence in sequences), skip)
        group = GroupDraft(drafters[drafter].open(runner, state.cache, rows), sequences, caps, sampler, runner.device)
        for row, draft in enumerate(group.run(lookahead), start=first):
            if row in members:
                drafts[row] = draft
    return drafts


def _cap(plan: Plan, sequence: TextSequence) -> int:
    room = sequence.max_draft_tokens
    return room if plan.max_draft_tokens is None else min(plan.max_draft_tokens, room)


class GroupDraft:
    """One round of drafting for rows that share skip set and drafter.

    A row that has stopped, or may draft nothing (cap 0), is carried along until all have stopped: what it computes
    lands in scratch slots and is ignored.
    """

    def __init__(
        self,
        session: DraftSession,
        sequences: Sequence[TextSequence],
        caps: Sequence[int],
        sampler: Sampler,
        device: torch.device,
    ) -> None:
        self._session, self._sequences, self._sampler = session, sequences, sampler
        self._caps = torch.tensor(caps, device=device)
        self._ids = tuple(sequence.sequence_id for sequence in sequences)
        self._noise = torch.tensor([sequence.noise_sequence for sequence in sequences], device=device)
        self._first_index = torch.tensor([sequence.num_generated for sequence in sequences], device=device)
        self._last = torch.tensor([sequence.tokens[-1] for sequence in sequences], device=device)
        self._columns: list[torch.Tensor] = []
        self._confidences: list[torch.Tensor] = []

    def run(self, lookahead: Lookahead) -> list[Draft]:
        active = self._caps > 0
        for depth in range(1, int(self._caps.max()) + 1):
            stats, tokens = self._draft_token(depth, active)
            self._columns.append(tokens)
            active = (tokens != PAD) & lookahead.wants_more(stats) & (self._caps > depth)
            self._confidences.append(stats.confidence)
            if not active.any():
                break
            self._last = torch.where(tokens == PAD, self._last, tokens)
        return self._collect()

    def _draft_token(self, depth: int, active: torch.Tensor) -> tuple[DraftStats, torch.Tensor]:
        proposal = self._session.propose(self._last)
        index = self._first_index + (depth - 1)
        scores, tokens = self._choose(proposal, index)
        match_length = torch.zeros_like(index) if proposal.match_length is None else proposal.match_length
        stats = DraftStats(depth, index, match_length, self._ids, scores)
        return stats, torch.where(active, tokens, PAD)

    def _choose(self, proposal: Proposal, index: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        if proposal.scores is None:
            assert proposal.tokens is not None
            return None, proposal.tokens
        scores = proposal.scores
        if self._sampler.has_prefix_rules:
            scores = self._sampler.apply_prefix_rules(scores, self._prefixes(), index)
        return scores, self._sampler.choose(scores, self._noise, index)

    def _prefixes(self) -> list[list[int]]:
        drafted = torch.stack(self._columns, 1).tolist() if self._columns else [[]] * len(self._sequences)
        return [
            sequence.prefix + [token for token in row if token != PAD]
            for sequence, row in zip(self._sequences, drafted, strict=True)
        ]

    def _collect(self) -> list[Draft]:
        rows = torch.stack(self._columns, 1).tolist()
        confidences = torch.stack(self._confidences, 1).tolist()
        drafts = []
        for row, confidence in zip(rows, confidences, strict=True):
            tokens = tuple(token for token in row if token != PAD)
            drafts.append(Draft(tokens, tuple(confidence[: len(tokens)]), len(tokens)))
        return drafts
