"""Figure 2a: evenly spaced layers are skipped; what is accepted and gained with one candidate a token, or several.

And by teacher forcing, which takes one pass a set: how often the target's token is the draft's first, or among its
best, behind every token of the target's own text, with the target's keys and values.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ....calibrate.texts import probe_text
from ....protocols import Probe
from ....registry import resolve
from ....strategies.uniform import spread
from ....types import SkipSet
from ...charts import Lines, Panels, Series
from ...report import Table, number
from ..cells import (
    NOT_MEASURED,
    faster,
    faster_than_plain,
    figure,
    figure_cell,
    from_enough,
    has_larger_figure,
    is_larger,
    speed_cell,
    speed_of,
    told,
)
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_claims import Share
from .figures_common import by_task, found_tasks, plain_texts

TASKS = ("cnn-dm", "gsm8k", "tinystories")
TOPS = (1, 5, 10)
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
SPEED_RATIOS = (0.5, 0.3, 0.1, 0.4, 0.2, 0.6)
"""The paper's half first, and what shows the course soonest."""
HALF, ENOUGH = 0.5, 0.9
TOP_1, TOP_K = "top-1", "top-k"
WAYS = (TOP_1, TOP_K)
ACCEPTANCE, SPEED = "acceptance ", "speed "
PAPER_PROMPTS = 1000

# ------------------------------------------------------------------------------------------------------ measuring


def sparsity_units(bench: Workbench) -> Iterable[Unit]:
    """What the claims are about first; what is quickly had next."""
    prompts = by_task(found_tasks(bench, TASKS))
    speeds = [Unit(f"{SPEED}{ratio}", partial(bench.compare, ways(ratio), prompts)) for ratio in SPEED_RATIOS]
    yield from speeds[:1] if prompts else ()
    yield from bench.for_each(TASKS, lambda task: _shares_of(bench, task), prefix=ACCEPTANCE)
    yield from speeds[1:] if prompts else ()


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


def _shares_of(bench: Workbench, task: Task) -> Values:
    """Of each set, over all generated tokens: how often the target's token is among its best 1, 5, 10."""
    runner = bench.engine.runner
    sets, texts = even_sets(runner.num_layers), plain_texts(bench, task.measured)
    hits = {ratio: [0] * len(TOPS) for ratio in sets}
    for text in texts:
        probe, wanted = probe_text(text, runner), text.tokens[text.num_prompt_tokens :]
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
    known = [ratio for ratio in RATIOS if ratio in shares or f"{SPEED}{ratio}" in found.units]
    rows = [
        [
            skipped.get(ratio, f"{ratio:.0%}"),
            *(figure_cell(found, f"{SPEED}{ratio}", way, "acceptance_rate") for way in WAYS),
            *(speed_cell(found, f"{SPEED}{ratio}", way) for way in WAYS),
            *(number(shares[ratio][top].value if ratio in shares else None, ".2f") for top in TOPS),
        ]
        for ratio in known
    ]
    columns = [f"{what} {way}" for what in ("accepted", "speed-up") for way in WAYS]
    counts = [figure(found, f"{SPEED}{ratio}", TOP_K, "num_prompts") or 0 for ratio in known]
    num_tokens = sum(found.get(ACCEPTANCE + task, "num_tokens") or 0 for task in TASKS)
    return Section(
        [Table("", ["sub-layers skipped", *columns, *(f"among the best {top}" for top in TOPS)], rows)],
        [
            Effort("prompts of all three tasks", max(counts, default=None), len(TASKS) * PAPER_PROMPTS),
            Effort("tokens of teacher forcing", num_tokens, None),
        ],
        told(_claims(found)),
        [
            f"{TOP_K}: up to ten candidates, the fewer the surer the draft is; {TOP_1}: a chain that stops alike",
            "accepted: of the draft tokens; among the best: of all tokens of the target's texts, by teacher forcing",
        ],
        Plot(
            _chart(found, shares),
            "Share of accepted tokens and speed-up by the share of sub-layers skipped.",
            (10.0, 4.4),
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


def _claims(found: Found) -> Iterable[Trend]:
    unit = f"{SPEED}{HALF}"
    rate, count = (figure(found, unit, TOP_K, name) for name in ("acceptance_rate", "num_prompts"))
    claim = "with half skipped and several candidates more than 90 % of the draft tokens are accepted"
    yield from_enough(is_larger(claim, (TOP_K, rate), ("the bound", ENOUGH)), count)
    claim = "several candidates make more draft tokens accepted than one"
    yield _gain(has_larger_figure(claim, found, "acceptance_rate", (unit, TOP_K), (unit, TOP_1)), found)
    top_k, top_1 = (speed_of(found, unit, way, label=f"{way}, half skipped") for way in (TOP_K, TOP_1))
    yield faster_than_plain("evenly spaced layers, half of them skipped, pay with several candidates", top_k)
    yield faster("several candidates are faster than one", top_k, top_1)


def _gain(trend: Trend, found: Found) -> Trend:
    """With the mean over all ratios, as the paper tells it."""
    pairs = [[figure(found, f"{SPEED}{ratio}", way, "acceptance_rate") for way in (TOP_K, TOP_1)] for ratio in RATIOS]
    gains = [top_k / top_1 - 1 for top_k, top_1 in pairs if top_k is not None and top_1]
    if not gains or trend.because == NOT_MEASURED:
        return trend
    words = f"over {len(gains)} shares skipped {statistics.mean(gains):+.0%}" if len(gains) > 1 else f"{gains[0]:+.0%}"
    return Trend(trend.claim, trend.holds, f"{trend.because}; {words}")


def _chart(found: Found, shares: Mapping[float, Mapping[int, Share]]) -> Panels:
    rates = {way: [(one, figure(found, f"{SPEED}{one}", way, "acceptance_rate")) for one in RATIOS] for way in WAYS}
    forced = {top: [(ratio, share[top].value) for ratio, share in shares.items()] for top in TOPS}
    accepted = [Series(f"accepted, {way}", points) for way, points in rates.items()]
    accepted += [Series(f"among the best {top}", points) for top, points in forced.items()]
    speeds = [Series(way, [(one, speed_of(found, f"{SPEED}{one}", way)) for one in RATIOS]) for way in WAYS]
    label = "share of the layers skipped"
    left = Lines(accepted, label, "share of the tokens", y_limits=(0, 1.02))
    return Panels([left, Lines(speeds, label, "speed-up", baseline=1.0)])
