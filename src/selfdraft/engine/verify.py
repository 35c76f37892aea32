"""One full pass over the drafts of all rows, chains or trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..lazy import Made
from ..passes import Choosing, PassOutput, PassRequest, Resume, Site, TreeMask, joined, serves
from ..protocols import Runner
from ..types import NO_DRAFT, ROOT, Draft, Plan
from .accept import Coupled, Rejection, Targets
from .draft import asks_itself
from .method import Cohort
from .state import State


class Judged(NamedTuple):
    """What the target says of the rows of one cohort."""

    cohort: Cohort
    rows: Sequence[int]
    targets: Targets


class TargetPass:
    """Runs each row's last token and its draft through the whole model; smaller drafts are padded.

    What does not depend on the drafts is known when it is made: before them, for after them the device waits.
    """

    def __init__(self, runner: Runner, state: State) -> None:
        self._runner, self._state, self._groups = runner, state, state.groups
        self._starts, self._sites = state.starts, state.sites
        needs = (need for cohort, _ in self._groups for need in cohort.method.strategy.needs)
        self._capture = tuple(dict.fromkeys(needs))
        self._is_tested = any(cohort.is_tested for cohort, _ in self._groups)
        self._choosing = self._joined_choosing()
        self._rooms = state.rooms

    def _joined_choosing(self) -> Choosing | None:
        """How all rows choose, if a device can do it at once."""
        parts = [self._choosing_of(cohort, rows) for cohort, rows in self._groups]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or (len(parts) > 1 and self._is_tested):
            return None
        return known[0] if len(known) == 1 else joined(known, [rows for _, rows in self._groups])

    def _choosing_of(self, cohort: Cohort, rows: Sequence[int]) -> Choosing | None:
        sampler, active = cohort.sampler, self._state.active
        texts = Made(lambda: [active[row].text for row in rows])
        salt, num_logprobs = cohort.method.accept.target_salt, sampler.options.logprobs
        return sampler.choosing(self._sites_of(rows), texts, salt, num_logprobs)

    def _sites_of(self, rows: Sequence[int]) -> Sequence[Site]:
        return self._sites if len(self._groups) == 1 else Made(lambda: [self._sites[row] for row in rows])

    def drafts_wait(self, plans: Sequence[Plan]) -> bool:
        """Drafts that the model itself would make could only begin after a pass that is under way: it is not wasted."""
        return any(asks_itself(self._state, row, plan) for row, plan in enumerate(plans)) and self._is_waiting()

    def __call__(self, drafts: Sequence[Draft], is_waiting: bool = False) -> tuple[list[Judged], PassOutput]:
        """`is_waiting`: the drafts come in the next round, so nothing else may run ahead of them."""
        state, starts, choosing, capture = self._state, self._starts, self._choosing, self._capture
        width = 1 + max([len(draft.tokens) for draft in drafts])
        is_waiting = is_waiting or (width > 1 and self._is_waiting())
        if is_waiting:
            drafts, width = [NO_DRAFT] * len(drafts), 1
        inputs = [[sequence.tokens[-1]] for sequence in state.active]
        for tokens, draft in zip(inputs, drafts if width > 1 else (), strict=False):
            tokens += [*draft.tokens, *[0] * (width - 1 - len(draft.tokens))]
        state.cache.reserve(max(starts) + width)
        is_tested = self._is_tested and width > 1
        request = PassRequest(
            inputs,
            starts,
            state.rows,
            capture=capture,
            tree=None if width == 1 or all(draft.is_chain for draft in drafts) else tree_mask(drafts, width),
            resume=_resume(self._runner, drafts, width, capture),
            run_ahead=not (is_waiting or choosing is None or capture) and self._goes_on(drafts, width),
            choosing=choosing if choosing is None or width == 1 else choosing.over(drafts, is_tested),
            widths=() if width == 1 else [1 + len(draft.tokens) for draft in drafts],
        )
        output = self._runner.forward(request, state.cache)
        return [
            Judged(cohort, rows, self._targets(drafts, output, cohort, rows)) for cohort, rows in self._groups
        ], output

    def _is_waiting(self) -> bool:
        """Where the pass after the last tokens is under way already, nobody has paid for these drafts: they wait for
        the next round, and that pass is not wasted. Rejection would give other texts then, so there they do not wait.
        """
        return not self._is_tested and self._runner.is_under_way(self._state.cache, self._state.rows, self._starts)

    def _goes_on(self, drafts: Sequence[Draft], width: int) -> bool:
        """Whether the device can tell by its choices what comes next.

        That is so while nobody joins. A few texts may be as long as they may be before: their rows run along.
        """
        if any(sequence.is_read for sequence in self._state.reading) or (width == 1 and self._resumes()):
            return False
        longest = [0 if width == 1 else 1 + max(draft.depths, default=-1) for draft in drafts]
        num_staying = sum(room > count for room, count in zip(self._rooms, longest, strict=True))
        accepts = {type(cohort.method.accept) for cohort, _ in self._groups}
        return serves(len(longest), num_staying) and (width == 1 or accepts <= {Coupled, Rejection})

    def _resumes(self) -> bool:
        """Whether a text pauses in this round alone: what would run ahead is not what comes next."""
        texts = [(cohort.method.pauses, row) for cohort, rows in self._groups if cohort.method.pauses for row in rows]
        places = ((pauses, self._state.active[row]) for pauses, row in texts)
        return any(
            pauses(one.noise_sequence, one.num_generated) and not pauses(one.noise_sequence, one.num_generated + 1)
            for pauses, one in places
        )

    def _targets(self, drafts: Sequence[Draft], output: PassOutput, cohort: Cohort, rows: Sequence[int]) -> Targets:
        sampler = cohort.sampler
        if len(self._groups) > 1:
            output = output.of_rows(rows)
            drafts = [drafts[row] for row in rows]
        is_tested = cohort.is_tested and any(draft.tokens for draft in drafts)
        read = output.read_verdicts if is_tested else output.read_choices
        are_chosen = sampler.takes_best or (self._choosing is not None and read is not None)
        needs_prefixes = sampler.has_prefix_rules and not are_chosen
        prefixes = [self._state.active[row].prefix for row in rows] if needs_prefixes else []
        return Targets(drafts, output, prefixes, self._sites_of(rows), are_chosen)


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
