"""What all reproductions share: how much they do, how models are asked, what they would take, and going on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from papers import HEAD, SMALL, new_bench
from selfdraft.bench.papers.claims import is_above
from selfdraft.bench.papers.experiment import Experiment, MainTable, Recipe, Values
from selfdraft.bench.papers.plan import USUAL_METHODS, minutes, plan, plan_table
from selfdraft.bench.papers.run import NO_TIME, Reproduction, UnitFile, read_units
from selfdraft.bench.papers.workbench import WHOLE, Task, Workbench, each, why_missing
from selfdraft.cli.main import main
from selfdraft.errors import DownloadError
from selfdraft.measure.estimate import MANY_PROMPTS, Estimate
from selfdraft.measure.passes import CONTEXT

METHODS = {"one": {"strategy": "uniform"}}


def measure(bench: Workbench, task: Task) -> Values:
    return bench.measure(task, METHODS)


def wants_more(bench: Workbench, task: Task) -> Values:
    return bench.fit("fit", METHODS["one"], task.fitting).values["what it found"]


MAIN = Experiment("table-1", each(["humaneval"], measure), [])
OTHER = Experiment("table-2", each(["alpaca"], wants_more), [])
SHOWN_AGAIN = Experiment("figure-1", MAIN.units, [], shares="table-1")
RECIPE = Recipe("some", [MAIN, OTHER, SHOWN_AGAIN], main={"table-1": MainTable(512)}, shots={"humaneval": 2})


def test_main_tables_have_a_scale_of_their_own() -> None:
    scales = {experiment.id: WHOLE.of(RECIPE, experiment) for experiment in RECIPE.experiments}
    assert [(one.prompts, one.tokens, one.runs) for one in scales.values()] == [(16, 512, 3), (8, 256, 1), (16, 512, 3)]
    asked = replace(WHOLE, tokens=64, asked=("tokens",)).of(RECIPE, MAIN)
    assert (asked.prompts, asked.tokens, asked.runs) == (16, 64, 3)
    assert SMALL.of(RECIPE, MAIN) == SMALL


def test_base_models_are_asked_after_answered_examples(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, {"code": ["ab", "cd:", "ef", "gh", "ij"]}, replace(SMALL, prompts=2))
    bench.prompts = [replace(prompt, reference="xy") for prompt in bench.prompts]
    task = bench.for_experiment(RECIPE, MAIN).task("humaneval")
    plain = bench.task("humaneval")
    assert task
    assert plain
    texts = [bench.engine.tokenizer.decode(prompt.tokens) for prompt in (*task.measured, *task.fitting)]
    assert all(text.count("xy") == 2 for text in texts)
    assert len({text[-2:] for text in texts}) == 3, "and end with the question"
    other = bench.for_experiment(replace(RECIPE, shots={"humaneval": 1}), MAIN).task("humaneval")
    assert other
    assert bench.engine.tokenizer.decode(other.measured[0].tokens).count("xy") == 1, "another paper has other shots"
    assert all(prompt.text for prompt in plain.measured)


def test_without_answers_there_are_no_examples(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, {"code": ["ab", "cd:", "ef"]})
    asked, raw = (bench.for_experiment(replace(RECIPE, shots={"humaneval": shots}), MAIN) for shots in (2, 0))
    assert asked.task("humaneval") == bench.task("humaneval"), "so they are asked as they are"
    task = raw.task("humaneval")
    assert task
    assert all(prompt.tokens and not prompt.text for prompt in task.measured)


def test_a_plan_counts_what_would_be_measured(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, scale=replace(SMALL, prompts=2, tokens=8, is_quick=False, asked=("prompts", "tokens")))
    planned = list(plan(bench, [RECIPE], [], []))
    each_token = bench.latency.at(CONTEXT).plain
    expected = 2 * 2 * 8 * 3 * each_token
    other = USUAL_METHODS * 2 * 8 * each_token + SMALL.fit_seconds
    rows = plan_table(planned).rows
    assert [row[0] for row in rows] == ["some table-1", "some table-2", "some figure-1", "all"]
    assert [row[1] for row in rows] == ["1", "1", "0", ""]
    assert [row[2] for row in rows] == [f"{seconds / 60:.1f}" for seconds in (expected, other, 0, expected + other)]
    assert minutes(planned) == pytest.approx((expected + other) / 60)
    (rest,) = plan(bench, [RECIPE], ["table-1"], [("some", "table-1", "humaneval")])
    assert (rest.num_units, rest.minutes) == (0, 0.0)


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    """What cannot be had is not: there are no prompts of it."""
    told, gone = [], Experiment("table-3", each(["nq"], measure), [])

    def fails(bench: Workbench, task: Task) -> Values:
        told.append(task.name)
        if len(told) == 1:
            time.sleep(0.01)
            raise DownloadError("not now")
        return measure(bench, task)

    recipe = Recipe("some", [Experiment("table-1", each(["humaneval"], fails), []), gone])
    file, bench = tmp_path / "result.jsonl", new_bench(tmp_path)
    for first in (("not now", False), (None, True)):
        Reproduction(bench, UnitFile(file, HEAD)).run([recipe])
        found = {line.unit: (line.missing, line.is_settled) for line in read_units(file)[1]}
        assert found == {"humaneval": first, "nq": (why_missing("nq"), True)}
    Reproduction(bench, UnitFile(file, HEAD)).run([recipe])
    assert len(told) == 2, "what was measured is not measured again"


def test_a_drafter_is_for_papers_that_have_one(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "asd", folder, "--quick", "--drafter", "model"]) == 2
    assert "--drafter says nothing about asd" in capsys.readouterr().err


def test_what_is_inconclusive_says_how_many_prompts_would_tell() -> None:
    def because(*numbers: float) -> str:
        judgement = is_above("it is faster", Estimate(*numbers, count=10), 1.0, "it", unit="x")
        assert judgement
        return judgement.because

    assert because(1.1, 0.9, 1.3) == "it 1.10x [0.90, 1.30]; about 40 prompts would tell"
    assert because(0.9, 0.8, 1.2).endswith("; about 90 prompts would tell")
    assert because(1.0, 0.9, 1.1).endswith(f"; {MANY_PROMPTS:,} prompts would not tell")
    assert because(1.1, 1.05, 1.2) == "it 1.10x [1.05, 1.20]"


NAMES = ("cnndm", "xsum", "gsm8k", "MATH", "tinystories", "wmt", "spider", "alpaca", "humaneval", "mbpp")
SMALLEST = ["--quick", "--per-task", "1", "--max-new-tokens", "8", "--learn", "8", "--fit-seconds", "0.5"]


@pytest.mark.full
def test_all_of_it_goes_on_after_ten_kills(tmp_path: Path, folder: str) -> None:
    """Wherever they meet it: while it starts, fits, measures or writes. What was kept stays as it is."""
    draw, output = random.Random(0), tmp_path / "all.jsonl"
    lines = [{"id": f"{name}-{n}", "prompt": f"{name}{n}" * 2, "reference": "abc"} for name in NAMES for n in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"domain": "a", **line}) for line in lines))
    command = [sys.executable, "-m", "selfdraft", "reproduce", "all", folder, *SMALLEST, "--prompts", "prompts.jsonl"]
    environment = {**os.environ, "SELFDRAFT_HOME": str(tmp_path / "home")}

    def kept() -> list[str]:
        """Whole lines; the first is the head."""
        return [] if not output.exists() else output.read_text().rpartition("\n")[0].split("\n")[1:]

    before: list[str] = []
    for _ in range(10):
        wanted = draw.randrange(7)
        with subprocess.Popen([*command, "--output", output.name], cwd=tmp_path, env=environment) as process:
            while len(kept()) < len(before) + wanted and process.poll() is None:
                time.sleep(0.02)
            time.sleep(draw.uniform(0.0, 1.0 if wanted else 8.0))
            process.kill()
        assert process.returncode == -signal.SIGKILL, "it was not over"
        assert kept()[: len(before)] == before
        before = kept()
    assert (
        subprocess.run([*command, "--output", output.name], cwd=tmp_path, env=environment, check=False).returncode == 0
    )
    assert kept()[: len(before)] == before
    _, units = read_units(output)
    assert len({unit.key for unit in units}) == len(units) > 90
    assert [unit.key for unit in units if unit.missing == NO_TIME] == []
