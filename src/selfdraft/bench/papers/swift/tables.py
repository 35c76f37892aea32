"""Tables of the SWIFT paper: text (2 and 4) and code (3); its analyses stand in a file of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...report import Table, number, times
from ...ways import OFF
from ..cells import (
    NOT_MEASURED,
    figure,
    from_enough,
    has_larger_figure,
    is_faster,
    is_larger,
    pays,
    speed,
    speed_cell,
    spread,
    told,
)
from ..recipe import Effort, Experiment, Found, Section, Trend, Unit, Values
from ..tasks import Task
from ..workbench import Workbench
from .analyses import ANALYSES
from .lessons import swift_lesson
from .methods import LOOKAHEAD, PARALLEL, SWIFT, VANILLA, accelerating, jacobi
from .shown import (
    EXAMPLES,
    PAPER_CODE_PROMPTS,
    alpha_cell,
    does_not_pay,
    efforts,
    figures_row,
    is_measured,
    length_cell,
    mean,
    measured,
    notes,
    skip_ratio,
    task_label,
)

TEXT_TOKENS = {"cnn-dm": 64, "gsm8k": 64, "tinystories": 128}
"""New ones of a text at most, in the paper."""
NEARLY_ALL = 0.98
HIGH_ACCEPTANCE = 0.9
ROWS = {OFF: VANILLA, PARALLEL: PARALLEL, LOOKAHEAD: LOOKAHEAD, SWIFT: SWIFT}
"""Ways, and what the paper calls them."""


# ------------------------------------------------------------------------------------------------------ table 2


def plug_and_play_units(bench: Workbench) -> Iterable[Unit]:
    """Table 4 tells more of the same runs."""
    methods = {**jacobi(), SWIFT: accelerating()}

    def measure(task: Task) -> Values:
        tokens = min(bench.scale.tokens, TEXT_TOKENS[task.name])
        return measured(bench, task, methods, swift_lesson(bench, task), tokens=tokens)

    return bench.for_each(list(TEXT_TOKENS), measure)


def show_plug_and_play(found: Found) -> Section:
    rows = [_text_row(found, way, title) for way, title in ROWS.items() if _tasks_of(found, way)]
    labels = [task_label(found, task, task) for task in TEXT_TOKENS]
    header = ["method", *(cell for label in labels for cell in (f"{label} M", label)), "tokens/s", "overall"]
    trends = [trend for task in TEXT_TOKENS for trend in _text_trends(found, task)]
    return Section(
        [Table("M and speed-up", header, rows)],
        _text_efforts(found),
        told(trends),
        notes(
            found,
            "† more than 98 % of the drafted tokens were accepted; tokens/s: mean of the tasks that were measured",
            "Parallel: Jacobi decoding of 8 tokens; Lookahead: a window of 5 and 4 n-grams of 4 tokens. The paper does "
            "not say its own; Lookahead's authors take more, for large models, which a wider pass costs less",
            EXAMPLES,
        ),
    )


def _text_efforts(found: Found) -> list[Effort]:
    return efforts(found, list(TEXT_TOKENS), tokens=max(TEXT_TOKENS.values()), steps=None)


def _tasks_of(found: Found, way: str) -> list[str]:
    return [task for task in TEXT_TOKENS if is_measured(found, task, way)]


def _text_row(found: Found, way: str, title: str) -> list[str]:
    cells = [cell for task in TEXT_TOKENS for cell in (length_cell(found, task, way), _marked_speed(found, task, way))]
    tasks = _tasks_of(found, way)
    own, plain = (mean(figure(found, task, one, "tokens_per_second") for task in tasks) for one in (way, OFF))
    return [title, *cells, number(own, ".2f"), times(own / plain if own and plain else None)]


def _marked_speed(found: Found, task: str, way: str) -> str:
    alpha = figure(found, task, way, "acceptance_rate")
    return speed_cell(found, task, way) + ("†" if alpha is not None and alpha > NEARLY_ALL else "")


def _text_trends(found: Found, task: str) -> list[Trend]:
    label = task_label(found, task, task)
    swift, lookahead = (task, SWIFT), (task, LOOKAHEAD)
    return [
        pays(f"SWIFT is faster than plain decoding on {label}", found, *swift),
        is_faster(f"SWIFT is faster than Lookahead on {label}", found, swift, lookahead),
        has_larger_figure(
            f"SWIFT's M is above Lookahead's on {label}", found, "mean_generated_length", swift, lookahead
        ),
        pays(f"Lookahead is faster than plain decoding on {label}", found, *lookahead),
        does_not_pay(f"Parallel is no faster than plain decoding on {label}", found, task, PARALLEL),
    ]


# ------------------------------------------------------------------------------------------------------ table 3

GREEDY, SAMPLED = "T=0.0 ", "T=0.6 "
TEMPERATURE, TOP_P = 0.6, 0.95
SAMPLED_SWIFT, COUPLED = "SWIFT, sampled", "SWIFT, coupled"
NO_ACCURACY = "the prompts come without tests, and what a model wrote is never executed here"


def code_units(bench: Workbench) -> Iterable[Unit]:
    """Greedy; and sampled with the paper's acceptance, by rejection, and with ours, which keeps the plain text."""
    greedy, sampled = {SWIFT: accelerating()}, {SAMPLED_SWIFT: {**accelerating(), "acceptance": "rejection"}}

    def measure(task: Task, methods: dict[str, Any], **call: Any) -> Values:
        return measured(bench, task, methods, swift_lesson(bench, task), **call)

    sampling = {"temperature": TEMPERATURE, "top_p": TOP_P}
    yield from bench.for_each(["humaneval"], lambda task: measure(task, greedy), GREEDY)
    both = {**sampled, COUPLED: accelerating()}
    yield from bench.for_each(["humaneval"], lambda task: measure(task, both, **sampling), SAMPLED)
    yield Unit("accuracy", missing=NO_ACCURACY)


def show_code(found: Found) -> Section:
    units = {f"{GREEDY}humaneval": "pass@1", f"{SAMPLED}humaneval": "pass@10"}
    rows = []
    for unit, passes in units.items():
        label = f"{task_label(found, unit, 'humaneval')}, {passes}"
        for way, title in {OFF: VANILLA, SWIFT: SWIFT, SAMPLED_SWIFT: SWIFT, COUPLED: COUPLED}.items():
            if is_measured(found, unit, way):
                length, alpha, speedup = figures_row(found, unit, way)
                rows.append([label, title, length, alpha, "-", speedup])
    one, two = zip(units, (SWIFT, SAMPLED_SWIFT), strict=True)
    return Section(
        [Table("", ["task", "method", "M", "alpha", "accuracy", "speed-up"], rows)],
        efforts(found, list(units), PAPER_CODE_PROMPTS, steps=None),
        told(
            [
                pays("SWIFT is faster than plain decoding, greedy", found, *one),
                pays("SWIFT is faster than plain decoding, sampled", found, *two),
                is_faster("SWIFT gains more in greedy decoding than when sampling", found, one, two),
                has_larger_figure("SWIFT's M is smaller when sampling", found, "mean_generated_length", one, two),
            ]
        ),
        notes(
            found,
            "pass@1 is greedy, pass@10 stands for one text a prompt with temperature 0.6 and top-p 0.95; SWIFT accepts "
            "by rejection as the paper's does, `coupled` keeps the very text of plain decoding",
        ),
    )


# ------------------------------------------------------------------------------------------------------ table 4


def show_details(found: Found) -> Section:
    tasks = _tasks_of(found, SWIFT)
    return Section(
        [_details(found), _against_measured(found, tasks)],
        _text_efforts(found),
        told(trend for task in tasks for trend in _detail_trends(found, task)),
        notes(
            found,
            "expected: M a / ((M - 1) c + a), with c = 1 - r as the paper has it, and with c by the clock; of the same "
            "runs as table 2",
            EXAMPLES,
        ),
    )


def _details(found: Found) -> Table:
    """As the paper shows them."""
    header, cells, expected = ["method"], [SWIFT], []
    for task in TEXT_TOKENS:
        header += [f"{task_label(found, task, task)} M", "alpha", "expected"]
        expected.append(_expected(found, task, "by_ratio"))
        cells += [length_cell(found, task, SWIFT), alpha_cell(found, task, SWIFT), times(expected[-1])]
    rows = [[*cells, times(mean(expected))]] if _tasks_of(found, SWIFT) else []
    return Table("M, acceptance and expected speed-up", [*header, "overall"], rows)


def _against_measured(found: Found, tasks: list[str]) -> Table:
    header = ["task", "r", "c", "expected by r", "expected by c", "measured"]
    rows = [
        [
            task_label(found, task, task),
            number(skip_ratio(found, task, SWIFT), ".2f"),
            number(figure(found, task, SWIFT, "cost_measured"), ".2f"),
            times(_expected(found, task, "by_ratio")),
            times(_expected(found, task, "measured")),
            speed_cell(found, task, SWIFT),
        ]
        for task in tasks
    ]
    return Table("expected and measured", header, rows)


def _expected(found: Found, task: str, how: str) -> float | None:
    value: float | None = found.get(task, SWIFT, "total", "expected", how)
    return value


def _detail_trends(found: Found, task: str) -> list[Trend]:
    label = task_label(found, task, task)
    alpha, count = (figure(found, task, SWIFT, name) for name in ("acceptance_rate", "num_prompts"))
    claim = f"more than 90 % of the drafted tokens are accepted on {label}"
    is_high = is_larger(claim, ("accepted", alpha), ("against", HIGH_ACCEPTANCE))
    less = less_than_expected(f"less is gained than expected on {label}", found, task)
    return [from_enough(trend, count) for trend in (less, is_high)]


def less_than_expected(claim: str, found: Found, task: str) -> Trend:
    """That the measured speed-up stays below that of the paper's formula, clearly."""
    known, expected = speed(found, task, SWIFT), _expected(found, task, "by_ratio")
    if known is None or expected is None:
        return Trend(claim, None, NOT_MEASURED)
    because = f"expected {times(expected)}, measured {spread(known)}"
    if known["low"] <= expected <= known["high"]:
        return Trend(claim, None, f"too close: {because}")
    return Trend(claim, known["value"] < expected, because)


TABLES = [
    Experiment("table-2", "against Parallel and Lookahead", plug_and_play_units, show_plug_and_play),
    Experiment("table-3", "code, greedy and sampled", code_units, show_code),
    Experiment("table-4", "expected and measured speed-up", plug_and_play_units, show_details, "table-2"),
    *ANALYSES,
]
