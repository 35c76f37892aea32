"""Recipes: what is measured is kept unit by unit, an interrupted run goes on, published numbers stay apart."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.prompts import BenchPrompt
from selfdraft.bench.report import Table
from selfdraft.bench.reproduce import asd
from selfdraft.bench.reproduce.cells import is_faster, pays
from selfdraft.bench.reproduce.journal import NO_TIME, Line, ReproduceHead, UnitFile, read_units
from selfdraft.bench.reproduce.page import Result, page
from selfdraft.bench.reproduce.published import published
from selfdraft.bench.reproduce.recipe import Experiment, Found, Recipe, Section, Unit
from selfdraft.bench.reproduce.recipes import RECIPES, recipe
from selfdraft.bench.reproduce.report import as_text, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import Scale
from selfdraft.bench.reproduce.tasks import TASKS, Tasks
from selfdraft.bench.reproduce.workbench import Workbench, num_compared, num_different
from selfdraft.bench.search.learning import School
from selfdraft.cli.main import main
from selfdraft.errors import ModelError, OptionError

pytestmark = pytest.mark.xdist_group("reproduce")

SMALL = Scale(prompts=1, learned_prompts=1, tokens=6, lesson_seconds=1.0, lesson_tokens=8, is_quick=True)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})


def prompts_of(*ids: str, domain: str = "summarise") -> list[BenchPrompt]:
    return [BenchPrompt(name, domain, f"abc {name} abc") for name in ids]


PROMPTS = [*prompts_of("s1", "s2"), *prompts_of("c1", "c2", domain="code")]


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    engine = Engine(pico("llama"), letter_tokenizer(), profile=None)
    return Workbench(engine, PROMPTS, SMALL, tmp_path / "lessons")


def speeds(num_prompts: int = 8, **ways: tuple[float, float, float]) -> dict[str, Any]:
    """What a unit found, with nothing but speed-ups."""
    return {
        name: {
            "total": {"speedup": dict(zip(("value", "low", "high"), known, strict=True)), "num_prompts": num_prompts}
        }
        for name, known in ways.items()
    }


# ---------------------------------------------------------------------------------------------------- a whole recipe


def test_a_recipe_from_end_to_end(bench: Workbench, tmp_path: Path) -> None:
    file = tmp_path / "result.jsonl"
    work = Reproduction(bench, UnitFile(file, HEAD))
    work.run([asd.RECIPE])
    assert not work.has_difference
    head, lines = read_units(file)
    sections = {one.experiment.id: one for one in shown([asd.RECIPE], lines, head)}
    assert set(sections) == {"table-1", "table-3", "table-4", "table-5"}
    for one in sections.values():
        assert one.section.ours[0].rows
        text = as_text(one, head)
        assert f"(pico, a CPU, float32, prompts of ours, {one.date})" in text
        assert published("asd").tables[one.experiment.id].source in text
    assert "there are no prompts of XSum" in as_text(sections["table-3"], head)
    assert [row[0] for row in sections["table-5"].section.ours[0].rows] == list(asd.RULES)
    assert {row[1] for row in sections["table-4"].section.ours[0].rows} == {"D&V", "ASD"}
    assert "draft & verify tried" in as_text(sections["table-4"], head)
    assert [effort.paper for effort in sections["table-4"].section.efforts] == [164, 39600]


def test_what_was_measured_is_not_measured_again(bench: Workbench, tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "result.jsonl"
    Reproduction(bench, UnitFile(file, HEAD)).run([asd.RECIPE], ["table-5"])
    before = file.read_text()
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("it was there"))
    Reproduction(bench, UnitFile(file, HEAD)).run([asd.RECIPE], ["table-5"])
    assert file.read_text() == before


def test_similarities_of_sub_layers(bench: Workbench) -> None:
    found = asd.cosines(bench.engine.runner, [1, 2, 3, 4])
    assert found.shape == (2 * bench.engine.runner.num_layers,)
    assert bool((found.abs() <= 1 + 1e-6).all())


# ------------------------------------------------------------------------------------------------------ the machinery


def an_experiment(units: Sequence[Unit], name: str = "table-1") -> Experiment:
    def show(found: Found) -> Section:
        return Section([Table("", ["unit"], [[unit] for unit in found.units])])

    return Experiment(name, "a test", lambda bench: units, show)


def run(bench: Workbench, file: UnitFile, *experiments: Experiment, seconds: float | None = None) -> Reproduction:
    work = Reproduction(bench, file, seconds)
    work.run([Recipe("asd", experiments)])
    return work


def stop() -> dict[str, Any]:
    raise KeyboardInterrupt


def fail() -> dict[str, Any]:
    raise ModelError("no room")


def test_an_interrupted_run_keeps_what_it_has(bench: Workbench, tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    work = run(bench, UnitFile(path, HEAD), an_experiment([Unit("a", lambda: {"x": 1}), Unit("b", stop)]))
    assert work.is_interrupted
    again = UnitFile(path, HEAD)
    run(bench, again, an_experiment([Unit("a", stop), Unit("b", lambda: {"x": 2})]))
    assert [line.values for line in again.lines.values()] == [{"x": 1}, {"x": 2}]
    assert [line.unit for line in read_units(path)[1]] == ["a", "b"]


def test_a_line_that_was_cut_off_is_measured_again(bench: Workbench, tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    run(bench, UnitFile(path, HEAD), an_experiment([Unit("a", lambda: {"x": 1}), Unit("b", lambda: {"x": 2})]))
    path.write_bytes(path.read_bytes()[:-9])
    assert [key[2] for key in UnitFile(path, HEAD).lines] == ["a"]


def test_another_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    UnitFile(path, HEAD)
    other = ReproduceHead({**HEAD.question, "model": "another"}, {})
    with pytest.raises(OptionError, match=r'model: "pico", now "another".*--again'):
        UnitFile(path, other)
    assert UnitFile(path, other, is_new=True).head == other


def test_what_cannot_be_had_is_told(bench: Workbench) -> None:
    file = UnitFile(None, HEAD)
    run(bench, file, an_experiment([Unit("a", missing="no such model"), Unit("b", fail), Unit("c", dict)]))
    (one,) = shown([Recipe("asd", [an_experiment([])])], list(file.lines.values()), HEAD)
    text = as_text(one, HEAD)
    assert "not to be had, a: no such model" in text
    assert "not to be had, b: no room" in text
    assert list(one.found.units) == ["c"]


def test_time_is_shared_among_experiments(bench: Workbench) -> None:
    file = UnitFile(None, HEAD)
    units = [Unit("a", dict), Unit("b", dict), Unit("c", missing="costs nothing")]
    run(bench, file, an_experiment(units), an_experiment(units, "table-3"), seconds=0.0)
    reasons = {key[2]: line.missing for key, line in file.lines.items()}
    assert reasons == {"a": NO_TIME, "b": NO_TIME, "c": "costs nothing"}


def test_what_no_time_was_left_for_is_measured_by_the_same_command(bench: Workbench, tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    run(bench, UnitFile(path, HEAD), an_experiment([Unit("a", dict)]), seconds=0.0)
    assert [line.missing for line in read_units(path)[1]] == [NO_TIME]
    run(bench, UnitFile(path, HEAD), an_experiment([Unit("a", lambda: {"x": 1})]))
    assert [(line.missing, line.values) for line in read_units(path)[1]] == [(None, {"x": 1})]


def test_units_that_were_not_begun_are_told_apart(bench: Workbench) -> None:
    file = UnitFile(None, HEAD)
    run(bench, file, an_experiment([Unit("a", dict), Unit("b", dict), Unit("c", missing="no such model")]), seconds=0.0)
    (one,) = shown([Recipe("asd", [an_experiment([])])], list(file.lines.values()), HEAD)
    text = as_text(one, HEAD)
    assert f"ours (pico, a CPU, float32, prompts of ours, {one.date}): nothing was measured" in text
    assert "* not measured, no time was left for it (the same command goes on): a, b" in text
    assert "* not to be had, c: no such model" in text


def test_only_what_was_asked_for_is_shown(bench: Workbench) -> None:
    file = UnitFile(None, HEAD)
    first = an_experiment([Unit("a", dict)])
    second = Experiment("table-3", "of the same units", first.units, first.show, shares="table-1")
    run(bench, file, first, second)
    found = shown([Recipe("asd", [first, second])], list(file.lines.values()), HEAD, ["table-3"])
    assert [one.experiment.id for one in found] == ["table-3"]


def test_outputs_are_counted_once() -> None:
    counts = {"equal": 3, "tie": 1, "different": 0}
    way = {"total": counts, "domains": {"code": counts}}
    assert num_compared({"unit": {"swift": way, "off": way}, "more": [way]}) == 12


def test_what_could_not_be_learned_is_not_tried_again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(School, "_find", lambda self, lesson, prompts: tried.append(lesson.name) or fail())
    for _ in range(2):
        learned = bench.learn("swift", {"strategy": "swift"}, PROMPTS)
        assert "no room" in learned.facts["error"]
        assert not learned.values
    assert tried == ["swift"]


def test_a_difference_is_seen_wherever_it_stands() -> None:
    assert num_different({"a": [{"total": {"different": 0}}]}) == 0
    assert num_different({"a": [{"total": {"different": 2}}]}) == 2


# ------------------------------------------------------------------------------------------------------------- claims


def test_claims_about_two_speeds() -> None:
    found = Found({"u": speeds(a=(1.5, 1.4, 1.6), b=(1.2, 1.1, 1.3), c=(1.25, 1.2, 1.5))})
    assert is_faster("", found, ("u", "a"), ("u", "b")).holds is True
    assert is_faster("", found, ("u", "b"), ("u", "a")).holds is False
    assert is_faster("", found, ("u", "a"), ("u", "c")).holds is None
    assert is_faster("", found, ("u", "a"), ("u", "missing")).holds is None
    few = Found({"u": speeds(1, a=(1.5, 1.5, 1.5), b=(1.2, 1.2, 1.2))})
    assert is_faster("", few, ("u", "a"), ("u", "b")).holds is None
    assert pays("", few, "u", "a").holds is None
    slow = Found({"u": speeds(slow=(0.8, 0.7, 0.9), unsure=(1.1, 0.9, 1.3), fast=(1.2, 1.1, 1.3))})
    assert [pays("", slow, "u", name).holds for name in ("slow", "unsure", "fast")] == [False, None, True]


def test_who_keeps_up() -> None:
    def holds(own: tuple[float, float, float], other: tuple[float, float, float], num_prompts: int = 8) -> bool | None:
        return asd.keeps_up("", Found({"u": speeds(num_prompts, **{"ASD": own, "D&V": other})}), "u").holds

    paper = (1.495, 1.49, 1.50)
    assert holds((1.6, 1.55, 1.65), paper) is True
    assert holds((1.443, 1.43, 1.45), paper) is True  # as published
    assert holds((1.3, 1.25, 1.35), paper) is False
    assert holds((1.4, 1.1, 1.7), paper) is None  # too wide to tell
    assert holds((1.443, 1.43, 1.45), paper, num_prompts=2) is None


def test_similarities_are_judged_by_enough_prompts() -> None:
    def holds(num_prompts: int) -> list[bool | None]:
        seconds = {"attention_seconds": 2e-4, "mlp_seconds": 1e-4}
        values = {"attention": [0.5, 0.9, 0.97], "mlp": [0.7, 0.8, 0.75], **seconds, "num_prompts": num_prompts}
        return [trend.holds for trend in asd.show_similarities(Found({"cnn-dm": values})).trends]

    assert holds(4) == [True, True, True, True]
    assert holds(1) == [None, None, None, True]


# -------------------------------------------------------------------------------------------------------------- tasks


def test_data_sets_are_known_by_their_ids_else_by_their_domain() -> None:
    real = [*prompts_of("cnndm_1", "cnndm_2", "cnndm_3"), *prompts_of("xsum_1", "xsum_2")]
    task = Tasks([*real, *PROMPTS], 2, 1, seed=0).find("cnn-dm")
    assert task is not None
    assert {one.id for one in (*task.measured, *task.learned)} == {"cnndm_1", "cnndm_2", "cnndm_3"}
    assert not set(task.measured) & set(task.learned)
    assert task.label == "CNN/DM"
    ours = Tasks(PROMPTS, 8, 8, seed=0).find("cnn-dm")
    assert ours is not None
    assert ours.label == "CNN/DM (summarise)"
    assert (len(ours.measured), len(ours.learned)) == (1, 1)
    assert Tasks(PROMPTS, 1, 1, seed=0).find("xsum") is None
    with pytest.raises(OptionError, match="xsum"):
        Tasks(PROMPTS, 1, 1, seed=0).find("xsun")
    assert all(Tasks.why_missing(name) for name in TASKS)


# -------------------------------------------------------------------------------------------------- published numbers


@pytest.mark.parametrize("name", RECIPES)
def test_published_numbers_are_whole(name: str) -> None:
    paper = published(name)
    assert paper.arxiv
    known = {experiment.id for experiment in recipe(name).experiments}
    assert set(paper.tables) <= known
    for table in paper.tables.values():
        assert table.source
        assert all(len(row) == len(table.columns) for row in table.rows)


# --------------------------------------------------------------------------------------------------------- the page


def test_a_page_of_results(tmp_path: Path) -> None:
    line = Line("asd", "table-5", "cnn-dm", speeds(**{"all three": (1.2, 1.1, 1.3)}), date="2026-01-02")
    asked = "selfdraft reproduce all MODEL --quick --experiments table-5 table-1 --seed 2"
    gpu = ReproduceHead(HEAD.question, {"device_name": "a GPU", "command": asked})
    results = [Result("cpu.jsonl", HEAD, [line]), Result("gpu.jsonl", gpu, [line])]
    text = page(results, {"asd": "It held."}, None, "selfdraft results cpu.jsonl gpu.jsonl")
    assert "## asd\n\nDraft on the Fly" in text
    assert "It held." in text
    assert text.count("| all three | 1.20x |") == 2
    assert text.count("**published** (table 5") == 1
    assert re.search(r"\| \[asd\]\(#asd\) \| pico, a GPU \| 0 \| 0 \| \d \|", text)
    assert "\nselfdraft reproduce asd MODEL --quick --seed 2 --experiments table-5\n" in text
    assert "swift" not in text


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    pico("llama").save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": one.id, "domain": one.domain, "prompt": one.text}) for one in PROMPTS]
    prompts.write_text("\n".join(lines) + "\n")
    output = tmp_path / "result.jsonl"
    few = ["--quick", "--prompts", str(prompts), "--max-new-tokens", "4", "--lesson-seconds", "1"]
    command = ["reproduce", "asd", str(folder), *few, "--experiments", "table-5", "--output", str(output)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "== asd table-5: its three rules" in said
    assert "published (table 5" in said
    assert main(["results", str(output), "--output", str(tmp_path / "page.md")]) == 0
    written = (tmp_path / "page.md").read_text()
    assert "selfdraft reproduce asd model --quick --experiments table-5 --prompts prompts.jsonl" in written
    assert str(tmp_path) not in written.replace(f"selfdraft results {output}", "").replace(
        str(tmp_path / "page.md"), ""
    )
    assert main(["results", str(output), str(tmp_path / "result.jsonl")]) == 2
    assert "named twice" in capsys.readouterr().err
    head_alone = tmp_path / "head.jsonl"
    head_alone.write_text(output.read_text().splitlines(keepends=True)[0])
    assert main(["results", str(head_alone)]) == 2
    assert "has nothing that was measured" in capsys.readouterr().err
    assert main(["reproduce", "asd", str(folder), "--experiments", "table-9"]) == 2
    assert "table-9" in capsys.readouterr().err
    assert main(["reproduce", "swfit"]) == 2
    assert "swift" in capsys.readouterr().err


def test_claims_need_some_sets_of_draft_and_verify() -> None:
    def section(num_sets: int) -> Section:
        searched = {"skip": "a1", "num_steps": num_sets, "seconds": 1.0, "tokens_per_second": 9.0, "plain": 10.0}
        ways = speeds(**{"ASD": (1.5, 1.4, 1.6), "D&V": (1.2, 1.1, 1.3)})
        show = next(one.show for one in asd.RECIPE.experiments if one.id == "table-4")
        return show(Found({"T=0.0 humaneval": {**ways, "searched": searched}}))

    assert [trend.holds for trend in section(asd.FEW_SETS).trends] == [True, True]
    few = section(asd.FEW_SETS - 1)
    assert [trend.holds for trend in few.trends] == [None, True]  # plain decoding needs no search
    assert few.trends[0].because == "too few sets tried: 9"
    assert few.ours[0].rows == section(asd.FEW_SETS).ours[0].rows
    assert "0.90 times the speed of plain decoding" in few.notes[0]


def test_rules_tell_acceptance_and_cost() -> None:
    unit = speeds(**{"all three": (1.2, 1.1, 1.3)})
    unit["all three"]["total"] |= {"acceptance_rate": 0.35, "cost_measured": 0.871}
    (table,) = asd.show_ablation(Found({"cnn-dm": unit})).ours
    assert table.header[-2:] == ["accepted", "draft cost"]
    assert table.rows == [["all three", "1.20x", "-", "-", "0.35", "0.87"]]
