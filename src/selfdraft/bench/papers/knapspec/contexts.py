"""Speed-up and tokens per time against the length of the text: articles one behind the other, then a question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...charts import Lines, Panels, Series
from ...long_prompts import context_prompts
from ...prompts import BenchPrompt
from ...report import Table, number
from ...selection.contexts import weights_at
from ...ways import OFF
from ..cells import NOT_MEASURED, figure, figure_cell, pays, speed, speed_cell, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Tasks
from ..workbench import Workbench
from .methods import (
    CLASP,
    FRUGAL,
    HELD_AGAINST,
    KNAPSPEC,
    SWIFT,
    SWIFT_NOTE,
    TPT_NOTE,
    against_others,
    methods_of,
    share_cell,
)
from .shared import References, always, best_of, compare, num_looked_at, num_prompts

LENGTHS, QUICK_LENGTHS = (1024, 2048, 4096, 8192, 16384), (256, 512, 1024)
ARTICLES = "cnn-dm"
QUESTION = "Summarise the texts above, one sentence for each."
MAX_PROMPTS = 4
"""Of one length."""
OWN, OTHERS = KNAPSPEC, "others"
"""Which ways a unit measures."""
SKIPPED = ["attention skipped", "MLP skipped"]
ALWAYS = "KnapSpec, always"
"""The best set of the knapsack behind a text of that length; it drafts whether it pays or not, as the paper's code."""
WAYS = (OFF, KNAPSPEC, ALWAYS, FRUGAL, CLASP, SWIFT)


def units(bench: Workbench) -> Iterable[Unit]:
    """Two for each length, each beside plain decoding: KnapSpec, and those it is held against."""
    lengths = QUICK_LENGTHS if bench.scale.is_quick else LENGTHS
    own = [KNAPSPEC] if bench.scale.is_quick else [KNAPSPEC, FRUGAL]
    articles = _articles(bench)
    reasons = {length: _why_not(bench, articles, length) for length in lengths}
    for group, names in ((OWN, own), (OTHERS, [CLASP, SWIFT])):
        for length in (length for length in lengths if reasons[length] is None):
            yield Unit(f"{length} {group}", partial(_measure, bench, articles, length, names))
    for length, reason in reasons.items():
        if reason is not None:
            yield Unit(f"{length}", missing=reason)


def _articles(bench: Workbench) -> Sequence[BenchPrompt]:
    task = Tasks(bench.prompts, len(bench.prompts), 0, bench.seed).find(ARTICLES)
    return task.measured if task else []


def _why_not(bench: Workbench, articles: Sequence[BenchPrompt], length: int) -> str | None:
    limit = bench.engine.context_length
    if limit is not None and length > limit:
        return f"the model's context holds {limit} tokens"
    return None if articles else bench.tasks.why_missing(ARTICLES)


def _measure(bench: Workbench, articles: Sequence[BenchPrompt], length: int, names: Sequence[str]) -> Values:
    *prompts, other = long_questions(bench, articles, length - bench.scale.tokens)
    methods = {**methods_of(bench.scale, *names)}
    if KNAPSPEC in names:
        best = best_of(References(bench, [other], num_looked_at(bench.scale)).networks())
        methods |= {ALWAYS: always(best.skip)} if best else {}
    ways = compare(bench, methods, prompts)
    return {**ways, "weights": dict(weights_at(bench.latency, length))}


def long_questions(bench: Workbench, articles: Sequence[BenchPrompt], length: int) -> list[BenchPrompt]:
    """The same question behind other articles each time, so that the prompt has at most so many tokens.

    One more than is measured.
    """
    count = min(bench.scale.prompts, MAX_PROMPTS) + 1
    found = []
    for index in range(count):
        start = index * len(articles) // count
        question = BenchPrompt(f"question-{index + 1}", "question", QUESTION)
        around = [question, *articles[start:], *articles[:start]]
        found += context_prompts(around, bench.engine, [length], 1)
    return found


# ---------------------------------------------------------------------------------------------------- the table


def show(found: Found) -> Section:
    lengths = sorted({int(unit.split()[0]) for unit in found.units})
    rows = [row for length in lengths for row in _rows(found, length)]
    columns = ["length", "attention : MLP", "method", "speed-up", "TPT", "tokens/s", "accepted", *SKIPPED, "in the DP"]
    efforts = [
        Effort("lengths", len(lengths), None),
        Effort("longest text, tokens", max(lengths, default=None), None),
        Effort("prompts a length", num_prompts(found), None),
    ]
    return Section([Table("", columns, rows)], efforts, told(_trends(found, lengths)), _notes(found), _plot(found))


def _rows(found: Found, length: int) -> list[list[str]]:
    rows = []
    for way in WAYS:
        unit = _unit(found, length, way)
        if figure(found, unit, way, "tokens_per_second") is None:
            continue
        weights = found.get(unit, "weights") or {}
        cells = [figure_cell(found, unit, way, "tokens_per_time"), figure_cell(found, unit, way, "tokens_per_second")]
        shares = ("acceptance_rate", "skipped_attention", "skipped_mlp")
        rows.append(
            [
                f"{length}",
                f"{number(weights.get('attention'), 'd')} : {number(weights.get('mlp'), 'd')}",
                "AR" if way == OFF else way,
                speed_cell(found, unit, way),
                *cells,
                *(figure_cell(found, unit, way, share, ".0%") for share in shares),
                "-" if way in (OFF, SWIFT, ALWAYS) else share_cell(found, unit, way),
            ]
        )
    return rows


def _unit(found: Found, length: int, way: str) -> str:
    """Plain decoding is part of both."""
    groups = {OFF: (OWN, OTHERS), CLASP: (OTHERS,), SWIFT: (OTHERS,)}.get(way, (OWN,))
    names = [f"{length} {group}" for group in groups]
    return next((name for name in names if name in found.units), names[0])


def _trends(found: Found, lengths: Sequence[int]) -> list[Trend]:
    trends = []
    for length in lengths:
        where, units = f"behind {length} tokens", {way: _unit(found, length, way) for way in HELD_AGAINST}
        trends += against_others(found, units, where)
        claim = f"where it must draft, KnapSpec is faster than plain decoding {where}"
        trends.append(pays(claim, found, _unit(found, length, ALWAYS), ALWAYS))
    return [*trends, _collapses(found, lengths)]


def _collapses(found: Found, lengths: Sequence[int]) -> Trend:
    """Judged behind the longest text."""
    known = [length for length in lengths if speed(found, _unit(found, length, SWIFT), SWIFT)]
    claim = "SWIFT, which knows nothing of lengths, is slower than plain decoding behind the longest texts"
    if not known:
        return Trend(claim, None, NOT_MEASURED)
    trend = pays(claim, found, _unit(found, known[-1], SWIFT), SWIFT)
    holds = None if trend.holds is None else not trend.holds
    return Trend(claim, holds, f"behind {known[-1]} tokens {trend.because}")


def _notes(found: Found) -> list[str]:
    shorter = [f"at quick scale texts have {', '.join(map(str, QUICK_LENGTHS))} tokens"]
    return [
        TPT_NOTE,
        SWIFT_NOTE,
        f"{ALWAYS}: the knapsack's best set behind another text of that length; it drafts whether it pays or not, as "
        "the paper's code does; KnapSpec itself may choose not to draft",
        "a length counts the new tokens; articles stand one behind the other, cut to it, and a question behind them",
        "attention : MLP are the whole numbers that the knapsack weighs sub-layers with behind so many tokens",
        *(shorter if found.scale.get("is_quick") else []),
    ]


# ---------------------------------------------------------------------------------------------------- the figure


def _plot(found: Found) -> Plot | None:
    lengths = sorted({int(unit.split()[0]) for unit in found.units})
    if not lengths:
        return None
    return Plot(_chart(found, lengths), "speed-up and tokens per time by length of the text")


def _chart(found: Found, lengths: Sequence[int]) -> Panels:
    ticks = {float(length): str(length) for length in lengths}
    panels = [
        Lines([_series(found, lengths, way, name) for way in WAYS], "tokens of the text", label, log="x", ticks=ticks)
        for name, label in (("speedup", "speed-up"), ("tokens_per_time", "TPT (tokens/s)"))
    ]
    return Panels(panels)


def _series(found: Found, lengths: Sequence[int], way: str, name: str) -> Series:
    points = [(length, _value(found, length, way, name)) for length in lengths]
    return Series("plain decoding", points, "dashed") if way == OFF else Series(way, points)


def _value(found: Found, length: int, way: str, name: str) -> float | None:
    unit = _unit(found, length, way)
    value = figure(found, unit, way, name)
    known: float | None = value.get("value") if isinstance(value, Mapping) else value
    return known
