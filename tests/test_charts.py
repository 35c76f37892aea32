"""The drawing stack: charts as data without matplotlib; with it, the same bytes, light and dark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from selfdraft.bench.charts import (
    DARK,
    LIGHT,
    Band,
    Bar,
    Bars,
    BarTable,
    Drawing,
    Grid,
    Group,
    Interval,
    Lines,
    Mark,
    Names,
    Panels,
    Scatter,
    Series,
    SkipStrips,
    Stack,
    StackedBars,
    Strip,
    Theme,
    plane,
    render,
)
from selfdraft.bench.charts.lines import spread
from selfdraft.types import SkipSet


@dataclass(frozen=True)
class Estimated:
    """As other modules have it: a chart asks for `value`, `low` and `high` alone."""

    value: float
    low: float
    high: float
    count: int = 3


SERIES = [Series("one", [(1, Estimated(1.2, 1.1, 1.3)), (2, None), (3, 1.4)]), Series("", [(1, 0.9), (3, 1.0)], "dots")]
BARS = Bars(["a (b)", "c"], {"one": [1.0, Estimated(1.2, 1.1, 1.3)], "two": [None, 0.5]}, unit="x", baseline=1.0)
LINES = Lines(
    SERIES,
    "x",
    "y",
    "x",
    1.0,
    bands=[Band("first", 1, 2), Band("", 2, 3, 1)],
    marks=[Mark(2, "here"), Mark(2.1, "too")],
)
SCATTER = Scatter(
    [Group("one", [(0.5, 0.5), (0.6, 0.7)], ["p", "q"]), Group("", [(0.4, 0.4)] * 3, ["crowd"], 1, "pale")],
    line=[(0.1, 0.2), (0.9, 0.8)],
    field=lambda xs, ys: (1 + ys[:, None]) / (0.5 + xs),
    x_limits=(0, 1),
    y_limits=(0, 1),
)
STRIPS = SkipStrips([Strip(SkipSet.parse("a1,m0"), "left", "right", badge="1"), Strip(None, "", "nothing")], 3)
DRAWINGS: dict[str, Drawing] = {
    "bars": BARS,
    "table": BarTable(["r"], ["all", "d"], [[Bar(Interval(1.1, 1.0, 1.2), "faster"), None]], {"faster": "faster"}),
    "stacked": StackedBars(["r"], {"draft": [0.6], "verify": [0.4]}, unit="%"),
    "lines": LINES,
    "ends": replace(LINES, names_at_ends=True),
    "log": Lines([Series("s", [(1, 2), (10, 30)], "steps")], log="xy", ticks={1: "1", 10: "10"}),
    "histogram": Lines([Series("s", [(0, 2), (1, 3)], "bars"), Series("t", [(0, 1), (1, 2)], "dashed")]),
    "scatter": SCATTER,
    "numbered": Stack([SCATTER, Names([("p", "1.2x")])], [2, 1], is_row=True),
    "strips": STRIPS,
    "grid": Grid([[1.0, None], [Interval(1.2), 0.9]], ["r", "s"], ["c", "d"]),
    "shared": Panels([BARS, replace(BARS, title="again")], columns=1, share_x=True),
    "ragged": Panels([BARS, LINES, LINES], columns=2),
    "stack": Stack([STRIPS, Panels([SCATTER, LINES])], [1, 2]),
    "empty": Panels([Lines([]), Scatter([]), Bars([], {})]),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_chart_gives_the_same_bytes(name: str) -> None:
    pytest.importorskip("matplotlib")
    draw = DRAWINGS[name]
    light, again, dark = (render(draw, (6, 4), theme=theme, form="svg") for theme in (LIGHT, LIGHT, DARK))
    assert light == again
    assert light != dark
    assert render(draw, (6, 4), title="a title").startswith(b"\x89PNG")


def test_legends_are_shared_where_they_are_the_same() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure(layout="constrained")
    Panels([BARS, BARS])(figure)
    assert [len(figure.legends), *(axes.get_legend() for axes in figure.axes)] == [1, None, None]
    figure = figures.Figure(layout="constrained")
    Panels([BARS, LINES])(figure)
    assert not figure.legends
    assert all(axes.get_legend() for axes in figure.axes)


def test_intervals_are_drawn_and_what_is_missing_is_not() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    figure = figures.Figure()
    BARS(figure)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert heights == [1.0, 1.2, 0.5]
    assert [1.1, 1.3] in [list(line.get_ydata()) for line in figure.axes[0].lines]


def test_charts_are_values() -> None:
    """So that what is drawn can be tested without matplotlib."""
    assert replace(BARS) == BARS
    assert replace(BARS, unit="") != BARS


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_series_can_be_told_apart(theme: Theme) -> None:
    styles = [theme.style(place) for place in range(16)]
    assert len(set(styles)) == 16
    assert len({color for color, _ in styles[:6]}) == len({marker for _, marker in styles[:6]}) == 6


def test_labels_are_moved_apart_and_stay_inside() -> None:
    assert spread([1.0, 1.01, 1.5], 0.1, 0.0, 2.0) == pytest.approx([1.0, 1.1, 1.5])
    assert spread([1.9, 1.95], 0.1, 0.0, 2.0) == pytest.approx([1.9, 2.0])


def test_principal_components() -> None:
    random = np.random.default_rng(0)
    wide = random.normal(size=(40, 1)) * 10
    vectors = np.concatenate([np.zeros((40, 3)), wide, random.normal(size=(40, 1)) * 0.1], axis=1)
    flat = plane(vectors + 5.0)
    assert np.allclose(np.abs(flat.points[:, 0]), np.abs(wide[:, 0] - wide.mean()), atol=0.1)
    assert sum(flat.shares) > 0.999
    assert plane(np.ones((3, 1))).points.shape == (3, 2)


def test_matplotlib_is_not_imported_before_something_is_drawn() -> None:
    code = "import sys, selfdraft.bench.page.charts, selfdraft.cli.profile; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
