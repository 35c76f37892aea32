"""For tests of recipes: a workbench on a pico model, runs that are read back, and records made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.charts import render
from selfdraft.bench.papers.experiment import FAILED, Found, Judgement, Recipe
from selfdraft.bench.papers.page import Section, as_markdown, as_text, sections
from selfdraft.bench.papers.run import ReproduceHead, Reproduction, UnitFile, read_units
from selfdraft.bench.papers.workbench import Scale, Workbench
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import Machine, Record
from selfdraft.types import Prompt

SMALL = Scale(prompts=1, fit_prompts=1, tokens=8, fit_seconds=0.5, fit_tokens=24, is_quick=True, learn=8)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})
TEXTS: Mapping[str, Sequence[str]] = {
    "code": ["abcabcabc", "xyzxyz", "f(x)=x;f(y)=y", "for(;;)", "if(a)b;else", "while(1)", "a=b=c", "defg(h)"],
    "summarise": ["tellmemore", "inshort:abc", "whatissaid", "thegist"],
    "chat": ["hello", "howareyou", "whynot", "goodbye"],
}


def new_bench(folder: Path, texts: Mapping[str, Sequence[str]] = TEXTS, scale: Scale = SMALL) -> Workbench:
    prompts = [Prompt(f"{name}-{n}", name, text) for name, some in texts.items() for n, text in enumerate(some)]
    return Workbench(Engine(pico("llama"), letter_tokenizer(), profile=None), prompts, scale, folder)


def run(recipe: Recipe, bench: Workbench, file: Path, wanted: Sequence[str] = ()) -> dict[str, Section]:
    """Its experiments, measured (unless the file has them already), and read back."""
    work = Reproduction(bench, UnitFile(file, HEAD))
    work.run([recipe], wanted)
    assert not work.has_difference
    head, lines = read_units(file)
    assert not [line.values[FAILED] for line in lines if FAILED in line.values], "methods that could not run"
    return {one.experiment.id: one for one in sections([recipe], lines, head, wanted)}


def check(recipe: Recipe, found: Mapping[str, Section]) -> None:
    """All experiments are shown, also with any unit missing, and say nothing where nothing was measured."""
    assert list(found) == [one.id for one in recipe.experiments if one.id in found]
    for name, section in found.items():
        experiment, units, scale = section.experiment, section.found.units, SMALL.to_json()
        assert section.tables, name
        assert all(len(row) == len(table.header) for table in section.tables for row in table.rows), name
        assert section.judgements or not experiment.claims, name
        plot = experiment.chart(section.found) if experiment.chart else None
        assert bool(plot) == bool(experiment.chart), name
        if plot and find_spec("matplotlib"):
            assert render(plot.draw, plot.size).startswith(b"\x89PNG"), name
        assert ("published (" in as_text(section, HEAD)) == bool(section.published.rows), name
        assert as_markdown(section, "picture.png").startswith(f"### {recipe.name} {name}: {section.published.title}\n")
        rests = [{other: kept for other, kept in units.items() if other != unit} for unit in units]
        for some in (*rests, *({unit: values} for unit, values in units.items())):
            poorer = replace(section, found=Found(some, {"gone": "no room"}, scale))
            assert "no room" in as_text(poorer, HEAD), name
        nothing = replace(section, found=Found({}, {}, scale))
        assert not nothing.tables, name
        assert not nothing.judgements, name
        assert experiment.chart is None or experiment.chart(nothing.found) is None, name


def judged(recipe: Recipe, name: str, units: Mapping[str, Mapping[str, Any]]) -> list[Judgement]:
    """An experiment's claims about what was made by hand."""
    (experiment,) = [one for one in recipe.experiments if one.id == name]
    return experiment.judge(Found(units, scale=SMALL.to_json()))


def outcomes(recipe: Recipe, name: str, units: Mapping[str, Mapping[str, Any]]) -> list[bool | None]:
    return [one.outcome for one in judged(recipe, name, units)]


def measured(speeds: Mapping[str, float], num_prompts: int = 4, num_tokens: int = 100) -> Measured:
    """Arms with these tokens per second on every prompt, so that nothing is in doubt."""
    records = [
        Record(arm, f"p{n}", "a", n, 10, num_tokens, num_tokens / speed, num_tokens / speed, num_rounds=num_tokens)
        for arm, speed in speeds.items()
        for n in range(num_prompts)
    ]
    return Measured(records, Machine(num_layers=5, beta=1.0))
