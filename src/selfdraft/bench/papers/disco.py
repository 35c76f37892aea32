"""DISCO (arXiv:2405.04304): how far an oracle drafts, how well a classifier tells, and what a token takes.

The oracle comes first, then the classifier, then what both are for: tables 1, 6 and 2 take most of the time.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...calibrate.training import f1
from ...lookahead.oracle import MAX_TOKENS
from ...measure.estimate import Estimate, Floats, mean, ratio, resampled, speed
from ...measure.records import OFF
from ..charts import Lines, Panels, Series
from ..tables import Table, number
from . import disco_fit
from .claims import Side, faster, is_above, is_below, judged_by
from .disco_fit import DISCO, HEURISTIC, ORACLE, PERPLEXITY, STATIC_5, STATIC_OPT, TASKS, TEACHERS, units
from .experiment import Claim, Effort, Experiment, Found, Judgement, Plot, Recipe, Unit, prompts_a_task
from .forms import by_arm
from .workbench import Workbench

PAPER_PROMPTS, PAPER_TRAINING, PAPER_VALIDATION = 80, 374, 80
"""Of a task; it trains with 374 (MBPP) or 500."""
NUM_BUCKETS = 20
WEAK = 0.3
"""A correlation below it."""
MOST_SHOWN = 16
"""Longer drafts share the last row of the histogram."""

# --------------------------------------------------------------------------------------------------------- figure 2


def _example_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, ["mbpp"], lambda task: disco_fit.run_example(bench, task))


def _example(found: Found) -> dict[str, Mapping[str, Any]]:
    return {name: texts[0] for name, texts in (found.get("mbpp", "rules") or {}).items()}


def _passes(found: Found) -> Table:
    header = ["lookahead", "target passes", "draft passes"]
    rows = [[name, *(str(one[kind]) for kind in header[1:])] for name, one in _example(found).items()]
    return Table("passes", header, rows)


def _iterations(found: Found) -> Table:
    rows = [
        [f"{name}, {kind}", " ".join(map(str, one[kind]))]
        for name, one in _example(found).items()
        for kind in (("kept",) if name == ORACLE else ("drafted", "kept"))
    ]
    return Table("tokens, iteration by iteration", ["lookahead", "tokens"], rows)


def _draw_example(found: Found) -> Plot | None:
    if not (rules := _example(found)):
        return None
    oracle, static = (list(enumerate(rules[name][kind], 1)) for name, kind in ((ORACLE, "kept"), (STATIC_5, "drafted")))
    series = [Series(ORACLE, oracle, "bars", 0), Series(STATIC_5, static, "dashed", 5, is_marked=False)]
    alt = "How far the oracle and a static lookahead draft, iteration by iteration of one text"
    return Plot(Lines(series, "iteration", "tokens"), alt)


# ------------------------------------------------------------------------------------------ table 3, figures 3 to 5

Names = Callable[[Found], Sequence[str]]
Points = Sequence[tuple[float, float | None]]


def _oracle_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, TASKS, lambda task: disco_fit.run_oracle(bench, task, task.measured))


def kept(found: Found, unit: str) -> list[list[int]]:
    """Of each text, round by round: how many drafted tokens were kept."""
    return [one["kept"] for one in (found.get(unit, "rules") or {}).get(ORACLE, [])]


def _all(found: Found) -> list[str]:
    return [unit for unit in found.units if any(kept(found, unit))]


def _alpaca(found: Found) -> list[str]:
    return [unit for unit in _all(found) if unit == "alpaca"]


def _claim(
    text: str,
    sums_of: Callable[[Sequence[int]], Sequence[float]],
    value_of: Callable[[Floats], Floats],
    told: str,
    bound: float,
    judge: Callable[..., Judgement | None] = is_below,
    names: Names = _all,
) -> Claim:
    """Of each task, from sums over its texts."""

    def claim(found: Found) -> Iterator[Judgement | None]:
        for unit in names(found):
            estimate = resampled([sums_of(lengths) for lengths in kept(found, unit)], value_of)
            yield judge(f"{found.label(unit)}: {text}", estimate, bound, told)

    return judged_by(claim)


def _spread(found: Found) -> Table:
    rows = []
    for unit in _all(found):
        lengths = list(itertools.chain.from_iterable(kept(found, unit)))
        moments = [f"{moment(lengths):.1f}" for moment in (statistics.fmean, statistics.pstdev)]
        rows.append([found.label(unit), *moments, str(len(lengths))])
    return Table("tokens kept by the oracle", ["dataset", "mean", "standard deviation", "iterations"], rows)


def _deviation(of: Floats) -> Floats:
    """Over the mean, of sums: count, x, x x."""
    return np.asarray(np.sqrt(np.maximum(of[:, 2] * of[:, 0] / of[:, 1] ** 2 - 1, 0)))


def shares(texts: Sequence[Sequence[int]]) -> list[float]:
    """Of rounds that kept N tokens; the last: that many or more."""
    counts = Counter(min(length, MOST_SHOWN) for text in texts for length in text)
    return [counts[length] / counts.total() for length in range(max(counts, default=-1) + 1)]


def _histogram(found: Found) -> Table:
    columns = itertools.zip_longest(*(shares(kept(found, unit)) for unit in _all(found)), fillvalue=0.0)
    rows = [
        [f"{length}{'+' * (length == MOST_SHOWN)}", *(number(share, ".1%") for share in row)]
        for length, row in enumerate(columns)
    ]
    return Table("share of iterations", ["tokens kept", *map(found.label, _all(found))], rows)


def _draw_histogram(found: Found) -> Plot | None:
    bars: dict[str, Points] = {unit: list(enumerate(shares(kept(found, unit)))) for unit in _all(found)}
    alt = "Share of iterations by how many tokens the oracle kept"
    return _draw_bars(found, bars, f"tokens kept ({MOST_SHOWN}: or more)", "share of iterations", alt)


def course(texts: Sequence[Sequence[int]]) -> list[float | None]:
    """The mean in each twentieth of a text's rounds; None: no round falls into it."""
    buckets: list[list[int]] = [[] for _ in range(NUM_BUCKETS)]
    for place, length in itertools.chain.from_iterable(map(_places, texts)):
        buckets[min(int(NUM_BUCKETS * place), NUM_BUCKETS - 1)].append(length)
    return [statistics.fmean(bucket) if bucket else None for bucket in buckets]


def _places(text: Sequence[int]) -> list[tuple[float, int]]:
    """Round j of n is at j / (n - 1)."""
    return [(index / max(1, len(text) - 1), length) for index, length in enumerate(text)]


def _moments(text: Sequence[int]) -> list[float]:
    """Of places and lengths: count, x, y, x x, y y, x y; a single round has no place."""
    terms = [(1.0, x, y, x * x, y * y, x * y) for x, y in (_places(text) if len(text) > 1 else [])]
    return [sum(column) for column in zip(*terms, strict=True)] or [0.0] * 6


def correlation(of: Floats) -> Floats:
    """Its size, of such sums; not a number where one of both does not vary."""
    count, x, y, xx, yy, xy = of.T
    return np.asarray(np.abs(count * xy - x * y) / np.sqrt((count * xx - x**2) * (count * yy - y**2)))


def _course_table(names: Names, found: Found) -> Table:
    courses = [course(kept(found, unit)) for unit in names(found)]
    rows = [
        [f"{bucket / NUM_BUCKETS:.2f}-{(bucket + 1) / NUM_BUCKETS:.2f}", *(number(value, ".2f") for value in means)]
        for bucket, means in enumerate(zip(*courses, strict=True))
        if any(value is not None for value in means)
    ]
    return Table("mean of tokens kept by the oracle", ["place in the text", *map(found.label, names(found))], rows)


def _draw_course(names: Names, found: Found) -> Plot | None:
    middles = [(bucket + 0.5) / NUM_BUCKETS for bucket in range(NUM_BUCKETS)]
    bars: dict[str, Points] = {
        unit: list(zip(middles, course(kept(found, unit)), strict=True)) for unit in names(found)
    }
    alt = "Mean of tokens kept by the oracle, over the place of the iteration in its text"
    return _draw_bars(found, bars, "place of the iteration in its text", "mean of tokens kept", alt)


def _draw_bars(found: Found, bars: Mapping[str, Points], x_label: str, y_label: str, alt: str) -> Plot | None:
    """A panel of each task."""
    panels = [
        Lines([Series("", points, "bars", place)], x_label, y_label, title=found.label(unit))
        for place, (unit, points) in enumerate(bars.items())
    ]
    size = (8.0, 4.0) if len(panels) == 1 else (10.0, 6.5)
    return Plot(Panels(panels, columns=min(2, len(panels))), alt, size) if panels else None


def _course_experiment(name: str, title: str, names: Names) -> Experiment:
    weak = "the place in the text goes only weakly with the length"
    return Experiment(
        name,
        title,
        _oracle_units,
        [partial(_course_table, names)],
        [_claim(weak, _moments, correlation, "correlation", WEAK, names=names)],
        notes=[f"by twentieths of a text's iterations (paper: buckets of 0.0001); weak: a correlation below {WEAK}"],
        chart=partial(_draw_course, names),
        shares="table-3",
    )


# --------------------------------------------------------------------------------------------------------- table 5

F1_RULES = {"static": "F1 static-SL", "disco": "F1 DISCO", "any static": "any static length", "at half": "DISCO at 0.5"}
F1_BASES = {"static": "the static length that is fastest", "any static": "any static length"}


def _f1_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, disco_fit.FITTED, lambda task: disco_fit.count_hits(bench, task))


def _f1_table(found: Found) -> Table:
    rows = [
        [found.label(unit), *(f"{100 * f1(one['hits'][rule]):.0f}" for rule in F1_RULES), str(one["num_tokens"])]
        for unit, one in found.units.items()
    ]
    return Table("", ["dataset", *F1_RULES.values(), "tokens"], rows)


def _tells_better(found: Found) -> Iterator[Judgement | None]:
    for (unit, one), (base, title) in itertools.product(found.units.items(), F1_BASES.items()):
        own, other = one["hits"]["disco"], one["hits"][base]
        rows = [(*mine, *theirs) for mine, theirs in zip(own, other, strict=True)]
        over = resampled(rows, lambda of: of[:, 0] / of[:, 1] * of[:, 3] / of[:, 2])
        told = f"{f1(own):.2f} and {f1(other):.2f}, ratio"
        yield is_above(f"{found.label(unit)}: DISCO's F1 is above that of {title}", over, 1.0, told, unit="x")


# -------------------------------------------------------------------------------------------------- tables 1, 6 and 2

RULES = (HEURISTIC, STATIC_5, STATIC_OPT, DISCO, ORACLE)
SAMPLED_RULES = (STATIC_5, DISCO, PERPLEXITY)
BASES = (STATIC_OPT, HEURISTIC)
SAMPLED, GREEDY = "T=1 cnn-dm", "T=0 cnn-dm"
COLUMNS = ("ms/token", "speed-up", "c")


def _latency_units(bench: Workbench) -> Iterable[Unit]:
    for name in TASKS:
        suffix = ", transfer learning" if name in TEACHERS else ""
        yield from units(bench, [name], partial(disco_fit.compare, bench, RULES, suffix, 0.0))


def _sampled_units(bench: Workbench) -> Iterable[Unit]:
    for temperature in (1.0, 0.0):
        measure = partial(disco_fit.compare, bench, SAMPLED_RULES, f", T = {temperature:g}", temperature)
        yield from units(bench, ["cnn-dm"], measure, f"T={temperature:g} ")


def _arms(rules: Sequence[str]) -> dict[str, str]:
    return {OFF: "Target", **{rule: rule for rule in rules}}


def saved(found: Found, unit: str, base: str) -> Estimate | None:
    """Percent of a rule's time that DISCO saves, on the same prompts."""
    share = ratio(Side(unit, base).records(found), Side(unit, DISCO).records(found), speed, 0)
    return share and Estimate(*(100 * (1 - one) for one in (share.value, share.high, share.low)), share.count)


def average(found: Found, base: str) -> Estimate | None:
    """Over tasks, which are resampled; it counts as of no more than the task with fewest prompts has."""
    known = [one for unit in found.units if (one := saved(found, unit, base))]
    over_tasks = mean([one.value for one in known])
    return over_tasks and replace(over_tasks, count=min(over_tasks.count, *(one.count for one in known)))


def _gains(found: Found) -> Table:
    rows = [[found.label(unit), *(_percent(saved(found, unit, base)) for base in BASES)] for unit in found.units]
    rows += [["Average", *(_percent(average(found, base)) for base in BASES)]] if rows else []
    return Table("percent of the latency that DISCO saves", ["dataset", *BASES], rows)


def _percent(found: Estimate | None) -> str:
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]" if found else "-"


def _saves(found: Found) -> Iterator[Judgement | None]:
    for base in BASES:
        yield is_above(f"on average DISCO takes less time than {base}", average(found, base), 0.0, "percent saved")


def _fewest(name: str) -> Callable[[Found], float | None]:
    return lambda found: min((one["fit"][name] for one in found.units.values()), default=None)


FIT_EFFORTS = (
    Effort("prompts to train with", _fewest("num_train"), PAPER_TRAINING),
    Effort("prompts to choose settings with", _fewest("num_validation"), PAPER_VALIDATION),
)


def _oracle_prompts(found: Found) -> float | None:
    return min((len(kept(found, unit)) for unit in _all(found)), default=None)


RECIPE = Recipe(
    "disco",
    [
        Experiment(
            "figure-2",
            "oracle and static lookahead in one text",
            _example_units,
            [_passes, _iterations],
            efforts=[Effort("examples", lambda found: len(found.units), 1)],
            notes=[disco_fit.draft_note, "the last token of the oracle's drafts is the one that is refused"],
            chart=_draw_example,
        ),
        Experiment(
            "table-3",
            "how far the oracle drafts",
            _oracle_units,
            [_spread],
            [
                _claim(
                    "lengths vary widely, by at least half of their mean",
                    lambda text: (len(text), sum(text), sum(length**2 for length in text)),
                    _deviation,
                    "standard deviation over mean",
                    0.5,
                    is_above,
                )
            ],
            [Effort("prompts a task", _oracle_prompts, PAPER_PROMPTS)],
            [disco_fit.draft_note, f"an iteration drafts at most {MAX_TOKENS} tokens; the last one ends with its text"],
        ),
        _course_experiment("figure-3", "the oracle over the iterations, Alpaca", _alpaca),
        Experiment(
            "figure-4",
            "histogram of the oracle's lookahead",
            _oracle_units,
            [_histogram],
            [
                _claim(
                    "lengths vary widely, no one of them is right in half of the iterations",
                    lambda text: [text.count(length) for length in range(MAX_TOKENS + 1)],
                    lambda of: of.max(1) / of.sum(1),
                    "share of the most frequent length",
                    0.5,
                )
            ],
            chart=_draw_histogram,
            shares="table-3",
        ),
        _course_experiment("figure-5", "the oracle over the iterations", _all),
        Experiment(
            "table-5",
            "how well the classifier tells",
            _f1_units,
            [_f1_table],
            [judged_by(_tells_better)],
            FIT_EFFORTS,
            [
                "in percent, at the length and the threshold that promised most speed; then the static length with the "
                "highest F1, and the classifier at 0.5",
                "a token's label is whether the target said it (appendix D of the paper; its section 4 names total "
                "variation); the prompts neither trained nor chose settings (the paper's chose them)",
            ],
        ),
        Experiment(
            "table-1",
            "latency of each rule, greedy",
            _latency_units,
            [by_arm(COLUMNS, _arms(RULES), first="benchmark")],
            [
                faster("DISCO is faster than the best static lookahead on {task}", DISCO, STATIC_OPT),
                faster(f"DISCO is faster than {STATIC_5} on {{task}}", DISCO, STATIC_5),
                faster("DISCO is faster than the heuristic on {task}", DISCO, HEURISTIC),
                faster("the oracle is faster than DISCO on {task}", ORACLE, DISCO),
                faster("DISCO is faster than plain decoding on {task}", DISCO),
            ],
            [prompts_a_task(PAPER_PROMPTS), *FIT_EFFORTS],
            [disco_fit.draft_note, disco_fit.fit_notes],
        ),
        Experiment(
            "table-6",
            "what DISCO saves",
            _latency_units,
            [_gains],
            [judged_by(_saves)],
            notes=["made of what table 1 measured; the interval of an average is by how tasks differ"],
            shares="table-1",
        ),
        Experiment(
            "table-2",
            "with a temperature, and by perplexity",
            _sampled_units,
            [by_arm(COLUMNS, _arms(SAMPLED_RULES), first="benchmark")],
            [
                faster(f"DISCO is faster than {STATIC_5} at T = 1", DISCO, STATIC_5, units=[SAMPLED]),
                faster("DISCO is faster than plain decoding at T = 1", DISCO, units=[SAMPLED]),
                faster("DISCO is faster than going by perplexity", DISCO, PERPLEXITY, units=[GREEDY]),
                faster(f"{STATIC_5} is faster than going by perplexity", STATIC_5, PERPLEXITY, units=[GREEDY]),
            ],
            [prompts_a_task(PAPER_PROMPTS)],
            [
                "the published speed-up of the perplexity rule is over the greedy target of table 1: read it at T = 0",
                "where tokens are drawn, draft and target draw with the same noise, and the text is that of plain "
                "decoding; the paper's rejection sampling keeps the distribution",
            ],
        ),
    ],
    quick_prompts=3,
)
