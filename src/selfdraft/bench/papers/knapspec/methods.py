"""KnapSpec beside SWIFT and CLaSp: speed-up, tokens per time and acceptance rate, greedy and at a temperature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...report import Table, number
from ...ways import OFF
from ..cells import DRAFT_COST, NOT_MEASURED, figure, from_enough, is_faster, is_larger, pays, speed_cell, told
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..scale import Scale
from ..tasks import TASKS, Task
from ..workbench import Methods, Workbench
from .shared import (
    PAPER_MODELS,
    PAPER_TASKS,
    QUICK_LOOKED,
    compare,
    is_no_slower,
    knapspec,
    num_looked_at,
    num_prompts,
)

SWIFT, CLASP, KNAPSPEC, FRUGAL = "SWIFT", "CLaSp", "KnapSpec", "KnapSpec 5 %"
"""The last is our default: it is meant to plan for at most a twentieth of the time."""
WAYS = (OFF, SWIFT, CLASP, KNAPSPEC, FRUGAL)
HELD_AGAINST = (OFF, SWIFT, CLASP, KNAPSPEC)
"""The paper's columns."""
MAIN_TASKS = ("gsm8k", "cnn-dm")
TEMPERATURES = (0.0, 0.7)
QUICK_SAMPLED = ("gsm8k",)
"""Which tasks are sampled at quick scale: reading long prompts takes most of the time."""
TPT_NOTE = (
    "TPT: tokens over what their passes take when measured alone, a verification counted as one pass whatever its "
    "width, no planning (the paper's formula, with the tokens that rounds did emit)"
)
SWIFT_NOTE = "SWIFT searches while it decodes, from nothing: over few and short texts it hardly gets further"


def methods_of(scale: Scale, *names: str) -> Methods:
    """Each as its paper has it, and with what that pairs it with."""
    known: dict[str, Mapping[str, Any]] = {
        SWIFT: {"strategy": "swift", "settings": {"swift": {"paper": True}}},
        CLASP: {"strategy": "clasp", "settings": {"clasp": {"budget": 1.0}}},
        KNAPSPEC: knapspec(scale),
        FRUGAL: {"strategy": "knapspec", "settings": {"knapspec": {"min_tokens": num_looked_at(scale)}}},
    }
    return {name: known[name] for name in names or known}


def main_units(bench: Workbench) -> Iterable[Unit]:
    def measure(task: Task, temperature: float) -> Values:
        ways = compare(bench, methods_of(bench.scale), task.measured, temperature=temperature)
        return {**ways, "task": task.label}

    for name in MAIN_TASKS:
        is_sampled = name in QUICK_SAMPLED or not bench.scale.is_quick
        for temperature in TEMPERATURES if is_sampled else TEMPERATURES[:1]:
            yield from bench.for_each(
                [name],
                partial(measure, temperature=temperature),
                prefix=f"T={temperature} ",
            )


def show_main(found: Found) -> Section:
    rows, trends = [], []
    for name in MAIN_TASKS:
        title = TASKS[name].title
        for temperature in TEMPERATURES:
            unit = f"T={temperature} {name}"
            if unit in found.units:
                rows += _rows(found, unit, temperature)
                trends += against_others(found, dict.fromkeys(HELD_AGAINST, unit), f"on {title} at T = {temperature}")
        trends.append(_stays(found, name, title))
    columns = ["task", "T", "metric", "AR", *WAYS[1:]]
    num_tasks = len({unit.split()[-1] for unit in found.units})
    efforts = [
        Effort("models", 1, PAPER_MODELS),
        Effort("tasks", num_tasks, PAPER_TASKS),
        Effort("prompts a task", num_prompts(found), None),
        Effort("new tokens", found.scale.get("tokens"), None),
    ]
    return Section([Table("", columns, rows)], efforts, told(trends), _notes(found))


def _rows(found: Found, unit: str, temperature: float) -> list[list[str]]:
    head = [found.get(unit, "task") or unit, f"{temperature}"]
    forms = {
        "TPT": ("tokens_per_time", ".2f"),
        "accepted": ("acceptance_rate", ".1%"),
        "draft cost": ("cost_measured", ".2f"),
    }
    rows = [[*head, "speed-up", *(speed_cell(found, unit, way) for way in WAYS)]]
    for metric, (name, form) in forms.items():
        rows.append([*head, metric, *(number(figure(found, unit, way, name), form) for way in WAYS)])
    rows.append([*head, "in the DP", "-", "-", *(share_cell(found, unit, way) for way in WAYS[2:])])
    return rows


def share_cell(found: Found, unit: str, way: str) -> str:
    """Of the seconds of decoding those of planning."""
    return number(planning_share(found, unit, way), ".1%")


def planning_share(found: Found, unit: str, way: str) -> float | None:
    share: float | None = found.get(unit, way, "total", "split", "optimise")
    return share


def against_others(found: Found, units: Mapping[str, str], where: str) -> list[Trend]:
    """`units`: in which of them each way was measured."""
    own = (units[KNAPSPEC], KNAPSPEC)
    trends = [
        pays(f"KnapSpec is faster than plain decoding {where}", found, *own),
        is_faster(f"KnapSpec is faster than SWIFT {where}", found, own, (units[SWIFT], SWIFT)),
        is_faster(f"KnapSpec is faster than CLaSp {where}", found, own, (units[CLASP], CLASP)),
        _most_per_time(found, units, where),
    ]
    return [trend if drafts(found, *own) else _without_drafts(trend) for trend in told(trends)]


def drafts(found: Found, unit: str, way: str) -> bool:
    return figure(found, unit, way, "acceptance_rate") is not None


def _without_drafts(trend: Trend) -> Trend:
    return replace(trend, because=f"{trend.because}; it chose not to draft")


def _most_per_time(found: Found, units: Mapping[str, str], where: str) -> Trend:
    known = {way: figure(found, unit, way, "tokens_per_time") for way, unit in units.items()}
    claim = f"KnapSpec has the most tokens per time {where}"
    if None in known.values():
        return Trend(claim, None, NOT_MEASURED)
    own, best = known.pop(KNAPSPEC), max(known, key=lambda way: known[way])
    counts = [figure(found, unit, way, "num_prompts") or 0 for way, unit in units.items()]
    other = ("AR" if best == OFF else best, known[best])
    return from_enough(is_larger(claim, (KNAPSPEC, own), other), min(counts))


def _stays(found: Found, name: str, title: str) -> Trend:
    """Where there is one when it does not sample."""
    greedy, sampled = (f"T={temperature} {name}" for temperature in TEMPERATURES)
    claim = f"KnapSpec's speed-up stays when sampling, on {title}"
    stays = is_no_slower(claim, found, (sampled, KNAPSPEC), (greedy, KNAPSPEC))
    if stays.because == NOT_MEASURED:
        return stays
    if not all(drafts(found, unit, KNAPSPEC) for unit in (greedy, sampled)):
        return _without_drafts(replace(stays, holds=None))
    if not pays(claim, found, greedy, KNAPSPEC).holds:
        return Trend(claim, None, f"there is none to stay: {stays.because.removeprefix('too wide: ')}")
    return stays


def _notes(found: Found) -> list[str]:
    looked = f", looking at {QUICK_LOOKED} tokens at least" if found.scale.get("is_quick") else ""
    return [
        TPT_NOTE,
        "KnapSpec itself goes by what a verification of its width was measured to cost, so it may pass by the most TPT",
        SWIFT_NOTE,
        "the paper has four baselines; the summary has figures of these",
        f"KnapSpec plans as in the paper whatever that costs{looked}, but, unlike its code, may choose not to draft",
        "the last column is ours: it is meant to plan for at most 5 % of the time, but in short texts one plan is "
        "already more",
        DRAFT_COST,
        "no share accepted: it never drafted",
        *(["at quick scale only GSM8K is sampled"] if found.scale.get("is_quick") else []),
        "the paper's nucleus sampling has a top-p that the summary does not state; ours is temperature alone",
        "GSM8K stands for its tasks of long answers (AIME, MMLU-Pro), CNN/DM for those of long inputs",
    ]
