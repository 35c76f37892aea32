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
from ...measure.records import Record
from ...measure.result import Arm, Result
from ...prompts.arrange import is_context
from ...registry import DEFAULTS
from ...types import SkipSet
from ..advice import best_of_ours, sure_side
from ..charts.bars import Bar, BarColumn, StackedBars
from ..charts.lines import Band, Lines, Series
from ..charts.panels import Drawing, Panels, Stack, render
from ..charts.scatter import Group, Names, Point, Scatter
from ..charts.skip_chart import SkipStrips, Strip
from ..tables import interval, times

LEAST_SPREAD = 4.0
"""Texts whose lengths differ by less than this factor say nothing about length."""
LEAST_IN_BIN, LEAST_IN_STREAM = 2, 3
MAX_LINES, MAX_WITH_DOTS = 6, 3
"""More methods cannot be told apart as lines of one chart; single texts are shown of fewer still."""


@dataclass(frozen=True)
class Chart:
    """A drawing and the words around it; `draw` None: there is nothing to draw, and `text` says why."""

    title: str
    text: str  # how to read it
    alt: str = ""  # what is in it, for who cannot see it
    size: tuple[float, float] = (9.6, 4.8)  # inches
    draw: Drawing | None = None


def charts_of(result: Result) -> dict[str, Chart]:
    return {name: make(result) for name, make in CHARTS.items()}


def pictures(charts: Mapping[str, Chart]) -> dict[str, bytes]:
    """PNGs for paper and README."""
    return {name: render(chart.draw, chart.size) for name, chart in charts.items() if chart.draw}


# ------------------------------------------------------------------------------------------------ what is drawn


def rows(result: Result) -> list[tuple[Arm, Figures]]:
    """Arms with their total, the fastest first, plain decoding left out."""
    return [(arm, arm.total) for arm in result.measured if arm.total is not None]


def usual_domains(result: Result) -> list[str]:
    """Without prompts that were made long, where there are others."""
    found = list(result.prompts_of)
    return [domain for domain in found if not is_context(domain)] or found


def texts(result: Result, name: str) -> list[Record]:
    """Of an arm, in the order of the run."""
    return [one for one in result.all_of.records if one.arm == name]


def few_arms(result: Result) -> tuple[list[Arm], str]:
    """For lines: the best, the default, those that learn most on the way, then the fastest; (what is left out)."""
    arms = [arm for arm in result.measured if arm.kind != "control"]
    default = [arm for arm in arms if arm.kind == "ours" and {**DEFAULTS, **arm.method}.items() >= DEFAULTS.items()]
    learning = sorted(filter(_learning, arms), key=lambda arm: -_learning(arm))
    wanted = [*filter(None, [best_of_ours(result)]), *default, *learning[:3], *arms]
    names = list(dict.fromkeys(arm.name for arm in wanted))[:MAX_LINES]
    others = "; ".join(arm.name for arm in result.measured if arm.name not in names)
    left_out = f" Left out, so that lines can be told apart: {others}." if others else ""
    return [arm for arm in arms if arm.name in names], left_out


def _learning(arm: Arm) -> float:
    """The share of its time, where it is one."""
    share = (arm.total.split["optimise"] if arm.total else None) or 0.0
    return share if share > 0.005 else 0.0


def _quantity(arm: Arm) -> Quantity:
    """The speed of decoding; where that is not known, of whole calls."""
    return call_speed if arm.total is not None and arm.total.is_of_calls else speed


# ------------------------------------------------------------------------------------------------ speed-up


def speedup(result: Result) -> Chart:
    shown = [(arm, total) for arm, total in rows(result) if total.shown_speedup]
    if not shown:
        return Chart("Speed-up", "Not drawn: nothing but plain decoding was measured.")
    domains = usual_domains(result) if len(usual_domains(result)) > 1 else []
    best, total = shown[0]
    return Chart(
        "Speed-up",
        "Of decoding against plain decoding of the same prompts (dashed: 1.0), fastest method first; lines through the "
        "ends of bars: 95 % intervals by bootstrap over prompts. Of peers (grey) only whole calls are known.",
        f"Bars of speed-up for {len(shown)} methods, over all texts and in {len(domains)} domains. Fastest over all: "
        f"{best.name}, {interval(total.shown_speedup)}.",
        (5.0 + 1.12 * len(domains), 1.25 + 0.285 * len(shown)),
        _speedup_drawing(shown, domains),
    )


def _speedup_drawing(shown: Sequence[tuple[Arm, Figures]], domains: Sequence[str]) -> Panels:
    columns = {"all texts": [_bar(arm, total, is_whole=True) for arm, total in shown]}
    columns |= {domain: [_bar(arm, arm.domains.get(domain)) for arm, _ in shown] for domain in domains}
    known = [bar.number for bars in columns.values() for bar in bars if bar and isinstance(bar.number, Estimate)]
    wholes = [total.shown_speedup.high for _, total in shown if total.shown_speedup]
    longest = max(1.1 * max(one.value for one in known), *wholes, 1.2)  # intervals of few texts may be longer
    legend = {"faster": "faster than plain decoding", "unsure": "inconclusive", "slower": "slower"}
    others = {"peer": "peer, whole calls", "bound": "bound: knows the text"}
    legend |= {kind: label for kind, label in others.items() if any(arm.kind == kind for arm, _ in shown)}
    names = [arm.name for arm, _ in shown]
    panels = [
        BarColumn(names, bars, longest, 0.62 if place else 0.5, legend, textwrap.fill(name.replace("_", " "), 13))
        for place, (name, bars) in enumerate(columns.items())
    ]
    return Panels(panels, widths=[2.7, *[1.12] * len(domains)], share_y=True)


def _bar(arm: Arm, cell: Figures | None, is_whole: bool = False) -> Bar | None:
    if cell is None:
        return None
    role = {"bound": "bound", "peer": "peer", "control": "unsure"}.get(arm.kind) or sure_side(cell)
    return Bar(cell.shown_speedup, role, interval(cell.shown_speedup) if is_whole else "")


# ------------------------------------------------------------------------------------------------ cost


Costed = Sequence[tuple[Arm, Figures, Point]]
"""Arms with (cost, acceptance)."""


def cost(result: Result) -> Chart:
    title = "Acceptance against cost"
    known = [(arm, total, total.cost, total.acceptance_rate) for arm, total in rows(result)]
    shown = [(arm, total, (x, y)) for arm, total, x, y in known if x is not None and y is not None]
    if not shown:
        return Chart(title, "Not drawn: no method drafted anything.")
    points = [one for one in result.all_of.machine.frontier or () if one.get("match") is not None]
    frontier = sorted((float(one["cost"]), float(one["match"])) for one in points)
    length = float(np.median([total.mean_generated_length or 1.0 for _, total, _ in shown]))
    line = " The line is the frontier that prune found: of all its skip sets, the best match at each cost."
    told = (f"{arm.name} cost {x:.2f}, accepted {y:.0%}" for arm, _, (x, y) in shown)
    return Chart(
        title,
        "Up and to the left is better. Cost: seconds of a drafted token over those of a plain pass. Lines below the "
        f"points: the speed-up to expect of rounds of {length:.1f} tokens, the median here.{line if frontier else ''}",
        f"{len(shown)} methods by the cost of a drafted token and the share of drafted tokens accepted: "
        + "; ".join(told),
        (9.6, max(5.4, 0.19 * len(shown) + 1.0)),
        _cost_drawing(shown, frontier, length),
    )


def _cost_drawing(shown: Costed, frontier: Sequence[Point], length: float) -> Stack:
    """Points are numbered, and named beside the panel."""
    groups = []
    for is_bound, name in ((False, "selfdraft"), (True, "bound: knows the text")):
        own = [
            (str(place), point) for place, (arm, _, point) in enumerate(shown, 1) if is_bound == (arm.kind == "bound")
        ]
        look = "outline" if is_bound else "full"
        groups += [Group(name, [point for _, point in own], [label for label, _ in own], look=look)] if own else []
    every = [*(point for *_, point in shown), *frontier]
    left, right = min(0.7, *(x for x, _ in every)), max(1.0, *(x for x, _ in every))
    panel = Scatter(
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
    speeds = [times(total.shown_speedup.value if total.shown_speedup else None) for _, total, _ in shown]
    names = Names([(arm.name, times) for (arm, *_), times in zip(shown, speeds, strict=True)])
    return Stack([panel, names], [1.0, 0.62], is_row=True)


# ------------------------------------------------------------------------------------------------ parts, skip sets


def split(result: Result) -> Chart:
    title = "Where the time goes"
    shown = [(arm.name, total.split) for arm, total in rows(result) if None not in total.split.values()]
    if not shown:
        return Chart(title, "Not drawn: no method says how its time is spent; of peers only whole calls are known.")
    parts = {part: [max(0.0, split[part] or 0.0) for _, split in shown] for part in PARTS}
    told = (f"{name} " + ", ".join(f"{part} {split[part]:.0%}" for part in PARTS) for name, split in shown)
    return Chart(
        title,
        "Shares of decoding, fastest method first. Optimise: searching and planning what to skip; other: what stands "
        "between the passes.",
        f"Bars of the time spent: {'; '.join(told)}.",
        (9.6, 1.1 + 0.27 * len(shown)),
        StackedBars([name for name, _ in shown], parts, unit="%"),
    )


def skips(result: Result) -> Chart:
    title, num_layers = "Which sub-layers draft", result.all_of.machine.num_layers
    used = most_used(result.measured, num_layers)
    if not used:
        return Chart(title, "Not drawn: no method skipped anything.")
    counts = {skip: f"{len(skip.attention)} attention, {len(skip.mlp)} MLP skipped" for skip in used}
    told = (f"{' and '.join(shares)}: {counts[skip]}" for skip, shares in used.items())
    names = {skip: textwrap.fill("; ".join(shares), 34, max_lines=2, placeholder=" …") for skip, shares in used.items()}
    strips = [Strip(skip, names[skip], f"{counts[skip]}\n{_use(shares)}") for skip, shares in used.items()]
    return Chart(
        title,
        "The skip set that each method used most; methods that share one stand together. Attention above, MLP below, "
        "pale where skipped.",
        "Skip sets by method: " + "; ".join(told),
        (11.0, 0.95 + 0.5 * len(used)),
        SkipStrips(strips, num_layers),
    )


Shares = dict[str, float]
"""Of the draft passes of each method that used a set."""


def most_used(arms: Sequence[Arm], num_layers: int) -> dict[SkipSet, Shares]:
    """Sets of the fastest method first. One that cannot be read, or is of another model, is left out."""
    found: dict[SkipSet, Shares] = {}
    for arm in arms:
        first = next((one for one in arm.skips if one["skip"] and one["share"] is not None), None)
        if first is not None:
            with contextlib.suppress(OptionError):
                skip = SkipSet.parse(first["skip"])
                skip.check(num_layers)
                found.setdefault(skip, {})[arm.name] = first["share"]
    return found


def _use(shares: Shares) -> str:
    low, high = f"{min(shares.values()):.0%}", f"{max(shares.values()):.0%}"
    methods = f" of {len(shares)} methods" if len(shares) > 1 else ""
    return f"in {high if low == high else f'{low} to {high}'} of the draft passes{methods}"


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
        shift = 0.05 * (number - (len(arms) - 1) / 2)
        between = [_between(result, arm, low, high) for low, high in pairwise(edges)]
        series.append(Series(arm.name, [(place + shift, found) for place, found in enumerate(between)]))
    names = [f"{_k(low)} to {_k(high)}\n{_count(lengths, low, high)} texts" for low, high in pairwise(edges)]
    limits, ticks = (-0.3, len(names) - 0.7), {float(place): name for place, name in enumerate(names)}
    return Chart(
        title,
        "Texts by the tokens of their prompt; the number of texts stands below. Lines at the points: 95 % intervals."
        + left_out,
        f"Speed-up of {'; '.join(arm.name for arm in arms)} for prompts of {shortest} to {longest} tokens.",
        draw=Lines(series, "tokens of the prompt", "speed-up", "x", baseline=1.0, ticks=ticks, x_limits=limits),
    )


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


def _k(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def _between(result: Result, arm: Arm, low: int, high: int) -> Estimate | None:
    own = [record for record in texts(result, arm.name) if low <= record.num_prompt_tokens < high]
    return ratio(own, result.plain, _quantity(arm), result.all_of.seed)


# ------------------------------------------------------------------------------------------------ along the run


def stream(result: Result) -> Chart:
    title, domains = "Speed-up along the stream", usual_domains(result)
    plain = [record for record in result.plain if record.domain in domains]
    if len(plain) < LEAST_IN_STREAM or not result.measured:
        return Chart(title, f"Not drawn: too few texts to show a course, {len(plain)}.")
    arms, left_out = few_arms(result)
    courses = [_course(plain, texts(result, arm.name), _quantity(arm)) for arm in arms]
    series = [Series(arm.name, so_far) for arm, (so_far, _) in zip(arms, courses, strict=True)]
    if has_dots := len(arms) <= MAX_WITH_DOTS:
        series += [Series("", single, "dots", place) for place, (_, single) in enumerate(courses)]
    bands = [Band(name, first - 0.5, last + 0.5) for name, first, last in domain_stretches(plain)]
    mixed = "The texts of all domains are mixed, so there are no bands."
    order = "Bands: the domain of the texts, task by task." if bands else mixed
    dots = " Dots: single texts." if has_dots else ""
    labels, limits = ("text of the run", "speed-up of all texts so far", "x"), (0.5, len(plain) + 0.5)
    return Chart(
        title,
        f"Of all texts so far, in the order they were decoded. {order}{dots}{left_out}",
        f"Running speed-up over {len(plain)} texts of {'; '.join(arm.name for arm in arms)}.",
        draw=Lines(series, *labels, baseline=1.0, bands=bands, x_limits=limits),
    )


def domain_stretches(records: Sequence[Record]) -> list[tuple[str, int, int]]:
    """(domain, first, last) text, from 1; none where domains come again: the stream is mixed."""
    found, place = [], 1
    for domain, group in groupby(records, key=lambda record: record.domain):
        count = len(list(group))
        found.append((domain, place, place + count - 1))
        place += count
    return found if 1 < len(found) == len({domain for domain, *_ in found}) else []


Course = list[tuple[float, float]]
"""(number of the text from 1, speed-up)."""


def _course(plain: Sequence[Record], own: Sequence[Record], quantity: Quantity) -> tuple[Course, Course]:
    """Of all texts so far, and of each alone."""
    places = {record.text: place for place, record in enumerate(plain, start=1)}
    both = [(places[one.text], quantity(one), quantity(other)) for one, other in pair(own, plain)]
    known = np.array(
        [(place, *mine, *theirs) for place, mine, theirs in both if mine and theirs and all(mine + theirs)]
    ).reshape(-1, 5)
    courses = []
    for tokens, seconds, plain_tokens, plain_seconds in (known[:, 1:].cumsum(0).T, known[:, 1:].T):
        speeds = (tokens / seconds) / (plain_tokens / plain_seconds)
        courses.append(list(zip(known[:, 0].tolist(), speeds.tolist(), strict=True)))
    return courses[0], courses[1]


CHARTS: Mapping[str, Callable[[Result], Chart]] = {
    make.__name__: make for make in (speedup, cost, split, skips, length, stream)
}
