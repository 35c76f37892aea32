"""Mixed streams: the same prompts in other orders, from task by task to another task every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..pace import Pace
from ..streams import RATIOS, change_share, mixed
from .bench import Bench
from .names import mixed_streams
from .prompts import Prompts
from .turns import TextTurns


@dataclass
class MixedStreams:
    """For each ratio all ways begin anew. `length`: of each stream; None: all measured prompts."""

    bench: Bench
    prompts: Prompts
    ratios: Sequence[float] = RATIOS
    length: int | None = None
    found: list[dict[str, Any]] = field(default_factory=list)

    def run(self, pace: Pace) -> None:
        bench = self.bench
        turns = bench.turns(bench.school.profile, mixed_streams())
        bench.warm_up(turns, self.prompts.mixed_kept_apart, bench.encode(self.prompts.mixed_measured))
        for number, ratio in enumerate(self.ratios):
            if number and pace.is_late:
                bench.say(f"time is up before the stream of ratio {ratio:g}")
                return
            turns.begin_anew()
            self._measure(turns, ratio, pace.share(1 / (len(self.ratios) - number)))

    def _measure(self, turns: TextTurns, ratio: float, pace: Pace) -> None:
        bench, measured = self.bench, self.prompts.measured
        total = self.length or len(self.prompts.mixed_measured)
        stream = mixed(measured, ratio, total, bench.seed)
        tokens = bench.encode([prompt for _, prompt in stream])
        self.found.append({})
        for (task, prompt), known in pace.each(list(zip(stream, tokens, strict=True)), f"prompts at ratio {ratio:g}"):
            turns.measure(prompt.id, task, known, bench.max_new_tokens)
            done = [name for name, _ in stream[: turns.num_measured]]
            self.found[-1] = {
                "ratio": ratio,
                "num_prompts": len(done),
                "is_complete": len(done) == len(stream),
                "changes": change_share(done),
                "ways": turns.rows(),
            }
            bench.save()

    @property
    def is_complete(self) -> bool:
        return len(self.found) == len(self.ratios) and all(one.get("is_complete") for one in self.found)

    def figures(self) -> list[dict[str, Any]]:
        return [one for one in self.found if one]
