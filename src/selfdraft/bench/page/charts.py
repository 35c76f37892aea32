"""The charts of a result, by the names of their files: what is drawn, and the words around it."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from ...errors import OptionError
from ...measure.estimate import Estimate, Quantity, call_speed, pair, ratio, speed
from ...measure.figures import PARTS, Figures
from ...measure.records import OFF, Record
from ...measure.result import Arm, Result
from ...registry import DEFAULTS, DRAFTING
from ...types import SkipSet
from ..advice import INCONCLUSIVE, best_of_ours, control, verdict
from ..charts.bars import Bar, BarColumn, StackedBars
from ..charts.lines import Band, Lines, Series
from ..charts.panels import Drawing, Panels, Stack
from ..charts.scatter import Group, Names, Point, Scatter
from ..charts.skip_chart import SkipStrips, Strip
from ..tables import CELLS, interval

LEAST_SPREAD = 4.0
"""Texts whose lengths differ by less than this factor say nothing about length."""
LEAST_IN_BIN, LEAST_IN_STREAM = 2, 3
MAX_LINES, MAX_WITH_DOTS = 6, 3
"""More methods look alike as lines of one chart; single texts are shown of fewer still."""
_USUAL = {**DEFAULTS, "strategy": DRAFTING}


@dataclass(frozen=True)
class Chart:
    """A drawing and the words around it; `draw` None: there is nothing to draw, and `text` says why."""

    title: str
    text: str  # how to read it
    draw: Drawing | None = None
    size: tuple[float, float] = (9.6, 4.8)  # inches
    alt: str = ""  # what is in it and in no table, for who cannot see it


# ------------------------------------------------------------------------------------------------ what is drawn


def few_arms(result: Result) -> tuple[list[Arm], str]:
    """For lines: the best, what drafts with nothing learned, those that learn most, then the fastest; (left out)."""
    best, arms = best_of_ours(result), [arm for arm in result.measured if arm.kind != "control"]

    def rank(arm: Arm) -> tuple[bool, bool, float]:
        learning = (arm.total.split["optimise"] if arm.total else None) or 0.0
        is_usual = all(arm.method.get(axis, name) == name for axis, name in _USUAL.items())
        return arm is not best, arm.kind != "ours" or not is_usual, -round(learning, 2)

    names = [arm.name for arm in sorted(arms, key=rank)[:MAX_LINES]]
    others = "; ".join(arm.name for arm in result.measured if arm.name not in names)
    left_out = f" Left out, so that lines can be told apart: {others}." if others else ""
    return [arm for arm in arms if arm.name in names], left_out


def course(result: Result, arm: Arm) -> tuple[list[Record], Quantity]:
    """Its records in the order of the run, and the speed that is known of it."""
    return result.all_of.arms[arm.name], call_speed if arm.total and arm.total.is_of_calls else speed


# ------------------------------------------------------------------------------------------------ speed-up


ROLES = {
    "faster": "faster than plain decoding",
    INCONCLUSIVE: INCONCLUSIVE,
    "slower": "slower",
    "peer": "peer, whole calls",
    "bound": "bound: knows the text",
}


def speedup(result: Result) -> Chart:
    shown = [(arm, total) for arm in result.measured if (total := arm.total) and total.shown_speedup]
    if not shown:
        return Chart("Speed-up", "Not drawn: nothing but plain decoding was measured.")
    domains = list(dict.fromkeys(record.domain for record in result.all_of.of(OFF)))
    domains = domains if len(domains) > 1 else []
    return Chart(
        "Speed-up",
        "Of decoding against plain decoding of the same prompts (dashed: 1.0), fastest method first; lines through the "
        "ends of bars: 95 % intervals by bootstrap over prompts. Of peers (grey) only whole calls are known.",
        _speedup_drawing(shown, domains, control(result)[1]),
        (5.0 + 1.12 * len(domains), 1.25 + 0.285 * len(shown)),
    )


def _speedup_drawing(shown: Sequence[tuple[Arm, Figures]], domains: Sequence[str], noise: float) -> Panels:
    columns = {"all texts": [_bar(arm, total, noise, interval(total.shown_speedup)) for arm, total in shown]}
    columns |= {domain: [_bar(arm, arm.domains.get(domain), noise) for arm, _ in shown] for domain in domains}
    every = [bar for bars in columns.values() for bar in bars if bar]
    longest = 1.1 * max(1.1, *(bar.number.value for bar in every if isinstance(bar.number, Estimate)))
    legend = {role: label for role, label in ROLES.items() if role in {bar.role for bar in every}}
    names = [arm.name for arm, _ in shown]
    panels = [
        BarColumn(names, bars, longest, 0.62 if place else 0.5, legend, title=textwrap.fill(name.replace("_", " "), 13))
        for place, (name, bars) in enumerate(columns.items())
    ]
    return Panels(panels, widths=[2.7, *[1.12] * len(domains)], share_y=True)


def _bar(arm: Arm, cell: Figures | None, noise: float, text: str = "") -> Bar | None:
    if cell is None:
        return None
    role = {"bound": "bound", "peer": "peer", "control": INCONCLUSIVE}.get(arm.kind)
    return Bar(cell.shown_speedup, role or verdict(cell.shown_speedup, noise), text)


# ------------------------------------------------------------------------------------------------ cost


def cost(result: Result) -> Chart:
    title = "Acceptance against cost"
    known = [(arm, total, total.cost, total.acceptance_rate) for arm in result.measured if (total := arm.total)]
    shown = [(arm, total, (x, y)) for arm, total, x, y in known if x is not None and y is not None]
    if not shown:
        return Chart(title, "Not drawn: no method drafted anything.")
    points = [one for one in result.all_of.machine.frontier or () if one.get("match") is not None]
    frontier = sorted((float(one["cost"]), float(one["match"])) for one in points)
    length = float(np.median([total.mean_generated_length or 1.0 for _, total, _ in shown]))
    names = Names([(arm.name, CELLS["x"](total)) for arm, total, _ in shown])
    panel = _cost_panel([(arm.kind == "bound", point) for arm, _, point in shown], frontier, length)
    line = " The line is the frontier that prune found: of all its skip sets, the best match at each cost."
    return Chart(
        title,
        "Up and to the left is better. Cost: seconds of a drafted token over those of a plain pass. Lines below the "
        f"points: the speed-up to expect of rounds of {length:.1f} tokens, the median here.{line if frontier else ''}",
        Stack([panel, names], [1.0, 0.62], is_row=True),
        (9.6, max(5.4, 0.19 * len(shown) + 1.0)),
    )


def _cost_panel(shown: Sequence[tuple[bool, Point]], frontier: Sequence[Point], length: float) -> Scatter:
    """Points are numbered; they are named beside the panel."""
    groups = []
    for is_bound, name, look in ((False, "selfdraft", "full"), (True, "bound: knows the text", "outline")):
        own = {str(place): point for place, (kind, point) in enumerate(shown, start=1) if kind == is_bound}
        groups += [Group(name, list(own.values()), list(own), look=look)] if own else []
    every = [*(point for _, point in shown), *frontier]
    left, right = min(0.7, *(x for x, _ in every)), max(1.0, *(x for x, _ in every))
    return Scatter(
        groups,
        "cost of a drafted token (plain pass = 1)",
        "share of drafted tokens accepted",
        unit="%",
        line=frontier,
        line_name="frontier of prune (match)",
        field=lambda costs, alphas: length * alphas[:, None] / np.maximum((length - 1) * costs + alphas[:, None], 1e-9),
        x_limits=(max(0.0, left - 0.08 * (right - left)), right + 0.08 * (right - left)),
        y_limits=(max(0.0, min(0.8, *(y for _, y in every)) - 0.1), 1.0),
    )


# ------------------------------------------------------------------------------------------------ parts, skip sets


def split(result: Result) -> Chart:
    title = "Where the time goes"
    shown = {arm.name: arm.total.split for arm in result.measured if arm.total and arm.total.decode_seconds}
    if not shown:
        return Chart(title, "Not drawn: no method says how its time is spent; of peers only whole calls are known.")
    parts = {part: [max(0.0, split[part] or 0.0) for split in shown.values()] for part in PARTS}
    return Chart(
        title,
        "Shares of decoding, fastest method first. Optimise: searching and planning what to skip; other: what stands "
        "between the passes.",
        StackedBars(list(shown), parts, unit="%"),
        (9.6, 1.1 + 0.27 * len(shown)),
    )


def skips(result: Result) -> Chart:
    title, num_layers = "Which sub-layers draft", result.all_of.machine.num_layers
    used = most_used(result.measured, num_layers)
    if not used:
        return Chart(title, "Not drawn: no method skipped anything.")
    strips, told = [], []
    for skip, shares in used.items():
        counts = f"{len(skip.attention)} attention, {len(skip.mlp)} MLP skipped"
        names = textwrap.fill("; ".join(shares), 34, max_lines=2, placeholder=" …")
        low, high = f"{min(shares.values()):.0%}", f"{max(shares.values()):.0%}"
        use = f"in {high if low == high else f'{low} to {high}'} of the draft passes"
        strips.append(Strip(skip, names, f"{counts}\n{use}{f', {len(shares)} methods' if len(shares) > 1 else ''}"))
        told.append(f"{' and '.join(shares)}: {counts}")
    return Chart(
        title,
        "The skip set that each method used most; methods that share one stand together. Attention above, MLP below, "
        "pale where skipped.",
        SkipStrips(strips, num_layers),
        (11.0, 0.95 + 0.5 * len(used)),
        "Skip sets by method: " + "; ".join(told),
    )


def most_used(arms: Sequence[Arm], num_layers: int) -> dict[SkipSet, dict[str, float]]:
    """Share of the draft passes by method, by set; the fastest first. A set of another model is left out."""
    found: dict[SkipSet, dict[str, float]] = {}
    for arm in arms:
        first = next((one for one in arm.skips if one["skip"] and one["share"] is not None), None)
        if first is not None:
            with contextlib.suppress(OptionError):
                skip = SkipSet.parse(first["skip"])
                skip.check(num_layers)
                found.setdefault(skip, {})[arm.name] = first["share"]
    return found


# ------------------------------------------------------------------------------------------------ by length


def length(result: Result) -> Chart:
    title = "Speed-up against context length"
    lengths = [record.num_prompt_tokens for record in result.plain]
    if not lengths or not result.measured:
        return Chart(title, f"Not drawn: {'nothing but plain decoding' if lengths else 'no text'} was measured.")
    shortest, longest, edges = min(lengths), max(lengths), bins(lengths)
    if longest < LEAST_SPREAD * max(shortest, 1) or len(edges) < 3:
        why = f"all prompts are of similar length, {shortest} to {longest} tokens; longer ones are needed as well"
        return Chart(title, f"Not drawn: {why}.")
    arms, left_out = few_arms(result)
    series = []
    for number, arm in enumerate(arms):
        shift, (records, quantity), found = 0.05 * (number - (len(arms) - 1) / 2), course(result, arm), []
        for place, (low, high) in enumerate(pairwise(edges)):
            own = [record for record in records if low <= record.num_prompt_tokens < high]
            found.append((place + shift, ratio(own, result.plain, quantity, result.all_of.seed)))
        series.append(Series(arm.name, found))
    names = [f"{low} to {high}\n{_count(lengths, low, high)} texts" for low, high in pairwise(edges)]
    ticks, limits = {float(place): name for place, name in enumerate(names)}, (-0.3, len(names) - 0.7)
    text = "Texts by the tokens of their prompt; the number of texts stands below. Lines at the points: 95 % intervals."
    draw = Lines(series, "tokens of the prompt", "speed-up", "x", baseline=1.0, ticks=ticks, x_limits=limits)
    return Chart(title, text + left_out, draw)


def bins(lengths: Sequence[int]) -> list[int]:
    """Edges, powers of two but for the last; between two of them lie at least `LEAST_IN_BIN` lengths."""
    edges, edge, top = [2 ** int(math.log2(max(min(lengths), 1)))], 1, max(lengths) + 1
    while edge < top:
        edge = max(edge, edges[-1]) * 2
        if _count(lengths, edges[-1], edge) >= LEAST_IN_BIN and _count(lengths, edge, top) >= LEAST_IN_BIN:
            edges.append(edge)
    return [*edges, top]


def _count(lengths: Sequence[int], low: int, high: int) -> int:
    return sum(low <= one < high for one in lengths)


# ------------------------------------------------------------------------------------------------ along the run


def stream(result: Result) -> Chart:
    title, plain = "Speed-up along the stream", result.all_of.of(OFF)
    if len(plain) < LEAST_IN_STREAM or not result.measured:
        return Chart(title, f"Not drawn: too few texts to show a course, {len(plain)}.")
    arms, left_out = few_arms(result)
    courses = [course(result, arm) for arm in arms]
    series = [Series(arm.name, running(plain, *own)) for arm, own in zip(arms, courses, strict=True)]
    if has_dots := len(arms) <= MAX_WITH_DOTS:
        series += [Series("", running(plain, *own, is_single=True), "dots", place) for place, own in enumerate(courses)]
    bands = [Band(name, first - 0.5, last + 0.5) for name, first, last in domain_stretches(plain)]
    mixed = "The texts of all domains are mixed, so there are no bands."
    order = "Bands: the domain of the texts, task by task." if bands else mixed
    dots = " Dots: single texts." if has_dots else ""
    labels, limits = ("text of the run", "speed-up of all texts so far", "x"), (0.5, len(plain) + 0.5)
    text = f"Of all texts so far, in the order they were decoded. {order}{dots}{left_out}"
    return Chart(title, text, Lines(series, *labels, baseline=1.0, bands=bands, x_limits=limits))


def domain_stretches(records: Sequence[Record]) -> list[tuple[str, int, int]]:
    """(domain, first, last) text, from 1; none where domains come again: the stream is mixed."""
    found, place = [], 1
    for domain, group in groupby(records, key=lambda record: record.domain):
        count = len(list(group))
        found.append((domain, place, place + count - 1))
        place += count
    return found if 1 < len(found) == len({domain for domain, *_ in found}) else []


def running(
    plain: Sequence[Record], records: Sequence[Record], of: Quantity, is_single: bool = False
) -> list[tuple[float, float]]:
    """(number of the text from 1, speed-up of all texts so far, or of this one)."""
    places, none = {record.text: place for place, record in enumerate(plain, start=1)}, (0.0, 0.0)
    both = [(places[one.text], *(of(one) or none), *(of(other) or none)) for one, other in pair(records, plain)]
    known = np.array([numbers for numbers in both if all(numbers)]).reshape(-1, 5)
    sums = known[:, 1:] if is_single else known[:, 1:].cumsum(0)
    speeds = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
    return list(zip(known[:, 0].tolist(), speeds.tolist(), strict=True))


CHARTS: Mapping[str, Callable[[Result], Chart]] = {
    make.__name__: make for make in (speedup, cost, split, skips, length, stream)
}
