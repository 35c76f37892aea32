"""`heuristic`: two tokens more after a round that kept all of its draft, one less after any other.

The schedule of transformers' assisted generation (Gante 2023), with which DISCO (arXiv:2405.04304) is compared. Every
text has a length of its own, so that texts of a batch do not pull at one another. At most 24 tokens (there: no limit).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..drafted import DraftStats
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord
from .base import PlainLookahead
from .learned import Learned

NUM_PLACES = 256
"""For lengths; texts whose numbers differ by a multiple of it share one."""


class Heuristic(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        start: int = setting(5, "tokens to draft in the first round", minimum=1)
        increase: int = setting(2, "how many more after a round that kept all", minimum=0)
        decrease: int = setting(1, "how many fewer after any other", minimum=0)
        carry: bool = setting(True, "a text begins with the length at which the last one ended")
        max_tokens: int = setting(24, "never draft more tokens than this in a round", minimum=1)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        super().__init__(options)
        self._lengths = Learned(np.ones(NUM_PLACES))
        self._of_text: dict[int, int] = {}
        self.forget()

    def forget(self) -> None:
        self._first = min(self.options.start, self.options.max_tokens)
        self._of_text.clear()
        self._tell()

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return stats.depth < self._lengths.on(stats.depth.device)[stats.sequence_ids % NUM_PLACES]

    @property
    def num_changes(self) -> int:
        return self._lengths.num_changes

    def observe(self, step: StepRecord) -> None:
        if step.draft.chain_length and not step.was_cut:
            length = self._of_text.get(step.sequence_id, self._first)
            has_kept_all = sum(step.chain_outcomes) == step.draft.chain_length
            length += self.options.increase if has_kept_all else -self.options.decrease
            length = min(max(length, 1), self.max_tokens)
            self._of_text[step.sequence_id] = length
            self._lengths.put(step.sequence_id % NUM_PLACES, length)

    def end(self, sequence_id: int) -> None:
        length = self._of_text.pop(sequence_id, self._first)
        if self.options.carry:
            self._first = length
        self._tell()

    def _tell(self) -> None:
        lengths = np.full(NUM_PLACES, self._first)
        for sequence_id, length in self._of_text.items():
            lengths[sequence_id % NUM_PLACES] = length
        self._lengths.set(lengths)
