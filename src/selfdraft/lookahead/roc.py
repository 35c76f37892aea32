"""`roc`: `confidence` with a threshold refitted to what became of earlier tokens.

transformers' dynamic speculation lookahead (by the authors of DISCO, arXiv:2405.04304): of all thresholds the one that
minimises false positives' rate + 3 x false negatives' rate over the (confidence, kept) pairs seen: a point of the ROC
curve (receiver operating characteristic). Theirs grow without bound; these are the last `memory` ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..drafted import DraftStats
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord
from .base import PlainLookahead
from .learned import Learned

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MIN_NEW = 8
"""Tokens seen from one fit to the next."""


class Roc(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        threshold: float = setting(0.4, "the threshold until it can be fitted", minimum=0.0, maximum=1.0)
        weight: float = setting(3.0, "of stopping before a token that would have been kept", minimum=0.0)
        memory: int = setting(1024, "tokens to fit to", minimum=2)
        min_pairs: int = setting(6, "do not fit to fewer", minimum=2)
        max_tokens: int = setting(12, "never draft more tokens than this in a round", minimum=1)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        super().__init__(options)
        self._confidences, self._kept = np.zeros(options.memory), np.zeros(options.memory, dtype=bool)
        self._num_seen = self._num_fitted = 0
        self._learned = Learned(options.threshold)

    def forget(self) -> None:
        self._num_seen = self._num_fitted = 0
        self._learned.set(self.options.threshold)

    @property
    def threshold(self) -> float:
        return float(self._learned.values)

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return (stats.confidence >= self._learned.on(stats.confidence.device)) & (stats.depth < self.max_tokens)

    @property
    def num_changes(self) -> int:
        return self._learned.num_changes

    def observe(self, step: StepRecord) -> None:
        for confidence, is_kept in zip(step.draft.confidences, step.chain_outcomes, strict=False):
            place = self._num_seen % self.options.memory
            self._confidences[place], self._kept[place] = confidence, is_kept
            self._num_seen += 1
        known = slice(min(self._num_seen, self.options.memory))
        if self._num_seen >= self.options.min_pairs and self._num_seen - self._num_fitted >= MIN_NEW:
            self._num_fitted = self._num_seen
            best = best_threshold(self._confidences[known], self._kept[known], self.options.weight)
            if best is not None:
                self._learned.set(best)


def best_threshold(confidences: Floats, kept: Flags, weight: float) -> float | None:
    """At or above which to call a token kept: least (rate of false positives + weight x rate of false negatives).

    Of equals the highest. None where only one kind was seen.
    """
    order = np.argsort(-confidences)
    confidences, kept = confidences[order], kept[order]
    num_kept, num_refused = int(kept.sum()), int((~kept).sum())
    if not num_kept or not num_refused:
        return None
    is_last = np.append(confidences[1:] != confidences[:-1], True)  # of those with its confidence
    missed = 1 - np.cumsum(kept)[is_last] / num_kept
    wrong = np.cumsum(~kept)[is_last] / num_refused
    return float(confidences[is_last][np.argmin(wrong + weight * missed)])
