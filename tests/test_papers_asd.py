"""`selfdraft reproduce asd`: the recipe from end to end, and its claims by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from papers import HEAD, SMALL, check, measured, new_bench, outcomes, run
from selfdraft.bench.papers import asd
from selfdraft.bench.papers.experiment import Found
from selfdraft.bench.papers.page import as_text, sections
from selfdraft.bench.papers.run import Line, UnitFile

SECONDS = {"attention": 1e-3, "MLP": 2e-3}
SEARCHED = {"skip": "a1", "tokens_per_second": 1.0, "plain": 2.0, "optimise_seconds": 1.0}


@pytest.mark.full
def test_from_end_to_end(tmp_path: Path) -> None:
    bench = new_bench(tmp_path / "fits", scale=replace(SMALL, fit_seconds=3.0))
    found = run(asd.RECIPE, bench, tmp_path / "result.jsonl")
    assert list(found) == ["table-1", "table-3", "table-4", "table-5"]
    check(asd.RECIPE, found)
    assert [row[0] for row in found["table-4"].tables[0].rows] == ["D&V", "ASD", "ASD, calibrated"]
    tasks = [f"HumanEval (code), T = {told}" for told in ("0.0", "0.6, top-p 0.95")]
    assert found["table-4"].tables[0].header == ["method", *tasks]
    assert [row[0] for row in found["table-5"].tables[0].rows] == list(asd.RULES)
    assert "there are no prompts of XSum" in found["table-3"].found.missing["T=0.0 xsum"]
    assert "tried" in next(iter(found["table-4"].experiment.remarks(found["table-4"].found)))


def test_similarities_of_sub_layers(tmp_path: Path) -> None:
    runner = new_bench(tmp_path).engine.runner
    found = asd.cosines(runner, [1, 2, 3, 4])
    assert found.shape == (2 * runner.num_layers,)
    assert bool((found.abs() <= 1 + 1e-6).all())


def test_an_arm_that_cannot_run_says_why(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    task = bench.task("humaneval")
    assert task
    values = bench.measure(task, {"ASD": {"strategy": "fixed", "settings": {"fixed": {"skip": "a99"}}}})
    file = UnitFile(None, HEAD)
    file.add(Line("asd", "table-4", "T=0.0 humaneval", {**values, "searched": {**SEARCHED, "num_steps": 20}}))
    (section,) = sections([asd.RECIPE], list(file.lines.values()), HEAD)
    assert "ASD could not run (HumanEval (code)): the skip set names attention layer 99" in as_text(section, HEAD)


def test_claims_about_similarities() -> None:
    def judged(attention: list[float], mlp: list[float], num_prompts: int = 3) -> list[bool | None]:
        kinds = {"attention": [attention] * num_prompts, "MLP": [mlp] * num_prompts}
        return outcomes(asd.RECIPE, "table-1", {"cnn-dm": {"cosines": kinds, "seconds": SECONDS}})

    assert judged([0.9, 0.99, 0.99], [0.9, 0.9, 0.95]) == [True, True, True]
    assert judged([0.8, 0.8, 0.81], [0.7, 0.9, 0.9]) == [False, False, False]
    assert judged([0.9, 0.99, 0.99], [0.9, 0.9, 0.95], 2) == [None] * 3, "too few prompts"
    cosines = {"attention": [[0.5, 1.0]], "MLP": [[0.9, 0.9]]}
    table = asd.RECIPE.experiments[0].tables[0](Found({"cnn-dm": {"cosines": cosines, "seconds": SECONDS}}))
    assert table.rows[0] == ["minimum similarity", "0.500", "0.900"]
    assert table.rows[-1] == ["mean time (ms)", "1.0000", "2.0000"]


@pytest.mark.parametrize(
    ("experiment", "speed", "num_sets", "expected"),
    [
        ("table-3", 0.97, 10, True),  # keeps up: slower by less than 5 %
        ("table-3", 0.93, 10, False),
        ("table-4", 0.97, 10, False),
        ("table-4", 1.02, 10, True),
        ("table-4", 1.02, 9, None),  # draft & verify has hardly searched
    ],
)
def test_claims_against_draft_and_verify(experiment: str, speed: float, num_sets: int, expected: bool | None) -> None:
    values = {"measured": measured({"off": 0.9, "D&V": 1.0, "ASD": speed}), "searched": {"num_steps": num_sets}}
    assert outcomes(asd.RECIPE, experiment, {"T=0.0 cnn-dm": values}) == [expected, True]
