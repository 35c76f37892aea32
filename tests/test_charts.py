"""The drawing stack: charts as data without matplotlib; with it, the same bytes, light and dark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfdraft.bench import charts
from selfdraft.bench.charts import DARK, LIGHT, Bars, Group, Lines, Panels, Scatter, Series, SkipStrips, Stack, Strip
from selfdraft.measure.estimate import Estimate
from selfdraft.types import SkipSet

ESTIMATE = Estimate(1.2, 1.1, 1.3, 8)
SERIES = [Series("one", [(1, ESTIMATE), (2, None), (3, 1.4)]), Series("", [(1, 0.9), (3, 1.0)], "dots")]
BARS = Bars(["a (b)", "c"], {"one": [1.0, ESTIMATE], "two": [None, 0.5]}, unit="x", baseline=1.0)
BANDS, MARKS = [charts.Band("first", 1, 2), charts.Band("", 2, 3, 1)], [charts.Mark(2, "here"), charts.Mark(2.1, "too")]
LINES = Lines(SERIES, "x", "y", "x", 1.0, bands=BANDS, marks=MARKS)
SCATTER = Scatter(
    [Group("one", [(0.5, 0.5), (0.6, 0.7)], ["p", "q"]), Group("", [(0.4, 0.4)] * 3, color=1, look="pale")],
    line=[(0.1, 0.2), (0.9, 0.8)],
    field=lambda xs, ys: (1 + ys[:, None]) / (0.5 + xs),
    x_limits=(0, 1),
    y_limits=(0, 1),
)
STRIPS = SkipStrips([Strip(SkipSet.parse("a1,m0"), "left", "right"), Strip(None, "", "nothing")], 3)
COLUMN = charts.BarColumn(["r", "s"], [charts.Bar(ESTIMATE, "faster"), None], 1.25, 0.5, {"faster": "faster", "b": "b"})
DRAWINGS: dict[str, charts.Drawing] = {
    "bars": BARS,
    "table": Panels([COLUMN, replace(COLUMN, title="d")], widths=[2, 1], share_y=True),
    "stacked": charts.StackedBars(["r"], {"draft": [0.6], "verify": [0.4]}, unit="%"),
    "lines": LINES,
    "log": Lines([Series("s", [(1, 2), (10, 30)], "steps")], log="xy", ticks={1: "1", 10: "10"}),
    "histogram": Lines([Series("s", [(0, 2), (1, 3)], "bars"), Series("t", [(0, 1), (1, 2)], "dashed")]),
    "scatter": SCATTER,
    "numbered": Stack([SCATTER, charts.Names([("p", "1.2x")])], [2, 1], is_row=True),
    "strips": STRIPS,
    "shared": Panels([BARS, replace(BARS, title="again")], columns=1, share_x=True),
    "ragged": Panels([BARS, LINES, LINES], columns=2),
    "stack": Stack([STRIPS, Panels([SCATTER, LINES])], [1, 2]),
    "empty": Panels([Lines([]), Scatter([]), Bars([], {})]),
}


def drawn(drawing: charts.Drawing) -> Any:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    drawing(figure)
    return figure


@pytest.mark.parametrize(
    "name", [name if not row % 4 else pytest.param(name, marks=pytest.mark.full) for row, name in enumerate(DRAWINGS)]
)
def test_the_same_chart_gives_the_same_bytes(name: str) -> None:
    pytest.importorskip("matplotlib")
    draw = DRAWINGS[name]
    light, again, dark = (charts.render(draw, (6, 4), theme=theme, form="svg") for theme in (LIGHT, LIGHT, DARK))
    assert light == again
    assert light != dark
    assert charts.render(draw, (6, 4), title="a title").startswith(b"\x89PNG")


def test_legends_are_shared_where_they_are_the_same() -> None:
    same, different = drawn(Panels([BARS, BARS])), drawn(Panels([BARS, LINES]))
    assert [len(same.legends), *(axes.get_legend() for axes in same.axes)] == [1, None, None]
    assert not different.legends
    assert all(axes.get_legend() for axes in different.axes)


def test_intervals_are_drawn_and_what_is_missing_is_not() -> None:
    (axes,) = drawn(BARS).axes
    assert [height for patch in axes.patches if np.isfinite(height := patch.get_height())] == [1.0, 1.2, 0.5]
    ends = [segment[:, 1].tolist() for lines in axes.collections for segment in lines.get_segments() if len(segment)]
    assert [end for end in ends if np.isfinite(end).all()] == [pytest.approx([1.1, 1.3])]


def test_labels_do_not_lie_upon_each_other() -> None:
    points = [(0.5 + 0.01 * place, 0.5) for place in range(5)]
    (axes,) = drawn(Scatter([Group("", points, ["a label"] * 5)], x_limits=(0, 1), y_limits=(0, 1))).axes
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 5
    places = [(box.x0 + box.x1, box.y0 + box.y1) for box in boxes]
    assert len(set(places)) == 5


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_series_can_be_told_apart(theme: charts.Theme) -> None:
    styles = [theme.style(place) for place in range(16)]
    assert len(set(styles)) == 16
    assert len({color for color, _ in styles[:6]}) == len({marker for _, marker in styles[:6]}) == 6


def test_principal_components() -> None:
    random = np.random.default_rng(0)
    wide = random.normal(size=(40, 1)) * 10
    vectors = np.concatenate([np.zeros((40, 3)), wide, random.normal(size=(40, 1)) * 0.1], axis=1)
    points, shares = charts.plane(vectors + 5.0)
    assert np.allclose(np.abs(points[:, 0]), np.abs(wide[:, 0] - wide.mean()), atol=0.1)
    assert sum(shares) > 0.999
    assert charts.plane(np.ones((3, 1)))[0].shape == (3, 2)


@pytest.mark.full
def test_matplotlib_is_not_imported_before_something_is_drawn() -> None:
    code = "import sys, selfdraft.bench.page.charts, selfdraft.cli.profile; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
