"""KNN-SSD's recipe on a pico model, and its claims on records made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import papers
from learned import latency
from papers import SMALL, check, new_bench, run
from selfdraft.bench.papers import knn_ssd, knn_ssd_units
from selfdraft.bench.papers.experiment import Found
from selfdraft.bench.papers.knn_ssd import RECIPE
from selfdraft.bench.papers.knn_ssd_units import FIXED, KNN, MIXED, OWN, TASKS, fit_tasks, route, tasks_of
from selfdraft.bench.papers.page import Section
from selfdraft.bench.papers.workbench import Workbench
from selfdraft.calibrate import fit_once
from selfdraft.calibrate.fit_session import EngineKit
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import OFF, Machine, Record
from selfdraft.strategies.anchors import unpack
from selfdraft.types import SkipSet

pytestmark = pytest.mark.xdist_group("papers_knn_ssd")

LETTERS = {"cnndm": "abcd", "gsm8k": "1+2=", "tinystories": "once", "wmt": "ABCD", "spider": "(*)%"}
NEW = {"xsum": "abce", "MATH": "3*4=", "alpaca": "whoa"}
TEXTS = {name: [some * 2 + some[n % 4] * n for n in range(1, 17)] for name, some in {**LETTERS, **NEW}.items()}
"""Of each data set its own letters, so that vectors of domains differ."""


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    """Seconds at which drafting pays, and a few steps instead of seconds to fit in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_once, "measure", lambda *_: latency())
        patch.setattr(knn_ssd_units, "QUICK_SUBTOPICS", 2)
        patch.setattr(EngineKit, "has_time", has_a_few_steps)
        patch.setattr(EngineKit, "tokens_per_second", lambda kit, method, *_: 1 + (method["strategy"] != OFF))
        yield


def has_a_few_steps(kit: EngineKit, *expected: float) -> bool:
    count = kit.__dict__.setdefault("count", itertools.count())
    kit.is_out_of_time = next(count) >= 60
    return not kit.is_out_of_time


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return new_bench(tmp_path_factory.mktemp("knn-ssd"), TEXTS)


@pytest.fixture(scope="module")
def sections(bench: Workbench) -> Mapping[str, Section]:
    return run(RECIPE, bench, bench.folder / "result.jsonl")


@pytest.mark.full
def test_every_experiment_has_its_table(sections: Mapping[str, Section]) -> None:
    assert len(sections) == len(RECIPE.experiments)
    check(RECIPE, sections)
    assert {name for name, one in sections.items() if not one.published.rows} == {"figure-2", "figure-4", "figure-6"}
    assert "not measured: r=0.3, r=0.7" in " ".join(sections["table-2"].experiment.remarks(sections["table-2"].found))


def test_a_whole_run_has_all_ratios_and_the_papers_search(tmp_path: Path) -> None:
    whole = new_bench(tmp_path, {name: TEXTS[name] for name in ("cnndm", "gsm8k")}, replace(SMALL, is_quick=False))
    units = [unit.name for unit in knn_ssd_units.stream_units()(whole) if unit.measure]
    assert units == ["r=0.0", "r=1.0", "r=0.3", "r=0.7"]
    (unit,) = knn_ssd_units.papers_search_unit(whole)
    assert unit.measure is not None
    found = unit.measure()
    assert set(found["measured"].arms) == {OFF, *(f"{arm}, Bayesian" for arm in (FIXED, MIXED, KNN))}
    assert len(list(knn_ssd.search_notes(Found({unit.name: found})))) == 3
    skips = {one["skip"] for name, one in found["tried"].items() if name != "general"}
    assert {skip for record in found["measured"].of(f"{KNN}, Bayesian") for skip in record.skips} <= skips


def test_sets_that_are_compared_have_one_size(bench: Workbench) -> None:
    known = fit_tasks(bench)
    sizes = {len(SkipSet.parse(skip)) for skip in known.equal_sets.values()}
    assert len(sizes) == 1 < len({len(SkipSet.parse(known.sets[name])) for name in TASKS})
    (task,) = tasks_of(bench, ["wmt"])
    found = knn_ssd_units.on_task(bench, task)
    assert found["sets"] == known.equal_sets
    assert set(found["measured"].arms) == {OFF, *known.equal_sets}


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, {"chat": ["abc" * n for n in range(1, 9)]})
    missing = {unit.name: unit.missing for one in RECIPE.experiments for unit in one.units(bench) if unit.missing}
    assert "there are no prompts of MATH" in str(missing["math"])
    assert "two at least" in str(missing["streams"])


def test_a_domain_that_is_left_out_is_not_known(bench: Workbench) -> None:
    known = fit_tasks(bench)
    assert [*known.sets] == [*TASKS, "general"]
    (task,) = tasks_of(bench, ["gsm8k"])
    assert not {one.id for one in task.measured} & {one.id for one in task.fitting}
    assert {domain for domain, _ in route(bench, known.knows(), task.measured)} == {"gsm8k"}
    assert "gsm8k" not in {domain for domain, _ in route(bench, known.knows("gsm8k"), task.measured)}
    for one in unpack(known.knows("gsm8k").artefacts[KNN].content):
        assert one.name != "gsm8k"
        assert [point["skip"] for point in one.found["frontier"]] == [known.sets[one.name]]


def test_subtopics_that_prompts_name_are_not_clustered(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, TEXTS)
    bench.prompts = [replace(one, domain=("algebra", "geometry")[n % 2]) for n, one in enumerate(bench.prompts)]
    (unit,) = knn_ssd_units.math_units("vectors", knn_ssd_units.math_vectors)(bench)
    assert unit.measure is not None
    found = unit.measure()
    assert found["is_labelled"]
    assert set(found["points"]) == {"algebra", "geometry"}


# -------------------------------------------------------------------------------------------------------------- claims


def made(speeds: Mapping[str, Mapping[str, float]], first: int = 0, **values: Any) -> dict[str, Any]:
    """A unit: domain -> arm -> tokens per second, four prompts of each domain."""
    records = [
        Record(arm, f"{domain}{n}", domain, first + 4 * place + n, 10, 100, 100 / speed, 100 / speed, num_rounds=50)
        for place, (domain, arms) in enumerate(speeds.items())
        for n in range(4)
        for arm, speed in {OFF: 1.0, **arms}.items()
    ]
    return {"measured": Measured(records, Machine(num_layers=5, beta=1.0)), **values}


outcomes = partial(papers.outcomes, RECIPE)


def test_streams_are_judged_as_one() -> None:
    """The streams have the same prompts: a prompt counts once, whatever its place."""
    arms = {FIXED: 1.1, MIXED: 1.2}
    units = {"r=0.0": made({"a": {**arms, KNN: 2.0}}), "r=1.0": made({"a": {**arms, KNN: 1.0}}, first=7)}
    found = knn_ssd.streams(Found(units))
    figures = found.figures(knn_ssd.ALL, KNN)
    assert figures is not None
    assert figures.speedup is not None
    assert (figures.speedup.value, figures.speedup.count) == (pytest.approx(4 / 3), 4)
    assert outcomes("table-1", {"r=0.0": made({"a": {**arms, KNN: 1.4}})}) == [True, True, True]
    assert outcomes("table-1", {"r=0.0": made({"a": {**arms, KNN: 0.9}})}) == [False, False, False]


def test_the_first_task_against_the_others() -> None:
    def fixed(own: float, other: float) -> list[bool | None]:
        speeds = {"cnn-dm": {FIXED: own, KNN: 1.4}, "wmt": {FIXED: other, KNN: 1.4}, "sql": {FIXED: other, KNN: 1.4}}
        return outcomes("figure-1", {"r=0.0": made(speeds, labels={name: name for name in speeds})})

    assert fixed(1.3, 1.1) == [True, True, True]
    assert fixed(1.3, 1.5) == [False, False, False]


def test_sets_on_others_tasks() -> None:
    def better(own: float, other: float) -> list[bool | None]:
        match = {task: {name: own if name == task else other for name in TASKS} for task in TASKS}
        units = {task: made({task: match[task]}, match=match[task]) for task in TASKS}
        return outcomes("figure-2", units)

    assert better(0.9, 0.5) == [True, True]
    assert better(0.5, 0.9) == [False, False]
    assert better(0.9, 0.9) == [None, None]


def test_routing() -> None:
    def judged(own: int, seconds: float) -> list[bool | None]:
        routes = {"gsm8k": {"gsm8k": own, "wmt": 4 - own}}
        values = {"routes": routes, "decision_seconds": [seconds] * 3, "token_seconds": 0.01, "labels": {}}
        return outcomes("figure-5", {"vectors": values})

    assert judged(4, 0.001) == [True] * 4
    assert judged(3, 1.0) == [False] * 4


def test_where_most_prompts_are_sent() -> None:
    def judged(count: int, total: int) -> bool | None:
        unit = made({"a": {KNN: 1.3, MIXED: 1.2}}, routes={"cnn-dm": count, "wmt": total - count})
        *_, sent = papers.judged(RECIPE, "table-5", {"xsum": unit})
        assert sent.claim == "most prompts of xsum are sent to cnn-dm"
        return sent.outcome

    assert [judged(count, 12) for count in (12, 6, 0)] == [True, None, False]
    assert judged(2, 2) is None


def test_tasks_that_were_left_out_are_judged_as_one() -> None:
    arms = {FIXED: 1.0, KNN: 1.2, OWN: 1.4}
    units = {"without wmt": made({"wmt": arms}), "without sql": made({"sql": arms})}
    assert outcomes("table-5", units) == [True, True, True]


def test_clusters() -> None:
    def judged(seven: float) -> list[bool | None]:
        speeds = {"1 cluster": 1.05, "5 clusters": 1.2, "7 clusters": seven}
        return outcomes("table-6", {name: made({"a": {KNN: one}}, sizes=[4]) for name, one in speeds.items()})

    assert judged(1.1) == [True, True]
    assert judged(1.3) == [True, False]
    assert judged(1.0) == [False, True]


def test_groups_of_vectors() -> None:
    def judged(seven: float, is_labelled: bool = True, count: int = 21) -> list[bool | None]:
        apart = {"3": [0.3] * count, "7": [seven] * count}
        values = {"apart_by_count": apart, "is_labelled": is_labelled, "silhouettes": [seven] * count}
        return outcomes("figure-6", {"MATH vectors": values})

    assert judged(0.4) == [True, True]
    assert judged(0.2) == [False, False]
    assert judged(0.4, is_labelled=False, count=12) == [None, None]
