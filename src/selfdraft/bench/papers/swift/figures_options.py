"""Figure 8: most steps and Bayesian interval of the search along a stream, and speed-up against the skip ratio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...charts import Lines, Series
from ...report import Table, number, times
from ..cells import NOT_MEASURED, Speed, faster, figure, from_enough, is_larger, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..scale import Scale
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import Course, text_rows
from .figures_common import FIRST_TASK, stream_prompts, swift, text_tokens, token_effort, window_note
from .methods import SWIFT

USUAL, FEWER, SELDOM = "S, interval", "half of S", "twice the interval"
PAPER_STEPS, PAPER_INTERVAL = 1000, 25
QUICK_STEPS, QUICK_INTERVAL = 16, 4
QUICK_TEXTS, PAPER_TEXTS = 2, 50
STREAM = f"stream {FIRST_TASK}"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6)
"""The paper's are 0.3 to 0.6; what pays with a small model may be less."""
GROUPS = ((0.3, 0.45, 0.6), (0.1, 0.2, 0.4, 0.5))
"""Ratios that take turns on the same texts; a few show the course."""
QUICK_RATIO_TEXTS = 1
NOT_REACHED = "the option had no effect: the search never got that far"
DRAFTED_ALIKE = "the option had no effect on the drafts: both drafted with the same sets"
CLOSE_MS = 0.05

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
    efforts = [Effort("texts", num_texts, PAPER_TEXTS), token_effort(found)]
    if options:
        efforts.append(Effort("S asked for", options[USUAL]["max_steps"], PAPER_STEPS))
    return Section(
        [Table("speed-up along the stream", header, rows)],
        efforts,
        told(_claims_of_options(found, courses)),
        [*_step_notes(found, options), *window_note(found)],
        Plot(_options_chart(courses), "Speed-up of all texts so far along the stream.") if courses else None,
    )


def _halves(course: Course) -> list[Speed | None]:
    middle = (len(course) + 1) // 2
    return [course.between(0, middle).speed, course.between(middle, len(course)).speed]


def _step_notes(found: Found, options: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Steps are not kept; by the paper's rules a round has one at most, so rounds bound them."""
    tokens, length = (figure(found, STREAM, USUAL, name) for name in ("num_tokens", "mean_generated_length"))
    if not tokens or not length or not options:
        return []
    num_rounds, least = round(tokens / length), min(one["max_steps"] for one in options.values())
    if num_rounds >= least:
        return []
    return [f"the search makes a step a round at most, and the stream had {num_rounds} rounds: no S was reached"]


def _claims_of_options(found: Found, courses: Mapping[str, Course]) -> Iterable[Trend]:
    """An option that changed nothing is not judged: chance alone would tell the ways apart."""
    usual, fewer, seldom = (courses.get(way) for way in (USUAL, FEWER, SELDOM))
    if usual and fewer:
        (first, last), (first_fewer, last_fewer) = _halves(usual), _halves(fewer)
        is_reached = not _is_alike(found, usual, fewer) or not fewer.is_searching[-1]
        for trend in (
            faster("with half of S the beginning of the stream is faster", first_fewer, first),
            faster("with the whole S its end is faster", last, last_fewer),
        ):
            yield trend if is_reached else Trend(trend.claim, None, NOT_REACHED)
    if usual and seldom:
        trend = faster("with twice the interval the beginning is faster", _halves(seldom)[0], _halves(usual)[0])
        yield Trend(trend.claim, None, DRAFTED_ALIKE) if _is_alike(found, usual, seldom) else trend
        yield _is_cheaper(seldom, usual)  # what suggestions take shows even where none of them is drafted with


def _is_alike(found: Found, one: Course, other: Course) -> bool:
    """Whether both drafted the same: text by text, and with the same sets as often."""
    drafts = [[(row["num_draft_steps"], row["num_accepted"]) for row in course.own] for course in (one, other)]
    sets = [found.get(STREAM, course.label, "skips") for course in (one, other)]
    return drafts[0] == drafts[1] and sets[0] == sets[1]


def _is_cheaper(seldom: Course, usual: Course) -> Trend:
    """While both search: one may be over sooner, by chance."""
    claim = "a longer interval makes optimisation cheaper"
    both = [all(pair) for pair in zip(seldom.is_searching, usual.is_searching, strict=True)]
    less, more = (course.part(both).split["optimise"] if any(both) else None for course in (seldom, usual))
    one, two = (f"ms a token with {usual.label}", more), (f"with {seldom.label}", less)
    return from_enough(is_larger(claim, one, two, margin=CLOSE_MS), sum(both))


def _options_chart(courses: Mapping[str, Course]) -> Lines:
    lines = [Series(way, list(enumerate(course.running, start=1))) for way, course in courses.items()]
    return Lines(lines, "text of the stream", "speed-up of all texts so far", baseline=1.0)


# -------------------------------------------------------------------------------------------------- 8b: its ratio


def ratio_units(bench: Workbench) -> Iterable[Unit]:
    for group in GROUPS:
        yield from bench.for_each([FIRST_TASK], partial(_at, bench, group), prefix=f"{_listed(group)} ")


def _listed(group: Sequence[float]) -> str:
    return ", ".join(map(str, group))


def _way(ratio: float) -> str:
    return f"ratio {ratio}"


def _at(bench: Workbench, group: Sequence[float], _: Task) -> Values:
    """Each ratio stays: it is not lowered where too few drafts are accepted."""
    methods = {_way(ratio): swift(bench.scale, ratio=ratio, min_ratio=ratio) for ratio in group}
    prompts = stream_prompts(bench, FIRST_TASK, QUICK_RATIO_TEXTS)
    figures, records = bench.compare_texts(methods, prompts, tokens=text_tokens(bench.scale))
    return {**figures, "texts": text_rows(records)}


def _courses(found: Found) -> dict[float, tuple[str, Course]]:
    """By ratio, with the unit that has it."""
    units = {ratio: f"{_listed(group)} {FIRST_TASK}" for group in GROUPS for ratio in group}
    known = {ratio: (units[ratio], Course.of(found, units[ratio], _way(ratio))) for ratio in RATIOS}
    return {ratio: (unit, course) for ratio, (unit, course) in known.items() if course is not None}


def show_ratios(found: Found) -> Section:
    courses = _courses(found)
    speeds = {ratio: one for ratio, (_, course) in courses.items() if (one := course.without_search.speed)}
    rows = [
        [
            f"{ratio:.2f}",
            *(times(None if one is None else one.value) for one in (speeds.get(ratio), course.speed)),
            number(figure(found, unit, _way(ratio), "acceptance_rate"), ".2f"),
            number(figure(found, unit, _way(ratio), "mean_generated_length"), ".2f"),
        ]
        for ratio, (unit, course) in courses.items()
    ]
    num_texts = max((len(course) for _, course in courses.values()), default=0)
    return Section(
        [Table("", ["skip ratio", "speed-up", "with its search", "accepted", "M"], rows)],
        [Effort("texts", num_texts, None), token_effort(found), Effort("models", 1, 3)],
        told(_claims_of_ratios(speeds)),
        [
            "each ratio searches along the stream; speed-ups leave the scoring of candidates out, for the stream is "
            "short: in the paper it is 0.8 % of the time",
            *window_note(found),
        ],
        Plot(_ratios_chart(speeds), "Speed-up by skip ratio.", (6.4, 4.0)) if speeds else None,
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
    yield Trend("larger models have larger best ratios and gain more", None, "one model was measured")


def _ratios_chart(known: Mapping[float, Speed]) -> Lines:
    return Lines([Series(SWIFT, sorted(known.items()))], "skip ratio", "speed-up", baseline=1.0)
