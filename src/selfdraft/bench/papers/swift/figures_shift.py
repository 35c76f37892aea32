"""Figure 7: a stream that goes from task to task, behind a search on its first task, by Self-SD and by SWIFT.

In the paper SWIFT's search is over behind a dozen of 2500 texts. Here it would take the whole stream, so it is made on
other prompts of the first task beforehand, as for the tables. Our own form of SWIFT learns on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...charts import Bars, Panels
from ...report import Table, number, times
from ..cells import faster, faster_than_plain, from_enough, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import NONE, Course, is_above, is_more, text_rows
from .figures_common import (
    OURS,
    by_task,
    found_tasks,
    missing_tasks,
    ours,
    self_sd,
    self_sd_note,
    token_effort,
)
from .lessons import swift_lesson
from .methods import SELF_SD, SWIFT, accelerating
from .shown import PAPER_STEPS

TASKS = ("cnn-dm", "gsm8k", "alpaca", "wmt", "nq")
WAYS = (SELF_SD, SWIFT, OURS)
STREAM = "stream"
PAPER_PROMPTS, PAPER_ITERATIONS = 500, 1000
STEADY = 0.9

# ------------------------------------------------------------------------------------------------------ measuring


def shift_units(bench: Workbench) -> Iterable[Unit]:
    yield from missing_tasks(bench, TASKS)
    tasks = found_tasks(bench, TASKS)
    if len(tasks) > 1:
        yield Unit(STREAM, lambda: _stream(bench, tasks))


def _stream(bench: Workbench, tasks: Sequence[Task]) -> Values:
    lesson = swift_lesson(bench, tasks[0])
    fixed, search = self_sd(bench, tasks[0], bench.scale.lesson_seconds)
    methods: dict[str, Mapping[str, Any]] = {SELF_SD: fixed, SWIFT: accelerating()}
    if not bench.scale.is_quick:
        methods[OURS] = ours(bench.scale)
    figures, records = bench.compare_texts(methods, by_task(tasks), knows=[lesson])
    labels = {task.name: task.label for task in tasks}
    return {
        **figures,
        "texts": text_rows(records),
        "labels": labels,
        "search": dict(search),
        "lesson": dict(lesson.facts),
    }


# -------------------------------------------------------------------------------------------------------- showing


def show_shift(found: Found) -> Section:
    labels: Mapping[str, str] = found.get(STREAM, "labels") or {}
    courses = {way: known for way in WAYS if (known := Course.of(found, STREAM, way))}
    return Section(
        [_speeds(courses, labels), _acceptances(courses, labels)],
        [
            Effort("prompts a task", found.scale.get("prompts"), PAPER_PROMPTS),
            token_effort(found, is_stream=False),
            Effort("steps of SWIFT's search", found.get(STREAM, "lesson", "num_steps"), PAPER_STEPS),
            Effort("sets that Self-SD tried", found.get(STREAM, "search", "num_steps"), PAPER_ITERATIONS),
        ],
        told(_claims(courses, list(labels))),
        _notes(found),
        Plot(
            _chart(courses, labels),
            "Speed-up and acceptance of Self-SD and SWIFT, task by task.",
            (10.0, 4.2),
        )
        if courses
        else None,
    )


def _speeds(courses: Mapping[str, Course], labels: Mapping[str, str]) -> Table:
    rows = [[way, *(times(value) for value in _values(course, labels)), times(_whole(course))]
            for way, course in courses.items()]  # fmt: skip
    return Table("speed-up, the tasks in this order", ["method", *labels.values(), "all"], rows)


def _acceptances(courses: Mapping[str, Course], labels: Mapping[str, str]) -> Table:
    rows = [
        [
            way,
            *(number(course.of_tasks([name]).acceptance.value, ".2f") for name in labels),
            number(course.acceptance.value, ".2f"),
        ]
        for way, course in courses.items()
    ]
    return Table("accepted share of the draft steps", ["method", *labels.values(), "all"], rows)


def _values(course: Course, names: Iterable[str]) -> list[float | None]:
    speeds = [course.of_tasks([name]).speed for name in names]
    return [None if known is None else known.value for known in speeds]


def _whole(course: Course) -> float | None:
    return None if course.speed is None else course.speed.value


def _notes(found: Found) -> list[str]:
    seconds = number(found.scale.get("lesson_seconds"), "g")
    searched = (
        f"Self-SD and SWIFT searched on other prompts of the first task beforehand, for {seconds} s each at most; in "
        "the paper SWIFT searches on the first texts of the stream"
    )
    return [searched, *self_sd_note(found.get(STREAM, "search"))] if STREAM in found.units else []


def _claims(courses: Mapping[str, Course], names: Sequence[str]) -> Iterable[Trend]:
    known, steady = courses.get(SELF_SD), courses.get(SWIFT)
    others = known.of_tasks(names[1:]).called("Self-SD on the others") if known else None
    if known and others:
        own = known.of_tasks(names[:1]).called("Self-SD on its task")
        yield faster("Self-SD loses speed where the task is not its own", own.speed, others.speed)
        claim = "Self-SD's drafts are accepted more often on its own task"
        yield from_enough(is_more(claim, own.acceptance, others.acceptance), min(len(own), len(others)))
    if steady:
        parts = [part for name in names if (part := steady.of_tasks([name])).acceptance.count]
        lowest = min(parts, key=lambda part: part.acceptance.value or 0.0, default=None)
        claim = "SWIFT's drafts are accepted by more than 90 % on every task"
        yield from_enough(
            is_above(claim, lowest.acceptance if lowest else NONE, STEADY), len(lowest) if lowest else None
        )
        yield faster_than_plain("SWIFT is faster than plain decoding over the whole stream", steady.speed)
    if steady and others:
        behind = steady.of_tasks(names[1:]).called("SWIFT on the other tasks")
        yield faster("SWIFT is faster than Self-SD once the task has changed", behind.speed, others.speed)


def _chart(courses: Mapping[str, Course], labels: Mapping[str, str]) -> Panels:
    names = list(labels.values())
    speeds = {way: [course.of_tasks([name]).speed for name in labels] for way, course in courses.items()}
    shares = {way: [course.of_tasks([name]).acceptance.value for name in labels] for way, course in courses.items()}
    accepted = Bars(names, shares, "accepted share of the draft steps")
    return Panels([Bars(names, speeds, "speed-up", baseline=1.0), accepted])
