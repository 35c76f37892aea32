"""The recipe of DISCO: all its tables and figures on a pico model, and what they say of numbers made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import papers
from learned import latency
from papers import SMALL
from selfdraft import Engine
from selfdraft.bench.papers import disco, disco_fit, plan
from selfdraft.bench.papers.disco import RECIPE
from selfdraft.bench.papers.experiment import MEASURED, Found
from selfdraft.bench.papers.page import Section
from selfdraft.bench.papers.recipes import published
from selfdraft.bench.papers.run import read_units
from selfdraft.bench.papers.workbench import Workbench
from selfdraft.calibrate.fit_once import Fitted
from selfdraft.measure.passes import CONTEXT
from selfdraft.measure.run import MeasurePlan
from selfdraft.profiles.profile import Artefact

Whole = tuple[Path, Workbench, dict[str, Section]]
EXPERIMENTS = {one.id: one for one in RECIPE.experiments}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("disco")
    bench = papers.new_bench(folder / "fits")
    return folder / "result.jsonl", bench, papers.run(RECIPE, bench, folder / "result.jsonl")


@pytest.mark.full
def test_every_table_and_figure(whole: Whole) -> None:
    file, _, sections = whole
    assert set(sections) == {*(f"table-{n}" for n in (1, 2, 3, 5, 6)), *(f"figure-{n}" for n in (2, 3, 4, 5))}
    papers.check(RECIPE, sections)
    rows = sections["table-1"].tables[0].rows
    known = [row[1] for row in published("disco").tables["table-1"].rows]
    assert [row[1] for row in rows if row[1] in known] == known
    assert rows[8][0] == "HumanEval (code), transfer learning"
    sampled = [row[0] for row in sections["table-2"].tables[0].rows][::4]
    assert sampled == ["CNN/DM (summarise), T = 1", "CNN/DM (summarise), T = 0"]
    assert [len(sections[name].tables[0].rows) for name in ("table-3", "table-5", "table-6")] == [4, 3, 5]
    assert [len(sections[name].tables[0].rows) for name in ("figure-3", "figure-5")] == [1, 4]
    kept = [line.experiment for line in read_units(file)[1] if line.missing is None]
    counts = {name: kept.count(name) for name in kept}
    assert counts == {"figure-2": 1, "table-3": 4, "table-5": 3, "table-1": 4, "table-2": 2}


@pytest.mark.full
def test_nothing_is_fitted_or_measured_twice(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    file, bench, _ = whole
    before = file.read_text()
    monkeypatch.setattr(disco_fit, "_fit", lambda *_: pytest.fail("it was there"))
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("it was there"))
    papers.run(RECIPE, bench, file)
    assert file.read_text() == before
    asked = bench.for_experiment(RECIPE, EXPERIMENTS["table-1"])
    own, transferred = disco_fit.fitted(asked, "mbpp"), disco_fit.fitted(asked, "humaneval")
    assert own.facts == transferred.facts
    to_fit, to_measure = disco_fit.fit_prompts(bench, "mbpp"), disco_fit.unseen(bench, "humaneval").measured
    assert {prompt.id for prompt in to_measure}.isdisjoint(prompt.id for prompt in to_fit)


@pytest.mark.full
def test_a_plan_counts_all_texts(whole: Whole) -> None:
    """Those that are learned from, once for each classifier; those of each rule, and of plain decoding."""
    file, bench, _ = whole
    counts, fits = {1: 0, 2: 0, 4: 0}, {}
    for line in read_units(file)[1]:
        if rules := line.values.get("rules"):
            counts[4] += sum(map(len, rules.values())) + len(rules["oracle"])
        counts[2] += len(line.values.get("hits", {}).get("disco", ()))
        counts[1] += len(line.values.get(MEASURED, {}).get("records", ()))
        if fit := line.values.get("fit"):
            fits[disco_fit.TEACHERS.get(line.unit.split()[-1], line.unit.split()[-1])] = fit
    num_timed = 1 + 3 * len(disco_fit.SHORT)  # plain decoding, static lengths, settings of disco: at most as many
    counts[2] += sum(fit["num_train"] + (1 + num_timed) * fit["num_validation"] for fit in fits.values())
    counts[1] += (1 + 2 * len(disco_fit.USUAL_RULES)) * bench.scale.prompts  # to find what drafts
    num_tokens = bench.scale.tokens * sum(factor * count for factor, count in counts.items())
    seconds = 60 * plan.minutes(list(plan.plan(bench, [RECIPE], [], [])))
    fit_seconds = disco_fit._DRAFT_SHARE * bench.scale.fit_seconds
    assert round((seconds - fit_seconds) / bench.latency.at(CONTEXT).plain) == num_tokens


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    """No code: neither MBPP nor what it teaches; of one domain a single prompt is left to fit with."""
    bench = papers.new_bench(tmp_path, {"summarise": ["tellmemore", "inshort:abc"]})
    missing = {unit.name: unit.missing for unit in EXPERIMENTS["table-1"].units(bench)}
    assert "there are no prompts of MBPP" in str(missing["mbpp"])
    assert "there are no prompts of HumanEval" in str(missing["humaneval"])
    assert missing["cnn-dm"] is None
    found = papers.run(RECIPE, bench, tmp_path / "file.jsonl", ["table-5"])["table-5"]
    assert "at least two different prompts of one domain" in found.found.missing["cnn-dm"]


def test_what_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sets that promise most the fastest by the clock, with any of the usual rules, timed once; as a model of
    its own the layers that it skips whole are left out.
    """
    points = [("", 1.0), ("a1", 0.95), ("a1-2,m2", 0.9), ("a1-2,m1-2", 0.85), ("a1-3,m1-3", 0.3)]
    frontier = [{"skip": skip, "lost": 0.1, "match": match} for skip, match in points]
    found = {"frontier": frontier}
    monkeypatch.setattr(Workbench, "fit", lambda *_: Fitted("prune", {}, {"prune": Artefact(found)}))
    monkeypatch.setattr(Workbench, "latency", latency())
    raced: list[MeasurePlan] = []

    def race(engine: Engine, plan: MeasurePlan) -> SimpleNamespace:
        raced.append(plan)
        total = {name: SimpleNamespace(tokens_per_second=1 / len(name)) for name in plan.methods}
        return SimpleNamespace(arms=[SimpleNamespace(name=name, total=one) for name, one in total.items()])

    monkeypatch.setattr(disco_fit, "run_whole", race)
    expected = {
        "self": ({"fixed": {"skip": "a1-2,m2"}}, "the model itself without a1-2,m2"),
        "model": ({"model": {"without": "2"}}, "a model of its own, cut from it without the layers 2"),
        "model=small": ({"model": {"source": "small"}}, "small"),
    }
    for drafter, (settings, told) in expected.items():
        bench = papers.new_bench(tmp_path, scale=replace(SMALL, drafter=drafter))
        method = disco_fit.draft(bench)
        assert (method["drafter"], method["settings"]) == (drafter.partition("=")[0], settings)
        assert [*disco_fit.draft_note(Found({"mbpp": {"method": method}}))] == [f"all tasks are drafted by {told}"]
    (plan,) = raced
    rules = ("fixed tokens=1", "fixed tokens=2", "fixed tokens=3", "confidence")
    assert [*plan.methods] == [f"{skip} {rule}" for skip in ("a1-2,m2", "a1-2,m1-2") for rule in rules]
    measured = {prompt.id for name in disco_fit.TASKS for prompt in disco_fit.unseen(bench, name).measured}
    assert measured.isdisjoint(prompt.id for prompt in plan.prompts)
    found["frontier"] = []
    assert disco_fit.draft(papers.new_bench(tmp_path))["settings"] == {"fixed": {"skip": "a2,m2"}}
    cut = disco_fit.draft(papers.new_bench(tmp_path, scale=replace(SMALL, drafter="model")))
    assert cut["settings"] == {"model": {"without": "1,3"}}


def test_a_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table with a model of its own; the classifier is that of its drafts."""
    monkeypatch.setattr(Workbench, "fit", lambda *_: Fitted("prune", {}, {}))
    bench = papers.new_bench(tmp_path / "fits", {"chat": papers.TEXTS["chat"]}, replace(SMALL, drafter="model"))
    found = papers.run(RECIPE, bench, tmp_path / "file.jsonl", ["table-1"])["table-1"]
    assert [row[1] for row in found.tables[0].rows] == ["Target", *disco.RULES]
    values = found.found.units["alpaca"]
    assert values["fit"]["drafter"] == "model"
    assert values["fit"]["source"] == "without 1,3"
    exact = found.found.figures("alpaca", disco.ORACLE_LENGTH)
    assert exact is not None
    assert exact.acceptance_rate in (1.0, None), "it drafts nothing in vain"


def test_what_is_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of other kinds where a task has too few; none of those that are measured, none of HumanEval."""
    texts = {"mbpp": "abcdefgh", "humaneval": "ijkl", "chat": "mnopqrst", "summarise": "uvwx", "sql": "yzAB"}
    made = {name: [4 * letter for letter in letters] for name, letters in texts.items()}
    bench = papers.new_bench(tmp_path, made, replace(SMALL, prompts=2, learn=11))
    monkeypatch.setattr(disco_fit, "draft", lambda bench: {"drafter": "self"})
    monkeypatch.setattr(disco_fit, "_fit", lambda *asked: {"asked": [[one.id for one in some] for some in asked[2:4]]})
    own, (fitted, held_out) = disco_fit.fit_prompts(bench, "mbpp"), disco_fit.fitted(bench, "humaneval").facts["asked"]
    assert (len(own), len(held_out), len(fitted)) == (6, 2, 11)
    measured = {one.id for name in disco_fit.TASKS for one in disco_fit.unseen(bench, name).measured}
    learned = {*fitted, *held_out}
    assert len(measured) == 8
    assert not learned & measured
    assert {name.partition("-")[0] for name in learned} == {"mbpp", "chat", "summarise", "sql"}
    assert {one.id for one in own} <= learned


# -------------------------------------------------------------------------------------------------- made by hand


def lengths(*texts: list[int]) -> dict[str, Any]:
    return {"task": "a task", "rules": {"oracle": [{"kept": text} for text in texts]}}


def outcomes(name: str, **units: Any) -> list[bool | None]:
    return papers.outcomes(RECIPE, name, units)


def test_how_far_the_oracle_drafts() -> None:
    units = {"mbpp": lengths(*[[0, 20] * 5] * 4), "alpaca": lengths([3] * 20, [3] * 10, [3, 4] * 5)}
    (table,) = (table(Found(units)) for table in EXPERIMENTS["table-3"].tables)
    assert table.rows == [["a task", "10.0", "10.0", "40", "4"], ["a task", "3.1", "0.3", "40", "3"]]
    assert outcomes("table-3", **units) == [True, False]
    assert outcomes("table-3", mbpp=lengths([7]), alpaca=lengths([0, 20] * 40)) == [None, None], "too few prompts"


def test_histogram() -> None:
    assert disco.shares([[0], [0], [1, 40]]) == [0.5, 0.25, *[0.0] * 14, 0.25]
    assert outcomes("figure-4", mbpp=lengths([0], [0], [1, 40]), alpaca=lengths(*[[2] * 10] * 4)) == [None, False]
    assert outcomes("figure-4", mbpp=lengths(*[list(range(16, 26))] * 5)) == [True], "they share a row, none is usual"


def test_place_and_length() -> None:
    assert disco.course([list(range(40))])[:2] == [0.5, 2.5]
    courses = {"mbpp": list(range(40)), "cnn-dm": [1, 9] * 200, "alpaca": [3, 3, 3], "humaneval": [4]}
    units = {name: lengths(course, course, course) for name, course in courses.items()}
    assert outcomes("figure-5", **units) == [False, True], "what does not vary claims nothing"
    assert outcomes("figure-3", alpaca=units["mbpp"]) == [False]


def test_f1() -> None:
    def found(static: float, own: float, num_prompts: int = 8) -> list[bool | None]:
        hits = {"static": static, "disco": own, "tv": own, "any static": 0.8}
        rows = {rule: [[round(100 * value), 100]] * num_prompts for rule, value in hits.items()}
        unit = {"task": "a task", "hits": rows, "num_tokens": 400}
        return outcomes("table-5", mbpp=unit)

    assert found(0.76, 0.88) == [True, True]
    assert found(0.6, 0.8) == [True, None]
    assert found(0.5, 0.65) == [True, False]
    assert found(0.76, 0.88, num_prompts=1) == [None, None]


def test_what_is_saved() -> None:
    """Table 6 is made of table 1 as in the paper; an average is clear by how prompts differ within tasks."""
    names = {"MBPP": "mbpp", "HumanEval, transfer learning": "humaneval", "CNN/DM": "cnn-dm", "Alpaca": "alpaca"}
    speeds: dict[str, dict[str, float]] = {}
    for benchmark, method, milliseconds, _ in published("disco").tables["table-1"].rows:
        arm = "off" if method == "Target" else str(method)
        speeds.setdefault(names[str(benchmark)], {})[arm] = 1000 / float(str(milliseconds))
    units = {name: {"task": name, MEASURED: papers.measured(own)} for name, own in speeds.items()}
    ours = EXPERIMENTS["table-6"].tables[0](Found(units)).rows
    theirs = published("disco").tables["table-6"].rows
    for mine, paper in zip(ours, theirs, strict=True):
        assert [float(cell.split()[0]) for cell in mine[1:]] == pytest.approx(paper[1:], abs=0.06)
    assert outcomes("table-6", **units) == [True, True]
    assert outcomes("table-6", mbpp=units["mbpp"]) == [None, None], "one task"
    few = {**units, "mbpp": {"task": "", MEASURED: papers.measured(speeds["mbpp"], num_prompts=1)}}
    assert outcomes("table-6", **few) == [None, None]
    assert outcomes("table-1", mbpp=units["mbpp"]) == [True] * 5
