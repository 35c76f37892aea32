"""SWIFT (arXiv:2410.06916): against Jacobi, Lookahead, early exit and Self-SD, its parts, and its search.

Tables stand here, figures in `swift_figures`, what both measure with and streams in `swift_methods`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ...errors import ProfileError
from ...measure.records import OFF
from ...strategies.swift_search import SwiftOptions
from . import swift_methods as shared
from .claims import Side, at_least, faster, is_below, is_faster, is_larger, judged_by, larger, speedup
from .experiment import Effort, Experiment, Found, Judgement, Recipe, Unit, Values
from .forms import Column, by_arm, curves
from .swift_figures import FIGURES
from .swift_methods import (
    FIRST_TASK,
    SELF_SD,
    SWIFT,
    Judgements,
    accelerating,
    efforts,
    searched,
    swift_fit,
    with_siblings,
)
from .workbench import Methods, Task, Workbench

# ------------------------------------------------------------------------------------------- tables 2 and 4: text

VANILLA, PARALLEL, LOOKAHEAD = "Vanilla", "Parallel", "Lookahead"
ROWS = {OFF: VANILLA, PARALLEL: PARALLEL, LOOKAHEAD: LOOKAHEAD, SWIFT: SWIFT}
TEXT_TOKENS = {"cnn-dm": 64, "gsm8k": 64, "tinystories": 128}
"""New ones of a text at most, in the paper."""


def jacobi() -> dict[str, dict[str, Any]]:
    """Guesses of the model itself: the last pass's words (parallel decoding), and a pool of n-grams (Lookahead)."""
    pool = {"strategy": "uniform", "drafter": "ngram-pool"}
    return {PARALLEL: {**pool, "settings": {"ngram-pool": {"window": 0}}}, LOOKAHEAD: pool}


def text_units(bench: Workbench) -> Iterable[Unit]:
    methods = {**jacobi(), SWIFT: accelerating()}

    def measure(task: Task) -> Values:
        tokens = min(bench.scale.tokens, TEXT_TOKENS[task.name])
        return searched(bench, task, methods, swift_fit(bench, task), tokens=tokens)

    return bench.for_each(list(TEXT_TOKENS), measure)


def parallel_does_not_pay(found: Found) -> Judgements:
    for task in found.units:
        text = f"Parallel is not faster than plain decoding on {found.label(task)}"
        yield is_below(text, speedup(found, Side(task, PARALLEL)), 1.0, PARALLEL, unit="x")


def less_than_expected(found: Found) -> Judgements:
    """By the paper's formula with c = 1 - r, of the same records."""
    for task in found.units:
        figures = found.figures(task, SWIFT)
        if figures and (expected := figures.expected["by_ratio"]):
            text = f"less is gained than expected on {found.label(task)}"
            yield is_below(text, figures.speedup, round(expected, 2), SWIFT, unit="x")


TABLE_2 = Experiment(
    "table-2",
    "against Parallel and Lookahead",
    text_units,
    [by_arm(["M", "alpha", "tokens/s", "speed-up"], ROWS)],
    [
        faster("SWIFT is faster than plain decoding on {task}", SWIFT),
        faster("SWIFT is faster than Lookahead on {task}", SWIFT, LOOKAHEAD),
        larger("SWIFT's M is above Lookahead's on {task}", "M", SWIFT, LOOKAHEAD),
        faster("Lookahead is faster than plain decoding on {task}", LOOKAHEAD),
        judged_by(parallel_does_not_pay),
    ],
    efforts(tokens=max(TEXT_TOKENS.values()), steps=None),
    [
        "Parallel: Jacobi decoding of 8 tokens; Lookahead: a window of 5 and 4 n-grams of 4 tokens. The paper does not "
        "say its own. Lookahead's authors take more, for large models, for which a wider pass costs less"
    ],
)
TABLE_4 = Experiment(
    "table-4",
    "expected and measured speed-up",
    text_units,
    [by_arm(["M", "alpha", "r", "c", "expected", "expected by c", "speed-up"], {SWIFT: SWIFT})],
    [
        judged_by(less_than_expected),
        at_least("more than 90 % of the drafted tokens are accepted on {task}", "alpha", SWIFT, 0.9),
    ],
    efforts(tokens=max(TEXT_TOKENS.values()), steps=None),
    ["expected: M a / ((M - 1) c + a), with c = 1 - r as in the paper, and with c measured; the runs of table 2"],
    shares="table-2",
)

# ------------------------------------------------------------------------------------------------- table 3: code

GREEDY, SAMPLED = "T=0.0 ", "T=0.6 "
SAMPLED_SWIFT, COUPLED = "SWIFT, sampled", "SWIFT, coupled"
CODE = "humaneval"
NO_ACCURACY = "the prompts come without tests, and what a model wrote is never executed here"


def code_units(bench: Workbench) -> Iterable[Unit]:
    """Greedy; and sampled with the paper's acceptance, by rejection, and with ours, which keeps the plain text."""

    def measure(methods: Methods, row: str, sampling: Mapping[str, Any], task: Task) -> Values:
        values = searched(bench, task, methods, swift_fit(bench, task), **sampling)
        return {**values, "task": f"{task.label}, {row}"}

    sampled = {SAMPLED_SWIFT: {**accelerating(), "acceptance": "rejection"}, COUPLED: accelerating()}
    sampling = {"temperature": 0.6, "top_p": 0.95}
    yield from bench.for_each([CODE], partial(measure, {SWIFT: accelerating()}, "pass@1", {}), GREEDY)
    yield from bench.for_each([CODE], partial(measure, sampled, "pass@10", sampling), SAMPLED)
    yield Unit("accuracy", missing=NO_ACCURACY)


def sampling_costs(found: Found) -> Judgements:
    one, two = Side(GREEDY + CODE, SWIFT), Side(SAMPLED + CODE, SAMPLED_SWIFT)
    yield is_faster("SWIFT gains more in greedy decoding than when sampling", found, one, two)
    yield is_larger("SWIFT's M is smaller when sampling", found, "M", one, two)


TABLE_3 = Experiment(
    "table-3",
    "code, greedy and sampled",
    code_units,
    [by_arm(["M", "alpha", "speed-up"], {OFF: VANILLA, SWIFT: SWIFT, SAMPLED_SWIFT: SWIFT, COUPLED: COUPLED})],
    [
        faster("SWIFT is faster than plain decoding, greedy", SWIFT),
        faster("SWIFT is faster than plain decoding, sampled", SAMPLED_SWIFT),
        judged_by(sampling_costs),
    ],
    efforts(prompts=164, steps=None),
    [
        "pass@1 is greedy; pass@10 here is one text a prompt with temperature 0.6 and top-p 0.95. SWIFT accepts by "
        "rejection as in the paper; `coupled` keeps the text of plain decoding"
    ],
)

# ------------------------------------------------------------------------------------------------ table 8: its parts

NO_STOPPING, NO_SIBLINGS, NO_SEARCH = "w/o early-stopping", "w/o dynamic ver.", "w/o optimization"
RATIO, MAX_DRAFTED = 0.45, 25


def parts() -> dict[str, dict[str, Any]]:
    """SWIFT, and without one part each: fixed drafts of its greatest length, no siblings, evenly spaced layers."""
    whole = accelerating()
    fixed = {**whole["settings"], "fixed": {"tokens": MAX_DRAFTED}}
    return {
        SWIFT: whole,
        NO_STOPPING: {**whole, "lookahead": "fixed", "settings": fixed},
        NO_SIBLINGS: {**whole, "tree": "chain"},
        NO_SEARCH: shared.paired_as_swift("uniform", ratio=RATIO),
    }


def ablation_units(bench: Workbench) -> Iterable[Unit]:
    return bench.for_each([FIRST_TASK], lambda task: searched(bench, task, parts(), swift_fit(bench, task)))


def same_set(found: Found, unit: str) -> str | None:
    is_same = shared.drafted_alike(found, Side(unit, SWIFT), Side(unit, NO_SEARCH))
    return "its best set is still the evenly spaced one" if is_same else None


TABLE_8 = Experiment(
    "table-8",
    "SWIFT without one part each",
    ablation_units,
    [by_arm(["M", "alpha", "speed-up", "r", "c"], {name: name for name in parts()}, first="")],
    [
        faster("stopping early makes it faster", SWIFT, NO_STOPPING),
        faster("siblings make it faster", SWIFT, NO_SIBLINGS),
        larger("siblings make M larger", "M", SWIFT, NO_SIBLINGS),
        faster("the search makes it faster than evenly spaced layers", SWIFT, NO_SEARCH, unless=same_set),
        larger("without early stopping M grows", "M", NO_STOPPING, SWIFT),
        larger("stopping early, more drafts are accepted", "alpha", SWIFT, NO_STOPPING),
    ],
    efforts(),
    [
        "a tree has 31 candidates here at most; for drafts of 25 tokens, without early stopping, the paper's some 250",
        "SWIFT's r may be smaller: by its own rule it skips fewer sub-layers while too few drafted tokens are accepted",
    ],
)

# ----------------------------------------------------------------------------------------------- table 9: the window

WINDOWS = (32, 16, 64, 128)
"""The usual one first; the larger, the more text is needed before anything can be scored."""
FEW_STEPS = SwiftOptions().interval
"""Of fewer none comes from Bayesian optimisation, and what was found is chance."""


def window_side(window: int) -> Side:
    return Side(f"{window} {FIRST_TASK}", f"window {window}")


def window_units(bench: Workbench) -> Iterable[Unit]:
    """Each window with a search of its own, that of the usual one as elsewhere."""

    def measure(window: int, task: Task) -> Values:
        options = {} if window == shared.PAPER_WINDOW else {"window": window}
        fitted = swift_fit(bench, task, **options)
        if not fitted.values.get("step"):
            raise ProfileError(f"the search with a window of {window} had no time, or no text, for a step")
        return searched(bench, task, {window_side(window).arm: accelerating(**options)}, fitted)

    for window in WINDOWS:
        yield from bench.for_each([FIRST_TASK], partial(measure, window), f"{window} ")


def usual_window_is_faster(found: Found) -> Judgements:
    usual = window_side(shared.PAPER_WINDOW)
    for window in sorted(set(WINDOWS) - {shared.PAPER_WINDOW}):
        other = window_side(window)
        judgement = is_faster(f"a window of {shared.PAPER_WINDOW} is faster than one of {window}", found, usual, other)
        reason = _why_equal(found, usual, other)
        yield Judgement(judgement.claim, None, reason) if judgement and reason else judgement


def _why_equal(found: Found, usual: Side, other: Side) -> str | None:
    """Where a search has hardly begun, or both found the same set, there is nothing to compare."""
    searches = {side.arm: found.get(side.unit, "search") for side in (usual, other)}
    few = [
        f"{search['num_steps']} with {arm}"
        for arm, search in searches.items()
        if search and not search["is_over"] and search["num_steps"] < FEW_STEPS
    ]
    if few:
        return f"too few steps: {' and '.join(few)}"
    return "both found the same set" if shared.drafted_alike(found, usual, other) else None


STEP_COLUMNS = [shared.of_search(f"ms a {one}", "optimise_seconds", ".2f", f"num_{one}s") for one in ("step", "token")]
TABLE_9 = Experiment(
    "table-9",
    "the window that sets are judged by",
    window_units,
    [
        by_arm(
            ["M", "alpha", "speed-up", *STEP_COLUMNS, shared.of_search("steps", "num_steps", "d")],
            {window_side(window).arm: str(window) for window in WINDOWS},
            first="",
            units=[window_side(window).unit for window in sorted(WINDOWS)],
        )
    ],
    [judged_by(usual_window_is_faster)],
    efforts(steps=None),
    [
        "ms a step: of the search; ms a token: the same over all tokens of its texts. The paper's latency is over all "
        "tokens of 1000 texts, most of them after the search",
        "steps begin once a text has as many new tokens as the window: a large one has fewer of them in its time",
    ],
)

# ------------------------------------------------------------------------- tables 10 and 12, figure 11: against Self-SD

LAYER_SKIP, SELF_SD_FEW = "LayerSkip, untrained", "Self-SD c"
EXIT_RATIO = 0.8
"""What LayerSkip leaves out."""
NEEDS_NOTHING = {LAYER_SKIP: "yes", SELF_SD: "no", with_siblings(SELF_SD): "no", SWIFT: "yes"}
SEARCHES: Mapping[str, Mapping[str, int]] = {SELF_SD: {}, SELF_SD_FEW: {"num_prompts": 1, "num_tokens": 8}}
"""Self-SD as it is, and with one short text for each set that it tries."""
SELF_SD_ARMS = [arm for name in SEARCHES for arm in (name, with_siblings(name))]
SEARCH_SHARES = {f"{SELF_SD} {share:g}": share for share in (0.25, 1.0, shared.LONGER)}
"""Of SWIFT's seconds, for Self-SD in figure 11; the longest not at the quick scale."""


def early_exit(num_layers: int) -> dict[str, Any]:
    """LayerSkip's drafts without its training."""
    layers = min(max(1, round((1 - EXIT_RATIO) * num_layers)), num_layers - 1)
    return {"strategy": "early-exit", "settings": {"early-exit": {"layers": layers}}}


def beside_self_sd(bench: Workbench, name: str, others: Methods, seconds: float, task: Task) -> Values:
    """SWIFT, the best set that Self-SD finds in its time, and `others`."""
    fitted, found = (
        swift_fit(bench, task),
        shared.self_sd_fit(bench, task.name, task.fitting, seconds, **SEARCHES[name]),
    )
    methods = {SWIFT: accelerating(), **shared.self_sd(name, found["skip"]), **others}
    return searched(bench, task, methods, fitted, dict.fromkeys((name, with_siblings(name)), found))


def layer_skipping_units(bench: Workbench) -> Iterable[Unit]:
    seconds = bench.scale.fit_seconds * (1 if bench.scale.is_quick else shared.LONGER)
    others = {LAYER_SKIP: early_exit(bench.engine.runner.num_layers)}
    return bench.for_each([FIRST_TASK], partial(beside_self_sd, bench, SELF_SD, others, seconds))


def equal_time_units(bench: Workbench) -> Iterable[Unit]:
    for name in SEARCHES:
        measure = partial(beside_self_sd, bench, name, {}, bench.scale.fit_seconds)
        yield from bench.for_each([FIRST_TASK], measure, f"{name} ")


def latency_units(bench: Workbench) -> Iterable[Unit]:
    def measure(task: Task) -> Values:
        wanted = {arm: part for arm, part in SEARCH_SHARES.items() if part <= 1 or not bench.scale.is_quick}
        seconds = {arm: part * bench.scale.fit_seconds for arm, part in wanted.items()}
        searches = {arm: shared.self_sd_fit(bench, task.name, task.fitting, most) for arm, most in seconds.items()}
        methods = {arm: shared.self_sd(arm, search["skip"])[arm] for arm, search in searches.items() if search["skip"]}
        return searched(bench, task, {SWIFT: accelerating(), **methods}, swift_fit(bench, task), searches)

    return bench.for_each([FIRST_TASK], measure)


def latency_claims(found: Found) -> Judgements:
    sides = [Side(FIRST_TASK, arm) for arm in SEARCH_SHARES]
    known = [side for side in sides if found.figures(FIRST_TASK, side.arm)]
    for longest in known[-1:]:
        text = "SWIFT is faster than Self-SD after its longest search"
        yield is_faster(text, found, Side(FIRST_TASK, SWIFT), longest)
    for longest in known[1:][-1:]:
        text, is_same = "Self-SD gains by a longer search", shared.drafted_alike(found, known[0], longest)
        same = Judgement(text, None, "it found no better set")
        yield same if is_same else is_faster(text, found, longest, known[0])


def latency_sides(found: Found) -> dict[str, dict[float, Side]]:
    """By seconds of optimisation."""
    own, searches = found.get(FIRST_TASK, "search"), found.get(FIRST_TASK, "searches") or {}
    others = {search["optimise_seconds"]: Side(FIRST_TASK, arm) for arm, search in searches.items()}
    return {SWIFT: {own["optimise_seconds"]: Side(FIRST_TASK, SWIFT)} if own else {}, SELF_SD: others}


def self_sd_effort(what: str, key: str, paper: float) -> Effort:
    return Effort(what, lambda found: found.get(FIRST_TASK, "searches", SELF_SD, key), paper)


NEEDS: Column = ("plug-and-play", lambda found, unit, arm: NEEDS_NOTHING[arm])
TABLE_10 = Experiment(
    "table-10",
    "other methods that skip layers",
    layer_skipping_units,
    [by_arm([NEEDS, "r", "M", "alpha", "speed-up", "c"], {name: name for name in NEEDS_NOTHING}, first="")],
    [
        faster("SWIFT is faster than Self-SD", SWIFT, SELF_SD),
        faster("SWIFT is faster than Self-SD with siblings", SWIFT, with_siblings(SELF_SD)),
        faster("siblings make Self-SD faster", with_siblings(SELF_SD), SELF_SD),
    ],
    [
        *efforts(),
        self_sd_effort("texts that Self-SD tries a set on", "num_prompts", 8),
        self_sd_effort("sets that Self-SD tried", "num_steps", 1000),
        self_sd_effort("seconds it searched", "optimise_seconds", 7.5 * 3600),
    ],
    [
        "LayerSkip here: the first layers draft, without the training of the paper's. So it needs nothing beforehand, "
        "and says nothing about the paper's. All of them keep the model's distribution",
        shared.self_sd_notes,
    ],
)
STEPS, SECONDS = shared.of_search("steps", "num_steps", "d"), shared.of_search("seconds", "optimise_seconds", ".1f")
SECONDS_NOTE = "seconds: of Self-SD the whole search; of SWIFT scoring candidates alone, as its texts are needed anyway"
TABLE_12 = Experiment(
    "table-12",
    "Self-SD at similar times",
    equal_time_units,
    [
        by_arm(
            [STEPS, shared.of_search("Bayesian steps", "num_bayesian", "d"), SECONDS, "r", "M", "alpha", "speed-up"],
            {arm: arm for arm in (*SELF_SD_ARMS, SWIFT)},
            first="",
            title="at similar times of searching",
        )
    ],
    [faster(f"SWIFT is faster than {arm}", SWIFT, arm) for arm in SELF_SD_ARMS],
    efforts(),
    [f"{SECONDS_NOTE}. Self-SD may take as long as SWIFT's texts and steps together", shared.self_sd_notes],
)
FIGURE_11 = Experiment(
    "figure-11",
    "speed-up against seconds of optimisation",
    latency_units,
    [by_arm([STEPS, SECONDS, "alpha", "speed-up"], {arm: arm for arm in (SWIFT, *SEARCH_SHARES)}, first="")],
    [judged_by(latency_claims)],
    efforts(),
    [f"{SECONDS_NOTE}; the paper: 116. Self-SD N: N times the seconds that SWIFT may take", shared.self_sd_notes],
    curves(["speed-up"], latency_sides, "seconds of optimisation", "Speed-up by seconds of optimisation."),
)

TABLES = [TABLE_2, TABLE_3, TABLE_4, TABLE_8, TABLE_9, TABLE_10, TABLE_12]
RECIPE = Recipe("swift", [*TABLES, *FIGURES[:-1], FIGURE_11, FIGURES[-1]])
