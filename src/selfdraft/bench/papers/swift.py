"""SWIFT (arXiv:2410.06916): against Jacobi, Lookahead, early exit and Self-SD, its parts, and its search.

Tables stand here, figures in `swift_figures`, what both measure with and streams in `swift_methods`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...errors import ProfileError
from ...measure.records import OFF
from ...strategies.swift_search import SwiftOptions, evenly, size_of
from ...types import SkipSet
from . import swift_methods as shared
from .claims import Side, at_least, below_formula, denied, faster, is_faster, larger
from .experiment import Effort, Experiment, Found, Judgement, MainTable, Recipe, Unit, Values
from .forms import Column, by_arm, curves
from .swift_figures import FIGURES
from .swift_methods import FIRST_TASK, OURS, SELF_SD, SWIFT, accelerating, searched, self_sd_fit, with_siblings
from .workbench import Methods, Task, Workbench, each, joined

# ------------------------------------------------------------------------------------------- tables 2 and 4: text

VANILLA, PARALLEL, LOOKAHEAD = "Vanilla", "Parallel", "Lookahead"
POOL: Mapping[str, Any] = {"strategy": "uniform", "drafter": "ngram-pool"}
JACOBI: Methods = {PARALLEL: {**POOL, "settings": {"ngram-pool": {"window": 0}}}, LOOKAHEAD: POOL}
"""Guesses of the model itself: the last pass's words (parallel decoding), and a pool of n-grams (Lookahead)."""
NO_LOOKUP, NO_BRANCHES = "SWIFT, ours, no lookup", {"siblings": {"lookup": 0}}
TEXT_ARMS = (*JACOBI, SWIFT, OURS, NO_LOOKUP)
TEXT_TOKENS = {"cnn-dm": 64, "gsm8k": 64, "tinystories": 128}
"""New ones of a text at most, in the paper."""


def text(bench: Workbench, task: Task) -> Values:
    tokens = min(bench.scale.tokens, TEXT_TOKENS[task.name])
    return searched(bench, task, {**JACOBI, SWIFT: accelerating()}, tokens=tokens)


def ours(bench: Workbench, task: Task) -> Values:
    """`swift` as it is by default, after a search of its own, with and without branches that are looked up in the text;
    of texts as long as the paper's others.
    """
    method, tokens = {"strategy": "swift"}, min(bench.scale.tokens, TEXT_TOKENS.get(task.name, bench.scale.tokens))
    methods: Methods = {OURS: method, NO_LOOKUP: {**method, "settings": NO_BRANCHES}}
    prompts = shared.to_search_on(bench, task)
    fitted = bench.fit(f"swift-{task.name}", method, prompts, text_tokens=shared.PAPER_TOKENS)
    return {**bench.measure(task, methods, knows=[fitted], tokens=tokens), "search": shared.facts(fitted)}


TABLE_2 = Experiment(
    "table-2",
    joined(each(list(TEXT_TOKENS), text), each(list(TEXT_TOKENS), ours, "ours ")),
    [by_arm(["M", "alpha", "tokens/s", "speed-up"], {OFF: VANILLA, **{arm: arm for arm in TEXT_ARMS}})],
    [
        faster("SWIFT is faster than plain decoding on {task}", SWIFT),
        faster("SWIFT is faster than Lookahead on {task}", SWIFT, LOOKAHEAD),
        larger("SWIFT's M is above Lookahead's on {task}", "M", SWIFT, LOOKAHEAD),
        faster("Lookahead is faster than plain decoding on {task}", LOOKAHEAD),
        denied(faster("Parallel is not faster than plain decoding on {task}", PARALLEL)),
        faster("branches looked up in the text make SWIFT, ours, faster on {task}", OURS, NO_LOOKUP),
    ],
)
TABLE_4 = Experiment(
    "table-4",
    TABLE_2.units,
    [by_arm(["M", "alpha", "r", "c", "expected", "expected by c", "speed-up"], [SWIFT])],
    [
        below_formula("less is gained than expected on {task}", SWIFT),
        at_least("more than 90 % of the drafted tokens are accepted on {task}", "alpha", SWIFT, 0.9),
    ],
    shares="table-2",
)

# ------------------------------------------------------------------------------------------------- table 3: code

CODE = "humaneval"
SAMPLED_SWIFT, COUPLED = "SWIFT, sampled", "SWIFT, coupled"
ONE, TWO = Side(f"T=0.0 {CODE}", SWIFT), Side(f"T=0.6 {CODE}", SAMPLED_SWIFT)
SAMPLING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95}
DRAWN = shared.sampled(accelerating())
SAMPLED: Methods = {SAMPLED_SWIFT: {**DRAWN, "acceptance": "rejection"}, COUPLED: DRAWN}
"""With the paper's acceptance, by rejection, and with ours, which keeps the plain text."""
NO_ACCURACY = "the prompts come without tests, and what a model wrote is never executed here"
TABLE_3 = Experiment(
    "table-3",
    joined(
        each([CODE], partial(searched, methods={SWIFT: accelerating()}, told="pass@1"), "T=0.0 "),
        each([CODE], partial(searched, methods=SAMPLED, told="pass@10", **SAMPLING), "T=0.6 "),
        lambda bench: [Unit("accuracy", missing=NO_ACCURACY)],
    ),
    [by_arm(["M", "alpha", "speed-up"], {OFF: VANILLA, SWIFT: SWIFT, SAMPLED_SWIFT: SWIFT, COUPLED: COUPLED})],
    [
        faster("SWIFT is faster than plain decoding, greedy", SWIFT),
        faster("SWIFT is faster than plain decoding, sampled", SAMPLED_SWIFT),
        faster("SWIFT gains more in greedy decoding than when sampling", ONE, TWO),
        larger("SWIFT's M is smaller when sampling", "M", ONE, TWO),
    ],
)

# ------------------------------------------------------------------------------------------------ table 8: its parts

NO_STOPPING, NO_SIBLINGS, NO_SEARCH = "w/o early-stopping", "w/o dynamic ver.", "w/o optimization"
FIXED_LENGTH = {**accelerating()["settings"], "fixed": {"tokens": 25}}


def parts(num_layers: int) -> Methods:
    """SWIFT, and without one part each: fixed drafts of its greatest length, no siblings, the set it begins with."""
    start = SkipSet.of_numbers(evenly(num_layers, size_of(num_layers, SwiftOptions().ratio)))
    return {
        SWIFT: accelerating(),
        NO_STOPPING: {**accelerating(), "lookahead": "fixed", "settings": FIXED_LENGTH},
        NO_SIBLINGS: {**accelerating(), "tree": "chain"},
        NO_SEARCH: shared.paired_as_swift("fixed", skip=str(start)),
    }


TABLE_8 = Experiment(
    "table-8",
    each([FIRST_TASK], lambda bench, task: searched(bench, task, parts(bench.engine.runner.num_layers))),
    [by_arm(["M", "alpha", "speed-up", "r", "c"], [SWIFT, NO_STOPPING, NO_SIBLINGS, NO_SEARCH], first="")],
    [
        faster("stopping early makes it faster", SWIFT, NO_STOPPING),
        faster("siblings make it faster", SWIFT, NO_SIBLINGS),
        larger("siblings make M larger", "M", SWIFT, NO_SIBLINGS),
        faster(
            "the search makes it faster than evenly spaced layers",
            SWIFT,
            NO_SEARCH,
            unless=shared.alike("its best set is still the evenly spaced one"),
        ),
        larger("without early stopping M grows", "M", NO_STOPPING, SWIFT),
        larger("stopping early, more drafts are accepted", "alpha", SWIFT, NO_STOPPING),
    ],
)

# ----------------------------------------------------------------------------------------------- table 9: the window

WINDOWS = {window: Side(f"{window} {FIRST_TASK}", f"window {window}") for window in (32, 16, 64, 128)}
"""The usual one first; the larger, the more text is needed before anything can be scored."""
FEW_STEPS = SwiftOptions().interval
"""Of fewer none comes from Bayesian optimisation, and what was found is chance."""


def window(size: int, bench: Workbench, task: Task) -> Values:
    """Each window with a search of its own, that of the usual one as elsewhere."""
    options = {} if size == shared.PAPER_WINDOW else {"window": size}
    if not shared.swift_fit(bench, task, **options).values.get("step"):
        raise ProfileError(f"the search with a window of {size} had no time, or no text, for a step")
    return searched(bench, task, {WINDOWS[size].arm: accelerating(**options)}, options=options)


def why_equal(found: Found, usual: Side, other: Side) -> str | None:
    """Where a search has hardly begun, or both found the same set, there is nothing to compare."""
    searches = {side.arm: found.get(side.unit, "search") for side in (usual, other)}
    few = [
        f"{search['num_steps']} with {arm}"
        for arm, search in searches.items()
        if search and not search["is_over"] and search["num_steps"] < FEW_STEPS
    ]
    return (
        f"too few steps: {' and '.join(few)}" if few else shared.alike("both found the same set")(found, usual, other)
    )


STEPS, SECONDS = shared.of_search("steps", "num_steps", "d"), shared.of_search("seconds", "optimise_seconds", ".1f")
STEP_COLUMNS = [shared.of_search(f"ms a {one}", "optimise_seconds", ".2f", f"num_{one}s") for one in ("step", "token")]
TABLE_9 = Experiment(
    "table-9",
    joined(*(each([FIRST_TASK], partial(window, size), f"{size} ") for size in WINDOWS)),
    [
        by_arm(
            ["M", "alpha", "speed-up", *STEP_COLUMNS, STEPS],
            {side.arm: str(size) for size, side in WINDOWS.items()},
            first="",
            units=[WINDOWS[size].unit for size in sorted(WINDOWS)],
        )
    ],
    [
        faster(f"a window of 32 is faster than one of {size}", WINDOWS[32], WINDOWS[size], unless=why_equal)
        for size in (16, 64, 128)
    ],
)

# ------------------------------------------------------------------------- tables 10 and 12, figure 11: against Self-SD

LAYER_SKIP, SELF_SD_FEW = "LayerSkip, untrained", "Self-SD c"
NEEDS_NOTHING = {LAYER_SKIP: "yes", SELF_SD: "no", with_siblings(SELF_SD): "no", SWIFT: "yes"}
SEARCHES: Mapping[str, Mapping[str, int]] = {SELF_SD: {}, SELF_SD_FEW: {"num_prompts": 1, "num_tokens": 8}}
"""Self-SD as it is, and with one short text for each set that it tries."""
SELF_SD_ARMS = [arm for name in SEARCHES for arm in (name, with_siblings(name))]
SEARCH_SHARES = {f"{SELF_SD} {share:g}": share for share in (0.25, 1.0, shared.LONGER)}
"""Of SWIFT's seconds, for Self-SD in figure 11; the longest not at the quick scale."""


def early_exit(num_layers: int) -> dict[str, Any]:
    """LayerSkip's drafts without its training: it leaves out four fifths."""
    layers = min(max(1, round(0.2 * num_layers)), num_layers - 1)
    return {"strategy": "early-exit", "settings": {"early-exit": {"layers": layers}}}


def beside_self_sd(name: str, bench: Workbench, task: Task, others: Methods | None = None, times: float = 1) -> Values:
    """SWIFT, the best set that Self-SD finds in `times` its time, and `others`."""
    found = self_sd_fit(bench, task.name, task.fitting, times * bench.scale.fit_seconds, **SEARCHES[name])
    methods = {SWIFT: accelerating(), **shared.self_sd(name, found["skip"]), **(others or {})}
    return searched(bench, task, methods, dict.fromkeys((name, with_siblings(name)), found))


def layer_skipping(bench: Workbench, task: Task) -> Values:
    others = {LAYER_SKIP: early_exit(bench.engine.runner.num_layers)}
    return beside_self_sd(SELF_SD, bench, task, others, 1 if bench.scale.is_quick else shared.LONGER)


def over_seconds(bench: Workbench, task: Task) -> Values:
    seconds = {
        arm: share * bench.scale.fit_seconds
        for arm, share in SEARCH_SHARES.items()
        if share <= 1 or not bench.scale.is_quick
    }
    searches = {arm: self_sd_fit(bench, task.name, task.fitting, most) for arm, most in seconds.items()}
    methods = {arm: shared.self_sd(arm, search["skip"])[arm] for arm, search in searches.items() if search["skip"]}
    return searched(bench, task, {SWIFT: accelerating(), **methods}, searches)


def latency_claims(found: Found) -> Iterator[Judgement | None]:
    known = [Side(FIRST_TASK, arm) for arm in SEARCH_SHARES if found.figures(FIRST_TASK, arm)]
    for longest in known[-1:]:
        told = "SWIFT is faster than Self-SD after its longest search"
        yield is_faster(told, found, Side(FIRST_TASK, SWIFT), longest)
    for longest in known[1:][-1:]:
        unless = shared.alike("it found no better set")
        yield from faster("Self-SD gains by a longer search", longest, known[0], unless=unless)(found)


def latency_sides(found: Found) -> dict[str, dict[float, Side]]:
    """By seconds of optimisation."""
    own, searches = found.get(FIRST_TASK, "search"), found.get(FIRST_TASK, "searches") or {}
    others = {search["optimise_seconds"]: Side(FIRST_TASK, arm) for arm, search in searches.items()}
    return {SWIFT: {own["optimise_seconds"]: Side(FIRST_TASK, SWIFT)} if own else {}, SELF_SD: others}


def of_self_sd(key: str) -> Effort:
    return lambda found: found.get(FIRST_TASK, "searches", SELF_SD, key)


NEEDS: Column = ("plug-and-play", lambda found, unit, arm: NEEDS_NOTHING[arm])
TABLE_10 = Experiment(
    "table-10",
    each([FIRST_TASK], layer_skipping),
    [by_arm([NEEDS, "r", "M", "alpha", "speed-up", "c"], list(NEEDS_NOTHING), first="")],
    [
        faster("SWIFT is faster than Self-SD", SWIFT, SELF_SD),
        faster("SWIFT is faster than Self-SD with siblings", SWIFT, with_siblings(SELF_SD)),
        faster("siblings make Self-SD faster", with_siblings(SELF_SD), SELF_SD),
    ],
    [shared.self_sd_notes],
)
BAYESIAN = shared.of_search("Bayesian steps", "num_bayesian", "d")
TABLE_12 = Experiment(
    "table-12",
    joined(*(each([FIRST_TASK], partial(beside_self_sd, name), f"{name} ") for name in SEARCHES)),
    [by_arm([STEPS, BAYESIAN, SECONDS, "r", "M", "alpha", "speed-up"], [*SELF_SD_ARMS, SWIFT], first="")],
    [faster(f"SWIFT is faster than {arm}", SWIFT, arm) for arm in SELF_SD_ARMS],
    [shared.self_sd_notes],
)
FIGURE_11 = Experiment(
    "figure-11",
    each([FIRST_TASK], over_seconds),
    [by_arm([STEPS, SECONDS, "alpha", "speed-up"], [SWIFT, *SEARCH_SHARES], first="")],
    [latency_claims],
    [shared.self_sd_notes],
    curves(["speed-up"], latency_sides, "seconds of optimisation", "Speed-up by seconds of optimisation."),
)

EFFORTS = {
    **shared.EFFORTS,
    "texts that Self-SD tries a set on": of_self_sd("num_prompts"),
    "sets that Self-SD tried": of_self_sd("num_steps"),
    "seconds it searched": of_self_sd("optimise_seconds"),
}
TABLES = [TABLE_2, TABLE_3, TABLE_4, TABLE_8, TABLE_9, TABLE_10, TABLE_12]
RECIPE = Recipe(
    "swift",
    [*TABLES, *FIGURES[:-1], FIGURE_11, FIGURES[-1]],
    efforts=EFFORTS,
    main={"table-2": MainTable(128), "table-3": MainTable(512)},
    own=(SWIFT, OURS, COUPLED),
    shots={"cnn-dm": 1, "tinystories": 1, "gsm8k": 5, "alpaca": 0, "wmt": 0, "nq": 0, "humaneval": 0},
)
