"""`tpt`: draft on while one more token is worth its time (tokens per time). Ours; nothing to train, nothing to tune.

A round of k drafted tokens emits 1 + the sum over i <= k of c_i tokens, c_i being the chance that the first i are all
kept, and takes k d + v(k) seconds. To go on adds c_(k+1) tokens and d + v(k+1) - v(k) seconds: worth it while

    c_k q > R (d + v(k+1) - v(k))

where R, tokens per second, is what the time would bring otherwise (for the best rule it is the rule's own rate: a
renewal process), and q the chance of the token to come. Where tokens are kept independently with one chance, this stops
where the improvement factor of Leviathan et al. (arXiv:2211.17192) is largest. All of it is measured while decoding: R
and the seconds by the clock, over the last rounds; what a confidence is worth for its own token, and for the next one,
by what became of earlier tokens. Each text of a batch decides as if the others went on with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from ..drafted import DraftStats
from ..kernels.top import runs_triton
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from ..types import StepRecord
from .base import PlainLookahead
from .learned import Learned, RunningProduct

EDGES = tuple(float(1 - 2 ** -(step / 2)) for step in range(1, 16))
"""Between the classes of confidence: finer towards 1, where most tokens are."""
FIRST_BAR = 0.4
"""What `c_k q` must stay above until time has been measured."""
MIN_ROUNDS, INTERVAL = 4, 8
"""Rounds before anything is concluded from the clock, and from one conclusion to the next."""
MIN_OF_USUAL = 0.25
"""One more drafted token takes at least this share of what they take on average, whatever a few rounds say."""
MAX_WEIGHT = 1e9
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
        """Drafting goes on while the chance that all drafted tokens and the next one are kept is above it."""
        return float(self._bar.values)

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        confidence, depth = stats.confidence, stats.depth
        edges, table, bar = (part.on(confidence.device) for part in (self._edges, self._table, self._bar))
        if stats.scores is not None and runs_triton(confidence.device):
            from ..kernels.stop_rules import by_chances

            return by_chances(confidence, depth, self._all_kept.of(confidence), edges, table, bar, self.max_tokens)
        place = torch.bucketize(confidence, edges, right=True)
        worth: torch.Tensor = self._all_kept(stats, table[0, place]) * table[1, place] > bar
        return worth & (depth < self.max_tokens)

    def observe(self, step: StepRecord) -> None:
        if not step.draft.num_draft_steps:
            return
        self._chances.learn(step.draft.confidences, step.chain_outcomes)
        self._costs.learn(step)
        self._num_rounds += 1
        if self._num_rounds == MIN_ROUNDS or self._num_rounds % INTERVAL == 0:
            self._table.set(self._chances.table)
            self._bar.set(self._costs.tokens_a_step)


class Chances:
    """How often tokens are kept, by how sure the draft was of them, and those after them. A confidence is believed
    until more is known.
    """

    PRIOR, MEMORY = 4.0, 0.995
    """What the belief weighs against tokens seen, and what is left of these after each round."""
    USUAL = 0.75
    """Of a token nothing is known of."""

    def __init__(self) -> None:
        bounds = (0.0, *EDGES, 1.0)
        self._beliefs = [(low + high) / 2 for low, high in pairwise(bounds)]
        self._own, self._next = ([[0.0, 0.0] for _ in self._beliefs] for _ in range(2))  # kept, seen
        self._weight = 1.0  # of what is seen now: it grows, instead of all that was seen shrinking

    def learn(self, confidences: Sequence[float], outcomes: Sequence[bool]) -> None:
        before, weight = None, self._weight
        for confidence, is_kept in zip(confidences, outcomes, strict=False):
            place = bisect_right(EDGES, confidence)
            _count(self._own[place], is_kept, weight)
            if before is not None:
                _count(self._next[before], is_kept, weight)
            before = place
        self._weight = weight / self.MEMORY
        if self._weight > MAX_WEIGHT:
            for counts in (*self._own, *self._next):
                counts[:] = (count / self._weight for count in counts)
            self._weight = 1.0

    @property
    def table(self) -> list[list[float]]:
        """By class of confidence: the chance of the token itself, and of the next one if it is kept."""
        usual = self._share(self.USUAL, [sum(column) for column in zip(*self._own, strict=True)])
        own = [self._share(belief, counts) for belief, counts in zip(self._beliefs, self._own, strict=True)]
        return [own, [self._share(usual, counts) for counts in self._next]]

    def _share(self, belief: float, counts: Sequence[float]) -> float:
        prior = self.PRIOR * self._weight
        return (prior * belief + counts[0]) / (prior + counts[1])


def _count(counts: list[float], is_kept: bool, weight: float) -> None:
    counts[0] += weight * is_kept
    counts[1] += weight


@dataclass
class Round:
    """Of all texts of a batch: the longest draft, seconds, and what they emitted."""

    clock: tuple[float, float, float]
    num_steps: int = 0
    num_rows: int = 0
    num_emitted: int = 0

    def add(self, step: StepRecord) -> None:
        self.num_steps = max(self.num_steps, step.draft.num_draft_steps)
        self.num_rows += 1
        self.num_emitted += len(step.verdict.tokens)


class Costs:
    """What rounds took: the last ones, by the clock. Texts of a batch share a round, so they share its clock."""

    def __init__(self, num_rounds: int) -> None:
        self._rounds: deque[Round] = deque(maxlen=num_rounds)
        self._texts: set[int] = set()  # of the last one

    def learn(self, step: StepRecord) -> None:
        clock = (step.draft_seconds, step.verify_seconds, step.optimise_seconds)
        last = self._rounds[-1] if self._rounds else None
        if last is None or last.clock != clock or step.sequence_id in self._texts:
            self._rounds.append(last := Round(clock))
            self._texts.clear()
        self._texts.add(step.sequence_id)
        last.add(step)

    @property
    def tokens_a_step(self) -> float:
        """What a text is given on average in the time that one more drafted token takes."""
        rounds = self._rounds
        steps, seconds = [one.num_steps for one in rounds], [one.clock[0] + one.clock[1] for one in rounds]
        longest = MAX_OF_MEDIAN * median(seconds)
        fair = [min(one, longest) for one in seconds]
        planning = [min(one.clock[2], longest) for one in rounds]
        if not sum(fair) > 0:
            return 0.0
        usual = median(one.clock[0] / one.num_steps for one in rounds)
        one_more = max(_slope(steps, fair, usual), MIN_OF_USUAL * usual)
        emitted = sum(one.num_emitted / one.num_rows for one in rounds)
        return one_more * emitted / (sum(fair) + sum(planning))


def _slope(steps: Sequence[int], seconds: Sequence[float], otherwise: float) -> float:
    """Seconds of one more step, by least squares; `otherwise` where all rounds had the same number."""
    mean_steps, mean_seconds = sum(steps) / len(steps), sum(seconds) / len(seconds)
    spread = sum((count - mean_steps) ** 2 for count in steps)
    if not spread:
        return otherwise
    pairs = zip(steps, seconds, strict=True)
    covered: float = sum((count - mean_steps) * (one - mean_seconds) for count, one in pairs)
    return covered / spread
