"""Figures of SWIFT (arXiv:2410.06916): evenly thinned layers, sets across tasks, skip ratios, sets step by step.

Those of streams that it searches on stand in `swift_methods`, figure 11 beside the tables about Self-SD.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ...calibrate.fit_session import ScoredTexts
from ...errors import ProfileError
from ...measure.estimate import mean
from ...measure.records import Record
from ...types import FrontierPoint, SkipSet
from ..charts import Bars, SkipStrips, Strip
from ..tables import Table, number
from . import swift_methods as shared
from .claims import SPEEDUP, Side, at_least, estimate_of, faster, is_above, is_faster, is_larger, larger, speedup
from .experiment import Experiment, Found, Judgement, Plot, Unit, Values
from .forms import by_arm, by_domain, cell, curves, domain_bars
from .swift_methods import FIRST_TASK, SELF_SD, SWIFT, Judgements, accelerating, by_task, labels_of, swift_fit
from .workbench import TASKS, Task, Workbench, each, labels, why_missing

# ------------------------------------------------------------------------------------------ 2a: evenly thinned layers

RATIOS = (0.5, 0.3, 0.1, 0.4, 0.2, 0.6)
"""The paper's half first, then what shows the course soonest."""
TOP_1, TOP_K = "top-1", "top-k"
HALF = "speed 0.5"


def thinned_units(bench: Workbench) -> Iterable[Unit]:
    prompts = by_task(bench.tasks(("cnn-dm", "gsm8k", "tinystories")))

    def measure(skipped: float) -> Values:
        """Both stop alike; one has the draft's best tokens verified as well, as SWIFT has."""
        top_k = shared.paired_as_swift("uniform", ratio=skipped)
        settings = {name: values for name, values in top_k["settings"].items() if name != "siblings"}
        methods = {TOP_K: top_k, TOP_1: {**top_k, "tree": "chain", "settings": settings}}
        return {**bench.compare(methods, prompts), "task": f"{skipped:.0%}"}

    return [Unit(f"speed {skipped}", partial(measure, skipped)) for skipped in RATIOS if prompts]


THINNED_SIDES = {arm: {skipped: Side(f"speed {skipped}", arm) for skipped in RATIOS} for arm in (TOP_1, TOP_K)}
THINNED = [f"speed {skipped}" for skipped in sorted(RATIOS)]
FIGURE_2A = Experiment(
    "figure-2a",
    thinned_units,
    [by_arm(["M", "alpha", SPEEDUP, "c"], [TOP_1, TOP_K], first="layers skipped", units=THINNED)],
    [
        at_least("with half skipped over 90 % of the drafts are accepted", "alpha", TOP_K, 0.9, units=[HALF]),
        larger("several candidates make more draft tokens accepted than one", "alpha", TOP_K, TOP_1, units=[HALF]),
        faster("evenly spaced layers, half of them skipped, pay with several candidates", TOP_K, units=[HALF]),
        faster("several candidates are faster than one", TOP_K, TOP_1, units=[HALF]),
    ],
    chart=curves(
        ["alpha", SPEEDUP],
        lambda found: THINNED_SIDES,
        "share of the layers skipped",
        "Acceptance and speed-up by layers.",
    ),
)

# ------------------------------------------------------------------------------------------ 2b: sets across tasks

SET_TASKS = ("tinystories", "gsm8k", "cnn-dm", "wmt")
"""The paper's example first: the set of a story on a calculation."""
SET, SET_SHARE = "set", 0.3
"""All sets skip about the same share of the sub-layers: else their sizes would decide, not the tasks."""


def on_all(bench: Workbench, task: Task) -> Values:
    """Its set on its own prompts and on those of the others."""
    tasks = bench.tasks(SET_TASKS)
    settings = {"fixed": {"skip": str(pruned(bench, task))}, "confidence": {"threshold": 0.8}}
    method = {"strategy": "fixed", "lookahead": "confidence", "tree": "chain", "settings": settings}
    return {**bench.compare({SET: method}, by_task(tasks)), "task": task.label, "labels": labels(tasks)}


def pruned(bench: Workbench, task: Task) -> SkipSet:
    fitted = bench.fit(f"prune-{task.name}", {"strategy": "prune"}, task.fitting)
    points = [FrontierPoint.from_json(point) for point in fitted.values.get("frontier", ()) if point["skip"]]
    if not points:
        raise ProfileError(f"the time was too short to find a set for {task.title}; allow more with --fit-seconds")
    count = SET_SHARE * 2 * bench.engine.runner.num_layers
    return min(points, key=lambda point: abs(len(point.skip) - count)).skip


def sets_table(found: Found) -> Table:
    labels = labels_of(found)
    rows = [
        [found.label(one), cell(found, one, SET, "r"), *(cell(found, one, SET, SPEEDUP, name) for name in labels)]
        for one in found.units
    ]
    return Table("speed-up of the set of a task", ["set of", "r", *(f"on {one}" for one in labels.values())], rows)


def sets_suit_their_tasks(found: Found) -> Judgements:
    story, reasoning = (Side("tinystories", SET, name, f"on {TASKS[name].title}") for name in ("tinystories", "gsm8k"))
    yield is_faster("the set of stories is worth less on calculations", found, story, reasoning)
    for name, label in labels_of(found).items():
        sides = [Side(one, SET, name, f"set of {found.label(one)}") for one in found.units]
        own = Side(name, SET, name, f"set of {label}")
        others = {side: one.value for side in sides if side != own and (one := speedup(found, side))}
        different = [side for side in others if not shared.drafted_alike(found, own, side)]
        best = max(different, key=lambda side: others[side], default=None)
        yield is_faster(f"on {label} its own set is the fastest", found, own, best) if best else None


def sets_chart(found: Found) -> Plot | None:
    labels = labels_of(found)
    sets = {
        f"set of {found.label(one)}": [speedup(found, Side(one, SET, name)) for name in labels] for one in found.units
    }
    drawn = Bars([f"on {one}" for one in labels.values()], sets, "speed-up", "x", baseline=1.0)
    return Plot(drawn, "Speed-up of the set of each task on every task.", (8.0, 4.0)) if sets else None


FIGURE_2B = Experiment("figure-2b", each(SET_TASKS, on_all), [sets_table], [sets_suit_their_tasks], chart=sets_chart)

# ------------------------------------------------------------------------------------------ 7: the task changes

SHIFT_TASKS = ("cnn-dm", "gsm8k", "alpaca", "wmt", "nq")
SHIFT, SHIFT_ARMS = "stream", (SELF_SD, SWIFT, shared.OURS)


def shift_units(bench: Workbench) -> Iterable[Unit]:
    """A stream from task to task, after searches on other prompts of its first; our own form learns on the way."""
    tasks = bench.tasks(SHIFT_TASKS)

    def measure() -> Values:
        fitted, found = swift_fit(bench, tasks[0]), shared.self_sd_fit(bench, tasks[0].name, tasks[0].fitting)
        known = {**shared.self_sd(SELF_SD, found["skip"]), SWIFT: accelerating(), shared.OURS: {"strategy": "swift"}}
        wanted = SHIFT_ARMS[:2] if bench.scale.is_quick else SHIFT_ARMS
        methods = {arm: known[arm] for arm in wanted if arm in known}
        searches = {"search": shared.facts(fitted), "searches": {SELF_SD: found}}
        return {**bench.compare(methods, by_task(tasks), knows=[fitted]), "labels": labels(tasks), **searches}

    yield from (Unit(name, missing=why_missing(name)) for name in SHIFT_TASKS if bench.task(name) is None)
    yield from [Unit(SHIFT, measure)] if len(tasks) > 1 else []


def shift_claims(found: Found) -> Judgements:
    first, *_ = *labels_of(found), None

    def is_later(record: Record) -> bool:
        return record.domain != first

    own, others = Side(SHIFT, SELF_SD, first, "on its task"), Side(SHIFT, SELF_SD, None, "on the others", is_later)
    yield is_faster("Self-SD loses speed where the task is not its own", found, own, others)
    yield is_larger("Self-SD's drafts are accepted more often on its own task", found, "alpha", own, others)
    steady = Side(SHIFT, SWIFT, None, "SWIFT", is_later)
    known = replace(others, label=SELF_SD)
    yield is_faster("SWIFT is faster than Self-SD once the task has changed", found, steady, known)
    rates = {label: estimate_of(found, "alpha", Side(SHIFT, SWIFT, name)) for name, label in labels_of(found).items()}
    by_rate = sorted((rate.value, label) for label, rate in rates.items() if rate)
    for _, lowest in by_rate[:1]:
        text = "SWIFT's drafts are accepted by more than 90 % on every task"
        yield is_above(text, rates[lowest], 0.9, f"on {lowest}")


FIGURE_7 = Experiment(
    "figure-7",
    shift_units,
    [by_domain([SPEEDUP, "alpha"], SHIFT, SHIFT_ARMS, labels_of)],
    [shift_claims, faster("SWIFT is faster than plain decoding over the whole stream", SWIFT)],
    [shared.self_sd_notes],
    domain_bars(
        [SPEEDUP, "alpha"], SHIFT, SHIFT_ARMS, labels_of, "Speed-up and acceptance of Self-SD and SWIFT by task."
    ),
)

# ------------------------------------------------------------------------------------------ 8b: the skip ratio

SKIPPED = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6)
"""The paper's are 0.3 to 0.6; what pays with a small model may be less."""
RATIO_SIDES = {one: Side(FIRST_TASK, f"ratio {one}") for one in SKIPPED}
RATIO_SECONDS = 0.5
"""Of the usual seconds, for the search of each ratio."""


def at_ratios(bench: Workbench, task: Task) -> Values:
    """The set that a search at each ratio ends with; the ratio is not lowered where few drafts are accepted."""
    seconds = RATIO_SECONDS * bench.scale.fit_seconds
    fits = {one: swift_fit(bench, task, seconds, ratio=one, min_ratio=one) for one in SKIPPED}
    sets = {RATIO_SIDES[one].arm: skip for one, fitted in fits.items() if (skip := fitted.values.get("skip"))}
    return bench.measure(task, {arm: shared.paired_as_swift("fixed", skip=skip) for arm, skip in sets.items()})


def has_an_optimum(found: Found) -> Judgements:
    """Inside: the best ratio is faster than the smallest and than the largest."""
    text = "speed-up rises with the ratio, then falls"
    known = {side: speed.value for side in RATIO_SIDES.values() if (speed := speedup(found, side))}
    if len(known) > 2:
        best, ends = max(known, key=lambda side: known[side]), (next(iter(known)), next(reversed(known)))
        others = [judged for end in ends if end != best and (judged := is_faster(text, found, best, end))]
        is_clear = all(one.outcome is not None for one in others)
        yield Judgement(text, best not in ends if is_clear else None, "; ".join(one.because for one in others))


FIGURE_8B = Experiment(
    "figure-8b",
    each([FIRST_TASK], at_ratios),
    [by_arm(["r", SPEEDUP, "alpha", "M", "c"], [side.arm for side in RATIO_SIDES.values()], first="")],
    [has_an_optimum],
    chart=curves([SPEEDUP], lambda found: {SWIFT: RATIO_SIDES}, "skip ratio", "Speed-up by skip ratio."),
)

# ------------------------------------------------------------------------------------------ 12: the set step by step


def snapshots(bench: Workbench, task: Task) -> Values:
    """The sets that the search had at several steps, and how they do on each of some texts that it has not seen."""
    known = swift_fit(bench, task).values
    taken = {int(step): skip for step, skip in known["snapshots"].items()} | {known["step"]: known["skip"]}
    best = {step: [row["best"] for row in known["steps"] if row["step"] <= max(1, step)] for step in taken}
    sets = [{"step": step, "skip": taken[step], "matchness": (best[step] or [None])[-1]} for step in sorted(taken)]
    texts = bench.write(task.measured, max(bench.scale.tokens, 2 * shared.PAPER_WINDOW))
    scored = [ScoredTexts(bench.engine.runner, [text]) for text in texts if text.num_generated]
    matches = [[text.match(SkipSet.parse(one["skip"])) for one in sets] for text in scored]
    return {"num_layers": bench.engine.runner.num_layers, "sets": sets, "matches": matches}


def strips(found: Found) -> list[tuple[SkipSet, str, str, list[float]]]:
    """Each set, the step it is of, its matchness, and its match on other texts."""
    texts = found.get(FIRST_TASK, "matches") or []
    return [
        (SkipSet.parse(one["skip"]), str(one["step"]), number(one["matchness"], ".2f"), [text[place] for text in texts])
        for place, one in enumerate(found.get(FIRST_TASK, "sets") or ())
    ]


def strip_table(found: Found) -> Table:
    rows = [
        [step, str(len(skip.attention)), str(len(skip.mlp)), matchness, str(mean(texts) or "-")]
        for skip, step, matchness, texts in strips(found)
    ]
    header = ["step", "attention skipped", "MLP skipped", "matchness", "match on other texts"]
    return Table("the set in use", header, rows)


def is_refined(found: Found) -> Judgements:
    """Paired, text by text; a smaller set that does better proves nothing."""
    text, sets = "the search ends with a better set than it began with", strips(found)
    if len(sets) > 1:
        (first, *_, before), (last, *_, after) = sets[0], sets[-1]
        gained = mean([two - one for one, two in zip(before, after, strict=True)])
        smaller = Judgement(text, None, f"it skips {len(last)} sub-layers instead of {len(first)}")
        yield smaller if len(last) < len(first) else is_above(text, gained, 0.0, "match gained on other texts")


def strip_chart(found: Found) -> Plot | None:
    rows = [Strip(skip, f"step {step}", f"matchness {matchness}") for skip, step, matchness, _ in strips(found)]
    drawing = SkipStrips(rows, found.get(FIRST_TASK, "num_layers") or 0)
    alt = "Sub-layers that the set in use skips, step by step."
    return Plot(drawing, alt, (10, 1.2 + len(rows) / 2)) if rows else None


FIGURE_12 = Experiment("figure-12", each([FIRST_TASK], snapshots), [strip_table], [is_refined], chart=strip_chart)

FIGURES = [FIGURE_2A, FIGURE_2B, shared.FIGURE_6, FIGURE_7, shared.FIGURE_8A, FIGURE_8B, FIGURE_12]
