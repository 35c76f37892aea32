"""Figure 2b: the skip set that suits one task, on the others.

The paper's sets come from Self-SD, whose search takes hours. Ours come from `prune`; at the quick scale from a single
look at what each sub-layer alone is worth, for all that `prune` does takes minutes on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....calibrate.texts import Text, probe_text
from ....errors import ProfileError
from ....profiles.contents import most_promising
from ....strategies.elimination import qualities, rank, sample
from ....types import FrontierPoint, SkipSet
from ...charts import Grid
from ...prompts import encode
from ...report import Table, number
from ...search.names import one_set
from ...search.sets import USUAL_LENGTH
from ..cells import Speed, faster, speed_cell, speed_of, told
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .figures_common import by_task, found_tasks, stored_label

TASKS = ("tinystories", "gsm8k", "cnn-dm", "wmt")
"""The paper's example first: the set of a story on a calculation."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4)
"""Of the sub-layers, that a quick set may skip."""
SET = "set"
_RANKED_TOKENS = 3
"""So many times fewer tokens than other lessons have."""
PAPER_PROMPTS = 1000

# ------------------------------------------------------------------------------------------------------ measuring


def set_units(bench: Workbench) -> Iterable[Unit]:
    tasks = found_tasks(bench, TASKS)
    return bench.for_each(TASKS, lambda task: _on_all(bench, task, tasks))


def _on_all(bench: Workbench, task: Task, tasks: Sequence[Task]) -> Values:
    """Its set on its own prompts and on those of the others."""
    points = _ranked(bench, task) if bench.scale.is_quick else _pruned(bench, task)
    best = most_promising(points, bench.latency.at(USUAL_LENGTH))
    if best is None:
        raise ProfileError(f"the time was too short to find a set for {task.title}; allow more with --lesson-seconds")
    found = bench.compare({SET: one_set(str(best.skip))}, by_task(tasks))
    facts = {"skip": str(best.skip), "match": best.match, "label": task.label}
    return {**found, **facts, "num_sublayers": 2 * bench.latency.num_layers}


def _pruned(bench: Workbench, task: Task) -> list[FrontierPoint]:
    learned = bench.learn(f"prune-{task.name}", {"strategy": "prune"}, task.learned)
    return [FrontierPoint.from_json(point) for point in learned.values.get("frontier", ())]


def _ranked(bench: Workbench, task: Task) -> list[FrontierPoint]:
    """Sub-layers by what each alone loses per second that it saves; the least of them, so many at a time."""
    engine, latency = bench.engine, bench.latency
    tokens = encode(task.learned[0], engine)
    num_tokens = max(2, bench.scale.lesson_tokens // _RANKED_TOKENS)
    plain = engine.generate(tokens, max_new_tokens=num_tokens, strategy="off")
    samples = [sample(probe_text(Text((*tokens, *plain.tokens), len(tokens)), engine.runner))]
    num_sublayers = 2 * engine.runner.num_layers
    losses = rank(samples, frozenset(), range(2, num_sublayers))  # layer 0 must never be skipped
    seconds = (max(1e-9, latency.attention.at(USUAL_LENGTH)), max(1e-9, latency.mlp_seconds))
    order = sorted(losses, key=lambda place: losses[place] / seconds[place % 2])
    points = []
    for count in dict.fromkeys(max(1, round(share * num_sublayers)) for share in SHARES):
        quality = qualities(samples, frozenset(order[:count]))[0]
        points.append(FrontierPoint(SkipSet.of_numbers(order[:count]), quality.lost, quality.match))
    return points


# -------------------------------------------------------------------------------------------------------- showing


def show_sets(found: Found) -> Section:
    names = [name for name in TASKS if name in found.units]
    columns = [name for name in TASKS if any(speed_of(found, one, SET, name) for one in names)]
    labels = {name: stored_label(found, name) for name in TASKS}
    speeds = [[labels[one], *(speed_cell(found, one, SET, name) for name in columns)] for one in names]
    matrix = Table("speed-up of the set of a task", ["set of", *(f"on {labels[name]}" for name in columns)], speeds)
    counts = [known.num_prompts for one in names for name in columns if (known := speed_of(found, one, SET, name))]
    origin = "single sub-layers, in one look" if found.scale.get("is_quick") else "`prune`"
    return Section(
        [matrix, _sets_table(found, names, labels)],
        [
            Effort("prompts a task", min(counts, default=None), PAPER_PROMPTS),
            Effort("seconds of a search", found.scale.get("lesson_seconds"), 27000),
        ],
        told(_claims(found, names, columns, labels)),
        [f"sets come from {origin}, the paper's from Self-SD; all draft chains and stop alike"],
        Plot(
            _chart(found, names, columns, labels),
            "Speed-up of the set of each task (rows) on each task (columns).",
            (7.0, 3.6),
        )
        if columns
        else None,
    )


def _sets_table(found: Found, names: Sequence[str], labels: Mapping[str, str]) -> Table:
    """What the sets have in common: shared sub-layers of all that either skips."""
    sets = {name: SkipSet.parse(found.get(name, "skip") or "") for name in names}
    rows = [
        [
            labels[name],
            f"{len(sets[name].attention)} + {len(sets[name].mlp)}",
            number(found.get(name, "match"), ".2f"),
            *(f"{_overlap(sets[name], sets[other]):.2f}" for other in names),
        ]
        for name in names
    ]
    header = ["set of", "attention + MLP", "match", *(f"shared with {labels[other]}" for other in names)]
    return Table("the sets", header, rows)


def _overlap(one: SkipSet, other: SkipSet) -> float:
    either = one.numbers | other.numbers
    return len(one.numbers & other.numbers) / len(either) if either else 1.0


def _claims(found: Found, names: Sequence[str], columns: Sequence[str], labels: Mapping[str, str]) -> Iterable[Trend]:
    story, reasoning = (
        speed_of(found, "tinystories", SET, name, label=f"set of {labels['tinystories']} on {labels[name]}")
        for name in ("tinystories", "gsm8k")
    )
    yield faster("the set of stories is worth less on calculations", story, reasoning)
    for name in columns:
        own = speed_of(found, name, SET, name, label=f"set of {labels[name]}")
        others = [
            speed_of(found, one, SET, name, label=f"set of {labels[one]}")
            for one in names
            if found.get(one, "skip") != found.get(name, "skip")  # else chance alone would tell them apart
        ]
        yield faster(f"on {labels[name]} its own set is the fastest", own, _fastest(others))


def _fastest(speeds: Iterable[Speed | None]) -> Speed | None:
    return max((one for one in speeds if one is not None), key=lambda one: one.value, default=None)


def _chart(found: Found, names: Sequence[str], columns: Sequence[str], labels: Mapping[str, str]) -> Grid:
    speeds = [[speed_of(found, one, SET, name) for name in columns] for one in names]
    return Grid(speeds, [f"set of {labels[name]}" for name in names], [f"on {labels[name]}" for name in columns])
