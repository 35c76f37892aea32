"""Prompts of no domain that was learned (table 5), and how many domains a set of mixed prompts has (table 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...prompts import BenchPrompt
from ...report import Table
from ...search.names import KNN, one_set
from ..cells import TOTAL, figure, from_enough, is_faster, pays, told
from ..estimates import Estimate, is_above, share_of
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..tasks import Task, Tasks
from ..workbench import Learned, Methods, Workbench
from .judged import gains_nothing, together
from .lessons import (
    COUNTED,
    FIXED,
    MIXED,
    MORE,
    OFF,
    TASKS,
    Taught,
    any_value,
    counted,
    efforts,
    knn_way,
    knows,
    missing_units,
    num_looked_at,
    route,
    set_notes,
    tasks_of,
    taught,
    teach,
    too_few_tasks,
)

NEW_TASKS: Mapping[str, str | None] = {"xsum": "cnn-dm", "math": "gsm8k", "alpaca": None}
"""Data set -> the task that is most like it."""
WITHOUT = "without "
OWN = "own set"
NUMBERS, QUICK_NUMBERS = (1, 3, 5, 7), (1, 3)
MIN_CLUSTERED = 8

# ------------------------------------------------------------------------------------------------------------ table 5


def stranger_units(bench: Workbench) -> Iterator[Unit]:
    """Data sets that are no task, then each task as if it were none."""
    yield from missing_units(bench, [*NEW_TASKS, *TASKS])
    if reason := too_few_tasks(bench):
        yield Unit("strangers", missing=reason)
        return
    for task in tasks_of(bench, NEW_TASKS):
        yield Unit(task.name, partial(_new_task, bench, task))
    for task in tasks_of(bench, TASKS):
        yield Unit(WITHOUT + task.name, partial(_left_out, bench, task))


def _new_task(bench: Workbench, task: Task) -> Values:
    known = taught(bench)
    methods = {MIXED: one_set(str(known.general.skip)), KNN: knn_way()}
    (more,) = tasks_of(bench, [task.name], num_looked_at(bench))
    return _measured(bench, task, known, knows(known), methods, more.measured)


def _left_out(bench: Workbench, task: Task) -> Values:
    """`knn` without the task's anchors and set; `ssd-fixed`: the set of the first other task."""
    known = taught(bench)
    other = next(name for name in known.sets if name != task.name)
    methods = {FIXED: one_set(known.skip_of(other)), KNN: knn_way(), OWN: one_set(known.skip_of(task.name))}
    return _measured(bench, task, known, knows(known, [task.name]), methods)


def _measured(
    bench: Workbench,
    task: Task,
    known: Taught,
    learned: Learned,
    methods: Methods,
    routed: Sequence[BenchPrompt] | None = None,
) -> Values:
    """`routed`: prompts of which it is told where they are sent; None: those that are measured."""
    found = bench.compare(methods, task.measured, knows=[learned])
    routes = Counter(one.route for one in route(bench, learned, routed or task.measured))
    return {**found, "routes": dict(routes), "label": task.label, **known.figures()}


def show_strangers(found: Found) -> Section:
    rows, trends = [], []
    for unit in [*NEW_TASKS, *(WITHOUT + name for name in TASKS)]:
        values = found.units.get(unit)
        if values is None:
            continue
        label = f"{values['label']}, left out" if unit.startswith(WITHOUT) else values["label"]
        routes = ", ".join(f"{name} {count}" for name, count in values["routes"].items())
        for way in (OFF, MIXED, FIXED, KNN, OWN):
            if way in values:
                sent = routes if way == KNN else ""
                rows.append([label, way, *counted(found, unit, way), sent or "-"])
        if unit in NEW_TASKS:
            trends += _claims_of_new(found, unit, label)
    trends += _claims_of_left_out(found, [WITHOUT + name for name in TASKS if WITHOUT + name in found.units])
    header = ["prompts of", "method", *COUNTED, "sent to"]
    notes = [
        "leaving a task out takes its anchors and its set from what was learned of all five: the others are searched "
        "without it anyway",
        "the paper does not say what its Self-SD was searched on; ours is the set of all tasks, or of the first other "
        "one where a task is left out",
    ]
    effort = Effort("prompts a task", found.scale.get("prompts"), None)
    return _section(found, Table("", header, rows), effort, trends, notes)


def _claims_of_new(found: Found, unit: str, label: str) -> list[Trend]:
    trends = [
        is_faster(f"knn is faster than {MIXED} on {label}", found, (unit, KNN), (unit, MIXED)),
        pays(f"knn is faster than plain decoding on {label}", found, unit, KNN),
    ]
    likely = NEW_TASKS[unit]
    return [*trends, *([_is_sent(found.units[unit], label, likely)] if likely else [])]


def _claims_of_left_out(found: Found, units: Sequence[str]) -> list[Trend]:
    """Of all tasks that were left out in turn."""
    whole = together(found, units, (FIXED, KNN, OWN))
    return [
        is_faster("knn is faster than another task's set where a task is left out", whole, *_both(KNN, FIXED)),
        is_faster("to know the task's own set is faster still", whole, *_both(OWN, KNN)),
        pays("knn is faster than plain decoding where a task is left out", whole, TOTAL, KNN),
    ]


def _both(first: str, second: str) -> list[tuple[str, str]]:
    return [(TOTAL, first), (TOTAL, second)]


def _is_sent(values: Values, label: str, likely: str) -> Trend:
    sent, count = values["routes"].get(likely, 0), sum(values["routes"].values())
    claim = f"most prompts of {label} are sent to {likely}"
    trend = is_above(claim, share_of(sent / max(1, count), count), Estimate(0.5))
    return from_enough(replace(trend, because=f"{sent} of {count}, {trend.because}"), count)


def _section(found: Found, table: Table, effort: Effort, trends: Sequence[Trend], notes: Sequence[str] = ()) -> Section:
    if any_value(found, "lesson") is None:
        return Section([])
    return Section([table], efforts(found, effort), told(trends), [*notes, *set_notes(found)])


# ------------------------------------------------------------------------------------------------------------ table 6


def unit_name(count: int) -> str:
    """As it is kept."""
    return f"{count} clusters"


def _title(count: int) -> str:
    return "1 cluster" if count == 1 else f"{count} clusters"


def cluster_units(bench: Workbench) -> Iterator[Unit]:
    yield from missing_units(bench, ["alpaca"])
    task = _chat(bench)
    if task is not None:
        for count in QUICK_NUMBERS if bench.scale.is_quick else NUMBERS:
            yield Unit(unit_name(count), partial(_clustered, bench, task, count))


def _chat(bench: Workbench) -> Task | None:
    """With enough prompts to find clusters in."""
    scale = bench.scale
    num_learned = max(MIN_CLUSTERED, 2 * MORE * scale.learned_prompts)
    return Tasks(bench.prompts, 2 * scale.prompts, num_learned, bench.seed).find("alpaca")


def _clustered(bench: Workbench, task: Task, count: int) -> Values:
    """One cluster: the set of all prompts, which comes with every number of clusters."""
    num_domains = max(count, NUMBERS[1])
    known = teach(bench, f"knn-ssd-chat-{num_domains}", _alike(task.learned), num_domains, clusters=num_domains)
    way = knn_way() if count > 1 else one_set(str(known.general.skip))
    found = bench.compare({KNN: way}, _alike(task.measured), knows=[knows(known)])
    sizes = [one.num_vectors for one in known.domains] if count > 1 else [sum(one.num_vectors for one in known.domains)]
    return {**found, "sizes": sizes, "label": task.label, **known.figures()}


def _alike(prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    return [replace(one, domain="chat") for one in prompts]


def show_clusters(found: Found) -> Section:
    known = [count for count in NUMBERS if unit_name(count) in found.units]
    rows = [
        [
            str(count),
            *counted(found, unit_name(count), KNN),
            ", ".join(map(str, found.get(unit_name(count), "sizes"))),
        ]
        for count in known
    ]
    trends = []
    titled = Found({_title(count): found.units[unit_name(count)] for count in known})
    if len(known) > 1:
        most, fewest = _title(known[-1]), _title(known[0])
        trends.append(is_faster(f"{most} are faster than {fewest}", titled, (most, KNN), (fewest, KNN)))
    if {5, 7} <= set(known):
        units = [(_title(count), KNN) for count in (7, 5)]
        trends.append(gains_nothing("seven clusters are not faster than five", titled, *units))
    header = ["clusters", *COUNTED, "prompts in each"]
    num_prompts = figure(found, unit_name(known[0]), KNN, "num_prompts") if known else None
    table = Table(any_value(found, "label") or "", header, rows)
    return _section(found, table, Effort("prompts", num_prompts, None), trends)
