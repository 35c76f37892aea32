"""Figures 11 and 12: what a search costs and is worth, against Self-SD's; and the set at several steps of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ....calibrate.texts import probe_text
from ....strategies.matching import choices
from ....types import SkipSet
from ...charts import Lines, Series, SkipStrips, Strip
from ...report import Table, number
from ..cells import Speed, faster, figure_cell, from_enough, speed_cell, speed_of, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..scale import Scale
from ..tasks import Task
from ..workbench import Workbench
from .analyses import LONGER
from .figures_common import FIRST_TASK, plain_texts, self_sd, self_sd_note, token_effort
from .lessons import swift_lesson
from .methods import SELF_SD, SWIFT, accelerating

SHORTER = 0.25
PAPER_SECONDS = 116
PAPER_ITERATIONS = 100
"""Of Self-SD, the most that the text names."""
PAPER_SHOWN_STEPS = 512

# ------------------------------------------------------------------------------------------------ 11: optimisation


def latency_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([FIRST_TASK], lambda task: _latency(bench, task))


def searches(scale: Scale) -> list[float]:
    """Seconds that Self-SD may search; tables have the longer ones as well."""
    shares = (SHORTER, 1) if scale.is_quick else (SHORTER, 1, LONGER)
    return [share * scale.lesson_seconds for share in shares]


def _latency(bench: Workbench, task: Task) -> Values:
    """SWIFT and Self-SD take turns, each behind its searches; SWIFT's texts are wanted anyway, scoring them is not."""
    lesson = swift_lesson(bench, task)
    found = [self_sd(bench, task, seconds) for seconds in searches(bench.scale)]
    ways = {f"{SELF_SD} {place}": method for place, (method, _) in enumerate(found)}
    figures = bench.compare({SWIFT: accelerating(), **ways}, task.measured, knows=[lesson])
    known = {way: dict(search) for way, (_, search) in zip(ways, found, strict=True)}
    return {**figures, "searches": known, "lesson": dict(lesson.facts)}


def _searched(found: Found) -> dict[str, tuple[int | None, float | None]]:
    """(sets tried, seconds) of each way, SWIFT first, then by seconds."""
    own = found.get(FIRST_TASK, "lesson")
    known = {SWIFT: (own["num_steps"], own["optimise_seconds"])} if own else {}
    searches = found.get(FIRST_TASK, "searches") or {}
    return {**known, **{way: (one["num_steps"], one["seconds"]) for way, one in searches.items()}}


def show_latency(found: Found) -> Section:
    known = _searched(found)
    rows = [
        [
            SWIFT if way == SWIFT else SELF_SD,
            number(num_tried, "d"),
            number(seconds, ".1f"),
            speed_cell(found, FIRST_TASK, way),
            figure_cell(found, FIRST_TASK, way, "acceptance_rate"),
        ]
        for way, (num_tried, seconds) in known.items()
    ]
    header = ["method", "sets tried", "optimisation (s)", "speed-up", "accepted"]
    most, seconds = _longest(found), known.get(SWIFT, (None, None))[1]
    return Section(
        [Table("", header, rows)],
        [
            Effort("sets that Self-SD tried", known[most][0] if most else None, PAPER_ITERATIONS),
            Effort("SWIFT's seconds of optimisation", None if seconds is None else round(seconds, 1), PAPER_SECONDS),
            token_effort(found, is_stream=False),
        ],
        told(_claims_of_latency(found)),
        [
            "SWIFT's seconds are those of scoring candidates, Self-SD's those of its whole search",
            *self_sd_note(found.get(FIRST_TASK, "searches", most) if most else None),
        ],
        Plot(_latency_chart(found), "Speed-up by seconds of optimisation.", (6.4, 4.0)) if rows else None,
    )


def _longest(found: Found) -> str | None:
    """Self-SD behind its longest search."""
    return next(reversed(found.get(FIRST_TASK, "searches") or {}), None)


def _claims_of_latency(found: Found) -> Iterable[Trend]:
    def at(way: str) -> Speed | None:
        name = SWIFT if way == SWIFT else SELF_SD
        return speed_of(found, FIRST_TASK, way, label=f"{name}, {number(known[way][1], '.1f')} s")

    known, most = _searched(found), _longest(found)
    if most is None:
        return
    yield faster("SWIFT is faster than Self-SD behind its longest search", at(SWIFT), at(most))
    least = next(iter(found.get(FIRST_TASK, "searches")))
    longer, shorter = (found.get(FIRST_TASK, "searches", way, "skip") for way in (most, least))
    claim = "Self-SD gains by a longer search"
    is_same = longer == shorter  # then chance alone would tell them apart
    yield Trend(claim, None, "it found no better set") if is_same else faster(claim, at(most), at(least))


def _latency_chart(found: Found) -> Lines:
    points: dict[str, list[tuple[float, float]]] = {SWIFT: [], SELF_SD: []}
    for way, (_, seconds) in _searched(found).items():
        known = speed_of(found, FIRST_TASK, way)
        if known is not None and seconds is not None:
            points[SWIFT if way == SWIFT else SELF_SD].append((seconds, known.value))
    series = [Series(name, sorted(some)) for name, some in points.items()]
    return Lines(series, "seconds of optimisation", "speed-up", baseline=1.0, x_limits=(0, None))


# ----------------------------------------------------------------------------------------------------- 12: strips


def strip_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([FIRST_TASK], lambda task: _strips(bench, task))


def _strips(bench: Workbench, task: Task) -> Values:
    """The sets that the search had at several steps, and how they do on texts that it has not seen."""
    known = swift_lesson(bench, task).values
    taken = sorted((int(step), text) for step, text in known["snapshots"].items())
    sets = {step: SkipSet.parse(text) for step, text in taken}
    sets[known["step"]] = SkipSet.parse(known["skip"])
    hits = _hits(bench, task, list(sets.values()))
    rows = [
        {"step": step, "skip": str(skip), "matchness": matchness_at(known["steps"], step), "hits": int(own.sum())}
        for (step, skip), own in zip(sets.items(), hits, strict=True)
    ]
    first, last = hits[0], hits[-1]
    return {
        "num_layers": bench.engine.runner.num_layers,
        "num_tokens": hits.shape[1],
        "num_prompts": len(task.measured),
        "sets": rows,
        "gained": int((last & ~first).sum()),
        "lost": int((first & ~last).sum()),
    }


def _hits(bench: Workbench, task: Task, sets: Sequence[SkipSet]) -> torch.Tensor:
    """[sets, tokens] bool: which tokens behind the measured prompts each set would have drafted."""
    found, numbers = [], [skip.numbers for skip in sets]
    for text in plain_texts(bench, task.measured):
        wanted = torch.tensor(text.tokens[text.num_prompt_tokens :])
        found.append(choices(probe_text(text, bench.engine.runner), numbers).cpu() == wanted)
    return torch.cat(found, dim=1)


def matchness_at(steps: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """Of the set in use; at first that of the first set, which the first step tells."""
    known = [row["best"] for row in steps if row["step"] <= max(1, step)]
    return known[-1] if known else None


def show_strips(found: Found) -> Section:
    values = found.units.get(FIRST_TASK)
    if values is None:
        return Section([])
    sets = [(row, SkipSet.parse(row["skip"])) for row in values["sets"]]
    first = sets[0][1]
    rows = [
        [
            str(row["step"]),
            str(len(skip.attention)),
            str(len(skip.mlp)),
            str(len(skip.numbers & first.numbers)),
            number(row["matchness"], ".2f"),
            f"{row['hits'] / values['num_tokens']:.2f}",
        ]
        for row, skip in sets
    ]
    header = ["step", "attention skipped", "MLP skipped", "as at first", "matchness", "match on other texts"]
    return Section(
        [Table("the set in use", header, rows)],
        [
            Effort("steps", values["sets"][-1]["step"], PAPER_SHOWN_STEPS),
            Effort("tokens of other texts", values["num_tokens"], None),
        ],
        [_is_refined(values)],
        ["matchness is that of the tokens it was searched on; other texts tell what the set is worth"],
        Plot(
            SkipStrips([_strip(row, skip) for row, skip in sets], values["num_layers"]),
            "Sub-layers that the set in use skips, step by step.",
            (10.0, 1.2 + 0.5 * len(sets)),
        ),
    )


def _is_refined(values: Values) -> Trend:
    """Only tokens that one of both sets meets and the other does not tell them apart."""
    claim, gained, lost = "the search ends with a better set than it began with", values["gained"], values["lost"]
    first, last = (values["sets"][place] for place in (0, -1))
    shares = [one["hits"] / values["num_tokens"] for one in (first, last)]
    because = f"{shares[0]:.2f} at first, {shares[1]:.2f} in the end, of {values['num_tokens']} tokens of other texts"
    sizes = [len(SkipSet.parse(one["skip"]).numbers) for one in (first, last)]
    if sizes[1] < sizes[0]:
        return Trend(claim, None, f"it skips {sizes[1]} sub-layers instead of {sizes[0]}, which is no merit: {because}")
    is_clear = (gained - lost) ** 2 > 4 * (gained + lost)
    return from_enough(Trend(claim, gained > lost if is_clear else None, because), values["num_prompts"])


def _strip(row: Mapping[str, Any], skip: SkipSet) -> Strip:
    return Strip(skip, f"step {row['step']}", f"matchness {number(row['matchness'], '.2f')}")
