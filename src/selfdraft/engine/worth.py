"""Worth: whether batches gain by drafting, by the clock.

A pass of many rows is bound by computing, not by reading weights: drafts that pay for one text are a loss for many.
Texts that were asked for together are done when the slowest one is, so batches go by that one. Where others come when
some leave, a text that is quicker makes room for the next one: there all texts count alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping

from ..strategies.draft_switch import DraftSwitch
from .state import State

MAX_KNOWN = 64


class BatchSwitch(DraftSwitch):
    """Begins with plain rounds: beside these, drafts that are far too slow for all these rows end early."""

    def __init__(self) -> None:
        super().__init__()
        self.is_drafting = False
        self._emitted: Counter[int] = Counter()

    def observe_rows(self, has_drafted: bool, counts: Mapping[int, int], seconds: float, others_come: bool) -> None:
        """A round, and how many tokens each text emitted, by its number."""
        if others_come:
            self._emitted.clear()
            self.observe(has_drafted, sum(counts.values()) / len(counts), seconds)
            return
        if self._emitted.keys() != counts.keys():  # who joins begins with the slowest one of those that stay
            least = min((self._emitted[number] for number in counts if number in self._emitted), default=0)
            self._emitted = Counter({number: self._emitted.get(number, least) for number in counts})
        before = min(self._emitted.values())
        self._emitted.update(counts)
        self.observe(has_drafted, min(self._emitted.values()) - before, seconds)


class Worth:
    """What an engine's batches have shown, by what drafts and about how many rows there are."""

    def __init__(self) -> None:
        self._switches: dict[Hashable, BatchSwitch] = defaultdict(BatchSwitch)

    def of(self, state: State) -> BatchSwitch | None:
        """Of batches like this one; None: one text drafts as its method says, and tested drafts are part of theirs.

        Rows are told apart as `passes.serves` does it: who leaves and who joins next go by one switch.
        """
        num_rows = len(state.active)
        methods = frozenset(cohort.method.parts for cohort, _ in state.groups if cohort.may_do_without)
        if not methods or num_rows < 2:
            return None
        while len(self._switches) >= MAX_KNOWN:  # callers' own parts are others each time
            del self._switches[next(iter(self._switches))]
        return self._switches[methods, (num_rows - 1).bit_length()]
