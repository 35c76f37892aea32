"""The runs of `selfdraft bench` that are kept with the sources: whole, exact, and what README and docs show."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from selfdraft.bench.tables import interval, main_table
from selfdraft.cli.main import main
from selfdraft.measure.result import Arm, Result

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
RUNS = ("bench-h200", "bench-cpu")
EVERYDAY, TREES = "everyday-h200", "trees-h200"
SHARES = ("bench-cpu", "bench-h200-share")
"""Runs that say what measuring itself takes."""
AUTO = ("auto-cpu-greedy", "auto-cpu-sampled")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TEXT = " ".join(README.split())
SHOWN = {
    "transformers `generate`": "transformers eager",
    "transformers, static cache and `torch.compile`": "transformers static",
    "`uniform`: evenly spaced layers, nothing learned": "uniform",
    "`lookup`: drafts are copied from the text": "fixed, drafter lookup",
    "`fixed`: a skip set given by hand, with a tree of siblings": "fixed, tree siblings",
    "`prune`: calibrated": "prune",
}
"""Rows of the README's table -> arms of both runs."""


@cache
def result(name: str) -> Result:
    return Result.read(RESULTS / f"{name}.jsonl")


def arms(name: str) -> dict[str, Arm]:
    return {arm.name: arm for arm in result(name).arms}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_whole_and_exact(name: str) -> None:
    found = result(name)
    assert found.is_complete
    assert not found.is_different
    assert found.head.resumed_at == []
    assert found.head.question["commit"]
    asked = set(found.head.question["methods"])  # not today's registry: a new method need not be measured here
    measured = {arm.name: arm.error for arm in found.arms if arm.total or arm.error}
    assert set(measured) >= asked
    assert [name for name, error in measured.items() if error and name in asked] == ["fixed, drafter model"]
    assert len(asked) >= 20
    assert len(found.prompts_of) >= 8


@pytest.mark.parametrize("name", SHARES)
def test_measuring_takes_less_than_a_hundredth(name: str) -> None:
    taken = result(name).overhead()["measuring_share"]
    assert taken is not None
    assert taken < 0.01


@pytest.mark.parametrize(("name", "runs"), {"methods": RUNS, "everyday": (EVERYDAY,), "trees": (TREES,)}.items())
def test_a_page_is_what_its_command_prints(
    name: str, runs: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make results` writes it."""
    monkeypatch.chdir(REPOSITORY)
    introduction = Path(f"docs/notes/{name}.md").read_text(encoding="utf-8")
    files = [f"benchmarks/results/{run}.jsonl" for run in runs]
    assert f"selfdraft report {' '.join(files)} --markdown" in introduction
    assert main(["report", *files, "--markdown"]) == 0
    page = Path(f"docs/results/{name}.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{capsys.readouterr().out}"
    assert all(main_table(result(run)).rows for run in runs)


def test_the_readme_shows_the_modes_that_were_measured() -> None:
    found = result(EVERYDAY)
    assert found.is_complete
    assert not found.is_different
    assert found.head.question["commit"]
    plain = arms(EVERYDAY)["off"].domains
    modes = {"greedy": "greedy", "temperature 0.8": "at temperature 0.8", "0.8, top-p 0.95": "with top-p 0.95"}
    told = ", ".join(
        f"{plain[mode].milliseconds:.2f}{' ms' * (mode == 'greedy')} {text}" for mode, text in modes.items()
    )
    assert f"a token takes {told}" in TEXT


def test_the_readme_shows_what_was_measured() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if line[:1] == "|"]
    table = {row[0]: row[1:] for row in rows if len(row) == 1 + len(RUNS)}
    for label, name in SHOWN.items():
        found = [arms(run).get(name) for run in RUNS]
        totals = [arm.total if arm else None for arm in found]
        assert table.pop(label) == [interval(total.shown_speedup) if total else "-" for total in totals], label
    plain = [arms(run)["off"].total for run in RUNS]
    assert table.pop("`off`: plain decoding") == [
        f"1.00x ({total.tokens_per_second:.1f} tokens/s)" for total in plain if total
    ]
    assert not [label for label, cells in table.items() if "x [" in "".join(cells)], "a row without a source"


def test_the_readme_says_what_was_measured() -> None:
    static, prune = (arms("bench-h200")[name].total for name in ("transformers static", "prune"))
    assert static
    assert static.call_speedup
    assert "about 3 times as fast as transformers' static cache" in TEXT
    assert 2.8 <= 1 / static.call_speedup.value < 3.3
    assert prune
    assert prune.speedup
    assert f"a calibrated `prune` adds {prune.speedup.value:.1f}x" in TEXT
    assert "nothing is surely above 1.00x" in TEXT
    ours = [arm.total for arm in arms("bench-cpu").values() if arm.kind == "ours"]
    assert not any(total.speedup.low > 1 for total in ours if total and total.speedup)
    equal = [sum(arm.total.equal for arm in arms(run).values() if arm.total and arm.kind != "peer") for run in RUNS]
    assert f"({equal[0]} and {equal[1]} texts) equal plain decoding" in TEXT
    prompts = [total.num_prompts for run in RUNS if (total := arms(run)["off"].total)]
    assert f"on {' and '.join(map(str, prompts))} prompts" in TEXT


def test_a_speed_in_prose_is_in_a_measured_file() -> None:
    """Of the README, outside of the output of a command."""
    prose = "\n".join(line for line in README.splitlines() if not line.startswith((" ", "|")))
    runs = (*RUNS, "bench-cpu-lookup", *AUTO)
    totals = [arm.total.shown_speedup for run in runs for arm in result(run).arms if arm.total]
    known = {f"{found.value:.{digits}f}" for found in totals if found for digits in (1, 2)} | {"1.00"}
    for speed in re.findall(r"(\d\.\d+)x", prose):
        assert speed in known, speed


@cache
def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def batches_page() -> str:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    runs = re.search(r"BATCHES := \$\(foreach run,([\w -]+),benchmarks/results/(\S+?)\$\(run\).json\)", makefile)
    assert runs is not None
    files = [RESULTS / f"{runs[2]}{run}.json" for run in runs[1].split()]
    return str(benchmark("batches_page").page([json.loads(file.read_text(encoding="utf-8")) for file in files]))


CPU_RUNS = [RESULTS / f"bench-cpu-{name}.jsonl" for name in ("lookup", "rewrites")]


def test_the_page_of_the_cpu_is_what_its_commands_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cpu.py", "--show", str(RESULTS / "cpu-x86.jsonl")])
    assert benchmark("cpu").main() == 0
    shown = capsys.readouterr().out
    assert main(["report", *map(str, CPU_RUNS), "--markdown"]) == 0
    introduction = (REPOSITORY / "docs" / "notes" / "cpu.md").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs" / "results" / "cpu.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{shown}\n{capsys.readouterr().out}"


def test_the_readme_says_what_was_measured_on_x86() -> None:
    rows = [json.loads(line) for line in (RESULTS / "cpu-x86.jsonl").read_text(encoding="utf-8").splitlines()]
    plain = {row["method"].split()[0]: row for row in rows if (row["part"], row["threads"]) == ("plain", 2)}
    assert {row["text"] for row in plain.values() if "text" in row} == {"equal"}
    names = ("selfdraft", "transformers", "ctranslate2", "llama-cpp-python")
    times = [f"{1000 * plain[name]['seconds']:.1f}" for name in names]
    assert "takes {} ms, in transformers {}, in CTranslate2 {}, in llama.cpp {}".format(*times) in TEXT
    found = {arm.name: arm.total for arm in Result.read(CPU_RUNS[0]).arms}["lookup"]
    assert found is not None
    assert found.speedup is not None
    assert f"looked-up drafts make it {found.speedup.value:.2f}x as fast" in TEXT


def test_the_page_of_the_default_is_what_its_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["never_slower.py", *(str(RESULTS / f"{run}.jsonl") for run in AUTO)])
    benchmark("never_slower").main()
    introduction = (REPOSITORY / "docs" / "notes" / "auto.md").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs" / "results" / "auto.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{capsys.readouterr().out}"


def test_the_page_of_streams_is_what_its_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = sorted(RESULTS.glob("streams-*.jsonl"))
    monkeypatch.setattr(sys, "argv", ["streams.py", *map(str, runs)])
    benchmark("streams").main()
    shown = capsys.readouterr().out
    introduction = (REPOSITORY / "docs" / "notes" / "streams.md").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs" / "results" / "streams.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{shown}"
    assert all(told in shown for told in re.findall(r"\d\.\d\dx", introduction))
    assert all(result(run.stem).is_complete and not result(run.stem).is_different for run in runs)


@pytest.mark.parametrize("run", AUTO)
def test_the_default_was_not_slower_on_any_kind_of_prompt(run: str) -> None:
    assert result(run).is_complete
    assert not result(run).is_different
    domains = arms(run)["auto"].domains
    assert len(domains) == 8
    assert all(found.speedup is not None and found.speedup.value >= 0.98 for found in domains.values())
    total = arms(run)["auto"].total
    assert total is not None
    assert total.speedup is not None
    assert f"{total.speedup.value:.2f}x" in TEXT


def test_the_page_of_batches_is_what_its_command_prints() -> None:
    introduction = (REPOSITORY / "docs" / "notes" / "batches.md").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs" / "results" / "batches.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{batches_page()}"
    assert "different" not in batches_page()


def test_the_readme_shows_the_batches_that_were_measured() -> None:
    rows = re.findall(r"(\d+) / (\d+) / (\d+) rows decode ([\d,]+) / ([\d,]+) / ([\d,]+) tokens/s, vLLM", TEXT)
    theirs = re.findall(r"same requests ([\d,to ]+?) / ([\d,to ]+?) / ([\d,to ]+?) \(", TEXT)
    assert len(rows) == len(theirs) == 1
    for number, speed, other in zip(rows[0][:3], rows[0][3:], theirs[0], strict=True):
        assert re.search(rf"^\| {number} \| {speed} \|.*\| {other} \|", batches_page(), re.MULTILINE)


def test_sizes_are_what_their_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *map(str, sorted(RESULTS.glob("passes*.jsonl"))), "--markdown"]) == 0
    introduction = (REPOSITORY / "docs" / "notes" / "passes.md").read_text(encoding="utf-8")
    page = (REPOSITORY / "docs" / "results" / "passes.md").read_text(encoding="utf-8")
    assert page == f"{introduction}\n{capsys.readouterr().out}"
    told = re.findall(r"Llama-3.1-8B, one text: (\S+) ms a token, vLLM (\S+), static and compiled (\S+) ", TEXT)
    ((ours, theirs, static),) = told
    (row,) = re.findall(r"^\| llama-3.1-8b \| (\S+) .*\| (\S+) \(\S+\) \| (\S+) \(\S+\) \|$", page, re.MULTILINE)
    assert [f"{float(number):.2f}" for number in row] == [ours, static, theirs]


def test_a_peer_has_its_column_and_where_it_failed_a_gap() -> None:
    off, peer = (
        {"arm": arm, "rows": 8, "num_tokens": 100, "seconds": seconds, "decode_seconds": None, "verdicts": {"equal": 8}}
        for arm, seconds in (("off", 1.0), ("transformers generate_batch", 2.0))
    )
    chain, later = {**off, "arm": "chain"}, [{**off, "rows": 16}, {**off, "rows": 16, "arm": "chain"}]
    document = json.loads((RESULTS / "batches-h200-rows.json").read_text(encoding="utf-8"))
    page = benchmark("batches_page").page
    beside = page([{**document, "rows": [off, peer]}])
    assert "| texts | transformers generate_batch | ours against it |" in beside
    assert "| 8 | 100 | - | 8 equal | 50 | 2.00x |" in beside
    methods = page([{**document, "rows": [off, chain, peer, *later]}])
    assert "| 8 | 100 | 1.00x | 0.50x | 8 equal |" in methods
    assert "| 16 | 100 | 1.00x | - | 8 equal |" in methods
