"""`selfdraft bench lookahead`: the rules of how far to draft, side by side, in one process (DISCO, arXiv:2405.04304).

Of each domain some prompts train, others choose settings, and others are measured. What is learned of greedy texts
holds for all temperatures. For each prompt all rules take turns, plain decoding among them; every output is compared
with the plain one.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...calibrate.traces import Trace
from ...engine.engine import Engine
from ...fitting import CalibrationPrompt
from ...lookahead.base import PlainLookahead
from ...models.load import loading
from ...registry import resolve
from ..circumstances import circumstances, graph_figures, shown_name
from ..pace import Pace, Say
from ..prompts import BenchPrompt, encode
from . import lengths
from .f1 import Judged, judge
from .learning import Lessons, School
from .rows import COUNTING, DISCO, HEURISTIC, ORACLE, PLAIN, STATIC_OPT, TPT, Known, described, make
from .sums import gains
from .turns import Turns

GAINERS, BASES = (DISCO, TPT), (STATIC_OPT, HEURISTIC)
"""Who is held against whom in the paper's table 6, and `tpt`."""


@dataclass(frozen=True)
class LookaheadPlan:
    """What to measure. `method`: what drafts; `rows`: of rows.ROWS; `seconds`: begin no prompt later than that."""

    train: Sequence[BenchPrompt]
    validation: Sequence[BenchPrompt]
    test: Sequence[BenchPrompt]
    rows: Sequence[str]
    method: Mapping[str, Any]
    max_new_tokens: int = 128
    train_tokens: int = 128
    temperatures: Sequence[float] = (0.0, 1.0)
    seconds: float | None = None
    seed: int = 0

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(prompt.domain for prompt in self.test))

    @property
    def rules(self) -> list[str]:
        return [name for name in self.rows if name != PLAIN]


@dataclass
class LookaheadBench:
    """One run. `began` is when the command did; `say` shows progress; `save` keeps what is complete so far."""

    model: Any
    tokenizer: Any
    plan: LookaheadPlan
    began: float = field(default_factory=time.perf_counter)
    say: Say = lambda text: None
    save: Callable[[dict[str, Any]], object] = lambda document: None
    name: str | None = None
    lessons: Lessons = field(init=False)
    turns: list[Turns] = field(default_factory=list)
    judged: dict[str, dict[str, Judged]] = field(default_factory=dict)
    num_measured: int = 0
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self.pace = Pace(self.began, self.plan.seconds, self.say)
        self.engine = Engine(self.model, self.tokenizer, name=self.name)
        self.method = with_draft_model(self.plan.method, self.engine)
        self.circumstances = circumstances(self.engine.runner)
        parts = (self.plan.train, self.plan.validation, self.plan.test)
        self.train, self.validation, self.test = ([self._encoded(prompt) for prompt in part] for part in parts)

    def _encoded(self, prompt: BenchPrompt) -> CalibrationPrompt:
        return CalibrationPrompt(prompt.id, prompt.domain, tuple(encode(prompt, self.engine)))

    def run(self) -> dict[str, Any]:
        """The first prompt is measured in any case; one that was interrupted counts for none."""
        school = School(self._new_engine(), self.method, self.plan.train_tokens, self.say)
        self.lessons = school.learn(self.train, self.validation)
        self._judge(school.traces(self.test, self.plan.max_new_tokens))
        self._warm_up()
        try:
            for prompt in self.pace.each(self.test, "prompts"):
                self._measure(prompt)
                self.save(self.document())
        except KeyboardInterrupt:
            if not self.num_measured:
                raise
            self.is_interrupted = True
            self.say(f"interrupted after {self.num_measured} of {len(self.test)} prompts")
        return self.document()

    def _new_engine(self) -> Engine:
        """One that has seen no text, on the same model and runner."""
        engine = copy.copy(self.engine)
        engine.remember(self.engine.memory.profile)
        return engine

    def _judge(self, traces: Sequence[Trace]) -> None:
        """How well the rules tell what will be kept in the texts that are measured; the oracle knows."""
        by_domain = {domain: [trace for trace in traces if trace.domain == domain] for domain in self.plan.domains}
        for name in self.plan.rules:
            if name != ORACLE:
                self.judged[name] = {
                    domain: judge(by_domain[domain], lookahead, self.lessons.seconds, counts=name in COUNTING)
                    for domain, lookahead in self._lookaheads(name).items()
                }

    def _warm_up(self) -> None:
        plan = self.plan
        lengths_by_domain: dict[str, list[int]] = defaultdict(list)
        for prompt in self.test:
            lengths_by_domain[prompt.domain].append(len(prompt.tokens))
        text = max((prompt.tokens for prompt in self.train), key=len)
        for temperature in plan.temperatures:
            rules = {name: self._lookaheads(name) for name in plan.rules}
            turns = Turns(self._new_engine(), self.method, rules, plan.max_new_tokens, temperature, plan.seed)
            self.say(f"temperature {temperature:g}: warming up {len(turns.arms)} rules")
            turns.warm_up(text, lengths_by_domain)
            self.turns.append(turns)

    def _measure(self, prompt: CalibrationPrompt) -> None:
        """At all temperatures or at none."""
        found = [turns.measure(prompt) for turns in self.turns]
        for turns, outputs in zip(self.turns, found, strict=True):
            turns.count(prompt, outputs)
        self.num_measured += 1

    def _known(self, domain: str) -> Known:
        domains, lessons = self.plan.domains, self.lessons.by_domain
        other = domains[(domains.index(domain) + 1) % len(domains)]
        return Known(lessons[domain], lessons[other], self.plan.method.get("settings", {}), self.plan.max_new_tokens)

    def _lookaheads(self, name: str) -> dict[str, PlainLookahead]:
        """One for each domain, but a single oracle: it knows every text."""
        domains = self.plan.domains
        if name == ORACLE:
            return dict.fromkeys(domains, make(name, self._known(domains[0])))
        return {domain: make(name, self._known(domain)) for domain in domains}

    # ------------------------------------------------------------------------------------------------- the document

    def document(self) -> dict[str, Any]:
        """All that is known so far; report.py and plot.py read nothing else."""
        plan = self.plan
        measured = self.test[: self.num_measured]
        return {
            "benchmark": "lookahead",
            **self.circumstances,
            "num_layers": self.engine.runner.num_layers,
            "method": self._shown_method(),
            "is_complete": self.num_measured == len(self.test) and not self.is_interrupted,
            "seconds": time.perf_counter() - self.began,
            "splits": {name: _counts(getattr(self, name)) for name in ("train", "validation", "test")},
            "prompts": _counts(measured),
            "learning": self.lessons.figures(),
            "rules": [self._rule(name) for name in plan.rows],
            "temperatures": [self._temperature(turns) for turns in self.turns] if measured else [],
            "graphs": graph_figures(self.engine.runner),
        }

    def _shown_method(self) -> dict[str, Any]:
        """What drafts, and the settings that were asked for; a draft model by its name."""
        names = self.engine.names(**self.plan.method)
        settings = {
            name: {key: shown_name(value) if isinstance(value, str) else value for key, value in values.items()}
            for name, values in self.plan.method.get("settings", {}).items()
        }
        return {**{axis: names[axis] for axis in ("strategy", "drafter", "tree", "acceptance")}, "settings": settings}

    def _rule(self, name: str) -> dict[str, Any]:
        """What was chosen for it in each domain, and its F1."""
        if name == PLAIN:
            return {"name": name, "settings": {}, "f1": {}, "f1_all": None}
        judged = self.judged.get(name, {})
        return {
            "name": name,
            "settings": {domain: described(name, self._known(domain)) for domain in self.plan.domains},
            "f1": {domain: found.f1 for domain, found in judged.items()},
            "f1_all": Judged.join(judged.values()).f1 if judged else None,
        }

    def _temperature(self, turns: Turns) -> dict[str, Any]:
        texts = turns.oracle_lengths
        return {
            "temperature": turns.temperature,
            "rows": turns.rows(),
            "oracle": {domain: lengths.figures(some) for domain, some in texts.items()},
            "oracle_all": lengths.figures(list(itertools.chain.from_iterable(texts.values()))) if texts else None,
            "gains": gains({arm.name: arm.sums for arm in turns.arms}, GAINERS, BASES),
        }


def with_draft_model(method: Mapping[str, Any], engine: Engine) -> Mapping[str, Any]:
    """The same, a separate draft model loaded: all rules draft with the one."""
    settings = method.get("settings", {})
    source = settings.get("model", {}).get("source")
    if resolve(method)["drafter"] != "model" or not isinstance(source, str) or not source:
        return method
    model, tokenizer = loading.load(source, device=str(engine.device), dtype=engine.dtype)
    return {**method, "settings": {**settings, "model": {"source": model, "tokenizer": tokenizer}}}


def _counts(prompts: Sequence[CalibrationPrompt]) -> dict[str, int]:
    return dict(Counter(prompt.domain for prompt in prompts))


def has_difference(document: Mapping[str, Any]) -> bool:
    """Whether some output is another than that of plain decoding, by more than rounding."""
    return any(row["total"]["different"] for one in document["temperatures"] for row in one["rows"])
