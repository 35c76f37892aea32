"""What rounds of a method take here, by the clock: drafting, verifying, planning, for drafts of several lengths.

One text is decoded with a lookahead that drafts another number of tokens in every round, so that all lengths are
measured side by side; the median of its rounds stands for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from ..economics import seconds_of_width
from ..engine.engine import Engine
from ..lookahead.base import PlainLookahead
from ..lookahead.learned import Learned
from ..options import NoOptions
from ..passes import DraftStats
from ..progress import Progress, no_progress
from ..protocols import Runner
from ..types import Prompt, StepRecord

_LENGTHS = (1, 2, 4, 8)


@dataclass(frozen=True)
class RoundSeconds:
    """What a round takes: `draft` for each drafted token, `verify` of N drafted ones (0: plain decoding)."""

    draft: float
    verify: Callable[[int], float]

    def of(self, num_drafted: int) -> float:
        return num_drafted * self.draft + self.verify(num_drafted)


class Sweep(PlainLookahead):
    """Drafts each of `lengths` in turn, a round each."""

    Options = NoOptions

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._num_rounds = lengths, 0
        self.max_tokens = max(lengths)
        self._length = Learned(lengths[0])

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        return stats.depth < self._length.on(stats.depth.device)

    def observe(self, step: StepRecord) -> None:
        self._num_rounds += 1
        self._length.set(self._lengths[self._num_rounds % len(self._lengths)])


def measure_rounds(
    engine: Engine,
    method: Mapping[str, Any],
    prompts: Sequence[Prompt],
    num_tokens: int,
    max_tokens: int,
    progress: Progress = no_progress,
) -> RoundSeconds:
    """Of drafts of up to `max_tokens`, in texts of `num_tokens`; the first prompt also warms up."""
    drafting = {**method, "lookahead": Sweep(lengths_to_measure(engine.runner, max_tokens))}
    plain_steps: list[StepRecord] = []
    steps: list[StepRecord] = []
    for number, prompt in enumerate((prompts[0], *prompts)):
        progress(number, len(prompts) + 1, "timing rounds")
        for kind, kept in (({"strategy": "off"}, plain_steps), (drafting, steps)):
            generation = engine.generate(prompt.tokens, max_new_tokens=num_tokens, **kind)
            kept.extend(generation.steps if number else ())
    return fit_rounds(steps, plain_steps, engine.runner.is_recording)


def lengths_to_measure(runner: Runner, max_tokens: int) -> list[int]:
    """Where passes are recorded, those that fill a width; else a few."""
    recorded = [width - 1 for width in runner.recorded_widths] if runner.is_recording else _LENGTHS
    return sorted({min(length, max_tokens) for length in (*recorded, max_tokens) if length > 0})


def fit_rounds(steps: Sequence[StepRecord], plain_steps: Sequence[StepRecord], is_recorded: bool) -> RoundSeconds:
    """`steps` with drafts of several lengths, `plain_steps` without any."""
    by_length: dict[int, list[StepRecord]] = {}
    for step in (*plain_steps, *steps):
        by_length.setdefault(step.draft.num_draft_steps, []).append(step)
    rounds = {
        length: median(step.verify_seconds + step.optimise_seconds for step in some)
        for length, some in by_length.items()
    }
    drafting = {length: median(step.draft_seconds for step in some) for length, some in by_length.items() if length}
    each, once = _line(drafting)
    known = {length + 1: seconds + (once if length else 0.0) for length, seconds in rounds.items()}
    return RoundSeconds(each, lambda num_drafted: _verify_seconds(known, num_drafted, is_recorded))


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """(of each drafted token, once a round), neither negative."""
    lengths, values = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
    if not len(lengths):
        return 0.0, 0.0
    if len(lengths) == 1 or (slope := float(np.polyfit(lengths, values, 1)[0])) < 0:
        return float((values / lengths).mean()), 0.0
    once = float((values - slope * lengths).mean())
    return (slope, once) if once >= 0 else (float((lengths @ values) / (lengths @ lengths)), 0.0)


def _verify_seconds(known: Mapping[int, float], num_drafted: int, is_recorded: bool) -> float:
    """By width; what plain decoding takes says nothing about the others."""
    others = {width: seconds for width, seconds in known.items() if width > 1}
    if not num_drafted or not others:
        return known.get(1, min(known.values()))
    return max(0.0, seconds_of_width(others, num_drafted + 1, is_recorded))
