"""KNN-SSD (arXiv:2505.16162), a skip set for each domain: how what knn_ssd_units.py measures is shown and judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...measure.estimate import FEW_PROMPTS, Estimate, mean, ratio, speed
from ...measure.records import OFF
from ..charts import Bars, Group, Panels, Scatter
from ..tables import Table, number
from . import knn_ssd_units as units
from .claims import TOO_FEW, Side, above, below_formula, denied, faster, in_each, is_above, is_faster, larger, speedup
from .experiment import Claim, Effort, Experiment, Found, Judgement, MainTable, Note, Plot, Recipe, Unit, fewest_prompts
from .forms import any_value, by_arm, by_domain, by_unit, domain_bars, kept, of, only, together
from .knn_ssd_units import FIXED, KNN, MATH_STREAM, MATH_VECTORS, MIXED, NUM_SUBTOPICS, OWN, TASKS, VECTORS
from .workbench import joined

ARMS, UNSEEN_ARMS = [FIXED, MIXED, KNN], [OFF, MIXED, FIXED, KNN, OWN]
ALL_ARMS = [OFF, *ARMS]
BAYES = [units.bayesian(arm) for arm in ARMS]
COUNTED, ACCEPTED = ("M", "alpha", "speed-up"), {"M": "accepted length", "alpha": "acceptance rate"}
STREAMS = [f"r={ratio}" for ratio in sorted(units.RATIOS_IN_TURN)]
FIRST, LAST, ALL, BY_SEARCH = STREAMS[0], STREAMS[-1], "all", [units.PAPERS_SEARCH]
LENGTHS = {128: 2.5, 512: 0.77, 1024: 0.41}
"""New tokens -> percent of the time that the paper's decision takes."""
QUICKER = "deciding takes a smaller share of the time than the paper's"
NO_STRUCTURE = 0.25  # groups whose silhouette is no larger do not stand apart, by the usual reading
MATCH = ("match", kept(".3f", "match"))
SIZES = ("prompts in each", lambda found, unit, arm: ", ".join(map(str, found.get(unit, "sizes"))))


def streams(found: Found) -> Found:
    """By their ratios, and all as one: they have the same prompts."""
    known = {name: found.units[name] for name in STREAMS if name in found.units}
    return only(found, {**known, ALL: together(found, known, "overall")})


def left_out(found: Found) -> Found:
    """All tasks that were left out in turn, as one unit."""
    return only(found, {ALL: together(found, [units.WITHOUT + name for name in TASKS], "tasks that were left out")})


def tasks(found: Found) -> Mapping[str, str]:
    return found.get(FIRST, "labels") or {}


def subtopics(found: Found) -> Mapping[str, str]:
    return {name: f"{name} ({count})" for name, count in (found.get(MATH_STREAM, "subtopics") or {}).items()}


# ------------------------------------------------------------------------------------------------ efforts and notes


def _steps(found: Found) -> float | None:
    fit = any_value(found, "fit")
    return round(fit["num_steps"] / fit["num_sets"], 1) if fit and fit["num_steps"] is not None else None


def _vectors(found: Found) -> float | None:
    points = any_value(found, "points")
    return round(statistics.fmean(map(len, points.values())), 1) if points else None


EFFORTS: Mapping[str, Effort] = {
    "prompts a task": lambda found: found.scale.get("prompts") if FIRST in found.units else fewest_prompts(found),
    "steps of a domain's search": _steps,
    "vectors a domain": _vectors,
    "vectors a subtopic": _vectors,
}


def set_notes(found: Found) -> Iterator[str]:
    if nothing := [name for name, skip in (any_value(found, "sets") or {}).items() if not skip]:
        yield f"no set was found in the time for {', '.join(nothing)}: plain decoding instead"


def all_sets(found: Found) -> Iterator[str]:
    if sets := any_value(found, "sets"):
        yield f"sub-layers skipped: {'; '.join(f'{name} `{skip}`' for name, skip in sets.items() if skip)}"


def ratio_notes(found: Found) -> Iterator[str]:
    shares = [f"{number(found.get(unit, 'changes'), '.0%')} at {unit}" for unit in STREAMS if unit in found.units]
    yield f"how often the next prompt is of another task: {', '.join(shares)}"
    if missing := [unit for unit in STREAMS if unit not in found.units]:
        yield f"not measured: {', '.join(missing)}; a quick run has the first and the last ratio alone"


def same_set_notes(found: Found) -> Iterator[str]:
    """What choosing a set costs beside having it."""
    for task, label in list(tasks(found).items())[:1]:
        knn, fixed = (Side(FIRST, arm, task).records(found) for arm in (KNN, FIXED))
        if known := ratio(knn, fixed, speed, 0):
            yield f"on {label}, where both have the same set, knn is {known} times as fast as ssd-fixed"


def search_notes(found: Found) -> Iterator[str]:
    if units.PAPERS_SEARCH not in found.units:
        yield "the paper's search, Bayesian optimisation, was not measured; a quick run leaves it out"
    for name, one in (found.get(units.PAPERS_SEARCH, "tried") or {}).items():
        share = number(one["tokens_per_second"] and one["tokens_per_second"] / one["plain"], ".2f")
        tried = f"tried {one['num_steps']} sets of the paper's 1000 and found `{one['skip']}`"
        yield f"Bayesian optimisation for {name} {tried}, {share} times as fast as plain decoding there"


def vector_notes(found: Found) -> Iterator[str]:
    spread, apart = any_value(found, "explained"), mean(any_value(found, "silhouettes") or ())
    if spread is not None:
        what = f"the picture shows the first two principal components ({spread:.0%} of the spread), the paper's t-SNE"
        yield f"{what}; silhouette {apart or '-'} (1: groups stand apart, 0: they do not)"
    if decision := mean([1000 * one for one in found.get(VECTORS, "decision_seconds") or ()]):
        yield f"a decision takes {decision} ms besides the prefill; shares are of plain tokens after 512 others"


# ------------------------------------------------------------------------------------------------ tables and charts


def routes_table(found: Found) -> Table:
    labels, routes = found.get(VECTORS, "labels") or {}, found.get(VECTORS, "routes") or {}
    rows = [[labels[name], *(str(sent.get(other, 0)) for other in labels)] for name, sent in routes.items()]
    return Table("where prompts are sent", ["prompts of", *labels], rows)


def percent_of_time(length: int, found: Found, unit: str) -> Estimate | None:
    token = found.get(unit, "token_seconds")
    return mean([100 * one / (one + length * token) for one in found.get(unit, "decision_seconds") or ()])


def subtopic_table(found: Found) -> Table:
    points = found.get(MATH_VECTORS, "points") or {}
    first = "subtopic" if found.get(MATH_VECTORS, "is_labelled") else "cluster"
    rows = [["prompts", *(str(len(own)) for own in points.values())]] if points else []
    return Table("vectors", [first, *points], rows)


def routes_cell(found: Found, unit: str, arm: str) -> str:
    routes = found.get(unit, "routes") if arm == KNN else None
    return ", ".join(f"{name} {count}" for name, count in (routes or {}).items()) or "-"


def matrix_chart(found: Found) -> Plot | None:
    names = [task for task in TASKS if found.measured(task)]
    labels = [found.label(task) for task in names]
    speeds = {f"set of {one}": [speedup(found, Side(task, one)) for task in names] for one in names}
    matches = {f"set of {one}": [found.get(task, "match", one) for task in names] for one in names}
    speed = Bars(labels, speeds, y_label="speed-up", unit="x", baseline=1.0)
    alt = "the set of each task on every task: speed-up, and the share of the target's choices that it meets"
    panels = Panels([speed, Bars(labels, matches, y_label="choices met")], columns=1, share_x=True)
    return Plot(panels, alt, (8.0, 7.0)) if names else None


def scatter(found: Found, alt: str) -> Plot | None:
    points, labels = any_value(found, "points") or {}, any_value(found, "labels") or {}
    groups = [Group(labels.get(name, name), [(x, y) for x, y in own]) for name, own in points.items()]
    drawn = Scatter(groups, x_label="first principal component", y_label="second principal component")
    return Plot(drawn, alt) if groups else None


# ---------------------------------------------------------------------------------------------------------- claims


def knn_is_faster(unit: str) -> list[Claim]:
    claims = [faster(f"knn is faster than {arm}", KNN, arm, units=[unit]) for arm in (FIXED, MIXED)]
    return [*claims, faster("knn is faster than plain decoding", KNN, units=[unit])]


def accepts_more(unit: str) -> list[Claim]:
    texts = {quantity: f"knn has a larger {name} than" for quantity, name in ACCEPTED.items()}
    return [larger(f"{texts[one]} {arm}", one, KNN, arm, units=[unit]) for one in texts for arm in (FIXED, MIXED)]


def first_is_faster(text: str, unit: str, parts: Callable[[Found], Mapping[str, str]]) -> Claim:
    """That `ssd-fixed` is faster on the first part of a stream, whose set it has, than on the others."""

    def judge(found: Found) -> Judgement | None:
        first = next(iter(parts(found)), "")
        others = Side(unit, FIXED, label="others", where=lambda record: record.domain != first)
        return is_faster(text, found, Side(unit, FIXED, first, parts(found).get(first)), others)

    return judge


def is_faster_by_task(found: Found) -> Iterator[Judgement | None]:
    for task, label in list(tasks(found).items())[1:]:
        knn, fixed = (Side(FIRST, arm, task) for arm in (KNN, FIXED))
        made = is_faster(f"knn is faster than ssd-fixed on {label}", found, knn, fixed)
        yield made and replace(made, where=f" on {label}")


def own_sets_are_better(found: Found) -> Iterator[Judgement | None]:
    """Each task is one value: its own set's minus the mean of the others'."""

    def gains(value: Callable[[str, str], float | None]) -> Iterator[float]:
        for task in TASKS:
            own, others = value(task, task), [value(task, name) for name in TASKS if name != task]
            known = [one for one in others if one is not None]
            if own is not None and known:
                yield own - statistics.fmean(known)

    def speed(task: str, name: str) -> float | None:
        known = speedup(found, Side(task, name))
        return known.value if known else None

    better = "a task's own set meets more of the target's choices than the others' do"
    values = {
        better: lambda *of: found.get(of[0], "match", of[1]),
        "a task's own set is faster than the others'": speed,
    }
    for text, value in values.items():
        yield is_above(text, mean(list(gains(value))), 0.0, "own minus others, mean over tasks", of="tasks")


def every_prompt_is_sent_home(found: Found) -> Judgement | None:
    routes = found.get(VECTORS, "routes") or {}
    own, count = sum(sent.get(name, 0) for name, sent in routes.items()), sum(sum(s.values()) for s in routes.values())
    return Judgement("every prompt is sent to its own domain", own == count, f"{own} of {count}") if count else None


def most_are_sent(told: str, found: Found, unit: str) -> Judgement | None:
    routes, likely = found.get(unit, "routes") or {}, units.NEW_TASKS[unit]
    sent, count = routes.get(likely, 0), sum(routes.values())
    share = mean([1.0] * sent + [0.0] * (count - sent))
    return is_above(f"{told} are sent to {likely}", share, 0.5, f"{sent} of {count}, share") if likely else None


def more_clusters_are_faster(found: Found) -> Judgement | None:
    sides = [Side(name, KNN) for count in units.NUM_CLUSTERS if (name := units.clusters_name(count)) in found.units]
    if len(sides) < 2:
        return None
    made = is_faster(f"{sides[-1].unit} are faster than {sides[0].unit}", found, sides[-1], sides[0])
    few = min(found.get(sides[-1].unit, "sizes") or [0])
    told = f"prompts in the smallest cluster: {few}; "
    return replace(made, outcome=None, because=told + made.because) if made and few < FEW_PROMPTS else made


def subtopic_claims(found: Found) -> Iterator[Judgement | None]:
    """By the silhouettes of single vectors: in seven clusters against the best other number, and of the subtopics."""
    apart: Mapping[str, list[float]] = found.get(MATH_VECTORS, "apart_by_count") or {}
    best = sorted(apart, key=lambda count: -statistics.fmean(apart[count]))
    seven, others = str(NUM_SUBTOPICS), [count for count in best if count != str(NUM_SUBTOPICS)]
    if not others:
        return
    text, label = f"vectors fall into {seven} groups", f"they stand apart most clearly as {best[0]}"
    if len(apart.get(seven, ())) < FEW_PROMPTS * NUM_SUBTOPICS:
        yield Judgement(text, None, f"{TOO_FEW}: {label}")
    else:
        gains = [one - other for one, other in zip(apart[seven], apart[others[0]], strict=True)]
        yield is_above(text, mean(gains), 0.0, f"{label}; silhouette as {seven} minus that as {others[0]}")
    text = "each subtopic is a group of its own"
    if found.get(MATH_VECTORS, "is_labelled"):
        yield is_above(text, mean(found.get(MATH_VECTORS, "silhouettes")), NO_STRUCTURE, "silhouette")
    else:
        yield Judgement(text, None, "the prompts do not name their subtopics: K-means sorted them")


# ----------------------------------------------------------------------------------------------------- experiments


def of_streams(name: str, tables: Any, claims: Any, *notes: Note, **more: Any) -> Experiment:
    """What is shown of streams that are measured once."""
    shared = {"units": units.stream_units(), "notes": [*notes, set_notes]}
    return Experiment(name, tables=tables, claims=claims, shares="table-2", **{**shared, **more})


def of_fit(name: str, measured: Any, table: Any, claims: Any, note: Note = set_notes, **more: Any) -> Experiment:
    """What is shown of methods with fitted sets."""
    return Experiment(name, measured, [table], claims, [note], **more)


def of_vectors(name: str, measured: Any, table: Any, claims: Any, alt: str) -> Experiment:
    parts = f"{alt}, first two principal components"
    return Experiment(name, measured, [table], claims, [vector_notes], partial(scatter, alt=parts))


def first_stream(name: str, columns: Sequence[str], claims: Any, alt: str, *notes: Note) -> Experiment:
    """The stream that goes task by task."""
    measured, chart = units.stream_units([0.0]), domain_bars(columns, FIRST, ARMS, tasks, alt)
    return of_streams(name, [by_domain(columns, FIRST, ARMS, tasks)], claims, *notes, units=measured, chart=chart)


UNSEEN = joined(units.each_task(units.new_task, names=units.NEW_TASKS), units.each_task(units.left_out, units.WITHOUT))
"""Data sets that are not among the tasks, then each task as if it were not."""
MATH = units.math_units(MATH_STREAM, units.math_stream)
RECIPE = Recipe(
    "knn-ssd",
    [  # where time is short: a fit, then a stream for each table that shares them, last what is left of them
        of_vectors(
            "figure-5",
            units.of_tasks(VECTORS, lambda bench: [Unit(VECTORS, partial(units.vectors, bench))]),
            routes_table,
            [
                every_prompt_is_sent_home,
                *(
                    denied(above(f"{QUICKER}, of {n} new tokens", partial(percent_of_time, n), most, "share", unit="%"))
                    for n, most in LENGTHS.items()
                ),
            ],
            "vectors of prompts by domain",
        ),
        of_streams(
            "table-1",
            of(streams, by_arm(("tokens/s", "expected", "speed-up"), ALL_ARMS, first="", units=[ALL])),
            of(streams, *knn_is_faster(ALL)),
        ),
        of_streams("table-7", of(streams, by_unit(list(ACCEPTED), ALL_ARMS)), of(streams, *accepts_more(ALL))),
        of_streams(
            "table-3",
            [by_arm((*COUNTED, "c"), [*ALL_ARMS, *BAYES], first="stream", units=[LAST, *BY_SEARCH])],
            [
                *accepts_more(LAST),
                *knn_is_faster(LAST),
                *(
                    faster(f"with Bayesian sets knn is faster than {arm}", BAYES[-1], arm, units=BY_SEARCH)
                    for arm in BAYES[:2]
                ),
                faster("with Bayesian sets knn is faster than plain decoding", BAYES[-1], units=BY_SEARCH),
                below_formula("the formula promises more than the clock shows", KNN, units=[LAST]),
            ],
            search_notes,
            units=joined(units.stream_units([1.0]), units.papers_search_unit),
        ),
        first_stream(
            "figure-1",
            ["speed-up"],
            [
                first_is_faster("ssd-fixed is faster on its own task than on the others", FIRST, tasks),
                is_faster_by_task,
            ],
            "speed-ups on a stream that goes task by task",
            same_set_notes,
        ),
        first_stream("figure-4", list(ACCEPTED), accepts_more(FIRST), "M and acceptance rate, task by task"),
        of_fit(
            "figure-2",
            units.of_tasks("sets", units.each_task(units.on_task)),
            by_unit(["speed-up", MATCH], TASKS, first="set of"),
            [own_sets_are_better],
            all_sets,
            chart=matrix_chart,
        ),
        of_fit(
            "table-5",
            units.of_tasks("unseen", UNSEEN, [*units.NEW_TASKS, *TASKS]),
            by_arm((*COUNTED, ("sent to", routes_cell)), UNSEEN_ARMS, first="prompts of"),
            [
                faster("knn is faster than ssd-mixed on {task}", KNN, MIXED, units=list(units.NEW_TASKS)),
                faster("knn is faster than plain decoding on {task}", KNN, units=list(units.NEW_TASKS)),
                in_each("most prompts of {task}", most_are_sent, list(units.NEW_TASKS)),
                *of(
                    left_out,
                    faster("knn is faster than another task's set where a task is left out", KNN, FIXED),
                    faster("to know the task's own set is faster still", OWN, KNN),
                    faster("knn is faster than plain decoding where a task is left out", KNN),
                ),
            ],
        ),
        of_fit(
            "table-6",
            units.cluster_units,
            by_arm((*COUNTED, SIZES), [KNN], first="clusters"),
            [
                more_clusters_are_faster,
                denied(
                    faster("seven clusters are not faster than five", Side("7 clusters", KNN), Side("5 clusters", KNN))
                ),
            ],
        ),
        of_vectors(
            "figure-6",
            units.math_units(MATH_VECTORS, units.math_vectors),
            subtopic_table,
            [subtopic_claims],
            "vectors of MATH prompts by subtopic",
        ),
        of_fit("table-4", MATH, by_arm(COUNTED, ALL_ARMS, first=""), knn_is_faster(MATH_STREAM)),
        of_fit(
            "figure-7",
            MATH,
            by_domain(["speed-up"], MATH_STREAM, ARMS, subtopics),
            [first_is_faster("ssd-fixed is faster on the first subtopic than on others", MATH_STREAM, subtopics)],
            chart=domain_bars(["speed-up"], MATH_STREAM, ARMS, subtopics, "speed-ups on MATH by subtopic"),
            shares="table-4",
        ),
        of_streams(
            "table-2",
            of(streams, by_unit(["expected", "speed-up"], ALL_ARMS)),
            [faster("knn is faster than ssd-mixed at {unit}", KNN, MIXED, units=[FIRST, LAST])],
            ratio_notes,
        ),
    ],
    quick_prompts=3,
    efforts=EFFORTS,
    main={"table-2": MainTable(128)},
    own=(KNN,),
    shots={"cnn-dm": 1, "gsm8k": 5, "wmt": 5, "tinystories": 1, "sql": 3, "xsum": 1, "math": 5, "alpaca": 0},
)
