"""The recipe of KNN-SSD: every table and figure on a pico model, and claims judged by figures that are made up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learned import latency
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.charts import Bars, Panels, Scatter
from selfdraft.bench.prompts import BenchPrompt, by_domain
from selfdraft.bench.reproduce.cells import is_larger
from selfdraft.bench.reproduce.journal import ReproduceHead, UnitFile, read_units
from selfdraft.bench.reproduce.knn_ssd import RECIPE, beyond, domains, kinds, streams
from selfdraft.bench.reproduce.knn_ssd.judged import middle
from selfdraft.bench.reproduce.knn_ssd.lessons import TASKS, knows, route, tasks_of, taught
from selfdraft.bench.reproduce.published import published
from selfdraft.bench.reproduce.recipe import Found, Section, Trend
from selfdraft.bench.reproduce.report import Shown, as_text, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import Scale
from selfdraft.bench.reproduce.tasks import Tasks
from selfdraft.bench.reproduce.workbench import Workbench
from selfdraft.bench.search import learning
from selfdraft.calibrate.kit import EngineKit
from selfdraft.strategies.anchors import unpack

pytestmark = pytest.mark.xdist_group("reproduce_knn_ssd")

SMALL = Scale(prompts=1, learned_prompts=1, tokens=6, lesson_seconds=60.0, lesson_tokens=16, is_quick=True)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})
TEXTS = {"cnndm": "abcd", "gsm8k": "1+2=", "tinystories": "once", "wmt": "ABCD", "spider": "(*)%"}
NEW = {"xsum": "abce", "MATH": "3*4=", "alpaca": "whoa"}
IDS = [experiment.id for experiment in RECIPE.experiments]


def prompts() -> list[BenchPrompt]:
    """Of each data set its own letters, so that vectors of domains differ."""
    return [
        BenchPrompt(f"{name}_{number}", "any", letters * 2 + letters[number % 4] * number)
        for name, letters in {**TEXTS, **NEW}.items()
        for number in range(1, 17)
    ]


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    """Seconds at which drafting pays, and a few steps instead of seconds to learn in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "measure", lambda *arguments: latency())
        patch.setattr(kinds, "QUICK_KINDS", 2)
        patch.setattr(EngineKit, "has_time", has_a_few_steps)
        patch.setattr(EngineKit, "tokens_per_second", lambda kit, method, *text: 1 + (method["strategy"] != "off"))
        yield


def has_a_few_steps(kit: EngineKit) -> bool:
    count = kit.__dict__.setdefault("count", itertools.count())
    kit.is_out_of_time = next(count) >= 3
    return not kit.is_out_of_time


def workbench(folder: Path, texts: Sequence[BenchPrompt], scale: Scale = SMALL) -> Workbench:
    return Workbench(Engine(pico("llama"), letter_tokenizer(), profile=None), texts, scale, folder / "lessons")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return workbench(tmp_path_factory.mktemp("knn-ssd"), prompts())


@pytest.fixture(scope="module")
def file(bench: Workbench) -> Path:
    """Of a whole run."""
    path = bench.folder.with_name("result.jsonl")
    work = Reproduction(bench, UnitFile(path, HEAD))
    work.run([RECIPE])
    assert not work.has_difference
    return path


@pytest.fixture(scope="module")
def sections(file: Path) -> dict[str, Shown]:
    head, lines = read_units(file)
    return {one.experiment.id: one for one in shown([RECIPE], lines, head)}


# ----------------------------------------------------------------------------------------------------- a whole recipe


@pytest.mark.parametrize("name", IDS)
def test_every_experiment_has_its_table(sections: dict[str, Shown], name: str) -> None:
    one = sections[name]
    tables = [table for table in one.section.ours if table.rows]
    assert tables
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    assert one.section.efforts
    text = as_text(one, HEAD)
    paper = published("knn-ssd").tables.get(name)
    assert (paper is None) == (name in ("figure-2", "figure-4", "figure-6"))
    assert paper is None or paper.source in text
    assert (one.section.plot is not None) == name.startswith("figure")


def test_a_picture_can_be_drawn(sections: dict[str, Shown]) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    for one in sections.values():
        if one.section.plot:
            drawn = figures.Figure(figsize=one.section.plot.size)
            one.section.plot.draw(drawn)
            assert drawn.axes


def test_what_a_picture_shows(sections: dict[str, Shown]) -> None:
    """Without matplotlib: the data that is drawn."""
    for name, count in (("figure-1", 3), ("figure-2", 5), ("figure-4", 3), ("figure-7", 3)):
        plot = sections[name].section.plot
        assert plot is not None
        assert isinstance(plot.draw, Panels)
        assert len(plot.draw.panels) == (2 if name in ("figure-2", "figure-4") else 1)
        for panel in plot.draw.panels:
            assert isinstance(panel, Bars)
            assert len(panel.series) == count
            assert panel.y_label
    for name, count in (("figure-5", 5), ("figure-6", 2)):
        plot = sections[name].section.plot
        assert plot is not None
        assert isinstance(plot.draw, Scatter)
        assert len(plot.draw.groups) == count


def test_streams_are_measured_once(file: Path, sections: dict[str, Shown]) -> None:
    lines = [line for line in read_units(file)[1] if line.unit.startswith("r=")]
    assert [line.unit for line in lines] == ["r=0.0", "r=1.0"]
    assert {line.experiment for line in lines} == {"table-2"}
    for name in ("table-1", "table-2", "table-3", "table-7", "figure-1", "figure-4"):
        assert sections[name].found.units == sections["table-2"].found.units
    assert "not measured: r=0.3, r=0.7; a quick run" in as_text(sections["table-2"], HEAD)


def test_a_whole_run_has_all_ratios(tmp_path: Path) -> None:
    whole = workbench(tmp_path, prompts(), replace(SMALL, is_quick=False))
    assert [unit.name for unit in streams.stream_units(whole)] == ["r=0.0", "r=1.0", "r=0.3", "r=0.7"]


def test_nothing_is_measured_again(bench: Workbench, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_text()
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("it was there"))
    Reproduction(bench, UnitFile(file, HEAD)).run([RECIPE])
    assert file.read_text() == before


def test_any_unit_may_be_missing(file: Path) -> None:
    head, lines = read_units(file)
    for name in dict.fromkeys(line.experiment for line in lines):
        own = [line for line in lines if line.experiment == name]
        for left_out in own:
            for one in shown([RECIPE], [line for line in own if line is not left_out], head):
                assert as_text(one, head)
        for one in shown([RECIPE], [replace(line, values={}, missing="no room") for line in own], head):
            assert not any(table.rows for table in one.section.ours)
            assert "no room" in as_text(one, head)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    ours = [BenchPrompt(f"{name}-{number}", name, "abc" * number) for name in ("chat",) for number in range(1, 9)]
    file = UnitFile(None, HEAD)
    Reproduction(workbench(tmp_path, ours), file).run([RECIPE], [name for name in IDS if name != "table-6"])
    missing = {line.unit: line.missing for line in file.lines.values()}
    assert all(missing.values())
    assert "there are no prompts of MATH" in str(missing["math"])
    assert "two at least" in str(missing["streams"])


def test_the_papers_search_is_not_in_a_quick_run(bench: Workbench, tmp_path: Path) -> None:
    assert [unit.name for unit in streams.both_searches_units(bench)] == ["r=1.0"]
    whole = workbench(tmp_path, prompts(), replace(SMALL, is_quick=False))
    _, unit = streams.both_searches_units(whole)
    assert unit.measure is not None
    found = unit.measure()
    assert json.dumps(found, allow_nan=False)
    section = streams.show_one_ratio(Found({unit.name: found, "r=1.0": stream()}))
    assert [row[0] for row in section.ours[0].rows][-2:] == list(streams.BAYES)
    assert sum("Bayesian optimisation on the prompts" in note for note in section.notes) == 2


# --------------------------------------------------------------------------------------------------------- the lessons


def test_a_domain_that_is_left_out_is_not_known(bench: Workbench) -> None:
    known = taught(bench)
    assert list(known.sets) == list(TASKS)
    (task,) = tasks_of(bench, ["gsm8k"])
    assert {one.route for one in route(bench, knows(known), task.measured)} == {"gsm8k"}
    without = knows(known, ["gsm8k"])
    assert "gsm8k" not in {one.route for one in route(bench, without, task.measured)}
    artefact = without.artefacts["knn"]
    assert [one.name for one in unpack(artefact.content)] == [name for name in TASKS if name != "gsm8k"]


def test_each_domain_has_the_one_set_that_is_shown(bench: Workbench) -> None:
    known = taught(bench)
    for one in unpack(knows(known).artefacts["knn"].content):
        assert [point["skip"] for point in one.found["frontier"]] == [known.skip_of(one.name)]
        assert known.skip_of(one.name)


def test_what_is_learned_from_is_not_measured(bench: Workbench) -> None:
    for task in tasks_of(bench, TASKS, 100):
        assert {one.domain for one in (*task.measured, *task.learned)} == {task.name}
        assert not {one.id for one in task.measured} & {one.id for one in task.learned}


def test_kinds_that_prompts_name_are_not_clustered(tmp_path: Path) -> None:
    texts = [replace(one, domain=("algebra", "geometry")[number % 2]) for number, one in enumerate(prompts())]
    (unit,) = kinds.vector_units(workbench(tmp_path, texts))
    assert unit.measure is not None
    found = unit.measure()
    assert found["is_labelled"]
    assert set(found["points"]) == {"algebra", "geometry"}
    section = kinds.show_vectors(Found({unit.name: found}))
    assert section.ours[0].header[0] == "kind"


# -------------------------------------------------------------------------------------------------------------- claims


def way(speed: float, width: float = 0.02, **figures: Any) -> dict[str, Any]:
    total = {
        "speedup": {"value": speed, "low": speed - width, "high": speed + width},
        "num_tokens": 100,
        "decode_seconds": 100 / speed,
        "mean_generated_length": 2.0,
        "acceptance_rate": 0.8,
        "expected": {"by_ratio": 1.2},
        "num_prompts": 5,
        **figures,
    }
    return {"total": total, "domains": {}}


def stream(knn: float = 1.4, fixed: float = 1.1, mixed: float = 1.2, **figures: Any) -> dict[str, Any]:
    return {
        "off": way(1.0, mean_generated_length=1.0, acceptance_rate=None),
        "ssd-fixed": way(fixed),
        "ssd-mixed": way(mixed),
        "knn": way(knn, **figures),
        "changes": 1.0,
        "labels": {"cnn-dm": "CNN/DM", "gsm8k": "GSM8K"},
        "lesson": {"num_steps": 12, "num_sets": 6},
        "sets": {"cnn-dm": "a1", "gsm8k": "", "general": "a2"},
    }


def held(section: Section, words: str) -> bool | None:
    (trend,) = (one for one in section.trends if words in one.claim)
    return trend.holds


def test_claims_of_the_mix_ratios() -> None:
    good = streams.show_ratios(Found({"r=0.0": stream(fixed=1.25), "r=1.0": stream(knn=1.42)}))
    assert held(good, "ssd-mixed at r=1.0") is True
    bad = streams.show_ratios(Found({"r=0.0": stream(knn=1.1), "r=1.0": stream(knn=1.4, fixed=1.3)}))
    assert held(bad, "ssd-mixed at r=0.0") is False
    assert streams.show_ratios(Found({"r=0.0": stream()})).trends[0].claim.startswith("knn is faster")
    assert "no set was found in the time for gsm8k" in " ".join(good.notes)


def test_what_cannot_fail_is_no_claim() -> None:
    section = streams.show_ratios(Found({"r=0.0": stream(knn=1.1), "r=1.0": stream(knn=1.4)}))
    assert not any("depend" in trend.claim for trend in section.trends)
    assert "does not depend on the mix ratio could not fail here" in " ".join(section.notes)


def test_all_ratios_together() -> None:
    section = streams.show_overall(Found({"r=0.0": stream(knn=2.0), "r=1.0": stream(knn=1.0)}))
    rows = {row[0]: row[1:] for row in section.ours[0].rows}
    assert rows["off"] == ["1.00", "1.00x", "1.00x"]
    assert rows["knn"] == ["1.33", "1.20x", "1.33x"]  # 200 tokens in 50 + 100 seconds
    assert held(section, "than plain decoding") is True
    slow = streams.show_overall(Found({"r=0.0": stream(knn=0.9)}))
    assert [held(slow, words) for words in ("ssd-fixed", "ssd-mixed", "plain")] == [False, False, False]
    effort = section.efforts[-1]
    assert (effort.ours, effort.paper) == (2.0, 1000)


def test_claims_about_what_is_accepted() -> None:
    more = {"mean_generated_length": 3.0, "acceptance_rate": 0.9}
    section = streams.show_counts(Found({"r=1.0": stream(**more)}))
    assert [trend.holds for trend in section.trends] == [True] * 4
    rows = {row[0]: row[1:] for row in section.ours[0].rows}
    assert rows["knn"] == ["3.00", "0.90", "3.00", "0.90"]
    assert rows["off"] == ["1.00", "-", "1.00", "-"]
    same = streams.show_one_ratio(Found({"r=1.0": stream(knn=1.1)}))
    assert held(same, "larger accepted length than ssd-fixed") is None
    assert held(same, "knn is faster than ssd-fixed") is None
    assert held(same, "formula promises more") is True


def test_what_a_draft_step_costs() -> None:
    section = streams.show_one_ratio(Found({"r=1.0": stream(cost_measured=0.654)}))
    assert section.ours[0].header[-1] == "draft cost"
    assert {row[0]: row[-1] for row in section.ours[0].rows} == {
        "off": "-",
        "ssd-fixed": "-",
        "ssd-mixed": "-",
        "knn": "0.65",
    }
    assert any(note.startswith("draft cost: ") for note in section.notes)


def test_claims_of_the_stream_that_goes_task_by_task() -> None:
    values = stream()
    for name, own, other in (("ssd-fixed", 1.35, 1.05), ("ssd-mixed", 1.2, 1.2), ("knn", 1.4, 1.4)):
        both = {"cnn-dm": way(own)["total"], "gsm8k": way(other)["total"]}
        values[name] = {**values[name], "domains": both}
    section = streams.show_tasks(Found({"r=0.0": values}))
    assert held(section, "own task") is True
    assert held(section, "on GSM8K") is True
    assert section.ours[0].rows[0] == ["ssd-fixed", "1.35x", "1.05x", "1.10x"]
    values["ssd-fixed"]["domains"]["gsm8k"] = way(1.5)["total"]
    section = streams.show_tasks(Found({"r=0.0": values}))
    assert held(section, "own task") is False
    assert held(section, "on GSM8K") is False
    values["ssd-fixed"]["domains"]["gsm8k"] = way(1.2, width=0.3)["total"]
    section = streams.show_tasks(Found({"r=0.0": values}))
    assert held(section, "own task") is None
    assert held(section, "on GSM8K") is None


def matrix(own: float, other: float) -> Found:
    """Two sets on two tasks."""
    units: dict[str, Any] = {}
    for task in ("cnn-dm", "gsm8k"):
        match = {name: own if name == task else other for name in ("cnn-dm", "gsm8k")}
        ways = {name: way(1 + value / 2) for name, value in match.items()}
        units[task] = {**ways, "match": match, "label": task, "sets": {"cnn-dm": "a1", "gsm8k": "a2", "general": "a1"}}
    return Found(units)


def test_claims_of_sets_on_others_tasks() -> None:
    assert [trend.holds for trend in domains.show_matrix(matrix(0.9, 0.5)).trends] == [True, True]
    assert [trend.holds for trend in domains.show_matrix(matrix(0.5, 0.9)).trends] == [False, False]
    assert [trend.holds for trend in domains.show_matrix(matrix(0.9, 0.9)).trends] == [None, None]
    found = matrix(0.9, 0.5)
    del found.units["cnn-dm"]["cnn-dm"], found.units["cnn-dm"]["match"]["cnn-dm"]  # its own set was not found
    (trend,) = (one for one in domains.show_matrix(found).trends if "meets more" in one.claim)
    assert trend.because == "own 0.90, others 0.50"


def test_claims_of_routing() -> None:
    def found(accuracy: float, seconds: float | None) -> Section:
        own = {"num_prompts": 4, "accuracy": accuracy, "confusion": {"gsm8k": {"gsm8k": 3, "wmt": 1}}}
        values = {
            "labels": {"gsm8k": "GSM8K", "wmt": "WMT"},
            "routing": {"own": own, "seconds": {"median": seconds}},
            "token_seconds": 0.01,
            "points": {"gsm8k": [[0.0, 1.0]], "wmt": [[1.0, 0.0]]},
            "explained": 0.5,
            "silhouette": None,
            "strangers": 0.25,
        }
        return domains.show_vectors(Found({domains.VECTORS: values}))

    good = found(1.0, 0.001)
    assert [trend.holds for trend in good.trends] == [True, True]
    assert good.ours[0].rows == [["GSM8K", "3", "1"]]
    assert good.ours[1].rows[0] == ["128", "1.00", "0.078%"]
    assert [trend.holds for trend in found(0.75, 1.0).trends] == [False, False]
    assert [trend.holds for trend in found(1.0, None).trends] == [True]


def test_claims_of_strangers() -> None:
    values = {**stream(knn=1.3), "routes": {"cnn-dm": 1, "wmt": 2}, "label": "XSum"}
    section = beyond.show_strangers(Found({"xsum": values, "without wmt": {**values, "label": "WMT"}}))
    assert held(section, "ssd-mixed on XSum") is True
    assert section.ours[0].rows[3][-1] == "cnn-dm 1, wmt 2"
    assert "WMT, left out" in {row[0] for row in section.ours[0].rows}
    assert held(section, "another task's set") is True
    assert held(section, "plain decoding where a task is left out") is True
    few = {**stream(knn=1.3, num_prompts=2), "routes": {"wmt": 2}, "label": "XSum"}
    section = beyond.show_strangers(Found({"xsum": few, "without wmt": few}))
    assert [trend.holds for trend in section.trends] == [None] * 5


def test_where_most_prompts_are_sent() -> None:
    def sent(count: int, total: int) -> Trend:
        values = {**stream(), "routes": {"cnn-dm": count, "wmt": total - count}, "label": "XSum"}
        trends = beyond.show_strangers(Found({"xsum": values})).trends
        (trend,) = (one for one in trends if one.claim == "most prompts of XSum are sent to cnn-dm")
        return trend

    assert [sent(count, 12).holds for count in (12, 10, 7, 6, 2, 0)] == [True, True, None, None, False, False]
    assert sent(7, 12).because == "7 of 12, too close: 0.58 ± 0.13 and 0.50"
    assert sent(2, 2).because.startswith("too few prompts: 2 of 2")


def test_claims_of_clusters() -> None:
    units = {f"{n} clusters": {**stream(knn=s), "sizes": [n]} for n, s in ((1, 1.05), (5, 1.23), (7, 1.24))}
    section = beyond.show_clusters(Found(units))
    assert [trend.holds for trend in section.trends] == [True, True]
    assert [row[0] for row in section.ours[0].rows] == ["1", "5", "7"]
    assert section.trends[0].claim == "7 clusters are faster than 1 cluster"
    assert ", 1 cluster 1.05x" in section.trends[0].because
    units["7 clusters"] = {**stream(knn=1.0), "sizes": [7]}
    assert [trend.holds for trend in beyond.show_clusters(Found(units)).trends] == [False, True]
    units["7 clusters"] = {**stream(knn=1.5), "sizes": [7]}
    assert [trend.holds for trend in beyond.show_clusters(Found(units)).trends] == [True, False]
    units["7 clusters"] = {**stream(knn=1.29), "sizes": [7]}
    assert [trend.holds for trend in beyond.show_clusters(Found(units)).trends] == [True, None]


def test_claims_of_kinds() -> None:
    def holds(best_count: int, is_labelled: bool, silhouette: float = 0.3, num_vectors: int = 21) -> list[bool | None]:
        points = {"a": [[0.0, 0.0]], "b": [[1.0, 1.0]] * (num_vectors - 1)}
        known = {"points": points, "explained": 0.5, "silhouette": silhouette}
        found = {**known, "best_count": best_count, "is_labelled": is_labelled}
        return [trend.holds for trend in kinds.show_vectors(Found({kinds.VECTORS: found})).trends]

    assert holds(7, False) == [True, None]
    assert holds(2, True) == [False, True]
    assert holds(2, True, 0.05) == [False, False]
    assert holds(2, False, num_vectors=12) == [None, None]


def test_kinds_without_prompts_are_named() -> None:
    def notes(*kinds_of: str) -> str:
        values = {**stream(), "kinds": dict.fromkeys(kinds_of, 2)}
        return " ".join(kinds.show_kinds(Found({kinds.STREAM: values})).notes)

    assert "without a column: gsm8k" in notes("cnn-dm")
    assert "without a column" not in notes("cnn-dm", "gsm8k")


def test_kinds_are_those_that_prompts_name(tmp_path: Path) -> None:
    texts = [replace(one, domain=("algebra", "geometry")[number % 2]) for number, one in enumerate(prompts())]
    bench = workbench(tmp_path, texts)
    (unit,) = kinds.stream_units(bench)
    assert unit.measure is not None
    measured = Tasks(texts, 6, 8, bench.seed).find("math")
    assert measured is not None
    assert unit.measure()["kinds"] == {name: len(found) for name, found in by_domain(measured.measured).items()}


def test_figures_without_intervals() -> None:
    assert is_larger("", ("a", 2.0), ("b", 1.0)).holds is True
    assert is_larger("", ("a", 1.0), ("b", 2.0)).holds is False
    assert is_larger("", ("a", 1.0), ("b", 1.005)).holds is None
    assert is_larger("", ("a", 1.0), ("b", 1.04), 0.05).holds is None
    assert is_larger("", ("a", None), ("b", 1.0)).holds is None


def test_several_speeds_as_one() -> None:
    assert middle([{"value": 1.0, "low": 0.5, "high": 1.5}, {"value": 2.0, "low": 1.5, "high": 2.5}]) == {
        "value": 1.5,
        "low": 1.0,
        "high": 2.0,
    }
    assert middle([]) is None


def test_trends_name_figures() -> None:
    section = streams.show_one_ratio(Found({"r=1.0": stream()}))
    assert all(
        isinstance(trend, Trend) and any(letter.isdigit() for letter in trend.because) for trend in section.trends
    )
