"""Tables 1, 2 and 6: what a token takes under each rule of how far to draft."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from ...report import Table, number
from ...ways import OFF
from ..cells import DRAFT_COST, figure, figure_cell, from_enough, is_faster, pays, speed_cell, told
from ..estimates import Estimate, is_above, mean_of
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..workbench import Workbench
from .lesson import (
    DISCO,
    HEURISTIC,
    ORACLE,
    PAPER_PROMPTS,
    PAPER_TRAINING,
    PAPER_VALIDATION,
    PERPLEXITY,
    STATIC_5,
    STATIC_OPT,
    TASKS,
    TEACHERS,
    draft_notes,
    measured_prompts,
    taught,
    units,
    ways,
)

TARGET = "Target"
RULES = (HEURISTIC, STATIC_5, STATIC_OPT, DISCO, ORACLE)
SAMPLED_RULES = (STATIC_5, DISCO, PERPLEXITY)
BASES = (STATIC_OPT, HEURISTIC)
TEMPERATURES = (1.0, 0.0)
GAINS_NOTE = "made of what table 1 measured; an average is called clear by how tasks differ"
COLUMNS = ("benchmark", "method", "latency (ms)", "speed-up", "draft cost")
NOTES = (
    "latency: milliseconds of decoding a token, without reading the prompt",
    DRAFT_COST,
)


def _compared(bench: Workbench, name: str, rules: Sequence[str], temperature: float = 0.0) -> Values:
    """All rules in turns; `lesson`: what was learned beforehand."""
    learned, prompts = taught(bench, name), measured_prompts(bench, name)
    found = bench.compare(ways(learned, rules), prompts, knows=[learned], temperature=temperature)
    return {**found, "lesson": learned.facts, "prompts": [prompt.id for prompt in prompts]}


# --------------------------------------------------------------------------------------------------------- table 1


def latency_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, TASKS, lambda name: _compared(bench, name, RULES))


def show_latency(found: Found) -> Section:
    known = [name for name in TASKS if name in found.units]
    rows = [row for name in known for row in _rows(found, name, _label(found, name), RULES)]
    return Section(
        [Table("", COLUMNS, rows)],
        _efforts(found),
        [trend for name in known for trend in told(_trends(found, name))],
        [*NOTES, *_lesson_notes(found), *_same_prompts(found), *_errors(found)],
    )


def _label(found: Found, name: str) -> str:
    """Of one that another task taught, this as well."""
    label = str(found.units[name]["label"])
    return f"{label}, transfer learning" if name in TEACHERS else label


def _rows(found: Found, unit: str, label: str, rules: Sequence[str]) -> Iterator[list[str]]:
    for way, title in {OFF: TARGET, **{rule: rule for rule in rules}}.items():
        cells = [speed_cell(found, unit, way), figure_cell(found, unit, way, "cost_measured")]
        yield [label, title, number(milliseconds(found, unit, way), ".2f"), *cells]


def milliseconds(found: Found, unit: str, way: str) -> float | None:
    """Of a token, all tokens over all seconds of decoding."""
    speed = figure(found, unit, way, "tokens_per_second")
    return 1000 / speed if speed else None


def _trends(found: Found, name: str) -> Iterator[Trend]:
    on = f"on {_label(found, name)}"
    yield is_faster(f"DISCO is faster than the best static lookahead {on}", found, (name, DISCO), (name, STATIC_OPT))
    yield is_faster(f"DISCO is faster than {STATIC_5} {on}", found, (name, DISCO), (name, STATIC_5))
    yield is_faster(f"DISCO is faster than the heuristic {on}", found, (name, DISCO), (name, HEURISTIC))
    yield is_faster(f"the oracle is faster than DISCO {on}", found, (name, ORACLE), (name, DISCO))
    yield pays(f"DISCO is faster than plain decoding {on}", found, name, DISCO)


def _efforts(found: Found) -> list[Effort]:
    lessons = {name: one["lesson"] for name, one in found.units.items() if name in PAPER_TRAINING}
    training = [
        Effort(f"prompts to train with ({found.units[name]['label']})", lesson["num_train"], PAPER_TRAINING[name])
        for name, lesson in lessons.items()
    ]
    choosing = [lesson["num_validation"] for lesson in lessons.values()]
    return [
        Effort("prompts a task", _num_prompts(found), PAPER_PROMPTS),
        *training,
        *([Effort("prompts a task to choose settings with", min(choosing), PAPER_VALIDATION)] if choosing else []),
    ]


def _num_prompts(found: Found) -> int | None:
    """Of the task that has fewest."""
    return min((len(one["prompts"]) for one in found.units.values()), default=None)


def _lesson_notes(found: Found) -> Iterator[str]:
    yield from draft_notes(one["lesson"]["draft"] for one in found.units.values())
    lessons = {unit.split()[-1]: one["lesson"] for unit, one in found.units.items()}  # at any temperature the same
    for name, lesson in lessons.items():
        best = lesson["best"]
        yield (
            f"{name}: {100 * lesson['match']:.0f}% of drafted tokens were right where it was learned; chosen there: "
            f"{STATIC_OPT} {best['fixed']['tokens']}, {PERPLEXITY} {best['perplexity']['threshold']:g} up to "
            f"{best['perplexity']['max_tokens']}, DISCO {lesson['threshold']:g} up to {lesson['max_tokens']}"
        )


def _same_prompts(found: Found) -> Iterator[str]:
    for name, teacher in TEACHERS.items():
        if name in found.units and teacher in found.units:
            own, other = (found.units[one]["prompts"] for one in (name, teacher))
            if same := len(set(own) & set(other)):
                yield f"{same} of the {len(own)} prompts of {name} are those of {teacher} as well: ours stand for both"


def _errors(found: Found) -> Iterator[str]:
    """A way that could not run says why."""
    for unit, ways_of in found.units.items():
        for way, values in ways_of.items():
            if isinstance(values, Mapping) and "error" in values:
                yield f"{unit}, {way}: {values['error']}"


# --------------------------------------------------------------------------------------------------------- table 6


def show_gains(found: Found) -> Section:
    """Made of what table 1 measured."""
    gains = {
        name: {base: gain(milliseconds(found, name, DISCO), milliseconds(found, name, base)) for base in BASES}
        for name in TASKS
        if name in found.units
    }
    rows = [[_label(found, name), *(number(one[base], ".1f") for base in BASES)] for name, one in gains.items()]
    columns = {base: [value for one in gains.values() if (value := one[base]) is not None] for base in BASES}
    averages = {base: statistics.fmean(values) for base, values in columns.items() if values}
    if averages:
        rows.append(["Average", *(number(averages.get(base), ".1f") for base in BASES)])
    return Section(
        [Table("percent of the latency that DISCO saves", ["dataset", *BASES], rows)],
        _efforts(found),
        [from_enough(_saves(base, values), _num_prompts(found)) for base, values in columns.items() if values],
        [GAINS_NOTE, *draft_notes(one["lesson"]["draft"] for one in found.units.values())] if rows else [],
    )


def gain(own: float | None, base: float | None) -> float | None:
    """By how many percent a latency is below another."""
    return None if own is None or not base else 100 * (1 - own / base)


def _saves(base: str, values: Sequence[float]) -> Trend:
    return is_above(
        f"on average DISCO takes less time than {base} (percent saved, and 0)", mean_of(values), Estimate(0)
    )


# --------------------------------------------------------------------------------------------------------- table 2


def _sampled(temperature: float) -> str:
    return f"T={temperature:g} "


def sampled_units(bench: Workbench) -> Iterable[Unit]:
    for temperature in TEMPERATURES:
        measure = partial(_compared, bench, rules=SAMPLED_RULES, temperature=temperature)
        yield from units(bench, ["cnn-dm"], measure, _sampled(temperature))


def _sampled_trends(found: Found, unit: str) -> list[Trend]:
    return [
        is_faster(f"DISCO is faster than {STATIC_5} at T = 1", found, (unit, DISCO), (unit, STATIC_5)),
        pays("DISCO is faster than plain decoding at T = 1", found, unit, DISCO),
    ]


def _perplexity_trends(found: Found, unit: str) -> list[Trend]:
    return [
        is_faster(f"{rule} is faster than going by perplexity", found, (unit, rule), (unit, PERPLEXITY))
        for rule in (DISCO, STATIC_5)
    ]


def show_sampled(found: Found) -> Section:
    known = {t: unit for t in TEMPERATURES if (unit := f"{_sampled(t)}cnn-dm") in found.units}
    rows: list[list[str]] = []
    trends: list[Trend] = []
    for temperature, unit in known.items():
        rows += ([f"{temperature:g}", *row] for row in _rows(found, unit, found.units[unit]["label"], SAMPLED_RULES))
        claims = _sampled_trends if temperature else _perplexity_trends
        trends += told(claims(found, unit))
    notes = [
        "the published speed-up of the perplexity rule is that over the greedy target of table 1: it belongs to T = 0",
        "where tokens are drawn, draft and target draw with the same noise, and the text is that of plain decoding; "
        "the paper's rejection sampling promises the distribution",
    ]
    return Section(
        [Table("", ["T", *COLUMNS], rows)],
        [Effort("prompts", _num_prompts(found), PAPER_PROMPTS)],
        trends,
        [*NOTES, *notes, *_lesson_notes(found), *_errors(found)] if rows else [],
    )
