"""The recipe of DISCO: all its tables and figures on a pico model, and what they say of numbers made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.charts import Lines, Panels
from selfdraft.bench.prompts import BenchPrompt
from selfdraft.bench.reproduce.disco import RECIPE, latency, lesson, oracle, quality
from selfdraft.bench.reproduce.estimates import Estimate, is_above, mean_of, share_of
from selfdraft.bench.reproduce.journal import ReproduceHead, UnitFile, read_units
from selfdraft.bench.reproduce.published import published
from selfdraft.bench.reproduce.recipe import Found, Section
from selfdraft.bench.reproduce.report import Shown, as_text, ours_as_markdown, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import Scale
from selfdraft.bench.reproduce.workbench import Learned, Workbench
from selfdraft.lookahead.disco import Classifier

pytestmark = pytest.mark.xdist_group("reproduce_disco")

SMALL = Scale(prompts=1, learned_prompts=1, tokens=8, lesson_seconds=0.5, lesson_tokens=24, is_quick=True)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})
TEXTS = {
    "code": ["abcabcabc", "xyzxyz", "f(x)=x;f(y)=y", "for(;;)", "if(a)b;else", "while(1)", "a=b=c", "defg(h)"],
    "summarise": ["tellmemore", "inshort:abc", "whatissaid", "thegist"],
    "chat": ["hello", "howareyou", "whynot", "goodbye"],
}
IDS = [experiment.id for experiment in RECIPE.experiments]


def prompts_of(texts: Mapping[str, list[str]]) -> list[BenchPrompt]:
    return [BenchPrompt(f"{name}-{n}", name, text) for name, some in texts.items() for n, text in enumerate(some)]


def new_bench(folder: Path, texts: Mapping[str, list[str]] = TEXTS) -> Workbench:
    engine = Engine(pico("llama"), letter_tokenizer(), profile=None)
    return Workbench(engine, prompts_of(texts), SMALL, folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Workbench]:
    """The file of one whole run."""
    folder = tmp_path_factory.mktemp("disco")
    bench = new_bench(folder / "lessons")
    work = Reproduction(bench, UnitFile(folder / "result.jsonl", HEAD))
    work.run([RECIPE])
    assert not work.has_difference
    return folder / "result.jsonl", bench


@pytest.fixture(scope="module")
def sections(whole: tuple[Path, Workbench]) -> dict[str, Shown]:
    head, lines = read_units(whole[0])
    assert not [line for line in lines if line.missing]
    return {one.experiment.id: one for one in shown([RECIPE], lines, head)}


# ----------------------------------------------------------------------------------------------------- a whole run


def test_all_tables_and_figures(sections: dict[str, Shown]) -> None:
    assert set(sections) == {*(f"table-{n}" for n in (1, 2, 3, 5, 6)), *(f"figure-{n}" for n in (2, 3, 4, 5))}
    for name, one in sections.items():
        assert one.section.ours[0].rows, name
        assert one.section.efforts, name
        assert one.section.trends, name
        assert all(len(row) == len(table.header) for table in one.section.ours for row in table.rows), name
        text = as_text(one, HEAD)
        assert ("published (" in text) == (name in published("disco").tables), name
        assert "the paper drafts with a separate, smaller model" in text, name
        assert "(picture.png)" in "".join(ours_as_markdown(one, HEAD, "picture.png")) or one.section.plot is None


def test_tables_have_the_rows_of_the_paper(sections: dict[str, Shown]) -> None:
    published_rows = published("disco").tables["table-1"].rows
    ours = sections["table-1"].section.ours[0].rows
    assert [row[1] for row in ours] == [row[1] for row in published_rows]
    assert [row[0].split(" (")[0] for row in ours[::6]] == ["MBPP", "HumanEval", "CNN/DM", "Alpaca"]
    assert ours[6][0] == "HumanEval (code), transfer learning"
    assert all(float(row[2]) > 0 and row[3].endswith("x") for row in ours)
    assert [row[1:3] for row in sections["table-2"].section.ours[0].rows[:2]] == [
        ["CNN/DM (summarise)", "Target"],
        ["CNN/DM (summarise)", "static SL-5"],
    ]
    assert [row[0] for row in sections["table-2"].section.ours[0].rows] == ["1"] * 4 + ["0"] * 4
    assert [len(sections[name].section.ours[0].rows) for name in ("table-3", "table-5", "table-6")] == [4, 3, 5]
    assert len(sections["figure-3"].section.ours[0].header) == 2
    assert len(sections["figure-5"].section.ours[0].header) == 5


def test_shared_units_are_kept_once(whole: tuple[Path, Workbench]) -> None:
    kept = [line.experiment for line in read_units(whole[0])[1]]
    assert {name: kept.count(name) for name in kept} == {
        "figure-2": 1,
        "table-3": 4,
        "table-5": 3,
        "table-1": 4,
        "table-2": 2,
    }


def test_what_was_measured_is_not_measured_again(whole: tuple[Path, Workbench], monkeypatch: Any) -> None:
    path, bench = whole
    before = path.read_text()
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("it was there"))
    monkeypatch.setattr(Workbench, "learn", lambda *_, **__: pytest.fail("it was there"))
    Reproduction(bench, UnitFile(path, HEAD)).run([RECIPE])
    assert path.read_text() == before


def test_a_lesson_is_read_again(whole: tuple[Path, Workbench], monkeypatch: Any) -> None:
    _, bench = whole
    monkeypatch.setattr(lesson, "_learn", lambda *_: pytest.fail("it was there"))
    first, transferred = lesson.taught(bench, "mbpp"), lesson.taught(bench, "humaneval")
    assert first.facts == transferred.facts
    assert first.facts["num_train"] + first.facts["num_validation"] == 4
    classifier = Classifier.read(first.artefacts[lesson.CLASSIFIER].content)
    assert (classifier.threshold, classifier.max_tokens) == tuple(first.facts["best"]["disco"].values())


def test_rules_run_with_what_was_learned(sections: dict[str, Shown], whole: tuple[Path, Workbench]) -> None:
    """One that could not run would have an error instead of figures; all draft with one skip set."""
    for unit in ("mbpp", "humaneval", "cnn-dm", "alpaca"):
        values = sections["table-1"].found.units[unit]
        assert [name for name in values if name in latency.RULES] == list(latency.RULES)
        skips = {one["skip"] for rule in latency.RULES for one in values[rule]["skips"]}
        assert skips == {lesson.draft(whole[1])["settings"]["fixed"]["skip"]}
        assert values["oracle"]["total"]["equal"] == 1
        assert values["oracle"]["total"]["mean_generated_length"] >= values["DISCO"]["total"]["mean_generated_length"]


def test_no_prompt_is_learned_from_and_measured(whole: tuple[Path, Workbench]) -> None:
    bench = whole[1]
    for scale in (SMALL, Scale(8, 8, 8, 0.5, 24)):
        other = Workbench(bench.engine, bench.prompts, scale, bench.folder)
        known = {prompt.id for name in lesson.TASKS for prompt in lesson.learned_prompts(other, name)}
        for name in lesson.TASKS:
            measured = {prompt.id for prompt in lesson.measured_prompts(other, name)}
            assert measured
            assert not measured & known


FIGURES = ("figure-2", "figure-3", "figure-4", "figure-5")


@pytest.mark.parametrize("name", FIGURES)
def test_what_is_drawn(sections: dict[str, Shown], name: str) -> None:
    """Without matplotlib: bars as high as the table says."""
    plot = sections[name].section.plot
    assert plot is not None
    units, table = sections[name].found.units, sections[name].section.ours[0]
    if name == "figure-2":
        assert isinstance(plot.draw, Lines)
        assert [value for _, value in plot.draw.series[0].points] == units["mbpp"]["rules"]["oracle"]["kept"]
        return
    assert isinstance(plot.draw, Panels)
    lines = [panel for panel in plot.draw.panels if isinstance(panel, Lines)]
    bars = [[float(value or 0.0) for _, value in panel.series[0].points] for panel in lines]  # type: ignore[arg-type]
    if name == "figure-4":
        assert [[f"{share:.1%}" for share in heights] for heights in bars] == [
            [row[column] for row in table.rows][: len(heights)] for column, heights in enumerate(bars, start=1)
        ]
        assert [sum(heights) for heights in bars] == pytest.approx([1.0] * 4)
    else:
        assert len(bars) == len(table.header) - 1
        assert all(len(heights) == oracle.NUM_BUCKETS for heights in bars)


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_are_drawn(sections: dict[str, Shown], name: str) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    plot = sections[name].section.plot
    assert plot is not None
    figure = figures.Figure(figsize=plot.size)
    plot.draw(figure)
    assert any(axes.patches for axes in figure.axes)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """No code: neither MBPP nor what it teaches; a single prompt of a kind cannot be learned from and measured."""
    bench = new_bench(tmp_path, {"summarise": ["tellmemore", "inshort:abc"]})
    by_name = {unit.name: unit for unit in latency.latency_units(bench)}
    assert "there are no prompts of MBPP" in str(by_name["mbpp"].missing)
    assert "there are no prompts of HumanEval" in str(by_name["humaneval"].missing)
    assert by_name["cnn-dm"].missing is None
    file = UnitFile(None, HEAD)
    Reproduction(bench, file).run([RECIPE], ["table-5"])
    reasons = {line.unit: line.missing for line in file.lines.values()}
    assert "at least two different prompts of one domain" in str(reasons["cnn-dm"])
    (one,) = shown([RECIPE], list(file.lines.values()), HEAD)
    assert "not to be had, cnn-dm: training needs" in as_text(one, HEAD)


def test_a_task_whose_prompts_were_all_learned_from(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lesson, "measured_prompts", lambda bench, name: [])
    by_name = {unit.name: unit for unit in latency.latency_units(new_bench(tmp_path))}
    assert "all prompts of its kind are learned from (mbpp)" in str(by_name["humaneval"].missing)


# ------------------------------------------------------------------------------------------------ with units missing


@pytest.mark.parametrize("name", IDS)
def test_anything_may_be_missing(sections: dict[str, Shown], name: str) -> None:
    one = sections[name]
    units = one.found.units
    assert isinstance(one.experiment.show(Found({})), Section)
    for unit in units:
        rest = {other: values for other, values in units.items() if other != unit}
        assert isinstance(one.experiment.show(Found(rest, {unit: "no"}, SMALL.to_json())), Section)
        alone = one.experiment.show(Found({unit: units[unit]}))
        assert name == "figure-3" or alone.ours[0].rows


def test_a_way_that_failed_says_why(sections: dict[str, Shown]) -> None:
    values = {**sections["table-1"].found.units["mbpp"], "DISCO": {"error": "no classifier"}}
    section = latency.show_latency(Found({"mbpp": values}))
    assert section.ours[0].rows[4][1:] == ["DISCO", "-", "-", "-"]
    assert "mbpp, DISCO: no classifier" in section.notes
    assert not any("DISCO" in trend.claim for trend in section.trends)
    assert latency.show_gains(Found({"mbpp": values})).ours[0].rows == [["MBPP (code)", "-", "-"]]


# -------------------------------------------------------------------------------------------------------- arithmetic

LESSON = {
    "draft": "a draft",
    "match": 0.8,
    "threshold": 0.5,
    "max_tokens": 4,
    "num_train": 6,
    "num_validation": 2,
    "best": {"fixed": {"tokens": 2}, "perplexity": {"threshold": 1.2, "max_tokens": 3}},
}


def latencies(**by_way: float) -> dict[str, Any]:
    """A unit of table 1 with these milliseconds a token, none of them in doubt."""
    ways = {
        way: {
            "total": {
                "tokens_per_second": 1000 / ms,
                "speedup": dict.fromkeys(("value", "low", "high"), 1 / ms),
                "num_prompts": 8,
                "cost_measured": None if way == "off" else 0.5,
            }
        }
        for way, ms in by_way.items()
    }
    return {"label": "a task", "lesson": LESSON, "prompts": list("abc"), **ways}


def published_latencies() -> dict[str, dict[str, Any]]:
    """As if we had measured what table 1 says."""
    rows = published("disco").tables["table-1"].rows
    names = dict(zip(("MBPP", "HumanEval, transfer learning", "CNN/DM", "Alpaca"), lesson.TASKS, strict=True))
    found: dict[str, dict[str, float]] = {}
    for benchmark, method, ms, _ in rows:
        assert isinstance(ms, float)
        way = "off" if method == "Target" else str(method)
        found.setdefault(names[str(benchmark)], {})[way] = ms
    return {name: latencies(**by_way) for name, by_way in found.items()}


def test_table_6_is_made_of_table_1_as_in_the_paper() -> None:
    section = latency.show_gains(Found(published_latencies()))
    expected = [[float(str(cell)) for cell in row[1:]] for row in published("disco").tables["table-6"].rows]
    ours = [[float(cell) for cell in row[1:]] for row in section.ours[0].rows]
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=0.06)
    assert [trend.holds for trend in section.trends] == [True, True]


def test_published_speed_ups_are_those_of_the_latencies() -> None:
    """Also: the perplexity rule is held against the greedy target."""
    tables = published("disco").tables
    targets = {str(row[0]): row[2] for row in tables["table-1"].rows if row[1] == "Target"}
    for benchmark, _, ms, speed in tables["table-1"].rows:
        assert float(str(targets[str(benchmark)])) / float(str(ms)) == pytest.approx(float(str(speed)[:-1]), abs=0.006)
    target, static, disco, perplexity = (float(str(row[2])) for row in tables["table-2"].rows)
    assert [target / static, target / disco] == pytest.approx([1.66, 1.82], abs=0.006)
    assert float(str(targets["CNN/DM"])) / perplexity == pytest.approx(1.43, abs=0.006)


def test_trends_of_table_1() -> None:
    section = latency.show_latency(Found({"mbpp": latencies(off=1.0, **dict.fromkeys(latency.RULES, 0.5))}))
    assert [trend.holds for trend in section.trends] == [None, None, None, None, True]
    assert section.ours[0].header[-1] == "draft cost"
    assert [row[-1] for row in section.ours[0].rows] == ["-", *["0.50"] * len(latency.RULES)]
    slow = latencies(
        **{"off": 1.0, "static SL-opt": 1.2, "static SL-5": 1.3, "dynHeur SL": 1.6, "DISCO": 1.4, "oracle": 1.5}
    )
    section = latency.show_latency(Found({"humaneval": slow}))
    assert [trend.holds for trend in section.trends] == [False, False, True, False, False]
    assert all("a task, transfer learning" in trend.claim for trend in section.trends)
    both = latency.show_latency(Found({"mbpp": slow, "humaneval": slow}))
    assert any(note.startswith("3 of the 3 prompts of humaneval") for note in both.notes)


def test_trends_of_table_6() -> None:
    def holds(*gains: float) -> list[bool | None]:
        names = lesson.TASKS[: len(gains)]
        units = {
            name: latencies(**{"DISCO": 100 - gain, "static SL-opt": 100, "dynHeur SL": 100})
            for name, gain in zip(names, gains, strict=True)
        }
        return [trend.holds for trend in latency.show_gains(Found(units)).trends]

    assert holds(10, 12, 11) == [True, True]
    assert holds(-10, -12, -11) == [False, False]
    assert holds(10, -12, 11) == [None, None]
    assert holds(10) == holds(10, 16) == [None, None]
    few = published_latencies()
    few["mbpp"]["prompts"] = ["a"]
    assert [trend.holds for trend in latency.show_gains(Found(few)).trends] == [None, None]


def test_trends_of_table_2() -> None:
    found = latencies(**{"off": 1.0, "static SL-5": 0.8, "DISCO": 0.7, "ppl SL-opt": 0.9})
    section = latency.show_sampled(Found({"T=1 cnn-dm": found, "T=0 cnn-dm": found}))
    assert [trend.holds for trend in section.trends] == [True] * 4
    assert [row[2:] for row in section.ours[0].rows][1] == ["static SL-5", "0.80", "1.25x", "0.50"]
    other = latencies(**{"off": 1.0, "static SL-5": 1.2, "DISCO": 1.3, "ppl SL-opt": 1.2})
    section = latency.show_sampled(Found({"T=1 cnn-dm": other, "T=0 cnn-dm": other}))
    assert [trend.holds for trend in section.trends] == [False, False, False, None]


def test_one_prompt_tells_nothing() -> None:
    found = latencies(off=1.0, DISCO=0.7, oracle=0.5)
    assert [trend.holds for trend in latency.show_latency(Found({"mbpp": found})).trends] == [True, True]
    found["DISCO"]["total"]["num_prompts"] = 1
    trends = latency.show_latency(Found({"mbpp": found})).trends
    assert [trend.holds for trend in trends] == [None, None]
    assert trends[0].because.startswith("too few prompts: oracle 2.00x")


def lengths(*texts: list[int]) -> dict[str, Any]:
    return {"label": "a task", "texts": texts, "draft": "a draft", "num_tokens": 9, "different": 0}


def test_how_far_the_oracle_drafts() -> None:
    found = Found({"mbpp": lengths(*[[0, 20] * 5] * 4), "alpaca": lengths([3] * 20, [3] * 10, [3, 4] * 5)})
    section = oracle.show_spread(found)
    assert section.ours[0].rows == [["a task", "10.0", "10.0", "40"], ["a task", "3.1", "0.3", "40"]]
    assert [trend.holds for trend in section.trends] == [True, False]
    assert section.efforts[0].ours == 3
    few = oracle.show_spread(Found({"mbpp": lengths([7]), "alpaca": lengths([0, 20] * 40)}))
    assert [trend.holds for trend in few.trends] == [None, None]
    assert few.trends[1].because.startswith("too few prompts")


def test_histogram() -> None:
    section = oracle.show_histogram(Found({"mbpp": lengths([0], [0], [1, 40]), "alpaca": lengths(*[[2] * 10] * 4)}))
    rows = section.ours[0].rows
    assert [rows[0], rows[2], rows[-1]] == [["0", "50.0%", "0.0%"], ["2", "0.0%", "100.0%"], ["16+", "25.0%", "0.0%"]]
    assert [trend.holds for trend in section.trends] == [None, False]
    long = lengths(*[list(range(16, 26))] * 5)  # all of them share a row, none is usual
    assert oracle.show_histogram(Found({"mbpp": long})).trends[0].holds is True


def test_place_and_length() -> None:
    assert oracle.correlation([[0, 1, 2], [0, 2, 4]]) == pytest.approx(0.8, abs=0.1)
    assert oracle.correlation([[3, 3, 3]]) is None
    assert oracle.correlation([[3], [4]]) is None
    courses = {"mbpp": list(range(40)), "cnn-dm": [1, 9] * 200, "alpaca": [1, 2, 1]}
    units = {name: lengths(course, course, course) for name, course in courses.items()}
    section = oracle.show_course(Found(units))
    assert [trend.holds for trend in section.trends] == [False, True, None]
    assert [row[1] for row in section.ours[0].rows][:2] == ["0.50", "2.50"]
    assert oracle.show_course_of_alpaca(Found({"mbpp": units["mbpp"]})).ours == []


def test_one_example() -> None:
    def course(passes: int, drafts: int) -> dict[str, Any]:
        return {"num_tokens": 9, "target_passes": passes, "draft_passes": drafts, "drafted": [5, 4], "kept": [1, 2]}

    def holds(static: dict[str, Any], best: dict[str, Any]) -> list[bool | None]:
        unit = {"label": "MBPP", "draft": "a draft", "rules": {"static SL-5": static, "oracle": best}}
        return [trend.holds for trend in oracle.show_example(Found({"mbpp": unit})).trends]

    assert holds(course(38, 192), course(27, 129)) == [True, True]
    assert holds(course(38, 120), course(38, 129)) == [False, False]


def test_f1() -> None:
    def found(count: int, static: float, disco: float, prompts: int = 8) -> Section:
        values = {"static": static, "disco": disco, "any_static": 0.8, "at_half": 0.9}
        unit = {"label": "a task", "num_prompts": prompts, "num_tokens": count, "lesson": LESSON, **values}
        return quality.show_f1(Found({"mbpp": unit}))

    assert found(400, 0.76, 0.88).ours[0].rows == [["a task", "76", "88", "80", "90"]]
    claims = [trend.claim for trend in found(400, 0.76, 0.88).trends]
    assert claims == [
        "a task: DISCO's F1 is above that of the static length that is fastest",
        "a task: DISCO's F1 is above that of any static length",
    ]
    assert [trend.holds for trend in found(400, 0.76, 0.88).trends] == [True, True]
    assert [trend.holds for trend in found(400, 0.6, 0.76).trends] == [True, None]
    assert [trend.holds for trend in found(400, 0.5, 0.65).trends] == [True, False]
    assert [trend.holds for trend in found(400, 0.88, 0.76).trends] == [False, None]
    assert [trend.holds for trend in found(12, 0.76, 0.88).trends] == [None, None]
    assert [trend.holds for trend in found(400, 0.76, 0.88, 1).trends] == [None, None]


def test_what_is_clear() -> None:
    assert is_above("", Estimate(2.0), Estimate(1.0)).holds is True
    assert is_above("", Estimate(1.0), Estimate(2.0)).holds is False
    assert is_above("", Estimate(2.0, 0.5), Estimate(1.0)).holds is None
    assert is_above("", Estimate(2.0, None), Estimate(1.0)).holds is None
    assert mean_of([1.0, 3.0]) == Estimate(2.0, pytest.approx(6.4))
    assert mean_of([1.0, 3.0] * 8).error == pytest.approx((16 / 15 / 16) ** 0.5)
    assert share_of(1.0, 2).error == pytest.approx((3 / 4 * 1 / 4 / 4) ** 0.5)
    assert share_of(0.5, 0).error is None


def test_which_sub_layers_draft() -> None:
    points = [("", 1.0), ("a1", 0.95), ("a1,m2", 0.8), ("a1-2,m2", 0.6)]
    frontier = [{"skip": skip, "lost": 0.1, "match": match} for skip, match in points]
    assert lesson.chosen_skip(frontier) == "a1,m2"
    assert lesson.chosen_skip([frontier[0], frontier[3]]) == "a1-2,m2"
    assert lesson.chosen_skip(frontier[:1]) == lesson.chosen_skip([]) == ""


def test_without_a_skip_set_every_fourth_layer_is_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    bench = new_bench(tmp_path)
    monkeypatch.setattr(lesson, "chosen_skip", lambda frontier: "")
    method = lesson.draft(bench)
    assert method["strategy"] == "uniform"
    assert lesson.shown_draft(method) == "the model itself without every fourth layer"


def test_an_elimination_that_found_nothing_is_not_asked_again(tmp_path: Path, monkeypatch: Any) -> None:
    bench, asked = new_bench(tmp_path), []
    nothing = Learned("prune", {"error": "no time"}, {})
    monkeypatch.setattr(Workbench, "learn", lambda *_, **__: asked.append(1) or nothing)
    assert lesson.draft(bench) == lesson.draft(bench) == {"strategy": "uniform", "tree": "chain", "settings": {}}
    assert len(asked) == 1
    longer = replace(bench, scale=replace(SMALL, lesson_seconds=1.0))
    lesson.draft(longer)
    assert len(asked) == 2


def test_published_numbers_are_numbers() -> None:
    tables = published("disco").tables
    assert set(tables) == {"figure-2", "table-1", "table-2", "table-3", "table-5", "table-6"}
    for table in tables.values():
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert any(isinstance(cell, int | float) for cell in table.rows[0])
    assert json.dumps(tables["table-3"].rows[0][-2:]) == "[18.0, 46.2]"
