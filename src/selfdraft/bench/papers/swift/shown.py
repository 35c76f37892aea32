"""What the tables of the SWIFT paper share: how a task is measured, rows, efforts and claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ...report import number
from ...ways import OFF
from ..cells import figure, figure_cell, pays, speed_cell
from ..recipe import Effort, Found, Trend, Values
from ..tasks import TASKS, Task
from ..workbench import Learned, Methods, Workbench

PAPER_PROMPTS, PAPER_CODE_PROMPTS = 1000, 164
PAPER_STEPS = 575
"""Of the search on CNN/DM, the only one that it tells of: 552 random ones and 23 by Bayesian optimisation."""
PAPER_TOKENS = 512
"""New ones of a text at most, in the analyses and on HumanEval."""

EXAMPLES = (
    "the paper puts one example before a prompt of CNN/DM and TinyStories, five before one of GSM8K; none is added here"
)


COST = "c: seconds of a draft step over those of a plain token"


def measured(bench: Workbench, task: Task, methods: Methods, lesson: Learned, **call: Any) -> Values:
    """Figures of all ways; `lesson`: what SWIFT's search took, `task`: the row's name, `asked`: tokens at most."""
    found = bench.compare(methods, task.measured, knows=[lesson], **call)
    tokens = call.get("tokens") or bench.scale.tokens
    return {**found, "task": task.label, "asked": {"tokens": tokens}, "lesson": dict(lesson.facts)}


def task_label(found: Found, unit: str, task: str) -> str:
    return str(found.get(unit, "task") or TASKS[task].title)


def is_measured(found: Found, unit: str, way: str) -> bool:
    return found.get(unit, way, "total") is not None


def figures_row(found: Found, unit: str, way: str) -> list[str]:
    """M, acceptance rate, speed-up."""
    return [length_cell(found, unit, way), alpha_cell(found, unit, way), speed_cell(found, unit, way)]


def length_cell(found: Found, unit: str, way: str) -> str:
    return figure_cell(found, unit, way, "mean_generated_length")


def alpha_cell(found: Found, unit: str, way: str) -> str:
    return figure_cell(found, unit, way, "acceptance_rate")


def cost_cell(found: Found, unit: str, way: str) -> str:
    """c by the clock."""
    return figure_cell(found, unit, way, "cost_measured")


def skip_ratio(found: Found, unit: str, way: str) -> float | None:
    """Share of the sub-layers that draft passes left out."""
    shares = [figure(found, unit, way, f"skipped_{kind}") for kind in ("attention", "mlp")]
    return None if None in shares else statistics.mean(shares)


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def efforts(
    found: Found,
    units: Sequence[str],
    prompts: int = PAPER_PROMPTS,
    tokens: int = PAPER_TOKENS,
    steps: int | None = PAPER_STEPS,
) -> list[Effort]:
    """Of the paper: `prompts` a task, new `tokens` of a text at most, `steps` of the search; None: it does not say."""
    counts = [count for unit in units if (count := figure(found, unit, OFF, "num_prompts")) is not None]
    most = [count for unit in units if (count := found.get(unit, "asked", "tokens")) is not None]
    own_steps = mean(found.get(unit, "lesson", "num_steps") for unit in units)
    return [
        Effort("prompts a task", min(counts, default=None), prompts),
        Effort("new tokens of a text at most", max(most, default=None), tokens),
        Effort("steps of SWIFT's search", None if own_steps is None else round(own_steps), steps),
    ]


def notes(found: Found, *others: str) -> list[str]:
    """How SWIFT was measured, and what else is to be said."""
    seconds, count = (found.scale.get(name) for name in ("lesson_seconds", "learned_prompts"))
    usual = (
        f"SWIFT searched beforehand on other prompts of the task ({number(count, 'd')} at most), for "
        f"{number(seconds, 'g')} s at most; speed-ups leave it out, in the paper's long streams it is 0.8 % of the "
        "time. It drafts also where plain decoding is faster, as there"
    )
    return [usual, *others]


# ------------------------------------------------------------------------------------------------------- claims


def does_not_pay(claim: str, found: Found, unit: str, way: str) -> Trend:
    """That a way is no faster than plain decoding."""
    trend = pays(claim, found, unit, way)
    return Trend(claim, None if trend.holds is None else not trend.holds, trend.because)
