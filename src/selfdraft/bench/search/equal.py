"""All methods that choose sub-layers at equal calibration time: the same for all, and each as it is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..pace import Pace
from ..selection.methods import Method, as_all, both_tables
from .bench import Bench
from .learning import Facts, Lesson, School
from .names import DRAFT_VERIFY, NEED_NOTHING, SSD_M, at_equal_time
from .prompts import Prompts
from .turns import TextTurns


@dataclass
class EqualTime:
    """`school`: where what was learned in as many seconds, if anything was, is known."""

    bench: Bench
    prompts: Prompts
    school: School
    seconds: float
    tables: dict[str, dict[str, str]] = field(init=False)
    facts: dict[str, Facts] = field(default_factory=dict)
    turns: TextTurns | None = None

    def __post_init__(self) -> None:
        own = at_equal_time(self.bench.num_layers)
        self._lessons = {name: method for name, method in own.items() if name not in NEED_NOTHING}
        self._methods, self.tables = both_tables(own, {name: as_all(method) for name, method in own.items()})

    @property
    def learning_seconds(self) -> float:
        """As far as it is not known."""
        lessons = (self._lesson(name, method) for name, method in self._lessons.items())
        return sum(lesson.seconds for lesson in lessons if not self.school.knows(lesson))

    def run(self, pace: Pace) -> None:
        bench, prompts = self.bench, self.prompts.mixed_measured
        for name, method in self._lessons.items():
            lesson = self._lesson(name, method)
            self.school.learn(lesson)
            self.facts[name] = self.school.facts[lesson.name]
            bench.save()
        self.turns = bench.turns(self.school.profile, self._methods)
        tokens = bench.encode(prompts)
        bench.warm_up(self.turns, self.prompts.mixed_kept_apart, tokens)
        for prompt, known in pace.each(list(zip(prompts, tokens, strict=True)), "prompts at equal time"):
            self.turns.measure(prompt.id, prompt.domain, known, bench.max_new_tokens)
            bench.save()

    def _lesson(self, name: str, method: Method) -> Lesson:
        name = SSD_M if name == DRAFT_VERIFY else name  # as `knn` calls it, which may have had it learn already
        return Lesson(name, method, self.prompts.mixed_kept_apart, self.seconds, self.bench.learned_tokens)

    @property
    def is_complete(self) -> bool:
        return self.turns is not None and self.turns.num_measured == len(self.prompts.mixed_measured)

    def figures(self) -> Mapping[str, Any]:
        return {
            "is_complete": self.is_complete,
            "seconds": self.seconds,
            "num_prompts": self.turns.num_measured if self.turns else 0,
            "lessons": {name: asdict(facts) for name, facts in self.facts.items()},
            "tables": self.tables,
            "ways": self.turns.rows() if self.turns else [],
        }
