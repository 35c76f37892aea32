"""Analyses of the SWIFT paper on CNN/DM: its parts (table 8), the window (9), other ways to skip layers (10 and 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....strategies.swift_search import SwiftOptions
from ...report import Table, number
from ..cells import NOT_MEASURED, has_larger_figure, is_faster, is_larger, told
from ..recipe import Effort, Experiment, Found, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Methods, Workbench
from .lessons import self_sd_lesson, swift_lesson
from .methods import (
    LAYER_SKIP,
    NO_SEARCH,
    NO_SIBLINGS,
    NO_STOPPING,
    SELF_SD,
    SELF_SD_FEW,
    SWIFT,
    accelerating,
    early_exit,
    parts,
    self_sd,
    with_siblings,
)
from .shown import (
    COST,
    EXAMPLES,
    cost_cell,
    efforts,
    figures_row,
    is_measured,
    measured,
    notes,
    skip_ratio,
)

TASK = "cnn-dm"
SAME_RATIO = 0.01

# ------------------------------------------------------------------------------------------------------ table 8


def ablation_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([TASK], lambda task: measured(bench, task, parts(), swift_lesson(bench, task)))


def show_ablation(found: Found) -> Section:
    rows = [
        [way, *figures_row(found, TASK, way), cost_cell(found, TASK, way)]
        for way in parts()
        if is_measured(found, TASK, way)
    ]
    swift, unstopped = (TASK, SWIFT), (TASK, NO_STOPPING)
    alone = (TASK, NO_SIBLINGS)
    trends = [
        is_faster("stopping early makes it faster", found, swift, unstopped),
        is_faster("siblings make it faster", found, swift, alone),
        has_larger_figure("siblings make M larger", found, "mean_generated_length", swift, alone),
        _search_helps(found),
        has_larger_figure("without early stopping M grows", found, "mean_generated_length", unstopped, swift),
        has_larger_figure("stopping early, more drafts are accepted", found, "acceptance_rate", swift, unstopped),
    ]
    return Section(
        [Table("", ["method", "M", "alpha", "speed-up", "c"], rows)],
        efforts(found, [TASK]),
        told(trends),
        notes(found, COST, *_ratio_notes(found), EXAMPLES),
    )


def _ratio_notes(found: Found) -> list[str]:
    searched, evenly = (skip_ratio(found, TASK, way) for way in (SWIFT, NO_SEARCH))
    if searched is None or evenly is None or abs(searched - evenly) < SAME_RATIO:
        return []
    return [
        f"SWIFT skips {searched:.2f} of the sub-layers, {NO_SEARCH} {evenly:.2f}: by its own rule it skips fewer while "
        "too few drafted tokens are accepted"
    ]


def _search_helps(found: Found) -> Trend:
    """While the search has found nothing else both draft with the same set, and chance alone makes one faster."""
    trend = is_faster("the search makes it faster than evenly spaced layers", found, (TASK, SWIFT), (TASK, NO_SEARCH))
    searched, evenly = (found.get(TASK, way, "skips") for way in (SWIFT, NO_SEARCH))
    is_same = bool(searched) and searched == evenly
    return Trend(trend.claim, None, "its best set is still the evenly spaced one") if is_same else trend


# ------------------------------------------------------------------------------------------------------ table 9

WINDOWS = (32, 16, 64, 128)
"""The usual one first; the larger the more text is needed before anything can be scored."""
PAPER_WINDOW = 32
FEW_STEPS = SwiftOptions().interval
"""Of fewer none comes from Bayesian optimisation, and what was found is chance."""
NOTICEABLE = 0.1
"""By how much, as a share, mean times of steps must differ."""


def window_units(bench: Workbench) -> Iterable[Unit]:
    """Each window with a search of its own, that of the usual one as elsewhere; without a step nothing is measured."""
    for window in WINDOWS:
        options = {} if window == PAPER_WINDOW else {"window": window}

        def measure(task: Task, options: dict[str, int] = options, way: str = _window_way(window)) -> Values:
            lesson = swift_lesson(bench, task, **options)
            if not lesson.facts["num_steps"]:
                return {"lesson": dict(lesson.facts)}
            return measured(bench, task, {way: accelerating(**options)}, lesson)

        yield from bench.for_each([TASK], measure, prefix=f"{window} ")


def _window_way(window: int) -> str:
    return f"window {window}"


def show_windows(found: Found) -> Section:
    units = {window: f"{window} {TASK}" for window in sorted(WINDOWS)}
    rows = [
        [str(window), *figures_row(found, unit, _window_way(window)), *_step_cells(found, unit)]
        for window, unit in units.items()
        if found.get(unit, "lesson") is not None
    ]
    trends = [_usual_window_is_faster(found, window, units) for window in units if window != PAPER_WINDOW]
    return Section(
        [Table("", ["window", "M", "alpha", "speed-up", "ms a step", "ms a token", "steps"], rows)],
        efforts(found, list(units.values()), steps=None),
        told([*trends, _longer_steps(found, units)]),
        notes(
            found,
            "ms a step: of one step of the search; ms a token: the same over all tokens of the search's texts. The "
            "paper's latency is over all tokens of 1000 texts, most of them behind the search",
            "steps begin once a text has as many new tokens as the window: a large one has fewer in its time. "
            "In the paper all come to their end; where none was made nothing was measured here",
            EXAMPLES,
        ),
    )


def _usual_window_is_faster(found: Found, window: int, units: Mapping[int, str]) -> Trend:
    """It cannot be told where a search has hardly begun, or where both found the same set."""
    usual, other = ((units[one], _window_way(one)) for one in (PAPER_WINDOW, window))
    trend = is_faster(f"a window of {PAPER_WINDOW} is faster than one of {window}", found, usual, other)
    if trend.because == NOT_MEASURED:
        return trend
    lessons = {way: found.get(unit, "lesson") or {} for unit, way in (usual, other)}
    few = [f"{one.get('num_steps')} with {way}" for way, one in lessons.items() if not _is_searched(one)]
    if few:
        return Trend(trend.claim, None, f"too few steps: {' and '.join(few)}")
    sets = [lesson.get("skip") for lesson in lessons.values()]
    return Trend(trend.claim, None, "both found the same set") if sets[0] == sets[1] else trend


def _is_searched(lesson: Mapping[str, Any]) -> bool:
    return bool(lesson.get("is_over")) or (lesson.get("num_steps") or 0) >= FEW_STEPS


def _step_ms(found: Found, unit: str, of: str) -> float | None:
    lesson = found.get(unit, "lesson") or {}
    return 1000 * lesson["optimise_seconds"] / lesson[of] if lesson.get("num_steps") and lesson.get(of) else None


def _step_cells(found: Found, unit: str) -> list[str]:
    per_step, per_token = (_step_ms(found, unit, of) for of in ("num_steps", "num_tokens"))
    return [number(per_step, ".2f"), number(per_token, ".2f"), number(found.get(unit, "lesson", "num_steps"), "d")]


def _longer_steps(found: Found, units: Mapping[int, str]) -> Trend:
    """Between the smallest and the largest window that made more than a few steps."""
    counts = {window: found.get(unit, "lesson", "num_steps") or 0 for window, unit in units.items()}
    known = {window: _step_ms(found, units[window], "num_steps") for window, n in counts.items() if n >= FEW_STEPS}
    claim = "a step takes longer with a larger window"
    if len(known) < 2:
        has_more = sum(map(bool, counts.values())) > 1
        return Trend(claim, None, "too few steps" if has_more else NOT_MEASURED)
    first, last = min(known), max(known)
    return is_larger(claim, (f"ms with {last}", known[last]), (f"with {first}", known[first]), NOTICEABLE)


# ----------------------------------------------------------------------------------------------------- table 10

PAPER_ITERATIONS = 1000
PAPER_SELF_SD_SECONDS = 7.5 * 3600
LONGER = 3
"""Times SWIFT's seconds that Self-SD may search for table 10, where there is time."""
PAPER_TEXTS = 8
"""That Self-SD tries each set on."""
KINDS = {
    LAYER_SKIP: ("yes", "yes"),
    SELF_SD: ("no", "yes"),
    with_siblings(SELF_SD): ("no", "yes"),
    SWIFT: ("yes", "yes"),
}
"""Whether they need nothing beforehand, and whether the model stays the same: without its training LayerSkip, too."""


def _beside_self_sd(bench: Workbench, task: Task, name: str, others: Methods, **search: Any) -> Values:
    """SWIFT, a set that Self-SD finds, if it finds one in its time, and `others`; `search`: how Self-SD searches."""
    lesson, searched = swift_lesson(bench, task), self_sd_lesson(bench, task, **search)
    found = self_sd(name, searched["skip"]) if searched["skip"] else {}
    values = measured(bench, task, {SWIFT: accelerating(), **found, **others}, lesson)
    return {**values, "search": dict(searched)}


def layer_skipping_units(bench: Workbench) -> Iterable[Unit]:
    seconds = bench.scale.lesson_seconds * (1 if bench.scale.is_quick else LONGER)
    others = {LAYER_SKIP: early_exit(bench.engine.runner.num_layers)}
    return bench.for_each([TASK], lambda task: _beside_self_sd(bench, task, SELF_SD, others, seconds=seconds))


def show_layer_skipping(found: Found) -> Section:
    rows = [
        [way, *kind, *_cells(found, TASK, way), cost_cell(found, TASK, way)]
        for way, kind in KINDS.items()
        if is_measured(found, TASK, way)
    ]
    swift, plain, widened = ((TASK, way) for way in (SWIFT, SELF_SD, with_siblings(SELF_SD)))
    trends = [
        is_faster("SWIFT is faster than Self-SD", found, swift, plain),
        is_faster("SWIFT is faster than Self-SD with siblings", found, swift, widened),
        is_faster("siblings make Self-SD faster", found, widened, plain),
    ]
    header = ["method", "plug-and-play", "same distribution", "r", "M", "alpha", "speed-up", "c"]
    return Section(
        [Table("", header, rows)],
        [*efforts(found, [TASK]), *_search_efforts(found, TASK)],
        told(trends),
        notes(
            found,
            "LayerSkip here: the first layers draft, without the training that the paper's has; so it needs nothing "
            "beforehand and leaves the model as it is, and tells nothing of the paper's",
            COST,
            *_search_notes(found, TASK),
            EXAMPLES,
        ),
    )


def _search_efforts(found: Found, unit: str) -> list[Effort]:
    return [
        Effort("texts that Self-SD tries a set on", found.get(unit, "search", "num_prompts"), PAPER_TEXTS),
        Effort("sets that Self-SD tried", found.get(unit, "search", "num_steps"), PAPER_ITERATIONS),
        Effort("seconds it searched", _whole(found.get(unit, "search", "seconds")), PAPER_SELF_SD_SECONDS),
    ]


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _search_notes(found: Found, *units: str) -> list[str]:
    """What Self-SD's own search says of its best set."""
    notes = []
    for unit in units:
        speed, plain = (found.get(unit, "search", name) for name in ("tokens_per_second", "plain"))
        if plain is not None and speed is None:
            notes.append(f"{unit}: the time was over before Self-SD had tried a set")
        elif plain is not None and speed <= plain:
            notes.append(
                f"{unit}: no set that Self-SD tried was faster than plain decoding ({plain:.1f} tokens/s); the best of "
                f"them drafts here ({speed:.1f} when it was tried)"
            )
    return notes


# ----------------------------------------------------------------------------------------------------- table 12

SEARCHES: Mapping[str, Mapping[str, int]] = {SELF_SD: {}, SELF_SD_FEW: {"num_prompts": 1, "num_tokens": 8}}
"""Self-SD as it is, and with one short text for each set that it tries."""
PAPER_SEARCH_STEPS = {SELF_SD: 5, SELF_SD_FEW: 30}
PAPER_TRIED_ON = {SELF_SD: PAPER_TEXTS, SELF_SD_FEW: 1}


def equal_time_units(bench: Workbench) -> Iterable[Unit]:
    seconds = bench.scale.lesson_seconds
    for name, options in SEARCHES.items():

        def measure(task: Task, name: str = name, options: Mapping[str, int] = options) -> Values:
            return _beside_self_sd(bench, task, name, {}, seconds=seconds, **options)

        yield from bench.for_each([TASK], measure, prefix=f"{name} ")


def show_equal_time(found: Found) -> Section:
    units = {name: f"{name} {TASK}" for name in SEARCHES}
    rows, trends, more = [], [], []
    for name, unit in units.items():
        for way in (name, with_siblings(name)):
            if is_measured(found, unit, way):
                rows.append([way, "-", *_search_cells(found, unit, "search", "seconds"), *_cells(found, unit, way)])
            trends.append(is_faster(f"SWIFT is faster than {way}", found, (unit, SWIFT), (unit, way)))
        more += [
            Effort(f"texts that {name} tries a set on", found.get(unit, "search", "num_prompts"), PAPER_TRIED_ON[name]),
            Effort(f"sets that {name} tried", found.get(unit, "search", "num_steps"), PAPER_SEARCH_STEPS[name]),
        ]
    first = [unit for unit in units.values() if is_measured(found, unit, SWIFT)][:1]
    rows += [[SWIFT, *_swift_cells(found, unit), *_cells(found, unit, SWIFT)] for unit in first]
    header = ["method", "random steps", "Bayesian steps", "seconds", "r", "M", "alpha", "speed-up"]
    return Section(
        [Table("at similar times of searching", header, rows)],
        [*efforts(found, list(units.values())), *more],
        told(trends),
        notes(
            found,
            "seconds: of Self-SD the whole search, which may take as long as SWIFT's texts and steps together; of "
            "SWIFT its steps alone, for its texts are needed anyway",
            *_search_notes(found, *units.values()),
            EXAMPLES,
        ),
    )


def _cells(found: Found, unit: str, way: str) -> list[str]:
    return [number(skip_ratio(found, unit, way), ".2f"), *figures_row(found, unit, way)]


def _search_cells(found: Found, unit: str, lesson: str, seconds: str, steps: str = "num_steps") -> list[str]:
    return [number(found.get(unit, lesson, steps), "d"), number(found.get(unit, lesson, seconds), ".1f")]


def _swift_cells(found: Found, unit: str) -> list[str]:
    steps, bayesian = (found.get(unit, "lesson", name) for name in ("num_steps", "num_bayesian"))
    random = None if steps is None or bayesian is None else steps - bayesian
    return [number(random, "d"), *_search_cells(found, unit, "lesson", "optimise_seconds", "num_bayesian")]


ANALYSES = [
    Experiment("table-8", "SWIFT without one part each", ablation_units, show_ablation),
    Experiment("table-9", "the window that sets are judged by", window_units, show_windows),
    Experiment("table-10", "other ways to skip layers", layer_skipping_units, show_layer_skipping),
    Experiment("table-12", "Self-SD at similar times", equal_time_units, show_equal_time),
]
