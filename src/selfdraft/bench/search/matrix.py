"""The set of one domain on the tasks of another: speed-up, and how often it meets the target's choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...calibrate.texts import probe_text
from ...types import FrontierPoint
from ..pace import Pace
from ..selection.held_out import HeldOut
from .bench import Bench
from .names import one_set
from .prompts import Prompts
from .sets import DomainSet
from .turns import TextTurns


@dataclass
class Matrix:
    """Sets x tasks; every set drafts every measured prompt, as a chain."""

    bench: Bench
    prompts: Prompts
    sets: Sequence[DomainSet]
    turns: TextTurns = field(init=False)
    held_out: HeldOut = field(init=False)

    def __post_init__(self) -> None:
        methods = {_way(one): one_set(str(one.skip)) for one in self.sets}
        self.turns = self.bench.turns(self.bench.school.profile, methods)
        skips = dict.fromkeys(one.skip for one in self.sets)
        self.held_out = HeldOut([FrontierPoint(skip, 0.0, 1.0) for skip in skips], self.bench.prices)

    def run(self, pace: Pace) -> None:
        bench, prompts = self.bench, self.prompts.mixed_measured
        tokens = bench.encode(prompts)
        bench.warm_up(self.turns, self.prompts.mixed_kept_apart, tokens)
        for prompt, known in pace.each(list(zip(prompts, tokens, strict=True)), "prompts of the matrix"):
            plain = self.turns.measure(prompt.id, prompt.domain, known, bench.max_new_tokens)
            self._look(prompt.domain, known, plain.tokens)
            bench.save()

    def _look(self, domain: str, prompt: Sequence[int], generated: Sequence[int]) -> None:
        text = self.bench.plain_text(prompt, generated)
        if text.num_generated:
            self.held_out.add(domain, probe_text(text, self.bench.engine.runner), len(prompt) - 1, text.num_generated)

    @property
    def is_complete(self) -> bool:
        return self.turns.num_measured == len(self.prompts.mixed_measured)

    def figures(self) -> dict[str, Any]:
        tasks = list(self.prompts.measured)
        return {
            "is_complete": self.is_complete,
            "num_prompts": self.turns.num_measured,
            "num_tokens": self.held_out.num_tokens,
            "tasks": tasks,
            "speedup": {
                one.domain: {task: self.turns.speedup_on(_way(one), task) for task in tasks} for one in self.sets
            },
            "match": {one.domain: {task: self._match(one, task) for task in tasks} for one in self.sets},
            "ways": self.turns.rows(),
        }

    def _match(self, one: DomainSet, task: str) -> float | None:
        return self.held_out.tallies[str(one.skip)][task].match


def _way(one: DomainSet) -> str:
    return f"set of {one.domain}"
