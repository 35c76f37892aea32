"""Figure 2a: evenly spaced layers are skipped; how often the target's token is the draft's first, or among its best.

Shares are told by teacher forcing: behind every token of the target's own text, with the target's keys and values.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ....calibrate.texts import look_at
from ....protocols import Probe
from ....registry import resolve
from ....strategies.uniform import spread
from ....types import SkipSet
from ...report import Table, number
from ..cells import NOT_MEASURED, speed_cell
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import NONE, Share, faster, is_above, is_more, pays, speed_of, told
from .figures_common import by_task, found_tasks, plain_texts
from .figures_drawing import draw_lines, draw_plain

TASKS = ("cnn-dm", "gsm8k", "tinystories")
TOPS = (1, 5, 10)
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
SPEED_RATIOS = (0.5, 0.3, 0.1, 0.4, 0.2, 0.6)
"""The paper's half first, and what shows the course soonest."""
HALF, ENOUGH = 0.5, 0.9
TOP_1, TOP_K = "top-1", "top-k"
ACCEPTANCE, SPEED = "acceptance ", "speed "
PAPER_PROMPTS = 1000

# ------------------------------------------------------------------------------------------------------ measuring


def sparsity_units(bench: Workbench) -> Iterable[Unit]:
    yield from bench.for_each(TASKS, lambda task: _acceptance(bench, task), prefix=ACCEPTANCE)
    tasks = found_tasks(bench, TASKS)
    for ratio in SPEED_RATIOS if tasks else ():
        yield Unit(f"{SPEED}{ratio}", partial(bench.compare, ways(ratio), by_task(tasks)))


def ways(ratio: float) -> dict[str, Mapping[str, Any]]:
    """Both stop alike; one has the draft's best tokens verified as well, as SWIFT has."""
    pairing = resolve({"strategy": "swift"})
    settings = {**pairing["settings"], "uniform": {"ratio": ratio}}
    top_k = {**pairing, "strategy": "uniform", "settings": settings}
    return {TOP_K: top_k, TOP_1: {**top_k, "tree": "chain"}}


def even_sets(num_layers: int) -> dict[float, SkipSet]:
    """By ratio; without those that skip nothing."""
    layers = {ratio: spread(num_layers, ratio) for ratio in RATIOS}
    return {ratio: SkipSet.of(found, found) for ratio, found in layers.items() if found}


def _acceptance(bench: Workbench, task: Task) -> Values:
    """Of each set, over all generated tokens: how often the target's token is among its best 1, 5, 10."""
    runner = bench.engine.runner
    sets, texts = even_sets(runner.num_layers), plain_texts(bench, task.measured)
    hits = {ratio: [0] * len(TOPS) for ratio in sets}
    for text in texts:
        probe, wanted = look_at(text, runner), text.tokens[text.num_prompt_tokens :]
        for ratio, skip in sets.items():
            found = top_hits(probe, skip, wanted, TOPS)
            hits[ratio] = [sum(pair) for pair in zip(hits[ratio], found, strict=True)]
    points = [{"ratio": ratio, "num_skipped": len(skip), "hits": hits[ratio]} for ratio, skip in sets.items()]
    num_tokens = sum(text.num_generated for text in texts)
    return {"points": points, "num_tokens": num_tokens, "num_sublayers": 2 * runner.num_layers}


@torch.inference_mode()
def top_hits(probe: Probe, skip: SkipSet, wanted: Sequence[int], tops: Sequence[int]) -> list[int]:
    """Tokens of `wanted` that are among the sub-network's best so many; the probe looks at the tokens before them."""
    states, skipped = probe.begin(), skip.numbers
    for place in range(probe.num_sublayers):
        states = (probe.skip if place in skipped else probe.run)(place, states)
    scores = probe.scores(states)[0]
    best = scores.topk(min(max(tops), scores.shape[-1]), dim=-1).indices
    is_hit = best == torch.tensor(list(wanted), device=best.device)[:, None]
    return [int(is_hit[:, :top].any(-1).sum()) for top in tops]


# -------------------------------------------------------------------------------------------------------- showing


def show_sparsity(found: Found) -> Section:
    shares, skipped = _shares(found), _skipped(found)
    rows = [
        [
            skipped.get(ratio, f"{ratio:.0%}"),
            *(number(shares[ratio][top].value if ratio in shares else None, ".2f") for top in TOPS),
            *(speed_cell(found, f"{SPEED}{ratio}", way) for way in (TOP_1, TOP_K)),
        ]
        for ratio in RATIOS
        if ratio in shares or f"{SPEED}{ratio}" in found.units
    ]
    names = [f"top-{top}" for top in TOPS]
    header = ["sub-layers skipped", *names, f"speed-up {TOP_1}", f"speed-up {TOP_K}"]
    num_tokens = sum(found.get(ACCEPTANCE + task, "num_tokens") or 0 for task in TASKS)
    return Section(
        [Table("share of the target's tokens that the draft has", header, rows)],
        [Effort("prompts a task", found.scale.get("prompts"), PAPER_PROMPTS), Effort("tokens", num_tokens, None)],
        told(_claims(found, shares)),
        [
            "shares are told by teacher forcing on the target's own texts",
            f"{TOP_K}: up to ten candidates, the fewer the surer the draft is; {TOP_1}: a chain that stops alike",
        ],
        Plot(
            lambda figure: _draw(figure, found, shares),
            "Share of accepted tokens and speed-up by the share of sub-layers skipped.",
            (10.0, 4.0),
        )
        if rows
        else None,
    )


def _shares(found: Found) -> dict[float, dict[int, Share]]:
    """By ratio and k, over all tasks."""
    sums: dict[float, list[list[int]]] = {}
    for task in TASKS:
        for point in found.get(ACCEPTANCE + task, "points") or ():
            count = found.get(ACCEPTANCE + task, "num_tokens")
            sums.setdefault(point["ratio"], []).append([*point["hits"], count])
    totals = {ratio: [sum(column) for column in zip(*rows, strict=True)] for ratio, rows in sums.items()}
    return {
        ratio: {top: Share(hits, total[-1]) for top, hits in zip(TOPS, total[:-1], strict=True)}
        for ratio, total in totals.items()
    }


def _skipped(found: Found) -> dict[float, str]:
    return {
        point["ratio"]: f"{point['num_skipped']} of {found.get(ACCEPTANCE + task, 'num_sublayers')}"
        for task in TASKS
        for point in found.get(ACCEPTANCE + task, "points") or ()
    }


def _claims(found: Found, shares: Mapping[float, Mapping[int, Share]]) -> Iterable[Trend]:
    half, unit = shares.get(HALF, dict.fromkeys(TOPS, NONE)), f"{SPEED}{HALF}"
    yield is_above("with half skipped more than 90 % of the tokens are among the ten best", half[10], ENOUGH)
    yield _gain(is_more("ten candidates meet more tokens than one", half[10], half[1]), shares)
    top_k, top_1 = (speed_of(found, unit, way, label=f"{way}, half skipped") for way in (TOP_K, TOP_1))
    yield pays("evenly spaced layers, half of them skipped, pay with several candidates", top_k)
    yield faster("several candidates are faster than one", top_k, top_1)


def _gain(trend: Trend, shares: Mapping[float, Mapping[int, Share]]) -> Trend:
    """With the mean over all ratios, as the paper tells it."""
    gains = [share[10].hits / share[1].hits - 1 for share in shares.values() if share[1].hits]
    if not gains or trend.because == NOT_MEASURED:
        return trend
    return Trend(trend.claim, trend.holds, f"{trend.because}; on average {statistics.mean(gains):.0%} more")


def _draw(figure: Any, found: Found, shares: Mapping[float, Mapping[int, Share]]) -> None:
    left, right = figure.subplots(1, 2)
    lines = {
        f"top-{top}": [(ratio, value) for ratio, share in shares.items() if (value := share[top].value) is not None]
        for top in TOPS
    }
    draw_lines(left, lines, "share of the layers skipped", "share of the target's tokens")
    left.set_ylim(0, 1.02)
    speeds = {
        way: [(ratio, known.value) for ratio in RATIOS if (known := speed_of(found, f"{SPEED}{ratio}", way))]
        for way in (TOP_1, TOP_K)
    }
    draw_plain(right)
    draw_lines(right, speeds, "share of the layers skipped", "speed-up", first=len(TOPS))
