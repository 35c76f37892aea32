"""The measurements of strategies that search: one process, one model, everything greedy, part after part.

What is learned is learned on prompts that are not measured. For each prompt all ways take turns, plain decoding among
them; every output is compared with the plain one.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...calibrate.calibrate import USUAL_TOKENS, USUAL_TOKENS_ON_CPU
from ...engine.engine import Engine
from ...models.latency import BUDGET_SECONDS
from ...profiles.store import Store
from ..circumstances import circumstances
from ..pace import Pace
from ..streams import RATIOS
from .bench import Bench
from .equal import EqualTime
from .knn import KnnDomains
from .learning import School
from .prompts import Prompts
from .swift import SwiftStream
from .turns import is_different

SWIFT, KNN, EQUAL = "swift", "knn", "equal"
PARTS = (SWIFT, KNN, EQUAL)
_WEIGHTS = {SWIFT: 1.0, KNN: 2.0, EQUAL: 1.0}
"""How the time that is left is shared among the parts that are left."""
SECONDS_ON_GPU, SECONDS_ELSEWHERE = 60.0, 600.0


@dataclass(frozen=True)
class SearchPlan:
    """What to measure. Seconds to learn in: None: 60 on a GPU, 600 elsewhere; tokens to learn from: None: as
    `selfdraft calibrate` has it. `seconds`: begin no prompt later.

    `folder`: of profiles, read and written; None: one that is gone afterwards.
    """

    prompts: Prompts
    parts: Sequence[str] = PARTS
    max_new_tokens: int = 128
    held_out_tokens: int = 64
    learned_tokens: int | None = None
    mixed_length: int | None = None
    ratios: Sequence[float] = RATIOS
    fit_seconds: float | None = None
    equal_seconds: float | None = None
    latency_seconds: float = BUDGET_SECONDS
    seconds: float | None = None
    seed: int = 0
    folder: Path | None = None


@dataclass
class SearchBench:
    """One run. `began` is when the command did; `say` shows progress; `save` keeps what is complete so far."""

    model: Any
    tokenizer: Any
    plan: SearchPlan
    began: float = field(default_factory=time.perf_counter)
    say: Callable[[str], None] = lambda text: None
    save: Callable[[dict[str, Any]], object] = lambda document: None
    name: str | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pace = Pace(self.began, self.plan.seconds, self.say)
        self.engine = Engine(self.model, self.tokenizer, profile=None, name=self.name)
        self.circumstances = circumstances(self.engine.runner)
        is_slow = self.engine.device.type == "cpu"
        usual = SECONDS_ELSEWHERE if is_slow else SECONDS_ON_GPU
        self.learned_tokens = self.plan.learned_tokens or (USUAL_TOKENS_ON_CPU if is_slow else USUAL_TOKENS)
        self.fit_seconds = usual if self.plan.fit_seconds is None else self.plan.fit_seconds
        self.equal_seconds = usual if self.plan.equal_seconds is None else self.plan.equal_seconds

    def run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            folder = self.plan.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.school = School(self.engine, Store(folder), self.say)
            self.school.time_passes(self.plan.latency_seconds)
            self.latency = self.school.latency
            for number, part in enumerate(self.plan.parts):
                if number and self.pace.is_late:
                    self.say(f"time is up before the part {part}")
                    break
                self._run_part(part, self.plan.parts[number:], folder)
        return self.document()

    def _run_part(self, part: str, left: Sequence[str], folder: Path) -> None:
        pace = self.pace.share(_WEIGHTS[part] / sum(_WEIGHTS[other] for other in left))
        self.say(f"part {part}")
        try:
            made = self._make(part, folder)
            if part == EQUAL and len(left) < len(self.plan.parts) and made.learning_seconds > self.pace.seconds_left:
                self.say(f"there is no time left for {made.learning_seconds:.0f} s of learning")
                return
            self.parts[part] = made
            made.run(pace)
        except Exception as error:  # must not cost the other parts
            self.errors[part] = f"{type(error).__name__}: {error}"
            self.say(traceback.format_exc())
        if part in self.parts:
            self.finished[part] = self.parts[part].figures()
        self.save(self.document())

    def _make(self, part: str, folder: Path) -> Any:
        bench, prompts = self._bench(), self.plan.prompts
        if part == SWIFT:
            return SwiftStream(bench, prompts)
        if part == KNN:
            return KnnDomains(bench, prompts, self.fit_seconds, self.plan.ratios, self.plan.mixed_length)
        school = self.school  # what was learned in as many seconds need not be learned again
        if self.equal_seconds != self.fit_seconds:
            school = School(self.engine, Store(folder / EQUAL), self.say)
            school.take_latency(self.latency)
        return EqualTime(bench, prompts, school, self.equal_seconds)

    def _bench(self) -> Bench:
        plan = self.plan
        return Bench(
            self.engine,
            self.school,
            plan.max_new_tokens,
            plan.held_out_tokens,
            self.learned_tokens,
            plan.seed,
            self.say,
            lambda: self.save(self.document()),
        )

    def document(self) -> dict[str, Any]:
        """All that is known so far; report.py and plot.py read nothing else."""
        return {
            "benchmark": "search",
            **self.circumstances,
            "num_layers": self.engine.runner.num_layers,
            "is_complete": all(part in self.parts and self.parts[part].is_complete for part in self.plan.parts),
            "seconds": time.perf_counter() - self.began,
            "prompts": self.plan.prompts.figures(),
            "fit_seconds": self.fit_seconds,
            "equal_seconds": self.equal_seconds,
            "learned_tokens": self.learned_tokens,
            "latency": self.latency.to_json(),
            "errors": self.errors,
            **{part: self._figures(part) for part in PARTS},
        }

    def _figures(self, part: str) -> Any:
        """Of a part that has ended they do not change any more."""
        if part in self.finished:
            return self.finished[part]
        return self.parts[part].figures() if part in self.parts else None


def ways_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row that was measured."""
    knn = document[KNN] or {}
    groups = [document[SWIFT], document[EQUAL], knn.get("matrix"), *knn.get("mixed", ())]
    return [row for group in groups if group for row in group["ways"]]


def has_difference(document: dict[str, Any]) -> bool:
    """Whether some output is another than that of plain decoding, by more than rounding."""
    return is_different(ways_of(document))
