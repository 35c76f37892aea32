"""benchmarks/selection.py: its tables are complete, print again from the file, and a wrong output is an error."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from learned import latency, profile
from pico import NUM_LAYERS, letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.prompts import BenchPrompt, split
from selfdraft.bench.selection import calibration, turns
from selfdraft.bench.selection.held_out import answer
from selfdraft.bench.selection.methods import table_methods
from selfdraft.bench.selection.report import as_markdown
from selfdraft.bench.selection.run import has_difference
from selfdraft.bench.selection.sums import Prices, Sums, figures
from selfdraft.engine import engine as engine_module
from selfdraft.errors import OptionError
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.registry import check_settings
from selfdraft.types import Generation
from tape import TapeRecorder

pytestmark = pytest.mark.xdist_group("selection_bench")  # what they measure is measured once

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "selection.py"
LINES = [("code", "abcabcabc"), ("math", "1+2=3"), ("code", "xyzxyz"), ("math", "7*8=56")]
STRATEGIES = ["uniform 0.25", "early-exit 3", "asd", "clasp", "knapspec", "prune", "prune always"]
FEW = ["--per-domain", "1", "--calibration", "1", "--max-new-tokens", "12", "--calibration-tokens", "24"]
LONG = ["--contexts", "64", "48", "--context-tokens", "10", "--context-prompts", "1"]
UNUSUAL = {"confidence": {"threshold": 0.3}}
Run = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("selection_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    """Seconds at which drafting pays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "measure", lambda *arguments: latency())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    lines = [json.dumps({"domain": domain, "prompt": prompt}) for domain, prompt in LINES]
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return path


def run_script(script: ModuleType, folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit code, standard output)."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = script.main([str(folder), "--prompts", str(folder / "prompts.jsonl"), *FEW, *arguments])
    return status, output.getvalue()


@pytest.fixture(scope="module")
def run(script: ModuleType, folder: Path) -> Run:
    """(standard output, document) of one whole run."""
    file = folder / "result.json"
    variant = ["--held-out-tokens", "10", "--variant", "mine: strategy=fixed fixed.skip=a1,m2-3"]
    files = ["--output", str(file), "--profile", str(folder / "profile.json")]
    status, output = run_script(script, folder, *LONG, *variant, *files)
    assert status == 0
    return output, json.loads(file.read_text())


def test_the_tables_are_complete(run: Run) -> None:
    output, document = run
    assert document["is_complete"]
    assert document["prompts"] == {"code": 1, "math": 1}
    assert list(document["tables"]["A"]) == [*STRATEGIES, "mine"]
    ways = {row["name"]: row for row in document["ways"]}
    own = [name for name in ways if name.endswith("own pairing")]
    assert own == [f"{name}, own pairing" for name in ("asd", "knapspec", "prune", "prune always")]
    assert list(ways) == ["off", *STRATEGIES, "mine", *own]
    for name, row in ways.items():
        total = row["total"]
        assert total["num_tokens"] == 24 == sum(part["num_tokens"] for part in row["domains"].values())
        assert total["equal"] == (0 if name == "off" else 2)
        assert total["speedup"] > 0
        assert sum(plan["num_rounds"] for plan in row["plans"]) == round(24 / total["mean_generated_length"])
    assert all(text in output for text in ("Table A", "Table B", "frontier", "Long texts", "match >= 0.74"))
    assert output.count("| early-exit 3 |") == 2 * 3, "all and each domain, in both tables"


def test_costs_follow_from_what_is_skipped(run: Run) -> None:
    totals = {row["name"]: row["total"] for row in run[1]["ways"]}
    mine = totals["mine"]
    assert (mine["skipped_attention"], mine["skipped_mlp"]) == (1, 2)
    assert 0.5 < mine["cost_by_weights"] < 1
    assert mine["cost_by_seconds"] == pytest.approx((4e-3 + 6e-3 + 5e-4) / 15.5e-3, rel=0.05)  # a short text
    assert totals["off"]["drafting_share"] == 0
    assert totals["off"]["acceptance_rate"] is None
    assert totals["off"]["control"] >= 1, "without its planning, which is hardly any"
    assert mine["control"] is None
    assert totals["uniform 0.25"]["drafting_share"] > 0.5


def test_the_frontier_is_judged_on_texts_it_was_not_fitted_on(run: Run) -> None:
    document = run[1]
    assert document["calibration"]["num_texts"] == 2
    assert document["calibration"]["num_tokens"] == 24
    assert set(document["calibration"]["seconds"]) == {"latency", "texts", "fit"}
    held_out = document["held_out"]
    assert held_out["num_tokens"] == 2 * 10
    first, *others = held_out["points"]
    assert (first["skip"], first["match"], first["cost_by_weights"]) == ("", 1.0, 1.0)
    assert [point["attention"] + point["mlp"] for point in others] == list(range(1, len(others) + 1))
    assert all(set(point["domains"]) == {"code", "math"} for point in others)
    costs = [point["cost_by_weights"] for point in held_out["points"]]
    assert costs == sorted(costs, reverse=True)


def test_long_texts(run: Run) -> None:
    contexts = run[1]["contexts"]
    assert [context["length"] for context in contexts] == [48, 64]
    for context in contexts:
        assert context["weights"]["attention"] == 1
        assert context["weights"]["mlp"] in (1, 2)
        names = [row["name"] for row in context["ways"]]
        assert names[:3] == ["off", "knapspec", "knapspec bound"]
        assert all(row["total"]["num_tokens"] == 10 for row in context["ways"])


def test_circumstances_and_options(run: Run) -> None:
    document = run[1]
    assert {"device_name", "dtype", "threads", "torch", "transformers", "selfdraft", "commit", "date"} <= set(document)
    assert document["model"] == "pico-llama"
    assert document["options"]["prompts"] == ["prompts.jsonl"]
    assert document["options"]["per_domain"] == 1
    for row in document["ways"]:
        check_settings(row["method"].get("settings", {}))


def test_the_table_prints_again(script: ModuleType, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--table", str(folder / "result.json")]) == 0
    assert capsys.readouterr().out == run[0]


def test_a_profile_is_read_again_and_time_may_be_up(script: ModuleType, folder: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "second.json"
    files = ["--output", str(file), "--profile", str(folder / "profile.json")]
    status, output = run_script(script, folder, "--part", "tables", "--seconds", "0", *files)
    assert status == 0
    document = json.loads(file.read_text())
    assert document["calibration"]["source"] == "profile.json"
    assert [point["skip"] for point in document["held_out"]["points"]] == [
        point["skip"] for point in run[1]["held_out"]["points"]
    ]
    assert document["prompts"] == {"code": 1}, "the first prompt is measured in any case"
    assert not document["is_complete"]
    assert "cut short" in output


def test_a_wrong_output_is_an_error(
    script: ModuleType, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_arm = turns.Arm.run

    def run_wrongly(arm: turns.Arm, *call: Any) -> Generation:
        found = run_arm(arm, *call)
        return replace(found, tokens=(*found.tokens[:-1], 0)) if arm.name == "asd" else found

    monkeypatch.setattr(turns.Arm, "run", run_wrongly)
    file = tmp_path / "wrong.json"
    files = ["--output", str(file), "--profile", str(folder / "profile.json")]
    status, output = run_script(script, folder, "--part", "tables", "--seconds", "0", *files)
    assert status == 1
    assert has_difference(json.loads(file.read_text()))
    assert "asd: different in " in output
    assert "1 different" in output


def test_another_model_needs_another_profile(
    script: ModuleType, folder: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((folder / "profile.json").read_text())
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps({**content, "key": {**content["key"], "fingerprint": "llama-other"}}))
    status, _ = run_script(script, folder, "--profile", str(foreign))
    assert status == 2
    assert "it was made for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-domain", "2"], "there are 2 prompts of the domain 'code', but 2 and 1 others are asked for"),
        (["--part", "contexts"], "--part contexts needs lengths"),
        (["--contexts", "20", "--context-tokens", "20"], "cannot measure behind 20 tokens"),
        (["--contexts", "4096"], "to 256, what the model's context holds"),
        (["--variant", "mine"], "cannot read --variant 'mine'"),
    ],
)
def test_mistakes_are_said(
    script: ModuleType, folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = run_script(script, folder, *arguments)
    assert status == 2
    assert message in capsys.readouterr().err


def test_passes_that_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: warming up records, and what is recorded while measuring is told."""
    monkeypatch.setattr(engine_module, "make_runner", lambda model, *_: GraphRunner(model, make_recorder=TapeRecorder))
    engine = Engine(pico("llama"), profile=profile())
    prices = Prices(latency(is_recorded=True), ((0.1, 0.1),) * NUM_LAYERS)
    methods = {"clasp": {"strategy": "clasp"}, "uniform": {"strategy": "uniform", "settings": UNUSUAL}}
    ways = turns.Turns(engine, profile(), methods, prices)
    ways.warm_up([[3, 1, 4]], 8)
    assert engine.runner.graphs.num_captures > 0
    ways.measure("first", "code", [3, 1, 4, 1, 5], 8)
    rows = {row["name"]: row["total"] for row in ways.rows()}
    assert rows["clasp"]["equal"] == rows["uniform"]["equal"] == 1
    assert rows["uniform"]["capture_seconds"] == 0


def test_each_way_learns_for_itself() -> None:
    engine = Engine(pico("llama"), profile=profile())
    methods = {name: {"strategy": "knapspec", "lookahead": name} for name in ("fixed", "confidence")}
    prices = Prices(latency(), ((0.1, 0.1),) * NUM_LAYERS)
    ways = turns.Turns(engine, profile(), methods, prices)
    strategies = [arm.engine._method(arm.method).strategy for arm in ways.arms]
    assert strategies[1] is not strategies[2]
    assert {id(arm.engine.runner) for arm in ways.arms} == {id(engine.runner)}
    ways.warm_up([[3, 1, 4]], 8)
    assert ways.arms[1].engine._method(methods["fixed"]).strategy is not strategies[1], "what warming up taught is gone"


def test_a_way_that_never_drafts_tells_how_much_the_device_wavers() -> None:
    plain = Sums(num_tokens=10, decode_seconds=2.0)
    found = figures(Sums(num_tokens=10, decode_seconds=3.0, planning_seconds=0.5), plain)
    assert (found["speedup"], found["control"]) == (pytest.approx(2 / 3), pytest.approx(0.8))


def test_what_is_alike_is_measured_once() -> None:
    methods, rows = table_methods(NUM_LAYERS, ["tree: strategy=fixed fixed.skip=a1 tree=siblings"])
    assert rows["B"]["clasp"] == "clasp"
    assert rows["B"]["prune"] == "prune, own pairing"
    assert rows["B"]["tree"] == "tree"
    assert methods["prune"]["tree"] == "chain"
    assert methods["tree"]["tree"] == "siblings"


def test_what_is_measured_was_not_calibrated_on(script: ModuleType, folder: Path) -> None:
    arguments = [str(folder), "--prompts", str(folder / "prompts.jsonl"), *FEW, *LONG]
    plan = script.make_plan(script.parser().parse_args(arguments))
    calibrated_on = {prompt.text for prompt in plan.recipe.prompts}
    assert calibrated_on == {"xyzxyz", "7*8=56"}
    assert calibrated_on.isdisjoint([*(prompt.text for prompt in plan.prompts), *plan.articles])


def test_prompts_are_kept_apart() -> None:
    prompts = [BenchPrompt(f"{domain}{index}", domain, "text") for index in range(4) for domain in "ab"]
    first, last = split(prompts, 2, 1)
    assert [prompt.id for prompt in first] == ["a0", "b0", "a1", "b1"]
    assert [prompt.id for prompt in last] == ["a3", "b3"]
    with pytest.raises(OptionError, match="4 prompts of the domain 'a'"):
        split(prompts, 3, 2)


def test_what_the_frontier_reaches() -> None:
    points = [{"skip": skip, "match": match, "cost_by_weights": cost} for skip, match, cost in POINTS]
    found = answer(points)
    assert found["skips"] == []
    assert found["cheapest_matching"]["skip"] == "a1"
    assert found["best_cheap"]["skip"] == "a1,m1"
    assert answer([*points, {"skip": "a2", "match": 0.8, "cost_by_weights": 0.5}])["skips"] == ["a2"]


POINTS = [("", 1.0, 1.0), ("a1", 0.8, 0.6), ("a1,m1", 0.6, 0.5), ("a1,m1-2", 0.4, 0.4)]


@pytest.mark.parametrize("name", ["selection-h200.json", "selection-cpu.json", "selection-cpu-long.json"])
def test_the_docs_show_what_was_measured(name: str) -> None:
    """Every row of the tables in docs/strategies.md is one that a document of the benchmark prints."""
    repository = SCRIPT.parents[1]
    results = repository / "benchmarks" / "results"
    printed = {
        line.partition(" | ")[2]
        for file in results.glob("selection-*.json")
        for line in as_markdown(json.loads(file.read_text(encoding="utf-8"))).splitlines()
    }
    docs = (repository / "docs" / "strategies.md").read_text(encoding="utf-8")
    shown = [line for line in docs.splitlines() if line.startswith("| ") and "equal |" in line]
    assert (results / name).name in docs
    assert len(shown) > 20
    assert [line for line in shown if line.partition(" | ")[2] not in printed] == []
