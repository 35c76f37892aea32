"""The charts of a result, by the names of their files: what is drawn, and the words around it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np

from ...errors import OptionError
from ...measure.estimate import Estimate
from ...measure.figures import PARTS, Figures
from ...measure.records import Record
from ...measure.result import Arm, Result
from ...types import SkipSet
from ..advice import is_surely_faster, is_surely_slower
from ..charts import (
    Band,
    Bar,
    BarTable,
    Chart,
    Group,
    Lines,
    Missing,
    Names,
    Panel,
    Scatter,
    Series,
    SkipStrips,
    Stack,
    StackedBars,
    Strip,
    render,
    short,
)
from ..tables import interval, times
from .choice import few_arms, left_out, plain_texts, rows, running_speedups, speedup_of, texts, usual_domains

Point = tuple[float, float]
LEAST_SPREAD = 4.0
"""Texts whose lengths differ by less than this factor say nothing about length."""
LEAST_IN_BIN, LEAST_IN_STREAM = 2, 3
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
    return Bar(cell.shown_speedup, _role(arm, cell), interval(cell.shown_speedup) if is_whole else "")


def _role(arm: Arm, cell: Figures) -> str:
    if arm.kind in ("bound", "peer"):
        return arm.kind
    if arm.kind != "control" and is_surely_faster(cell):
        return "faster"
    return "slower" if arm.kind != "control" and is_surely_slower(cell) else "unsure"


def _legend(shown: Sequence[tuple[Arm, Figures]]) -> dict[str, str]:
    kinds = {arm.kind for arm, _ in shown}
    named = {"faster": "faster than plain decoding", "unsure": "inconclusive", "slower": "slower"}
    others = {"peer": "peer, whole calls", "bound": "bound: knows the text"}
    return named | {kind: label for kind, label in others.items() if kind in kinds}


# ------------------------------------------------------------------------------------------------ cost


def cost(result: Result) -> Chart | Missing:
    title = "Acceptance against cost"
    points = {arm.name: point for arm, total in rows(result) if (point := _point(total)) is not None}
    shown = [(arm, total) for arm, total in rows(result) if arm.name in points]
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


def _point(total: Figures) -> Point | None:
    price, alpha = total.cost, total.acceptance_rate
    return None if price is None or alpha is None else (price, alpha)


def _cost_drawing(
    shown: Sequence[tuple[Arm, Figures]],
    points: Mapping[str, tuple[float, float]],
    frontier: Sequence[tuple[float, float]],
    length: float,
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


@dataclass
class Used:
    """One set, and the share of passes that each method made with it."""

    skip: SkipSet
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> str:
        return f"{len(self.skip.attention)} attention, {len(self.skip.mlp)} MLP"


def skips(result: Result) -> Chart | Missing:
    title, num_layers = "Which sub-layers draft", result.all_of.machine.num_layers
    used = most_used(result.measured, num_layers)
    if not used:
        return Missing(title, "no method skipped anything")
    return Chart(
        title=title,
        text="The skip set that each method used most; methods that share one stand together. Attention above, MLP "
        "below, pale where skipped.",
        alt="Skip sets by method: " + "; ".join(f"{' and '.join(one.shares)}: {one.counts} skipped" for one in used),
        size=(11.0, 0.95 + 0.5 * len(used)),
        draw=SkipStrips([Strip(one.skip, _names(list(one.shares)), _facts(one)) for one in used], num_layers),
    )


def most_used(arms: Sequence[Arm], num_layers: int) -> list[Used]:
    """Sets of the fastest method first. One that cannot be read, or is of another model, is left out."""
    found: dict[SkipSet, Used] = {}
    for arm in arms:
        first = next((one for one in arm.skips if one["skip"] and one["share"] is not None), None)
        if first is None:
            continue
        try:
            skip = SkipSet.parse(first["skip"])
            skip.check(num_layers)
        except OptionError:
            continue
        found.setdefault(skip, Used(skip)).shares[arm.name] = first["share"]
    return list(found.values())


def _names(names: Sequence[str]) -> str:
    """As many as there is room for."""
    for count in range(len(names), 0, -1):
        more = f" + {len(names) - count} more" if count < len(names) else ""
        lines = textwrap.wrap("; ".join(names[:count]) + more, _NAME_CHARACTERS)
        if len(lines) <= _NAME_LINES:
            return "\n".join(lines)
    lines = textwrap.wrap(names[0], _NAME_CHARACTERS)[:_NAME_LINES]
    return "\n".join(lines) + (f" + {len(names) - 1} more" if names[1:] else "")


def _facts(one: Used) -> str:
    low, high = min(one.shares.values()), max(one.shares.values())
    shares = f"{high:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    return f"{one.counts} skipped\nin {shares} of the draft passes"


# ------------------------------------------------------------------------------------------------ by length


def length(result: Result) -> Chart | Missing:
    title = "Speed-up against context length"
    lengths = [record.num_prompt_tokens for record in plain_texts(result)]
    if not lengths or not result.measured:
        return Missing(title, "nothing but plain decoding was measured" if lengths else "no text was measured")
    shortest, longest, edges = min(lengths), max(lengths), bins(lengths)
    if longest < LEAST_SPREAD * max(shortest, 1) or len(edges) < 3:
        why = f"all prompts are of similar length, {shortest} to {longest} tokens; longer ones are needed as well"
        return Missing(title, why)
    arms, others = few_arms(result)
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
        left_out=left_out(others),
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
    return speedup_of(arm, own, plain_texts(result), result.all_of.seed)


# ------------------------------------------------------------------------------------------------ along the run


def stream(result: Result) -> Chart | Missing:
    title, domains = "Speed-up along the stream", usual_domains(result)
    plain = plain_texts(result, domains)
    if len(plain) < LEAST_IN_STREAM or not result.measured:
        return Missing(title, f"too few texts to show a course, {len(plain)}")
    arms, others = few_arms(result)
    pairs = {arm.name: _pairs(plain, texts(result, arm.name, domains)) for arm in arms}
    lines = [Series(arm.name, course(arm, pairs[arm.name])) for arm in arms]
    dots = [Series("", singles(arm, pairs[arm.name]), "dots", place) for place, arm in enumerate(arms)]
    dots = dots if len(arms) <= MAX_WITH_DOTS else []
    bands = [Band(name, first - 0.5, last + 0.5) for name, first, last in domain_stretches(plain)]
    mixed = "The texts of all domains are mixed, so there are no bands."
    order = "Bands: the domain of the texts, task by task." if bands else mixed
    return Chart(
        title=title,
        text=f"Of all texts so far, in the order they were decoded. {order}{' Dots: single texts.' if dots else ''}",
        alt=f"Running speed-up over {len(plain)} texts of {'; '.join(arm.name for arm in arms)}.",
        left_out=left_out(others),
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


Pair = tuple[int, Record, Record]
"""Number of the text from 1, with this method, plain."""


def _pairs(plain: Sequence[Record], own: Sequence[Record]) -> list[Pair]:
    known = {record.text: (place, record) for place, record in enumerate(plain, start=1)}
    return [(known[one.text][0], one, known[one.text][1]) for one in own if one.text in known]


def course(arm: Arm, pairs: Sequence[Pair]) -> list[tuple[float, float | None]]:
    """(number of the text from 1, speed-up of all so far)."""
    found = running_speedups(arm, [(one, two) for _, one, two in pairs])
    return [(place, value) for (place, *_), value in zip(pairs, found, strict=True)]


def singles(arm: Arm, pairs: Sequence[Pair]) -> list[tuple[float, float | None]]:
    return [(place, running_speedups(arm, [(one, two)])[0]) for place, one, two in pairs]


CHARTS: Mapping[str, Callable[[Result], Chart | Missing]] = {
    "speedup": speedup,
    "cost": cost,
    "split": split,
    "skips": skips,
    "length": length,
    "stream": stream,
}
