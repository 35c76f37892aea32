"""How long a reproduction will take: its units are gone through with a workbench that counts instead of measuring.

Tokens count as those of plain decoding, fits as the seconds that they may take. A unit that wants the model itself, or
what a fit found, before it measures anything counts as what it told to `expect`, else as `USUAL_METHODS` on the prompts
of its scale. So a plan says `about`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from ...calibrate.fit_once import Fitted
from ...calibrate.writing import Text
from ...economics import LatencyFit
from ...engine.engine import Engine
from ...measure.passes import CONTEXT
from ...profiles.profile import Artefact
from ...types import Prompt
from ..tables import Table
from .experiment import Recipe, Unit
from .workbench import Methods, Workbench

USUAL_METHODS = 3
SOME_SET = {"drafting": {"skip": "a1", "tokens_per_second": 1.0}, "plain": 1.0, "num_tried": 0}
"""That a search found: what is measured with it takes as long with another."""


@dataclass
class Counted:
    """What was asked for, in how many measurements; a fit that is asked for again is made once."""

    num_tokens: int = 0
    num_measured: int = 0
    fits: dict[str, float] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def seconds(self, seconds_per_token: float) -> float:
        return self.num_tokens * seconds_per_token + sum(self.fits.values())


@dataclass
class CountingBench(Workbench):
    counted: Counted = field(default_factory=Counted)
    passes: LatencyFit | None = None

    @cached_property
    def latency(self) -> LatencyFit:
        assert self.passes is not None
        return self.passes

    def expect(self, num_texts: int, num_tokens: int, once: str = "") -> None:
        if once not in self.counted.made:
            self.counted.num_tokens += num_texts * num_tokens
            self.counted.num_measured += 1
            self.counted.made |= {once} - {""}

    def compare(self, methods: Methods, prompts: Sequence[Prompt], **asked: Any) -> dict[str, Any]:
        num_new = asked.get("tokens") or self.scale.tokens
        self.expect((1 + len(methods)) * len(prompts) * self.scale.runs, num_new)
        return {}

    def write(self, prompts: Sequence[Prompt], num_tokens: int) -> list[Text]:
        self.counted.num_tokens += len(prompts) * num_tokens
        return []

    def fit(self, name: str, method: Mapping[str, Any], prompts: Sequence[Prompt], *asked: Any, **more: Any) -> Fitted:
        seconds = next(iter(asked), more.get("seconds"))
        self.counted.fits[name] = self.scale.fit_seconds if seconds is None else seconds
        found = {"draft-verify": Artefact({"sets": dict.fromkeys(("mixed", "first"), SOME_SET)})}
        return Fitted(str(method["strategy"]), {"error": None, "seconds": 0.0, "is_complete": False}, found)

    def once(self, name: str, question: Mapping[str, Any], make: Any) -> Artefact:
        raise LookupError(f"{name} is not found before it is measured")

    def go_through(self, unit: Unit) -> None:
        before = self.counted.num_measured
        with suppress(Exception):  # it wants what there is none of
            assert unit.measure is not None
            unit.measure()
        if self.counted.num_measured == before:
            self.counted.num_tokens += USUAL_METHODS * self.scale.prompts * self.scale.tokens * self.scale.runs


def _without_passes(engine: Engine) -> Any:
    """What says how prompts are read, and nothing that runs."""
    runner = SimpleNamespace(vocab_size=engine.runner.vocab_size, num_layers=engine.runner.num_layers)
    return SimpleNamespace(tokenizer=engine.tokenizer, context_length=engine.context_length, runner=runner)


@dataclass(frozen=True)
class Planned:
    """An experiment, without the units that are kept already; what several show is measured once."""

    name: str
    num_units: int
    minutes: float


def plan(
    bench: Workbench, recipes: Sequence[Recipe], wanted: Sequence[str], known: Collection[Any]
) -> Iterator[Planned]:
    """`known`: keys of units that are kept."""
    met = {*known}
    made = {name: getattr(bench, name) for name in Workbench.__dataclass_fields__}
    counting = CountingBench(**{**made, "engine": _without_passes(bench.engine)}, passes=bench.latency)
    each = bench.latency.at(CONTEXT).plain
    for recipe, experiment in ((one, experiment) for one in recipes for experiment in one.experiments):
        if wanted and experiment.id not in wanted:
            continue
        before, num_units = counting.counted.seconds(each), 0
        own = counting.for_experiment(recipe, experiment)
        for unit in experiment.units(own):
            key = recipe.name, experiment.kept_as, unit.name
            if key not in met and unit.measure is not None:
                met.add(key)
                num_units += 1
                own.go_through(unit)
        yield Planned(f"{recipe.name} {experiment.id}", num_units, (counting.counted.seconds(each) - before) / 60)


def minutes(planned: Sequence[Planned]) -> float:
    return sum(one.minutes for one in planned)


def plan_table(planned: Sequence[Planned]) -> Table:
    rows = [[one.name, str(one.num_units), f"{one.minutes:.1f}"] for one in planned]
    return Table("", ["experiment", "units", "minutes, about"], [*rows, ["all", "", f"{minutes(planned):.1f}"]])
