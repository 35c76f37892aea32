"""One drawing stack: data in, a drawing out; light and dark; the same data gives the same bytes.

A chart is a value. It says what is drawn and can be compared and tested without matplotlib:

    draw = Bars(["code", "chat"], {"prune": [1.4, Estimate(1.2, 1.1, 1.3, 8)], "swift": [1.1, None]},
                y_label="speed-up", unit="x", baseline=1.0)
    render(draw, (8, 4))                    # a PNG; theme=DARK, form="svg"
    draw(figure)                            # onto an empty matplotlib figure

Numbers are floats, an `Estimate` with its interval, or None: nothing there. A new kind is a frozen dataclass with one
method, `on`; its base, `Panel`, brings the legend, the title and the figure.
"""

from .bars import Bar, BarColumn, Bars, StackedBars
from .lines import Band, Lines, Mark, Series
from .panels import PLOT_EXTRA, Drawing, Panel, Panels, Stack, can_draw, render, require_matplotlib
from .scatter import Group, Names, Point, Scatter, plane
from .skip_chart import SkipStrips, Strip
from .theme import DARK, LIGHT, Theme

__all__ = [
    "DARK", "LIGHT", "PLOT_EXTRA", "Band", "Bar", "BarColumn", "Bars", "Drawing", "Group", "Lines", "Mark", "Names",
    "Panel", "Panels", "Point", "Scatter", "Series", "SkipStrips", "Stack", "StackedBars", "Strip", "Theme", "can_draw",
    "plane", "render", "require_matplotlib",
]  # fmt: skip
