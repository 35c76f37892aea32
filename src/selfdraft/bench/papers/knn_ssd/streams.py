"""Streams that change between tasks with the probability r: tables 1, 2, 3 and 7, figures 1 and 4."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...charts import Bars
from ...prompts import in_turn
from ...report import Table, number, times
from ...search.names import FIRST as ON_FIRST
from ...search.names import KNN, one_set
from ...search.names import MIXED as ON_MIXED
from ...streams import RATIOS, change_share, mixed_prompts
from ..cells import (
    DRAFT_COST,
    TOTAL,
    figure,
    figure_cell,
    from_enough,
    is_faster,
    is_larger,
    pays,
    speed,
    speed_cell,
    told,
)
from ..recipe import Found, Section, Trend, Unit, Values, bars_plot
from ..swift.lessons import self_sd_lesson
from ..tasks import Task
from ..workbench import Workbench
from .judged import ALIKE, of_part, together
from .lessons import (
    COST,
    COUNTED,
    FIXED,
    LENGTH,
    MIXED,
    OFF,
    PAPER_SEARCHED,
    RATE,
    TASKS,
    WAYS,
    any_value,
    counted,
    efforts,
    knows,
    missing_units,
    set_notes,
    tasks_of,
    taught,
    too_few_tasks,
    ways,
)

TELLING_FIRST = (0.0, 1.0, 0.3, 0.7)
PAPERS_SEARCH = "Bayesian r=1.0"
BAYES = {f"{FIXED}, Bayesian": ON_FIRST, f"{MIXED}, Bayesian": ON_MIXED}
ROWS = (OFF, *WAYS)

# ----------------------------------------------------------------------------------------------------------- measured


def unit_name(ratio: float) -> str:
    return f"r={ratio}"


def stream_units(bench: Workbench, ratios: Sequence[float] = TELLING_FIRST) -> Iterator[Unit]:
    """A quick run has the ends alone: what stands between them is the same prompts in another order."""
    yield from missing_units(bench)
    if reason := too_few_tasks(bench):
        yield Unit("streams", missing=reason)
        return
    for ratio in ratios[:2] if bench.scale.is_quick else ratios:
        yield Unit(unit_name(ratio), partial(_stream, bench, ratio))


def first_stream_units(bench: Workbench) -> Iterator[Unit]:
    """The one that goes task by task."""
    return stream_units(bench, [0.0])


def _stream(bench: Workbench, ratio: float) -> Values:
    tasks, known = tasks_of(bench, TASKS), taught(bench)
    prompts = mixed_prompts([one for task in tasks for one in task.measured], ratio, bench.seed)
    found = bench.compare(ways(known, tasks[0].name), prompts, knows=[knows(known)])
    labels = {task.name: task.label for task in tasks}
    return {**found, "changes": change_share([one.domain for one in prompts]), "labels": labels, **known.figures()}


def both_searches_units(bench: Workbench) -> Iterator[Unit]:
    """The ratio 1 with our search; then with the paper's, which finds nothing in the seconds of a quick run."""
    yield from stream_units(bench, [1.0])
    if not bench.scale.is_quick and not too_few_tasks(bench):
        yield Unit(PAPERS_SEARCH, partial(_by_papers_search, bench))


def _by_papers_search(bench: Workbench) -> Values:
    """Of each search the fastest set that drafts, as in the paper."""
    tasks = tasks_of(bench, TASKS)
    mixed = in_turn(one for task in tasks for one in task.learned)
    learned = {ON_FIRST: tasks[0].learned, ON_MIXED: mixed}
    tried = {
        which: self_sd_lesson(bench, Task(f"knn-ssd-{which}", which, [], prompts), seconds=bench.scale.lesson_seconds)
        for which, prompts in learned.items()
    }
    methods = {name: one_set(tried[which]["skip"] or "") for name, which in BAYES.items()}
    prompts = mixed_prompts([one for task in tasks for one in task.measured], 1.0, bench.seed)
    return {**bench.compare(methods, prompts), "tried": tried}


# -------------------------------------------------------------------------------------------------------------- shown


def in_order(found: Found) -> Found:
    """The streams alone, by their ratios."""
    names = [unit_name(ratio) for ratio in RATIOS]
    return replace(found, units={name: found.units[name] for name in names if name in found.units})


def _section(found: Found, tables: Sequence[Table], trends: Sequence[Trend], notes: Sequence[str] = ()) -> Section:
    if any_value(found, "lesson") is None:
        return Section([])
    return Section(tables, efforts(found), told(trends), [*notes, *set_notes(found)])


def show_overall(found: Found) -> Section:
    """Table 1: all ratios together."""
    found = in_order(found)
    rows = [
        [way, number(_pooled_speed(found, way), ".2f"), times(_mean_expected(found, way)), times(_pooled(found, way))]
        for way in ROWS
        if _pooled_speed(found, way) is not None
    ]
    header = ["method", "speed (token/s)", "expected speed-up", "measured speed-up"]
    whole = together(found, list(found.units), WAYS)
    trends = [
        *(is_faster(f"knn is faster than {way}", whole, (TOTAL, KNN), (TOTAL, way)) for way in (FIXED, MIXED)),
        pays("knn is faster than plain decoding", whole, TOTAL, KNN),
    ]
    notes = [f"of the streams {', '.join(found.units)}; expected: M a / ((M - 1)(1 - s) + a), s the share skipped"]
    return _section(found, [Table("all mix ratios", header, rows)], trends, notes)


def _pooled_speed(found: Found, way: str) -> float | None:
    known = [values[way][TOTAL] for values in found.units.values() if TOTAL in values.get(way, {})]
    seconds = sum(one["decode_seconds"] for one in known)
    return sum(one["num_tokens"] for one in known) / seconds if seconds else None


def _pooled(found: Found, way: str) -> float | None:
    own, plain = _pooled_speed(found, way), _pooled_speed(found, OFF)
    return own / plain if own and plain else None


def _expected(found: Found, unit: str, way: str) -> float | None:
    """By the paper's formula; plain decoding is 1."""
    if way == OFF:
        return 1.0 if figure(found, unit, OFF, "num_tokens") else None
    value: float | None = found.get(unit, way, TOTAL, "expected", "by_ratio")
    return value


def _mean_expected(found: Found, way: str) -> float | None:
    known = [value for unit in found.units if (value := _expected(found, unit, way)) is not None]
    return statistics.fmean(known) if known else None


def show_ratios(found: Found) -> Section:
    """Table 2."""
    found = in_order(found)
    header = ["method", *found.units]
    expected = [[way, *(times(_expected(found, unit, way)) for unit in found.units)] for way in ROWS]
    clock = [[way, *(speed_cell(found, unit, way) for unit in found.units)] for way in ROWS]
    changes = ["another task next", *(number(found.get(unit, "changes"), ".0%") for unit in found.units)]
    tables = [Table("expected speed-up", header, expected), Table("measured speed-up", header, [*clock, changes])]
    ends = [unit_name(RATIOS[0]), unit_name(RATIOS[-1])]
    trends = [is_faster(f"knn is faster than {MIXED} at {unit}", found, (unit, KNN), (unit, MIXED)) for unit in ends]
    notes = [
        "no way takes anything along from one prompt to the next, so that the order alone changes nothing: that knn's "
        "speed does not depend on the mix ratio could not fail here, that ssd-fixed suffers could not hold; neither is "
        "judged"
    ]
    if found.scale.get("prompts") == 1:
        notes.append("with one prompt a task the next is always of another: the ratios cannot differ")
    if left_out := [unit_name(ratio) for ratio in RATIOS if unit_name(ratio) not in found.units]:
        notes.append(f"not measured: {', '.join(left_out)}; a quick run has the first and the last ratio alone")
    return _section(found, tables if found.units else [], trends, notes)


def show_one_ratio(found: Found) -> Section:
    """Table 3: the ratio 1, by the clock."""
    unit = unit_name(1.0)
    measured = [*((unit, way) for way in ROWS), *((PAPERS_SEARCH, way) for way in BAYES)]
    rows = [
        [way, *counted(found, where, way), figure_cell(found, where, way, "cost_measured")]
        for where, way in measured
        if found.get(where, way)
    ]
    expected, reached = _expected(found, unit, KNN), speed(found, unit, KNN)
    trends = [
        *_is_first(found, [unit]),
        *(is_faster(f"knn is faster than {way}", found, (unit, KNN), (unit, way)) for way in (FIXED, MIXED)),
        pays("knn is faster than plain decoding", found, unit, KNN),
        is_larger(
            "the formula promises more than the clock shows",
            ("expected", expected),
            ("measured", reached["value"] if reached else None),
            ALIKE,
        ),
    ]
    table = Table("r = 1", ["method", *COUNTED, COST], rows)
    return _section(found, [table], trends, [DRAFT_COST, *_tried(found)])


def _is_first(found: Found, units: Sequence[str]) -> list[Trend]:
    """Of what is accepted, in the mean of some streams, which have the same prompts."""
    return [
        from_enough(
            is_larger(
                f"knn has a larger {title} than {way}",
                (KNN, _mean([figure(found, unit, KNN, name) for unit in units])),
                (way, _mean([figure(found, unit, way, name) for unit in units])),
            ),
            _num_prompts(found, units, KNN),
        )
        for name, title in ((LENGTH, "accepted length"), (RATE, "acceptance rate"))
        for way in (FIXED, MIXED)
    ]


def _num_prompts(found: Found, units: Iterable[str], way: str) -> int:
    """Of the stream that has fewest."""
    return min((figure(found, unit, way, "num_prompts") or 0 for unit in units), default=0)


def _tried(found: Found) -> Iterator[str]:
    if PAPERS_SEARCH not in found.units:
        yield "Bayesian optimisation, the paper's search, was not measured; a quick run leaves it out"
    for which, one in (found.get(PAPERS_SEARCH, "tried") or {}).items():
        told = f"tried {one['num_steps']} sets of the paper's {PAPER_SEARCHED} and found `{one['skip']}`"
        share = number(one["tokens_per_second"] and one["tokens_per_second"] / one["plain"], ".2f")
        yield f"Bayesian optimisation on the prompts `{which}` {told}, {share} times as fast as plain decoding there"


def show_counts(found: Found) -> Section:
    """Table 7."""
    found = in_order(found)
    rows = []
    for way in ROWS:
        pairs = [[figure(found, unit, way, name) for name in (LENGTH, RATE)] for unit in found.units]
        means = [_mean([pair[place] for pair in pairs]) for place in (0, 1)]
        rows.append([way, *(number(value, ".2f") for pair in [*pairs, means] for value in pair)])
    header = ["method", *(f"{unit} {name}" for unit in [*found.units, "overall"] for name in ("M", "acceptance"))]
    table = Table("by mix ratio", header, rows)
    return _section(found, [table] if found.units else [], _is_first(found, list(found.units)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# -------------------------------------------------------------------------------------------------------- task by task


def show_tasks(found: Found) -> Section:
    """Figure 1: speed-ups of the stream that goes task by task."""
    found, unit = in_order(found), unit_name(0.0)
    tasks = _tasks(found, unit)
    rows = [[way, *(speed_cell(found, unit, way, task) for task in [*tasks, TOTAL])] for way in WAYS if tasks]
    known = {way: [_value(speed(found, unit, way, task)) for task in tasks] for way in WAYS}
    panel = Bars(list(tasks.values()), known, "speed-up", "task", baseline=_mean(known[KNN]), baseline_name="knn, mean")
    plot = bars_plot([panel], "speed-ups of three ways on a stream that goes task by task")
    table = Table("speed-up, task by task", ["method", *tasks.values(), "all"], rows)
    return replace(_section(found, [table], list(_by_task(of_part(found, unit, list(tasks)), tasks))), plot=plot)


def _by_task(found: Found, tasks: Mapping[str, str]) -> Iterator[Trend]:
    """`found`: by task. `ssd-fixed` has the set of the first one."""
    if len(tasks) < 2:
        return
    first, *others = tasks
    claim = f"ssd-fixed is faster on its own task, {tasks[first]}, than on the others"
    both = Found({**found.units, "others": together(found, others, [FIXED]).units[TOTAL]})
    yield is_faster(claim, both, (first, FIXED), ("others", FIXED))
    for task in others:
        yield is_faster(f"knn is faster than ssd-fixed on {tasks[task]}", found, (task, KNN), (task, FIXED))


def show_task_counts(found: Found) -> Section:
    """Figure 4: accepted length and rate of the same stream."""
    found, unit = in_order(found), unit_name(0.0)
    tasks = _tasks(found, unit)
    tables, panels = [], []
    for name, title in ((LENGTH, "mean accepted length"), (RATE, "acceptance rate")):
        known = {way: [found.get(unit, way, "domains", task, name) for task in tasks] for way in WAYS}
        totals = {way: figure(found, unit, way, name) for way in WAYS}
        rows = [[way, *(number(value, ".2f") for value in [*known[way], totals[way]])] for way in WAYS if tasks]
        tables.append(Table(title, ["method", *tasks.values(), "all"], rows))
        panels.append(Bars(list(tasks.values()), known, title, "task", baseline=totals[KNN], baseline_name="knn, all"))
    plot = bars_plot(panels, "accepted length and acceptance rate of three ways, task by task")
    return replace(_section(found, tables, _is_first(found, [unit])), plot=plot)


def _tasks(found: Found, unit: str) -> dict[str, str]:
    """With labels, in the order of the stream."""
    labels: dict[str, str] = found.get(unit, "labels") or {}
    return labels


def _value(known: Any) -> float | None:
    return known["value"] if known else None
