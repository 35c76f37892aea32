"""Figures of SWIFT (arXiv:2410.06916): evenly thinned layers, sets across tasks, streams, options of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...calibrate.texts import Text, probe_text
from ...errors import ProfileError
from ...measure.estimate import estimate, mean, ratio
from ...measure.figures import PARTS
from ...measure.records import Record
from ...prompts.tokens import encode
from ...strategies.matching import choices
from ...types import FrontierPoint, Prompt, SkipSet
from ..charts import Grid, Lines, Panels, Series, SkipStrips, Stack, StackedBars, Strip
from ..tables import Table, interval, number
from .claims import Side, at_least, faster, is_above, is_below, is_faster, is_larger, judged_by, larger, speedup
from .experiment import MEASURED, Effort, Experiment, Found, Judgement, Plot, Unit, Values, prompts_a_task
from .forms import SPEEDUP, Column, by_arm, by_domain, cell, curves, domain_bars, value_of
from .swift_methods import (
    FIRST_TASK,
    LONGER,
    PAPER_WINDOW,
    SELF_SD,
    SWIFT,
    accelerating,
    drafted_alike,
    efforts,
    facts,
    paired_as_swift,
    searched,
    self_sd,
    self_sd_fit,
    self_sd_notes,
    swift,
    swift_fit,
)
from .tasks import TASKS, Task
from .workbench import Methods, Workbench

Judgements = Iterator[Judgement | None]
Where = Callable[[Record], bool]


def tasks_of(bench: Workbench, names: Sequence[str]) -> list[Task]:
    return [task for name in names if (task := bench.tasks.find(name))]


def by_task(tasks: Sequence[Task]) -> list[Prompt]:
    """Their measured prompts, one task after the other; the task is the domain, so that figures are had by task."""
    return [replace(prompt, domain=task.name) for task in tasks for prompt in task.measured]


def labels_of(found: Found) -> dict[str, str]:
    """Of the tasks whose prompts took part."""
    return {name: label for values in found.units.values() for name, label in values.get("labels", {}).items()}


# ------------------------------------------------------------------------------------------ 2a: evenly thinned layers

RATIOS = (0.5, 0.3, 0.1, 0.4, 0.2, 0.6)
"""The paper's half first, then what shows the course soonest."""
TOP_1, TOP_K = "top-1", "top-k"
HALF = "speed 0.5"


def thinned_units(bench: Workbench) -> Iterable[Unit]:
    prompts = by_task(tasks_of(bench, ("cnn-dm", "gsm8k", "tinystories")))

    def measure(skipped: float) -> Values:
        """Both stop alike; one has the draft's best tokens verified as well, as SWIFT has."""
        top_k = paired_as_swift("uniform", ratio=skipped)
        methods = {TOP_K: top_k, TOP_1: {**top_k, "tree": "chain"}}
        return {MEASURED: bench.compare(methods, prompts), "task": f"{skipped:.0%}"}

    return [Unit(f"speed {skipped}", partial(measure, skipped)) for skipped in RATIOS if prompts]


def thinned_sides(found: Found) -> dict[str, dict[float, Side]]:
    return {arm: {skipped: Side(f"speed {skipped}", arm) for skipped in RATIOS} for arm in (TOP_1, TOP_K)}


THINNED = [f"speed {skipped}" for skipped in sorted(RATIOS)]
FIGURE_2A = Experiment(
    "figure-2a",
    "evenly thinned layers, one candidate or several",
    thinned_units,
    [by_arm(["M", "alpha", SPEEDUP, "c"], {TOP_1: TOP_1, TOP_K: TOP_K}, first="layers skipped", units=THINNED)],
    [
        at_least(
            "half skipped, several candidates: over 90 % of drafts are accepted", "alpha", TOP_K, 0.9, units=[HALF]
        ),
        larger("several candidates make more draft tokens accepted than one", "alpha", TOP_K, TOP_1, units=[HALF]),
        faster("evenly spaced layers, half of them skipped, pay with several candidates", TOP_K, units=[HALF]),
        faster("several candidates are faster than one", TOP_K, TOP_1, units=[HALF]),
    ],
    [prompts_a_task(3000, "prompts of all three tasks")],
    [f"{TOP_K}: up to ten candidates, the fewer the surer the draft is; {TOP_1}: a chain that stops alike"],
    curves(
        ["alpha", SPEEDUP],
        thinned_sides,
        "share of the layers skipped",
        "Accepted share and speed-up by layers skipped.",
    ),
)

# ------------------------------------------------------------------------------------------ 2b: sets across tasks

SET_TASKS = ("tinystories", "gsm8k", "cnn-dm", "wmt")
"""The paper's example first: the set of a story on a calculation."""
SET, SET_SHARE = "set", 0.3
"""All sets skip about the same share of the sub-layers: else their sizes would decide, not the tasks."""


def set_units(bench: Workbench) -> Iterable[Unit]:
    tasks = tasks_of(bench, SET_TASKS)

    def on_all(task: Task) -> Values:
        """Its set on its own prompts and on those of the others."""
        settings = {"fixed": {"skip": str(pruned(bench, task))}, "confidence": {"threshold": 0.8}}
        method = {"strategy": "fixed", "lookahead": "confidence", "tree": "chain", "settings": settings}
        labels = {one.name: one.label for one in tasks}
        return {MEASURED: bench.compare({SET: method}, by_task(tasks)), "task": task.label, "labels": labels}

    return bench.for_each(SET_TASKS, on_all)


def pruned(bench: Workbench, task: Task) -> SkipSet:
    fitted = bench.fit(f"prune-{task.name}", {"strategy": "prune"}, task.fitting)
    points = [FrontierPoint.from_json(point) for point in fitted.values.get("frontier", ()) if point["skip"]]
    if not points:
        raise ProfileError(f"the time was too short to find a set for {task.title}; allow more with --fit-seconds")
    count = SET_SHARE * 2 * bench.engine.runner.num_layers
    return min(points, key=lambda point: abs(len(point.skip) - count)).skip


def sets_table(found: Found) -> Table:
    labels = labels_of(found)
    rows = [
        [found.label(one), cell(found, one, SET, "r"), *(cell(found, one, SET, SPEEDUP, name) for name in labels)]
        for one in found.units
    ]
    return Table("speed-up of the set of a task", ["set of", "r", *(f"on {one}" for one in labels.values())], rows)


def sets_suit_their_tasks(found: Found) -> Judgements:
    story, reasoning = (Side("tinystories", SET, name, f"on {TASKS[name].title}") for name in ("tinystories", "gsm8k"))
    yield is_faster("the set of stories is worth less on calculations", found, story, reasoning)
    for name, label in labels_of(found).items():
        sides = [Side(one, SET, name, f"set of {found.label(one)}") for one in found.units]
        own = Side(name, SET, name, f"set of {label}")
        others = {side: one.value for side in sides if side != own and (one := speedup(found, side))}
        different = [side for side in others if not drafted_alike(found, own, side)]
        best = max(different, key=lambda side: others[side], default=None)
        yield is_faster(f"on {label} its own set is the fastest", found, own, best) if best else None


def sets_chart(found: Found) -> Plot | None:
    labels = labels_of(found)
    cells = [[speedup(found, Side(one, SET, name)) for name in labels] for one in found.units]
    grid = Grid(cells, [f"set of {found.label(one)}" for one in found.units], [f"on {one}" for one in labels.values()])
    return Plot(grid, "Speed-up of the set of each task (rows) on each task (columns).", (7.0, 3.6)) if cells else None


FIGURE_2B = Experiment(
    "figure-2b",
    "the set of one task on another",
    set_units,
    [sets_table],
    [judged_by(sets_suit_their_tasks)],
    [
        prompts_a_task(4000, "prompts of all tasks"),
        Effort("seconds of a search", lambda found: found.scale.get("fit_seconds"), 27000),
    ],
    ["sets come from `prune`, the paper's from Self-SD; all skip about the same share, draft chains and stop alike"],
    sets_chart,
)

# ------------------------------------------------------------------------------------------ 6: along a stream

OURS = "SWIFT, ours"
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

    def until(arm: str, last: int) -> Side:
        return Side(STREAM, arm, where=lambda record: record.number <= last)

    texts = [record.number for record in Side(STREAM, "off").records(found)]
    series = [
        Series(arm, [(last + 1, getattr(speedup(found, until(arm, last)), "value", None)) for last in texts])
        for arm in arms
    ]
    return Lines(series, "text of the stream", "speed-up of all texts so far", "x", baseline=1.0)


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
    text, more = (
        f"optimisation takes less than 1 % of the time over {PAPER_TEXTS} texts",
        PAPER_TEXTS / max(1, len(records)),
    )
    # A search takes its seconds, however long the stream is.
    percent = estimate(
        records,
        lambda one: (100 * one.optimise_seconds, more * ((one.decode_seconds or 0.0) - one.optimise_seconds)),
        0,
    )
    judgement = is_below(text, percent, 1.0, "optimisation", unit=" %")
    is_over = bool(records) and is_settled(records[-1])
    yield judgement if is_over or not judgement else Judgement(text, None, "the search was not over")


def timeline_chart(found: Found) -> Plot | None:
    arms = [arm for arm in (SWIFT, OURS) if found.figures(STREAM, arm)]
    course = [Series("SWIFT's set in use", [(step, best) for step, best, _ in found.get(SEARCH, "steps") or ()])]
    matchness = Lines(course, "step of the search", "matchness", y_limits=(0.0, 1.02))
    parts = {part: [milliseconds(found, arm, part) for arm in arms] for part in PARTS}
    drawing = Stack(
        [Panels([running(found, arms), matchness]), StackedBars(arms, parts, "milliseconds of a token")], (2.2, 1)
    )
    return (
        Plot(drawing, "Speed-up along the stream, matchness along the search, time by part.", (10, 6.4))
        if arms
        else None
    )


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

# ------------------------------------------------------------------------------------------ 7: the task changes

SHIFT_TASKS = ("cnn-dm", "gsm8k", "alpaca", "wmt", "nq")
SHIFT, SHIFT_ARMS = "stream", (SELF_SD, SWIFT, OURS)


def shift_units(bench: Workbench) -> Iterable[Unit]:
    """A stream from task to task, after searches on other prompts of its first; our own form learns on the way."""
    tasks = tasks_of(bench, SHIFT_TASKS)

    def measure() -> Values:
        fitted, found = swift_fit(bench, tasks[0]), self_sd_fit(bench, tasks[0].name, tasks[0].fitting)
        known = {**self_sd(SELF_SD, found["skip"]), SWIFT: accelerating(), OURS: {"strategy": "swift"}}
        wanted = SHIFT_ARMS[:2] if bench.scale.is_quick else SHIFT_ARMS
        methods = {arm: known[arm] for arm in wanted if arm in known}
        values = {"labels": {task.name: task.label for task in tasks}, "search": facts(fitted), "self_sd": found}
        return {MEASURED: bench.compare(methods, by_task(tasks), knows=[fitted]), **values}

    missing = set(SHIFT_TASKS) - {task.name for task in tasks}
    yield from (Unit(name, missing=bench.tasks.why_missing(name)) for name in SHIFT_TASKS if name in missing)
    yield from [Unit(SHIFT, measure)] if len(tasks) > 1 else []


def shift_claims(found: Found) -> Judgements:
    first, *_ = *labels_of(found), None

    def is_later(record: Record) -> bool:
        return record.domain != first

    own, others = Side(SHIFT, SELF_SD, first, "on its task"), Side(SHIFT, SELF_SD, None, "on the others", is_later)
    yield is_faster("Self-SD loses speed where the task is not its own", found, own, others)
    yield is_larger("Self-SD's drafts are accepted more often on its own task", found, "alpha", own, others)
    steady = Side(SHIFT, SWIFT, None, "SWIFT", is_later)
    yield is_faster(
        "SWIFT is faster than Self-SD once the task has changed", found, steady, replace(others, label=SELF_SD)
    )
    rates = {label: value_of(found, "alpha", Side(SHIFT, SWIFT, name)) for name, label in labels_of(found).items()}
    known = {label: rate for label, rate in rates.items() if rate}
    lowest = min(known, key=lambda label: known[label].value, default="")
    yield is_above(
        "SWIFT's drafts are accepted by more than 90 % on every task", known.get(lowest), 0.9, f"on {lowest}"
    )


FIGURE_7 = Experiment(
    "figure-7",
    "a stream that changes its task, against Self-SD",
    shift_units,
    [
        by_domain(name, SHIFT, {arm: arm for arm in SHIFT_ARMS}, labels_of, title=f"{name}, in this order")
        for name in ("x", "alpha")
    ],
    [judged_by(shift_claims), faster("SWIFT is faster than plain decoding over the whole stream", SWIFT)],
    efforts(prompts=2500),
    [
        "Self-SD and SWIFT searched on other prompts of the first task beforehand; in the paper SWIFT searches on the "
        "first texts of the stream",
        self_sd_notes,
    ],
    domain_bars(
        [SPEEDUP, "alpha"], SHIFT, SHIFT_ARMS, labels_of, "Speed-up and acceptance of Self-SD and SWIFT by task."
    ),
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
    both = [replace(side, where=is_searching).records(found) for side in (usual, seldom)]
    dearer = ratio(*both, lambda record: (record.optimise_seconds, record.num_tokens), 0)
    yield is_above(
        "a longer interval makes optimisation cheaper", dearer, 1.0, "usual over twice the interval", unit="x"
    )


def option_column(found: Found, unit: str, arm: str) -> str:
    return ", ".join(map(str, options_of(bool(found.scale.get("is_quick")))[arm].values()))


HALVES = [
    on_texts("first half", lambda found: halves(found)[0]),
    on_texts("second half", lambda found: halves(found)[1]),
]
OPTIONS = {arm: arm for arm in (USUAL, FEWER, SELDOM)}
FIGURE_8A = Experiment(
    "figure-8a",
    "most steps S and Bayesian interval",
    option_units,
    [by_arm([(USUAL, option_column), *HALVES, SPEEDUP, spent_on("optimise")], OPTIONS, first="")],
    [judged_by(option_claims)],
    efforts(prompts=50)[:2],
    chart=lambda found: Plot(running(found, OPTIONS), "Speed-up of all texts so far.") if found.units else None,
)

# ------------------------------------------------------------------------------------------ 8b: the skip ratio

GROUPS = ((0.3, 0.45, 0.6), (0.1, 0.2, 0.4, 0.5))
"""Ratios that take turns on the same texts; a few show the course. The paper's are 0.3 to 0.6."""
RATIO_SECONDS = 0.5
"""Of the usual seconds, for the search of each ratio."""


def group_name(group: Sequence[float]) -> str:
    return ", ".join(map(str, group))


def ratio_units(bench: Workbench) -> Iterable[Unit]:
    def measure(group: Sequence[float], task: Task) -> Values:
        """The set that a search at each ratio ends with; the ratio is not lowered where few drafts are accepted."""
        seconds = RATIO_SECONDS * bench.scale.fit_seconds
        fits = {one: swift_fit(bench, task, seconds, ratio=one, min_ratio=one) for one in group}
        sets = {f"ratio {one}": skip for one, fitted in fits.items() if (skip := fitted.values.get("skip"))}
        return bench.measure(task, {arm: paired_as_swift("fixed", skip=skip) for arm, skip in sets.items()})

    for group in GROUPS:
        yield from bench.for_each([FIRST_TASK], partial(measure, group), f"{group_name(group)} ")


RATIO_SIDES = {one: Side(f"{group_name(group)} {FIRST_TASK}", f"ratio {one}") for group in GROUPS for one in group}


def has_an_optimum(found: Found) -> Judgements:
    """Inside: the best ratio is faster than the smallest and than the largest."""
    text = "speed-up rises with the ratio, then falls"
    known = {one: speed.value for one, side in RATIO_SIDES.items() if (speed := speedup(found, side))}
    best, ends = max(known, key=lambda one: known[one], default=0.0), {min(known, default=0.0), max(known, default=0.0)}
    others = (
        [is_faster(text, found, RATIO_SIDES[best], RATIO_SIDES[end]) for end in ends - {best}] if len(known) > 2 else []
    )
    clear = None if any(one is None or one.outcome is None for one in others) else best not in ends
    yield Judgement(text, clear, "; ".join(one.because for one in others if one)) if others else None


FIGURE_8B = Experiment(
    "figure-8b",
    "speed-up against the skip ratio",
    ratio_units,
    [by_arm(["r", SPEEDUP, "alpha", "M", "c"], {side.arm: side.arm for side in RATIO_SIDES.values()}, first="")],
    [judged_by(has_an_optimum)],
    [prompts_a_task(None), Effort("models", lambda found: 1, 3)],
    [f"each ratio has a search of its own beforehand, of {RATIO_SECONDS:g} of the usual seconds"],
    curves([SPEEDUP], lambda found: {SWIFT: RATIO_SIDES}, "skip ratio", "Speed-up by skip ratio."),
)

# ------------------------------------------------------------------------------------------ 11: seconds of optimisation


def latency_units(bench: Workbench) -> Iterable[Unit]:
    def measure(task: Task) -> Values:
        """SWIFT and Self-SD take turns, each after its searches; SWIFT's texts are wanted anyway, scoring them is not."""
        fitted, seconds = swift_fit(bench, task), bench.scale.fit_seconds
        shares = (0.25, 1) if bench.scale.is_quick else (0.25, 1, LONGER)
        tried = [self_sd_fit(bench, task.name, task.fitting, part * seconds) for part in shares]
        known = {f"{SELF_SD} {place}": search for place, search in enumerate(tried) if search["skip"]}
        methods = {arm: self_sd(arm, search["skip"])[arm] for arm, search in known.items()}
        values = searched(bench, task, {SWIFT: accelerating(), **methods}, fitted)
        return {**values, "searches": {SWIFT: facts(fitted), **known}}

    return bench.for_each([FIRST_TASK], measure)


def latency_table(found: Found) -> Table:
    searches = found.get(FIRST_TASK, "searches") or {}
    columns: dict[str, tuple[str, str]] = {
        "sets tried": ("num_steps", "d"),
        "optimisation (s)": ("optimise_seconds", ".1f"),
    }
    own = [(name, lambda found, unit, arm, of=of: number(searches[arm][of[0]], of[1])) for name, of in columns.items()]
    return by_arm([*own, SPEEDUP, "alpha"], {arm: arm for arm in searches}, first="")(found)


def latency_claims(found: Found) -> Judgements:
    own, *others = [Side(FIRST_TASK, arm) for arm in found.get(FIRST_TASK, "searches") or [SWIFT]]
    if others:
        yield is_faster("SWIFT is faster than Self-SD after its longest search", found, own, others[-1])
        text, is_same = "Self-SD gains by a longer search", drafted_alike(found, others[0], others[-1])
        judgement = is_faster(text, found, others[-1], others[0])
        yield Judgement(text, None, "it found no better set") if is_same else judgement


def latency_sides(found: Found) -> dict[str, dict[float, Side]]:
    searches = found.get(FIRST_TASK, "searches") or {}
    sides = {arm: {search["optimise_seconds"]: Side(FIRST_TASK, arm)} for arm, search in searches.items()}
    others = {seconds: side for arm, places in sides.items() if arm != SWIFT for seconds, side in places.items()}
    return {SWIFT: sides.get(SWIFT, {}), SELF_SD: others}


FIGURE_11 = Experiment(
    "figure-11",
    "speed-up against seconds of optimisation",
    latency_units,
    [latency_table],
    [judged_by(latency_claims)],
    efforts(),
    ["SWIFT's seconds are those of scoring candidates (the paper: 116), Self-SD's those of its whole search"],
    curves([SPEEDUP], latency_sides, "seconds of optimisation", "Speed-up by seconds of optimisation."),
)

# ------------------------------------------------------------------------------------------ 12: the set step by step


def strip_units(bench: Workbench) -> Iterable[Unit]:
    def measure(task: Task) -> Values:
        """The sets that the search had at several steps, and how they do on each of some texts that it has not seen."""
        known = swift_fit(bench, task).values
        taken = {int(step): skip for step, skip in known["snapshots"].items()} | {known["step"]: known["skip"]}
        best = {step: [row["best"] for row in known["steps"] if row["step"] <= max(1, step)] for step in taken}
        sets = [{"step": step, "skip": taken[step], "matchness": (best[step] or [None])[-1]} for step in sorted(taken)]
        return {"num_layers": bench.engine.runner.num_layers, "sets": sets, "matches": matches(bench, task, sets)}

    return bench.for_each([FIRST_TASK], measure)


def matches(bench: Workbench, task: Task, sets: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Of each text that the model writes plainly: the share of its tokens that each set would have drafted."""
    found, numbers = [], [SkipSet.parse(one["skip"]).numbers for one in sets]
    for prompt in task.measured:
        tokens = encode(prompt, bench.engine)
        plain = bench.engine.generate(tokens, max_new_tokens=max(bench.scale.tokens, 2 * PAPER_WINDOW), strategy="off")
        if plain.tokens:
            probe = probe_text(Text((*tokens, *plain.tokens), len(tokens)), bench.engine.runner)
            found.append((choices(probe, numbers).cpu() == torch.tensor(plain.tokens)).double().mean(1).tolist())
    return found


def strips(found: Found) -> list[tuple[SkipSet, str, str, list[float]]]:
    """Each set, the step it is of, its matchness, and its match on other texts."""
    texts = found.get(FIRST_TASK, "matches") or []
    return [
        (SkipSet.parse(one["skip"]), str(one["step"]), number(one["matchness"], ".2f"), [text[place] for text in texts])
        for place, one in enumerate(found.get(FIRST_TASK, "sets") or ())
    ]


def strip_table(found: Found) -> Table:
    rows = [
        [step, str(len(skip.attention)), str(len(skip.mlp)), matchness, str(mean(texts) or "-")]
        for skip, step, matchness, texts in strips(found)
    ]
    header = ["step", "attention skipped", "MLP skipped", "matchness", "match on other texts"]
    return Table("the set in use", header, rows)


def is_refined(found: Found) -> Judgements:
    """Paired, text by text; a smaller set that does better proves nothing."""
    text, (first, *_, last) = "the search ends with a better set than it began with", strips(found) or [None, None]
    if first and last and len(last[0]) < len(first[0]):
        yield Judgement(text, None, f"it skips {len(last[0])} sub-layers instead of {len(first[0])}")
    elif first and last:
        gained = mean([after - before for before, after in zip(first[3], last[3], strict=True)])
        yield is_above(text, gained, 0.0, "match gained on other texts")


def strip_chart(found: Found) -> Plot | None:
    rows = [Strip(skip, f"step {step}", f"matchness {matchness}") for skip, step, matchness, _ in strips(found)]
    drawing = SkipStrips(rows, found.get(FIRST_TASK, "num_layers") or 0)
    return (
        Plot(drawing, "Sub-layers that the set in use skips, step by step.", (10, 1.2 + len(rows) / 2))
        if rows
        else None
    )


FIGURE_12 = Experiment(
    "figure-12",
    "the set step by step",
    strip_units,
    [strip_table],
    [judged_by(is_refined)],
    [Effort("other texts", lambda found: len(found.get(FIRST_TASK, "matches") or ()))],
    ["matchness is that of the tokens it was searched on; other texts show what the set is worth"],
    strip_chart,
)

FIGURES = [FIGURE_2A, FIGURE_2B, FIGURE_6, FIGURE_7, FIGURE_8A, FIGURE_8B, FIGURE_11, FIGURE_12]
