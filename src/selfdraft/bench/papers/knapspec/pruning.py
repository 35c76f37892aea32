"""What a plan takes: with states below a cosine dropped and without, alone and as a share of decoding."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...report import Table, number
from ..cells import NOT_MEASURED, figure_cell, from_enough, speed_cell, told
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..tasks import TASKS, Task
from ..workbench import Workbench
from .methods import FRUGAL, methods_of, share_cell
from .shared import (
    INTERVAL,
    MIN_COSINE,
    PAPER_MODELS,
    SUMMARY_NOTE,
    References,
    best_of,
    compare,
    is_no_slower,
    knapspec,
    num_prompts,
    with_references,
)

PRUNED, UNPRUNED = "pruned", "not pruned"
COSINES: Mapping[str, float] = {PRUNED: MIN_COSINE, UNPRUNED: -1.0}
TASKS_USED, QUICK_TASKS = ("gsm8k", "cnn-dm"), ("gsm8k",)
PLAN, DECODED = "plan", "decoded"
NUM_TEXTS = 3
"""Behind which both kinds plan."""


def units(bench: Workbench) -> Iterable[Unit]:
    bench = with_references(bench, NUM_TEXTS)
    for name in QUICK_TASKS if bench.scale.is_quick else TASKS_USED:
        yield from bench.for_each([name], lambda task: _plans(bench, task), prefix=f"{PLAN} ")
        yield from bench.for_each([name], lambda task: _decoded(bench, task), prefix=f"{DECODED} ")


def _plans(bench: Workbench, task: Task) -> Values:
    """Of each text, by kind. The very first plan of all is not counted: it warms up."""
    texts = [References(bench, [prompt]) for prompt in task.learned[:NUM_TEXTS]]
    texts[0].networks()
    plans = [_plans_of(bench, text, is_turned=bool(number % 2)) for number, text in enumerate(texts)]
    plain = statistics.fmean(bench.latency.plain.at(text.length) for text in texts)
    return {"plans": plans, "plain_seconds": plain, "task": task.label}


def _plans_of(bench: Workbench, text: References, is_turned: bool) -> dict[str, dict[str, Any]]:
    """`is_turned`: the other kind comes first."""
    runner, plans = bench.engine.runner, {}
    _ = text.probe  # it reads the text, once for both
    for kind in list(COSINES)[:: -1 if is_turned else 1]:
        began = runner.seconds()
        networks = text.networks(min_cosine=COSINES[kind])
        seconds, best = runner.seconds() - began, best_of(networks)
        speed = best.tokens_per_time if best else None
        plans[kind] = {"seconds": seconds, "num_networks": len(networks), "tokens_per_time": speed}
    return plans


def _decoded(bench: Workbench, task: Task) -> Values:
    methods: dict[str, Mapping[str, Any]] = {
        kind: knapspec(bench.scale, min_cosine=min_cosine) for kind, min_cosine in COSINES.items()
    }
    if not bench.scale.is_quick:  # there the main table alone has it
        methods |= methods_of(bench.scale, FRUGAL)
    return {**compare(bench, methods, task.measured), "task": task.label}


# ---------------------------------------------------------------------------------------------------- the table


def show(found: Found) -> Section:
    plans, decoded, trends = [], [], []
    for name in TASKS_USED:
        title = TASKS[name].title
        plans += [row for kind in COSINES if (row := _plan_row(found, f"{PLAN} {name}", kind))]
        decoded += [row for kind in (*COSINES, FRUGAL) if (row := _decoded_row(found, f"{DECODED} {name}", kind))]
        trends += _trends(found, name, title)
    alone = ["task", "KnapSpec", "texts", "s a plan", "in plain passes", "sub-networks", "expected TPT"]
    tables = [
        Table("a plan alone, mean over texts", [*alone, f"at one in {INTERVAL} rounds"], plans),
        Table("decoding", ["task", "KnapSpec", "speed-up", "TPT", "in the DP"], decoded),
    ]
    efforts = [Effort("models", 1, PAPER_MODELS), Effort("prompts a task", num_prompts(found), None)]
    return Section(tables, efforts, told(trends), _notes(found))


def _plan_row(found: Found, unit: str, kind: str) -> list[str]:
    plain = found.get(unit, "plain_seconds")
    seconds, networks = (_of_texts(found, unit, kind, name) for name in ("seconds", "num_networks"))
    if not seconds or not plain:
        return []
    expected, took = _of_texts(found, unit, kind, "tokens_per_time"), statistics.fmean(seconds)
    counts = [f"{took / plain:.1f}", f"{statistics.fmean(networks):.1f}"]
    promised = number(statistics.fmean(expected) if expected else None, ".2f")
    share = f"{took / (took + INTERVAL * plain):.1%}"
    return [found.get(unit, "task"), kind, f"{len(seconds)}", f"{took:.3f}", *counts, promised, share]


def _of_texts(found: Found, unit: str, kind: str, name: str) -> list[float]:
    """Of each text, as far as there is one."""
    values = [plans[kind][name] for plans in found.get(unit, "plans") or ()]
    return [value for value in values if value is not None]


def _decoded_row(found: Found, unit: str, kind: str) -> list[str]:
    if found.get(unit, kind, "total") is None:
        return []
    cells = [speed_cell(found, unit, kind), figure_cell(found, unit, kind, "tokens_per_time")]
    return [found.get(unit, "task"), kind, *cells, share_cell(found, unit, kind)]


def _trends(found: Found, name: str, title: str) -> list[Trend]:
    plan, decoded = f"{PLAN} {name}", f"{DECODED} {name}"
    saved, lost = (_percent_less(found, plan, name) for name in ("seconds", "tokens_per_time"))
    passes = [took / found.get(plan, "plain_seconds") for took in _of_texts(found, plan, PRUNED, "seconds")]
    kept = f"what is pruned is not missed (less than 1 % of the expected TPT is lost) on {title}"
    like = f"a plan takes about as long as a plain pass (less than ten of them) on {title}"
    slower = f"decoding is no slower with pruning on {title}"
    return [
        _of_all(f"pruning saves time of a plan on {title}", saved, [one > 0 for one in saved], "% saved"),
        _of_all(kept, lost, [one < 1 for one in lost], "% lost"),
        _of_all(like, passes, [one < 10 for one in passes], "of them"),
        is_no_slower(slower, found, (decoded, PRUNED), (decoded, UNPRUNED)),
    ]


def _percent_less(found: Found, unit: str, name: str) -> list[float]:
    """With pruning than without, text by text."""
    pairs = [[plans[kind][name] or 0.0 for kind in COSINES] for plans in found.get(unit, "plans") or ()]
    return [100 * (1 - on / off) for on, off in pairs if off]


def _of_all(claim: str, values: Sequence[float], agree: Sequence[bool], unit: str) -> Trend:
    """Told where all texts agree, and there are some."""
    if not values:
        return Trend(claim, None, NOT_MEASURED)
    because = f"text by text {', '.join(f'{value:.1f}' for value in values)} {unit}"
    return from_enough(Trend(claim, agree[0] if len(set(agree)) == 1 else None, because), len(values))


def _notes(found: Found) -> list[str]:
    tokens = found.scale.get("tokens")
    short = [f"texts of {tokens} tokens bear a whole plan each: over longer ones its share is smaller"]
    return [
        SUMMARY_NOTE,
        "in the DP: seconds of planning (and of what a strategy notes after each round) over those of decoding",
        f"at one in {INTERVAL} rounds, as its code plans: the share beside so many plain passes",
        "what is pruned: states with a cosine below 0.5; in both cases at most half of all seconds are skipped",
        "a plan alone: behind texts that decoding is not measured with; of them all must agree for a claim to be told",
        *(short if tokens and tokens <= INTERVAL else []),
    ]
