"""How one way runs one text, and the record it leaves."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engine.engine import Engine
from ...engine.metrics import Comparison
from ...errors import SelfdraftError
from ...types import Generation, SkipSet
from ..lookahead.oracle import Oracle
from ..memory import peak_bytes, reset_peak
from ..meter import device_seconds
from ..ways import Way
from .records import TextRecord
from .ways import described, is_bound

MOST_SKIPS = 8
"""Skip sets of a text that its record names: of one that searches there are many."""


@dataclass(frozen=True)
class Place:
    """Which text it is."""

    prompt: str
    domain: str
    number: int
    num_prompt_tokens: int
    turn: int = 0


@dataclass(frozen=True)
class Result:
    """What a way made of a text: the tokens, and the record as far as it does not depend on the plain text.

    `is_drawn`: with a temperature the text is a draw of its own.
    """

    tokens: tuple[int, ...]
    record: TextRecord
    generation: Generation | None = None
    is_drawn: bool = False


class OurArm:
    """A method of ours, with an engine of its own: what its strategy learns is its own."""

    def __init__(self, name: str, method: Mapping[str, Any], engine: Engine, max_new_tokens: int) -> None:
        self.name = name
        self.described = described(name, method)
        self.error: str | None = None
        self._oracle = Oracle([[]], room=max_new_tokens) if is_bound(method) else None
        self._method = {**method, **({"lookahead": self._oracle} if self._oracle else {})}
        self.engine = copy.copy(engine)
        self.engine.remember(engine.memory.profile)

    @property
    def must_be_told(self) -> bool:
        return self._oracle is not None

    def tell(self, plain: Sequence[int]) -> None:
        if self._oracle is not None:
            self._oracle.tell([plain])

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int, call: Mapping[str, Any]) -> None:
        """What was learned on the way is forgotten, what was recorded stays. A method that cannot run keeps why."""
        try:
            self.engine.prepare(max(map(len, prompts)) + call["max_new_tokens"], **self._method)
            for prompt in prompts:
                self.engine.generate(prompt, **{**call, "max_new_tokens": num_tokens}, **self._method)
            self.engine.forget()
        except SelfdraftError as error:
            self.error = " ".join(str(error).split())

    def run(self, place: Place, prompt: Sequence[int], call: Mapping[str, Any]) -> Result:
        runner, device = self.engine.runner, self.engine.device
        before = runner.capture_seconds
        reset_peak(device)
        began = device_seconds(device)
        generation = self.engine.generate(prompt, **call, **self._method)
        seconds = device_seconds(device) - began
        method = self.described["method"]
        record = record_of(self.name, place, generation, seconds, method["drafter"])
        captured = runner.capture_seconds - before
        record = replace(record, capture_seconds=captured, peak_bytes=peak_bytes(device))
        return Result(generation.tokens, record, generation, method["acceptance"] == "rejection")


class PeerArm:
    """transformers' own; whole calls alone are timed."""

    def __init__(self, way: Way, engine: Engine) -> None:
        self.name, self._way, self._engine = way.label, way, engine
        method = {name: value if isinstance(value, int | str) else name for name, value in way.options.items()}
        self.described = {"name": way.label, "kind": "peer", "method": method}

    must_be_told = False

    @property
    def error(self) -> str | None:
        return self._way.error

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int, call: Mapping[str, Any]) -> None:
        for prompt in prompts:
            self._way.run(self._engine, prompt, call["max_new_tokens"] if self._way.is_compiled else num_tokens)

    def run(self, place: Place, prompt: Sequence[int], call: Mapping[str, Any]) -> Result | None:
        reset_peak(self._engine.device)
        output = self._way.run(self._engine, prompt, call["max_new_tokens"])
        if output is None:
            return None
        record = _new_record(self.name, place, len(output.tokens), output.call_seconds)
        return Result(output.tokens, replace(record, peak_bytes=peak_bytes(self._engine.device)))


def record_of(
    name: str, place: Place, generation: Generation, call_seconds: float, drafter: str = "self"
) -> TextRecord:
    stats = generation.stats
    passes: Counter[SkipSet] = Counter()
    for step in generation.steps:
        if step.draft.num_draft_steps and (step.plan.drafter or drafter) == "self":  # others take no pass of the model
            passes[step.plan.skip] += step.draft.num_draft_steps
    return replace(
        _new_record(name, place, stats.num_tokens, call_seconds),
        decode_seconds=stats.decode_seconds,
        prefill_seconds=stats.prefill_seconds,
        optimise_seconds=stats.optimise_seconds,
        draft_seconds=stats.draft_seconds,
        verify_seconds=stats.verify_seconds,
        num_rounds=stats.num_rounds,
        num_draft_steps=stats.num_draft_steps,
        num_accepted=stats.num_accepted,
        num_draft_passes=passes.total(),
        skipped_attention=sum(len(skip.attention) * count for skip, count in passes.items()),
        skipped_mlp=sum(len(skip.mlp) * count for skip, count in passes.items()),
        skips={str(skip): count for skip, count in passes.most_common(MOST_SKIPS)},
    )


def _new_record(name: str, place: Place, num_tokens: int, call_seconds: float) -> TextRecord:
    return TextRecord(
        way=name,
        prompt=place.prompt,
        domain=place.domain,
        number=place.number,
        turn=place.turn,
        num_prompt_tokens=place.num_prompt_tokens,
        num_tokens=num_tokens,
        call_seconds=call_seconds,
    )


def judged(record: TextRecord, comparison: Comparison) -> TextRecord:
    gap = comparison.gap
    is_finite = gap is not None and abs(gap) != float("inf")  # JSON knows no infinity
    return replace(
        record,
        verdict=comparison.verdict,
        first_difference=comparison.first_difference,
        gap=gap if is_finite else None,
    )
