"""KnapSpec (arXiv:2602.20217): which sub-layers to skip as a knapsack of measured seconds, planned as the text grows.

What is known of the paper here is a summary of it: experiments have names of ours instead of the numbers of its tables,
and published is only what the summary states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...economics import LatencyFit, PassCosts, expected_tokens
from ...measure.estimate import Estimate, Quantity, mean
from ...measure.figures import Measured, share
from ...measure.records import OFF, Machine, Record
from ...prompts.arrange import context_prompts
from ...prompts.tokens import encode
from ...strategies.knapspec import KnapSpec
from ...strategies.uniform import spread
from ...types import Prompt, SkipSet
from ..charts import Group, Lines, Panels, Scatter, Series
from ..tables import number
from .claims import Side, estimate_of, faster, is_above, is_below, is_faster, is_larger, judged_by, speedup
from .experiment import (
    MEASURED, Effort, Experiment, Found, Judgement, Plot, Recipe, Unit, Values, new_tokens, prompts_a_task
)
from .forms import Column, by_arm
from .knapspec_states import LEMMA, MIN_COSINE, References
from .tasks import Task, Tasks
from .workbench import Methods, Workbench

SWIFT, CLASP, KNAPSPEC, FRUGAL, ALWAYS = "SWIFT", "CLaSp", "KnapSpec", "KnapSpec 5 %", "KnapSpec, always"
ARMS = {OFF: "AR", **{name: name for name in (SWIFT, CLASP, KNAPSPEC, FRUGAL, ALWAYS)}}
RIVALS = {OFF: "plain decoding", SWIFT: SWIFT, CLASP: CLASP}
TASKS, QUICK_TASKS, TEMPERATURES = ("gsm8k", "cnn-dm"), ("gsm8k",), (0.0, 0.7)
INTERVAL = 64
"""Rounds from one plan to the next, in the paper's code."""
NO_LOSS = 0.95
"""What reaches this share of a speed is as fast."""
TEXT_TOKENS, LOOKED, QUICK_LOOKED = 48, 32, 16
"""Of a text to look at, at least; and how many of them a plan looks at, at least."""

# ------------------------------------------------------------------------------------------------------- methods


def _tasks(bench: Workbench) -> Sequence[str]:
    return QUICK_TASKS if bench.scale.is_quick else TASKS


def _num_looked_at(bench: Workbench) -> int:
    return QUICK_LOOKED if bench.scale.is_quick else LOOKED


def _knapspec(bench: Workbench, **changed: Any) -> dict[str, Any]:
    """It plans whatever that costs."""
    settings = {"budget": 1.0, "min_tokens": _num_looked_at(bench), **changed}
    return {"strategy": "knapspec", "settings": {"knapspec": settings}}


def _methods(bench: Workbench, *names: str) -> Methods:
    """Each as its paper has it, and with what that pairs it with; FRUGAL is our default, with a budget for planning."""
    known: dict[str, Mapping[str, Any]] = {
        SWIFT: {"strategy": "swift", "settings": {"swift": {"paper": True}}},
        CLASP: {"strategy": "clasp", "settings": {"clasp": {"budget": 1.0}}},
        KNAPSPEC: _knapspec(bench),
        FRUGAL: {"strategy": "knapspec", "settings": {"knapspec": {"min_tokens": _num_looked_at(bench)}}},
    }
    return {name: known[name] for name in names or known}


def _always(skip: str) -> dict[str, Any]:
    """One set, whether it pays or not, with what the paper uses on the other axes."""
    pairing = KnapSpec.pairs_with
    return {**pairing, "strategy": "fixed", "settings": {**pairing["settings"], "fixed": {"skip": skip}}}


def _measure(bench: Workbench, methods: Methods, task: Task, **asked: Any) -> dict[str, Any]:
    """With what passes take, for tokens per time."""
    return {**bench.measure(task, methods, **asked), "latency": bench.latency.to_json()}


# ------------------------------------------------------------------------------------------------ tokens per time


def pass_seconds(record: Record, fit: LatencyFit) -> float:
    """What the passes of its rounds take, measured alone; a verification counts as one plain pass."""
    costs = fit.at(record.num_prompt_tokens + record.num_tokens / 2)
    saved = record.skipped_attention * costs.attention + record.skipped_mlp * fit.mlp_seconds
    return record.num_rounds * costs.plain + record.num_draft_passes * costs.draft(SkipSet()) - saved


def per_time(found: Found, unit: str) -> Quantity:
    """TPT: tokens emitted over what their passes take."""
    measured = found.measured(unit)
    fit = LatencyFit.from_json(found.get(unit, "latency"), measured.machine.num_layers) if measured else None
    return lambda record: (record.num_tokens, pass_seconds(record, fit)) if fit else None


def _tpt(found: Found, side: Side) -> Estimate | None:
    return estimate_of(found, per_time(found, side.unit), side)


def _figure(form: str, value: Callable[[Any], float | None]) -> Callable[[Found, str, str], str]:
    return lambda found, unit, arm: number(value(found.figures(unit, arm)), form)


def _value(found: Estimate | None) -> float | None:
    return found.value if found else None


TPT: Column = ("TPT", lambda found, unit, arm: number(_value(_tpt(found, Side(unit, arm))), ".2f"))
RECORDING: Column = ("recording", _figure(".1%", lambda one: share(one.capture_seconds, one.decode_seconds)))
SKIPPED: Sequence[Column] = (
    ("attention skipped", _figure(".0%", lambda one: one.skipped_attention)),
    ("MLP skipped", _figure(".0%", lambda one: one.skipped_mlp)),
)

# ---------------------------------------------------------------------------------------------------------- main


def _main_units(bench: Workbench) -> Iterable[Unit]:
    """At quick scale one task is sampled: reading long prompts takes most of the time."""

    def measure(temperature: float, task: Task) -> Values:
        found = _measure(bench, _methods(bench), task, temperature=temperature)
        return {**found, "task": f"{task.label}, T = {temperature}"}

    for name in TASKS:
        for temperature in TEMPERATURES if name in _tasks(bench) else TEMPERATURES[:1]:
            yield from bench.for_each([name], partial(measure, temperature), prefix=f"T={temperature} ")


def _main_claims(found: Found) -> Iterator[Judgement | None]:
    for unit in found.units:
        yield from against(found, f"on {found.label(unit)}", lambda arm, unit=unit: Side(unit, arm))  # type: ignore[misc]
    for name in TASKS:
        yield _stays(found, *(Side(f"T={temperature} {name}", KNAPSPEC) for temperature in TEMPERATURES))


def against(found: Found, where: str, side: Callable[[str], Side]) -> Iterator[Judgement | None]:
    """`side`: of an arm, with the unit that it was measured in."""
    own, others = side(KNAPSPEC), [replace(side(arm), label=title) for arm, title in RIVALS.items()]
    made = [is_faster(f"KnapSpec is faster than {one.name} {where}", found, own, one) for one in others]
    known = [(one.value, other) for other in others if (one := _tpt(found, other))]
    if len(known) == len(others):
        claim, (_, best) = f"KnapSpec has the most tokens per time {where}", max(known, key=lambda one: one[0])
        made.append(is_larger(claim, found, per_time(found, own.unit), own, best))
    figures = found.figures(own.unit, own.arm)
    remark = "; it chose not to draft" if figures and figures.acceptance_rate is None else ""
    yield from (one and replace(one, because=one.because + remark) for one in made)


def _stays(found: Found, greedy: Side, sampled: Side) -> Judgement | None:
    """Where there is a speed-up when it does not sample."""
    claim = f"KnapSpec's speed-up stays when sampling, within 5 %, on {found.label(greedy.unit).split(',')[0]}"
    made, known = is_faster(claim, found, sampled, greedy, NO_LOSS), speedup(found, greedy)
    if made and known and not known.is_above(1.0):
        return replace(made, outcome=None, because=f"there is none to stay: {made.because}")
    return made


# ------------------------------------------------------------------------------------------- pruning, decoupling

PRUNED, UNPRUNED, DECOUPLED, BOUND = "pruned", "not pruned", "decoupled", "bound"
COSINES, KINDS = {PRUNED: MIN_COSINE, UNPRUNED: -1.0}, {DECOUPLED: False, BOUND: True}
PLAN, DECODED, BEST, PLANNED = ([f"{what} {task}" for task in TASKS] for what in ("plan", "decoded", "best set", "planned"))
NUM_TEXTS = 3
"""After which both kinds plan."""


def _pruning_units(bench: Workbench) -> Iterable[Unit]:
    """At quick scale the main table alone has our default."""
    bench = _with_references(bench, NUM_TEXTS)
    methods: Methods = {kind: _knapspec(bench, min_cosine=cosine) for kind, cosine in COSINES.items()}
    ours = {} if bench.scale.is_quick else _methods(bench, FRUGAL)
    for name in _tasks(bench):
        yield from bench.for_each([name], partial(_plans, bench), prefix="plan ")
        yield from bench.for_each([name], partial(_measure, bench, {**methods, **ours}), prefix="decoded ")


def _plans(bench: Workbench, task: Task) -> Values:
    """A plan is a record of one token, so that plans are compared as texts are, with a plain pass as well."""
    records, sets = [], []
    for number, prompt in enumerate(task.fitting[:NUM_TEXTS]):
        text = _references(bench, [prompt])
        seconds = {OFF: text.costs.plain, **_plan_seconds(bench, text)}
        length = len(text.first.tokens)
        records += [Record(arm, prompt.id, task.name, number, length, 1, one, one) for arm, one in seconds.items()]
        networks = {kind: text.networks(min_cosine=cosine) for kind, cosine in COSINES.items()}
        sets.append({kind: [one.tokens_per_time for one in found] for kind, found in networks.items()})
    return {MEASURED: Measured(records, Machine(bench.latency.num_layers, 1.0)), "sets": sets, "task": task.label}


def _plan_seconds(bench: Workbench, text: References) -> dict[str, float]:
    """Both once without a clock, as the first meets new shapes; then there and back, so that neither is favoured."""
    seconds: dict[str, list[float]] = {kind: [] for kind in COSINES}
    for kind in (*COSINES, *COSINES, *reversed(COSINES)):
        began = bench.engine.runner.seconds()
        text.networks(min_cosine=COSINES[kind])
        seconds[kind].append(bench.engine.runner.seconds() - began)
    return {kind: sum(timed[1:]) / 2 for kind, timed in seconds.items()}


def _of_plans(found: Found, unit: str, kind: str, value: Callable[[Sequence[float]], float]) -> list[float]:
    """Of the tokens per time that its sub-networks promise, text by text."""
    return [value(one[kind]) for one in found.get(unit, "sets") or ()]


def _plan_column(name: str, form: str, value: Callable[[Any], float | None]) -> Column:
    return name, _figure(form, value)


PLAN_COLUMNS: Sequence[Column] = (
    ("texts", _figure("d", lambda one: one.num_prompts)),
    ("ms a plan", _figure(".1f", lambda one: one.milliseconds)),
    ("in plain passes", _figure(".1f", lambda one: 1 / one.speedup.value)),
    ("sub-networks", lambda *of: number(_value(mean(_of_plans(*of, len))), ".1f")),
    ("expected TPT", lambda *of: number(_value(mean(_of_plans(*of, _most))), ".2f")),
    (f"at one in {INTERVAL} rounds", _figure(".1%", lambda one: 1 / (1 + INTERVAL * one.speedup.value))),
)


def _most(values: Sequence[float]) -> float:
    return max(values, default=0.0)


def _not_missed(found: Found) -> Iterator[Judgement | None]:
    for unit in PLAN:
        pruned, whole = (_of_plans(found, unit, kind, _most) for kind in COSINES)
        lost = mean([100 * (1 - one / other) for one, other in zip(pruned, whole, strict=True) if other])
        claim = f"what is pruned is not missed (less than 1 % of the expected TPT is lost) on {found.label(unit)}"
        yield is_below(claim, lost, 1.0, "lost", unit="%")


def _nothing_pruned(found: Found, unit: str) -> str | None:
    return None if any(one[PRUNED] != one[UNPRUNED] for one in found.get(unit, "sets")) else "nothing was pruned"


def _decoupling_units(bench: Workbench) -> Iterable[Unit]:
    bench = _with_references(bench)
    planned: Methods = {kind: _knapspec(bench, bound=is_bound) for kind, is_bound in KINDS.items()}
    for name in _tasks(bench):
        yield from bench.for_each([name], partial(_best_sets, bench), prefix="best set ")
        yield from bench.for_each([name], partial(_measure, bench, planned), prefix="planned ")


def _best_sets(bench: Workbench, task: Task) -> Values:
    """The set of each kind that promises most on a text which is not measured; it drafts whether it pays or not."""
    references = _references(bench, task.fitting)
    best = {kind: references.best(is_bound=is_bound) for kind, is_bound in KINDS.items()}
    sets = {kind: vars(one) for kind, one in best.items() if one}
    return {**_measure(bench, {kind: _always(one["skip"]) for kind, one in sets.items()}, task), "sets": sets}


def _kept(key: str, name: str, form: str) -> Callable[[Found, str, str], str]:
    return lambda found, unit, arm: number(found.get(unit, key, arm, name), form)


def _neither_drafts(found: Found, unit: str) -> str | None:
    rates = [figures.acceptance_rate for kind in KINDS if (figures := found.figures(unit, kind))]
    return None if any(rate is not None for rate in rates) else "neither drafts"


# --------------------------------------------------------------------------------------------------- correlation

NUM_DRAFTED, MIN_POINTS = 4, 4
RATIOS, BUDGETS = (0.12, 0.25, 0.4), (0.3, 0.6, 1.0)
"""Of evenly spread layers, attentions or MLPs; of the largest weight that the knapsack may skip."""
PREDICTORS = {
    "tokens_per_time": "TPT",
    "by_width": "TPT, verification by its width",
    "tokens_per_layer": "TPL",
    "match": "match (acceptance rate)",
}
Point = Mapping[str, float]


def _spread(kinds: str, references: References, num_layers: int) -> Iterator[SkipSet]:
    for layers in (spread(num_layers, ratio) for ratio in RATIOS):
        yield SkipSet.of(layers if "a" in kinds else (), layers if "m" in kinds else ())


def _of_knapsack(is_bound: bool, references: References, num_layers: int) -> Iterator[SkipSet]:
    networks = references.networks(is_bound=is_bound)
    for budget in BUDGETS if networks else ():
        yield SkipSet.parse(networks[round(budget * (len(networks) - 1))].skip)


FAMILIES: Mapping[str, Callable[[References, int], Iterable[SkipSet]]] = {
    "knapsack": partial(_of_knapsack, False),
    "layers": partial(_spread, "am"),
    "attentions": partial(_spread, "a"),
    "MLPs": partial(_spread, "m"),
    "bound knapsack": partial(_of_knapsack, True),
}


def _correlation_units(bench: Workbench) -> Iterable[Unit]:
    bench = _with_references(bench)
    for family in FAMILIES:
        yield from bench.for_each(["gsm8k"], partial(_family, bench, family), prefix=f"{family} ")


def _family(bench: Workbench, family: str, task: Task) -> Values:
    references, fit = _references(bench, task.fitting), bench.latency
    lengths = [len(encode(prompt, bench.engine)) for prompt in task.measured]
    costs = fit.at(sum(lengths) / len(lengths) + bench.scale.tokens / 2)
    skips = {str(skip): skip for skip in FAMILIES[family](references, fit.num_layers) if skip}
    points = {name: predicted(skip, references.others.match(skip), costs) for name, skip in skips.items()}
    settings = {name: {"fixed": {"skip": name, "tokens": NUM_DRAFTED}} for name in skips}
    fixed = {"strategy": "fixed", "lookahead": "fixed", "tree": "chain"}
    methods = {name: {**fixed, "settings": settings[name]} for name in skips}
    return {**bench.measure(task, methods), "points": points, "task": family}


def predicted(skip: SkipSet, match: float, costs: PassCosts, num_drafted: int = NUM_DRAFTED) -> dict[str, float]:
    """What the paper's formulas say of drafting `num_drafted` tokens in each round, with `match` as the acceptance rate.

    `by_width`: tokens per time with a verification that costs what one of its width was measured to cost.
    """
    num_layers, tokens = costs.fit.num_layers, float(expected_tokens([match], num_drafted)[0, -1])
    return {
        "match": match,
        "tokens_per_time": tokens / (num_drafted * costs.draft(skip) + costs.plain),
        "by_width": float(costs.speeds(match, skip, num_drafted)[-1]),
        "tokens_per_layer": tokens / (num_drafted * (num_layers - len(skip) / 2) + num_layers),
    }


def points(found: Found, unit: str) -> list[Point]:
    """Predictions of the sets, and the speed-up that each reached."""
    known = {arm: speedup(found, Side(unit, arm)) for arm in found.arms(unit)}
    return [{**one, "speedup": known[arm].value} for arm, one in found.get(unit, "points").items() if known.get(arm)]


def correlation(sets: Sequence[Point], one: str, other: str | None = None) -> Estimate | None:
    """Pearson's r of a predictor and the speed-up, or by how much it is above another's; sets are resampled."""
    if len(sets) < MIN_POINTS:
        return None
    draws = np.random.default_rng(0).integers(len(sets), size=(1000, len(sets)))
    rows = np.vstack([np.arange(len(sets)), draws])  # the first: the sets themselves
    values = {name: np.array([point[name] for point in sets])[rows] for name in (one, other or one, "speedup")}
    r = _pearsons(values[one], values["speedup"])
    r = r - _pearsons(values[other], values["speedup"]) if other else r
    low, high = np.nanquantile(r, (0.025, 0.975))
    return None if np.isnan(r[0]) else Estimate(float(r[0]), float(low), float(high), len(sets))


def _pearsons(*both: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each row; not a number where one of them is the same everywhere."""
    first, second = (values - values[:, :1] for values in both)  # exactly 0 where all are the same
    first, second = (values - values.mean(1, keepdims=True) for values in (first, second))
    with np.errstate(invalid="ignore"):
        return np.asarray((first * second).sum(1) / np.sqrt((first**2).sum(1) * (second**2).sum(1)))
