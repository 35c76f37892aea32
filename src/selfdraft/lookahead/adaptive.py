"""`adaptive`: `confidence` with a threshold that follows an acceptance target, carried from text to text.

Draft & Verify (arXiv:2309.08168), its adaptive draft exit. The share of a round's draft that is kept, smoothed, is held
against the target: below it the threshold rises a step, else it falls one, but not after the longest drafts; it is
smoothed, too. Unlike the authors' code: the threshold begins at 0.8 (their notebooks: 0.6), the smoothed share at the
target and is carried (theirs: 0 in each text); the confidence is the best token's, not the drawn one's; the target is
0.9 for all texts (theirs for code also 0.85).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..drafted import DraftStats
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord
from .base import PlainLookahead
from .learned import Learned


class Adaptive(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        threshold: float = setting(0.8, "the threshold to begin with", minimum=0.0, maximum=1.0)
        target: float = setting(0.9, "the share of drafted tokens to be kept", minimum=0.0, maximum=1.0)
        step: float = setting(0.01, "how far the threshold moves in a round", minimum=0.0, maximum=1.0)
        acceptance_memory: float = setting(0.5, "what counts of the earlier share", minimum=0.0, maximum=0.999)
        threshold_memory: float = setting(0.9, "what counts of the earlier threshold", minimum=0.0, maximum=0.999)
        max_tokens: int = setting(12, "never draft more tokens than this in a round", minimum=1)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        super().__init__(options)
        self._learned = Learned(options.threshold)
        self.forget()

    def forget(self) -> None:
        self._threshold: float = self.options.threshold
        self._share: float = self.options.target
        self._learned.set(self._threshold)

    @property
    def threshold(self) -> float:
        return self._threshold

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return (stats.confidence >= self._learned.on(stats.confidence.device)) & (stats.depth < self.max_tokens)

    @property
    def num_changes(self) -> int:
        return self._learned.num_changes

    def observe(self, step: StepRecord) -> None:
        if not step.draft.chain_length or step.was_cut:
            return
        options, kept = self.options, sum(step.chain_outcomes) / step.draft.chain_length
        self._share = options.acceptance_memory * self._share + (1 - options.acceptance_memory) * kept
        falls = 0.0 if step.draft.chain_length >= self.max_tokens else options.step
        moved = self._threshold + (options.step if self._share < options.target else -falls)
        smoothed = options.threshold_memory * self._threshold + (1 - options.threshold_memory) * moved
        self._threshold = min(max(smoothed, 0.0), 1.0)
        self._learned.set(self._threshold)
