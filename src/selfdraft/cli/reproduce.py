"""`selfdraft reproduce`: the papers' experiments at the scale of a model, published numbers beside ours."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bench.papers.experiment import Recipe
from ..bench.papers.page import as_text, sections
from ..bench.papers.recipes import ALL, RECIPES, recipes
from ..bench.papers.run import ReproduceHead, Reproduction, UnitFile
from ..bench.papers.workbench import QUICK, QUICK_SECONDS, WHOLE, Scale, Workbench
from ..engine.engine import Engine
from ..errors import unknown_name
from ..measure.circumstances import SHAPING, circumstances
from ..models.load.catalogue import DEFAULT_MODEL, cache_home
from ..prompts.arrange import digest
from ..prompts.sets import select_prompts
from ..types import Prompt
from ..version import __version__
from . import terminal
from .inputs import (
    add_command,
    add_model,
    check_output,
    check_sampling,
    count,
    load_engine,
    read_named,
    seconds,
    shown_name,
)

EXAMPLES = """\
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


def add_parser(commands: Any) -> None:
    text = "the papers' experiments on a model, published numbers beside ours"
    about = "The papers' experiments at the scale of a model, published numbers beside ours."
    parser = add_command(commands, "reproduce", run, text, about, EXAMPLES)
    add: Any = parser.add_argument
    number = {"metavar": "N", "type": count}
    add("paper", metavar="PAPER", help=f"{', '.join(RECIPES)}, or {ALL}")
    add_model(parser)
    add("--quick", action="store_true", help="few prompts of each task, few tokens, less than ten minutes a paper")
    add("--experiments", metavar="ID", nargs="+", default=[], help="only these: table-2, figure-6, ... (default: all)")
    lines = "JSON lines with id, domain and prompt (default: ours)"
    add("--prompts", metavar="FILE", nargs="+", default=[], help=lines)
    usual = f"default: {WHOLE.prompts}; with --quick: what there is time for"
    add("--per-task", **number, help=f"prompts of each task ({usual})")
    add("--max-new-tokens", **number, help=f"default: {WHOLE.tokens}; with --quick: {QUICK.tokens}")
    fitting = f"default: {WHOLE.fit_seconds:g}; with --quick: {QUICK.fit_seconds:g}"
    add("--fit-seconds", metavar="N", type=seconds, help=f"what fitting a method beforehand may take ({fitting})")
    add("--runs", **number, help="measure each text N times: intervals then hold the machine's own spread (default: 1)")
    limit = f"begin nothing later than this after the start (default: none; with --quick: {QUICK_SECONDS:g} a paper)"
    add("--seconds", metavar="N", type=seconds, help=limit)
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--output", metavar="FILE.jsonl", help="keep every piece; the same command goes on where it was interrupted")
    add("--again", action="store_true", help="replace what --output holds, and fit again")
    add("--commit", metavar="TEXT", help="what the result says was measured, where git does not know")


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    chosen = recipes([options.paper])
    known = dict.fromkeys(experiment.id for one in chosen for experiment in one.experiments)
    for name in options.experiments:
        if name not in known:
            raise unknown_name("experiment", name, list(known))
    check_sampling(options)
    prompts = select_prompts([], read_named(options.prompts), [], None)
    if options.output:
        check_output(options.output)
    engine = load_engine(options, profile=None)
    scale = _scale(options, chosen)
    head = _head(options, engine, prompts, scale)
    folder = _fits_folder(head)
    if options.again:
        shutil.rmtree(folder, ignore_errors=True)
    bench = Workbench(engine, prompts, scale, folder, options.seed, terminal.say)
    file = UnitFile(options.output, head, options.again)
    with terminal.Progress("") as bar:
        limit = QUICK_SECONDS * len(chosen) if options.quick and options.seconds is None else options.seconds
        work = Reproduction(bench, file, limit, began, bar)
        work.run(chosen, options.experiments)
    for one in sections(chosen, list(file.lines.values()), file.head, options.experiments):
        print(as_text(one, file.head), end="\n\n")
    if work.is_interrupted:
        kept = f"{options.output} has what was measured, the same command goes on"
        terminal.say(f"interrupted: {kept if options.output else 'nothing is kept'}")
        return 130
    return 1 if work.has_difference else 0


def _scale(options: argparse.Namespace, chosen: list[Recipe]) -> Scale:
    usual = replace(QUICK, prompts=min(one.quick_prompts for one in chosen)) if options.quick else WHOLE
    asked = {
        "prompts": options.per_task,
        "fit_prompts": options.per_task,
        "tokens": options.max_new_tokens,
        "fit_seconds": options.fit_seconds,
        "runs": options.runs,
    }
    return replace(usual, **{name: value for name, value in asked.items() if value is not None})


def _fits_folder(head: ReproduceHead) -> Path:
    """Of runs that ask the same, commit included: what others fitted is not taken for it."""
    question = json.dumps(head.question, sort_keys=True)
    return cache_home() / "fits" / hashlib.sha256(question.encode()).hexdigest()[:16]


def _head(options: argparse.Namespace, engine: Engine, prompts: list[Prompt], scale: Scale) -> ReproduceHead:
    where = {**circumstances(engine.runner), "command": _command(options)}
    if options.commit:
        where["commit"] = options.commit
    question = {
        "selfdraft": __version__,
        "model": shown_name(options.model or DEFAULT_MODEL),
        "fingerprint": engine.knowledge.key.fingerprint,
        **{name: where[name] for name in SHAPING},
        "prompts": [Path(file).name for file in options.prompts],
        "prompts_digest": digest(prompts),
        "scale": scale.to_json(),
        "seed": options.seed,
    }
    return ReproduceHead(question, where)


def _command(options: argparse.Namespace) -> str:
    """As it can be given again; files by their last part."""
    words = ["selfdraft", "reproduce", options.paper, *([shown_name(options.model)] if options.model else [])]
    words += ["--quick"] if options.quick else []
    lists = {"experiments": options.experiments, "prompts": [Path(file).name for file in options.prompts]}
    for name, values in lists.items():
        words += [f"--{name}", *values] if values else []
    for name in ("device", "dtype", "per_task", "max_new_tokens", "fit_seconds", "runs", "seconds", "seed"):
        if value := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--output", Path(options.output).name] if options.output else []
    return shlex.join(words)
