"""Worth: whether batches gain by drafting, by the clock.

A pass of many rows is bound by computing, not by reading weights: drafts that pay for one text are a loss for many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from ..strategies.draft_switch import DraftSwitch
from .state import State


class Worth:
    """What an engine's batches have shown, by what drafts and about how many rows there are."""

    def __init__(self) -> None:
        self._switches: dict[Hashable, DraftSwitch] = defaultdict(DraftSwitch)

    def of(self, state: State) -> DraftSwitch | None:
        """Of batches like this one; None: one text drafts as its method says, and tested drafts are part of theirs."""
        num_rows = len(state.active)
        methods = frozenset(cohort.method.parts for cohort, _ in state.groups if cohort.may_do_without)
        return self._switches[methods, num_rows.bit_length()] if methods and num_rows > 1 else None
