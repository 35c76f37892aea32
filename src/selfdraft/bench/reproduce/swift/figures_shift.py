"""Figure 7: a stream that goes from task to task. Self-SD has learned from the first, SWIFT learns on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...report import Table, number, times
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import NONE, Course, faster, is_above, is_more, pays, text_rows, told
from .figures_common import (
    OURS,
    PAPER_ITERATIONS,
    SELF_SD,
    SELF_SD_METHOD,
    SWIFT,
    by_task,
    found_tasks,
    missing_tasks,
    ours,
    self_sd,
    self_sd_set,
    swift,
    text_tokens,
    window_note,
)
from .figures_drawing import draw_groups, draw_plain

TASKS = ("cnn-dm", "gsm8k", "alpaca", "wmt", "nq")
WAYS = (SELF_SD, SWIFT, OURS)
LESSON, STREAM = "lesson", "stream"
PAPER_PROMPTS = 500
STEADY = 0.9

# ------------------------------------------------------------------------------------------------------ measuring


def shift_units(bench: Workbench) -> Iterable[Unit]:
    yield from missing_tasks(bench, TASKS)
    tasks = found_tasks(bench, TASKS)
    if len(tasks) > 1:
        yield Unit(LESSON, lambda: self_sd_set(self_sd(bench, tasks[0])))
        yield Unit(STREAM, lambda: _stream(bench, tasks))


def _stream(bench: Workbench, tasks: Sequence[Task]) -> Values:
    methods: dict[str, Mapping[str, Any]] = {SELF_SD: SELF_SD_METHOD, SWIFT: swift(bench.scale)}
    if not bench.scale.is_quick:
        methods[OURS] = ours(bench.scale)
    knows, tokens = [self_sd(bench, tasks[0])], text_tokens(bench.scale)
    figures, records = bench.compare_texts(methods, by_task(tasks), knows=knows, tokens=tokens)
    return {**figures, "texts": text_rows(records), "labels": {task.name: task.label for task in tasks}}


# -------------------------------------------------------------------------------------------------------- showing


def show_shift(found: Found) -> Section:
    labels: Mapping[str, str] = found.get(STREAM, "labels") or {}
    courses = {way: known for way in WAYS if (known := Course.of(found, STREAM, way))}
    return Section(
        [_speeds(courses, labels), _acceptances(courses, labels)],
        [
            Effort("prompts a task", found.scale.get("prompts"), PAPER_PROMPTS),
            Effort("sets that Self-SD tried", found.get(LESSON, "num_tried"), PAPER_ITERATIONS),
        ],
        told(_claims(courses, list(labels))),
        _notes(found),
        Plot(
            lambda figure: _draw(figure, courses, labels),
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
    is_idle = found.get(LESSON, "skip") == ""
    idle = ["Self-SD found no set that was faster than plain decoding, so it drafts nothing; the paper's always drafts"]
    return [*(idle if is_idle else []), *window_note(found)]


def _claims(courses: Mapping[str, Course], names: Sequence[str]) -> Iterable[Trend]:
    known, steady = courses.get(SELF_SD), courses.get(SWIFT)
    others = known.of_tasks(names[1:]).called("Self-SD on the others") if known else None
    if known and others:
        own = known.of_tasks(names[:1]).called("Self-SD on its task")
        yield faster("Self-SD loses speed where the task is not its own", own.speed, others.speed)
        yield is_more("Self-SD's drafts are accepted more often on its own task", own.acceptance, others.acceptance)
    if steady:
        shares = [steady.of_tasks([name]).acceptance for name in names]
        lowest = min((share for share in shares if share.count), key=lambda share: share.value or 0.0, default=NONE)
        yield is_above("SWIFT's drafts are accepted by more than 90 % on every task", lowest, STEADY)
        yield pays("SWIFT is faster than plain decoding over the whole stream", steady.speed)
    if steady and others:
        behind = steady.of_tasks(names[1:]).called("SWIFT on the other tasks")
        yield faster("SWIFT is faster than Self-SD once the task has changed", behind.speed, others.speed)


def _draw(figure: Any, courses: Mapping[str, Course], labels: Mapping[str, str]) -> None:
    left, right = figure.subplots(1, 2)
    draw_plain(left)
    draw_groups(left, list(labels), {way: _values(course, labels) for way, course in courses.items()}, "speed-up")
    shares = {way: [course.of_tasks([name]).acceptance.value for name in labels] for way, course in courses.items()}
    draw_groups(right, list(labels), shares, "accepted share of the draft steps")
    right.set_ylim(0, 1.15)
