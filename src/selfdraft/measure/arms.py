"""How one arm runs one text, and the record it leaves: a method of ours, or a peer of transformers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..economics import PassCosts
from ..engine.engine import Engine
from ..engine.metrics import Comparison
from ..errors import SelfdraftError
from ..lookahead.oracle import Oracle
from ..registry import AXES, BENCH_ONLY, DEFAULTS, resolve
from ..types import Generation, SkipSet
from .circumstances import device_seconds, peak_bytes, reset_peak
from .passes import predicted_seconds
from .peers import Peer
from .records import OFF, Record

MOST_SKIPS = 8
"""Skip sets of a text that its record names: an arm that searches has many."""

Method = Mapping[str, Any]


@dataclass(frozen=True)
class Site:
    """Which text it is."""

    prompt: str
    domain: str
    number: int
    num_prompt_tokens: int
    turn: int = 0
    run: int = 0


@dataclass(frozen=True)
class Output:
    """What an arm made of a text: the tokens, and the record as far as it does not depend on the plain text.

    `is_drawn`: with a temperature the text is a draw of its own.
    """

    tokens: tuple[int, ...]
    record: Record
    generation: Generation | None = None
    is_drawn: bool = False


class Ours:
    """A method of ours, with an engine of its own: what its strategy learns is its own."""

    def __init__(self, name: str, method: Method, engine: Engine, max_new_tokens: int) -> None:
        self.name = name
        self.described = described(name, method)
        self.error: str | None = None
        self._oracle = Oracle([[]], room=max_new_tokens) if is_bound(method) else None
        self._method = {**method, **({"lookahead": self._oracle} if self._oracle else {})}
        self.engine = engine.fork(engine.knowledge.profile)

    @property
    def must_be_told(self) -> bool:
        """Whether it must know the plain text beforehand."""
        return self._oracle is not None

    def tell(self, plain: Sequence[int]) -> None:
        if self._oracle is not None:
            self._oracle.tell([plain])

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
        return self.engine.generate(prompt, **call, **self._method)

    def run(self, site: Site, prompt: Sequence[int], call: Mapping[str, Any], costs: PassCosts | None = None) -> Output:
        runner, device = self.engine.runner, self.engine.device
        before = runner.capture_seconds
        reset_peak(device)
        began = device_seconds(device)
        generation = self.generate(prompt, call)
        seconds = device_seconds(device) - began
        method = self.described["method"]
        record = replace(
            record_of(self.name, site, generation, seconds, method["drafter"]),
            capture_seconds=runner.capture_seconds - before,
            peak_bytes=peak_bytes(device),
            predicted_seconds=predicted_seconds(generation.steps, method["drafter"], costs) if costs else None,
        )
        return Output(generation.tokens, record, generation, method["acceptance"] == "rejection")

    def first_token_seconds(self, prompt: Sequence[int], call: Mapping[str, Any]) -> float:
        """The same call again, left after its first round. A pass that runs ahead is not waited for."""
        answers = iter([False])
        began = device_seconds(self.engine.device)
        self.generate(prompt, {**call, "cancel": lambda: next(answers, True)})
        return time.perf_counter() - began


class PeerArm:
    """One of transformers' own; only whole calls are timed."""

    must_be_told = False

    def __init__(self, peer: Peer, engine: Engine) -> None:
        self.name, self._peer, self._engine = peer.label, peer, engine
        method = {name: value if isinstance(value, int | str) else name for name, value in peer.options.items()}
        self.described: dict[str, Any] = {"name": peer.label, "kind": "peer", "method": method}

    @property
    def error(self) -> str | None:
        return self._peer.error

    def warm_up(self, prompts: Sequence[Sequence[int]], num_tokens: int, call: Mapping[str, Any]) -> set[SkipSet]:
        for prompt in prompts:
            self._peer.run(self._engine, prompt, call["max_new_tokens"] if self._peer.is_compiled else num_tokens)
        return set()

    def run(
        self, site: Site, prompt: Sequence[int], call: Mapping[str, Any], costs: PassCosts | None = None
    ) -> Output | None:
        reset_peak(self._engine.device)
        found = self._peer.run(self._engine, prompt, call["max_new_tokens"])
        if found is None:
            return None
        tokens, seconds = found
        record = _new_record(self.name, site, len(tokens), seconds)
        return Output(tokens, replace(record, peak_bytes=peak_bytes(self._engine.device)))

    def first_token_seconds(self, prompt: Sequence[int], call: Mapping[str, Any]) -> float | None:
        return self._peer.first_token_seconds(self._engine, prompt, call["max_new_tokens"])


def record_of(name: str, site: Site, generation: Generation, call_seconds: float, drafter: str = "self") -> Record:
    stats = generation.stats
    passes: Counter[SkipSet] = Counter()
    for step in generation.steps:
        if step.draft.num_draft_steps and (step.plan.drafter or drafter) == "self":  # others take no pass of the model
            passes[step.plan.skip] += step.draft.num_draft_steps
    timed = ("decode", "prefill", "optimise", "draft", "verify")
    counted = ("num_rounds", "num_draft_steps", "num_accepted")
    return replace(
        _new_record(name, site, stats.num_tokens, call_seconds),
        **{f"{part}_seconds": getattr(stats, f"{part}_seconds") for part in timed},
        **{count: getattr(stats, count) for count in counted},
        num_draft_passes=passes.total(),
        skipped_attention=sum(len(skip.attention) * count for skip, count in passes.items()),
        skipped_mlp=sum(len(skip.mlp) * count for skip, count in passes.items()),
        skips={str(skip): count for skip, count in passes.most_common(MOST_SKIPS)},
    )


def _new_record(name: str, site: Site, num_tokens: int, call_seconds: float) -> Record:
    return Record(arm=name, **vars(site), num_tokens=num_tokens, call_seconds=call_seconds)


def judged(record: Record, comparison: Comparison) -> Record:
    gap = comparison.gap
    is_finite = gap is not None and abs(gap) != float("inf")  # JSON knows no infinity
    return replace(
        record,
        verdict=comparison.verdict,
        first_difference=comparison.first_difference,
        gap=gap if is_finite else None,
    )


# -------------------------------------------------------------------------------------------------------- described


def is_bound(method: Method) -> bool:
    """Whether it must know the text beforehand: a bound, not a method."""
    return method.get("lookahead") in BENCH_ONLY["lookahead"]


def described(name: str, method: Method) -> dict[str, Any]:
    """Name, kind and method, with nothing left open; `asked`: as much of it as one has to ask for."""
    if not is_bound(method):
        whole = resolve(method)
        kind = "control" if whole["strategy"] == OFF else "ours"
        return {"name": name, "kind": kind, "method": whole, "asked": _asked(method, whole)}
    whole = resolve({**method, "lookahead": DEFAULTS["lookahead"]})
    return {"name": name, "kind": "bound", "method": {**whole, "lookahead": method["lookahead"]}}


def _asked(method: Method, whole: Method) -> dict[str, Any]:
    """Without options of methods that are not in it."""
    used = {whole[axis] for axis in AXES}
    settings = {
        name: dict(values) for name, values in (method.get("settings") or {}).items() if name in used and values
    }
    return {**{axis: method[axis] for axis in AXES if axis in method}, **({"settings": settings} if settings else {})}
