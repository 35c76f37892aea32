"""The parsers of `bench`, `reproduce` and `report`."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from ...bench.methods import ALL, PRESETS
from ...bench.shapes import SHAPES
from ...models.load.catalogue import CATALOGUE
from ...registry import AXES, BENCH_ONLY
from .arguments import add_command, add_method_options, add_model, add_place, completes, count, seconds

PLURALS = {"strategy": "strategies", "lookahead": "lookaheads", "drafter": "drafters", "tree": "trees"}
"""Axes as flags of `bench`."""
_SETS = ("summarise", "math", "translate", "story", "sql", "code", "chat", "rewrite")
_PEERS = ("eager", "static", "early-exit", "lookup")
SHAPE_PEERS = ("static", "eager")
_PAPERS = ("swift", "knn-ssd", "knapspec", "asd", "disco")
_PRESETS = "".join(f"  {name:<11} {preset.help}\n" for name, preset in PRESETS.items())

BENCH = f"""\
Methods take turns with plain decoding (off), prompt by prompt. Speed-ups are
total tokens over total seconds of decoding, with 95 % intervals; outputs are
compared: `different` makes the exit code 1. Compared is every combination of
--strategies, --lookaheads, --drafters and --trees (see `selfdraft info
--methods`), else what a preset names. More: docs/benchmarking.md.

presets:
{_PRESETS}
examples:
  selfdraft bench --quick                  what would I gain? In five minutes
  selfdraft bench --strategies all --output result.jsonl
  selfdraft bench --strategies prune --lookaheads all --prompt-sets code math
  selfdraft bench passes --help            passes of a size, without its weights
"""
PASSES_ABOUT = """\
What passes of a model cost at its published size, without its weights: random
ones are made on the device, for the time of a pass does not depend on what they
say.
"""
_NAMES = textwrap.fill(", ".join(SHAPES), 76, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
PASSES = f"""\
Told are milliseconds a token and the share of them that reading the weights
once would take, passes of 2 to 32 tokens (verifications), drafts that skip a
third and half of the sub-layers, what a new skip set costs, and memory. Texts
are 320 tokens long. A shape that does not fit into memory is left out, with
numbers. More: docs/benchmarking.md.

shapes:
{_NAMES}

examples:
  selfdraft bench passes --shape smollm2-135m          small enough for a CPU
  selfdraft bench passes --shape qwen3-8b llama-3.1-8b --peers static
  selfdraft bench passes --shape ./my-model --output passes.jsonl
  selfdraft report passes.jsonl --markdown             with what it predicts
"""


def add_bench(commands: Any) -> None:
    text = "measure methods against plain decoding"
    about = "Methods against plain decoding on prompts of several kinds: what would one gain?"
    parser = add_command(commands, "bench", text, about, BENCH)
    add_model(parser)
    _add_methods(parser)
    _add_prompts(parser)
    _add_run(parser)
    add_method_options(parser, "method, where the above leave it open", has_names=False)
    _add_passes(commands)


def _add_passes(commands: Any) -> None:
    """Two words, read as one command: see `main.parse`."""
    text = "what passes of published sizes cost, without weights"
    parser = add_command(commands, "bench passes", text, PASSES_ABOUT, PASSES)
    add: Any = parser.add_argument
    shapes = 'names (below), config.json files or folders that have one; "all": those below'
    completes(add("--shape", metavar="NAME", nargs="+", required=True, help=shapes), [*SHAPES, ALL])
    add_place(parser)
    peers = f"also transformers' own: {', '.join(SHAPE_PEERS)} (static is compiled on CUDA)"
    completes(add("--peers", metavar="NAME", nargs="+", default=[], help=peers), SHAPE_PEERS)
    limit = "for timing passes of each shape (default: %(default)g)"
    add("--seconds", metavar="N", type=seconds, default=20.0, help=limit)
    _add_result(add, "keep every shape; the same command goes on there")


def _add_result(add: Any, kept: str) -> None:
    add("--output", metavar="FILE.jsonl", help=kept)
    add("--again", action="store_true", help="replace what --output holds")
    add("--json", action="store_true", help="print one JSON document instead of a table")
    add("--commit", metavar="TEXT", help="what was measured, where git does not know")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("methods to compare").add_argument
    add("--preset", choices=PRESETS, metavar="NAME", help="methods and options, see below")
    for name in ("quick", "all"):
        add(f"--{name}", action="store_const", dest="preset", const=name, help=f"the same as --preset {name}")
    for axis, plural in PLURALS.items():
        several = add(f"--{plural}", metavar="NAME", nargs="+", default=[], help='names, or "all"')
        completes(several, [*AXES[axis], *BENCH_ONLY.get(axis, ()), ALL])
    row = 'also "NAME: AXIS=METHOD ... METHOD.OPTION=VALUE ..."'
    add("--variant", metavar="TEXT", action="append", default=[], help=row)
    peers = f"transformers' own: {', '.join(_PEERS)} (default: all, static on CUDA only), or none"
    completes(add("--peers", metavar="NAME", nargs="+", help=peers), [*_PEERS, "none"])
    add("--peer-prompts", metavar="N", type=count, help="peers on the first N prompts of each domain only")
    assisted = "also transformers' assisted generation by this one"
    completes(add("--peer-model", metavar="MODEL", help=assisted), CATALOGUE)


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("prompts").add_argument
    number = {"metavar": "N", "type": count}
    sets = add("--prompt-sets", metavar="NAME", nargs="+", default=[], help=f"ours: {', '.join(_SETS)} (default: all)")
    completes(sets, _SETS)
    add("--prompts", metavar="FILE", nargs="+", default=[], help="files of JSON lines instead (domain and prompt)")
    add("--datasets", metavar="NAME", nargs="+", default=[], help="data sets of the hub instead (selfdraft[datasets])")
    add("--per-domain", **number, help="the first N of each domain (default: all)")
    add("--mix", metavar="R", type=float, help="chance that the next prompt is of another domain")
    add("--contexts", **number, nargs="+", default=[], help="also prompts after about N tokens of other text")
    add("--max-new-tokens", **number, help="default: 128; with --quick: 40")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("run").add_argument
    add("--temperature", metavar="T", type=float, default=0.0, help="default: 0, greedy")
    add("--top-p", metavar="P", type=float, help="keep the likeliest up to this probability")
    mode = 'prompts in modes, "NAME: temperature=0.8 top_p=0.95 ..."; repeatable'
    add("--mode", metavar="TEXT", action="append", default=[], help=mode)
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--runs", metavar="N", type=count, default=1, help="measure all prompts N times (default: %(default)s)")
    add("--passes", action="store_true", default=None, help="also time single passes: the bound, the first token")
    add("--soak", metavar="N", type=count, help="end with N texts of mixed length: does memory grow?")
    add("--seconds", metavar="N", type=seconds, help="begin no prompt later than this after the start")
    _add_result(add, "keep every text; the same command goes on there")


REPRODUCE = """\
Tables and figures are measured on the model given and printed in the paper's
form: ours, the published numbers with their source, and whether the paper's
claims are confirmed here. Outputs are compared with plain decoding; `different`
makes the exit code 1. Our prompts stand for the papers' data sets; their own
are known by their ids (cnndm..., gsm8k..., humaneval..., wmt...). Where a
paper asks base models after answered examples, so do we, if the prompts have
answers (`reference`). Its main tables have 16 prompts a task, three runs of
each, and its own number of new tokens, unless you say otherwise.

examples:
  selfdraft reproduce asd --quick          less than ten minutes on two cores
  selfdraft reproduce all MODEL --plan     the minutes it would take
  selfdraft reproduce swift --experiments table-2 figure-6
  selfdraft reproduce all MODEL --prompts *.jsonl --output result.jsonl
"""


def _drafter(text: str) -> str:
    if text.partition("=")[0] not in ("self", "model") or text.startswith("self="):
        raise argparse.ArgumentTypeError(f"must be self, model or model=NAME, got {text!r}")
    return text


def add_reproduce(commands: Any) -> None:
    text = "the papers' experiments on a model"
    about = "The papers' experiments at the scale of a model, published numbers beside ours."
    parser = add_command(commands, "reproduce", text, about, REPRODUCE)
    add: Any = parser.add_argument
    number = {"metavar": "N", "type": count}
    completes(add("paper", metavar="PAPER", help=f"{', '.join(_PAPERS)}, or all"), [*_PAPERS, ALL])
    add_model(parser)
    add("--quick", action="store_true", help="few prompts of each task, few tokens, less than ten minutes a paper")
    add("--experiments", metavar="ID", nargs="+", default=[], help="only these: table-2, figure-6, ... (default: all)")
    lines = "JSON lines with id, domain and prompt (default: ours)"
    add("--prompts", metavar="FILE", nargs="+", default=[], help=lines)
    per_task = "prompts of each task (default: 8, of main tables 16; with --quick: what there is time for)"
    add("--per-task", **number, help=per_task)
    add("--learn", **number, help="of disco: prompts to train its classifier with (default: 200; with --quick: 8)")
    drafter = "of disco: what drafts: self, model (cut from the target), model=NAME (default: self)"
    add("--drafter", metavar="NAME", type=_drafter, help=drafter)
    add("--max-new-tokens", **number, help="default: 256, of main tables as the paper; with --quick: 24")
    add("--fit-seconds", metavar="N", type=seconds, help="for fitting a method (default: 60; with --quick: 12)")
    runs = "measure each text N times: intervals then hold the machine's own spread (default: 1, of main tables 3)"
    add("--runs", **number, help=runs)
    add("--plan", action="store_true", help="print the minutes that each experiment would take, and end")
    limit = "begin nothing later than this after the start (default: none; with --quick: 540 a paper)"
    add("--seconds", metavar="N", type=seconds, help=limit)
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--output", metavar="FILE.jsonl", help="keep every piece; the same command goes on where it was interrupted")
    add("--again", action="store_true", help="replace what --output holds, and fit again")
    add("--commit", metavar="TEXT", help="what was measured, where git does not know")


REPORT_ABOUT = """\
Show results again: the table that `selfdraft bench` printed, or the tables and
claims of `selfdraft reproduce`. Pictures need matplotlib (pip install
"selfdraft[plot]"); the page, which needs nothing but itself, does without.
"""


REPORT = """\
A result may still be being written. Several become sections of one page. A
chart that has nothing to show is left out, and the page says why.

examples:
  selfdraft report result.jsonl                         on the terminal
  selfdraft report text.json --png pictures             of generate --json
  selfdraft report cpu.jsonl gpu.jsonl --html page.html --png charts
  selfdraft report papers/*.jsonl --markdown --output papers.md --notes notes
"""


def add_report(commands: Any) -> None:
    add = add_command(commands, "report", "results as tables, pages, pictures", REPORT_ABOUT, REPORT).add_argument
    add("files", metavar="FILE.jsonl", nargs="+", help="what `bench` or `reproduce` wrote; of a folder all in it")
    add("--markdown", action="store_true", help="Markdown instead of text")
    add("--output", metavar="FILE.md", help="write text or Markdown here instead of the terminal")
    add("--html", metavar="FILE.html", help="results of `bench` as one page")
    add("--png", metavar="FOLDER", help="draw the charts there; made where it is missing")
    add("--notes", metavar="FOLDER", help="for `reproduce`: a paragraph on each paper, swift.md, knn-ssd.md, ...")
    add("--before", nargs="+", metavar="FILE", help="for `reproduce`: earlier results, to compare main tables with")
