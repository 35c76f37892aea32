"""`selfdraft tune`: the settings of a lookahead that are fastest for a model and its draft, on this device."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..calibrate.lookahead import LookaheadOptions, Tuned, check_tunable, tune
from ..calibrate.tuning import TUNABLE
from . import lookahead as shared
from . import terminal
from .lookahead import circumstances, generate_command, load, read_before_loading, say, table

EXAMPLES = """\
The target continues the prompts, and behind each of its tokens the draft proposes one; rounds are timed. So it is known
what every setting would have done: replay ranks all of them, and the best are measured, with the usual one and with
plain decoding, in turns. Tune on prompts like those you will ask, but do not judge by them: on prompts that a setting
was chosen for it looks better than it is.

  fixed        how many tokens to draft in every round ("static SL-opt" in DISCO, arXiv:2405.04304)
  confidence   below which probability of the draft's best token to stop, and the most tokens
  perplexity   above which perplexity of the draft to stop, and the most tokens

Other lookaheads need no tuning: heuristic, adaptive, roc and tpt follow the text; disco is tuned when it is trained
(selfdraft train-lookahead).

examples:
  selfdraft tune                                             the best fixed length for the default model, our prompts
  selfdraft tune --lookahead confidence --domain code        for code
  selfdraft tune --lookahead perplexity --strategy early-exit --set early-exit.layers=8
  selfdraft tune --drafter lookup --prompts mine.jsonl       JSON lines: {"domain": "chat", "prompt": "..."}
  selfdraft tune --json | tail -1 | jq .flags
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="find the best settings of a lookahead",
        description="Find how far to draft: the settings of a lookahead that decode fastest here.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared.add_options(parser)
    names = ", ".join(TUNABLE)
    parser.add_argument("--lookahead", metavar="NAME", default="fixed", help=f"one of {names} (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    check_tunable(options.lookahead)
    prompts, method = read_before_loading(options)
    engine, asked = load(options, prompts, method)
    with terminal.Progress(unit="") as progress:
        wanted = LookaheadOptions(options.tokens, options.budget)
        found = tune(engine, method, options.lookahead, asked, wanted, progress=progress, say=say)
    best = found.fastest(options.lookahead)
    assert best.candidate is not None
    print(_text(found, options.lookahead))
    print(f"use it with: {generate_command(engine, options, best.candidate.flags)}")
    if options.json:
        rows = [row.to_json() for row in found.rows]
        document = {
            "best": best.to_json(),
            "flags": best.candidate.flags,
            "rows": rows,
            "num_tokens": found.counts.num_tokens,
        }
        print(json.dumps({**circumstances(engine, method, options), **document}, default=str))
    return 0


def _text(found: Tuned, lookahead: str) -> str:
    best, counts = found.fastest(lookahead), found.counts
    drafted = (
        f"{counts.num_drafted} of {counts.num_tokens} tokens had a draft, {counts.kept_share:.1%} of these a right one"
    )
    lines = [drafted, "", table(found.rows, best), ""]
    if best.seconds_per_token > found.plain.seconds_per_token:
        lines.append("plain decoding is faster than all of them here; --strategy off decodes plainly")
    return "\n".join([*lines, f"best: {best.candidate}"])
