"""KnapSpec (arXiv:2602.20217): which sub-layers to skip as a knapsack of measured seconds, planned as the text grows.

What is known of the paper here is a summary of it: experiments have names of ours instead of the numbers of its tables,
and published is only what the summary states.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...economics import LatencyFit
from ...measure.estimate import Estimate, Quantity, mean, resampled
from ...measure.records import OFF, Record
from ...strategies.knapspec import KnapSpec
from ...types import SkipSet
from ..tables import Table, number
from .claims import Side, above, denied, estimate_of, faster, in_each, is_above, is_below, is_faster, is_larger, speedup
from .experiment import Effort, Experiment, Found, Judgement, MainTable, Recipe, Unit, Values
from .forms import Column, by_arm, curves, formatted, kept
from .knapspec_states import CORRELATION, LEMMA, MIN_COSINE, STATES, References, num_looked_at, with_references
from .long_prompts import QUESTION, bare, long_questions
from .swift_methods import sampled, swift
from .workbench import Methods, Task, UnitsOf, Workbench, each, why_missing

SWIFT, CLASP, DEL, KNAPSPEC = "SWIFT", "CLaSp", "DEL", "KnapSpec"
FRUGAL, CALIBRATED, ALWAYS = "KnapSpec 5 %", "KnapSpec, calibrated", "KnapSpec, always"
ARMS = {OFF: "AR", **{name: name for name in (SWIFT, CLASP, DEL, KNAPSPEC, FRUGAL, CALIBRATED, ALWAYS)}}
RIVALS = {OFF: "plain decoding", SWIFT: SWIFT, CLASP: CLASP}
TASKS, TEMPERATURES, TOP_K = ("gsm8k", "cnn-dm"), (0.0, 0.7), 50
NO_LOSS = 0.95
"""What reaches this share of a speed is as fast."""

# ------------------------------------------------------------------------------------------------------- methods


def _knapspec(bench: Workbench, **changed: Any) -> dict[str, Any]:
    """As the authors' code; at quick scale texts are over before that plans."""
    quick = {"budget": 1.0, "saved": False, "min_tokens": num_looked_at(bench)}
    settings = {**(quick if bench.scale.is_quick else {"paper": True}), **changed}
    return _paired("knapspec", **settings)


def _methods(bench: Workbench, *names: str, is_sampled: bool = False) -> Methods:
    """As KnapSpec's authors have them, whatever planning costs, and drafts end as KnapSpec's do; but for DEL, which
    looks once in 64 rounds (theirs: in each), FRUGAL, our default, and CALIBRATED, with sets that were found
    beforehand.
    """
    own = {"min_tokens": num_looked_at(bench)}
    known: dict[str, Mapping[str, Any]] = {
        SWIFT: sampled(swift()) if is_sampled else swift(),
        CLASP: _paired("clasp", paper=True),
        DEL: _paired("dynamic-exit", budget=1.0, always=True),
        KNAPSPEC: _knapspec(bench),
        FRUGAL: {"strategy": "knapspec", "settings": {"knapspec": {**own, "saved": False}}},
        CALIBRATED: {"strategy": "knapspec", "settings": {"knapspec": own}},
    }
    return {name: known[name] for name in names or known}


def _paired(strategy: str, **options: Any) -> dict[str, Any]:
    """With what the paper uses on the other axes."""
    pairing = KnapSpec.paper_pairs_with
    return {**pairing, "strategy": strategy, "settings": {**pairing["settings"], strategy: options}}


def _always(skip: str) -> dict[str, Any]:
    """One set, whether it pays or not."""
    return _paired("fixed", skip=skip)


def _measure(bench: Workbench, methods: Methods, task: Task, **asked: Any) -> dict[str, Any]:
    """With what passes take, for tokens per time."""
    return {**bench.measure(task, methods, **asked), "latency": bench.latency.to_json()}


def _in_turn(num_references: int, measures: Mapping[str, Callable[[Workbench, Task], Values]]) -> UnitsOf:
    """Of each task all, by the prefixes of their names; at quick scale one task."""

    def units(bench: Workbench) -> Iterator[Unit]:
        bench = with_references(bench, num_references)
        for name in TASKS[:1] if bench.scale.is_quick else TASKS:
            for prefix, measure in measures.items():
                yield from each([name], measure, prefix)(bench)

    return units


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


TPT: Column = ("TPT", formatted(".2f", lambda found, unit, arm: _tpt(found, Side(unit, arm))))
REACHED: Sequence[Column] = ("speed-up", TPT, "accepted", "planning", "recording")

# ---------------------------------------------------------------------------------------------------------- main


def _main(bench: Workbench, task: Task, **asked: Any) -> Values:
    methods = partial(_methods, bench, is_sampled=asked["temperature"] > 0)
    if bench.scale.is_quick:
        return _measure(bench, methods(SWIFT, CLASP, KNAPSPEC, FRUGAL), task, **asked)
    fitted = bench.fit(f"knapspec-{task.name}", _methods(bench, CALIBRATED)[CALIBRATED], task.fitting)
    return _measure(bench, methods(), task, knows=[fitted], **asked)


def _main_units(bench: Workbench) -> Iterator[Unit]:
    """At quick scale one task is sampled: reading long prompts takes most of the time."""
    for name, temperature in itertools.product(TASKS, TEMPERATURES):
        if not (bench.scale.is_quick and temperature and name != TASKS[0]):
            drawn = (
                {"top_k": TOP_K, "told": f"T = {temperature}, top-k {TOP_K}"} if temperature else {"told": "T = 0.0"}
            )
            measure = partial(_main, temperature=temperature, **drawn)
            yield from each([name], measure, f"T={temperature} ")(bench)


def _main_claims(found: Found) -> Iterator[Judgement | None]:
    for unit in found.units:
        yield from against(found, f" on {found.label(unit)}", partial(Side, unit))
    for name in TASKS:
        yield _stays(found, *(Side(f"T={temperature} {name}", KNAPSPEC) for temperature in TEMPERATURES))


def against(found: Found, where: str, side: Callable[[str], Side]) -> Iterator[Judgement | None]:
    """`side`: of an arm, with the unit that it was measured in."""
    own, others = side(KNAPSPEC), [replace(side(arm), label=title) for arm, title in RIVALS.items()]
    made = [is_faster(f"KnapSpec is faster than {one.name}{where}", found, own, one) for one in others]
    known = [(one.value, other) for other in others if (one := _tpt(found, other))]
    if len(known) == len(others):
        claim, (_, best) = f"KnapSpec has the most tokens per time{where}", max(known, key=lambda one: one[0])
        made.append(is_larger(claim, found, per_time(found, own.unit), own, best))
    figures = found.figures(own.unit, own.arm)
    remark = "; it chose not to draft" if figures and figures.acceptance_rate is None else ""
    yield from (one and replace(one, because=one.because + remark, where=where) for one in made)


def _stays(found: Found, greedy: Side, sampled: Side) -> Judgement | None:
    """Where there is a speed-up when it does not sample."""
    where = f" on {found.label(greedy.unit).split(',')[0]}"
    claim = f"KnapSpec's speed-up stays when sampling, within 5 %,{where}"
    made, known = is_faster(claim, found, sampled, greedy, NO_LOSS), speedup(found, greedy)
    if made and known and not known.is_above(1.0):
        made = replace(made, outcome=None, because=f"there is none to stay: {made.because}")
    return made and replace(made, where=where)


# ------------------------------------------------------------------------------------------- pruning, decoupling

PRUNED, UNPRUNED, DECOUPLED, BOUND = "pruned", "not pruned", "decoupled", "bound"
COSINES, KINDS = {PRUNED: MIN_COSINE, UNPRUNED: -1.0}, {DECOUPLED: False, BOUND: True}
PLAN, DECODED, BEST, PLANNED = (
    [f"{what} {name}" for name in TASKS] for what in ("plan", "decoded", "best set", "planned")
)
NOT_MISSED = "what is pruned is not missed (less than 1 % of the expected TPT is lost)"
TEN_PASSES = "a plan takes less than ten plain passes on {task}"
NUM_TEXTS = 3
"""After which both kinds plan."""


def _decoded(bench: Workbench, task: Task) -> Values:
    """At quick scale the main table alone has our default."""
    kinds = {kind: _knapspec(bench, min_cosine=cosine) for kind, cosine in COSINES.items()}
    return _measure(bench, {**kinds, **({} if bench.scale.is_quick else _methods(bench, FRUGAL))}, task)


def _plans(bench: Workbench, task: Task) -> Values:
    """Seconds of a plan by kind, and of a plain pass (OFF), text by text; nothing is decoded.

    Both kinds plan once without a clock, as the first meets new shapes; then there and back: neither is favoured.
    """
    plans, promised = [], []
    for prompt in task.fitting[:NUM_TEXTS]:
        text = References(bench, [prompt])
        seconds: dict[str, list[float]] = {kind: [] for kind in COSINES}
        speeds = {}
        for kind in (*COSINES, *COSINES, *reversed(COSINES)):
            began = bench.engine.runner.seconds()
            speeds[kind] = [one.tokens_per_time for one in text.networks(min_cosine=COSINES[kind])]
            seconds[kind].append(bench.engine.runner.seconds() - began)
        plans.append({OFF: text.costs.plain, **{kind: sum(timed[1:]) / 2 for kind, timed in seconds.items()}})
        promised.append(speeds)
    return {"plans": plans, "promised": promised, "task": task.label}


def _seconds_ratio(found: Found, unit: str, one: str, other: str = OFF) -> Estimate | None:
    """Of a plan, over another kind's or a plain pass."""
    rows = [(plan[one], plan[other]) for plan in found.get(unit, "plans") or ()]
    return resampled(rows, lambda sums: sums[:, 0] / sums[:, 1])


def _promised(found: Found, unit: str, kind: str) -> list[float]:
    """Tokens per time of the best sub-network, text by text."""
    return [max(one[kind], default=0.0) for one in found.get(unit, "promised") or () if kind in one]


def _lost(found: Found, unit: str) -> Estimate | None:
    """Percent of the expected tokens per time."""
    pairs = zip(*(_promised(found, unit, kind) for kind in COSINES), strict=True)
    return mean([100 * (1 - one / other) for one, other in pairs if other])


def _plans_faster(told: str, found: Found, unit: str) -> Judgement | None:
    made = is_above(told, _seconds_ratio(found, unit, UNPRUNED, PRUNED), 1.0, "speed", unit="x")
    is_same = all(plan[PRUNED] == plan[UNPRUNED] for plan in found.get(unit, "promised") or ())
    return replace(made, outcome=None, because="nothing was pruned") if made and is_same else made


def _plan_table(found: Found) -> Table:
    def row(unit: str, kind: str) -> list[str]:
        seconds = mean([1000 * plan[kind] for plan in found.get(unit, "plans")])
        known = (seconds, _seconds_ratio(found, unit, kind), mean(_promised(found, unit, kind)))
        cells = (
            number(one.value if one else None, form) for one, form in zip(known, (".2f", ".1f", ".2f"), strict=True)
        )
        return [found.label(unit), kind, *cells]

    rows = [row(unit, kind) for unit in PLAN if unit in found.units for kind in (OFF, *COSINES)]
    return Table("a plan alone (off: a plain pass)", ["task", "method", "ms", "in plain passes", "expected TPT"], rows)


def _planned(bench: Workbench, task: Task) -> Values:
    kinds = {kind: _knapspec(bench, bound=is_bound) for kind, is_bound in KINDS.items()}
    return _measure(bench, kinds, task)


def _best_sets(bench: Workbench, task: Task) -> Values:
    """The set of each kind that promises most on a text which is not measured; it drafts whether it pays or not."""
    texts = References(bench, task.fitting)
    best = {kind: texts.best(is_bound=is_bound) for kind, is_bound in KINDS.items()}
    sets = {kind: vars(one) for kind, one in best.items() if one}
    return {**_measure(bench, {kind: _always(one["skip"]) for kind, one in sets.items()}, task), "sets": sets}


def _neither_drafts(found: Found, *sides: Side) -> str | None:
    return None if any(record.num_draft_steps for side in sides for record in side.records(found)) else "neither drafts"


# ------------------------------------------------------------------------------------------------------ contexts

LENGTHS, QUICK_LENGTHS, MAX_PROMPTS = (1024, 2048, 4096, 8192, 16384), (256, 512, 1024), 4
ARTICLES, MAIN_LENGTHS, MAIN_TABLE = "cnn-dm", (4096, 16384), MainTable(256, prompts=8)


def _context_units(bench: Workbench) -> Iterator[Unit]:
    """Two for each length, each beside plain decoding: KnapSpec, and those it is held against."""
    articles, limit = bench.task(ARTICLES, len(bench.prompts), 0), bench.engine.context_length
    lengths, own = (QUICK_LENGTHS, [KNAPSPEC]) if bench.scale.is_quick else (LENGTHS, [KNAPSPEC, FRUGAL])
    fits = [length for length in lengths if articles and (limit is None or length <= limit)]
    for names, length in itertools.product((own, [CLASP, SWIFT]), fits):
        assert articles is not None
        own_bench = replace(bench, scale=bench.scale.as_in(MAIN_TABLE if length in MAIN_LENGTHS else None))
        yield Unit(_side(length, names[0]).unit, partial(_after, own_bench, articles, length, names))
    reason = f"the model's context holds {limit} tokens" if articles else why_missing(ARTICLES)
    yield from (Unit(f"{length}", missing=reason) for length in lengths if length not in fits)


def _side(length: int, arm: str) -> Side:
    return Side(f"{length} others" if arm in (CLASP, SWIFT) else f"{length} {KNAPSPEC}", arm)


def _after(bench: Workbench, articles: Task, length: int, names: Sequence[str]) -> Values:
    count = bench.scale.prompts if length in MAIN_LENGTHS else min(bench.scale.prompts, MAX_PROMPTS)
    bench.expect((1 + len(names) + (KNAPSPEC in names)) * count * bench.scale.runs, bench.scale.tokens)
    *prompts, other = long_questions(bench.engine, bare(articles.measured), length - bench.scale.tokens, count + 1)
    best = References(bench, [other], num_looked_at(bench)).best() if KNAPSPEC in names else None
    methods = {**_methods(bench, *names), **({ALWAYS: _always(best.skip)} if best else {})}
    weights = " : ".join(map(str, bench.latency.at(length).paper_weights))
    told = {"task": f"{length}", "weights": weights, "articles": f"{len(articles.measured)} of {articles.label}"}
    return {**_measure(bench, methods, replace(articles, measured=prompts)), **told}


def _lengths(found: Found) -> list[int]:
    return sorted({int(unit.split()[0]) for unit in found.units})


def _context_table(found: Found) -> Table:
    weights: Column = ("attention : MLP", lambda found, unit, arm: str(found.get(unit, "weights")))
    columns: Sequence[Column] = (weights, *REACHED, "tokens/s", "attention skipped", "MLP skipped")
    units = [_side(length, arm).unit for length in _lengths(found) for arm in (KNAPSPEC, SWIFT)]
    return by_arm(columns, ARMS, first="length", units=units)(found)


def _context_claims(found: Found) -> Iterator[Judgement | None]:
    for length in _lengths(found):
        yield from against(found, f" after {length} tokens", partial(_side, length))
    claim = "SWIFT, which knows nothing of lengths, is slower than plain decoding after the longest texts"
    known = {length: one for length in _lengths(found) if (one := speedup(found, _side(length, SWIFT)))}
    for length in list(known)[-1:]:
        yield is_below(claim, known[length], 1.0, f"after {length} tokens SWIFT", unit="x")


def _how_made(found: Found) -> Iterator[str]:
    made = {length: found.measured(_side(length, KNAPSPEC).unit) for length in _lengths(found)}
    sizes = [f"{max(one.num_prompt_tokens for one in it.of(OFF))} for {length}" for length, it in made.items() if it]
    known = (found.get(unit, "articles") for unit in found.units)
    for articles in [one for one in known if one][:1]:
        yield (
            f"a prompt is articles ({articles}), joined until nothing more fits, then `{QUESTION}`; each begins with "
            f"another article, and where all are used up they come again; its tokens: {', '.join(sizes)}"
        )


def _context_sides(found: Found) -> dict[str, dict[float, Side]]:
    return {title: {length: _side(length, arm) for length in _lengths(found)} for arm, title in ARMS.items()}


# -------------------------------------------------------------------------------------------------------- recipe

EFFORTS: Mapping[str, Effort] = {
    "tasks": lambda found: len({unit.split()[-1] for unit in found.units}),
    "longest text, tokens": lambda found: max(_lengths(found), default=None),
    "tokens": lambda found: found.get(STATES, "num_tokens"),
}
SET_COLUMNS: Sequence[Column] = (
    ("skipped", lambda found, unit, arm: str(found.get(unit, "sets", arm, "skip"))),
    ("expected accepted", kept(".1%", "sets", "acceptance")),
    ("drafts", kept("d", "sets", "num_drafted")),
    ("expected TPT", kept(".2f", "sets", "tokens_per_time")),
)
MAIN = Experiment("main", _main_units, [by_arm([*REACHED, "c"], ARMS)], [_main_claims])
PRUNING = Experiment(
    "pruning",
    _in_turn(NUM_TEXTS, {"plan ": _plans, "decoded ": _decoded}),
    [_plan_table, by_arm(REACHED, title="decoding", units=DECODED)],
    [
        in_each("a plan is faster with pruning on {task}", _plans_faster, PLAN),
        denied(above(f"{NOT_MISSED} on {{task}}", _lost, 1.0, "lost", units=PLAN, unit="%")),
        denied(above(TEN_PASSES, partial(_seconds_ratio, one=PRUNED), 10.0, "pruned", units=PLAN, unit=" passes")),
        faster("decoding is no slower with pruning on {task}", PRUNED, UNPRUNED, bound=NO_LOSS, units=DECODED),
    ],
)
DECOUPLING = Experiment(
    "decoupling",
    _in_turn(2, {"best set ": _best_sets, "planned ": _planned}),
    [
        by_arm([*SET_COLUMNS, *REACHED[:3]], list(KINDS), title="best set", units=BEST),
        by_arm(REACHED, list(KINDS), title="as planned", units=PLANNED),
    ],
    [
        faster("the best set of single sub-layers is faster on {task}", DECOUPLED, BOUND, units=BEST),
        faster(
            "KnapSpec is faster with single sub-layers on {task}",
            DECOUPLED,
            BOUND,
            units=PLANNED,
            unless=_neither_drafts,
        ),
    ],
)
CONTEXTS = Experiment(
    "contexts",
    _context_units,
    [_context_table],
    [
        _context_claims,
        faster("where it must draft, KnapSpec is faster than plain decoding after {task} tokens", ALWAYS),
    ],
    [_how_made],
    chart=curves(
        ["speed-up", ("TPT (tokens/s)", _tpt)],
        _context_sides,
        "tokens of the text",
        "speed-up and tokens per time by length of the text",
        log="x",
    ),
)
RECIPE = Recipe(
    "knapspec",
    [MAIN, PRUNING, DECOUPLING, CORRELATION, CONTEXTS, LEMMA],
    quick_prompts=3,
    efforts=EFFORTS,
    main={"main": MainTable(1024, prompts=8)},
    own=(KNAPSPEC, FRUGAL, CALIBRATED),
)
