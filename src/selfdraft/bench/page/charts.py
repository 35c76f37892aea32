"""The charts of a result by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import cost, length, skips, speedup, split, stream
from .chart import LIGHT, Chart, Missing, render
from .result import Result

CHARTS: Mapping[str, Callable[[Result], Chart | Missing]] = {
    "speedup": speedup.chart,
    "cost": cost.chart,
    "split": split.chart,
    "skips": skips.chart,
    "length": length.chart,
    "stream": stream.chart,
}


def charts_of(result: Result) -> dict[str, Chart | Missing]:
    return {name: make(result) for name, make in CHARTS.items()}


def pictures(charts: Mapping[str, Chart | Missing]) -> dict[str, bytes]:
    """PNGs for paper and README."""
    return {name: render(chart, LIGHT, "png") for name, chart in charts.items() if isinstance(chart, Chart)}
