"""Streams of SWIFT (arXiv:2410.06916) that are searched on while they are measured: figures 6 and 8a."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ...measure.estimate import estimate, ratio
from ...measure.figures import PARTS
from ...measure.records import OFF, Record
from ..charts import Lines, Panels, Series, Stack, StackedBars
from ..tables import Table, interval, number
from .claims import Side, faster, is_above, is_below, is_faster, judged_by, speedup
from .experiment import Effort, Experiment, Found, Judgement, Plot, Unit, Values
from .forms import SPEEDUP, Column, by_arm
from .swift_methods import (
    FIRST_TASK,
    OURS,
    PAPER_WINDOW,
    SWIFT,
    Judgements,
    drafted_alike,
    efforts,
    facts,
    swift,
    swift_fit,
)
from .tasks import Task
from .workbench import Methods, Workbench

Where = Callable[[Record], bool]
STREAM, SEARCH = f"stream {FIRST_TASK}", f"search {FIRST_TASK}"
PAPER_TEXTS, QUICK_TEXTS = 1000, 3
SEARCHING = 0.02
"""Of a text's time, from which on it was searched on; counting what became of drafts takes less."""


def stream_units(bench: Workbench, methods: Methods) -> list[Unit]:
    """Methods that search along a stream of one task, twice as many prompts as elsewhere.

    Nothing is fitted beforehand, so no prompt is kept for it. A text must be longer than a window to be searched on.
    """

    def measure(task: Task) -> Values:
        scale, tokens = bench.scale, max(bench.scale.tokens, 2 * PAPER_WINDOW)
        longer = bench.task(task.name, max(QUICK_TEXTS, scale.prompts) if scale.is_quick else 2 * scale.prompts, 1)
        return {**bench.measure(longer or task, methods, tokens=tokens), "tokens": tokens}

    return bench.for_each([FIRST_TASK], measure, "stream ")


def is_searching(record: Record) -> bool:
    return record.optimise_seconds > SEARCHING * (record.decode_seconds or 0.0)


def is_settled(record: Record) -> bool:
    return not is_searching(record)


def on_texts(name: str, where: Callable[[Found], Where]) -> Column:
    """The speed-up on some texts of a stream."""
    return name, lambda found, unit, arm: interval(speedup(found, Side(unit, arm, where=where(found))))


def milliseconds(found: Found, arm: str, part: str) -> float:
    """Of a token of the stream, spent on one part of decoding."""
    figures = found.figures(STREAM, arm)
    return (figures.split[part] or 0.0) * (figures.milliseconds or 0.0) if figures else 0.0


def spent_on(part: str) -> Column:
    return f"{part}, ms a token", lambda found, unit, arm: f"{milliseconds(found, arm, part):.2f}"


def running(found: Found, arms: Iterable[str]) -> Lines:
    """The speed-up of all texts of the stream so far."""

    def until(arm: str, last: int) -> float | None:
        known = speedup(found, Side(STREAM, arm, where=lambda record: record.number <= last))
        return known.value if known else None

    texts = [record.number for record in Side(STREAM, OFF).records(found)]
    series = [Series(arm, [(last + 1, until(arm, last)) for last in texts]) for arm in arms]
    return Lines(series, "text of the stream", "speed-up of all texts so far", "x", baseline=1.0)


# ------------------------------------------------------------------------------------------ 6: along a stream


def timeline_units(bench: Workbench) -> Iterable[Unit]:
    yield from stream_units(bench, {SWIFT: swift(), **({} if bench.scale.is_quick else {OURS: {"strategy": "swift"}})})

    def search(task: Task) -> Values:
        """Matchness of the set in use, step by step of the search that the tables have as well."""
        fitted = swift_fit(bench, task)
        steps, texts = (fitted.values.get(name, ()) for name in ("steps", "texts"))
        rows = [[step["step"], step["best"], step["ratio"]] for step in steps]
        return {"steps": rows, "texts": [text["matchness"] for text in texts], "search": facts(fitted)}

    yield from bench.for_each([FIRST_TASK], search, "search ")


def matchness_table(found: Found) -> Table:
    steps, texts = (found.get(SEARCH, name) or [] for name in ("steps", "texts"))
    rows = [[f"step {step}, r {skipped}", number(best, ".2f")] for step, best, skipped in (*steps[:1], *steps[-1:])]
    rows[1:1] = [["after the first text", number(texts[0], ".2f")]] if texts else []
    return Table("matchness of the set in use", ["", SWIFT], rows)


def timeline_claims(found: Found) -> Judgements:
    during = Side(STREAM, SWIFT, label="while it searches", where=is_searching)
    after = replace(during, label="after its search", where=is_settled)
    yield is_faster("SWIFT is faster after its search than while it searches", found, after, during)
    records = Side(STREAM, SWIFT).records(found)
    drafting = estimate(records, lambda record: (record.draft_seconds, record.verify_seconds), 0)
    yield is_above("drafting takes more time than verifying", drafting, 1.0, "drafting over verifying", unit="x")
    text = f"optimisation takes less than 1 % of the time over {PAPER_TEXTS} texts"
    judgement = is_below(text, estimate(records, partial(percent, len(records)), 0), 1.0, "optimisation", unit=" %")
    is_over = bool(records) and is_settled(records[-1])
    yield judgement if is_over or not judgement else Judgement(text, None, "the search was not over")


def percent(num_texts: int, record: Record) -> tuple[float, float]:
    """Optimisation in percent of the rest: a search takes its seconds, however long the stream is."""
    rest = (record.decode_seconds or 0.0) - record.optimise_seconds
    return 100 * record.optimise_seconds, PAPER_TEXTS / num_texts * rest


def timeline_chart(found: Found) -> Plot | None:
    arms = [arm for arm in (SWIFT, OURS) if found.figures(STREAM, arm)]
    course = [Series("SWIFT's set in use", [(step, best) for step, best, _ in found.get(SEARCH, "steps") or ()])]
    matchness = Lines(course, "step of the search", "matchness", y_limits=(0.0, 1.02))
    parts = {part: [milliseconds(found, arm, part) for arm in arms] for part in PARTS}
    below = StackedBars(arms, parts, "milliseconds of a token")
    drawing = Stack([Panels([running(found, arms), matchness]), below], (2.2, 1))
    alt = "Speed-up along the stream, matchness along the search, time by part."
    return Plot(drawing, alt, (10, 6.4)) if arms else None


SEARCHED = [on_texts("while it searches", lambda found: is_searching), on_texts("after", lambda found: is_settled)]
FIGURE_6 = Experiment(
    "figure-6",
    "along a stream, and where the time goes",
    timeline_units,
    [by_arm([*SEARCHED, SPEEDUP, *map(spent_on, PARTS)], {SWIFT: SWIFT, OURS: OURS}, first=""), matchness_table],
    [faster("SWIFT is faster than plain decoding over the whole stream", SWIFT), judged_by(timeline_claims)],
    efforts(prompts=PAPER_TEXTS),
    [
        f"{OURS}: candidates are judged by tokens they were not chosen by, for a twentieth of the time at most",
        "matchness is that of the search on other prompts that comes before the tables; by the paper's rules it cannot "
        "fall. r falls while too few drafts are accepted",
    ],
    timeline_chart,
)

# ------------------------------------------------------------------------------------------ 8a: options of the search

USUAL, FEWER, SELDOM = "S, interval", "half of S", "twice the interval"
NOT_REACHED = "the option had no effect: the search never got that far"
DRAFTED_ALIKE = "the option had no effect on the drafts: both drafted with the same sets"


def options_of(is_quick: bool) -> dict[str, dict[str, int]]:
    """At the quick scale both are smaller, as there are few steps."""
    steps, every = (16, 4) if is_quick else (1000, 25)
    pairs = {USUAL: (steps, every), FEWER: (steps // 2, every), SELDOM: (steps, 2 * every)}
    return {arm: {"max_steps": most, "interval": between} for arm, (most, between) in pairs.items()}


def most_steps(found: Found) -> int:
    return options_of(bool(found.scale.get("is_quick")))[USUAL]["max_steps"]


def option_units(bench: Workbench) -> Iterable[Unit]:
    return stream_units(bench, {arm: swift(**options) for arm, options in options_of(bench.scale.is_quick).items()})


def halves(found: Found) -> tuple[Where, Where]:
    middle = (len(Side(STREAM, USUAL).records(found)) + 1) // 2
    return lambda record: record.number < middle, lambda record: record.number >= middle


def option_claims(found: Found) -> Judgements:
    """An option that changed nothing is not judged: chance alone would make one faster."""
    usual, fewer, seldom = (Side(STREAM, arm) for arm in (USUAL, FEWER, SELDOM))
    (first, last), ended = halves(found), [is_settled(record) for record in fewer.records(found)]
    never = NOT_REACHED if drafted_alike(found, usual, fewer) and not any(ended[-1:]) else None
    alike = DRAFTED_ALIKE if drafted_alike(found, usual, seldom) else None
    for text, one, other, where, reason in (
        ("with half of S the beginning of the stream is faster", fewer, usual, first, never),
        ("with the whole S its end is faster", usual, fewer, last, never),
        ("with twice the interval the beginning is faster", seldom, usual, first, alike),
    ):
        judgement = is_faster(text, found, replace(one, where=where), replace(other, where=where))
        yield Judgement(text, None, reason) if judgement and reason else judgement
    # What suggestions take shows even where none of them drafts; one search may be over sooner, by chance.
    more, less = (replace(side, where=is_searching).records(found) for side in (usual, seldom))
    dearer = ratio(more, less, lambda record: (record.optimise_seconds, record.num_tokens), 0)
    yield is_above("a longer interval makes optimisation cheaper", dearer, 1.0, "usual over twice", unit="x")


def half(name: str, place: int) -> Column:
    return on_texts(f"{name} half", lambda found: halves(found)[place])


HALVES = [half("first", 0), half("second", 1)]
OPTIONS = {arm: arm for arm in (USUAL, FEWER, SELDOM)}
FIGURE_8A = Experiment(
    "figure-8a",
    "most steps S and Bayesian interval",
    option_units,
    [by_arm([*HALVES, SPEEDUP, spent_on("optimise")], OPTIONS, first="")],
    [judged_by(option_claims)],
    [*efforts(prompts=50)[:2], Effort("S", most_steps, 1000)],
    chart=lambda found: Plot(running(found, OPTIONS), "Speed-up of all texts so far.") if found.units else None,
)
