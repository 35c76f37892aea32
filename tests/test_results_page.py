"""The page of results is what its command makes of the measured files, and has what the papers' readers ask for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from selfdraft.bench.reproduce.page import Result, page, picture_link
from selfdraft.bench.reproduce.recipes import RECIPES, recipe
from selfdraft.bench.reproduce.workbench import num_different
from selfdraft.cli.main import build_parser
from selfdraft.cli.results import find_files, read_notes

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "reproduce"
PAGE = ROOT / "docs" / "results.md"
ON_CPU = {name: f"{name}-cpu.jsonl" for name in RECIPES}
ON_GPU = {name: f"{name}-h200.jsonl" for name in RECIPES}


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {file.name: Result.read(file) for file in find_files([str(MEASURED)])}


def test_its_command_makes_it_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"Made by `selfdraft (.*?)`", text)
    assert found
    monkeypatch.chdir(ROOT)
    options = build_parser().parse_args(shlex.split(found[1]))
    assert ROOT / options.output == PAGE
    results = [Result.read(file) for file in find_files(options.files)]
    pictures = Path(options.pictures).relative_to(Path(options.output).parent).as_posix()
    again = page(results, read_notes(options.notes), pictures, f"selfdraft {found[1]}")
    assert again == text


def test_every_paper_was_measured(results: dict[str, Result]) -> None:
    assert set(results) == {*ON_CPU.values(), *ON_GPU.values()}
    for name, file in (*ON_CPU.items(), *ON_GPU.items()):
        result = results[file]
        assert {line.paper for line in result.lines} == {name}
        shown = {one.experiment.id for one in result.of(recipe(name))}
        assert shown == {one.id for one in recipe(name).experiments}, file
        question = result.head.question
        assert question["scale"]["is_quick"] == (file in ON_CPU.values())
        assert question["commit"]
        assert question["torch"]


def test_no_output_differed(results: dict[str, Result]) -> None:
    for file, result in results.items():
        assert not any(num_different(line.values) for line in result.lines), file


def test_every_paper_has_a_paragraph_and_every_table_a_command(text: str, results: dict[str, Result]) -> None:
    notes = read_notes(str(ROOT / "docs" / "notes"))
    assert set(notes) == set(RECIPES)
    for name in RECIPES:
        assert len(notes[name].split()) > 80
        for file in (ON_CPU[name], ON_GPU[name]):
            for one in recipe(name).experiments:
                assert f"```sh\n{results[file].command_of(recipe(name), one)}\n```" in text


def test_speeds_in_paragraphs_are_measured_or_published(text: str) -> None:
    for name, note in read_notes(str(ROOT / "docs" / "notes")).items():
        tables = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0].replace(note.strip(), "")
        for speed in re.findall(r"\d\.\d\dx", note):
            assert f" {speed} " in tables, (name, speed)


def test_speeds_in_the_readme_are_measured(text: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = readme.partition("\n## The papers' tables\n")[2].partition("\n## ")[0]
    speeds = re.findall(r"\d\.\d\dx", told)
    assert speeds
    tables = text.partition("\n## swift\n")[2].partition("\n## ")[0].partition("\n### ")[2]
    assert all(f" {speed} " in tables for speed in speeds)


def test_links_lead_somewhere(text: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    for link in links:
        assert (PAGE.parent / link).exists(), link


def test_pictures_are_there(text: str, results: dict[str, Result]) -> None:
    linked = {PAGE.parent / link for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert linked == set((ROOT / "docs" / "images" / "results").glob("*.png"))
    for file, result in results.items():
        name = file.rpartition("-")[0]
        drawn = [picture_link("images/results", result, one) for one in result.of(recipe(name))]
        assert all(PAGE.parent / link in linked for link in drawn if link)
