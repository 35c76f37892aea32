"""Draft on the Fly (ASD, arXiv:2410.01028): similarities of sub-layers, against draft & verify, and its three rules."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...measure.estimate import mean
from ...passes import PassRequest
from ...prompts.tokens import encode
from ...protocols import Runner
from ..tables import Table, number
from .claims import Side, faster, is_above
from .experiment import Experiment, Found, Judgement, MainTable, Recipe, Values
from .forms import by_arm, by_unit
from .swift_methods import self_sd_fit
from .workbench import Methods, Task, UnitsOf, Workbench, each, joined

DRAFT_VERIFY, ASD, CALIBRATED, SIMILARITIES = "D&V", "ASD", "ASD, calibrated", "cnn-dm"
PAPER: Mapping[str, Any] = {"similarity": 0.985, "every": 3, "last": 2, "always": True}
TOP_P, THRESHOLD = {0.2: 0.85, 0.6: 0.95}, 0.6
"""Draft & verify's own, by temperature, and where its exit begins."""
USUAL_LENGTH, LOOKED_AT = 512, 4
"""Tokens after which sub-layers are timed; prompts at least whose similarities are looked at."""
KEEPS_UP = "ASD keeps up with draft & verify (slower by less than 5 %; the paper's by 4 % at most) on {task}"
FEW_SETS = 10
"""Of fewer the best is chance, and tells nothing of draft & verify."""

# ------------------------------------------------------------------------------------------------------ table 1


def _similarities(bench: Workbench, task: Task) -> Values:
    """Of each sub-layer, prompt by prompt, over all of its tokens; and the seconds of a token's sub-layers."""
    more = bench.task(task.name, 1, max(LOOKED_AT, bench.scale.prompts, bench.scale.fit_prompts)) or task
    found = [cosines(bench.engine.runner, encode(prompt, bench.engine)) for prompt in more.fitting]
    costs = bench.latency.at(USUAL_LENGTH)
    return {
        "cosines": {"attention": [one[::2].tolist() for one in found], "MLP": [one[1::2].tolist() for one in found]},
        "seconds": {"attention": costs.attention, "MLP": costs.fit.mlp_seconds},
    }


def cosines(runner: Runner, tokens: Sequence[int]) -> torch.Tensor:
    """Of the hidden states before and after each sub-layer, mean over tokens: attention 0, MLP 0, attention 1, ..."""
    points = ["embedding", *(f"{kind}{layer}" for layer in range(runner.num_layers) for kind in "am")]
    cache = runner.new_cache(1, len(tokens))
    captured = runner.forward(PassRequest([list(tokens)], [0], capture=points, needs_scores=False), cache).captured
    pairs = itertools.pairwise(points)
    means = [torch.cosine_similarity(captured[a].float(), captured[b].float(), dim=-1).mean() for a, b in pairs]
    return torch.stack(means).cpu()


Measure = Callable[[Sequence[float]], float]
MEASURES: Mapping[str, Measure] = {"minimum": min, "maximum": max, "mean": statistics.mean, "median": statistics.median}


def _similarity_table(found: Found) -> Table:
    rows, kinds = [], found.get(SIMILARITIES, "cosines")
    if kinds:
        layers = [[statistics.mean(layer) for layer in zip(*kind, strict=True)] for kind in kinds.values()]
        rows = [[f"{name} similarity", *(f"{one(kind):.3f}" for kind in layers)] for name, one in MEASURES.items()]
        rows.append(["mean time (ms)", *(f"{1000 * one:.4f}" for one in found.get(SIMILARITIES, "seconds").values())])
    return Table("similarity before and after a sub-layer", ["", "attention", "MLP"], rows)


def _similarity_claims(found: Found) -> Iterator[Judgement | None]:
    """Each prompt is a draw."""
    pairs = list(zip(*(found.get(SIMILARITIES, "cosines") or {"": ()}).values(), strict=True))
    for name in ("mean", "median"):
        gap = mean([MEASURES[name](attentions) - MEASURES[name](mlps) for attentions, mlps in pairs])
        yield is_above(f"attentions are more similar than MLPs, by the {name}", gap, 0.0, "difference")
    gap = mean([max(one) - min(one) - (max(other) - min(other)) for one, other in pairs])
    yield is_above("attentions differ more from each other than MLPs", gap, 0.0, "difference of ranges")


# ------------------------------------------------------------------------------------------------- tables 3 and 4


def _against_draft_verify(names: Sequence[str], temperatures: Sequence[float], rules: Mapping[str, int]) -> UnitsOf:
    """Draft & verify searches once, on prompts of the first task: one skip set for all."""

    def measure(temperature: float, bench: Workbench, task: Task) -> Values:
        first = bench.task(names[0]) or task
        searched = self_sd_fit(bench, first.name, first.fitting)
        fitted = bench.fit(f"asd-{first.name}", {"strategy": "asd"}, first.fitting)
        methods, told = _methods(searched["skip"], rules), f"T = {temperature}"
        sampling: dict[str, Any] = {"temperature": temperature}
        if temperature in TOP_P:
            sampling["top_p"], told = TOP_P[temperature], f"{told}, top-p {TOP_P[temperature]}"
        return {**bench.measure(task, methods, told, knows=[fitted], **sampling), "searched": searched}

    return joined(*(each(names, partial(measure, one), f"T={one} ") for one in temperatures))


def _ended(strategy: str, **options: Any) -> dict[str, Any]:
    """With drafts that end as those of draft & verify."""
    settings = {strategy: options, "adaptive": {"threshold": THRESHOLD}}
    return {"strategy": strategy, "lookahead": "adaptive", "tree": "chain", "settings": settings}


def _methods(skip: str | None, rules: Mapping[str, int]) -> Methods:
    """`skip`: of draft & verify; None: none was found."""
    own = {ASD: _ended("asd", **{**PAPER, **rules}), CALIBRATED: _ended("asd")}
    return {**({DRAFT_VERIFY: _ended("fixed", skip=skip)} if skip else {}), **own}


def _too_few_sets(found: Found, one: Side, _: Side) -> str | None:
    count = found.get(one.unit, "searched", "num_steps") or 0
    return f"draft & verify tried few sets: {count}" if count < FEW_SETS else None


def _search_notes(found: Found) -> Iterator[str]:
    for searched in [values["searched"] for values in found.units.values()][:1]:
        share = searched["tokens_per_second"] and searched["tokens_per_second"] / searched["plain"]
        yield (
            f"draft & verify searched for {searched['optimise_seconds']:.0f} s (the paper's for 11 hours), tried "
            f"{searched['num_steps']} sets and has the fastest, `{searched['skip']}`: {number(share, '.2f')} times the "
            "speed of plain decoding while it searched"
        )
    yield "draft & verify searches on other prompts of the (first) data set; the paper's, of code, on another data set"


SPEEDS = by_unit(["speed-up"], [DRAFT_VERIFY, ASD, CALIBRATED])
PAYS = faster("ASD is faster than plain decoding on {task}", ASD)


# ---------------------------------------------------------------------------------------------- table 5, recipe

RULES: Mapping[str, Mapping[str, Any]] = {
    "similarity": {"every": 0, "last": 0},
    "similarity and rule 2": {"every": 0},
    "rules 1 and 2": {"similarity": 2.0},
    "all three": {},
}
METHODS = {name: _ended("asd", **{**PAPER, **rules}) for name, rules in RULES.items()}

RECIPE = Recipe(
    "asd",
    [
        Experiment("table-1", each([SIMILARITIES], _similarities), [_similarity_table], [_similarity_claims]),
        Experiment(
            "table-3",
            _against_draft_verify(("cnn-dm", "xsum"), (0.0, 0.2), {}),
            [SPEEDS],
            [faster(KEEPS_UP, ASD, DRAFT_VERIFY, bound=0.95, unless=_too_few_sets), PAYS],
            [_search_notes],
        ),
        Experiment(
            "table-4",
            _against_draft_verify(("humaneval",), (0.0, 0.6), {"every": 4, "last": 3}),
            [SPEEDS],
            [faster("ASD is faster than draft & verify on {task}", ASD, DRAFT_VERIFY, unless=_too_few_sets), PAYS],
            [_search_notes],
        ),
        Experiment(
            "table-5",
            each(["cnn-dm"], lambda bench, task: bench.measure(task, METHODS)),
            [
                by_arm(
                    ["speed-up", "attention skipped", "MLP skipped", "accepted", "c", "recording"],
                    list(RULES),
                    first="",
                )
            ],
            [
                faster("the similarity alone is faster than rules 1 and 2", "similarity", "rules 1 and 2"),
                faster("rule 2 helps the similarity", "similarity and rule 2", "similarity"),
                faster("rule 1 helps both", "all three", "similarity and rule 2"),
                faster("rules 1 and 2 alone pay", "rules 1 and 2"),
            ],
        ),
    ],
    quick_prompts=8,
    main={"table-1": MainTable(512), "table-3": MainTable(512)},
    own=(ASD, CALIBRATED),
    shots={"cnn-dm": 1, "xsum": 1, "humaneval": 0},  # as draft & verify's code has it
    efforts={"prompts": lambda found: len(found.get(SIMILARITIES, "cosines", "MLP") or ())},
)
