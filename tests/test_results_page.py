"""The page of the papers is what its command makes of the measured files, and has what the papers' readers ask for."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from selfdraft.bench.papers.headlines import published_speed
from selfdraft.bench.papers.page import BARE, PaperFile, beside, plots
from selfdraft.bench.papers.recipes import published, recipe
from selfdraft.bench.papers.run import num_outputs
from selfdraft.bench.tables import Table
from selfdraft.cli.main import main

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "results" / "papers"
PAGE = ROOT / "docs" / "results" / "papers.md"
NOTES = ROOT / "docs" / "notes"
FILES = sorted(MEASURED.glob("*.jsonl"))

pytestmark = pytest.mark.skipif(not FILES, reason="the papers' files are not there yet")


@cache
def read(file: Path) -> PaperFile:
    return PaperFile.read(file)


PAPERS = sorted({line.paper for file in FILES for line in read(file).lines})
"""Those that were measured."""


def page_of(paper: str) -> str:
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {paper}\n")[2].partition("\n## ")[0]


def test_its_command_makes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures by name only: the tests of charts hold what is drawn."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"Made by `selfdraft (.*?)`", text)
    assert found
    written: dict[Path, bytes] = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("selfdraft.cli.report.render", lambda *given, **named: b"")
    monkeypatch.setattr("selfdraft.cli.report.require_matplotlib", lambda *given: None)
    monkeypatch.setattr("selfdraft.cli.report.write_file", lambda path, content: written.update({ROOT / path: content}))
    assert main(shlex.split(found[1])) == 0
    assert written.pop(PAGE).decode() == text
    assert set(written) == set((ROOT / "docs" / "images" / "papers").glob("*.png"))


def test_all_that_was_measured_is_shown_and_no_output_differed() -> None:
    """Held against the files themselves: a paper or an experiment that nobody has measured yet is not on the page."""
    for file in FILES:
        found = read(file)
        assert not any(num_outputs(line.values, "different") for line in found.lines), file
        shown = {(paper, one.experiment.kept_as) for paper in PAPERS for one in found.of(recipe(paper))}
        assert {(line.paper, line.experiment) for line in found.lines} == shown
        assert found.head.question["commit"]
        assert found.head.question["torch"]
    assert len(PAPERS) >= 5


def test_every_paper_has_a_paragraph_and_a_command() -> None:
    for paper in PAPERS:
        note = (NOTES / f"{paper}.md").read_text(encoding="utf-8")
        assert len(note.split()) > 80
        assert note.strip() in page_of(paper)
    text = PAGE.read_text(encoding="utf-8")
    assert all(read(file).command in text for file in FILES)


def test_speeds_in_paragraphs_are_measured_or_published() -> None:
    for paper in PAPERS:
        note = (NOTES / f"{paper}.md").read_text(encoding="utf-8").strip()
        tables = page_of(paper).replace(note, "")
        for speed in re.findall(r"\d\.\d\dx", note):
            assert speed in tables, (paper, speed)


def test_every_published_number_is_there() -> None:
    """But for rows that say that plain decoding is as fast as itself."""
    for file in FILES:
        for paper in PAPERS:
            for section in read(file).of(recipe(paper)):
                text = page_of(paper).partition(f"### {section.title}\n")[2].partition("\n### ")[0]
                cells = {str(cell) for row in section.published.rows for cell in row} - BARE
                assert not [cell for cell in cells if any(map(str.isdigit, cell)) and cell not in text], section.title


def test_pictures_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    linked = {(PAGE.parent / link).resolve() for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert {path.name for path in linked} == {name for name, *_ in plots([read(file) for file in FILES])}
    assert all(path.exists() for path in linked)


def test_published_rows_stand_beside_ours() -> None:
    """By task and method; a task may say more, a method may not; what we have no row for comes last."""
    ours = Table("", ["task", "method", "M"], [["A (code), T = 0", "x", "1"], ["A (code), T = 0", "x, ours", "2"]])
    paper = Table("", ["task", "method", "M"], [["T = 0", "x", "3 / 4"], ["B", "y", "5"]])
    found = beside(ours, paper, 2)
    assert found.header == ["task", "method", "M", "paper: M"]
    assert [row[1:] for row in found.rows] == [["x", "1", "3 / 4"], ["x, ours", "2", "-"], ["y", "-", "5"]]


@pytest.mark.parametrize(
    ("paper", "experiment", "label", "arm", "told"),
    [
        ("swift", "table-2", "GSM8K", "SWIFT", "1.31x† / 1.25x / 1.39x†"),
        ("swift", "table-2", "GSM8K", "SWIFT, ours", "1.31x† / 1.25x / 1.39x†"),
        ("swift", "table-3", "HumanEval, pass@10", "SWIFT, coupled", "1.29x / 1.30x"),
        ("knn-ssd", "table-2", "r=0.3", "knn", "1.45x / 1.64x"),
        ("asd", "table-3", "XSum, T = 0.2", "ASD", "1.350x / 1.102x"),
        ("disco", "table-1", "Alpaca (chat)", "DISCO", "2.12x"),
        ("disco", "table-1", "GSM8K", "DISCO", "-"),
    ],
)
def test_what_was_published_of_a_method(paper: str, experiment: str, label: str, arm: str, told: str) -> None:
    assert published_speed(published(paper).tables[experiment], label, arm) == told


def test_what_was_measured_before_stands_beside_what_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(MEASURED / "swift-h200.jsonl")
    for before in ([], ["--before", file]):
        assert main(["report", file, "--markdown", *before]) == 0
        lines = capsys.readouterr().out.splitlines()
        start = next(place for place, line in enumerate(lines) if line.startswith("| paper | task |"))
        header, _, first = lines[start : start + 3]
        names, cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (header, first))
        assert names[-2:] == ["now" if before else "ours", "bound"]
        assert names[4].startswith("before (") == bool(before)
        assert cells[:3] == ["swift", "CNN/DM", "SWIFT"]
        assert not before or cells[4] == cells[5]
