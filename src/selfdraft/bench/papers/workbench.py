"""What experiments measure with: an engine, prompts by task, arms that take turns, methods fitted beforehand.

Tasks are the papers' data sets, as far as the prompts at hand have them: by their ids, else by their domain. Prompts of
a domain stand for a data set of the same kind; where they do, a row says so, or else the caption.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from ...calibrate.fit_once import FitRequest, Fitted, fit_method, fit_once, latency_profile
from ...calibrate.fit_session import PRACTICE_TOKENS
from ...calibrate.writing import Text
from ...economics import LatencyFit
from ...engine.engine import Engine
from ...errors import unknown_name
from ...measure.run import MeasurePlan, run_whole
from ...profiles.profile import Artefact, Profile
from ...prompts.tokens import encode, few_shot
from ...types import Prompt
from .experiment import FAILED, MEASURED, Experiment, MainTable, Recipe, Unit, Values


@dataclass(frozen=True)
class TaskKind:
    """`title`: as papers call it; `ids`: how ids of its prompts begin; `domains`: what may stand for it."""

    title: str
    ids: tuple[str, ...]
    domains: tuple[str, ...] = ()


TASKS: Mapping[str, TaskKind] = {
    "cnn-dm": TaskKind("CNN/DM", ("cnndm",), ("summarization", "summarise")),
    "xsum": TaskKind("XSum", ("xsum",)),
    "gsm8k": TaskKind("GSM8K", ("gsm8k",), ("math",)),
    "math": TaskKind("MATH", ("MATH",)),
    "tinystories": TaskKind("TinyStories", ("tinystories",), ("story",)),
    "wmt": TaskKind("WMT DE-EN", ("wmt",), ("translation", "translate")),
    "sql": TaskKind("SQL", ("spider", "wikisql"), ("sql",)),
    "alpaca": TaskKind("Alpaca", ("alpaca",), ("chat",)),
    "nq": TaskKind("NQ", ("nq",), ("qa",)),
    "humaneval": TaskKind("HumanEval", ("humaneval",), ("code",)),
    "mbpp": TaskKind("MBPP", ("mbpp",), ("code",)),
    "rewrite": TaskKind("rewrite", (), ("rewrite",)),
}


@dataclass(frozen=True)
class Task:
    """`measured` and `fitting` have no prompt in common; `stand_in`: the domain that stands for the data set."""

    name: str
    title: str
    measured: Sequence[Prompt]
    fitting: Sequence[Prompt]
    stand_in: str | None = None

    @property
    def label(self) -> str:
        """For a row."""
        return f"{self.title} ({self.stand_in})" if self.stand_in else self.title


def labels(tasks: Iterable[Task]) -> dict[str, str]:
    return {task.name: task.label for task in tasks}


def why_missing(name: str) -> str:
    kind = TASKS[name]
    words = " or ".join([*(f"{ids}..." for ids in kind.ids), *(f"domain {domain}" for domain in kind.domains)])
    return f"there are no prompts of {kind.title} (ids {words}); name a file of them with --prompts"


# ------------------------------------------------------------------------------------------------------- workbench

Methods = Mapping[str, Mapping[str, Any]]
SELF = "self"
LATENCY_SECONDS = 20.0


@dataclass(frozen=True)
class Scale:
    """How much is done of what the papers did. `prompts`, `fit_prompts`: of each task, to measure and to fit with.

    `tokens`: new ones of a text; `fit_seconds`, `fit_tokens`: what fitting a method may take, and of how much text;
    `runs`: of each text; `learn`: prompts that DISCO's classifier is trained on; `drafter`: what drafts there (self,
    model, model=NAME); `asked`: which of these the caller gave, for main tables as well.
    """

    prompts: int
    fit_prompts: int
    tokens: int
    fit_seconds: float
    fit_tokens: int
    runs: int = 1
    is_quick: bool = False
    learn: int = 200
    drafter: str = SELF
    asked: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def of(self, recipe: Recipe, experiment: Experiment) -> Scale:
        return self.as_in(recipe.main.get(experiment.kept_as))

    def as_in(self, main: MainTable | None) -> Scale:
        """But for what the caller gave; a quick run stays one."""
        wanted = {} if self.is_quick or main is None else vars(main)
        return replace(self, **{name: value for name, value in wanted.items() if name not in self.asked})


QUICK = Scale(prompts=1, fit_prompts=1, tokens=24, fit_seconds=12.0, fit_tokens=96, is_quick=True, learn=8)
WHOLE = Scale(prompts=8, fit_prompts=8, tokens=256, fit_seconds=60.0, fit_tokens=1024)
QUICK_SECONDS = 540.0
"""What a quick recipe takes at most, so that with loading it is less than ten minutes."""


@dataclass
class Workbench:
    """`folder`: of what was fitted, apart from the user's own profiles; an interrupted run finds it again.

    `shots`: by task, how many answered examples stand before each of its prompts; 0: none, and no chat template.
    """

    engine: Engine
    prompts: Sequence[Prompt]
    scale: Scale
    folder: Path
    seed: int = 0
    say: Callable[[str], None] = lambda text: None
    shots: Mapping[str, int] = field(default_factory=dict)
    _failed: dict[str, Fitted] = field(default_factory=dict)
    _known: dict[tuple[str, str, int], Prompt] = field(default_factory=dict)

    def for_experiment(self, recipe: Recipe, experiment: Experiment) -> Self:
        return replace(self, scale=self.scale.of(recipe, experiment), shots=recipe.shots)

    # -------------------------------------------------------------------------------------------------- prompts

    def task(self, name: str, num_measured: int | None = None, num_fit: int | None = None) -> Task | None:
        """None where no prompt is of it, or only one: it could not be fitted and measured.

        `num_measured`, `num_fit`: prompts, other than those of the scale; fewer where there are not enough.
        """
        if name not in TASKS:
            raise unknown_name("task", name, list(TASKS))
        kind, stand_in = TASKS[name], None
        found = [prompt for prompt in self.prompts if prompt.id.startswith(kind.ids)] if kind.ids else []
        if len(found) < 2:
            found = [prompt for prompt in self.prompts if prompt.domain in kind.domains]
            stand_in = found[0].domain if found else None
        if len(found) < 2:
            return None
        found = random.Random(f"{self.seed} {name}").sample(found, len(found))
        examples = self._examples(name, found)
        found = [prompt for prompt in found if prompt not in examples]
        fit = min(self.scale.fit_prompts if num_fit is None else num_fit, len(found) // 2)
        measured = min(self.scale.prompts if num_measured is None else num_measured, len(found) - fit)
        chosen, fitting = (
            [self._formed(name, prompt, examples) for prompt in some]
            for some in (found[:measured], found[len(found) - fit :])
        )
        return Task(name, kind.title, chosen, fitting, stand_in)

    def _examples(self, name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Neither measured nor fitted to."""
        count = min(self.shots.get(name, 0), len(prompts) - 2)
        return [prompt for prompt in prompts if prompt.reference][:count]

    def _formed(self, name: str, prompt: Prompt, examples: Sequence[Prompt]) -> Prompt:
        """As the paper's models were asked; without answers as they are."""
        if name not in self.shots or (self.shots[name] and not examples):
            return prompt
        key = name, prompt.id, len(examples)
        if key not in self._known:
            self._known[key] = few_shot(prompt, examples, self.engine)
        return self._known[key]

    def tasks(self, names: Sequence[str]) -> list[Task]:
        """Those that are there."""
        return [task for name in names if (task := self.task(name))]

    def write(self, prompts: Sequence[Prompt], num_tokens: int) -> list[Text]:
        """What the model says after each of them, plainly."""
        read = [encode(prompt, self.engine) for prompt in prompts]
        call: dict[str, Any] = {"strategy": "off", "max_new_tokens": num_tokens}
        return [Text((*tokens, *self.engine.generate(tokens, **call).tokens), len(tokens)) for tokens in read]

    # -------------------------------------------------------------------------------------------------- fitting

    @cached_property
    def _base(self) -> Profile:
        """What passes take: timed once, and kept; nothing else."""
        return latency_profile(self.engine, self.folder, min(LATENCY_SECONDS, self.scale.fit_seconds), self.say)

    @cached_property
    def latency(self) -> LatencyFit:
        return self.fork().knowledge.latency()

    def fork(self, knows: Sequence[Fitted] = ()) -> Engine:
        """An engine that knows what passes take and these fits; what it learns stays its own."""
        artefacts = {name: found for fitted in knows for name, found in fitted.artefacts.items()}
        return self.engine.fork(replace(self._base, artefacts=artefacts))

    def fit(
        self,
        name: str,
        method: Mapping[str, Any],
        prompts: Sequence[Prompt],
        seconds: float | None = None,
        num_tokens: int | None = None,
        text_tokens: int = PRACTICE_TOKENS,
    ) -> Fitted:
        """Fit a strategy to prompts that are not measured; asked the same again, it is read from the folder.

        `name` tells the fits of one strategy apart; `seconds`, `num_tokens`: other than those of the scale;
        `text_tokens`: new ones of a text that it practises with. Raises nothing: what could not be fitted has an
        `error`, and is not tried again in this run.
        """
        allowed = self.scale.fit_seconds if seconds is None else seconds
        tokens = num_tokens or self.scale.fit_tokens
        request = FitRequest(name, dict(method), prompts, allowed, tokens, text_tokens)
        if repr(request) not in self._failed:
            fitted = fit_method(self.fork(), request, self.folder, self.say)
            if not fitted.facts["error"]:
                return fitted
            self._failed[repr(request)] = fitted
        return self._failed[repr(request)]

    def once(self, name: str, question: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> Artefact:
        """Anything else that is found once and kept: values and tensors."""
        return fit_once(self.folder, self.engine.knowledge.key, name, question, make)

    # ------------------------------------------------------------------------------------------------ measuring

    def compare(
        self,
        methods: Methods,
        prompts: Sequence[Prompt],
        *,
        knows: Sequence[Fitted] = (),
        tokens: int | None = None,
        **sampling: Any,
    ) -> dict[str, Any]:
        """All methods (by arm name) and `off` take turns on each prompt; `knows`: what their strategies go by.

        A unit's values: the records, and of arms that could not run why. `sampling`: options of `generate`.
        """
        plan = MeasurePlan(
            prompts=_with_own_ids(prompts),
            methods=methods,
            max_new_tokens=tokens or self.scale.tokens,
            seed=self.seed,
            runs=self.scale.runs,
            sampling=sampling,
        )
        result = run_whole(self.fork(knows), plan)
        failed = {arm.name: arm.error for arm in result.arms if arm.error}
        return {MEASURED: result.all_of, **({FAILED: failed} if failed else {})}

    def expect(self, num_texts: int, num_tokens: int, once: str = "") -> None:
        """For a plan, which ends where a fit is needed: what a unit will write; `once`: to make what it names."""

    def measure(self, task: Task, methods: Methods, told: str = "", **asked: Any) -> dict[str, Any]:
        """`compare` on a task's prompts, and the task's label; `told`: what else the label says."""
        return {**self.compare(methods, task.measured, **asked), "task": ", ".join(filter(None, (task.label, told)))}


# ---------------------------------------------------------------------------------------------- units as declarations

UnitsOf = Callable[[Workbench], Iterable[Unit]]


def each(names: Sequence[str], measure: Callable[[Workbench, Task], Values], prefix: str = "") -> UnitsOf:
    """A unit per task; of one without prompts why."""

    def unit(bench: Workbench, name: str) -> Unit:
        task = bench.task(name)
        return Unit(prefix + name, partial(measure, bench, task) if task else None, None if task else why_missing(name))

    return lambda bench: [unit(bench, name) for name in names]


def joined(*parts: UnitsOf) -> UnitsOf:
    return lambda bench: [unit for part in parts for unit in part(bench)]


def _with_own_ids(prompts: Sequence[Prompt]) -> list[Prompt]:
    """A stream may have a prompt twice."""
    met: Counter[str] = Counter()
    named = []
    for prompt in prompts:
        met[prompt.id] += 1
        count = met[prompt.id]
        named.append(prompt if count == 1 else replace(prompt, id=f"{prompt.id}-{count}"))
    return named
