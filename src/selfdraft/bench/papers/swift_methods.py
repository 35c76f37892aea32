"""What the experiments of SWIFT share: methods, searches beforehand, tasks, efforts; and figures 6 and 8a.

SWIFT is in the paper's own form (`paper`): it drafts even where plain decoding is faster, as that is what the paper is
about. The form that people use switches itself off there. The streams of 6 and 8a are searched on while measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...calibrate.fit_once import Fitted
from ...errors import ProfileError
from ...measure.estimate import Estimate, pair, ratio
from ...measure.figures import PARTS, share
from ...measure.records import OFF, Record
from ...registry import resolve
from ...strategies.swift_search import SwiftOptions
from ...types import Prompt
from ..charts import Lines, Panels, Series, Stack, StackedBars
from ..tables import Table, interval, number
from .claims import SPEEDUP, Side, Unless, above, estimate_of, faster, is_above, is_below, is_faster, speedup
from .experiment import Effort, Experiment, Found, Judgement, Plot, Values, fewest_prompts
from .forms import Column, by_arm
from .workbench import Methods, Task, UnitsOf, Workbench, each, joined

Method = dict[str, Any]
Searches = Mapping[str, Mapping[str, Any]]
Judgements = Iterator[Judgement | None]

SWIFT, OURS, SELF_SD = "SWIFT", "SWIFT, ours", "Self-SD"
FIRST_TASK = "cnn-dm"
USUAL, FEWER, SELDOM = "S, interval", "half of S", "twice the interval"
PAPER_WINDOW = 32
PAPER_TOKENS = 512  # new ones of a text at most, in the analyses and on HumanEval; of a text to search on as well
FIT_PROMPTS = 32
LONGER = 3  # times SWIFT's seconds that Self-SD may search, where there is time

# ------------------------------------------------------------------------------------------------------- methods


def swift(**options: Any) -> Method:
    """While it searches."""
    return {"strategy": "swift", "settings": {"swift": {"paper": True, **options}}}


accelerating = partial(swift, max_steps=1)
"""After the search: with what it found, and not a step more. In the paper steps are 0.8 % of the time."""


def sampled(method: Method) -> Method:
    """With the siblings that SWIFT's code has where it samples."""
    return {**method, "settings": {**method["settings"], "siblings": {"table": "swift"}}}


def paired_as_swift(strategy: str, **options: Any) -> Method:
    """Another strategy with SWIFT's early stopping and its siblings."""
    pairing = resolve(swift())
    settings = {name: values for name, values in pairing["settings"].items() if name != "swift"}
    return {**pairing, "strategy": strategy, "settings": {**settings, strategy: options}}


def with_siblings(name: str) -> str:
    """An arm with the same set, and SWIFT's early stopping and siblings."""
    return f"{name} w/ dynamic ver."


def self_sd(name: str, skip: str | None) -> dict[str, Method]:
    """A set that Self-SD's search found: with its own adaptive stopping, and paired as SWIFT. No set: neither."""
    if not skip:
        return {}
    own = {"strategy": "fixed", "lookahead": "adaptive", "tree": "chain", "settings": {"fixed": {"skip": skip}}}
    return {name: own, with_siblings(name): paired_as_swift("fixed", skip=skip)}


# ---------------------------------------------------------------------------------------------------------- fits


def to_search_on(bench: Workbench, task: Task) -> list[Prompt]:
    """Many, as the paper's texts never come again."""
    more = None if bench.scale.is_quick else bench.task(task.name, num_fit=FIT_PROMPTS)
    return [prompt for prompt in (more or task).fitting if prompt not in task.measured]


def swift_fit(bench: Workbench, task: Task, seconds: float | None = None, **options: Any) -> Fitted:
    """SWIFT as its paper has it, whose streams are so long that its search is over soon: here it searches beforehand.

    `seconds`: other than those of the scale; `options`: of the strategy.
    """
    name = "-".join(["swift-paper", task.name, *(f"{key}-{value}" for key, value in options.items())])
    return bench.fit(name, swift(**options), to_search_on(bench, task), seconds, text_tokens=PAPER_TOKENS)


def facts(fitted: Fitted) -> dict[str, Any]:
    """What SWIFT's search took: steps, seconds of scoring candidates, tokens; and what it found."""
    state, texts = fitted.values, fitted.values.get("texts", ())
    num_steps = state.get("step", 0)
    return {
        "num_steps": num_steps,
        "num_bayesian": num_steps // SwiftOptions().interval,
        "skip": state.get("skip"),
        "is_over": bool(state.get("is_complete")),
        "optimise_seconds": sum(text["optimise_seconds"] for text in texts),
        "num_tokens": sum(text["num_tokens"] for text in texts),
    }


def self_sd_fit(
    bench: Workbench,
    name: str,
    prompts: Sequence[Prompt],
    seconds: float | None = None,
    *,
    num_prompts: int = 8,
    num_tokens: int = 32,
) -> dict[str, Any]:
    """Self-SD's search: the fastest set that drafts (`skip`; None: there was no time to try one), its speed and the
    plain one, sets tried, prompts to try each on, seconds of the whole search.

    Unlike `draft-verify` it does not decode plainly where that was faster: the paper's Self-SD drafts in any case.
    """
    options, allowed = {"num_prompts": num_prompts, "num_tokens": num_tokens}, seconds or bench.scale.fit_seconds
    method = {"strategy": "draft-verify", "settings": {"draft-verify": options}}
    fitted = bench.fit(f"self-sd-{name}-{num_prompts}-{num_tokens}-{allowed:g}", method, prompts, allowed)
    if fitted.facts["error"]:
        raise ProfileError(f"Self-SD could not search: {fitted.facts['error']}")
    found = fitted.values["sets"]["mixed"]
    return {
        "skip": None,
        "tokens_per_second": None,
        **(found["drafting"] or {}),
        "plain": found["plain"],
        "num_steps": found["num_tried"],
        "num_bayesian": found["num_tried"],
        "num_prompts": min(num_prompts, len(prompts)),
        "optimise_seconds": fitted.facts["seconds"],
    }


def searched(
    bench: Workbench,
    task: Task,
    methods: Methods,
    searches: Searches | None = None,
    options: Mapping[str, Any] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """A unit's values: methods on a task's prompts, SWIFT after its search with `options`. `searches`: Self-SD's."""
    fitted = swift_fit(bench, task, **(options or {}))
    known = {"tokens": asked.get("tokens") or bench.scale.tokens, "search": facts(fitted), "searches": searches or {}}
    return {**bench.measure(task, methods, knows=[fitted], **asked), **known}


def of_search(name: str, key: str, form: str, per: str | None = None) -> Column:
    """A fact of the arm's search; `per`: thousandths of it for each of another."""

    def value(found: Found, unit: str, arm: str) -> str:
        search = found.get(unit, "searches", arm) or found.get(unit, "search") or {}
        whole = search.get(key)
        return number(whole if per is None else share(whole and 1000 * whole, search.get(per)), form)

    return name, value


def self_sd_notes(found: Found) -> list[str]:
    """What Self-SD's own search says of its best set, where that does not pay."""
    searches = [search for values in found.units.values() for search in values.get("searches", {}).values()]
    known = {(search["tokens_per_second"], search["plain"]) for search in searches}
    late = ["the time was over before Self-SD had tried a set"] if any(speed is None for speed, _ in known) else []
    slow = sorted(f"{speed:.1f} against {plain:.1f} tokens/s" for speed, plain in known if speed and speed <= plain)
    told = (
        f"no set that Self-SD tried was faster than plain decoding there ({', '.join(slow)}); the best of them drafts"
    )
    return [*late, *([told] if slow else [])]


def drafted_alike(found: Found, one: Side, other: Side) -> bool:
    """Whether both drafted the same on every text: then only chance makes one faster."""
    pairs = pair(one.records(found), other.records(found))
    drafts = [[(record.num_draft_steps, record.num_accepted, record.skips) for record in both] for both in pairs]
    return bool(drafts) and all(own == theirs for own, theirs in drafts)


def alike(reason: str) -> Unless:
    """For `unless`: where both drafted the same."""
    return lambda found, one, other: reason if drafted_alike(found, one, other) else None


# --------------------------------------------------------------------------------------------------------- tasks


def by_task(tasks: Sequence[Task]) -> list[Prompt]:
    """Their measured prompts, one task after the other; the task is the domain, so that figures are had by task."""
    return [replace(prompt, domain=task.name) for task in tasks for prompt in task.measured]


def labels_of(found: Found) -> dict[str, str]:
    """Of the tasks whose prompts took part."""
    return {name: label for values in found.units.values() for name, label in values.get("labels", {}).items()}


# ------------------------------------------------------------------------------------------------------- efforts


def _mean_steps(found: Found) -> float | None:
    searches = [one["search"] for unit, one in found.units.items() if "search" in one and not unit.startswith("ours")]
    return round(statistics.mean(one["num_steps"] for one in searches)) if searches else None


EFFORTS: Mapping[str, Effort] = {
    "prompts of all tasks": fewest_prompts,
    "prompts of all three tasks": fewest_prompts,
    "steps of SWIFT's search": _mean_steps,
    "seconds it may take": lambda found: found.scale.get("fit_seconds"),
    "seconds of a search": lambda found: found.scale.get("fit_seconds"),
    "S": lambda found: options_of(bool(found.scale.get("is_quick")))[USUAL]["max_steps"],
    "other texts": lambda found: len(found.get(FIRST_TASK, "matches") or ()),
}

# ------------------------------------------------------------------------------------------ streams

Where = Callable[[Record], bool]
STREAM, SEARCH = f"stream {FIRST_TASK}", f"search {FIRST_TASK}"
PAPER_TEXTS, QUICK_TEXTS = 1000, 3
SEARCHING = 0.02
"""Of a text's time, from which on it was searched on; counting what became of drafts takes less."""


def stream_units(methods_of: Callable[[bool], Methods]) -> UnitsOf:
    """Methods (those of a quick run may be others) that search along a stream of one task, twice as many prompts as
    elsewhere. Nothing is fitted beforehand, so no prompt is kept for it. A text must be longer than a window to be
    searched on.
    """

    def measure(bench: Workbench, task: Task) -> Values:
        scale, tokens = bench.scale, max(bench.scale.tokens, 2 * PAPER_WINDOW)
        longer = bench.task(task.name, max(QUICK_TEXTS, scale.prompts) if scale.is_quick else 2 * scale.prompts, 1)
        return {**bench.measure(longer or task, methods_of(scale.is_quick), tokens=tokens), "tokens": tokens}

    return each([FIRST_TASK], measure, "stream ")


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


def search_course(bench: Workbench, task: Task) -> Values:
    """Matchness of the set in use, step by step of the search that the tables have as well."""
    fitted = swift_fit(bench, task)
    steps, texts = (fitted.values.get(name, ()) for name in ("steps", "texts"))
    rows = [[step["step"], step["best"], step["ratio"]] for step in steps]
    return {"steps": rows, "texts": [text["matchness"] for text in texts], "search": facts(fitted)}


def matchness_table(found: Found) -> Table:
    steps, texts = (found.get(SEARCH, name) or [] for name in ("steps", "texts"))
    columns = [(f"step {step}, r {skipped}", best) for step, best, skipped in (*steps[:1], *steps[-1:])]
    columns[1:1] = [("after the first text", texts[0])] if texts else []
    row = [[SWIFT, *(number(matchness, ".2f") for _, matchness in columns)]] if columns else []
    return Table("", ["matchness of the set in use", *(name for name, _ in columns)], row)


DURING = Side(STREAM, SWIFT, label="while it searches", where=is_searching)
AFTER = replace(DURING, label="after its search", where=is_settled)


def drafting(found: Found, unit: str) -> Estimate | None:
    return estimate_of(found, lambda record: (record.draft_seconds, record.verify_seconds), Side(unit, SWIFT))


def optimisation_is_cheap(found: Found) -> Judgement | None:
    text, side = f"optimisation takes less than 1 % of the time over {PAPER_TEXTS} texts", Side(STREAM, SWIFT)
    records = side.records(found)
    share = estimate_of(found, partial(percent, len(records)), side)
    is_over = bool(records) and is_settled(records[-1])
    judgement = is_below(text, share, 1.0, "optimisation", unit=" %")
    return judgement if is_over or not judgement else Judgement(text, None, "the search was not over")


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


LONGER_DRAFTING = "drafting takes more time than verifying"
SEARCHED = [on_texts("while it searches", lambda found: is_searching), on_texts("after", lambda found: is_settled)]
FIGURE_6 = Experiment(
    "figure-6",
    joined(
        stream_units(lambda is_quick: {SWIFT: swift(), **({} if is_quick else {OURS: {"strategy": "swift"}})}),
        each([FIRST_TASK], search_course, "search "),
    ),
    [by_arm([*SEARCHED, SPEEDUP, *map(spent_on, PARTS)], [SWIFT, OURS], first=""), matchness_table],
    [
        faster("SWIFT is faster than plain decoding over the whole stream", SWIFT),
        faster("SWIFT is faster after its search than while it searches", AFTER, DURING),
        above(LONGER_DRAFTING, drafting, 1.0, "drafting over verifying", units=[STREAM], unit="x"),
        optimisation_is_cheap,
    ],
    chart=timeline_chart,
)

# ------------------------------------------------------------------------------------------ 8a: options of the search

NOT_REACHED = "the option had no effect: the search never got that far"
DRAFTED_ALIKE = "the option had no effect on the drafts: both drafted with the same sets"


def options_of(is_quick: bool) -> dict[str, dict[str, int]]:
    """At the quick scale both are smaller, as there are few steps."""
    steps, every = (16, 4) if is_quick else (1000, 25)
    pairs = {USUAL: (steps, every), FEWER: (steps // 2, every), SELDOM: (steps, 2 * every)}
    return {arm: {"max_steps": most, "interval": between} for arm, (most, between) in pairs.items()}


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


HALVES = [
    on_texts("first half", lambda found: halves(found)[0]),
    on_texts("second half", lambda found: halves(found)[1]),
]
OPTIONS = [USUAL, FEWER, SELDOM]
FIGURE_8A = Experiment(
    "figure-8a",
    stream_units(lambda is_quick: {arm: swift(**options) for arm, options in options_of(is_quick).items()}),
    [by_arm([*HALVES, SPEEDUP, spent_on("optimise")], OPTIONS, first="")],
    [option_claims],
    chart=lambda found: Plot(running(found, OPTIONS), "Speed-up of all texts so far.") if found.units else None,
)
