"""What single passes cost on the engine's own runner, and the speed that follows from them: the bound.

A round drafts with so many passes and verifies with one; whatever else it does is overhead. So the costs of passes,
measured alone, and the rounds a method needed predict the least time it could have taken. A verification is priced as
a whole pass over a chain of its width; `early-exit`, which goes on behind its draft, may do better.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ..engine.state import PREFILL_CHUNK
from ..protocols import Runner
from ..types import SkipSet, StepRecord

WIDTHS = (1, 2, 4, 8, 16, 32)
_BATCHES = 5
_BATCH_SECONDS = 0.03
_COPY_BYTES = {"cuda": 2**30}
_CPU_COPY_BYTES = 2**26


@dataclass(frozen=True)
class Round:
    """What one round asks of the device. `num_draft_passes` is None where its drafts come from another model."""

    skip: SkipSet
    num_draft_passes: int | None
    width: int  # of the verification: the last committed token and the nodes of the draft


def round_of(step: StepRecord, drafter: str) -> Round:
    """`drafter`: the caller's, where the plan leaves it open. Looking something up takes no pass."""
    name = step.plan.drafter or drafter
    num_steps = step.draft.num_draft_steps
    passes = num_steps if name == "self" or not num_steps else None if name == "model" else 0
    return Round(step.plan.skip if passes else SkipSet(), passes, 1 + len(step.draft.tokens))


@dataclass
class Costs:
    """Seconds of one pass by width with nothing skipped, and of a draft pass (one token) by skip set."""

    width_seconds: Mapping[int, float]
    draft_seconds: dict[SkipSet, float] = field(default_factory=dict)

    def verify_seconds(self, width: int) -> float:
        """Interpolated between the widths that were measured; beyond the last the line goes on."""
        known = sorted(self.width_seconds)
        if width in self.width_seconds or len(known) == 1:
            return self.width_seconds.get(width, self.width_seconds[known[0]])
        right = min(max(bisect.bisect(known, width), 1), len(known) - 1)
        low, high = known[right - 1], known[right]
        slope = (self.width_seconds[high] - self.width_seconds[low]) / (high - low)
        return self.width_seconds[low] + slope * (width - low)

    def predict_seconds(self, rounds: Mapping[Round, int]) -> float | None:
        """The passes of these rounds and nothing else; None where some of them were not ours to measure."""
        seconds = 0.0
        for item, count in rounds.items():
            if item.num_draft_passes is None:
                return None
            draft = item.num_draft_passes * self.draft_seconds[item.skip] if item.num_draft_passes else 0.0
            seconds += count * (draft + self.verify_seconds(item.width))
        return seconds

    def predict_speedup(self, rounds: Mapping[Round, int], num_tokens: int) -> float | None:
        """Against as many passes of one token as there are tokens."""
        seconds = self.predict_seconds(rounds)
        return num_tokens * self.verify_seconds(1) / seconds if seconds else None


class PassMeter:
    """Times passes behind a text of `context` tokens, many in a row, nothing read back in between."""

    def __init__(self, runner: Runner, context: int) -> None:
        room = (runner.context_length or context + max(WIDTHS)) - max(WIDTHS)
        self.context = max(1, min(context, room))
        self._runner = runner
        self._cache = runner.new_cache(1, self.context + max(WIDTHS))
        for start in range(0, self.context, PREFILL_CHUNK):
            width = min(PREFILL_CHUNK, self.context - start)
            runner.forward(self._tokens(width), [start], self._cache, needs_scores=False)

    def _tokens(self, width: int) -> torch.Tensor:
        return torch.arange(1, width + 1)[None] % self._runner.vocab_size

    def seconds(self, width: int = 1, skip: SkipSet = SkipSet()) -> float:  # noqa: B008 - frozen
        """The median of a few batches of passes; the first ones warm up."""
        tokens, runner = self._tokens(width), self._runner

        def batch(count: int) -> float:
            began = runner.seconds()
            for _ in range(count):
                runner.forward(tokens, [self.context], self._cache, skip=skip)
            return (runner.seconds() - began) / count

        batch(3)
        count = max(3, round(_BATCH_SECONDS / max(batch(3), 1e-6)))
        return statistics.median(batch(count) for _ in range(_BATCHES))

    def measure(self, skips: Iterable[SkipSet]) -> Costs:
        widths = {width: self.seconds(width) for width in WIDTHS}
        costs = Costs(widths)
        self.add_drafts(costs, skips)
        return costs

    def add_drafts(self, costs: Costs, skips: Iterable[SkipSet]) -> None:
        for skip in skips:
            if skip not in costs.draft_seconds:
                costs.draft_seconds[skip] = self.seconds(skip=skip)


def skip_sets(rounds: Iterable[Counter[Round]]) -> set[SkipSet]:
    """Those that some round drafted with."""
    return {item.skip for counter in rounds for item in counter if item.num_draft_passes}


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy on the device: what memory gives at best."""
    num_bytes = _COPY_BYTES.get(device.type, _CPU_COPY_BYTES)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_BATCHES + 1):
        began = device_seconds(device)
        for _ in range(4):
            target.copy_(source)
        best = max(best, 4 * 2 * num_bytes / (device_seconds(device) - began))
    del source, target
    if device.type == "cuda":  # so that the model's own peak is seen later
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return best


def device_seconds(device: torch.device) -> float:
    """A clock that has waited for the device, whoever keeps it busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def weight_share(shares: Iterable[tuple[float, float]], skip: SkipSet) -> float:
    """What a draft pass reads of the weights; `shares`: of attention and MLP, layer by layer."""
    saved = sum(
        attention * (layer in skip.attention) + mlp * (layer in skip.mlp)
        for layer, (attention, mlp) in enumerate(shares)
    )
    return 1.0 - saved
