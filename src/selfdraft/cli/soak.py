"""Many texts of mixed length, all of our methods in turn: what they leave in memory must not grow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ..engine.engine import Engine
from ..measure.arms import Ours
from ..measure.device import memory_bytes

_SHARES = (1.0, 1 / 16, 1 / 2, 1 / 8, 1 / 4)
_NUM_SAMPLES = 4
Sample = dict[str, Any]


def soak(
    engine: Engine, arms: Sequence[Ours], prompts: Sequence[Sequence[int]], calls: Sequence[Sample], count: int
) -> Iterator[Sample]:
    """Memory now and then. Lengths are shares of a call's; all are met with every method before the first."""
    pairs = [
        (arm, {**call, "max_new_tokens": max(1, round(call["max_new_tokens"] * share))})
        for arm, share, call in itertools.product(arms, _SHARES, calls)
    ]
    turns = itertools.chain(pairs, itertools.cycle(pairs))
    for index, (arm, call) in enumerate(itertools.islice(turns, len(pairs) + count)):
        arm.generate(prompts[index % len(prompts)], call)
        done = index + 1 - len(pairs)
        if done == 0 or (done > 0 and done * _NUM_SAMPLES // count > (done - 1) * _NUM_SAMPLES // count):
            yield {"num_generations": done, **memory_bytes(engine.device)}


def growth(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """None where it did not come to its first sample."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    grown = {name: None if first[name] is None else last[name] - first[name] for name in ("used", "held")}
    return {"num_generations": last["num_generations"], "growth": grown, "samples": samples}
