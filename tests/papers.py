"""For tests of recipes: a workbench on a pico model, runs that are read back, and records made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.papers.experiment import Recipe
from selfdraft.bench.papers.page import Section, as_text, sections
from selfdraft.bench.papers.run import ReproduceHead, Reproduction, UnitFile, read_units
from selfdraft.bench.papers.workbench import Scale, Workbench
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import Machine, Record
from selfdraft.types import Prompt

SMALL = Scale(prompts=1, fit_prompts=1, tokens=8, fit_seconds=0.5, fit_tokens=24, is_quick=True)
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
    """Its experiments, measured (unless the file has them already), read back, and rendered once as text."""
    work = Reproduction(bench, UnitFile(file, HEAD))
    work.run([recipe], wanted)
    assert not work.has_difference
    head, lines = read_units(file)
    found = {one.experiment.id: one for one in sections([recipe], lines, head, wanted)}
    assert all(as_text(one, head) for one in found.values())
    return found


def measured(speeds: Mapping[str, float], num_prompts: int = 4, num_tokens: int = 100) -> Measured:
    """Arms with these tokens per second on every prompt, so that nothing is in doubt."""
    records = [
        Record(arm, f"p{n}", "a", n, 10, num_tokens, num_tokens / speed, num_tokens / speed, num_rounds=num_tokens)
        for arm, speed in speeds.items()
        for n in range(num_prompts)
    ]
    return Measured(records, Machine(num_layers=5, beta=1.0))
