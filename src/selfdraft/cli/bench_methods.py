"""`selfdraft bench`: methods against plain decoding on prompts of several kinds; what would one gain?"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from ..bench.circumstances import shown_name
from ..bench.harness import table
from ..bench.harness.plan import BenchPlan
from ..bench.harness.records import RecordFile
from ..bench.harness.run import MethodBench, is_different
from ..bench.harness.ways import Methods, check_names, crossed, every_method, is_bound, quick
from ..bench.long_prompts import context_prompts
from ..bench.prompt_sets import PROMPT_SETS, select_prompts
from ..bench.prompts import BenchPrompt
from ..bench.streams import mixed_prompts
from ..bench.ways import PEERS, check_peers, default_peers, name_method, parse_variants
from ..engine.engine import Engine
from ..errors import OptionError
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
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
from .outputs import check_output

QUICK_TOKENS, QUICK_PROMPTS = 40, 2
EXAMPLES = """\
For each prompt all ways take turns in one process, plain decoding (off) among them. Speed-ups are total tokens over
total seconds against off, prefill excluded, with 95 % intervals by bootstrap over prompts. Every output is compared
with the plain one: `different` makes the exit code 1. A table and a sentence of advice are printed, and one JSON
document last. With --output every text is kept as a line of JSON as it is measured: the same command goes on where it
was interrupted, and `selfdraft report` makes a page of it.

ways: every combination of --strategies, --lookaheads, --drafters and --trees ("all": every one there is); what is left
open is what a strategy pairs with. --all: every method there is, by itself. --variant: a row of its own, NAME:
AXIS=METHOD ... METHOD.OPTION=VALUE ... . What was not calibrated is named and left out.

prompts: ours, of eight kinds; files of JSON lines (domain and prompt, or Spec-Bench's question.jsonl with its turns);
data sets of the hub with selfdraft[datasets].

examples:
  selfdraft bench --quick                                   what would I gain? Less than five minutes on two cores
  selfdraft bench --strategies all --output result.jsonl    every strategy with what it pairs with
  selfdraft bench --strategies prune --lookaheads all --prompt-sets code math
  selfdraft bench --all --mix 0 --seconds 1800 --output result.jsonl      a stream, task by task
  selfdraft report result.jsonl --output page.html
"""


def add_parser(benchmarks: Any) -> None:
    parser = benchmarks.add_parser(
        "methods",
        help="methods against plain decoding (what `selfdraft bench` does by itself)",
        description="Methods against plain decoding on prompts of several kinds: what would one gain?",
        epilog=f"{method_help()}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="selfdraft bench",
    )
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    _add_ways(parser)
    _add_prompts(parser)
    _add_run(parser)
    add_method_options(parser)
    parser.set_defaults(run=run)


def _add_ways(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ways")
    add: Any = group.add_argument
    add("--quick", action="store_true", help="a few ways, two prompts of each kind, few tokens")
    add("--all", action="store_true", help="every method by itself; --strategy: the one that lookaheads and trees use")
    for axis in ("strategies", "lookaheads", "drafters", "trees"):
        add(f"--{axis}", metavar="NAME", nargs="+", default=[], help='names, or "all"')
    add("--variant", metavar="TEXT", action="append", default=[], help="a row of its own, see below; repeatable")
    add("--peers", metavar="NAME", nargs="+", help=f"{', '.join(PEERS)} (default: all, static on CUDA only), or none")
    add("--peer-prompts", metavar="N", type=count, help="peers on the first N prompts of each domain only")
    add("--peer-model", metavar="MODEL", help="also transformers' assisted generation with this model as the draft")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    add: Any = group.add_argument
    number = {"metavar": "N", "type": count}
    add("--prompt-sets", metavar="NAME", nargs="+", default=[], help=f"ours: {', '.join(PROMPT_SETS)} (default: all)")
    add("--prompts", metavar="FILE", nargs="+", default=[], help="files of JSON lines instead")
    add("--datasets", metavar="NAME", nargs="+", default=[], help="data sets of the hub instead")
    add("--per-domain", **number, help="the first N prompts of each domain (default: all; with --quick: 2)")
    add("--mix", metavar="R", type=float, help="order: the next prompt is of another domain with probability R")
    add("--contexts", **number, nargs="+", default=[], help="also prompts behind about so many tokens of text")
    add("--max-new-tokens", **number, help=f"default: 128; with --quick: {QUICK_TOKENS}")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    add: Any = group.add_argument
    add("--temperature", metavar="T", type=float, default=0.0, help="default: 0, greedy")
    add("--top-p", metavar="P", type=float, help="sample from the smallest set of tokens with this probability")
    add("--seed", metavar="N", type=int, default=0, help="default: %(default)s")
    add("--seconds", metavar="N", type=bench_common.seconds, help="begin no prompt later than so long after the start")
    add("--output", metavar="FILE.jsonl", help="keep every text; the same command goes on where it was interrupted")
    add("--again", action="store_true", help="replace what --output holds")
    add("--commit", metavar="TEXT", help="what the result says was measured, where git does not know")


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    check_temperature(options.temperature)
    check_top_p(options.top_p)
    methods, peers = _methods(options), _peers(options)
    prompts = _prompts(options)
    if options.output:
        check_output(options.output)
    with terminal.Progress() as progress:
        where = {"device": options.device, "dtype": options.dtype, "progress": progress}
        model, tokenizer = loading.load(options.model, **where)
        peer_model = loading.load(options.peer_model, **where)[0] if options.peer_model else None
    engine = Engine(model, tokenizer, name=options.model or DEFAULT_MODEL)
    plan = BenchPlan(
        prompts=[*prompts, *_long_prompts(options, prompts, engine)],
        methods=methods,
        peers=peers,
        peer_model=peer_model,
        peer_prompts=options.peer_prompts,
        max_new_tokens=options.max_new_tokens or (QUICK_TOKENS if options.quick else 128),
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        seconds=options.seconds,
        facts=_facts(options),
    )
    file = RecordFile(options.output) if options.output else None
    with terminal.Progress("") as bar:
        bench = MethodBench(engine, plan, file, began=began, progress=bar, is_new=options.again)
        document = bench.run()
    print(table.as_text(document))
    print(json.dumps(document))
    if bench.is_interrupted:
        return 130
    return 1 if is_different(document) else 0


def _methods(options: argparse.Namespace) -> Methods:
    """Everything that can be wrong with the command is, before it costs the time a model takes to load."""
    base = read_method(options)
    chosen = {axis: getattr(options, name) for axis, name in _PLURALS.items()}
    methods: Methods = {}
    if options.quick:
        methods |= quick(base)
    if options.all:
        methods |= every_method(base)
    methods |= crossed(chosen, base)
    methods |= parse_variants(options.variant, base)
    if not (methods or any(chosen.values())):
        methods = {name_method(base): base}
    check_names(methods)
    for method in methods.values():
        check_method_names({**method, "lookahead": None} if is_bound(method) else method)
    return methods


_PLURALS = {"strategy": "strategies", "lookahead": "lookaheads", "drafter": "drafters", "tree": "trees"}


def _peers(options: argparse.Namespace) -> list[str]:
    device = loading.choose_device(options.device)
    loading.choose_dtype(options.dtype, device)
    if options.peers:
        return check_peers(options.peers)
    if options.quick or options.temperature:
        return []
    return default_peers(device.type)


def _prompts(options: argparse.Namespace) -> list[BenchPrompt]:
    files = [(Path(file).name, read_file(file)) for file in options.prompts]
    per_domain = options.per_domain or (QUICK_PROMPTS if options.quick else None)
    prompts = select_prompts(options.prompt_sets, files, options.datasets, per_domain)
    return prompts if options.mix is None else mixed_prompts(prompts, options.mix, options.seed)


def _long_prompts(options: argparse.Namespace, prompts: list[BenchPrompt], engine: Engine) -> list[BenchPrompt]:
    return context_prompts(prompts, engine, options.contexts, per_length=2) if options.contexts else []


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    left_out = ("run", "command", "benchmark", "model", "output", "again", "commit", "seconds")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    files = {
        "prompts": [Path(file).name for file in options.prompts],
        "set": ["=".join(map(shown_name, word.split("=", 1))) for word in options.set],
        "peer_model": options.peer_model and shown_name(options.peer_model),
    }
    commit = {"commit": options.commit} if options.commit else {}
    return {"model": shown_name(options.model or DEFAULT_MODEL), "options": {**values, **files}, **commit}


def check_temperature(temperature: float) -> None:
    if not temperature >= 0:
        raise OptionError(f"--temperature must be at least 0, got {temperature}")


def check_top_p(top_p: float | None) -> None:
    if top_p is not None and not 0 < top_p <= 1:
        raise OptionError(f"--top-p must be above 0 and at most 1, got {top_p}")
