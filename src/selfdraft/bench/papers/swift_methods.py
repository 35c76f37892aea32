"""What the experiments of SWIFT share: methods, the searches that come before, streams, columns, efforts.

SWIFT is in the paper's own form (`paper`): it drafts even where plain decoding is faster, as that is what the paper is
about. The form that people use switches itself off there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...calibrate.fit_once import Fitted
from ...errors import ProfileError
from ...measure.estimate import pair
from ...measure.figures import share
from ...measure.records import OFF, Record
from ...registry import resolve
from ...strategies.swift_search import SwiftOptions
from ...types import Prompt
from ..charts import Lines, Series
from ..tables import interval, number
from .claims import Side, speedup
from .experiment import Effort, Found, Unit, Values, prompts_a_task
from .forms import Column
from .tasks import Task
from .workbench import Methods, Workbench

Method = dict[str, Any]
Where = Callable[[Record], bool]

SWIFT, OURS, SELF_SD = "SWIFT", "SWIFT, ours", "Self-SD"
FIRST_TASK = "cnn-dm"
STREAM = f"stream {FIRST_TASK}"
PAPER_WINDOW = 32
PAPER_STEPS = 575
"""Of the search on CNN/DM, the only one that the paper reports: 552 random ones and 23 by Bayesian optimisation."""
PAPER_TOKENS = 512
"""New ones of a text at most, in the analyses and on HumanEval; of a text to search on as well."""
LONGER = 3
"""Times SWIFT's seconds that Self-SD may search, where there is time."""
QUICK_TEXTS = 3
SEARCHING = 0.02
"""Of a text's time, from which on it was searched on; counting what became of drafts takes less."""

# ------------------------------------------------------------------------------------------------------- methods


def swift(**options: Any) -> Method:
    """While it searches."""
    return {"strategy": "swift", "settings": {"swift": {"paper": True, **options}}}


def accelerating(**options: Any) -> Method:
    """After the search: with what it found, and not a step more. In the paper steps are 0.8 % of the time."""
    return swift(max_steps=1, **options)


def paired_as_swift(strategy: str, **options: Any) -> Method:
    """Another strategy with SWIFT's early stopping and its siblings."""
    pairing = resolve({"strategy": "swift"})
    return {**pairing, "strategy": strategy, "settings": {**pairing["settings"], strategy: options}}


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


def swift_fit(bench: Workbench, task: Task, seconds: float | None = None, **options: Any) -> Fitted:
    """SWIFT as its paper has it, after some seconds of other texts of the task; `options`: of the strategy.

    The paper's streams are so long that its search is over soon; here it has time of its own beforehand.
    """
    name = "-".join(["swift-paper", task.name, *(f"{key}-{value}" for key, value in options.items())])
    return bench.fit(name, swift(**options), task.fitting, seconds, text_tokens=PAPER_TOKENS)


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
    fitted: Fitted,
    searches: Mapping[str, Any] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """A unit's values: methods on a task's prompts, SWIFT after its search. `searches`: Self-SD's, by arm."""
    tokens, known = asked.get("tokens") or bench.scale.tokens, {"search": facts(fitted), "searches": searches or {}}
    return {**bench.measure(task, methods, knows=[fitted], **asked), "tokens": tokens, **known}


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
    return [
        "the time was over before Self-SD had tried a set"
        if speed is None
        else f"no set that Self-SD tried was faster than plain decoding ({plain:.1f} tokens/s); the best of them drafts "
        f"here ({speed:.1f} when it was tried)"
        for speed, plain in sorted(known, key=str)
        if speed is None or speed <= plain
    ]


def drafted_alike(found: Found, one: Side, other: Side) -> bool:
    """Whether both drafted the same on every text: then only chance makes one faster."""
    drafts = [
        [(record.num_draft_steps, record.num_accepted, record.skips) for record in both]
        for both in pair(one.records(found), other.records(found))
    ]
    return bool(drafts) and all(own == theirs for own, theirs in drafts)


# ------------------------------------------------------------------------------------------------------- streams


def tasks_of(bench: Workbench, names: Sequence[str]) -> list[Task]:
    return [task for name in names if (task := bench.tasks.find(name))]


def by_task(tasks: Sequence[Task]) -> list[Prompt]:
    """Their measured prompts, one task after the other; the task is the domain, so that figures are had by task."""
    return [replace(prompt, domain=task.name) for task in tasks for prompt in task.measured]


def labels_of(found: Found) -> dict[str, str]:
    """Of the tasks whose prompts took part."""
    return {name: label for values in found.units.values() for name, label in values.get("labels", {}).items()}


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

    def until(arm: str, last: int) -> float | None:
        known = speedup(found, Side(STREAM, arm, where=lambda record: record.number <= last))
        return known.value if known else None

    texts = [record.number for record in Side(STREAM, OFF).records(found)]
    series = [Series(arm, [(last + 1, until(arm, last)) for last in texts]) for arm in arms]
    return Lines(series, "text of the stream", "speed-up of all texts so far", "x", baseline=1.0)


# ------------------------------------------------------------------------------------------------------- efforts


def efforts(prompts: int = 1000, tokens: int = PAPER_TOKENS, steps: int | None = PAPER_STEPS) -> list[Effort]:
    """The paper's: `prompts` a task, new `tokens` of a text at most, `steps` of the search (None: it does not say)."""
    return [
        prompts_a_task(prompts),
        Effort("new tokens of a text at most", _most_tokens, tokens),
        Effort("steps of SWIFT's search", _mean_steps, steps),
        Effort("seconds it may take", lambda found: found.scale.get("fit_seconds")),
    ]


def _most_tokens(found: Found) -> float | None:
    most: float | None = found.scale.get("tokens")
    return max((values["tokens"] for values in found.units.values() if "tokens" in values), default=most)


def _mean_steps(found: Found) -> float | None:
    known = [values["search"]["num_steps"] for values in found.units.values() if "search" in values]
    return round(statistics.mean(known)) if known else None
