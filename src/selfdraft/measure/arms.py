"""How one of our methods runs one text, and the record it leaves; peers.py: the same of transformers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..engine.engine import Engine
from ..errors import SelfdraftError
from ..lookahead.oracle import Oracle
from ..lookahead.oracle_length import OracleLength
from ..registry import AXES, BENCH_ONLY, DEFAULTS, resolve
from ..types import Generation, SkipSet
from .device import device_seconds, peak_bytes, reset_peak
from .records import OFF, Record

MOST_SKIPS = 8  # skip sets of a text that its record names: an arm that searches has many
_OF_STATS = (
    *(f"{part}_seconds" for part in ("decode", "prefill", "optimise", "record", "draft", "verify")),
    *("num_tokens", "num_rounds", "num_draft_steps", "num_accepted"),
)

Method = Mapping[str, Any]


@dataclass(frozen=True)
class Output:
    """What an arm made of a text: the tokens, and the record as far as it does not depend on the plain text.

    `is_drawn`: the text is a draw of its own.
    """

    tokens: tuple[int, ...]
    record: Record
    generation: Generation | None = None
    is_drawn: bool = False


class Ours:
    """A method of ours, with an engine of its own: what its strategy learns is its own.

    `must_be_told`: the plain text, beforehand.
    """

    def __init__(self, name: str, method: Method, engine: Engine, max_new_tokens: int) -> None:
        self.name = name
        self.described = described(name, method)
        self.error: str | None = None
        self.must_be_told = is_bound(method)
        self._oracle, self._length = (kind([[]], room=max_new_tokens) for kind in (Oracle, OracleLength))
        told = self._length if method.get("lookahead") == "oracle-length" else self._oracle
        self._method = {**method, "lookahead": told} if self.must_be_told else method
        self.engine = engine.fork(engine.knowledge.profile, prefix_cache=False)

    def tell(self, plain: Sequence[int], prompt: Sequence[int], call: Mapping[str, Any]) -> None:
        """The plain text; who goes by lengths has them from a run of the other oracle."""
        self._oracle.tell([plain])
        if self._method["lookahead"] is self._length:
            sources = self.engine.generate(prompt, **{**self._method, "lookahead": self._oracle, **call}).sources
            self._length.tell([[int(source == "draft") for source in sources]])

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int, call: Mapping[str, Any]) -> set[SkipSet]:
        """What was learned on the way is forgotten, what was recorded stays. A method that cannot run keeps why.

        The skip sets that it drafted with.
        """
        skips: set[SkipSet] = set()
        try:
            self.engine.prepare(max(map(len, prompts)) + call["max_new_tokens"], **self._method)
            for prompt in prompts:
                written = self.generate(prompt, {**call, "max_new_tokens": num_tokens})
                skips.update(step.plan.skip for step in written.steps if step.draft.num_draft_steps and step.plan.skip)
            self.engine.forget()
        except SelfdraftError as error:
            self.error = " ".join(str(error).split())
        return skips

    def generate(self, prompt: Sequence[int], call: Mapping[str, Any]) -> Generation:
        found: Generation = self.engine.generate(prompt, **{**self._method, **call})
        return found

    def run(self, text: Record, prompt: Sequence[int], call: Mapping[str, Any]) -> Output:
        """`text`: the record as far as it tells which text it is."""
        device = self.engine.device
        reset_peak(device)
        began = device_seconds(device)
        generation = self.generate(prompt, call)
        seconds = device_seconds(device) - began
        method = self.described["method"]
        record = replace(
            text,
            arm=self.name,
            call_seconds=seconds,
            **{name: getattr(generation.stats, name) for name in _OF_STATS},
            **_skipped(generation, method["drafter"]),
            peak_bytes=peak_bytes(device),
        )
        acceptance = call.get("acceptance", method["acceptance"])
        return Output(generation.tokens, record, generation, acceptance == "rejection" and call["temperature"] > 0)

    def first_token_seconds(self, prompt: Sequence[int], call: Mapping[str, Any]) -> float:
        """The same call again, left after its first round. A pass that runs ahead is not waited for."""
        answers = iter([False])
        began = device_seconds(self.engine.device)
        self.generate(prompt, {**call, "cancel": lambda: next(answers, True)})
        return time.perf_counter() - began


def _skipped(generation: Generation, drafter: str) -> dict[str, Any]:
    """In draft passes of the model itself; others take none."""
    passes: Counter[SkipSet] = Counter()
    for step in generation.steps:
        if step.draft.num_draft_steps and (step.plan.drafter or drafter) == "self":
            passes[step.plan.skip] += step.draft.num_draft_steps
    return {
        "num_draft_passes": passes.total(),
        "skipped_attention": sum(len(skip.attention) * count for skip, count in passes.items()),
        "skipped_mlp": sum(len(skip.mlp) * count for skip, count in passes.items()),
        "skips": {str(skip): count for skip, count in passes.most_common(MOST_SKIPS)},
    }


def is_bound(method: Method) -> bool:
    """Whether it must know the text beforehand: a bound, not a method."""
    lookahead = method.get("lookahead")
    return isinstance(lookahead, str) and lookahead in BENCH_ONLY["lookahead"]


def described(name: str, method: Method) -> dict[str, Any]:
    """Name, kind and method, with nothing left open; `asked`: as much of it as one has to ask for."""
    if is_bound(method):
        whole = resolve({**method, "lookahead": DEFAULTS["lookahead"]})
        return {"name": name, "kind": "bound", "method": {**whole, "lookahead": method["lookahead"]}}
    whole = resolve(method)
    kind = "control" if whole["strategy"] == OFF else "ours"
    used = {whole[axis] for axis in AXES}
    settings = {name: dict(values) for name, values in method.get("settings", {}).items() if name in used and values}
    asked = {axis: method[axis] for axis in AXES if axis in method} | ({"settings": settings} if settings else {})
    return {"name": name, "kind": kind, "method": whole, "asked": asked}
