"""Runs recipes: experiment after experiment, unit after unit, each kept as soon as it is measured."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import SelfdraftError
from ...progress import Progress
from .journal import NO_TIME, Line, UnitFile
from .recipe import Experiment, Recipe, Unit
from .workbench import Workbench, num_different


@dataclass
class Reproduction:
    """`seconds`: begin no unit later than so long after `began`; each experiment has its first one
    before others have their second, then the time is shared among them."""

    bench: Workbench
    file: UnitFile
    seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)
    progress: Progress = lambda done, total, label: None
    is_interrupted: bool = False
    _num_units: int = 0

    def run(self, recipes: Sequence[Recipe], wanted: Sequence[str] = ()) -> None:
        """`wanted`: ids of experiments, none: all."""
        todo = [
            (recipe, experiment)
            for recipe in recipes
            for experiment in recipe.experiments
            if not wanted or experiment.id in wanted
        ]
        asked = {
            (one.name, experiment.kept_as, unit.name)
            for one, experiment in todo
            for unit in experiment.units(self.bench)
        }
        self._num_units = len(asked | set(self.file.lines))
        try:
            for one in todo:  # something of everything
                self._run_experiment(*one, self._seconds_left, most=1)
            for number, one in enumerate(todo):
                self._run_experiment(*one, self._seconds_left / (len(todo) - number))
            for one in todo:  # what others left of their time
                self._run_experiment(*one, self._seconds_left)
            self._name_what_is_left(todo)
        except KeyboardInterrupt:
            if not self.file.lines:
                raise
            self.is_interrupted = True

    def _run_experiment(self, recipe: Recipe, experiment: Experiment, seconds: float, most: int | None = None) -> None:
        """Its units that are not there yet: begin none later than in so many seconds, and at `most` so many."""
        began, num_measured = time.perf_counter(), 0
        for unit in experiment.units(self.bench):
            if (recipe.name, experiment.kept_as, unit.name) in self.file.lines:
                continue
            self.progress(len(self.file.lines), self._num_units, f"{recipe.name} {experiment.id}")
            if unit.missing is None:
                if num_measured == most or time.perf_counter() - began > seconds:
                    return
                num_measured += 1
            self.file.add(self._measured(recipe.name, experiment.kept_as, unit))

    def _name_what_is_left(self, todo: Sequence[tuple[Recipe, Experiment]]) -> None:
        for recipe, experiment in todo:
            for unit in experiment.units(self.bench):
                line = Line(recipe.name, experiment.kept_as, unit.name, missing=unit.missing or NO_TIME, date=_now())
                if line.key not in self.file.lines:
                    self.file.add(line)

    @property
    def _seconds_left(self) -> float:
        if self.seconds is None:
            return float("inf")
        return self.seconds - (time.perf_counter() - self.began)

    def _measured(self, paper: str, experiment: str, unit: Unit) -> Line:
        """What cannot be measured here (a model without room for a context, say) is a line with its reason."""
        date = _now()
        if unit.measure is None:
            return Line(paper, experiment, unit.name, missing=unit.missing, date=date)
        began = time.perf_counter()
        try:
            values = unit.measure()
        except SelfdraftError as error:
            reason = " ".join(str(error).split())
            return Line(paper, experiment, unit.name, missing=reason, seconds=time.perf_counter() - began, date=date)
        return Line(paper, experiment, unit.name, values, seconds=time.perf_counter() - began, date=date)

    @property
    def has_difference(self) -> bool:
        return any(num_different(line.values) for line in self.file.lines.values())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
