"""Figure 8: most steps and Bayesian interval of the search along a stream, and speed-up against the skip ratio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ...report import Table, number, times
from ..cells import NOT_MEASURED
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..scale import Scale
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import LEAST_PROMPTS, Course, Speed, faster, speed_of, text_rows, told
from .figures_common import (
    FIRST_TASK,
    PAPER_INTERVAL,
    PAPER_STEPS,
    SWIFT,
    stream_prompts,
    swift,
    text_tokens,
    window_note,
)
from .figures_drawing import draw_lines, draw_plain

USUAL, FEWER, SELDOM = "S, interval", "half of S", "twice the interval"
QUICK_STEPS, QUICK_INTERVAL = 16, 4
QUICK_TEXTS, PAPER_TEXTS = 2, 50
STREAM = f"stream {FIRST_TASK}"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6)
"""The paper's are 0.3 to 0.6; what pays with a small model may be less."""
ORDER = (0.45, 0.3, 0.6, 0.1, 0.4, 0.5, 0.2)
_NOTICEABLE = 0.05

# ------------------------------------------------------------------------------------------------- 8a: its options


def option_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([FIRST_TASK], lambda task: _options(bench), prefix="stream ")


def settings(scale: Scale) -> dict[str, dict[str, int]]:
    """S and the Bayesian interval; at the quick scale both are smaller, for there are few steps."""
    steps, interval = (QUICK_STEPS, QUICK_INTERVAL) if scale.is_quick else (PAPER_STEPS, PAPER_INTERVAL)
    return {
        USUAL: {"max_steps": steps, "interval": interval},
        FEWER: {"max_steps": steps // 2, "interval": interval},
        SELDOM: {"max_steps": steps, "interval": 2 * interval},
    }


def _options(bench: Workbench) -> Values:
    known = settings(bench.scale)
    methods = {name: swift(bench.scale, **options) for name, options in known.items()}
    prompts = stream_prompts(bench, FIRST_TASK, QUICK_TEXTS)
    figures, records = bench.compare_texts(methods, prompts, tokens=text_tokens(bench.scale))
    return {**figures, "texts": text_rows(records), "settings": known}


def show_options(found: Found) -> Section:
    courses = {way: known for way in (USUAL, FEWER, SELDOM) if (known := Course.of(found, STREAM, way))}
    options: Mapping[str, Mapping[str, int]] = found.get(STREAM, "settings") or {}
    rows = [
        [
            way,
            f"{options[way]['max_steps']}, {options[way]['interval']}",
            *(times(None if speed is None else speed.value) for speed in (*_halves(course), course.speed)),
            number(course.split["optimise"], ".2f"),
        ]
        for way, course in courses.items()
    ]
    header = ["search", "S, interval", "first half", "second half", "whole stream", "optimise, ms a token"]
    num_texts = max(map(len, courses.values()), default=0)
    efforts = [Effort("texts", num_texts, PAPER_TEXTS)]
    if options:
        efforts.append(Effort("S", options[USUAL]["max_steps"], PAPER_STEPS))
    return Section(
        [Table("speed-up along the stream", header, rows)],
        efforts,
        told(_claims_of_options(courses)),
        window_note(found),
        Plot(lambda figure: _draw_options(figure, courses), "Speed-up of all texts so far along the stream.")
        if courses
        else None,
    )


def _halves(course: Course) -> list[Speed | None]:
    middle = (len(course) + 1) // 2
    return [course.between(0, middle).speed, course.between(middle, len(course)).speed]


def _claims_of_options(courses: Mapping[str, Course]) -> Iterable[Trend]:
    usual, fewer, seldom = (courses.get(way) for way in (USUAL, FEWER, SELDOM))
    if usual and fewer:
        (first, last), (first_fewer, last_fewer) = _halves(usual), _halves(fewer)
        yield faster("with half of S the beginning of the stream is faster", first_fewer, first)
        yield faster("with the whole S its end is faster", last, last_fewer)
    if usual and seldom:
        yield _is_cheaper(seldom, usual)


def _is_cheaper(seldom: Course, usual: Course) -> Trend:
    claim = "a longer interval makes optimisation cheaper"
    less, more = seldom.split["optimise"], usual.split["optimise"]
    because = f"{less:.2f} and {more:.2f} ms a token"
    is_close = abs(less - more) <= _NOTICEABLE * max(less, more)
    return Trend(claim, None if is_close or len(usual) < LEAST_PROMPTS else less < more, because)


def _draw_options(figure: Any, courses: Mapping[str, Course]) -> None:
    axes = figure.subplots()
    draw_plain(axes)
    lines = {way: list(enumerate(course.running, start=1)) for way, course in courses.items()}
    draw_lines(axes, lines, "text of the stream", "speed-up of all texts so far")
    axes.xaxis.get_major_locator().set_params(integer=True)


# -------------------------------------------------------------------------------------------------- 8b: its ratio


def ratio_units(bench: Workbench) -> Iterable[Unit]:
    def measure(ratio: float, _: Task) -> Values:
        return _at(bench, ratio)

    for ratio in ORDER:
        yield from bench.for_each([FIRST_TASK], partial(measure, ratio), prefix=f"{ratio} ")


def _at(bench: Workbench, ratio: float) -> Values:
    """The ratio stays: it is not lowered where too few drafts are accepted."""
    method = swift(bench.scale, ratio=ratio, min_ratio=ratio)
    prompts = stream_prompts(bench, FIRST_TASK, QUICK_TEXTS)
    return bench.compare({SWIFT: method}, prompts, tokens=text_tokens(bench.scale))


def _unit(ratio: float) -> str:
    return f"{ratio} {FIRST_TASK}"


def show_ratios(found: Found) -> Section:
    known = {ratio: one for ratio in RATIOS if (one := speed_of(found, _unit(ratio), SWIFT, label=f"ratio {ratio}"))}
    rows = [
        [
            f"{ratio:.2f}",
            times(one.value),
            number(found.get(_unit(ratio), SWIFT, "total", "acceptance_rate"), ".2f"),
            number(found.get(_unit(ratio), SWIFT, "total", "mean_generated_length"), ".2f"),
        ]
        for ratio, one in known.items()
    ]
    num_texts = max((one.num_prompts for one in known.values()), default=0)
    return Section(
        [Table("", ["skip ratio", "speed-up", "accepted", "length"], rows)],
        [Effort("texts", num_texts, PAPER_TEXTS), Effort("models", 1, 3)],
        told(_claims_of_ratios(known)),
        window_note(found),
        Plot(lambda figure: _draw_ratios(figure, known), "Speed-up by skip ratio.", (6.4, 4.0)) if known else None,
    )


def _claims_of_ratios(known: Mapping[float, Speed]) -> Iterable[Trend]:
    """An optimum inside: the best ratio is clearly better than the smallest and than the largest."""
    claim = "speed-up rises with the ratio, then falls"
    if len(known) < 3:
        yield Trend(claim, None, NOT_MEASURED)
        return
    best, ends = max(known, key=lambda ratio: known[ratio].value), (min(known), max(known))
    if best in ends:
        other = known[ends[1] if best == ends[0] else ends[0]]
        clear = faster(claim, known[best], other)
        yield Trend(claim, None if clear.holds is None else False, f"it is best at an end: {clear.because}")
    else:
        both = [faster(claim, known[best], known[end]) for end in ends]
        yield Trend(
            claim, None if None in [one.holds for one in both] else True, "; ".join(one.because for one in both)
        )
    yield Trend("larger models have larger best ratios", None, f"one model was measured; its best is {best}")


def _draw_ratios(figure: Any, known: Mapping[float, Speed]) -> None:
    axes = figure.subplots()
    draw_plain(axes)
    draw_lines(axes, {SWIFT: [(ratio, one.value) for ratio, one in known.items()]}, "skip ratio", "speed-up")
