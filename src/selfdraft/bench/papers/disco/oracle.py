"""How far the oracle drafts: one run of each task makes table 3 and figures 3 to 5; figure 2 has its own."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....lookahead.fixed import Fixed
from ...charts import Lines, Panels, Series
from ...lookahead.lengths import NUM_BUCKETS, figures, lengths_of
from ...lookahead.oracle import MAX_TOKENS, Oracle
from ...lookahead.turns import Output, Turns
from ...report import Table, number
from ..cells import from_enough
from ..estimates import Estimate, is_above, mean_of, share_of
from ..recipe import Effort, Found, Plot, Section, Trend, Unit, Values
from ..workbench import Workbench
from .lesson import (
    ORACLE,
    PAPER_PROMPTS,
    STATIC_5,
    TASKS,
    draft,
    draft_notes,
    encoded,
    longer,
    measured_prompts,
    shown_draft,
    units,
)

STATIC_TOKENS = 5
WEAK = 0.3
"""A correlation below it."""
MOST_SHOWN = 16
"""Longer drafts share the last row of the histogram."""
LONG_TEXTS = 4
"""Times as many tokens as elsewhere, where texts are short."""

# ------------------------------------------------------------------------------------------------------ measuring


def oracle_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, TASKS, lambda name: _oracle_lengths(bench, name))


def _oracle_lengths(bench: Workbench, name: str) -> Values:
    """Of each text, round by round: how many drafted tokens were kept."""
    method = draft(bench)
    turns = _turns(bench, name, method, {})
    for prompt in encoded(bench, name, measured_prompts(bench, name)):
        turns.count(prompt, turns.measure(prompt))
    (row,) = (row for row in turns.rows() if row["name"] == ORACLE)
    return {
        "texts": turns.oracle_lengths[name],
        "draft": shown_draft(method),
        "num_tokens": row["total"]["num_tokens"],
        "different": row["total"]["different"],
    }


def _turns(bench: Workbench, name: str, method: Mapping[str, Any], others: Mapping[str, Fixed]) -> Turns:
    """The oracle, greedily, beside other rules."""
    num_tokens = longer(bench, LONG_TEXTS)
    rules = {**others, ORACLE: Oracle([[]], room=num_tokens)}
    by_domain = {rule: {name: lookahead} for rule, lookahead in rules.items()}
    return Turns(bench.engine.fork(), method, by_domain, num_tokens, 0.0, bench.seed)


def example_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, ["mbpp"], lambda name: _example(bench, name))


def _example(bench: Workbench, name: str) -> Values:
    """One text, by the oracle and by drafts of one length."""
    method = draft(bench)
    (prompt,) = encoded(bench, name, measured_prompts(bench, name)[:1])
    turns = _turns(bench, name, method, {STATIC_5: Fixed(Fixed.Options(tokens=STATIC_TOKENS))})
    found = {output.arm.name: output for output in turns.measure(prompt)}
    rules = {rule: _course_of(found[rule]) for rule in (STATIC_5, ORACLE)}
    return {"prompt": prompt.id, "draft": shown_draft(method), "rules": rules}


def _course_of(output: Output) -> dict[str, Any]:
    stats, steps = output.generation.stats, output.generation.steps
    return {
        "num_tokens": stats.num_tokens,
        "target_passes": stats.num_target_passes,
        "draft_passes": stats.num_draft_steps,
        "drafted": [step.draft.num_draft_steps for step in steps],
        "kept": lengths_of(output.generation),
        "different": int(output.comparison is not None and output.comparison.verdict == "different"),
    }


# -------------------------------------------------------------------------------------------------------- figure 2


def show_example(found: Found) -> Section:
    rules: Mapping[str, Any] = found.get("mbpp", "rules") or {}
    if not rules:
        return Section([])
    static, oracle = rules[STATIC_5], rules[ORACLE]
    counts = [[name, *(str(one[f"{kind}_passes"]) for kind in ("target", "draft"))] for name, one in rules.items()]
    courses = [
        [f"{STATIC_5}, drafted", _spelled(static["drafted"])],
        [f"{STATIC_5}, kept", _spelled(static["kept"])],
        [f"{ORACLE}, kept", _spelled(oracle["kept"])],
    ]
    return Section(
        [
            Table("passes", ["lookahead", "target passes", "draft passes"], counts),
            Table("tokens, iteration by iteration", ["lookahead", "tokens"], courses),
        ],
        [Effort("examples", 1, 1), Effort("new tokens", oracle["num_tokens"], None)],
        [_fewer_passes("target", static, oracle), _fewer_passes("draft", static, oracle)],
        [
            *draft_notes([found.units["mbpp"]["draft"]]),
            "the last token of the oracle's drafts is the one that is refused",
        ],
        Plot(
            _example_chart(static["drafted"], oracle["kept"]),
            "How far the oracle and a static lookahead draft, iteration by iteration of one text",
        ),
    )


def _spelled(lengths: Sequence[int]) -> str:
    return " ".join(map(str, lengths))


def _fewer_passes(kind: str, static: Mapping[str, Any], oracle: Mapping[str, Any]) -> Trend:
    before, after = (int(one[f"{kind}_passes"]) for one in (static, oracle))
    return Trend(f"the oracle needs fewer {kind} passes than {STATIC_5}", after < before, f"{after} and {before}")


def _example_chart(drafted: Sequence[int], kept: Sequence[int]) -> Lines:
    bars = Series(ORACLE, list(enumerate(kept, start=1)), "bars")
    steps = Series(STATIC_5, list(enumerate(drafted, start=1)), "steps", is_marked=False)
    return Lines([bars, steps], "iteration", "tokens")


# --------------------------------------------------------------------------------------------------------- table 3


@dataclass(frozen=True)
class Lengths:
    """What the oracle kept in the texts of one task."""

    label: str
    texts: Sequence[Sequence[int]]
    drafted_by: str
    num_tokens: int

    @property
    def rounds(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.texts))

    @property
    def figures(self) -> dict[str, Any]:
        return figures(self.texts)

    @property
    def shares(self) -> list[float]:
        """Of rounds that kept so many; the last: so many or more."""
        counts = self.figures["histogram"]
        folded = [*counts[:MOST_SHOWN], *([sum(counts[MOST_SHOWN:])] if len(counts) > MOST_SHOWN else [])]
        return [count / len(self.rounds) for count in folded]


def lengths_by_task(found: Found) -> dict[str, Lengths]:
    """Of tasks that were measured."""
    known = {name: found.units[name] for name in TASKS if name in found.units}
    return {name: _lengths(one) for name, one in known.items() if any(one["texts"])}


def _lengths(unit: Values) -> Lengths:
    return Lengths(unit["label"], unit["texts"], unit["draft"], unit["num_tokens"])


def show_spread(found: Found) -> Section:
    known = lengths_by_task(found)
    rows = [
        [one.label, number(one.figures["mean"], ".1f"), number(one.figures["std"], ".1f"), str(len(one.rounds))]
        for one in known.values()
    ]
    notes = [
        f"an iteration of ours drafts at most {MAX_TOKENS} tokens; the last one of a text is cut where the text ends"
    ]
    return Section(
        [Table("tokens kept by the oracle", ["dataset", "mean", "standard deviation", "iterations"], rows)],
        _efforts(known),
        [_varies(one) for one in known.values()],
        [*_notes(known), *notes] if rows else [],
    )


def _varies(one: Lengths) -> Trend:
    """A deviation has an error itself, as if lengths were normal."""
    mean, rounds = mean_of(one.rounds), len(one.rounds)
    deviation = statistics.pstdev(one.rounds)
    claim = f"{one.label}: lengths vary widely, by at least half of their mean"
    error = None if mean.error is None else deviation / (2 * rounds) ** 0.5
    half = Estimate(mean.value / 2, None if mean.error is None else mean.error / 2)
    return from_enough(is_above(claim, Estimate(deviation, error), half), len(one.texts))


def _efforts(known: Mapping[str, Lengths]) -> list[Effort]:
    num_prompts = min((len(one.texts) for one in known.values()), default=None)
    num_tokens = sum(one.num_tokens for one in known.values())
    return [Effort("prompts a task", num_prompts, PAPER_PROMPTS), Effort("new tokens", num_tokens, None)]


def _notes(known: Mapping[str, Lengths]) -> list[str]:
    return draft_notes(one.drafted_by for one in known.values())


# --------------------------------------------------------------------------------------------------- figures 3 and 5


def show_course_of_alpaca(found: Found) -> Section:
    known = lengths_by_task(found)
    return _show_course({name: known[name] for name in ("alpaca",) if name in known})


def show_course(found: Found) -> Section:
    return _show_course(lengths_by_task(found))


def _show_course(known: Mapping[str, Lengths]) -> Section:
    """Buckets that no iteration of any task falls into are left out."""
    if not known:
        return Section([])
    courses = [one.figures["course"] for one in known.values()]
    rows = [
        [f"{bucket / NUM_BUCKETS:.2f}-{(bucket + 1) / NUM_BUCKETS:.2f}", *(number(mean, ".2f") for mean in means)]
        for bucket, means in enumerate(zip(*courses, strict=True))
        if any(mean is not None for mean in means)
    ]
    header = ["place in the text", *(one.label for one in known.values())]
    return Section(
        [Table("mean of tokens kept by the oracle", header, rows)],
        _efforts(known),
        [_is_weak(one) for one in known.values()],
        [
            *_notes(known),
            f"by twentieths of the iterations of a text (paper: buckets of 0.0001); weak is a correlation below {WEAK}",
        ],
        Plot(
            _panels(known, _course_chart),
            "Mean of tokens kept by the oracle, over the place of the iteration in its text",
            _size(known),
        ),
    )


def correlation(texts: Sequence[Sequence[int]]) -> float | None:
    """Between the place of an iteration in its text, from 0 to 1, and its length; None where one does not vary."""
    pairs = [
        (index / (len(lengths) - 1), length)
        for lengths in texts
        if len(lengths) > 1
        for index, length in enumerate(lengths)
    ]
    if len({place for place, _ in pairs}) < 2 or len({length for _, length in pairs}) < 2:
        return None
    return statistics.correlation(*zip(*pairs, strict=True))


def _is_weak(one: Lengths) -> Trend:
    claim = f"{one.label}: the place in the text goes only weakly with the length"
    found = correlation(one.texts)
    if found is None:
        return Trend(claim, None, "too few iterations")
    trend = is_above(claim, Estimate(WEAK), Estimate(abs(found), len(one.rounds) ** -0.5))
    return from_enough(trend, len(one.texts))


# -------------------------------------------------------------------------------------------------------- figure 4


def show_histogram(found: Found) -> Section:
    known = lengths_by_task(found)
    if not known:
        return Section([])
    shares = [one.shares for one in known.values()]
    rows = [
        [f"{length}{'+' * (length == MOST_SHOWN)}", *(number(share, ".1%") for share in at)]
        for length, at in enumerate(itertools.zip_longest(*shares, fillvalue=0.0))
    ]
    return Section(
        [Table("share of iterations", ["tokens kept", *(one.label for one in known.values())], rows)],
        _efforts(known),
        [_has_no_usual_length(one) for one in known.values()],
        _notes(known),
        plot=Plot(
            _panels(known, _histogram),
            "Share of iterations by how many tokens the oracle kept",
            _size(known),
        ),
    )


def _has_no_usual_length(one: Lengths) -> Trend:
    """Of single lengths, also of those that share a row."""
    count = len(one.rounds)
    largest = share_of(max(one.figures["histogram"]) / count, count)
    claim = f"{one.label}: lengths vary widely, no one of them is right in half of the iterations"
    return from_enough(is_above(claim, Estimate(0.5), largest), len(one.texts))


# --------------------------------------------------------------------------------------------------------- drawing


def _size(known: Mapping[str, Lengths]) -> tuple[float, float]:
    return (8.0, 4.0) if len(known) == 1 else (10.0, 6.5)


def _panels(known: Mapping[str, Lengths], chart: Callable[[Lengths, int], Lines]) -> Panels:
    """A panel of each task."""
    return Panels([chart(one, color) for color, one in enumerate(known.values())], columns=min(2, len(known)))


def _course_chart(one: Lengths, color: int) -> Lines:
    points = [((bucket + 0.5) / NUM_BUCKETS, mean) for bucket, mean in enumerate(one.figures["course"])]
    labels = ("place of the iteration in its text", "mean of tokens kept")
    return Lines([Series("", points, "bars", color)], *labels, x_limits=(-0.02, 1.02), title=one.label)


def _histogram(one: Lengths, color: int) -> Lines:
    ticks = {float(length): f"{length}" for length in range(0, MOST_SHOWN, 4)} | {MOST_SHOWN: f"{MOST_SHOWN}+"}
    bars = Series("", list(enumerate(one.shares)), "bars", color)
    limits = (-0.6, MOST_SHOWN + 0.6)
    return Lines([bars], "tokens kept", "share of iterations", ticks=ticks, x_limits=limits, title=one.label)
