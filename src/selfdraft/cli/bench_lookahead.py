"""`selfdraft bench lookahead`: how far to draft. All rules side by side, DISCO and the oracle among them."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..bench.lookahead import plot
from ..bench.lookahead.report import as_markdown
from ..bench.lookahead.rows import ROWS, check_rows
from ..bench.lookahead.run import LookaheadBench, LookaheadPlan, has_difference
from ..bench.prompts import OWN_PROMPTS, read_prompts, split_in_three
from ..errors import OptionError
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from ..options import GenerateOptions
from . import bench_common, terminal
from .inputs import (
    MODEL_HELP,
    add_device_options,
    add_method_options,
    check_method_names,
    count,
    method_help,
    read_file,
    read_method,
)
from .lookahead import DRAFTING_AXES

EXAMPLES = """\
Of each domain the first --per-domain prompts are measured, the last --validation choose settings (the length of
static-opt, the thresholds and maxima of perplexity and disco), and the --train before these train disco; no text is in
two of them. For each prompt and temperature all rows take turns in one process, `plain` being decoding without drafts.
Speed is total tokens over total seconds of decoding. Every output is compared with that of `plain`; `different`, or a
plot that cannot be drawn, makes the exit code 1. Tables are printed, and one JSON document last.

rows: heuristic (+2, -1), static-5, static-opt, perplexity, confidence, adaptive, roc, tpt, disco, disco-transfer (disco
trained on the next domain), oracle (drafts to the first token that will be refused: a bound, not a method)

examples:
  selfdraft bench lookahead                                         the default model, our prompts: a first look
  selfdraft bench lookahead --prompts code.jsonl math.jsonl --per-domain 16 --train 32 --validation 8 \\
      --output result.json --plot lookahead.png
  selfdraft bench lookahead --strategy fixed --set fixed.skip=a4,m1-3 --temperature 0 --rows static-opt disco tpt
  selfdraft bench lookahead --drafter model --set model.source=NAME  a draft model of its own, as in the paper
  selfdraft bench table result.json --plot lookahead.png            the same tables again
"""


def add_parser(benchmarks: Any) -> None:
    parser = benchmarks.add_parser(
        "lookahead",
        help="how far to draft: all rules, DISCO and the oracle among them",
        description="Rules of how far to draft, side by side, against plain decoding and an oracle.",
        epilog=f"{method_help()}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    add, number = parser.add_argument, {"metavar": "N", "type": count}
    bench_common.add_prompt_options(parser, per_domain=2, max_new_tokens=128)
    add("--train", **number, default=2, help="prompts of each domain that train disco (default: %(default)s)")
    add("--validation", **number, default=1, help="prompts of each domain that choose settings (default: %(default)s)")
    add("--train-tokens", **number, default=128, help="new tokens of each of these texts (default: %(default)s)")
    add(
        "--temperature",
        metavar="T",
        nargs="+",
        type=_temperature,
        default=[0.0, 1.0],
        help="one table for each (default: 0 1)",
    )
    add("--rows", metavar="NAME", nargs="+", help=f"of {', '.join(ROWS)} (default: all)")
    add(
        "--seed", metavar="N", type=partial(count, minimum=0), default=0, help="of sampled texts (default: %(default)s)"
    )
    bench_common.add_run_options(parser)
    add_method_options(parser, DRAFTING_AXES)
    parser.set_defaults(run=run)


def _temperature(text: str) -> float:
    try:
        return GenerateOptions(temperature=float(text)).temperature
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    plan = make_plan(options)
    bench_common.check_outputs(options)
    with terminal.Progress() as progress:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=progress)

    def save(document: dict[str, Any]) -> bool:
        return bench_common.save(bench_common.complete(document, options), options.output)

    name = options.model or DEFAULT_MODEL
    bench = LookaheadBench(model, tokenizer, plan, began, bench_common.say, save, name)
    document = json.loads(json.dumps(bench_common.complete(bench.run(), options)))  # as `bench table` will read it
    is_saved = save(document)
    print(as_markdown(document))
    is_drawn = bench_common.draw(document, options.plot, plot.draw)
    print(json.dumps(document))
    if bench.is_interrupted:
        return 130
    return 1 if has_difference(document) or not is_drawn or not is_saved else 0


def make_plan(options: argparse.Namespace) -> LookaheadPlan:
    """Everything that can be wrong with the command is, before it costs the time a model takes to load."""
    method = {"tree": "chain", **read_method(options), "acceptance": "coupled"}
    check_method_names(method)
    if method.get("strategy") == "off":
        raise OptionError("the strategy 'off' drafts nothing, so there is nothing to measure; name another --strategy")
    loading.choose_dtype(options.dtype, loading.choose_device(options.device))
    files = options.prompts or [str(OWN_PROMPTS)]
    found = read_prompts((Path(file).name, read_file(file)) for file in files)
    test, train, validation = split_in_three(found, options.per_domain, options.train, options.validation)
    return LookaheadPlan(
        train=train,
        validation=validation,
        test=test,
        rows=check_rows(options.rows, len({prompt.domain for prompt in test})),
        method=method,
        max_new_tokens=options.max_new_tokens,
        train_tokens=options.train_tokens,
        temperatures=list(dict.fromkeys(options.temperature)),
        seconds=options.seconds,
        seed=options.seed,
    )
