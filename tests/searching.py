"""Stand-ins for strategies that search, as far as the benchmark of them needs one that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from selfdraft.fitting import Kit
from selfdraft.options import setting
from selfdraft.protocols import Knowledge, PlanContext
from selfdraft.strategies.base import ConstantStrategy, PlainStrategy
from selfdraft.strategies.prune import Prune
from selfdraft.types import Plan, SkipSet, StepRecord

STAND_INS = {
    "swift": "searching:Swift",
    "draft-verify": "searching:DraftVerify",
    "knn": "searching:Knn",
}


class Swift(ConstantStrategy):
    """Counts rounds as steps, and skips the same all the time."""

    @dataclass(frozen=True)
    class Options:
        paper: bool = setting(False, "as in the paper")
        budget: float = setting(0.05, "share of the time", minimum=0.0)

    pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "siblings",
        "settings": {"confidence": {"threshold": 0.8, "max_tokens": 25}, "siblings": {"table": "swift"}},
    }
    practice: ClassVar[Mapping[str, Any]] = {"budget": 1.0}

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        super().__init__(Plan(SkipSet.parse("a1,m2")))
        self._step = knowledge.known("swift").get("step", 0)

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self._step += 1

    @property
    def is_settled(self) -> bool:
        return bool(self._step > 20)

    progress = 0.5

    def state(self) -> dict[str, Any]:
        steps = [{"step": step, "matchness": 0.5, "is_best": step == 1} for step in range(1, self._step + 1)]
        found = {"phase": "accelerate" if self.is_settled else "optimise", "ratio": 0.45, "matchness": 0.5}
        return {**found, "step": self._step, "skip": "a1,m2", "snapshots": {"0": "a1"}, "steps": steps, "texts": []}


class DraftVerify(ConstantStrategy):
    @dataclass(frozen=True)
    class Options:
        calibrate_on: str = setting("mixed", "prompts")

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        found = knowledge.artefact("draft-verify")["sets"][options.calibrate_on]
        super().__init__(Plan(SkipSet.parse(found["skip"])))

    @staticmethod
    def fit(kit: Kit, options: Options) -> dict[str, Any]:
        own = {"skip": "a1", "tokens_per_second": 2.0, "plain": 1.0, "num_tried": 3, "is_complete": True}
        return {"sets": {**kit.known.get("sets", {}), options.calibrate_on: own}}


class Knn(PlainStrategy):
    """Sends everything to the first domain."""

    @dataclass(frozen=True)
    class Options:
        search: str = setting("prune", "the search")

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        domain = knowledge.artefact("knn")["domains"][0]
        self._name = domain["name"]
        self._inner = Prune(Prune.Options(), replace(knowledge, artefact=lambda name, *told: domain["found"]))
        self.known_plans = self._inner.known_plans

    def begin(self, sequence_id: int, prefill: Mapping[str, Any]) -> None:
        self._inner.begin(sequence_id, prefill)

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self._inner.plan(sequence_id, context)

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self._inner.observe(sequence_id, step)

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        return {"domain": self._name, "similarity": 0.9, "nearest": self._name}

    def end(self, sequence_id: int) -> None:
        self._inner.end(sequence_id)

    @staticmethod
    def fit(kit: Kit, options: Options) -> dict[str, Any]:
        domains = {prompt.domain: None for prompt in kit.prompts}
        groups = {name: [prompt for prompt in kit.prompts if prompt.domain == name] for name in domains}
        found = {name: Prune.fit(kit.among(group, name, 0.5), options) for name, group in groups.items()}
        rows = [{"name": name, "num_vectors": len(groups[name]), "found": one} for name, one in found.items()]
        return {"search": "prune", "domains": rows, "general": next(iter(found.values()))}
