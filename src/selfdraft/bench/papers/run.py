"""Runs recipes: experiment after experiment, unit after unit, each kept as soon as it is measured.

What is kept are JSON lines: a head and one per unit. A run that asks the same goes on.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import SelfdraftError
from ...measure.figures import Measured
from ...measure.jsonl import JsonLines
from ...progress import Progress, no_progress
from .experiment import Experiment, Recipe, Unit, Values
from .workbench import Workbench

NO_TIME = "no time was left for it"
"""Of units that were never begun. The same command measures them."""


@dataclass(frozen=True)
class Line:
    """One unit. `missing`: why it cannot be had, or why measuring it failed."""

    paper: str
    experiment: str
    unit: str
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    seconds: float = 0.0
    date: str = ""

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.paper, self.experiment, self.unit

    @property
    def is_settled(self) -> bool:
        """Not where no time was left for it, nor where measuring failed: that is tried again."""
        return self.missing is None or (self.missing != NO_TIME and not self.seconds)


@dataclass(frozen=True)
class ReproduceHead:
    """`question`: all that shapes the figures; `circumstances`: device, versions, commit, date."""

    question: Mapping[str, Any]
    circumstances: Mapping[str, Any]


class _Lines(JsonLines[ReproduceHead, Line]):
    mark, version, command = "selfdraft_reproduce", 2, "selfdraft reproduce"
    head_of, line_of = staticmethod(lambda head: ReproduceHead(**head)), staticmethod(lambda line: Line(**line))


class UnitFile:
    """Keeps units as they come, in a file if there is one; what an earlier run that asked the same has is there."""

    def __init__(self, file: str | Path | None, head: ReproduceHead, is_new: bool = False) -> None:
        self._file = _Lines(file) if file else None
        self.head = head
        self.lines: dict[tuple[str, str, str], Line] = {}
        if self._file is None:
            return
        if not is_new and (known := self._file.known(head.question)):
            self.head, lines = known
            self.lines = {line.key: line for line in lines if line.is_settled}
        self._file.write(self.head, self.lines.values())

    def add(self, line: Line) -> None:
        self.lines[line.key] = line
        if self._file is not None:
            self._file.add([line])


def kept_units(file: str | Path | None, head: ReproduceHead) -> Collection[tuple[str, str, str]]:
    """What a run that asks this would find in the file; nothing is written."""
    known = _Lines(file).known(head.question) if file else None
    return [line.key for line in known[1] if line.is_settled] if known else []


def read_units(file: str | Path) -> tuple[ReproduceHead, Sequence[Line]]:
    """A last line that was cut off is left out; whatever else is wrong raises."""
    return _Lines(file).read()


def num_outputs(values: Mapping[str, Any], *verdicts: str) -> int:
    """Outputs of a unit that were compared with plain decoding, those with one of these verdicts."""
    records = [record for one in values.values() if isinstance(one, Mapping) for record in one.get("records", ())]
    return sum(record.get("verdict") in verdicts for record in records)


# --------------------------------------------------------------------------------------------------------- running


@dataclass
class Reproduction:
    """`seconds`: begin no unit later than this after `began`; each experiment has its first one
    before others have their second, then the time is shared among them."""

    bench: Workbench
    file: UnitFile
    seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)
    progress: Progress = no_progress
    is_interrupted: bool = False
    _num_units: int = 0

    def run(self, recipes: Sequence[Recipe], wanted: Sequence[str] = ()) -> None:
        """`wanted`: ids of experiments, none: all."""
        todo = [
            (recipe.name, experiment, list(experiment.units(self.bench.for_experiment(recipe, experiment))))
            for recipe in recipes
            for experiment in recipe.experiments
            if not wanted or experiment.id in wanted
        ]
        asked = {(paper, one.kept_as, unit.name): unit.missing for paper, one, units in todo for unit in units}
        self._num_units = len({*asked, *self.file.lines})
        try:
            for one in todo:  # something of everything
                self._run_experiment(*one, self._seconds_left, most=1)
            for number, one in enumerate(todo):
                self._run_experiment(*one, self._seconds_left / (len(todo) - number))
            for one in todo:  # what others left of their time
                self._run_experiment(*one, self._seconds_left)
            for key in [key for key in asked if key not in self.file.lines]:
                self.file.add(Line(*key, missing=asked[key] or NO_TIME, date=_now()))
        except KeyboardInterrupt:
            if not self.file.lines:
                raise
            self.is_interrupted = True

    def _run_experiment(
        self, paper: str, experiment: Experiment, units: Sequence[Unit], seconds: float, most: int | None = None
    ) -> None:
        """Its units that are not there yet: begin none later than in `seconds`, and at most `most` of them."""
        began, num_measured = time.perf_counter(), 0
        for unit in units:
            line = Line(paper, experiment.kept_as, unit.name, missing=unit.missing, date=_now())
            if line.key in self.file.lines:
                continue
            self.progress(len(self.file.lines), self._num_units, f"{paper} {experiment.id}")
            if unit.measure is not None:
                if num_measured == most or time.perf_counter() - began > seconds:
                    return
                num_measured += 1
                line = self._measured(line, unit.measure)
            self.file.add(line)

    @property
    def _seconds_left(self) -> float:
        if self.seconds is None:
            return float("inf")
        return self.seconds - (time.perf_counter() - self.began)

    def _measured(self, line: Line, measure: Callable[[], Values]) -> Line:
        """What cannot be measured here (a model without room for a context, say) is a line with its reason."""
        began = time.perf_counter()
        try:
            found = measure()
            values = {name: one.to_json() if isinstance(one, Measured) else one for name, one in found.items()}
            line = replace(line, values=values)
        except SelfdraftError as error:
            line = replace(line, missing=" ".join(str(error).split()))
        return replace(line, seconds=time.perf_counter() - began)

    @property
    def has_difference(self) -> bool:
        return any(num_outputs(line.values, "different") for line in self.file.lines.values())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
