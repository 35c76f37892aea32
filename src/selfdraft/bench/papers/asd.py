"""Draft on the Fly (ASD, arXiv:2410.01028): similarities of sub-layers, against draft & verify, and its three rules."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...passes import PassRequest
from ...protocols import Runner
from ..prompts import encode
from ..report import Table, number
from .cells import (
    NOT_MEASURED,
    figure_cell,
    from_enough,
    has_few_prompts,
    is_faster,
    is_larger,
    pays,
    speed,
    speed_cell,
    told,
)
from .recipe import Effort, Experiment, Found, Recipe, Section, Trend, Unit, Values
from .swift.lessons import self_sd_lesson
from .tasks import Task, Tasks
from .workbench import Methods, Workbench

DRAFT_VERIFY, ASD = "D&V", "ASD"
WAYS = (DRAFT_VERIFY, ASD)
CODE_RULES = {"every": 4, "last": 3}
USUAL_LENGTH = 512
"""Tokens behind which sub-layers are timed."""
LOOKED_AT = 4
"""Prompts at least whose similarities are looked at: a prompt takes no more than a prefill."""
PAPER_PROMPTS, PAPER_CODE_PROMPTS, PAPER_SEARCH_SECONDS = 1000, 164, 11 * 3600
SLOWER, TIMES_DIFFER = 0.05, 0.05
"""Who is slower by no more keeps up (the paper's ASD: by 4 % at most); times that are nearer are not told apart."""
FEW_SETS = 10
"""Of fewer the best is chance, and tells nothing of draft & verify."""

# ------------------------------------------------------------------------------------------------------ table 1


def similarity_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each(["cnn-dm"], lambda task: _similarities(bench, task))


def _similarities(bench: Workbench, task: Task) -> Values:
    """Of each sub-layer, over all tokens of the prompts; and the seconds of a token's sub-layers."""
    more = Tasks(bench.prompts, 1, max(LOOKED_AT, bench.scale.learned_prompts), bench.seed).find(task.name)
    texts = [encode(prompt, bench.engine) for prompt in (more or task).learned]
    found = [cosines(bench.engine.runner, text) for text in texts]
    mean = torch.stack(found).mean(0)
    latency = bench.latency
    return {
        "attention": mean[::2].tolist(),
        "mlp": mean[1::2].tolist(),
        "attention_seconds": latency.attention.at(USUAL_LENGTH),
        "mlp_seconds": latency.mlp_seconds,
        "num_prompts": len(texts),
    }


def cosines(runner: Runner, tokens: Sequence[int]) -> torch.Tensor:
    """Of the hidden states before and behind each sub-layer, mean over tokens: attention 0, MLP 0, attention 1, ..."""
    points = ["embedding", *(f"{kind}{layer}" for layer in range(runner.num_layers) for kind in "am")]
    cache = runner.new_cache(1, len(tokens))
    captured = runner.forward(PassRequest([list(tokens)], [0], capture=points, needs_scores=False), cache).captured
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
    return Section(
        [table],
        [Effort("prompts", values["num_prompts"], PAPER_PROMPTS)],
        [from_enough(trend, values["num_prompts"]) for trend in _claims_of_kinds(kinds)]
        + [
            is_larger(
                "an attention takes longer (microseconds)",
                ("attention", 1e6 * seconds[0]),
                ("MLP", 1e6 * seconds[1]),
                TIMES_DIFFER,
            )
        ],
        [f"seconds are those of one token behind {USUAL_LENGTH} others, the paper's those of a prompt"],
    )


def _claims_of_kinds(kinds: Sequence[Sequence[float]]) -> Iterator[Trend]:
    """`kinds`: similarities of attentions and of MLPs."""
    for name, measure in {"mean": statistics.mean, "median": statistics.median}.items():
        attention, mlp = map(measure, kinds)
        claim = f"attentions are more similar than MLPs, by the {name}"
        yield Trend(claim, attention > mlp, f"{attention:.3f} and {mlp:.3f}")
    ranges = [max(kind) - min(kind) for kind in kinds]
    claim = "attentions differ more from each other than MLPs"
    yield Trend(claim, ranges[0] > ranges[1], f"ranges {ranges[0]:.3f} and {ranges[1]:.3f}")


# ------------------------------------------------------------------------------------------------- tables 3 and 4


def _against_draft_verify(
    bench: Workbench, names: Sequence[str], temperatures: Sequence[float], rules: Mapping[str, int]
) -> Iterable[Unit]:
    def measure(temperature: float, task: Task) -> Values:
        searched = self_sd_lesson(bench, bench.tasks.find(names[0]) or task, seconds=bench.scale.lesson_seconds)
        found = bench.compare(_methods(searched["skip"], rules), task.measured, temperature=temperature)
        return {**found, "searched": searched}

    for temperature in temperatures:
        yield from bench.for_each(names, partial(measure, temperature), prefix=f"T={temperature} ")


def _methods(skip: str | None, rules: Mapping[str, int]) -> Methods:
    """Draft & verify searches once, on prompts of the first task: one skip set (None: none was found) for all."""
    adaptive = {"lookahead": "adaptive", "tree": "chain"}
    fixed = {"strategy": "fixed", "settings": {"fixed": {"skip": skip}}, **adaptive}
    asd = {"strategy": "asd", "settings": {"asd": rules}, **adaptive}
    return {**({DRAFT_VERIFY: fixed} if skip else {}), ASD: asd}


Judge = Callable[[str, Found, str], Trend]


def _show_against(
    found: Found, names: Mapping[str, str], temperatures: Sequence[float], paper_prompts: int, judge: Judge
) -> Section:
    rows, trends = [], []
    for temperature in temperatures:
        for way in WAYS:
            cells = [speed_cell(found, f"T={temperature} {name}", way) for name in names]
            if cells != ["-"] * len(names):
                rows.append([f"{temperature}", way, *cells])
        for name, title in names.items():
            unit, where = f"T={temperature} {name}", f"on {title} at T = {temperature}"
            trends.append(_from_enough_sets(judge(where, found, unit), found, unit))
            trends.append(pays(f"ASD is faster than plain decoding {where}", found, unit, ASD))
    table = Table("speed-up", ["T", "method", *names.values()], rows)
    efforts = [Effort("prompts a task", found.scale.get("prompts"), paper_prompts)]
    searched = next((values["searched"] for values in found.units.values()), None)
    if searched:
        seconds = round(searched["seconds"], 1)
        efforts.append(Effort("seconds that draft & verify searched", seconds, PAPER_SEARCH_SECONDS))
    return Section([table], efforts, told(trends), list(_search_notes(searched)))


def _search_notes(searched: Mapping[str, Any] | None) -> Iterator[str]:
    if searched:
        share = searched["tokens_per_second"] and searched["tokens_per_second"] / searched["plain"]
        yield (
            f"draft & verify tried {searched['num_steps']} sets and has the fastest, `{searched['skip']}`: "
            f"{number(share, '.2f')} times the speed of plain decoding while it searched"
        )
    yield (
        "draft & verify searches on other prompts of the (first) data set; the paper's, of code, on another data set. "
        "Above T = 0 nothing is cut off (no top-p): the paper does not say"
    )


def _from_enough_sets(trend: Trend, found: Found, unit: str) -> Trend:
    """Told only where draft & verify has searched at all."""
    count = found.get(unit, "searched", "num_steps") or 0
    is_told = trend.because == NOT_MEASURED or count >= FEW_SETS
    return trend if is_told else Trend(trend.claim, None, f"too few sets tried: {count}")


def keeps_up(where: str, found: Found, unit: str) -> Trend:
    """Slower by 5 % at most: told where the interval of ASD lies on one side of that."""
    claim = f"ASD keeps up with draft & verify {where} (within {SLOWER:.0%})"
    trend = is_faster(claim, found, (unit, ASD), (unit, DRAFT_VERIFY))
    own, other = speed(found, unit, ASD), speed(found, unit, DRAFT_VERIFY)
    if trend.holds or own is None or other is None or has_few_prompts(found, unit, ASD):
        return trend
    enough, because = (1 - SLOWER) * other["value"], trend.because.removeprefix("too close: ")
    if own["low"] <= enough <= own["high"]:
        return Trend(claim, None, f"too close: {because}")
    return Trend(claim, own["low"] > enough, because)


def wins(where: str, found: Found, unit: str) -> Trend:
    return is_faster(f"ASD is faster than draft & verify {where}", found, (unit, ASD), (unit, DRAFT_VERIFY))


SUMMARIES = {"cnn-dm": "CNN/DM", "xsum": "XSum"}
CODE = {"humaneval": "HumanEval"}
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
    figures = {
        "attentions skipped": "skipped_attention",
        "MLPs skipped": "skipped_mlp",
        "accepted": "acceptance_rate",
        "draft cost": "cost_measured",
    }
    rows = [
        [rule, speed_cell(found, unit, rule), *(figure_cell(found, unit, rule, name) for name in figures.values())]
        for rule in RULES
        if found.get(unit, rule)
    ]
    return Section(
        [Table("", ["rules", "speed-up", *figures], rows)],
        [Effort("prompts", found.scale.get("prompts"), PAPER_PROMPTS)],
        [
            is_faster(
                "the similarity alone is faster than rules 1 and 2",
                found,
                (unit, "similarity"),
                (unit, "rules 1 and 2"),
            ),
            is_faster("rule 2 helps the similarity", found, (unit, "similarity and rule 2"), (unit, "similarity")),
            is_faster("rule 1 helps both", found, (unit, "all three"), (unit, "similarity and rule 2")),
            pays("rules 1 and 2 alone pay", found, unit, "rules 1 and 2"),
        ],
        [
            "skipped: shares of all layers; `-`: no attention was similar enough, nothing is skipped, plain decoding",
            "accepted: of the drafted tokens; draft cost: seconds of a draft step over those of a plain token, so that "
            "above 1 a draft step takes longer than what it is to save",
        ],
    )


RECIPE = Recipe(
    "asd",
    [
        Experiment("table-1", "similarities and times of sub-layers", similarity_units, show_similarities),
        Experiment(
            "table-3",
            "against draft & verify, summaries",
            lambda bench: _against_draft_verify(bench, list(SUMMARIES), TEMPERATURES, {}),
            lambda found: _show_against(found, SUMMARIES, TEMPERATURES, PAPER_PROMPTS, keeps_up),
        ),
        Experiment(
            "table-4",
            "against draft & verify, code",
            lambda bench: _against_draft_verify(bench, ["humaneval"], CODE_TEMPERATURES, CODE_RULES),
            lambda found: _show_against(found, CODE, CODE_TEMPERATURES, PAPER_CODE_PROMPTS, wins),
        ),
        Experiment("table-5", "its three rules", ablation_units, show_ablation),
    ],
    quick_prompts=8,
)
