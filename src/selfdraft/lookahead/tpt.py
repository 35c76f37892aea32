"""`tpt`: draft on while one more token is worth its time (tokens per time). Ours; nothing to train, nothing to tune.

A round of k drafted tokens emits 1 + the sum over i <= k of c_i tokens, c_i being the chance that the first i are all
kept, and takes k d + v(k) seconds. To go on adds c_(k+1) tokens and d + v(k+1) - v(k) seconds: worth it while

    c_k q > R (d + v(k+1) - v(k))

where R, tokens per second, is what the time would bring otherwise (for the best rule it is the rule's own rate: a
renewal process), and q the chance of the token to come. Where tokens are kept independently with one chance, this stops
where the improvement factor of Leviathan et al. (arXiv:2211.17192) is largest. All of it is measured while decoding: d,
v and R by the clock, over the last rounds; what a confidence is worth, and q, by what became of earlier tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.top import runs_triton
from ..options import setting
from ..passes import DraftStats
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord
from .base import PlainLookahead
from .learned import Learned, RunningProduct

EDGES = tuple(float(1 - 2 ** -(step / 2)) for step in range(1, 16))
"""Between the classes of confidence: finer towards 1, where most tokens are."""
FIRST_BAR = 0.4
"""What `c_k` must stay above until time has been measured."""
MIN_ROUNDS, INTERVAL = 4, 4
"""Rounds before anything is concluded from the clock, and from one conclusion to the next."""
MAX_OF_MEDIAN = 3.0
"""A round that took longer, by this factor, was held up by something else (recording, another program)."""


class Tpt(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        max_tokens: int = setting(12, "never draft more tokens than this in a round", minimum=1)
        rounds: int = setting(64, "the clock's memory, in rounds", minimum=MIN_ROUNDS)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        super().__init__(options)
        self._table, self._bar = Learned(Chances().table), Learned(FIRST_BAR)
        self._edges, self._all_kept = Learned(EDGES), RunningProduct()
        self.forget()

    def forget(self) -> None:
        self._chances, self._costs, self._num_rounds = Chances(), Costs(self.options.rounds), 0
        self._table.set(self._chances.table)
        self._bar.set(FIRST_BAR)

    @property
    def bar(self) -> float:
        """Drafting goes on while the chance that all drafted tokens are kept is above it."""
        return float(self._bar.values)

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        confidence, depth = stats.confidence, stats.depth
        edges, table, bar = (part.on(confidence.device) for part in (self._edges, self._table, self._bar))
        if stats.scores is not None and runs_triton(confidence.device):
            from ..kernels.judge import by_chances

            return by_chances(confidence, depth, self._all_kept.of(confidence), edges, table, bar, self.max_tokens)
        chance = table[torch.bucketize(confidence, edges, right=True)]
        return (self._all_kept(stats, chance) > bar) & (depth < self.max_tokens)

    def observe(self, step: StepRecord) -> None:
        if not step.draft.num_draft_steps:
            return
        self._chances.learn(step.draft.confidences, step.chain_outcomes)
        self._costs.learn(step)
        self._num_rounds += 1
        if self._num_rounds >= MIN_ROUNDS and self._num_rounds % INTERVAL == 0:
            self._table.set(self._chances.table)
            self._bar.set(self._costs.tokens_a_step / self._chances.next_token)


class Chances:
    """How often tokens are kept, by how sure the draft was of them. A confidence is believed until more is known."""

    PRIOR, MEMORY = 4.0, 0.995
    """What the belief weighs against tokens seen, and what is left of these behind each round."""

    def __init__(self) -> None:
        bounds = np.array([0.0, *EDGES, 1.0])
        self._belief: npt.NDArray[np.float64] = (bounds[1:] + bounds[:-1]) / 2
        self._kept, self._seen = np.zeros(len(self._belief)), np.zeros(len(self._belief))

    @property
    def table(self) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = (self.PRIOR * self._belief + self._kept) / (self.PRIOR + self._seen)
        return found

    @property
    def next_token(self) -> float:
        """Of a token nothing is known of."""
        return float((self.PRIOR * 0.75 + self._kept.sum()) / (self.PRIOR + self._seen.sum()))

    def learn(self, confidences: Sequence[float], outcomes: Sequence[bool]) -> None:
        self._kept *= self.MEMORY
        self._seen *= self.MEMORY
        places = np.searchsorted(EDGES, confidences[: len(outcomes)], side="right")
        np.add.at(self._kept, places, outcomes)
        np.add.at(self._seen, places, 1.0)


class Costs:
    """What rounds took: the last ones, by the clock."""

    def __init__(self, num_rounds: int) -> None:
        self._rounds: deque[tuple[float, float, float, float, float]] = deque(maxlen=num_rounds)

    def learn(self, step: StepRecord) -> None:
        width = 1 + len(step.draft.tokens)
        emitted = len(step.verdict.tokens)
        seconds = (step.draft_seconds, step.verify_seconds)
        self._rounds.append((step.draft.num_draft_steps, *seconds, width, emitted))

    @property
    def tokens_a_step(self) -> float:
        """What decoding emits on average in the time that one more drafted token takes."""
        steps, drafting, verifying, widths, emitted = np.array(self._rounds).T
        seconds = drafting + verifying
        fair = np.minimum(seconds, MAX_OF_MEDIAN * np.median(seconds))
        if not fair.sum() > 0:
            return 0.0
        step_seconds = np.median(drafting / steps) + _slope(widths, verifying)
        return float(step_seconds * emitted.sum() / fair.sum())


def _slope(widths: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> float:
    """Seconds of one more column: between the typical narrow and the typical wide verification."""
    middle = np.median(widths)
    is_wide = widths > middle
    if not is_wide.any() or is_wide.all():
        return 0.0
    width = widths[is_wide].mean() - widths[~is_wide].mean()
    return max(0.0, float((np.median(seconds[is_wide]) - np.median(seconds[~is_wide])) / width))
