"""The runs of `selfdraft bench` that are kept with the sources: whole, exact, and what the docs show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from selfdraft.bench.tables import domain_table, interval, main_table, markdown_table
from selfdraft.measure.result import Result
from selfdraft.registry import AXES

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
RUNS = ("bench-h200", "bench-cpu")
SHARES = ("bench-cpu", "bench-h200-share")
"""Runs that say what measuring itself takes."""


@cache
def result(name: str) -> Result:
    return Result.read(RESULTS / f"{name}.jsonl")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_whole_and_exact(name: str) -> None:
    found = result(name)
    assert found.is_complete
    assert list(found.head.resumed_at) == []
    assert found.head.question["commit"]
    assert not found.is_different
    measured = [arm.method for arm in found.arms if arm.total and arm.kind != "peer"]
    for axis in ("strategy", "lookahead"):
        assert {method[axis] for method in measured} >= set(AXES[axis])
    assert len(found.prompts_of) >= 8


@pytest.mark.parametrize("name", SHARES)
def test_measuring_takes_less_than_a_hundredth(name: str) -> None:
    share = result(name).overhead()["measuring_share"]
    assert share is not None
    assert share < 0.01


def test_the_docs_show_what_was_measured() -> None:
    """Every row of a table of results in docs/benchmarking.md is one that `selfdraft report --markdown` prints."""
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
    totals = {arm.name: arm.total for arm in result("bench-h200").arms if arm.total}
    names = {"prune": "`prune`", "knn": "`knn`", "fixed, drafter lookup": "prompt lookup", "swift": "`swift`"}
    for name, said in names.items():
        assert f"{said} {interval(totals[name].speedup)}" in text
    assert f"plainly at {totals['off'].tokens_per_second:.1f} tokens/s" in text
    static = totals["transformers static"].call_speedup
    assert static is not None
    assert 3.0 <= 1 / static.value < 3.3
    equal = sum(total.equal for name, total in totals.items() if not name.startswith("transformers"))
    assert f"all {equal} outputs equal" in text
