"""What a plan takes: with states below a cosine dropped and without, alone and as a share of decoding."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ...report import Table, number
from ..cells import NOT_MEASURED, figure_cell, is_faster, speed_cell
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..tasks import TASKS, Task
from ..workbench import Workbench
from .methods import FRUGAL, methods_of, share_cell
from .shared import (
    INTERVAL,
    MIN_COSINE,
    PAPER_MODELS,
    References,
    best_of,
    compare,
    is_more,
    knapspec,
    measured,
    with_references,
)

PRUNED, UNPRUNED = "pruned", "not pruned"
COSINES: Mapping[str, float] = {PRUNED: MIN_COSINE, UNPRUNED: -1.0}
TASKS_USED, QUICK_TASKS = ("gsm8k", "cnn-dm"), ("gsm8k",)
PLAN, DECODED = "plan", "decoded"
NUM_TIMED = 3
"""Plans of which the middle one counts; one at quick scale."""
SAVES = 0.05
"""Less than that is the device's mood."""


def units(bench: Workbench) -> Iterable[Unit]:
    bench = with_references(bench)
    for name in QUICK_TASKS if bench.scale.is_quick else TASKS_USED:
        yield from bench.for_each([name], lambda task: _plans(bench, task), prefix=f"{PLAN} ")
        yield from bench.for_each([name], lambda task: _decoded(bench, task), prefix=f"{DECODED} ")


def _plans(bench: Workbench, task: Task) -> Values:
    """Both kinds take turns, behind one plan that is not counted: it reads the text."""
    references, runner = References(bench, task.learned), bench.engine.runner
    references.networks()
    seconds: dict[str, list[float]] = {kind: [] for kind in COSINES}
    plans: dict[str, dict[str, Any]] = {}
    for _ in range(1 if bench.scale.is_quick else NUM_TIMED):
        for kind, min_cosine in COSINES.items():
            began = runner.seconds()
            networks = references.networks(min_cosine=min_cosine)
            seconds[kind].append(runner.seconds() - began)
            best = best_of(networks)
            plans[kind] = {"num_networks": len(networks), "best": best.to_json() if best else None}
    for kind, plan in plans.items():
        plan["seconds"] = statistics.median(seconds[kind])
    plain = bench.latency.plain_seconds(references.length)
    return {"plans": plans, "plain_seconds": plain, "task": task.label}


def _decoded(bench: Workbench, task: Task) -> Values:
    methods = {kind: knapspec(bench.scale, min_cosine=min_cosine) for kind, min_cosine in COSINES.items()}
    ways = compare(bench, {**methods, **methods_of(bench.scale, FRUGAL)}, task.measured)
    return {**ways, "task": task.label}


# ---------------------------------------------------------------------------------------------------- the table


def show(found: Found) -> Section:
    plans, decoded, trends = [], [], []
    for name in TASKS_USED:
        title = TASKS[name].title
        plans += [row for kind in COSINES if (row := _plan_row(found, f"{PLAN} {name}", kind))]
        decoded += [row for kind in (*COSINES, FRUGAL) if (row := _decoded_row(found, f"{DECODED} {name}", kind))]
        trends += _trends(found, name, title)
    alone = ["task", "KnapSpec", "s a plan", "in plain passes", "sub-networks", "expected TPT", "at one in 64 rounds"]
    tables = [
        Table("a plan alone", alone, plans),
        Table("decoding", ["task", "KnapSpec", "speed-up", "TPT", "in the DP"], decoded),
    ]
    efforts = [Effort("models", 1, PAPER_MODELS), Effort("prompts a task", found.scale.get("prompts"), None)]
    return Section(tables, efforts, measured(trends), _notes(found))


def _plan_row(found: Found, unit: str, kind: str) -> list[str]:
    one, plain = found.get(unit, "plans", kind), found.get(unit, "plain_seconds")
    if one is None or not plain:
        return []
    expected = found.get(unit, "plans", kind, "best", "tokens_per_time")
    share = one["seconds"] / (one["seconds"] + INTERVAL * plain)
    counts = [f"{one['seconds'] / plain:.1f}", f"{one['num_networks']}"]
    return [found.get(unit, "task"), kind, f"{one['seconds']:.3f}", *counts, number(expected, ".2f"), f"{share:.1%}"]


def _decoded_row(found: Found, unit: str, kind: str) -> list[str]:
    if found.get(unit, kind, "total") is None:
        return []
    cells = [speed_cell(found, unit, kind), figure_cell(found, unit, kind, "tokens_per_time")]
    return [found.get(unit, "task"), kind, *cells, share_cell(found, unit, kind)]


def _trends(found: Found, name: str, title: str) -> list[Trend]:
    plan, decoded = f"{PLAN} {name}", f"{DECODED} {name}"
    on, off = (found.get(plan, "plans", kind) or {} for kind in COSINES)
    without, with_it = off.get("seconds"), on.get("seconds")
    because = f"{number(without, '.3f')} s without, {number(with_it, '.3f')} s with it"
    return [
        is_more(f"pruning saves time of a plan on {title}", without, with_it, because, SAVES),
        _finds_as_good(on.get("best"), off.get("best"), title),
        _is_like_a_pass(found, plan, title),
        _is_no_worse(found, decoded, title),
    ]


def _finds_as_good(on: Mapping[str, Any] | None, off: Mapping[str, Any] | None, title: str) -> Trend:
    claim = f"what is pruned is not missed on {title}"
    if not on or not off:
        return Trend(claim, None, NOT_MEASURED)
    speeds = on["tokens_per_time"], off["tokens_per_time"]
    return Trend(claim, speeds[0] >= 0.99 * speeds[1], "expected TPT {:.2f} with it, {:.2f} without".format(*speeds))


def _is_like_a_pass(found: Found, unit: str, title: str) -> Trend:
    claim = f"a plan takes about as long as a plain pass (less than ten of them) on {title}"
    seconds, plain = found.get(unit, "plans", PRUNED, "seconds"), found.get(unit, "plain_seconds")
    if not seconds or not plain:
        return Trend(claim, None, NOT_MEASURED)
    return Trend(claim, seconds < 10 * plain, f"{seconds / plain:.1f} of them")


def _is_no_worse(found: Found, unit: str, title: str) -> Trend:
    """What cannot be told apart is no worse."""
    claim = f"decoding is no slower with pruning on {title}"
    without = is_faster(claim, found, (unit, UNPRUNED), (unit, PRUNED))
    is_close = without.because.startswith("too close")
    return Trend(claim, True if is_close else None if without.holds is None else not without.holds, without.because)


def _notes(found: Found) -> list[str]:
    tokens = found.scale.get("tokens")
    short = [f"texts of {tokens} tokens bear a whole plan each: over longer ones its share is smaller"]
    return [
        "in the DP: seconds of planning (and of what a strategy notes after each round) over those of decoding",
        f"at one in {INTERVAL} rounds, as its code plans: the share beside so many plain passes",
        "what is pruned: states with a cosine below 0.5; in both cases at most half of all seconds are skipped",
        *(short if tokens and tokens <= INTERVAL else []),
    ]
