"""Many texts of mixed length, all of our ways in turn: what they leave in memory must not grow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.engine import Engine
from .circumstances import GraphWatch, memory_bytes
from .ways import Way

_SHARES = (1.0, 1 / 16, 1 / 2, 1 / 8, 1 / 4)
_NUM_SAMPLES = 4


@dataclass
class Soak:
    """Lengths are shares of `max_new_tokens`. All of them are met with every way before memory is first looked at."""

    engine: Engine
    ways: Sequence[Way]
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watch = GraphWatch(self.engine.runner)
        self._lengths = [max(1, round(self.max_new_tokens * share)) for share in _SHARES]

    def run(self, count: int, say: Callable[[str], None]) -> None:
        pairs = list(itertools.product(self.ways, self._lengths))
        for index, (way, length) in enumerate(pairs):
            self._generate(index, way, length)
        self._sample(0)
        for index, (way, length) in zip(range(count), itertools.cycle(pairs), strict=False):
            with self._watch.watching():
                self._generate(index, way, length)
            done = index + 1
            if done * _NUM_SAMPLES // count > index * _NUM_SAMPLES // count:
                self._sample(done)
                say(f"soak: {done}/{count} generations")

    def _generate(self, index: int, way: Way, length: int) -> None:
        way.run(self.engine, self.prompts[index % len(self.prompts)], length)

    def _sample(self, num_generations: int) -> None:
        self.samples.append({"num_generations": num_generations, **memory_bytes(self.engine.device)})

    def figures(self) -> dict[str, Any] | None:
        """None where it did not come to its first sample."""
        if not self.samples:
            return None
        first, last = self.samples[0], self.samples[-1]
        growth = {name: None if first[name] is None else last[name] - first[name] for name in ("used", "held")}
        return {
            "num_generations": last["num_generations"],
            "growth": growth,
            "samples": self.samples,
            "graphs": self._watch.figures(),
        }
