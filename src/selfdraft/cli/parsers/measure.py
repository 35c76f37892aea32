"""The parsers of `bench`, `reproduce` and `report`."""

from __future__ import annotations

import argparse
from typing import Any

from ...bench.methods import PRESETS
from .arguments import add_command, add_method_options, add_model, count, seconds

PLURALS = {"strategy": "strategies", "lookahead": "lookaheads", "drafter": "drafters", "tree": "trees"}
"""Axes as flags of `bench`."""
_SETS = "summarise, math, translate, story, sql, code, chat, rewrite"
_PRESETS = "".join(f"  {name:<11} {preset.help}\n" for name, preset in PRESETS.items())

BENCH = f"""\
Methods take turns with plain decoding (off), prompt by prompt. Speed-ups are
total tokens over total seconds of decoding, with 95 % intervals; outputs are
compared: `different` makes the exit code 1. More: docs/benchmarking.md.

methods: every combination of --strategies, --lookaheads, --drafters and --trees
("all": every one; `selfdraft info --methods`); nothing: those of --quick.
--variant "NAME: AXIS=METHOD ... METHOD.OPTION=VALUE ...".

presets:
{_PRESETS}
prompts: ours, files of JSON lines (domain and prompt, or Spec-Bench's
question.jsonl), data sets of the hub with selfdraft[datasets].

examples:
  selfdraft bench --quick                  what would I gain? In five minutes
  selfdraft bench --strategies all --output result.jsonl
  selfdraft bench --strategies prune --lookaheads all --prompt-sets code math
  selfdraft bench --all --mix 0 --seconds 1800 --output result.jsonl
  selfdraft report result.jsonl --html page.html
"""


def add_bench(commands: Any) -> None:
    text = "measure methods against plain decoding: what would one gain?"
    about = "Methods against plain decoding on prompts of several kinds: what would one gain?"
    parser = add_command(commands, "bench", text, about, BENCH)
    add_model(parser)
    _add_methods(parser)
    _add_prompts(parser)
    _add_run(parser)
    add_method_options(parser, "method, where the above leave it open", has_names=False)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("methods to compare").add_argument
    add("--preset", choices=PRESETS, metavar="NAME", help="methods and options, see below")
    for name in ("quick", "all"):
        add(f"--{name}", action="store_const", dest="preset", const=name, help=f"the same as --preset {name}")
    for axis in PLURALS.values():
        add(f"--{axis}", metavar="NAME", nargs="+", default=[], help='names, or "all"')
    add("--variant", metavar="TEXT", action="append", default=[], help="a row of its own, see below; repeatable")
    peers = "eager, static, early-exit, lookup (default: all, static on CUDA only), or none"
    add("--peers", metavar="NAME", nargs="+", help=peers)
    add("--peer-prompts", metavar="N", type=count, help="peers on the first N prompts of each domain only")
    add("--peer-model", metavar="MODEL", help="also transformers' assisted generation with this model as the draft")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("prompts").add_argument
    number = {"metavar": "N", "type": count}
    add("--prompt-sets", metavar="NAME", nargs="+", default=[], help=f"ours: {_SETS} (default: all)")
    add("--prompts", metavar="FILE", nargs="+", default=[], help="files of JSON lines instead")
    add("--datasets", metavar="NAME", nargs="+", default=[], help="data sets of the hub instead")
    add("--per-domain", **number, help="the first N prompts of each domain (default: all; with --quick: 2)")
    add("--mix", metavar="R", type=float, help="order: the next prompt is of another domain with probability R")
    add("--contexts", **number, nargs="+", default=[], help="also prompts after about N tokens of other text")
    add("--max-new-tokens", **number, help="default: 128; with --quick: 40")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add: Any = parser.add_argument_group("run").add_argument
    add("--temperature", metavar="T", type=float, default=0.0, help="default: 0, greedy")
    add("--top-p", metavar="P", type=float, help="sample from the smallest set of tokens with this probability")
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--runs", metavar="N", type=count, default=1, help="measure all prompts N times (default: %(default)s)")
    add("--passes", action="store_true", default=None, help="also time single passes: the bound, the first token")
    add("--soak", metavar="N", type=count, help="at the end N texts of mixed length: does memory grow?")
    add("--seconds", metavar="N", type=seconds, help="begin no prompt later than this after the start")
    add("--output", metavar="FILE.jsonl", help="keep every text; the same command goes on where it was interrupted")
    add("--again", action="store_true", help="replace what --output holds")
    add("--json", action="store_true", help="print the result as one JSON document instead of a table")
    add("--commit", metavar="TEXT", help="what the result says was measured, where git does not know")


REPRODUCE = """\
Each table and figure is measured on the model given, with methods that take turns with plain decoding, and printed in
the paper's form: ours (with model, device and date), then the published numbers, then whether the paper's claims are
confirmed here. Published numbers come with their source and are never mixed with ours. What cannot be had (a data set
that is not there) is named. Outputs are compared with plain decoding; `different` makes the exit code 1.

prompts: ours stand for the papers' data sets; prompts of these data sets are known by their ids (cnndm..., gsm8k...,
humaneval..., wmt...) in files of JSON lines with id, domain and prompt: --prompts FILE.

With --output each piece is kept as it is measured: the same command goes on where it was interrupted, and
`selfdraft report` makes a page of several files.

examples:
  selfdraft reproduce asd --quick                            less than ten minutes on two cores
  selfdraft reproduce swift --experiments table-2 figure-6
  selfdraft reproduce all MODEL --prompts *.jsonl --seconds 3600 --output result.jsonl
  selfdraft report result.jsonl --markdown --output papers.md
"""


def add_reproduce(commands: Any) -> None:
    text = "the papers' experiments on a model, published numbers beside ours"
    about = "The papers' experiments at the scale of a model, published numbers beside ours."
    parser = add_command(commands, "reproduce", text, about, REPRODUCE)
    add: Any = parser.add_argument
    number = {"metavar": "N", "type": count}
    add("paper", metavar="PAPER", help="swift, knn-ssd, knapspec, asd, disco, or all")
    add_model(parser)
    add("--quick", action="store_true", help="few prompts of each task, few tokens, less than ten minutes a paper")
    add("--experiments", metavar="ID", nargs="+", default=[], help="only these: table-2, figure-6, ... (default: all)")
    lines = "JSON lines with id, domain and prompt (default: ours)"
    add("--prompts", metavar="FILE", nargs="+", default=[], help=lines)
    add("--per-task", **number, help="prompts of each task (default: 8; with --quick: what there is time for)")
    add("--max-new-tokens", **number, help="default: 128; with --quick: 24")
    add("--fit-seconds", metavar="N", type=seconds, help="for fitting a method (default: 60; with --quick: 12)")
    add("--runs", **number, help="measure each text N times: intervals then hold the machine's own spread (default: 1)")
    limit = "begin nothing later than this after the start (default: none; with --quick: 540 a paper)"
    add("--seconds", metavar="N", type=seconds, help=limit)
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--output", metavar="FILE.jsonl", help="keep every piece; the same command goes on where it was interrupted")
    add("--again", action="store_true", help="replace what --output holds, and fit again")
    add("--commit", metavar="TEXT", help="what the result says was measured, where git does not know")


REPORT_ABOUT = """\
Show results again: the table that `selfdraft bench` printed, or the tables and claims of `selfdraft reproduce`. On the
terminal, as Markdown, as pictures, or (of `bench`) as one HTML page that needs nothing but itself (no script, nothing
from the network; light and dark). Pictures need matplotlib (pip install "selfdraft[plot]"); the page does without.
"""


REPORT = """\
A result is what `selfdraft bench --output` or `selfdraft reproduce --output` wrote; one that is still being written can
be shown as well. Of a folder all such files are taken. Several results become sections of one page.

--png of `bench` writes speedup.png, cost.png, split.png, skips.png, length.png, stream.png (of several results each
name begins with that of its file); of `reproduce` the figures of its experiments. A chart that has nothing to show is
left out, and the page says why.

examples:
  selfdraft report result.jsonl                              the tables, on the terminal
  selfdraft report result.jsonl --markdown > table.md        Markdown for a README
  selfdraft report cpu.jsonl gpu.jsonl --html page.html --png charts
  selfdraft report papers/*.jsonl --markdown --output papers.md --png images --notes notes
"""


def add_report(commands: Any) -> None:
    add = add_command(commands, "report", "results as tables, pages, pictures", REPORT_ABOUT, REPORT).add_argument
    add("files", metavar="FILE.jsonl", nargs="+", help="what `bench` or `reproduce` wrote; of a folder all in it")
    add("--markdown", action="store_true", help="Markdown instead of text")
    add("--output", metavar="FILE.md", help="write text or Markdown here instead of the terminal")
    add("--html", metavar="FILE.html", help="results of `bench` as one page")
    add("--png", metavar="FOLDER", help="draw the charts there; made where it is missing")
    add("--notes", metavar="FOLDER", help="for `reproduce`: a paragraph on each paper, swift.md, knn-ssd.md, ...")
