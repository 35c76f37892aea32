"""One drawing stack: data in, a drawing out; light and dark; the same data gives the same bytes.

A chart is a value. It says what is drawn and can be compared and tested without matplotlib:

    draw = Bars(["code", "chat"], {"prune": [1.4, Estimate(1.2, 1.1, 1.3)], "swift": [1.1, None]},
                y_label="speed-up", unit="x", baseline=1.0)
    render(draw, (8, 4))                    # a PNG; theme=DARK, form="svg"
    draw(figure)                            # onto an empty matplotlib figure

| kind | shows |
|---|---|
| `Bars` | groups of bars with intervals |
| `StackedBars` | parts of a whole, a row each |
| `BarTable` | rows of bars with intervals, a column for each domain |
| `Lines` | lines, steps, dots, bars over x; bands, marks, log scales |
| `Scatter` | points in groups, with names, a line, lines of equal height |
| `SkipStrips`, `Grid` | skip sets by layer; numbers on shades |
| `Panels`, `Stack` | several of them on one figure |

Numbers are floats, None (nothing there), or anything with `.value`, `.low` and `.high` (`Valued`).

A new kind is a frozen dataclass with one method; `Panel` brings the legend, the title and the figure:

    @dataclass(frozen=True)
    class Histogram(Panel):
        counts: Sequence[int]
        title: str = ""

        def on(self, axes, theme):
            axes.bar(range(len(self.counts)), self.counts, color=theme.series[0])
            dress(axes, theme, "tokens", "rounds")
"""

from .bars import Bar, Bars, BarTable, StackedBars
from .lines import Band, Lines, Mark, Series
from .panels import Drawing, Interval, Number, Panel, Panels, Stack, Valued, is_known
from .scatter import Group, Names, Plane, Scatter, plane
from .skip_chart import Grid, SkipStrips, Strip
from .theme import DARK, LIGHT, Chart, Draw, Missing, Theme, render, require_matplotlib, short

__all__ = [
    "DARK",
    "LIGHT",
    "Band",
    "Bar",
    "BarTable",
    "Bars",
    "Chart",
    "Draw",
    "Drawing",
    "Grid",
    "Group",
    "Interval",
    "Lines",
    "Mark",
    "Missing",
    "Names",
    "Number",
    "Panel",
    "Panels",
    "Plane",
    "Scatter",
    "Series",
    "SkipStrips",
    "Stack",
    "StackedBars",
    "Strip",
    "Theme",
    "Valued",
    "is_known",
    "plane",
    "render",
    "require_matplotlib",
    "short",
]
