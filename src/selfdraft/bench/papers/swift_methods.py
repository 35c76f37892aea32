"""What the experiments of SWIFT share: methods, the searches that come before, tasks, efforts.

SWIFT is in the paper's own form (`paper`): it drafts even where plain decoding is faster, as that is what the paper is
about. The form that people use switches itself off there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...calibrate.fit_once import Fitted
from ...errors import ProfileError
from ...measure.estimate import pair
from ...measure.figures import share
from ...registry import resolve
from ...strategies.swift_search import SwiftOptions
from ...types import Prompt
from ..tables import number
from .claims import Side
from .experiment import Effort, Found, Judgement, prompts_a_task
from .forms import Column
from .tasks import Task
from .workbench import Methods, Workbench

Method = dict[str, Any]
Searches = Mapping[str, Mapping[str, Any]]
Judgements = Iterator[Judgement | None]

SWIFT, OURS, SELF_SD = "SWIFT", "SWIFT, ours", "Self-SD"
FIRST_TASK = "cnn-dm"
PAPER_WINDOW = 32
PAPER_STEPS = 575
"""Of the search on CNN/DM, the only one that the paper reports: 552 random ones and 23 by Bayesian optimisation."""
PAPER_TOKENS = 512
"""New ones of a text at most, in the analyses and on HumanEval; of a text to search on as well."""
LONGER = 3
"""Times SWIFT's seconds that Self-SD may search, where there is time."""

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
    bench: Workbench, task: Task, methods: Methods, fitted: Fitted, searches: Searches | None = None, **asked: Any
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
    late = ["the time was over before Self-SD had tried a set"] if any(speed is None for speed, _ in known) else []
    slow = (
        f"no set that Self-SD tried was faster than plain decoding ({plain:.1f} tokens/s); the best of them drafts "
        f"here ({speed:.1f} when it was tried)"
        for speed, plain in known
        if speed is not None and speed <= plain
    )
    return [*late, *sorted(slow)]


def drafted_alike(found: Found, one: Side, other: Side) -> bool:
    """Whether both drafted the same on every text: then only chance makes one faster."""
    drafts = [
        [(record.num_draft_steps, record.num_accepted, record.skips) for record in both]
        for both in pair(one.records(found), other.records(found))
    ]
    return bool(drafts) and all(own == theirs for own, theirs in drafts)


# --------------------------------------------------------------------------------------------------------- tasks


def tasks_of(bench: Workbench, names: Sequence[str]) -> list[Task]:
    return [task for name in names if (task := bench.tasks.find(name))]


def by_task(tasks: Sequence[Task]) -> list[Prompt]:
    """Their measured prompts, one task after the other; the task is the domain, so that figures are had by task."""
    return [replace(prompt, domain=task.name) for task in tasks for prompt in task.measured]


def labels_of(found: Found) -> dict[str, str]:
    """Of the tasks whose prompts took part."""
    return {name: label for values in found.units.values() for name, label in values.get("labels", {}).items()}


# ------------------------------------------------------------------------------------------------------- efforts


def efforts(
    prompts: int = 1000, tokens: int = PAPER_TOKENS, steps: int | None = PAPER_STEPS, what: str = "prompts a task"
) -> list[Effort]:
    """The paper's: `prompts`, new `tokens` of a text at most, `steps` of the search (None: it does not say)."""
    return [
        prompts_a_task(prompts, what),
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
