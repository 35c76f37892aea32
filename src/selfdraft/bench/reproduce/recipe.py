"""What a reproduction is made of: a paper's tables and figures, measured unit by unit, shown beside what it published.

An experiment is two functions. `units` says what there is to measure, with a model at hand; each unit is kept as soon
as it is measured. `show` makes the table of what was kept, without a model: so pages are made anew at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..charts import Bars, Draw, Panels, is_known
from ..report import Table

if TYPE_CHECKING:
    from .workbench import Workbench

Values = Mapping[str, Any]
"""What a unit found, as JSON can say it."""


@dataclass(frozen=True)
class Unit:
    """A piece of an experiment that is measured at once. `missing`: why it cannot be had here, instead of `measure`."""

    name: str
    measure: Callable[[], Values] | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Effort:
    """How much was done, and how much the paper did; None: it does not say."""

    what: str  # "prompts a task"
    ours: float | None
    paper: float | None


@dataclass(frozen=True)
class Trend:
    """A claim of the paper in our words, and whether it holds here; None: it cannot be told. `because`: by figures."""

    claim: str
    holds: bool | None
    because: str


@dataclass(frozen=True)
class Plot:
    """`size`: inches."""

    draw: Draw
    alt: str
    size: tuple[float, float] = (8.0, 4.0)


def bars_plot(panels: Sequence[Bars], alt: str) -> Plot | None:
    """One panel above the other; None where there is nothing to draw."""
    if not is_known(one for panel in panels for numbers in panel.series.values() for one in numbers):
        return None
    return Plot(Panels(panels, columns=1, share_x=True), alt, (8.0, 1.0 + 3.0 * len(panels)))


@dataclass(frozen=True)
class Section:
    """One table or figure. `ours` has the paper's columns as far as they can be had; a figure without numbers in the
    paper's text has no published table."""

    ours: Sequence[Table]
    efforts: Sequence[Effort] = ()
    trends: Sequence[Trend] = ()
    notes: Sequence[str] = ()
    plot: Plot | None = None


@dataclass(frozen=True)
class Found:
    """What was kept of one experiment, by unit, and of the paper's others (`others`, by experiment, then unit)."""

    units: Mapping[str, Values]
    missing: Mapping[str, str] = field(default_factory=dict)
    scale: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)

    def get(self, unit: str, *path: str) -> Any:
        """A value inside of what a unit found; None where it is not there."""
        value: Any = self.units.get(unit)
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


@dataclass(frozen=True)
class Experiment:
    """`id` as in the published data: `table-2`, `figure-6`. `shares`: the experiment whose units it shows as well."""

    id: str
    title: str
    units: Callable[[Workbench], Iterable[Unit]]
    show: Callable[[Found], Section]
    shares: str = ""

    @property
    def kept_as(self) -> str:
        """The experiment that its units are kept under: measured once, whichever comes first."""
        return self.shares or self.id


@dataclass(frozen=True)
class Recipe:
    """One paper. `name` is that of the command and of the file of published numbers.

    `quick_prompts`: of each task with `--quick`, as many as two cores go through in less than ten minutes.
    """

    name: str
    experiments: Sequence[Experiment]
    quick_prompts: int = 1
