"""Draft on the Fly (ASD, arXiv:2410.01028): similarities of sub-layers, against draft & verify, and its three rules."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...protocols import Runner
from ..prompts import encode
from ..report import Table, number
from .cells import is_faster, pays, speed_cell, told
from .recipe import Effort, Experiment, Found, Recipe, Section, Trend, Unit, Values
from .tasks import Task
from .workbench import Learned, Workbench

DRAFT_VERIFY, ASD = "D&V", "ASD"
METHODS: Mapping[str, Mapping[str, Any]] = {DRAFT_VERIFY: {"strategy": "draft-verify"}, ASD: {"strategy": "asd"}}
CODE = {**METHODS, ASD: {"strategy": "asd", "settings": {"asd": {"every": 4, "last": 3}}}}
USUAL_LENGTH = 512
"""Tokens behind which sub-layers are timed."""
PAPER_PROMPTS, PAPER_CODE_PROMPTS = 1000, 164

# ------------------------------------------------------------------------------------------------------ table 1


def similarity_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each(["cnn-dm"], lambda task: _similarities(bench, task))


def _similarities(bench: Workbench, task: Task) -> Values:
    """Of each sub-layer, over all tokens of the prompts; and the seconds of a token's sub-layers."""
    texts = [encode(prompt, bench.engine) for prompt in task.learned]
    found = [cosines(bench.engine.runner, text) for text in texts]
    mean = torch.stack(found).mean(0)
    latency = bench.latency
    return {
        "attention": mean[::2].tolist(),
        "mlp": mean[1::2].tolist(),
        "attention_seconds": latency.attention_seconds(USUAL_LENGTH),
        "mlp_seconds": latency.mlp_seconds,
        "num_prompts": len(texts),
    }


def cosines(runner: Runner, tokens: Sequence[int]) -> torch.Tensor:
    """Of the hidden states before and behind each sub-layer, mean over tokens: attention 0, MLP 0, attention 1, ..."""
    points = ["embedding", *(f"{kind}{layer}" for layer in range(runner.num_layers) for kind in "am")]
    cache = runner.new_cache(1, len(tokens))
    captured = runner.forward([list(tokens)], [0], cache, capture=points, needs_scores=False).captured
    pairs = itertools.pairwise(points)
    means = [torch.cosine_similarity(captured[a].float(), captured[b].float(), dim=-1).mean() for a, b in pairs]
    return torch.stack(means).cpu()


def show_similarities(found: Found) -> Section:
    values = found.units.get("cnn-dm")
    if values is None:
        return Section([])
    kinds = [values["attention"], values["mlp"]]
    measures: Mapping[str, Callable[[Sequence[float]], float]] = {
        "minimum": min,
        "maximum": max,
        "mean": statistics.mean,
        "median": statistics.median,
    }
    rows = [[f"{name} similarity", *(f"{measure(kind):.3f}" for kind in kinds)] for name, measure in measures.items()]
    seconds = [values["attention_seconds"], values["mlp_seconds"]]
    rows.append(["mean time (ms)", *(number(1000 * one, ".4f") for one in seconds)])
    table = Table("similarity before and behind a sub-layer", ["", "attention", "MLP"], rows)
    attention, mlp = (statistics.mean(kind) for kind in kinds)
    ranges = [max(kind) - min(kind) for kind in kinds]
    return Section(
        [table],
        [Effort("prompts", values["num_prompts"], PAPER_PROMPTS)],
        [
            Trend("attentions are more similar than MLPs", attention > mlp, f"{attention:.3f} and {mlp:.3f}"),
            Trend("attentions differ more", ranges[0] > ranges[1], f"ranges {ranges[0]:.3f} and {ranges[1]:.3f}"),
            Trend("an attention takes longer", seconds[0] > seconds[1], f"{seconds[0] / seconds[1]:.2f} times an MLP"),
        ],
        [f"seconds are those of one token behind {USUAL_LENGTH} others, the paper's those of a prompt"],
    )


# ------------------------------------------------------------------------------------------------- tables 3 and 4


def _against_draft_verify(
    bench: Workbench, names: Sequence[str], temperatures: Sequence[float], methods: Mapping[str, Mapping[str, Any]]
) -> Iterable[Unit]:
    def measure(temperature: float, task: Task) -> Values:
        learned = _learned(bench, names[0])
        knows = [learned] if learned else []
        return bench.compare(methods, task.measured, knows=knows, temperature=temperature)

    for temperature in temperatures:
        yield from bench.for_each(names, partial(measure, temperature), prefix=f"T={temperature} ")


def _learned(bench: Workbench, name: str) -> Learned | None:
    """Draft & verify searches once, on prompts of the first task; one skip set for all of them."""
    task = bench.tasks.find(name)
    return bench.learn(f"asd-{name}", METHODS[DRAFT_VERIFY], task.learned) if task else None


def _show_against(found: Found, names: Mapping[str, str], temperatures: Sequence[float], paper_prompts: int) -> Section:
    rows, trends = [], []
    for temperature in temperatures:
        for way in METHODS:
            cells = [speed_cell(found, f"T={temperature} {name}", way) for name in names]
            if cells != ["-"] * len(names):
                rows.append([f"{temperature}", way, *cells])
        for name, title in names.items():
            unit = f"T={temperature} {name}"
            claim = f"ASD keeps up with draft & verify on {title} at T = {temperature}"
            trend = is_faster(claim, found, (unit, ASD), (unit, DRAFT_VERIFY))
            is_close = trend.because.startswith("too close")
            trends.append(Trend(claim, True, trend.because) if is_close else trend)
            trends.append(pays(f"ASD is faster than plain decoding on {title} at T = {temperature}", found, unit, ASD))
    table = Table("speed-up", ["T", "method", *names.values()], rows)
    efforts = [Effort("prompts a task", found.scale.get("prompts"), paper_prompts)]
    return Section([table], efforts, told(trends))


SUMMARIES = {"cnn-dm": "CNN/DM", "xsum": "XSum"}
TEMPERATURES, CODE_TEMPERATURES = (0.0, 0.2), (0.0, 0.6)

# ------------------------------------------------------------------------------------------------------ table 5

RULES: Mapping[str, Mapping[str, Any]] = {
    "similarity": {"every": 0, "last": 0},
    "similarity and rule 2": {"every": 0},
    "rules 1 and 2": {"similarity": 2.0},
    "all three": {},
}


def ablation_units(bench: Workbench) -> Iterable[Unit]:
    methods = {name: {"strategy": "asd", "settings": {"asd": rules}} for name, rules in RULES.items()}
    return bench.for_each(["cnn-dm"], lambda task: bench.compare(methods, task.measured))


def show_ablation(found: Found) -> Section:
    unit = "cnn-dm"
    rows = [[rule, speed_cell(found, unit, rule)] for rule in RULES if found.get(unit, rule)]
    return Section(
        [Table("", ["rules", "speed-up"], rows)],
        [Effort("prompts", found.scale.get("prompts"), PAPER_PROMPTS)],
        [
            is_faster("rule 2 helps the similarity", found, (unit, "similarity and rule 2"), (unit, "similarity")),
            is_faster("rule 1 helps both", found, (unit, "all three"), (unit, "similarity and rule 2")),
            pays("rules 1 and 2 alone pay", found, unit, "rules 1 and 2"),
        ],
    )


RECIPE = Recipe(
    "asd",
    [
        Experiment("table-1", "similarities and times of sub-layers", similarity_units, show_similarities),
        Experiment(
            "table-3",
            "against draft & verify, summaries",
            lambda bench: _against_draft_verify(bench, list(SUMMARIES), TEMPERATURES, METHODS),
            lambda found: _show_against(found, SUMMARIES, TEMPERATURES, PAPER_PROMPTS),
        ),
        Experiment(
            "table-4",
            "against draft & verify, code",
            lambda bench: _against_draft_verify(bench, ["humaneval"], CODE_TEMPERATURES, CODE),
            lambda found: _show_against(found, {"humaneval": "HumanEval"}, CODE_TEMPERATURES, PAPER_CODE_PROMPTS),
        ),
        Experiment("table-5", "its three rules", ablation_units, show_ablation),
    ],
)
