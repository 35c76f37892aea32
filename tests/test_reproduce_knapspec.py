"""`selfdraft reproduce knapspec`: every experiment runs, goes on where it stopped, and judges as one would by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learned import latency
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.harness.records import TextRecord
from selfdraft.bench.prompts import BenchPrompt, tokens_of
from selfdraft.bench.reproduce.cells import NOT_MEASURED
from selfdraft.bench.reproduce.journal import ReproduceHead, UnitFile
from selfdraft.bench.reproduce.knapspec import RECIPE, contexts, correlation, decoupling, methods, pruning, shared
from selfdraft.bench.reproduce.published import published
from selfdraft.bench.reproduce.recipe import Experiment, Found
from selfdraft.bench.reproduce.recipes import recipe
from selfdraft.bench.reproduce.report import as_text, ours_as_markdown, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import Scale
from selfdraft.bench.reproduce.workbench import Workbench
from selfdraft.economics import Line
from selfdraft.errors import OptionError
from selfdraft.types import SkipSet

pytestmark = pytest.mark.xdist_group("reproduce_knapspec")

SCALE = Scale(prompts=1, learned_prompts=1, tokens=10, lesson_seconds=0.4, lesson_tokens=24, is_quick=True)
PROMPTS = [
    *(BenchPrompt(f"m{n}", "math", f"{n}+{n}is,{n}*{n}is?") for n in range(5)),
    *(BenchPrompt(f"s{n}", "summarise", f"article{n}:" + "therainfell" * (n + 3)) for n in range(4)),
]
HEAD = ReproduceHead({"model": "pico", "scale": SCALE.to_json()}, {"device_name": "cpu", "dtype": "float32"})
EXPERIMENTS = {experiment.id: experiment for experiment in RECIPE.experiments}


def bench_in(folder: Path, **changed: Any) -> Workbench:
    engine = Engine(pico("llama", max_position_embeddings=640), letter_tokenizer(), profile=None)
    return replace(Workbench(engine, PROMPTS, SCALE, folder), **changed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("knapspec")


@pytest.fixture(scope="module")
def bench(folder: Path) -> Workbench:
    return bench_in(folder)


@pytest.fixture(scope="module")
def file(bench: Workbench, folder: Path) -> UnitFile:
    """The whole recipe, measured once."""
    file = UnitFile(folder / "units.jsonl", HEAD)
    Reproduction(bench, file).run([RECIPE])
    return file


def units_of(file: UnitFile, experiment: str) -> dict[str, Mapping[str, Any]]:
    lines = [line for line in file.lines.values() if line.experiment == experiment]
    return {line.unit: line.values for line in lines if line.missing is None}


# ------------------------------------------------------------------------------------------------ as a whole


def test_every_experiment_is_measured(file: UnitFile) -> None:
    assert recipe("knapspec") is RECIPE
    missing = {line.unit: line.missing for line in file.lines.values() if line.missing}
    assert missing == {"1024": "the model's context holds 640 tokens"}
    found = list(shown([RECIPE], list(file.lines.values()), file.head))
    assert [one.experiment.id for one in found] == list(EXPERIMENTS)
    for one in found:
        for table in one.section.ours:
            assert table.rows, (one.experiment.id, table.title)
            assert {len(row) for row in table.rows} == {len(table.header)}
        assert one.section.trends
        text = as_text(one, file.head)
        assert "done: " in text
        assert next(ours_as_markdown(one, file.head)).startswith("**ours**")
        assert ("published (a summary" in text) == (one.experiment.id in published("knapspec").tables)


def test_nothing_says_anything_else_than_plain_decoding(bench: Workbench, file: UnitFile) -> None:
    assert not Reproduction(bench, file).has_difference
    for way in methods.WAYS[1:]:
        assert file.lines["knapspec", "main", "T=0.7 gsm8k"].values[way]["total"]["equal"] == SCALE.prompts


def test_a_resumed_run_measures_nothing_again(
    bench: Workbench, file: UnitFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError(f"measured again: {arguments}")

    monkeypatch.setattr(Reproduction, "_measured", never)
    again = UnitFile(folder / "units.jsonl", HEAD)
    Reproduction(bench, again).run([RECIPE])
    assert again.lines == file.lines


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
def test_a_table_is_made_of_whatever_is_there(file: UnitFile, experiment: Experiment) -> None:
    units = units_of(file, experiment.id)
    whole = experiment.show(Found(units, scale=SCALE.to_json()))
    empty = experiment.show(Found({}))
    assert not any(table.rows for table in empty.ours)
    assert not empty.trends
    for name in units:
        only = experiment.show(Found({name: units[name]}))
        assert any(table.rows for table in only.ours)
        without = experiment.show(Found({other: units[other] for other in units if other != name}))
        assert sum(len(table.rows) for table in without.ours) <= sum(len(table.rows) for table in whole.ours)


def test_what_was_published_is_shaped_as_tables_are() -> None:
    paper = published("knapspec")
    assert paper.arxiv == "2602.20217"
    assert set(paper.tables) <= set(EXPERIMENTS)
    for table in paper.tables.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    rows = paper.tables["main"].as_table("").rows
    assert ["Llama3.1-70B", "GovReport", "speed-up", "1.00x", "1.33x", "1.22x", "1.47x"] in rows


def test_figures_can_be_drawn(file: UnitFile, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.figure")
    for name in ("contexts", "correlation"):
        plot = EXPERIMENTS[name].show(Found(units_of(file, name))).plot
        assert plot is not None
        drawn = matplotlib.Figure(figsize=plot.size)
        plot.draw(drawn)
        drawn.savefig(tmp_path / f"{name}.png")
        assert all(axes.get_xlabel() for axes in drawn.axes)
        assert EXPERIMENTS[name].show(Found({})).plot is None


def test_tasks_without_prompts_are_named(folder: Path) -> None:
    poor = bench_in(folder, prompts=PROMPTS[:5])
    reasons = [unit.missing for unit in contexts.units(poor)]
    assert all(reasons)
    assert "there are no prompts of CNN/DM" in str(reasons[0])
    whole = replace(poor, scale=replace(SCALE, is_quick=False))
    names = {unit.name: unit.missing is None for unit in decoupling.units(whole)}
    assert names == {"best set gsm8k": True, "planned gsm8k": True, "best set cnn-dm": False, "planned cnn-dm": False}


# ------------------------------------------------------------------------------------------------ what is measured


def test_a_long_question_stands_behind_other_articles_each_time(bench: Workbench) -> None:
    articles = contexts._articles(bench)
    assert {prompt.domain for prompt in articles} == {"summarise"}
    assert len(articles) == 4
    found = contexts.long_questions(bench, articles, 200)
    assert len({prompt.text for prompt in found}) == len(found) == SCALE.prompts + 1
    for prompt in found:
        assert 190 <= len(tokens_of(prompt, bench.engine)) <= 200
        assert prompt.text.endswith(contexts.QUESTION)
    with pytest.raises(OptionError, match="shorter than 20 tokens"):
        contexts.long_questions(bench, articles, 20)


def test_the_whole_scale_asks_for_the_papers_lengths(bench: Workbench) -> None:
    whole = replace(bench, scale=replace(SCALE, is_quick=False))
    found = {unit.name: unit.missing for unit in contexts.units(whole)}
    assert list(found) == ["1024", "2048", "4096", "8192", "16384"]
    assert all(found.values())


def test_prompts_that_show_what_to_skip_are_not_measured(bench: Workbench) -> None:
    for name in ("gsm8k", "cnn-dm"):
        task = shared.with_references(bench).tasks.find(name)
        assert task is not None
        assert len(task.learned) == 2
        assert not {prompt.id for prompt in task.learned} & {prompt.id for prompt in task.measured}


def test_networks_of_the_knapsack(bench: Workbench) -> None:
    task = shared.with_references(bench).tasks.find("gsm8k")
    assert task is not None
    references = shared.References(bench, task.learned)
    single, bound = references.networks(), references.networks(is_bound=True)
    assert all(one.skip.attention == one.skip.mlp for one in bound)
    assert any(one.skip.attention != one.skip.mlp for one in single)
    last = bench.engine.runner.num_layers - 1
    assert not any({0, last} & (one.skip.attention | one.skip.mlp) for one in (*single, *bound))
    best = shared.best_of(single)
    assert best is not None
    assert best.tokens_per_time == max(one.tokens_per_time for one in single)
    assert 1 <= best.num_drafted <= shared.MAX_DRAFTED
    assert len(references.networks(min_cosine=-1.0)) >= len(single)
    assert len(references.networks(min_cosine=0.99)) <= len(single)
    assert references.match(SkipSet()) == 1.0
    assert shared.best_of([]) is None


def test_knapspec_plans_whatever_it_costs(file: UnitFile) -> None:
    ways = units_of(file, "main")["T=0.0 gsm8k"]
    planning = {way: ways[way]["total"]["split"]["optimise"] for way in (methods.KNAPSPEC, methods.FRUGAL)}
    assert planning[methods.KNAPSPEC] > 2 * planning[methods.FRUGAL]
    for unit in ("256 KnapSpec", "512 KnapSpec"):
        drafting = units_of(file, "contexts")[unit][contexts.ALWAYS]["total"]
        assert drafting["acceptance_rate"] is not None
        assert drafting["skipped_attention"] + drafting["skipped_mlp"] > 0


def test_sets_of_all_kinds_are_looked_at(file: UnitFile) -> None:
    units = units_of(file, "correlation")
    assert list(units) == [f"{family} gsm8k" for family in correlation.FAMILIES]
    for point in units["attentions gsm8k"]["points"]:
        assert (point["attention"] > 0, point["mlp"]) == (True, 0)
    for point in units["MLPs gsm8k"]["points"]:
        assert (point["attention"], point["mlp"] > 0) == (0, True)
    for point in (point for unit in units.values() for point in unit["points"]):
        assert 0 <= point["acceptance"] <= 1
        assert point["tokens_per_time"] > 0


# ------------------------------------------------------------------------------------------------ arithmetic


def test_tokens_per_time_by_hand() -> None:
    """Behind 100 tokens on average: attention and MLP 2 ms each, the rest 0.5 ms, a plain pass 20.5 ms."""
    record = TextRecord("KnapSpec", "p", "math", 0, 90, 20, 1.0, num_rounds=10, num_draft_passes=15)
    record = replace(record, skipped_attention=30.0, skipped_mlp=15.0)
    drafted = 15 * (10 * 2e-3 + 0.5e-3) - 45 * 2e-3
    assert shared.pass_seconds(record, latency()) == pytest.approx(10 * 20.5e-3 + drafted)
    assert shared.tokens_per_time([record] * 2, latency()) == pytest.approx(20 / (0.205 + drafted))
    plain = TextRecord("off", "p", "math", 0, 90, 20, 1.0, num_rounds=20)
    assert shared.tokens_per_time([plain], latency()) == pytest.approx(1 / 20.5e-3)
    assert shared.tokens_per_time([], latency()) is None


def test_predictions_by_hand() -> None:
    """Two tokens drafted without two of ten sub-layers, kept half the time: 1 + 0.5 + 0.25 tokens a round."""
    found = shared.predicted(SkipSet.of([1], [2]), 0.5, 2, latency().at(100))
    draft, plain, wide = 8 * 2e-3 + 0.5e-3, 20.5e-3, 20.5e-3 + 2 / 15 * 0.5e-3
    assert found == pytest.approx(
        {
            "tokens_per_time": 1.75 / (2 * draft + plain),
            "by_width": 1.75 / (2 * draft + wide),
            "tokens_per_layer": 1.75 / (2 * 4 + 5),
            "acceptance": 0.5,
        }
    )


def test_tokens_per_time_is_tokens_per_layer_where_all_sublayers_cost_the_same() -> None:
    fit = latency(attention=Line(0.0, 2e-3), rest_seconds=0.0, plain=Line(0.0, 20e-3))
    skips = [SkipSet.of([1]), SkipSet.of(mlp=[1, 2, 3]), SkipSet.of([1, 2], [1, 2])]
    found = [shared.predicted(skip, 0.7, 3, fit.at(100)) for skip in skips]
    assert [one["tokens_per_time"] * 4e-3 for one in found] == pytest.approx([one["tokens_per_layer"] for one in found])


def test_pearson() -> None:
    assert correlation.pearson([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1)
    assert correlation.pearson([1, 2, 3, 4], [8, 6, 4, 2]) == pytest.approx(-1)
    assert correlation.pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert correlation.pearson([1, 1, 1, 1], [1, 3, 2, 4]) is None
    assert correlation.pearson([1, 2, 3], [1, 2, 3]) is None


def points_of(**predictors: list[float]) -> list[dict[str, Any]]:
    """Speeds 0.6 to 1.7."""
    speeds = [0.6 + 0.1 * number for number in range(12)]
    names = [*predictors, "speedup"]
    return [dict(zip(names, values, strict=True)) for values in zip(*predictors.values(), speeds, strict=True)]


def test_which_predictor_is_better() -> None:
    good, noise = [float(number) for number in range(12)], np.random.default_rng(1).normal(size=12).tolist()
    points = points_of(tokens_per_time=good, acceptance=noise, tokens_per_layer=[2 * one + 1 for one in good])

    def holds(one: str, other: str) -> bool | None:
        return correlation.is_better("", points, one, other).holds

    assert holds("tokens_per_time", "acceptance") is True
    assert holds("acceptance", "tokens_per_time") is False
    nearly = [one + 0.4 * bump for one, bump in zip(good, noise, strict=True)]
    points = points_of(
        tokens_per_time=[one - 0.4 * bump for one, bump in zip(good, noise, strict=True)], acceptance=nearly
    )
    assert holds("tokens_per_time", "acceptance") is None
    assert correlation.is_better("", points[:2], "tokens_per_time", "acceptance").because == NOT_MEASURED


def test_the_correlations_stand_in_the_table() -> None:
    good = [float(number) for number in range(12)]
    names = ("tokens_per_time", "by_width", "tokens_per_layer")
    points = points_of(**dict.fromkeys(names, good), acceptance=good[::-1])
    points = [{**point, "attention": 1, "mlp": 2, "accepted": None} for point in points]
    section = correlation.show(Found({"knapsack gsm8k": {"points": points, "num_prompts": 3}}))
    assert section.ours[0].rows[0] == ["TPT", "1.00", "1.00", "12"]
    assert section.ours[0].rows[-1] == ["match (acceptance rate)", "-1.00", "1.00", "12"]
    assert len(section.ours[1].rows) == 12
    assert section.trends[1].holds is True
    few = correlation.show(Found({"knapsack gsm8k": {"points": points, "num_prompts": 1}}))
    assert few.trends[1].holds is None
    assert few.trends[1].because.startswith("too few prompts")


# ------------------------------------------------------------------------------------------------ claims


def way(value: float, half: float = 0.0, prompts: int = 8, **more: Any) -> dict[str, Any]:
    speedup = {"value": value, "low": value - half, "high": value + half}
    return {"total": {"speedup": speedup, "num_prompts": prompts, **more}}


def by_claim(trends: Any) -> dict[str, bool | None]:
    return {trend.claim: trend.holds for trend in trends}


def main_found(own: float, sampled: float, per_time: float = 30.0, accepted: float | None = 0.9) -> Found:
    others = {"off": way(1.0, tokens_per_time=20.0), "SWIFT": way(0.9, 0.02, tokens_per_time=22.0)}
    others["CLaSp"] = way(1.1, 0.02, tokens_per_time=25.0)
    knapspec = {
        "tokens_per_time": per_time,
        "acceptance_rate": accepted,
        "cost_measured": 0.6,
        "split": {"optimise": 0.125},
    }
    units = {"T=0.0 gsm8k": own, "T=0.7 gsm8k": sampled}
    return Found({unit: {**others, "KnapSpec": way(value, 0.02, **knapspec)} for unit, value in units.items()})


def test_claims_about_the_main_table() -> None:
    section = methods.show_main(main_found(1.3, 1.31))
    holds = by_claim(section.trends)
    assert holds == dict.fromkeys(holds, True)
    assert len(holds) == 9
    assert ["T=0.0 gsm8k", "0.0", "in the DP", "-", "-", "-", "12.5%", "-"] in section.ours[0].rows
    assert ["T=0.0 gsm8k", "0.0", "draft cost", "-", "-", "-", "0.60", "-"] in section.ours[0].rows
    holds = by_claim(methods.show_main(main_found(1.3, 0.9, 20.0)).trends)
    assert holds["KnapSpec is faster than plain decoding on GSM8K at T = 0.7"] is False
    assert holds["KnapSpec is faster than SWIFT on GSM8K at T = 0.7"] is None
    assert holds["KnapSpec's speed-up stays when sampling, on GSM8K"] is False
    assert holds["KnapSpec has the most tokens per time on GSM8K at T = 0.0"] is False
    most = "KnapSpec has the most tokens per time on GSM8K at T = 0.0"
    close = {trend.claim: trend for trend in methods.show_main(main_found(1.3, 1.3, 25.7)).trends}[most]
    assert (close.holds, close.because) == (None, "too close: KnapSpec 25.70, CLaSp 25.00")
    assert by_claim(methods.show_main(main_found(1.3, 1.3, 25.9)).trends)[most] is True
    few = main_found(1.3, 1.3)
    few.units["T=0.0 gsm8k"]["SWIFT"]["total"]["num_prompts"] = 1
    assert by_claim(methods.show_main(few).trends)[most] is None
    slow = {trend.claim: trend for trend in methods.show_main(main_found(0.8, 0.8)).trends}
    none = slow["KnapSpec's speed-up stays when sampling, on GSM8K"].because
    assert none == "there is none to stay: T=0.7 gsm8k 0.80x [0.78, 0.82], T=0.0 gsm8k 0.80x [0.78, 0.82]"


def test_who_does_not_draft_says_nothing_about_sampling() -> None:
    trends = {trend.claim: trend for trend in methods.show_main(main_found(0.9, 0.9, accepted=None)).trends}
    stays = trends["KnapSpec's speed-up stays when sampling, on GSM8K"]
    assert stays.holds is None
    slower = trends["KnapSpec is faster than plain decoding on GSM8K at T = 0.0"]
    assert slower.holds is False
    assert all(trend.because.endswith("it chose not to draft") for trend in (stays, slower))


def test_claims_about_long_texts() -> None:
    def holds(swift: float, half: float = 0.02) -> dict[str, bool | None]:
        figures = {"tokens_per_second": 20.0, "tokens_per_time": 20.0}
        others = {"SWIFT": way(swift, half, **figures), "CLaSp": way(1.0, half, **figures)}
        own = {"off": way(1.0, **figures), "KnapSpec": way(1.2, half, **{**figures, "tokens_per_time": 25.0})}
        section = contexts.show(Found({"512 others": others, "512 KnapSpec": own, "256 others": others}))
        assert [row[0] for row in section.ours[0].rows] == ["256", "256", "512", "512", "512", "512"]
        return by_claim(section.trends)

    collapse = "SWIFT, which knows nothing of lengths, is slower than plain decoding behind the longest texts"
    assert [holds(0.8)[collapse], holds(1.3)[collapse], holds(1.0, 0.1)[collapse]] == [True, False, None]
    found = holds(0.8)
    assert found["KnapSpec is faster than SWIFT behind 512 tokens"] is True
    assert found["KnapSpec has the most tokens per time behind 512 tokens"] is True
    assert "KnapSpec is faster than SWIFT behind 256 tokens" not in found


def test_claims_about_single_sublayers() -> None:
    def holds(single: float, accepted: float | None = 0.8) -> list[bool | None]:
        one = {"skip": "a1,m1", "acceptance": 0.9, "num_drafted": 3, "tokens_per_time": 20.0}
        sets = {"decoupled": one, "bound": one}
        ways = {"decoupled": way(single, 0.02), "bound": way(1.0, 0.02)}
        planned = {
            "decoupled": way(single, 0.02, acceptance_rate=accepted),
            "bound": way(1.0, 0.02, acceptance_rate=accepted),
        }
        units = {
            "best set gsm8k": {**ways, "sets": sets, "task": "GSM8K"},
            "planned gsm8k": {**planned, "task": "GSM8K"},
        }
        return [trend.holds for trend in decoupling.show(Found(units)).trends]

    assert holds(1.2) == [True, True]
    assert holds(0.8) == [False, False]
    assert holds(1.01) == [None, None]
    assert holds(1.2, None) == [True, None]


def test_claims_about_pruning() -> None:
    def section(seconds: list[float], promised: float | None, speed: float, half: float = 0.02) -> Any:
        def plan(took: float, value: float | None) -> dict[str, Any]:
            return {"seconds": took, "num_networks": 3, "tokens_per_time": value}

        plans = [{"pruned": plan(took, promised), "not pruned": plan(1.0, 20.0)} for took in seconds]
        ways = {"pruned": way(speed, half), "not pruned": way(1.0, 0.02), "task": "GSM8K"}
        units = {"plan gsm8k": {"plans": plans, "plain_seconds": 0.07, "task": "GSM8K"}, "decoded gsm8k": ways}
        return pruning.show(Found(units))

    def holds(*asked: Any) -> list[bool | None]:
        return [trend.holds for trend in section(*asked).trends]

    rows = section([0.5] * 3, 20.0, 1.0).ours[0].rows
    assert rows[1][:6] == ["GSM8K", "not pruned", "3", "1.000", "14.3", "3.0"]
    assert holds([0.5, 0.4, 0.6], 20.0, 1.0) == [True, True, True, True]
    assert holds([0.98, 0.99, 1.01], 19.0, 0.9) == [None, False, False, False]
    assert holds([1.5, 1.6, 1.4], None, 1.2) == [False, False, False, True]
    assert holds([0.5, 0.4], 20.0, 1.0, 0.2) == [None, None, None, None]


def test_what_is_as_fast_must_be_known_well() -> None:
    def holds(value: float, half: float, prompts: int = 8) -> bool | None:
        found = Found({"here": {"one": way(value, half, prompts), "other": way(1.0, 0.01)}})
        return shared.is_no_slower("", found, ("here", "one"), ("here", "other")).holds

    assert [holds(1.0, 0.04), holds(1.2, 0.1), holds(0.9, 0.02)] == [True, True, False]
    assert [holds(1.0, 0.1), holds(0.96, 0.02), holds(1.0, 0.04, 1)] == [None, False, None]


def test_plans_are_made_behind_several_texts(file: UnitFile) -> None:
    plans = units_of(file, "pruning")["plan gsm8k"]["plans"]
    assert [list(one) for one in plans] == [["pruned", "not pruned"], ["not pruned", "pruned"]]
    assert all(one["seconds"] > 0 for both in plans for one in both.values())


def test_only_some_tasks_are_sampled_at_quick_scale(bench: Workbench) -> None:
    names = [unit.name for unit in methods.main_units(bench)]
    assert names == ["T=0.0 gsm8k", "T=0.7 gsm8k", "T=0.0 cnn-dm"]
    whole = replace(bench, scale=replace(SCALE, is_quick=False))
    assert len(list(methods.main_units(whole))) == 4
