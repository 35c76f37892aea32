"""What tells the throughput of a skip set beforehand: tokens per time, tokens per layer, or the acceptance rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....strategies.uniform import spread
from ....types import SkipSet
from ...charts import Group, Panels, Scatter
from ...prompts import encode
from ...report import Table, number, times
from ..cells import NOT_MEASURED, from_enough, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .shared import PAPER_MODELS, SUMMARY_NOTE, References, predicted, with_references

TASK = "gsm8k"
NUM_DRAFTED = 4
RATIOS = (0.12, 0.25, 0.4)
"""Of evenly spread layers, attentions or MLPs."""
BUDGETS = (0.3, 0.6, 1.0)
"""Of the largest weight that the knapsack may skip."""
PREDICTORS: Mapping[str, str] = {
    "tokens_per_time": "TPT",
    "by_width": "TPT, verification by its width",
    "tokens_per_layer": "TPL",
    "acceptance": "match (acceptance rate)",
}
MIN_POINTS = 4
NUM_RESAMPLES = 1000

Sets = Callable[[References, int], Iterable[SkipSet]]
Point = Mapping[str, Any]
Array = npt.NDArray[np.float64]

# ------------------------------------------------------------------------------------------------- sets to look at


def _spread(kinds: str, references: References, num_layers: int) -> Iterator[SkipSet]:
    for share in RATIOS:
        layers = spread(num_layers, share)
        yield SkipSet.of(layers if "a" in kinds else (), layers if "m" in kinds else ())


def _of_knapsack(is_bound: bool, references: References, num_layers: int) -> Iterator[SkipSet]:
    networks = references.networks(is_bound=is_bound)
    for share in BUDGETS if networks else ():
        yield networks[round(share * (len(networks) - 1))].skip


FAMILIES: Mapping[str, Sets] = {
    "knapsack": partial(_of_knapsack, False),
    "layers": partial(_spread, "am"),
    "attentions": partial(_spread, "a"),
    "MLPs": partial(_spread, "m"),
    "bound knapsack": partial(_of_knapsack, True),
}


def units(bench: Workbench) -> Iterable[Unit]:
    """A family of sets each, beside plain decoding."""
    bench = with_references(bench)
    shared: dict[str, References] = {}

    def measure(task: Task, sets: Sets) -> Values:
        references = shared.setdefault(task.name, References(bench, task.learned))
        return _measure(bench, task, references, sets)

    for family, sets in FAMILIES.items():
        yield from bench.for_each([TASK], partial(measure, sets=sets), prefix=f"{family} ")


def _measure(bench: Workbench, task: Task, references: References, sets: Sets) -> Values:
    prompts = [len(encode(prompt, bench.engine)) for prompt in task.measured]
    costs = bench.latency.at(sum(prompts) / len(prompts) + bench.scale.tokens / 2)
    skips = {str(skip): skip for skip in sets(references, costs.fit.num_layers) if skip}
    matches = {name: references.match(skip) for name, skip in skips.items()}
    ways = bench.compare({name: in_every_round(name) for name in skips}, task.measured)
    points = []
    for name, skip in skips.items():
        total = ways[name].get("total")
        if total is not None:
            expected = predicted(skip, matches[name], NUM_DRAFTED, costs)
            found = {"speedup": total["speedup"]["value"], "accepted": total["acceptance_rate"]}
            points.append({"skip": name, "attention": len(skip.attention), "mlp": len(skip.mlp), **expected, **found})
    return {
        "points": points,
        "num_prompts": len(prompts),
        "different": sum(way["total"]["different"] for way in ways.values() if "total" in way),
    }


def in_every_round(skip: str) -> dict[str, Any]:
    """So many tokens in every round."""
    settings = {"fixed": {"skip": skip, "tokens": NUM_DRAFTED}}
    return {"strategy": "fixed", "lookahead": "fixed", "tree": "chain", "settings": settings}


# ------------------------------------------------------------------------------------------------- correlation


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    """None where there are too few points, or where one of them is the same everywhere."""
    if len(one) < MIN_POINTS:
        return None
    found = float(_pearsons(np.asarray(one, dtype=np.float64)[None], np.asarray(other, dtype=np.float64)[None])[0])
    return None if np.isnan(found) else found


def _pearsons(one: Array, other: Array) -> Array:
    """Of each row; not a number where one of them is the same everywhere."""
    spreads = []
    for values in (one, other):
        spread_out = values - values.mean(1, keepdims=True)
        length = np.linalg.norm(spread_out, axis=1, keepdims=True)
        is_flat = length <= 1e-9 * np.abs(values).max(1, keepdims=True)
        spreads.append(np.where(is_flat, np.nan, spread_out / np.where(is_flat, 1.0, length)))
    found: Array = (spreads[0] * spreads[1]).sum(1)
    return found


def is_better(claim: str, points: Sequence[Point], one: str, other: str) -> Trend:
    """That a predictor goes with throughput more closely than another; 95 % of other sets like these must agree."""
    found = [_of(points, name) for name in (one, other)]
    if found[0] is None or found[1] is None:
        return Trend(claim, None, NOT_MEASURED)
    draws = np.random.default_rng(0).integers(len(points), size=(NUM_RESAMPLES, len(points)))
    first, second, speeds = (np.array([point[name] for point in points])[draws] for name in (one, other, "speedup"))
    gains = _pearsons(first, speeds) - _pearsons(second, speeds)
    low, high = (float(value) for value in np.nanquantile(gains, (0.025, 0.975)))
    because = f"r {found[0]:.2f} and {found[1]:.2f}, difference [{low:.2f}, {high:.2f}]"
    return Trend(claim, low > 0 if low > 0 or high < 0 else None, because)


def _of(points: Sequence[Point], predictor: str) -> float | None:
    return pearson([point[predictor] for point in points], [point["speedup"] for point in points])


# ---------------------------------------------------------------------------------------------- table and figure


def show(found: Found) -> Section:
    families = {family: _points(found, family) for family in FAMILIES}
    points = [point for some in families.values() for point in some]
    count = min((one["num_prompts"] for one in found.units.values()), default=None)
    trends = [
        is_better(f"TPT is more highly correlated with throughput than {title}", points, "tokens_per_time", other)
        for other, title in (("tokens_per_layer", "TPL"), ("acceptance", "match, the acceptance rate"))
    ]
    tables = [
        Table("correlation with measured throughput", ["predictor", "Pearson r", "R^2", "sets"], _summary(points)),
        Table("the sets", _COLUMNS, [_row(family, point) for family in families for point in families[family]]),
    ]
    plot = Plot(_chart(families), "predicted against measured throughput", (12.0, 3.6))
    return Section(
        tables,
        [Effort("models", 1, PAPER_MODELS), Effort("sets", len(points), None), Effort("prompts", count, None)],
        [from_enough(trend, count) for trend in told(trends)],
        [
            SUMMARY_NOTE,
            "predicted with match, the acceptance rate as it is known beforehand: the share of the target's choices "
            f"that a set meets on prompts which are not measured; {NUM_DRAFTED} tokens drafted in every round",
            "accepted: the share of drafted tokens that was accepted while decoding, which is known only afterwards",
            "throughput: against plain decoding that took turns with the set, so that the device's moods cancel",
            "R^2: of a straight line through the points",
            "TPT counts a verification as one pass, as the paper; by its width: as measured for so many tokens",
        ],
        plot if points else None,
    )


_COLUMNS = ["sets", "attention", "MLP", "match", "TPT", "TPT by width", "TPL", "accepted", "speed-up"]


def _points(found: Found, family: str) -> list[Point]:
    points = found.get(f"{family} {TASK}", "points") or []
    return [point for point in points if point["speedup"] is not None]


def _summary(points: Sequence[Point]) -> list[list[str]]:
    rows = []
    for predictor, title in PREDICTORS.items() if points else ():
        r = _of(points, predictor)
        rows.append([title, number(r, ".2f"), number(None if r is None else r * r, ".2f"), f"{len(points)}"])
    return rows


def _row(family: str, point: Point) -> list[str]:
    speeds = [f"{point['tokens_per_time']:.2f}", f"{point['by_width']:.2f}", f"{point['tokens_per_layer']:.4f}"]
    reached = [number(point["accepted"], ".1%"), times(point["speedup"])]
    return [family, f"{point['attention']}", f"{point['mlp']}", f"{point['acceptance']:.1%}", *speeds, *reached]


def _chart(families: Mapping[str, Sequence[Point]]) -> Panels:
    points = [point for some in families.values() for point in some]
    panels = [
        Scatter(
            [Group(name, [(one[predictor], one["speedup"]) for one in some]) for name, some in families.items()],
            label,
            "measured speed-up",
            title=f"r = {number(_of(points, predictor), '.2f')}",
        )
        for predictor, label in PREDICTORS.items()
    ]
    return Panels(panels, share_y=True)
