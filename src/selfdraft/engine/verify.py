"""One full pass over the drafts of all rows, chains or trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..passes import PassRequest, Resume, TreeMask
from ..protocols import Runner
from ..types import ROOT, Draft
from .accept import Coupled, Rejection, Targets
from .method import Acceptance, Method
from .sampling import Sampler
from .state import State


def verify(
    runner: Runner, state: State, drafts: Sequence[Draft], method: Method, sampler: Sampler
) -> tuple[Targets, Mapping[str, torch.Tensor]]:
    """Run each row's last token and its draft through the whole model; smaller drafts are padded and ignored.

    Where the pass after the last tokens is under way already, nobody has paid for these drafts: they wait for the next
    round, and that pass is not wasted. Rejection would give other texts then, so there they do not wait.
    """
    accept, capture, starts = method.accept, method.strategy.needs, state.starts
    is_drawn = accept.keeps_scores and not sampler.is_greedy
    is_waiting = any(draft.tokens for draft in drafts) and not is_drawn and runner.is_under_way(state.cache, starts)
    drafts = [Draft()] * len(drafts) if is_waiting else drafts
    width = 1 + max(len(draft.tokens) for draft in drafts)
    inputs = [
        [sequence.tokens[-1], *draft.tokens, *[0] * (width - 1 - len(draft.tokens))]
        for sequence, draft in zip(state.active, drafts, strict=True)
    ]
    state.cache.reserve(max(starts) + width)
    is_tested = is_drawn and width > 1
    choosing = sampler.choosing(state.sites, [sequence.text for sequence in state.active], accept.target_salt)
    if choosing is not None:
        choosing = choosing.over(drafts, is_tested, sampler.options.logprobs)
    request = PassRequest(
        inputs,
        starts,
        capture=capture,
        tree=None if all(draft.is_chain for draft in drafts) else tree_mask(drafts, width),
        resume=_resume(runner, drafts, width, capture),
        run_ahead=not (is_waiting or choosing is None or capture) and _goes_on(state, drafts, accept),
        choosing=choosing,
    )
    output = runner.forward(request, state.cache)
    has_chosen = choosing is not None and (output.read_verdicts if is_tested else output.read_choices) is not None
    are_chosen = sampler.takes_best or has_chosen
    prefixes = [] if are_chosen or not sampler.has_prefix_rules else [sequence.prefix for sequence in state.active]
    return Targets(drafts, output, prefixes, state.sites, are_chosen), output.captured


def _goes_on(state: State, drafts: Sequence[Draft], accept: Acceptance) -> bool:
    """Whether the device can tell by its choices what comes next, and no text is as long as it may be before that."""
    longest = [1 + max(draft.depths, default=-1) for draft in drafts]
    has_room = all(row.max_draft_tokens > count for row, count in zip(state.active, longest, strict=True))
    return has_room and (type(accept) in (Coupled, Rejection) or not any(longest))


def tree_mask(drafts: Sequence[Draft], width: int) -> TreeMask:
    """Column 0 is the last committed token, column i + 1 node i; each sees itself and its ancestors."""
    depths, sees = [], []
    for draft in drafts:
        padding = width - 1 - len(draft.tokens)
        seen = [1]
        for column, parent in enumerate(draft.parents, start=1):
            seen.append(seen[parent - ROOT] | 1 << column)
        depths.append([0, *draft.depths, *[0] * padding])
        sees.append([*seen, *[1] * padding])  # nothing may see nothing
    return TreeMask(depths, sees)


def _resume(runner: Runner, drafts: Sequence[Draft], width: int, capture: Sequence[str]) -> Resume | None:
    """Where rows bring exact states after one point, their known columns start there."""
    parts = {row: draft.reuse for row, draft in enumerate(drafts) if draft.reuse is not None}
    if not parts or len({part.point for part in parts.values()}) != 1:
        return None
    some = next(iter(parts.values()))
    if not runner.can_resume(some.point, capture):
        return None
    num_known = [0] * len(drafts)
    hidden = some.hidden.new_zeros(len(drafts), width, some.hidden.shape[-1])
    for row, part in parts.items():
        num_known[row] = len(part.hidden)
        hidden[row, : num_known[row]] = part.hidden
    return Resume(some.point, tuple(num_known), hidden)
