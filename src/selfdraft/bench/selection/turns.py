"""Ways that take turns on the same prompts, plain decoding among them; every output is compared with the plain one."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.engine import Engine
from ...profiles.profile import Profile
from ...registry import resolve
from ...types import Generation
from ..totals import difference
from ..ways import OFF
from .sums import Prices, Sums, add_up, figures, plan_figures, sums_of

WARM_UP_TOKENS = 8
"""New tokens, where nothing is recorded on the way."""


@dataclass
class Arm:
    """One way, with an engine of its own: what its strategy learns is its own."""

    name: str
    method: Mapping[str, Any]
    engine: Engine
    sums: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    differences: list[dict[str, Any]] = field(default_factory=list)

    def run(self, prompt: Sequence[int], num_tokens: int) -> Generation:
        return self.engine.generate(prompt, max_new_tokens=num_tokens, **self.method)

    @property
    def is_own_draft(self) -> bool:
        return bool(resolve(self.method)["drafter"] == "self")

    @property
    def total(self) -> Sums:
        return add_up(self.sums.values())


class Turns:
    """`off` and the `methods` by name. Each begins with a strategy that has seen no text."""

    def __init__(
        self, engine: Engine, profile: Profile, methods: Mapping[str, Mapping[str, Any]], prices: Prices
    ) -> None:
        self._engine, self._profile, self._prices = engine, profile, prices
        whole = {OFF: {"strategy": OFF}, **methods}
        self.arms = [Arm(name, method, self._own_engine()) for name, method in whole.items()]
        self.num_measured = 0

    def _own_engine(self) -> Engine:
        """On the same model and runner, so that it costs nothing and shares what is recorded."""
        engine = copy.copy(self._engine)
        engine.remember(self._profile)
        return engine

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """With all new tokens where passes are recorded: that must not happen while measuring.

        What strategies learned on the way is forgotten; what was recorded stays.
        """
        is_recorded = self._engine.runner.is_recording
        for arm in self.arms:
            arm.engine.prepare(max(map(len, prompts)) + num_tokens, **arm.method)
            for prompt in prompts:
                arm.run(prompt, num_tokens if is_recorded else min(num_tokens, WARM_UP_TOKENS))
            arm.engine.forget()

    def measure(self, prompt_id: str, domain: str, prompt: Sequence[int], num_tokens: int) -> Generation:
        """One prompt in all ways; the plain text. An interrupted prompt counts for none."""
        shift = self.num_measured % len(self.arms)  # nobody always comes first
        outputs = [(arm, *self._run(arm, prompt, num_tokens)) for arm in (*self.arms[shift:], *self.arms[:shift])]
        plain = next(generation for arm, generation, _ in outputs if arm.name == OFF)
        compared = [
            (arm, generation, seconds, None if arm.name == OFF else self._engine.compare(prompt, plain, generation))
            for arm, generation, seconds in outputs
        ]
        for arm, generation, capture_seconds, comparison in compared:
            if comparison is not None and comparison.verdict != "equal":
                arm.differences.append(difference(prompt_id, domain, comparison))
            self.count(arm, domain, generation, capture_seconds, None if comparison is None else comparison.verdict)
        self.num_measured += 1
        return plain

    def count(self, arm: Arm, domain: str, generation: Generation, capture_seconds: float, verdict: str | None) -> None:
        arm.sums[domain] += sums_of(generation, self._prices, verdict, capture_seconds, arm.is_own_draft)

    def _run(self, arm: Arm, prompt: Sequence[int], num_tokens: int) -> tuple[Generation, float]:
        """And the seconds that recording took of it."""
        before = self._capture_seconds()
        generation = arm.run(prompt, num_tokens)
        return generation, self._capture_seconds() - before

    def _capture_seconds(self) -> float:
        return self._engine.runner.capture_seconds

    def rows(self) -> list[dict[str, Any]]:
        plain = self.arms[0]
        return [
            {
                "name": arm.name,
                "method": dict(arm.method),
                "total": figures(arm.total, plain.total),
                "domains": {domain: figures(sums, plain.sums[domain]) for domain, sums in arm.sums.items()},
                "plans": plan_figures(arm.total.plans),
                "differences": arm.differences,
            }
            for arm in self.arms
        ]


def texts_to_warm_up(texts: Iterable[Sequence[int]], longest: int, is_recorded: bool) -> list[Sequence[int]]:
    """Of `texts`, none of which is measured: one short, and where recordings are made for sizes one of `longest`."""
    ordered = sorted(texts, key=len)
    as_long = list(itertools.islice(itertools.cycle(ordered[-1]), longest))
    return [as_long, ordered[0]] if is_recorded else [ordered[0]]
