"""Many texts of mixed length, all of our methods in turn: what they leave in memory must not grow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.device import memory_bytes
from ..engine.engine import Engine
from ..measure.arms import Ours

_SHARES = (1.0, 1 / 16, 1 / 2, 1 / 8, 1 / 4)
_NUM_SAMPLES = 4


@dataclass
class Soak:
    """Lengths are shares of `max_new_tokens`. All of them are met with every method before memory is first read."""

    engine: Engine
    arms: Sequence[Ours]
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    def run(self, count: int, say: Callable[[str], None]) -> None:
        lengths = [max(1, round(self.max_new_tokens * share)) for share in _SHARES]
        pairs = list(itertools.product(self.arms, lengths))
        for index, (arm, length) in enumerate(pairs):
            self._generate(index, arm, length)
        self._sample(0)
        for index, (arm, length) in zip(range(count), itertools.cycle(pairs), strict=False):
            self._generate(index, arm, length)
            done = index + 1
            if done * _NUM_SAMPLES // count > index * _NUM_SAMPLES // count:
                self._sample(done)
                say(f"soak: {done}/{count} generations")

    def _generate(self, index: int, arm: Ours, length: int) -> None:
        arm.generate(self.prompts[index % len(self.prompts)], {"max_new_tokens": length})

    def _sample(self, num_generations: int) -> None:
        self.samples.append({"num_generations": num_generations, **memory_bytes(self.engine.device)})

    def figures(self) -> dict[str, Any] | None:
        """None where it did not come to its first sample."""
        if not self.samples:
            return None
        first, last = self.samples[0], self.samples[-1]
        growth = {name: None if first[name] is None else last[name] - first[name] for name in ("used", "held")}
        return {"num_generations": last["num_generations"], "growth": growth, "samples": self.samples}
