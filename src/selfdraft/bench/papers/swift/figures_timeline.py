"""Figure 6: what SWIFT gains along a stream of one task, how its matchness rises, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...charts import Lines, Panels, Series, Stack, StackedBars
from ...report import Table, number, times
from ..cells import FEW_PROMPTS, NOT_MEASURED, faster, faster_than_plain, from_enough, is_larger, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import Course, text_rows
from .figures_common import FIRST_TASK, OURS, ours, stream_prompts, swift, text_tokens, token_effort, window_note
from .lessons import swift_lesson
from .methods import SWIFT
from .shown import PAPER_STEPS

PARTS = ("optimise", "draft", "verify", "other")
STREAM, SEARCH = f"stream {FIRST_TASK}", f"search {FIRST_TASK}"
WAYS = (SWIFT, OURS)
QUICK_TEXTS, PAPER_TEXTS = FEW_PROMPTS, 1000
MOST_ROWS = 12
"""Of the table that follows the stream."""
ENOUGH, LITTLE = 0.95, 0.01
"""The matchness that ends a search, and what optimisation may take of the time: the paper has 0.8 %."""

# ------------------------------------------------------------------------------------------------------ measuring


def timeline_units(bench: Workbench) -> Iterable[Unit]:
    yield from bench.for_each([FIRST_TASK], lambda task: _stream(bench), prefix="stream ")
    yield from bench.for_each([FIRST_TASK], lambda task: _search(bench, task), prefix="search ")


def _stream(bench: Workbench) -> Values:
    methods = {SWIFT: swift(bench.scale)}
    if not bench.scale.is_quick:
        methods[OURS] = ours(bench.scale)
    prompts = stream_prompts(bench, FIRST_TASK, QUICK_TEXTS)
    figures, records = bench.compare_texts(methods, prompts, tokens=text_tokens(bench.scale))
    return {**figures, "texts": text_rows(records)}


def _search(bench: Workbench, task: Task) -> Values:
    """Matchness of the set in use: at first, and behind each text of the search that the tables have as well."""
    known = swift_lesson(bench, task).values
    return {
        "first": known["steps"][0]["best"] if known["steps"] else None,
        "texts": [text["matchness"] for text in known["texts"]],
        "steps": [[step["step"], step["best"]] for step in known["steps"]],
        "num_steps": known["step"],
        "phase": known["phase"],
        "ratios": [step["ratio"] for step in (*known["steps"][:1], *known["steps"][-1:])],
    }


# -------------------------------------------------------------------------------------------------------- showing


def show_timeline(found: Found) -> Section:
    courses = {way: known for way in WAYS if (known := Course.of(found, STREAM, way))}
    num_texts = max(map(len, courses.values()), default=0)
    search = found.units.get(SEARCH, {})
    return Section(
        [_split_table(courses), _course_table(courses), _matchness_table(search)],
        [
            Effort("texts", num_texts, PAPER_TEXTS),
            token_effort(found),
            Effort("steps of the search", search.get("num_steps"), PAPER_STEPS),
        ],
        told([*_claims(courses.get(SWIFT)), _is_good_enough(search)]),
        [
            *_notes(courses, search),
            *window_note(found),
        ],
        Plot(
            _chart(courses, search),
            "Speed-up along the stream, matchness along the search, and milliseconds of a token by part.",
            (10.0, 6.4),
        )
        if courses
        else None,
    )


def _notes(courses: Mapping[str, Course], search: Values) -> list[str]:
    judged = f"{OURS}: candidates are judged by tokens they were not chosen by, for a twentieth of the time at most"
    apart = "matchness is told of a search on other prompts, the one behind which the tables are measured"
    first, *_, last = search.get("ratios") or (None, None)
    lowered = f"too few drafts were accepted, so the skip ratio fell from {first} to {last} while it searched"
    return [
        *_rise_note(search),
        *([judged] if OURS in courses else []),
        *([apart] if search else []),
        *([lowered] if first != last else []),
    ]


def _rise_note(search: Values) -> list[str]:
    """No claim: it could not fail."""
    if (known := _ends(search)) is None:
        return []
    return [
        f"matchness went from {known[0]:.2f} to {known[1]:.2f} while SWIFT searched. That tells nothing by itself: by "
        "the paper's rules it is the best that any candidate had at this skip ratio, so it cannot fall"
    ]


def _split_table(courses: Mapping[str, Course]) -> Table:
    splits = {way: course.split for way, course in courses.items()}
    rows = [
        [part, *(cell for split in splits.values() for cell in _split_cells(split, part))] for part in PARTS if splits
    ]
    header = ["", *(f"{way}, {unit}" for way in courses for unit in ("ms", "share"))]
    return Table("latency of a token", header, rows)


def _split_cells(split: Mapping[str, float], part: str) -> list[str]:
    whole = sum(split.values())
    return [f"{split[part]:.2f}", f"{split[part] / whole:.1%}" if whole else "-"]


def _course_table(courses: Mapping[str, Course]) -> Table:
    """Evenly spread rows, the last one among them."""
    known = [(course.single, course.running) for course in courses.values()]
    num_texts = min((len(single) for single, _ in known), default=0)
    step = -(-num_texts // MOST_ROWS) if num_texts else 1
    rows = [
        [str(place + 1), *(times(values[place]) for both in known for values in both)]
        for place in range((num_texts - 1) % step if num_texts else 0, num_texts, step)
    ]
    header = ["text", *(f"{way}, {what}" for way in courses for what in ("this text", "all so far"))]
    return Table("speed-up along the stream", header, rows)


def _matchness_table(search: Values) -> Table:
    if not search:
        return Table("matchness", [], [])
    first, texts = search["first"], search["texts"]
    rows = [["at first", number(first, ".2f")]]
    rows += [["behind the first text", number(texts[0], ".2f")]] if texts else []
    rows += [[f"behind text {len(texts)}", number(texts[-1], ".2f")]] if texts[1:] else []
    return Table(f"matchness, {search['num_steps']} steps", ["", SWIFT], rows)


# ---------------------------------------------------------------------------------------------------------- claims


def _claims(course: Course | None) -> Iterable[Trend]:
    if course is None:
        return
    searching = course.is_searching
    behind = course.part([not is_searching for is_searching in searching]).called("behind the search").speed
    during = course.part(searching).called("while it searches").speed
    yield faster("SWIFT is faster behind its search than while it searches", behind, during)
    label = f"{SWIFT}, which searches in {sum(searching)} of {len(course)} texts,"
    yield faster_than_plain("SWIFT is faster than plain decoding over the whole stream", course.called(label).speed)
    yield _is_cheap(course)
    split = course.split
    drafting, verifying = ((f"ms to {part}", split[part]) for part in ("draft", "verify"))
    yield from_enough(is_larger("drafting takes more time than verifying", drafting, verifying), len(course))


def _is_cheap(course: Course) -> Trend:
    """A search takes so many seconds, however long the stream: so it is told of a stream as long as the paper's."""
    claim = f"optimisation takes less than 1 % of the time over {PAPER_TEXTS} texts"
    searched = course.split["optimise"]
    others = sum(course.split.values()) - searched
    here, there = (searched / (searched + others * more) for more in (1, PAPER_TEXTS / len(course)))
    because = f"{here:.1%} of {len(course)} texts"
    if course.is_searching[-1]:
        return Trend(claim, None, f"{because}, and the search was not over")
    return from_enough(Trend(claim, there < LITTLE, f"{because}, which is {there:.1%} of {PAPER_TEXTS}"), len(course))


def _ends(search: Values) -> tuple[float, float] | None:
    """Matchness at first and in the end."""
    values: Sequence[float | None] = [search.get("first"), *search.get("texts", ())]
    known = [value for value in values if value is not None]
    return (known[0], known[-1]) if len(known) > 1 else None


def _is_good_enough(search: Values) -> Trend:
    claim = f"the search ends with a matchness beyond {ENOUGH}"
    if (known := _ends(search)) is None:
        return Trend(claim, None, NOT_MEASURED)
    is_over, holds = search["phase"] == "accelerate", known[1] > ENOUGH
    because = f"{known[0]:.2f} at first, {known[1]:.2f} in the end, {search['num_steps']} steps"
    because += "" if is_over else ": the search was not over"
    return Trend(claim, holds if is_over or holds else None, because)


# --------------------------------------------------------------------------------------------------------- drawing


def _chart(courses: Mapping[str, Course], search: Values) -> Stack:
    lines = [Series(way, list(enumerate(course.running, start=1))) for way, course in courses.items()]
    dots = [
        Series("", list(enumerate(course.single, start=1)), "dots", place)
        for place, course in enumerate(courses.values())
    ]
    left = Lines([*lines, *dots], "text of the stream (dots: single texts)", "speed-up of all so far", baseline=1.0)
    in_use = [Series("SWIFT's set in use", search.get("steps", ()))]
    right = Lines(in_use, "step of the search", "matchness", y_limits=(0, 1.02))
    parts = {part: [course.split[part] for course in courses.values()] for part in PARTS}
    return Stack([Panels([left, right]), StackedBars(list(courses), parts, "milliseconds of a token")], [2.2, 1])
