"""The charts of a result, by the names of their files: what is drawn, and the words around it."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from ...errors import OptionError
from ...measure.estimate import Estimate, Quantity, call_speed, ratio, speed
from ...measure.figures import PARTS, Figures
from ...measure.records import OFF, Record
from ...measure.result import Arm, Result
from ...prompts.arrange import is_context
from ...registry import DEFAULTS
from ...types import SkipSet
from ..advice import best_of_ours, sure_side
from ..charts.bars import Bar, BarTable, StackedBars
from ..charts.lines import Band, Lines, Series
from ..charts.panels import Panel, Stack
from ..charts.scatter import Group, Names, Point, Scatter
from ..charts.skip_chart import SkipStrips, Strip
from ..charts.theme import Chart, Missing, render, short
from ..tables import interval, times

LEAST_SPREAD = 4.0
"""Texts whose lengths differ by less than this factor say nothing about length."""
LEAST_IN_BIN, LEAST_IN_STREAM = 2, 3
MAX_LINES = 6
"""More methods cannot be told apart as lines of one chart."""
MAX_NAMED = 9
"""More points are numbered, and named beside the panel."""
MAX_WITH_DOTS = 3
"""Single texts are shown for this number of methods at most."""
_NAME_CHARACTERS, _NAME_LINES = 34, 2


def charts_of(result: Result) -> dict[str, Chart | Missing]:
    return {name: make(result) for name, make in CHARTS.items()}


def pictures(charts: Mapping[str, Chart | Missing]) -> dict[str, bytes]:
    """PNGs for paper and README."""
    return {name: render(chart.draw, chart.size) for name, chart in charts.items() if isinstance(chart, Chart)}


# ------------------------------------------------------------------------------------------------ what is drawn


def rows(result: Result) -> list[tuple[Arm, Figures]]:
    """Arms with their total, the fastest first, plain decoding left out."""
    return [(arm, arm.total) for arm in result.measured if arm.total is not None]


def usual_domains(result: Result) -> list[str]:
    """Without prompts that were made long, where there are others."""
    found = list(result.prompts_of)
    return [domain for domain in found if not is_context(domain)] or found


def texts(result: Result, name: str, domains: Sequence[str] | None = None) -> list[Record]:
    """Of an arm, in the order of the run."""
    return [one for one in result.all_of.records if one.arm == name and (domains is None or one.domain in domains)]


def few_arms(result: Result) -> tuple[list[Arm], str]:
    """For lines: the best, the default, those that learn most on the way, then the fastest; (what is left out)."""
    best, all_of = best_of_ours(result), result.measured
    learning = sorted(filter(_learning, all_of), key=lambda arm: -_learning(arm))
    wanted = [*([best] if best else []), *filter(_is_default, all_of), *learning[:3], *all_of]
    names = list(dict.fromkeys(arm.name for arm in wanted if arm.kind != "control"))[:MAX_LINES]
    others = "; ".join(arm.name for arm in all_of if arm.name not in names)
    left_out = f"Left out, so that lines can be told apart: {others}." if others else ""
    return [arm for arm in all_of if arm.name in names], left_out


def _is_default(arm: Arm) -> bool:
    return arm.kind == "ours" and all(arm.method.get(axis, name) == name for axis, name in DEFAULTS.items())


def _learning(arm: Arm) -> float:
    """The share of its time, where it is one."""
    share = (arm.total.split["optimise"] if arm.total else None) or 0.0
    return share if share > 0.005 else 0.0


def _quantity(arm: Arm) -> Quantity:
    """The speed of decoding; where that is not known, of whole calls."""
    return call_speed if arm.total is not None and arm.total.is_of_calls else speed


# ------------------------------------------------------------------------------------------------ speed-up


def speedup(result: Result) -> Chart | Missing:
    title = "Speed-up"
    shown = [(arm, total) for arm, total in rows(result) if total.shown_speedup is not None]
    if not shown:
        return Missing(title, "nothing but plain decoding was measured")
    domains = usual_domains(result) if len(usual_domains(result)) > 1 else []
    cells = [
        [_bar(arm, total, is_whole=True), *(_bar(arm, arm.domains.get(domain)) for domain in domains)]
        for arm, total in shown
    ]
    best, total = shown[0]
    return Chart(
        title=title,
        text="Of decoding against plain decoding of the same prompts (dashed: 1.0), fastest method first; lines "
        "through the ends of bars: 95 % intervals by bootstrap over prompts. Of peers (grey) only whole calls are "
        "known.",
        alt=f"Bars of speed-up for {len(shown)} methods, over all texts and in {len(domains)} domains. Fastest "
        f"over all: {best.name}, {interval(total.shown_speedup)}.",
        size=(5.0 + 1.12 * len(domains), 1.25 + 0.285 * len(shown)),
        draw=BarTable([arm.name for arm, _ in shown], ["all texts", *domains], cells, _legend(shown)),
    )


def _bar(arm: Arm, cell: Figures | None, is_whole: bool = False) -> Bar | None:
    if cell is None:
        return None
    role = {"bound": "bound", "peer": "peer", "control": "unsure"}.get(arm.kind) or sure_side(cell)
    return Bar(cell.shown_speedup, role, interval(cell.shown_speedup) if is_whole else "")


def _legend(shown: Sequence[tuple[Arm, Figures]]) -> dict[str, str]:
    named = {"faster": "faster than plain decoding", "unsure": "inconclusive", "slower": "slower"}
    others = {"peer": "peer, whole calls", "bound": "bound: knows the text"}
    return named | {kind: label for kind, label in others.items() if any(arm.kind == kind for arm, _ in shown)}


# ------------------------------------------------------------------------------------------------ cost


def cost(result: Result) -> Chart | Missing:
    title = "Acceptance against cost"
    shown, points = [], {}
    for arm, total in rows(result):
        if total.cost is not None and total.acceptance_rate is not None:
            shown.append((arm, total))
            points[arm.name] = total.cost, total.acceptance_rate
    if not shown:
        return Missing(title, "no method drafted anything")
    known = [one for one in result.all_of.machine.frontier or () if one.get("match") is not None]
    frontier = sorted((float(one["cost"]), float(one["match"])) for one in known)
    line = " The line is the frontier that prune found: of all its skip sets, the best match at each cost."
    bounds = [arm.name for arm, _ in shown if arm.kind == "bound"]
    extra = f" Outlined: {'; '.join(bounds)}, a bound that knows the text beforehand." if bounds else ""
    length = float(np.median([total.mean_generated_length or 1.0 for _, total in shown]))
    return Chart(
        title=title,
        text="Up and to the left is better. Cost: seconds of a drafted token over those of a plain pass. Lines below "
        f"the points: the speed-up to expect of rounds of {length:.1f} tokens, the median here."
        + (line if frontier else "")
        + extra,
        alt=f"{len(shown)} methods by the cost of a drafted token and the share of drafted tokens accepted: "
        + "; ".join(f"{name} cost {x:.2f}, accepted {y:.0%}" for name, (x, y) in points.items()),
        size=(9.6, max(5.4, 0.19 * len(shown) + 1.0)),
        draw=_cost_drawing(shown, points, frontier, length),
    )


def _cost_drawing(
    shown: Sequence[tuple[Arm, Figures]], points: Mapping[str, Point], frontier: Sequence[Point], length: float
) -> Panel | Stack:
    is_numbered = len(shown) > MAX_NAMED
    labels = {arm.name: str(place) if is_numbered else short(arm.name) for place, (arm, _) in enumerate(shown, start=1)}
    kinds = {"selfdraft": "full", "bound: knows the text": "outline"}
    groups = [
        Group(name, [points[one] for one in named], [labels[one] for one in named], look=look)
        for name, look in kinds.items()
        if (named := [arm.name for arm, _ in shown if (arm.kind == "bound") == (look == "outline")])
    ]
    every = [*points.values(), *frontier]
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
    if not is_numbered:
        return panel
    speeds = [times(total.shown_speedup.value if total.shown_speedup else None) for _, total in shown]
    return Stack([panel, Names(list(zip(points, speeds, strict=True)))], [1.0, 0.52], is_row=True)


# ------------------------------------------------------------------------------------------------ parts, skip sets


def split(result: Result) -> Chart | Missing:
    title = "Where the time goes"
    shown = [(arm, total) for arm, total in rows(result) if None not in total.split.values()]
    if not shown:
        return Missing(title, "no method says how its time is spent; of peers only whole calls are known")
    parts = {part: [max(0.0, total.split[part] or 0.0) for _, total in shown] for part in PARTS}
    shares = "; ".join(
        f"{arm.name} " + ", ".join(f"{part} {total.split[part]:.0%}" for part in PARTS) for arm, total in shown
    )
    return Chart(
        title=title,
        text="Shares of decoding, fastest method first. Optimise: searching and planning what to skip; other: what "
        "stands between the passes.",
        alt=f"Bars of the time spent: {shares}.",
        size=(9.6, 1.1 + 0.27 * len(shown)),
        draw=StackedBars([arm.name for arm, _ in shown], parts, unit="%"),
    )


Shares = dict[str, float]
"""Of the draft passes of each method that used a set."""


def skips(result: Result) -> Chart | Missing:
    title, num_layers = "Which sub-layers draft", result.all_of.machine.num_layers
    used = most_used(result.measured, num_layers)
    if not used:
        return Missing(title, "no method skipped anything")
    told = [f"{' and '.join(shares)}: {_counts(skip)}" for skip, shares in used.items()]
    strips = [Strip(skip, _names(list(shares)), f"{_counts(skip)}\n{_share(shares)}") for skip, shares in used.items()]
    return Chart(
        title=title,
        text="The skip set that each method used most; methods that share one stand together. Attention above, MLP "
        "below, pale where skipped.",
        alt="Skip sets by method: " + "; ".join(told),
        size=(11.0, 0.95 + 0.5 * len(used)),
        draw=SkipStrips(strips, num_layers),
    )


def most_used(arms: Sequence[Arm], num_layers: int) -> dict[SkipSet, Shares]:
    """Sets of the fastest method first. One that cannot be read, or is of another model, is left out."""
    found: dict[SkipSet, Shares] = {}
    for arm in arms:
        first = next((one for one in arm.skips if one["skip"] and one["share"] is not None), None)
        if first is None:
            continue
        with contextlib.suppress(OptionError):
            skip = SkipSet.parse(first["skip"])
            skip.check(num_layers)
            found.setdefault(skip, {})[arm.name] = first["share"]
    return found


def _counts(skip: SkipSet) -> str:
    return f"{len(skip.attention)} attention, {len(skip.mlp)} MLP skipped"


def _names(names: Sequence[str]) -> str:
    """As many as there is room for."""
    for count in range(len(names), 0, -1):
        more = f" + {len(names) - count} more" if count < len(names) else ""
        lines = textwrap.wrap("; ".join(names[:count]) + more, _NAME_CHARACTERS)
        if len(lines) <= _NAME_LINES:
            return "\n".join(lines)
    lines = textwrap.wrap(names[0], _NAME_CHARACTERS)[:_NAME_LINES]
    return "\n".join(lines) + (f" + {len(names) - 1} more" if names[1:] else "")


def _share(shares: Shares) -> str:
    low, high = f"{min(shares.values()):.0%}", f"{max(shares.values()):.0%}"
    return f"in {high if low == high else f'{low} to {high}'} of the draft passes"


# ------------------------------------------------------------------------------------------------ by length


def length(result: Result) -> Chart | Missing:
    title = "Speed-up against context length"
    lengths = [record.num_prompt_tokens for record in texts(result, OFF)]
    if not lengths or not result.measured:
        return Missing(title, "nothing but plain decoding was measured" if lengths else "no text was measured")
    shortest, longest, edges = min(lengths), max(lengths), bins(lengths)
    if longest < LEAST_SPREAD * max(shortest, 1) or len(edges) < 3:
        why = f"all prompts are of similar length, {shortest} to {longest} tokens; longer ones are needed as well"
        return Missing(title, why)
    arms, left_out = few_arms(result)
    series = [
        Series(arm.name, [
            (place + 0.05 * (number - (len(arms) - 1) / 2), _between(result, arm, low, high))
            for place, (low, high) in enumerate(pairwise(edges))
        ])
        for number, arm in enumerate(arms)
    ]  # fmt: skip
    names = [f"{_k(low)} to {_k(high)}\n{_count(lengths, low, high)} texts" for low, high in pairwise(edges)]
    return Chart(
        title=title,
        text="Texts by the tokens of their prompt; the number of texts stands below. Lines at the points: 95 % "
        "intervals.",
        alt=f"Speed-up of {'; '.join(arm.name for arm in arms)} for prompts of {shortest} to {longest} tokens.",
        left_out=left_out,
        size=(9.6, 4.6),
        draw=Lines(
            series, "tokens of the prompt", "speed-up", "x", baseline=1.0, ticks=dict(enumerate(names)),
            x_limits=(-0.3, len(names) - 0.7), names_at_ends=True,
        ),
    )  # fmt: skip


def bins(lengths: Sequence[int]) -> list[int]:
    """Edges, powers of two but for the last; between two of them lie at least `LEAST_IN_BIN` lengths."""
    edges = [2 ** int(math.log2(max(min(lengths), 1)))]
    top = max(lengths) + 1
    while edges[-1] < top:
        edge = edges[-1] * 2
        while edge < top and _count(lengths, edges[-1], edge) < LEAST_IN_BIN:
            edge *= 2
        edges.append(min(edge, top))
    if len(edges) > 2 and _count(lengths, edges[-2], edges[-1]) < LEAST_IN_BIN:
        del edges[-2]
    return edges


def _count(lengths: Sequence[int], low: int, high: int) -> int:
    return sum(low <= one < high for one in lengths)


def _k(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def _between(result: Result, arm: Arm, low: int, high: int) -> Estimate | None:
    own = [record for record in texts(result, arm.name) if low <= record.num_prompt_tokens < high]
    return ratio(own, texts(result, OFF), _quantity(arm), result.all_of.seed)


# ------------------------------------------------------------------------------------------------ along the run


def stream(result: Result) -> Chart | Missing:
    title, domains = "Speed-up along the stream", usual_domains(result)
    plain = texts(result, OFF, domains)
    if len(plain) < LEAST_IN_STREAM or not result.measured:
        return Missing(title, f"too few texts to show a course, {len(plain)}")
    arms, left_out = few_arms(result)
    courses = [_course(plain, texts(result, arm.name, domains), _quantity(arm)) for arm in arms]
    lines = [Series(arm.name, so_far) for arm, (so_far, _) in zip(arms, courses, strict=True)]
    dots = [Series("", single, "dots", place) for place, (_, single) in enumerate(courses)]
    dots = dots if len(arms) <= MAX_WITH_DOTS else []
    bands = [Band(name, first - 0.5, last + 0.5) for name, first, last in domain_stretches(plain)]
    mixed = "The texts of all domains are mixed, so there are no bands."
    order = "Bands: the domain of the texts, task by task." if bands else mixed
    return Chart(
        title=title,
        text=f"Of all texts so far, in the order they were decoded. {order}{' Dots: single texts.' if dots else ''}",
        alt=f"Running speed-up over {len(plain)} texts of {'; '.join(arm.name for arm in arms)}.",
        left_out=left_out,
        size=(9.6, 4.8),
        draw=Lines(
            [*lines, *dots], "text of the run", "speed-up of all texts so far", "x", baseline=1.0, bands=bands,
            x_limits=(0.5, len(plain) + 0.5), names_at_ends=True,
        ),
    )  # fmt: skip


def domain_stretches(records: Sequence[Record]) -> list[tuple[str, int, int]]:
    """(domain, first, last) text, from 1; none where domains come again: the stream is mixed."""
    found, place = [], 1
    for domain, group in groupby(records, key=lambda record: record.domain):
        count = len(list(group))
        found.append((domain, place, place + count - 1))
        place += count
    return found if 1 < len(found) == len({domain for domain, *_ in found}) else []


Course = list[tuple[float, float | None]]
"""(number of the text from 1, speed-up)."""


def _course(plain: Sequence[Record], own: Sequence[Record], quantity: Quantity) -> tuple[Course, Course]:
    """Of all texts so far, and of each alone."""
    known = {record.text: (place, record) for place, record in enumerate(plain, start=1)}
    so_far, single, sums = Course(), Course(), [0.0] * 4
    for one in own:
        if one.text in known:
            place, other = known[one.text]
            parts = [*(quantity(one) or (0, 0)), *(quantity(other) or (0, 0))]
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
            so_far.append((place, _speedup(sums)))
            single.append((place, _speedup(parts)))
    return so_far, single


def _speedup(parts: Sequence[float]) -> float | None:
    """Of tokens and seconds, then those of plain decoding."""
    return (parts[0] / parts[1]) / (parts[2] / parts[3]) if all(parts) else None


CHARTS: Mapping[str, Callable[[Result], Chart | Missing]] = {
    make.__name__: make for make in (speedup, cost, split, skips, length, stream)
}
