"""What a reproduction is made of: a paper's tables and figures as declarations, measured unit by unit.

An `Experiment` says what there is to measure (`units`, with a model at hand) and how it is shown (tables, claims,
chart, effort, notes: without a model, so that pages can be made again at any time). A `Recipe` is a paper's
experiments. To add one, see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...measure.figures import Figures, Measured
from ...measure.records import OFF
from ..charts import Drawing
from ..tables import Table

Values = Mapping[str, Any]
"""What a unit found, as JSON can say it; records of arms that took turns are a `Measured` under MEASURED."""
MEASURED = "measured"


@dataclass(frozen=True)
class Unit:
    """A piece of an experiment that is measured at once. `missing`: why it cannot be had here, instead of `measure`."""

    name: str
    measure: Callable[[], Values] | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Found:
    """What was kept of one experiment, by unit, and of the paper's others (`others`, by experiment, then unit)."""

    units: Mapping[str, Values]
    missing: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    _measured: dict[tuple[str, str], Measured] = field(default_factory=dict, compare=False, repr=False)

    def get(self, unit: str, *path: str) -> Any:
        """A value inside of what a unit found; None where it is not there."""
        value: Any = self.units.get(unit)
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def measured(self, unit: str, key: str = MEASURED) -> Measured | None:
        """The records of a unit."""
        if (unit, key) not in self._measured and (found := self.get(unit, key)) is not None:
            self._measured[unit, key] = found if isinstance(found, Measured) else Measured.from_json(found)
        return self._measured.get((unit, key))

    def figures(self, unit: str, arm: str, domain: str | None = None) -> Figures | None:
        """None: it was not measured."""
        found = self.measured(unit)
        return found.figures(arm, domain) if found else None

    def arms(self, unit: str) -> list[str]:
        """Plain decoding first."""
        found = self.measured(unit)
        return sorted(found.arms, key=lambda arm: arm != OFF) if found else []

    def label(self, unit: str) -> str:
        """Of its task, for rows and claims."""
        return str(self.get(unit, "task") or unit)

    def experiment(self, name: str) -> Found:
        """Another experiment of the same file."""
        return Found(self.others.get(name, {}), {}, self.scale, self.others)


@dataclass(frozen=True)
class Effort:
    """How much was done (`ours`), and how much the paper did; None: it does not say."""

    what: str  # "prompts a task"
    ours: Callable[[Found], float | None]
    paper: float | None = None


@dataclass(frozen=True)
class Judgement:
    """A claim of the paper in our words. `outcome`: confirmed, not confirmed; None: inconclusive."""

    claim: str
    outcome: bool | None
    because: str


Claim = Callable[[Found], Iterable[Judgement]]
"""claims.py makes them: `faster`, `larger`, `at_least`, ..."""


@dataclass(frozen=True)
class Plot:
    """`draw`: one of bench/charts; `size` in inches."""

    draw: Drawing
    alt: str
    size: tuple[float, float] = (8.0, 4.0)


Note = str | Callable[[Found], Iterable[str]]


@dataclass(frozen=True)
class Experiment:
    """`id` as in the published data: `table-2`, `figure-6`. `shares`: the experiment whose units it shows as well."""

    id: str
    title: str
    units: Callable[[Any], Iterable[Unit]]  # of a Workbench
    tables: Sequence[Callable[[Found], Table]]
    claims: Sequence[Claim] = ()
    efforts: Sequence[Effort] = ()
    notes: Sequence[Note] = ()
    chart: Callable[[Found], Plot | None] | None = None
    shares: str = ""

    @property
    def kept_as(self) -> str:
        """The experiment that its units are kept under: measured once, whichever comes first."""
        return self.shares or self.id

    def judge(self, found: Found) -> list[Judgement]:
        return [judgement for claim in self.claims for judgement in claim(found)]

    def remarks(self, found: Found) -> list[str]:
        return [text for note in self.notes for text in ([note] if isinstance(note, str) else note(found))]


@dataclass(frozen=True)
class Recipe:
    """One paper. `name` is that of the command and of the file of published numbers.

    `quick_prompts`: of each task with `--quick`, as many as two cores go through in less than ten minutes.
    """

    name: str
    experiments: Sequence[Experiment]
    quick_prompts: int = 1


# ------------------------------------------------------------------------------------------------------------ efforts


def prompts_a_task(paper: float | None, what: str = "prompts a task") -> Effort:
    """In the unit that has fewest."""
    return Effort(what, _fewest_prompts, paper)


def new_tokens(paper: float | None) -> Effort:
    return Effort("new tokens of a text at most", lambda found: found.scale.get("tokens"), paper)


def _fewest_prompts(found: Found) -> float | None:
    figures = (found.figures(unit, OFF) for unit in found.units)
    return min((one.num_prompts for one in figures if one), default=None)
