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
MEASURED, FAILED = "measured", "failed"
"""Keys: the records; of arms that could not run why, by arm."""


@dataclass(frozen=True)
class Unit:
    """A piece of an experiment that is measured at once. `missing`: why it cannot be had here, instead of `measure`."""

    name: str
    measure: Callable[[], Values] | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Found:
    """What was kept of one experiment, by unit."""

    units: Mapping[str, Values]
    missing: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, Any] = field(default_factory=dict)
    _measured: dict[str, Measured] = field(default_factory=dict, compare=False, repr=False)

    def get(self, unit: str, *path: str) -> Any:
        """A value inside of what a unit found; None where it is not there."""
        value: Any = self.units.get(unit)
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def measured(self, unit: str) -> Measured | None:
        """The records of a unit."""
        if unit not in self._measured and (found := self.get(unit, MEASURED)) is not None:
            self._measured[unit] = found if isinstance(found, Measured) else Measured.from_json(found)
        return self._measured.get(unit)

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


@dataclass(frozen=True)
class Judgement:
    """A claim of the paper in our words. `outcome`: confirmed, not confirmed; None: inconclusive.

    `where`: the end of a claim that is made in several places ("on GSM8K").
    """

    claim: str
    outcome: bool | None
    because: str
    where: str = ""

    @property
    def what(self) -> str:
        return self.claim.removesuffix(self.where)


Claim = Callable[[Found], Judgement | Iterable[Judgement | None] | None]
"""claims.py makes them: `faster`, `larger`, `above`, ... None: it was not measured."""


@dataclass(frozen=True)
class Plot:
    """`draw`: one of bench/charts; `size` in inches."""

    draw: Drawing
    alt: str
    size: tuple[float, float] = (8.0, 4.0)


Note = Callable[[Found], Iterable[str]]


@dataclass(frozen=True)
class Experiment:
    """`id` as in the published data, which has its title and fixed notes: `table-2`, `figure-6`.

    `notes`: those that are made of what was found; `shares`: the experiment whose units it shows as well.
    """

    id: str
    units: Callable[[Any], Iterable[Unit]]  # of a Workbench
    tables: Sequence[Callable[[Found], Table]]
    claims: Sequence[Claim] = ()
    notes: Sequence[Note] = ()
    chart: Callable[[Found], Plot | None] | None = None
    shares: str = ""

    @property
    def kept_as(self) -> str:
        """The experiment that its units are kept under: measured once, whichever comes first."""
        return self.shares or self.id

    def judge(self, found: Found) -> list[Judgement]:
        made = [claim(found) for claim in self.claims]
        parts = [[one] if isinstance(one, Judgement | None) else one for one in made]
        return [judgement for part in parts for judgement in part if judgement is not None]

    def remarks(self, found: Found) -> list[str]:
        return [text for note in self.notes for text in note(found)]


Effort = Callable[[Found], float | None]
"""How much was done; None: that is not known."""


def fewest_prompts(found: Found) -> float | None:
    """In the unit that has fewest."""
    figures = (found.figures(unit, OFF) for unit in found.units)
    return min((one.num_prompts for one in figures if one), default=None)


def most_tokens(found: Found) -> float | None:
    """New ones of a text; a unit may have fewer than the scale."""
    known = [values["tokens"] for values in found.units.values() if "tokens" in values]
    return max(known, default=found.scale.get("tokens"))


EFFORTS: Mapping[str, Effort] = {
    "prompts a task": fewest_prompts,
    "new tokens of a text at most": most_tokens,
    "models": lambda found: 1,
}


@dataclass(frozen=True)
class MainTable:
    """How much is measured for it, unless the caller says: new tokens of a text at most, prompts a task, runs of each.

    Several runs, so that intervals hold the machine's own spread.
    """

    tokens: int
    prompts: int = 16
    runs: int = 3


@dataclass(frozen=True)
class Recipe:
    """One paper. `name` is that of the command and of the file of published numbers.

    `quick_prompts`: of each task with `--quick`, as many as two cores go through in less than ten minutes. `efforts`:
    how much was done, by the names that the published data has; what the paper did stands there. `main`: its main
    tables by what they are kept as; `shots`: of the tasks that its base models are asked in, as texts, how many
    answered examples come first. `own`: arms of the paper's method; `oracle`: one that is told how far to draft;
    `has_drafters`: what drafts may be chosen.
    """

    name: str
    experiments: Sequence[Experiment]
    quick_prompts: int = 1
    efforts: Mapping[str, Effort] = field(default_factory=dict)
    main: Mapping[str, MainTable] = field(default_factory=dict)
    shots: Mapping[str, int] = field(default_factory=dict)
    own: Sequence[str] = ()
    oracle: str = ""
    has_drafters: bool = False
