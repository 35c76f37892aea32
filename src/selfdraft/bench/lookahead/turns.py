"""Rules that take turns on the same prompts, plain decoding among them; every output is compared with the plain one."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...engine.engine import Engine
from ...engine.metrics import Comparison
from ...engine.state import DRAFT_SLOTS
from ...fitting import CalibrationPrompt
from ...lookahead.base import PlainLookahead
from ...types import Generation
from ..totals import difference
from ..ways import OFF
from .lengths import lengths_of
from .oracle import Oracle
from .rows import PLAIN
from .sums import Sums, add_up, figures, sums_of

WARM_UP_ROUNDS = 4
WARM_UP_TOKENS = 8


@dataclass
class Arm:
    """One rule, with an engine of its own, so that what a strategy learns is its own; an object for each domain."""

    name: str
    engine: Engine
    method: Mapping[str, Any]
    lookaheads: Mapping[str, PlainLookahead]
    sums: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    differences: list[dict[str, Any]] = field(default_factory=list)

    def run(self, domain: str, prompt: Sequence[int], **call: Any) -> Generation:
        return self.engine.generate(prompt, **self.method_for(domain), **call)

    def method_for(self, domain: str) -> dict[str, Any]:
        if self.name == PLAIN:
            return {"strategy": OFF}
        return {**self.method, "lookahead": self.lookaheads[domain]}

    @property
    def oracle(self) -> Oracle | None:
        first = next(iter(self.lookaheads.values()), None)
        return first if isinstance(first, Oracle) else None

    @property
    def total(self) -> Sums:
        return add_up(self.sums.values())


@dataclass(frozen=True)
class Output:
    """What a rule made of a prompt; `capture_seconds`: of it, what recording took."""

    arm: Arm
    generation: Generation
    capture_seconds: float
    comparison: Comparison | None = None  # with the plain one


class Turns:
    """At one temperature. `rules`: of each row but plain decoding, by domain, a lookahead that has seen no text.

    `engine` has seen none either; it lends each arm its model and its runner.
    """

    def __init__(
        self,
        engine: Engine,
        method: Mapping[str, Any],
        rules: Mapping[str, Mapping[str, PlainLookahead]],
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> None:
        self._engine, self._method, self._seed = engine, method, seed
        self._num_tokens, self.temperature = max_new_tokens, temperature
        whole: dict[str, Mapping[str, PlainLookahead]] = {PLAIN: {}, **rules}
        self.arms = [Arm(name, self._own_engine(), method, lookaheads) for name, lookaheads in whole.items()]
        self.oracle_lengths: dict[str, list[list[int]]] = defaultdict(list)
        self.num_measured = 0

    def _own_engine(self) -> Engine:
        """On the same model and runner: it costs nothing, and what is recorded is shared."""
        engine = copy.copy(self._engine)
        engine.remember(self._engine.memory.profile)
        return engine

    @property
    def _widest(self) -> dict[str, Any]:
        """The method with the rule that drafts furthest: what is recorded for it will do for all."""
        return {**self._method, "lookahead": Oracle([[]])}

    # ------------------------------------------------------------------------------------------------- warming up

    def warm_up(self, text: Sequence[int], lengths: Mapping[str, Sequence[int]]) -> None:
        """On pieces of `text`, which is not measured. `lengths`: of the prompts that are, by domain.

        What strategies and rules learned on the way is forgotten; what was recorded stays.
        """
        longest = max(itertools.chain.from_iterable(lengths.values()))
        self._own_engine().prepare(longest + self._num_tokens, **self._widest)
        is_recorded = self._engine.runner.is_recording
        for arm in self.arms:
            for domain, own in lengths.items() if is_recorded else list(lengths.items())[:1]:
                self._warm_up(arm, domain, text, own, is_recorded)
            arm.engine.forget()
            for lookahead in arm.lookaheads.values():
                lookahead.forget()

    def _warm_up(self, arm: Arm, domain: str, text: Sequence[int], lengths: Sequence[int], is_recorded: bool) -> None:
        num_tokens = self._num_tokens
        if not is_recorded:
            self._try(arm, domain, text, min(lengths), min(num_tokens, WARM_UP_TOKENS))
            return
        limit = self._engine.context_length or float("inf")
        for shortest, longest in self._sizes(lengths):
            self._try(arm, domain, text, shortest, num_tokens)
            num_last = min(WARM_UP_TOKENS, num_tokens)
            self._try(arm, domain, text, int(min(longest + num_tokens, limit)) - num_last, num_last)

    def _sizes(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The shortest and the longest of the texts that get a cache of one size: recordings may be bound to it.

        A text begins in the recordings of the one, and ends in those of the other at the latest.
        """
        by_size: dict[int, list[int]] = defaultdict(list)
        for length in lengths:
            num_slots = length + self._num_tokens + DRAFT_SLOTS
            by_size[self._engine.runner.recorded_slots(num_slots)[-1]].append(length)
        return [(min(same), max(same)) for same in by_size.values()]

    def _try(self, arm: Arm, domain: str, text: Sequence[int], length: int, num_tokens: int) -> None:
        """A few rounds behind so much of the text."""
        prompt = list(itertools.islice(itertools.cycle(text), length))
        call = {"max_new_tokens": num_tokens, "temperature": self.temperature, "seed": self._seed}
        arm.run(domain, prompt, **call, cancel=_after(WARM_UP_ROUNDS))

    # -------------------------------------------------------------------------------------------------- measuring

    def measure(self, prompt: CalibrationPrompt) -> list[Output]:
        """By all rules: nobody always comes first, but the oracle, which must be told the plain text, is always last.

        Nothing is counted yet.
        """
        seed = self._seed + self.num_measured
        call = {"max_new_tokens": self._num_tokens, "temperature": self.temperature, "seed": seed}
        others = [arm for arm in self.arms if arm.oracle is None]
        shift = self.num_measured % len(others)
        outputs = [self._run(arm, prompt, call) for arm in (*others[shift:], *others[:shift])]
        (plain,) = (output.generation for output in outputs if output.arm.name == PLAIN)
        for arm in self.arms:
            if arm.oracle is not None:
                arm.oracle.tell([plain.tokens])
                outputs.append(self._run(arm, prompt, call))
        return [
            output
            if output.arm.name == PLAIN
            else replace(output, comparison=self._engine.compare(prompt.tokens, plain, output.generation, **call))
            for output in outputs
        ]

    def count(self, prompt: CalibrationPrompt, outputs: Sequence[Output]) -> None:
        for output in outputs:
            arm, comparison = output.arm, output.comparison
            if comparison is not None and comparison.verdict != "equal":
                arm.differences.append(difference(prompt.id, prompt.domain, comparison))
            verdict = None if comparison is None else comparison.verdict
            arm.sums[prompt.domain] += sums_of(output.generation, verdict, output.capture_seconds)
            if arm.oracle is not None:
                self.oracle_lengths[prompt.domain].append(lengths_of(output.generation))
        self.num_measured += 1

    def _run(self, arm: Arm, prompt: CalibrationPrompt, call: Mapping[str, Any]) -> Output:
        before = self._capture_seconds()
        generation = arm.run(prompt.domain, prompt.tokens, **call)
        return Output(arm, generation, self._capture_seconds() - before)

    def _capture_seconds(self) -> float:
        return self._engine.runner.capture_seconds

    def rows(self) -> list[dict[str, Any]]:
        plain = self.arms[0]
        return [
            {
                "name": arm.name,
                "total": figures(arm.total, plain.total),
                "domains": {domain: figures(sums, plain.sums[domain]) for domain, sums in arm.sums.items()},
                "differences": arm.differences,
            }
            for arm in self.arms
        ]


def _after(num_rounds: int) -> Callable[[], bool]:
    """Says no so many times, then yes: a generation is asked once a round whether to end."""
    answers = iter([False] * num_rounds)
    return lambda: next(answers, True)
