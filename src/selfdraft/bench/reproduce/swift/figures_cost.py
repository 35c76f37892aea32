"""Figures 11 and 12: what a search costs and is worth, against Self-SD's; and the set at several steps of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ....calibrate.texts import look_at
from ....strategies.matching import choices
from ....types import SkipSet
from ...report import Table, number
from ...strips import beside_strip, draw_strips
from ..cells import figure_cell, speed_cell
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import Speed, faster, speed_of, told
from .figures_common import (
    FIRST_TASK,
    PAPER_ITERATIONS,
    PAPER_STEPS,
    SELF_SD,
    SELF_SD_METHOD,
    SWIFT,
    plain_texts,
    practised,
    self_sd,
    self_sd_set,
    swift,
    text_tokens,
    window_note,
)
from .figures_drawing import draw_lines, draw_plain

SHARES = (1.0, 0.25, 0.5)
"""Of the seconds that lessons have; what Self-SD learns in all of them first."""
_LEAST_SECONDS = 0.1
PAPER_SECONDS = 116

# ------------------------------------------------------------------------------------------------ 11: optimisation


def latency_units(bench: Workbench) -> Iterable[Unit]:
    yield from bench.for_each([FIRST_TASK], lambda task: _of_swift(bench, task), prefix=f"{SWIFT} ")
    for share in SHARES:
        yield from bench.for_each(
            [FIRST_TASK],
            partial(_of_self_sd, bench, share=share),
            prefix=f"{SELF_SD} {share} ",
        )


def _of_swift(bench: Workbench, task: Task) -> Values:
    """Behind a search on other prompts; its seconds are those of scoring candidates, the texts were wanted anyway."""
    learned = practised(bench, task)
    seconds = sum(text["optimise_seconds"] for text in learned.values["texts"])
    tokens = text_tokens(bench.scale)
    found = bench.compare({SWIFT: swift(bench.scale)}, task.measured, knows=[learned], tokens=tokens)
    return {**found, "seconds": seconds, "num_tried": learned.values["step"]}


def _of_self_sd(bench: Workbench, task: Task, share: float) -> Values:
    learned = self_sd(bench, task, max(_LEAST_SECONDS, share * bench.scale.lesson_seconds))
    tokens = text_tokens(bench.scale)
    found = bench.compare({SELF_SD: SELF_SD_METHOD}, task.measured, knows=[learned], tokens=tokens)
    return {**found, **self_sd_set(learned)}


def _units(found: Found) -> list[tuple[str, str]]:
    """(unit, way) of what was measured, SWIFT first, then by seconds."""
    known = [(f"{SWIFT} {FIRST_TASK}", SWIFT)]
    known += [(f"{SELF_SD} {share} {FIRST_TASK}", SELF_SD) for share in sorted(SHARES)]
    return [(unit, way) for unit, way in known if unit in found.units]


def show_latency(found: Found) -> Section:
    rows = [
        [
            way,
            number(found.get(unit, "num_tried"), "d"),
            number(found.get(unit, "seconds"), ".1f"),
            speed_cell(found, unit, way),
            figure_cell(found, unit, way, "acceptance_rate"),
        ]
        for unit, way in _units(found)
    ]
    header = ["method", "sets tried", "optimisation (s)", "speed-up", "accepted"]
    most = max((found.get(unit, "num_tried") for unit, way in _units(found) if way == SELF_SD), default=None)
    seconds = found.get(f"{SWIFT} {FIRST_TASK}", "seconds")
    is_idle = any(found.get(unit, "skip") == "" for unit, _ in _units(found))
    idle = ["where Self-SD found nothing faster than plain decoding it drafts nothing; the paper's always drafts"]
    return Section(
        [Table("", header, rows)],
        [
            Effort("sets that Self-SD tried", most, PAPER_ITERATIONS),
            Effort("SWIFT's seconds of optimisation", None if seconds is None else round(seconds, 1), PAPER_SECONDS),
        ],
        told(_claims_of_latency(found)),
        [*(idle if is_idle else []), *window_note(found)],
        Plot(lambda figure: _draw_latency(figure, found), "Speed-up by seconds of optimisation.", (6.4, 4.0))
        if rows
        else None,
    )


def _claims_of_latency(found: Found) -> Iterable[Trend]:
    def at(share: float) -> Speed | None:
        unit = f"{SELF_SD} {share} {FIRST_TASK}"
        return speed_of(found, unit, SELF_SD, label=f"{SELF_SD}, {number(found.get(unit, 'seconds'), '.0f')} s")

    unit = f"{SWIFT} {FIRST_TASK}"
    label = f"{SWIFT}, {number(found.get(unit, 'seconds'), '.0f')} s"
    most, least = at(max(SHARES)), at(min(SHARES))
    yield faster(
        "SWIFT is faster than Self-SD behind its longest search", speed_of(found, unit, SWIFT, label=label), most
    )
    yield faster("Self-SD gains by a longer search", most, least)


def _draw_latency(figure: Any, found: Found) -> None:
    axes = figure.subplots()
    points: dict[str, list[tuple[float, float]]] = {SWIFT: [], SELF_SD: []}
    for unit, way in _units(found):
        known = speed_of(found, unit, way)
        if known is not None:
            points[way].append((found.get(unit, "seconds"), known.value))
    draw_plain(axes)
    draw_lines(axes, points, "seconds of optimisation", "speed-up")


# ----------------------------------------------------------------------------------------------------- 12: strips


def strip_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([FIRST_TASK], lambda task: _strips(bench, task))


def _strips(bench: Workbench, task: Task) -> Values:
    """The sets that the search had at several steps, and how they do on texts that it has not seen."""
    known = practised(bench, task).values
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
        "sets": rows,
        "gained": int((last & ~first).sum()),
        "lost": int((first & ~last).sum()),
    }


def _hits(bench: Workbench, task: Task, sets: Sequence[SkipSet]) -> torch.Tensor:
    """[sets, tokens] bool: which tokens behind the measured prompts each set would have drafted."""
    found, numbers = [], [skip.numbers for skip in sets]
    for text in plain_texts(bench, task.measured):
        wanted = torch.tensor(text.tokens[text.num_prompt_tokens :])
        found.append(choices(look_at(text, bench.engine.runner), numbers).cpu() == wanted)
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
        [Effort("steps", values["sets"][-1]["step"], PAPER_STEPS)],
        [_is_refined(values)],
        [
            "matchness is that of the tokens it was searched on; other texts tell what the set is worth",
            *window_note(found),
        ],
        Plot(
            lambda figure: _draw_strips(figure, sets, values["num_layers"]),
            "Sub-layers that the set in use skips, step by step.",
            (10.0, 1.2 + 0.5 * len(sets)),
        ),
    )


def _is_refined(values: Values) -> Trend:
    """Only tokens that one of both sets meets and the other does not tell them apart."""
    gained, lost = values["gained"], values["lost"]
    first, last = (values["sets"][place]["hits"] / values["num_tokens"] for place in (0, -1))
    is_clear = (gained - lost) ** 2 > 4 * (gained + lost)
    because = f"{first:.2f} at first, {last:.2f} in the end, of {values['num_tokens']} tokens of other texts"
    return Trend("the set becomes better step by step", gained > lost if is_clear else None, because)


def _draw_strips(figure: Any, sets: Sequence[tuple[Mapping[str, Any], SkipSet]], num_layers: int) -> None:
    axes = figure.subplots()
    draw_strips(axes, [skip for _, skip in sets], num_layers)
    axes.spines[["top", "right"]].set_visible(False)
    for place, (row, _) in enumerate(sets):
        beside_strip(axes, place, f"step {row['step']}", -0.015)
        beside_strip(axes, place, f"matchness {number(row['matchness'], '.2f')}", 1.01)
