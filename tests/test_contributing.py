"""The worked examples of CONTRIBUTING.md: each is taken from the page as it stands, and run."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import test_bench_results
import test_docs
import test_house
import test_results_page
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench import methods
from selfdraft.bench.charts import DARK, Panel, render
from selfdraft.bench.papers import recipes
from selfdraft.bench.papers.page import as_text, sections
from selfdraft.bench.papers.recipes import Paper, PublishedTable, published
from selfdraft.bench.papers.run import ReproduceHead, Reproduction, UnitFile
from selfdraft.bench.papers.workbench import QUICK, Workbench
from selfdraft.measure.result import Result
from selfdraft.measure.run import Measurement, MeasurePlan
from selfdraft.registry import STRATEGIES
from selfdraft.types import Prompt

SMALL = replace(QUICK, tokens=8, fit_seconds=0.5)
PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROMPTS = [
    Prompt(f"{domain}-{number}", domain, f"{number} {domain} and back")
    for domain in ("math", "code")
    for number in range(4)
]


def example(title: str, language: str = "python") -> str:
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert len(found) == 1, title
    return str(found[0])


def run_as(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As the file of the house that it would be."""
    module = module_from_spec(ModuleSpec(name, None, origin="CONTRIBUTING.md"))
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, "CONTRIBUTING.md", "exec"), vars(module))
    return module


def an_engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), profile=None)


def test_each_example_is_a_page_at_most() -> None:
    for title in ("An experiment", "A chart", "A benchmark preset", "A strategy"):
        assert PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0].count("\n") <= 80


def test_an_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = run_as("selfdraft.bench.papers.halves", example("An experiment"), monkeypatch)
    paper = json.loads(example("An experiment", "json"))
    tables = {name: PublishedTable(**table) for name, table in paper["tables"].items()}
    known = {"halves": Paper(paper["title"], paper["arxiv"], tables)}
    monkeypatch.setattr("selfdraft.bench.papers.page.published", lambda name: known.get(name) or published(name))
    assert '"halves": "halves"' in PAGE
    monkeypatch.setitem(recipes.RECIPES, "halves", "halves")
    recipe = recipes.recipe("halves")
    assert recipe is module.RECIPE
    assert_pages_hold(monkeypatch)

    head = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a test"})
    bench = Workbench(an_engine(), PROMPTS, SMALL, tmp_path)
    file = UnitFile(tmp_path / "halves.jsonl", head)
    Reproduction(bench, file).run([recipe])
    again = UnitFile(tmp_path / "halves.jsonl", head)  # from the file, without a model
    (section,) = sections([recipe], list(again.lines.values()), again.head)
    said = as_text(section, head)
    assert "GSM8K (math)" in said
    assert "HumanEval (code)" in said
    assert "1.30x" in said
    assert "too few prompts: skipping less" in said
    assert {judgement.outcome for judgement in section.judgements} == {None}
    assert module.chart(section.found).alt == "speed-up by task"
    for unit in section.found.units:
        arms = {arm: section.found.figures(unit, arm) for arm in module.METHODS}
        assert all(found is not None and found.equal and not found.different for found in arms.values())


def assert_pages_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a paper more, and an experiment more in another one, that nobody has measured."""
    swift = recipes.recipe("swift")
    more = replace(swift, experiments=[*swift.experiments, *recipes.recipe("halves").experiments])
    monkeypatch.setattr("selfdraft.bench.papers.swift.RECIPE", more)
    test_results_page.test_all_that_was_measured_is_shown_and_no_output_differed()
    test_results_page.test_every_paper_has_a_paragraph_and_a_command()
    test_results_page.test_every_published_number_is_there()
    test_results_page.test_pictures_are_there()


def test_a_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    module = run_as("selfdraft.bench.charts.histogram", example("A chart"), monkeypatch)
    chart = module.Histogram([3, 5, 2], title="accepted")
    assert isinstance(chart, Panel)
    assert chart == module.Histogram([3, 5, 2], title="accepted")
    pytest.importorskip("matplotlib")
    drawn = render(chart, (6, 4))
    assert drawn.startswith(b"\x89PNG")
    assert drawn == render(module.Histogram([3, 5, 2], title="accepted"), (6, 4))
    assert drawn != render(chart, (6, 4), theme=DARK)
    assert b"<svg" in render(chart, (6, 4), form="svg")


def test_a_benchmark_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = eval(f"{{{example('A benchmark preset')}}}", vars(methods))
    (name,) = entry
    monkeypatch.setitem(methods.PRESETS, name, entry[name])
    preset = methods.PRESETS[name]
    base: dict[str, Any] = {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.4}}}
    compared = preset.methods(base)
    assert {method["tree"] for method in compared.values()} == {"chain", "siblings"}
    assert all(method["strategy"] == "uniform" for method in compared.values())
    plan = MeasurePlan(PROMPTS[:2], compared, max_new_tokens=8, facts={"model": "pico"})
    result = Measurement(an_engine(), plan).run()
    assert isinstance(result, Result)
    assert {arm.name for arm in result.arms} == {"off", *compared}
    assert all(arm.total is not None and not arm.total.different for arm in result.arms)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 5}])
def test_a_strategy(sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, place = re.findall(r'`"(alternate)": "(.*?)"`', PAGE)[0]
    module = run_as(place.partition(":")[0], example("A strategy"), monkeypatch)
    assert str(module.__doc__).startswith(f"`{name}`")
    monkeypatch.setitem(STRATEGIES, name, place)
    engine = Engine(pico("llama"), profile=None)
    prompts = [[3, 1, 4, 1, 5, 9], [7], [2, 7, 1, 8, 2, 8]]
    plain = engine.generate(prompts, strategy="off", max_new_tokens=32, **sampling)
    drafted = engine.generate(prompts, strategy=name, settings={name: {"pause": 2}}, max_new_tokens=32, **sampling)
    for row, (prompt, one, other) in enumerate(zip(prompts, plain, drafted, strict=True)):
        found = engine.compare(prompt, one, other, sequence=row, max_new_tokens=32, **sampling)
        assert found.verdict == "equal"
    assert any(generation.stats.num_accepted for generation in drafted)
    assert any(not step.draft.num_draft_steps for generation in drafted for step in generation.steps)  # it paused


def test_what_else_a_strategy_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before it holds; the README must name it, as the page says."""
    name, place = re.findall(r'`"(alternate)": "(.*?)"`', PAGE)[0]
    run_as(place.partition(":")[0], example("A strategy"), monkeypatch)
    monkeypatch.setitem(STRATEGIES, name, place)
    test_house.test_a_method_explains_itself("strategy", name)
    test_bench_results.test_a_run_is_whole_and_exact("bench-cpu")
    test_bench_results.test_the_readme_shows_what_was_measured()
    with pytest.raises(AssertionError, match="strategy"):
        test_docs.test_the_readme_names_every_method()
    assert "and its name in the row `strategy` of the README's table of methods" in " ".join(PAGE.split())
    row = "| strategy: which sub-layers draft | "
    text = test_docs.text_of(test_docs.ROOT / "README.md")
    monkeypatch.setattr(test_docs, "text_of", lambda page: text.replace(row, f"{row}`{name}` "))
    test_docs.test_the_readme_names_every_method()
