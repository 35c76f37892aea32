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

from ..bench.papers.experiment import Recipe
from ..bench.papers.page import as_text, sections
from ..bench.papers.plan import minutes, plan, plan_table
from ..bench.papers.recipes import recipes
from ..bench.papers.run import ReproduceHead, Reproduction, UnitFile, kept_units
from ..bench.papers.workbench import QUICK, QUICK_SECONDS, WHOLE, Scale, Workbench
from ..bench.tables import text_table
from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..measure.circumstances import SHAPING, circumstances
from ..models.load.catalogue import DEFAULT_MODEL, cache_home
from ..options import typed_call
from ..prompts.arrange import digest
from ..prompts.sets import select_prompts
from ..types import Prompt
from ..version import __version__
from . import terminal
from .inputs import check_output, load_engine, read_named, shown_name


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    chosen = recipes([options.paper])
    known = dict.fromkeys(experiment.id for one in chosen for experiment in one.experiments)
    for name in options.experiments:
        if name not in known:
            raise unknown_name("experiment", name, list(known))
    if options.drafter and not any(recipe.has_drafters for recipe in chosen):
        raise OptionError(f"--drafter says nothing about {options.paper}: its drafts are the model's own; leave it out")
    typed_call({"seed": options.seed})
    prompts = select_prompts([], read_named(options.prompts), [], None)
    if options.output:
        check_output(options.output)
    engine = load_engine(options, profile=None)
    scale = _scale(options, chosen)
    head = _head(options, engine, prompts, scale)
    folder = _fits_folder(head)
    if options.again and not options.plan:
        shutil.rmtree(folder, ignore_errors=True)
    bench = Workbench(engine, prompts, scale, folder, options.seed, terminal.say)
    if options.plan or not options.quick:
        kept = kept_units(None if options.again else options.output, head)
        planned = list(plan(bench, chosen, options.experiments, kept))
        if options.plan:
            print(text_table(plan_table(planned)))
            return 0
        terminal.say(f"this takes about {minutes(planned):.0f} minutes; --plan tells what of it each experiment takes")
    file = UnitFile(options.output, head, options.again)
    with terminal.Progress("") as bar:
        limit = QUICK_SECONDS * len(chosen) if options.quick and options.seconds is None else options.seconds
        work = Reproduction(bench, file, limit, began, bar)
        work.run(chosen, options.experiments)
    for one in sections(chosen, list(file.lines.values()), file.head, options.experiments):
        print(as_text(one, file.head), end="\n\n")
    if work.is_interrupted:
        told = f"{options.output} has what was measured, the same command goes on"
        terminal.say(f"interrupted: {told if options.output else 'nothing is kept'}")
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
        "learn": options.learn,
        "drafter": options.drafter,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(usual, **given, asked=tuple(given))


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
    scale = ("per_task", "learn", "drafter", "max_new_tokens", "fit_seconds", "runs")
    for name in ("device", "dtype", "threads", *scale, "seconds", "seed"):
        if value := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--output", Path(options.output).name] if options.output else []
    return shlex.join(words)
