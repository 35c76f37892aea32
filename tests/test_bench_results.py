"""The runs of `selfdraft bench` that are kept with the sources: whole, exact, and what the docs show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfdraft.bench.harness.figures import document
from selfdraft.bench.harness.records import read_records
from selfdraft.bench.harness.rows import interval
from selfdraft.bench.harness.table import domain_table, main_table
from selfdraft.bench.report import markdown_table
from selfdraft.registry import AXES

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
RUNS = ("bench-h200", "bench-cpu")
SHARES = ("bench-cpu", "bench-h200-share")
"""Runs that say what the harness itself takes."""


def result(name: str) -> dict[str, Any]:
    return document(*read_records(RESULTS / f"{name}.jsonl"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_whole_and_exact(name: str) -> None:
    found = result(name)
    assert found["is_complete"]
    assert found["resumed_at"] == []
    assert found["commit"]
    rows = {row["name"]: row for row in found["ways"]}
    measured = [row for row in rows.values() if "total" in row and row["kind"] != "peer"]
    assert all(row["total"]["different"] == 0 for row in measured)
    methods = [row["method"] for row in measured]
    for axis in ("strategy", "lookahead"):
        assert {method[axis] for method in methods} >= set(AXES[axis])
    assert len(found["prompts_of"]) >= 8


@pytest.mark.parametrize("name", SHARES)
def test_the_harness_takes_less_than_a_hundredth(name: str) -> None:
    assert result(name)["harness_share"] < 0.01


def test_the_docs_show_what_was_measured() -> None:
    """Every row of a table of results in docs/benchmarking.md is one that `selfdraft bench table` prints."""
    docs = (REPOSITORY / "docs" / "benchmarking.md").read_text(encoding="utf-8").partition("## Measured")[2]
    printed = {
        line
        for name in RUNS
        for table in (main_table(result(name)), domain_table(result(name)))
        for line in markdown_table(table).splitlines()
    }
    shown = [line for line in docs.splitlines() if line.startswith("|")]
    assert len(shown) > 60
    assert set(shown) <= printed


def test_the_readme_says_what_was_measured() -> None:
    text = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    found = result("bench-h200")
    rows = {row["name"]: row["total"] for row in found["ways"] if "total" in row}
    names = {"prune": "`prune`", "knn": "`knn`", "fixed, drafter lookup": "prompt lookup", "swift": "`swift`"}
    for name, said in names.items():
        assert f"{said} {interval(rows[name]['speedup'])}" in text
    assert f"plainly at {rows['off']['tokens_per_second']:.1f} tokens/s" in text
    assert 3.0 <= 1 / rows["transformers static"]["call_speedup"]["value"] < 3.3
    equal = sum(row["equal"] for name, row in rows.items() if not name.startswith("transformers"))
    assert f"all {equal} outputs equal" in text
