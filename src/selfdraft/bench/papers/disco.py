"""DISCO (arXiv:2405.04304): how far an oracle drafts, how well a classifier tells, and what a token takes.

The oracle comes first, then the classifier, then what both are for: tables 1, 6 and 2 take most of the time.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...calibrate.training import f1
from ...lookahead.oracle import MAX_TOKENS
from ...measure.estimate import Estimate, Floats, mean_ratio, ratio, resampled, speed
from ...measure.records import OFF
from ..charts import Lines, Panels, Series
from ..tables import Table, number
from . import disco_fit as fit
from .claims import EachClaim, Side, Units, above, denied, faster, in_each, is_above
from .disco_fit import BY_TV, DISCO, FITTED, HEURISTIC, ORACLE, ORACLE_LENGTH, PERPLEXITY, STATIC_5, STATIC_OPT, TASKS
from .experiment import Claim, Effort, Experiment, Found, Judgement, MainTable, Plot, Recipe
from .forms import TableOf, by_arm
from .workbench import UnitsOf, joined

NUM_BUCKETS, MOST_SHOWN = 20, 16  # longer drafts share the last row of the histogram
WEAK = 0.3  # a correlation below it
FEW_TASKS = 3


def _example(found: Found) -> dict[str, Mapping[str, Any]]:
    return {name: texts[0] for name, texts in (found.get("mbpp", "rules") or {}).items()}


def _passes(found: Found) -> Table:
    rows = [
        [name, str(len(one["kept"])), str(sum(one["drafted"])), " ".join(map(str, one["kept"]))]
        for name, one in _example(found).items()
    ]
    return Table("", ["lookahead", "target passes", "draft passes", "tokens kept, iteration by iteration"], rows)


def _draw_example(found: Found) -> Plot | None:
    if not (rules := _example(found)):
        return None
    oracle, static = (list(enumerate(rules[name][kind], 1)) for name, kind in ((ORACLE, "kept"), (STATIC_5, "drafted")))
    series = [Series(ORACLE, oracle, "bars", 0), Series(STATIC_5, static, "dashed", 5, is_marked=False)]
    return Plot(Lines(series, "iteration", "tokens"), "How far the oracle and a static lookahead draft in one text")


# ------------------------------------------------------------------------------------------ table 3, figures 3 to 5


def kept(found: Found, unit: str) -> list[list[int]]:
    """Of each text, round by round: how many drafted tokens were kept."""
    return [one["kept"] for one in (found.get(unit, "rules") or {}).get(ORACLE, [])]


def _all(found: Found) -> list[str]:
    return [unit for unit in found.units if any(kept(found, unit))]


def _claim(
    text: str,
    sums_of: Callable[[Sequence[int]], Sequence[float]],
    value_of: Callable[[Floats], Floats],
    bound: float,
    label: str,
    units: Units = None,
) -> EachClaim:
    """Of each task, by sums over its texts."""

    def value(found: Found, unit: str) -> Estimate | None:
        return resampled([sums_of(lengths) for lengths in kept(found, unit)], value_of)

    return above(f"{text} on {{task}}", value, bound, label, units=units)


def _spread(found: Found) -> Table:
    rows = []
    for unit in _all(found):
        lengths = list(itertools.chain.from_iterable(kept(found, unit)))
        moments = [f"{moment(lengths):.1f}" for moment in (statistics.fmean, statistics.pstdev)]
        rows.append([found.label(unit), *moments, str(len(lengths)), str(len(kept(found, unit)))])
    return Table("tokens kept by the oracle", ["dataset", "mean", "deviation", "iterations", "texts"], rows)


VARIES = _claim(
    "lengths vary widely, by at least half of their mean",
    lambda text: (len(text), sum(text), sum(length**2 for length in text)),
    lambda of: np.sqrt(np.maximum(of[:, 2] * of[:, 0] / of[:, 1] ** 2 - 1, 0)),
    0.5,
    "standard deviation over mean",
)
NO_USUAL_LENGTH = denied(
    _claim(
        "lengths vary widely, no one of them is right in half of the iterations",
        lambda text: [text.count(length) for length in range(MAX_TOKENS + 1)],
        lambda of: of.max(1) / of.sum(1),
        0.5,
        "share of the most frequent length",
    )
)


def shares(texts: Sequence[Sequence[int]]) -> list[float | None]:
    """Of rounds that kept N tokens, the last: that many or more; None: longer than any was."""
    counts = Counter(min(length, MOST_SHOWN) for text in texts for length in text)
    return [counts[length] / counts.total() if length <= max(counts) else None for length in range(MOST_SHOWN + 1)]


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


def _correlation(of: Floats) -> Floats:
    """Its size, of such sums; not a number where one of both does not vary."""
    count, x, y, xx, yy, xy = of.T
    return np.asarray(np.abs(count * xy - x * y) / np.sqrt((count * xx - x**2) * (count * yy - y**2)))


@dataclass(frozen=True)
class Course:
    """Numbers of each task, as a table and as bars. `places`: on x, each with its heading."""

    values_of: Callable[[Sequence[Sequence[int]]], Sequence[float | None]]
    places: Mapping[float, str]
    form: str
    x_label: str
    y_label: str
    units: Units = None

    def rows(self, found: Found) -> dict[str, Sequence[float | None]]:
        names = [unit for unit in _all(found) if self.units is None or unit in self.units]
        return {found.label(unit): self.values_of(kept(found, unit)) for unit in names}

    def table(self, found: Found) -> Table:
        rows = self.rows(found)
        shown = [place for place, values in enumerate(zip(*rows.values(), strict=True)) if {*values} - {None}]
        cells = [[name, *(number(values[place], self.form) for place in shown)] for name, values in rows.items()]
        headings = list(self.places.values())
        return Table(f"{self.y_label} by the oracle", [self.x_label, *(headings[place] for place in shown)], cells)

    def draw(self, found: Found) -> Plot | None:
        bars = {name: list(zip(self.places, values, strict=True)) for name, values in self.rows(found).items()}
        series = [Series("", points, "bars", color) for color, points in enumerate(bars.values())]
        panels = [Lines([one], self.x_label, self.y_label, title=name) for name, one in zip(bars, series, strict=True)]
        size = (8.0, 4.0) if len(panels) == 1 else (10.0, 6.5)
        alt = f"{self.y_label.capitalize()} by the oracle, over {self.x_label}"
        return Plot(Panels(panels, columns=min(2, len(panels))), alt, size) if panels else None


LENGTHS = {float(length): f"{length}{'+' * (length == MOST_SHOWN)}" for length in range(MOST_SHOWN + 1)}
PLACES = {(n + 0.5) / NUM_BUCKETS: f"{n / NUM_BUCKETS:.2f}" for n in range(NUM_BUCKETS)}
HISTOGRAM = Course(shares, LENGTHS, ".1%", "tokens kept", "share of iterations")
ORACLE_UNITS = fit.per_task(TASKS, fit.run_oracle)


def _figure(name: str, shown: Course, claim: Claim) -> Experiment:
    return Experiment(name, ORACLE_UNITS, [shown.table], [claim], chart=shown.draw, shares="table-3")


def _course(name: str, units: Units = None) -> Experiment:
    text = "the place in the text goes only weakly with the length"
    claim = denied(_claim(text, _moments, _correlation, WEAK, "correlation", units))
    return _figure(name, Course(course, PLACES, ".2f", "place in the text", "mean of tokens kept", units), claim)


F1_RULES = {"static": "F1 static-SL", "disco": "F1 DISCO", "tv": fit.BY_TV, "any static": "any static length"}
HIGHER_F1 = "DISCO's F1 is above that of"
F1_BASES = {"static": "the static length that is fastest", "any static": "any static length"}


def _f1_table(found: Found) -> Table:
    rows = [
        [found.label(unit), *(_percent(one["hits"].get(rule, ())) for rule in F1_RULES), str(one["num_tokens"])]
        for unit, one in found.units.items()
    ]
    return Table("", ["dataset", *F1_RULES.values(), "tokens"], rows)


def _percent(hits: Sequence[tuple[int, int]]) -> str:
    """With what resampled texts say of it."""
    known = resampled([(100 * right, said) for right, said in hits], lambda of: of[:, 0] / of[:, 1])
    return f"{known.value:.0f} [{known.low:.0f}, {known.high:.0f}]" if known else "-"


def _tells_better(base: str, told: str, found: Found, unit: str) -> Judgement | None:
    own, other = (found.get(unit, "hits", rule) for rule in ("disco", base))
    rows = [(*mine, *theirs) for mine, theirs in zip(own, other, strict=True)]
    over = resampled(rows, lambda of: of[:, 0] / of[:, 1] * of[:, 3] / of[:, 2])
    return is_above(told, over, 1.0, f"{f1(own):.2f} and {f1(other):.2f}, ratio", unit="x")


# -------------------------------------------------------------------------------------------------- tables 1, 6 and 2

RULES = (HEURISTIC, STATIC_5, STATIC_OPT, DISCO, BY_TV, ORACLE, ORACLE_LENGTH)
SAMPLED_RULES = (STATIC_5, DISCO, PERPLEXITY)
BASES = (STATIC_OPT, HEURISTIC)
SAMPLED, GREEDY = "T=1 cnn-dm", "T=0 cnn-dm"
LATENCY_UNITS = fit.per_task(TASKS, partial(fit.compare, rules=RULES))


def _at(temperature: float) -> UnitsOf:
    measure = partial(fit.compare, rules=SAMPLED_RULES, temperature=temperature)
    return fit.per_task(["cnn-dm"], measure, f"T={temperature:g} ")


def _latencies(rules: Sequence[str]) -> TableOf:
    arms = {OFF: "Target", **{rule: rule for rule in rules}}
    return by_arm(("ms/token", "speed-up", "alpha", "c"), arms, first="benchmark")


def saved(found: Found, unit: str, base: str) -> Estimate | None:
    """Percent of a rule's time that DISCO saves, on the same prompts."""
    return _saved(ratio(Side(unit, base).records(found), Side(unit, DISCO).records(found), speed, 0))


def _saved(share: Estimate | None) -> Estimate | None:
    if share is None:
        return None
    value, low, high = (100 * (1 - one) for one in (share.value, share.high, share.low))
    return Estimate(value, low, high, share.count)


def average(found: Found, base: str) -> Estimate | None:
    """Over tasks; prompts are resampled within each."""
    arms = [[Side(unit, arm).records(found) for arm in (base, DISCO)] for unit in found.units]
    return _saved(mean_ratio([(one, other) for one, other in arms if one and other], speed, 0))


def _gains(found: Found) -> Table:
    gains = {found.label(unit): [saved(found, unit, base) for base in BASES] for unit in found.units}
    gains |= {"Average": [average(found, base) for base in BASES]} if gains else {}
    rows = [[name, *(str(one or "-") for one in ones)] for name, ones in gains.items()]
    return Table("percent of the latency that DISCO saves", ["dataset", *BASES], rows)


def _saves(found: Found, base: str) -> Judgement | None:
    """Of a few tasks; of fewer it is no average."""
    claim, known = f"on average DISCO takes less time than {base}", average(found, base)
    made = is_above(claim, known, 0.0, "percent saved")
    is_of_few = sum(bool(saved(found, unit, base)) for unit in found.units) < FEW_TASKS
    return replace(made, outcome=None, because=f"too few tasks: {made.because}") if made and is_of_few else made


def _fewest(name: str) -> Effort:
    return lambda found: min((one["fit"][name] for one in found.units.values()), default=None)


EFFORTS = {"prompts to train with": _fewest("num_train"), "prompts to choose settings with": _fewest("num_validation")}
RECIPE = Recipe(
    "disco",
    [
        Experiment(
            "figure-2",
            fit.per_task(["mbpp"], partial(fit.run_oracle, most=1, others={STATIC_5: fit.FIVE})),
            [_passes],
            notes=[fit.draft_note],
            chart=_draw_example,
        ),
        Experiment("table-3", ORACLE_UNITS, [_spread], [VARIES], notes=[fit.draft_note]),
        _course("figure-3", ["alpaca"]),
        _figure("figure-4", HISTOGRAM, NO_USUAL_LENGTH),
        _course("figure-5"),
        Experiment(
            "table-5",
            fit.per_task(FITTED, fit.count_hits),
            [_f1_table],
            [
                in_each(f"{HIGHER_F1} {text} on {{task}}", partial(_tells_better, base))
                for base, text in F1_BASES.items()
            ],
        ),
        Experiment(
            "table-1",
            LATENCY_UNITS,
            [_latencies(RULES)],
            [
                *(faster(f"DISCO is faster than {base} on {{task}}", DISCO, base) for base in RULES[:3]),
                *(faster(f"the {bound} is faster than DISCO on {{task}}", bound, DISCO) for bound in RULES[-2:]),
                faster("DISCO is faster than plain decoding on {task}", DISCO),
            ],
            [fit.draft_note, fit.fit_notes],
        ),
        Experiment(
            "table-6", LATENCY_UNITS, [_gains], [*(partial(_saves, base=base) for base in BASES)], shares="table-1"
        ),
        Experiment(
            "table-2",
            joined(_at(1.0), _at(0.0)),
            [_latencies(SAMPLED_RULES)],
            [
                faster(f"DISCO is faster than {STATIC_5} on {{task}}", DISCO, STATIC_5, units=[SAMPLED]),
                faster("DISCO is faster than plain decoding on {task}", DISCO, units=[SAMPLED]),
                faster("DISCO is faster than going by perplexity on {task}", DISCO, PERPLEXITY, units=[GREEDY]),
                faster(f"{STATIC_5} is faster than {PERPLEXITY} on {{task}}", STATIC_5, PERPLEXITY, units=[GREEDY]),
            ],
        ),
    ],
    quick_prompts=3,
    efforts=EFFORTS,
    main={"table-1": MainTable(256), "table-2": MainTable(256)},
    own=(DISCO, BY_TV),
    oracle=ORACLE_LENGTH,
    has_drafters=True,
    shots={"mbpp": 0, "humaneval": 0},
)
