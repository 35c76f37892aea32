"""`selfdraft bench`: measure. `gpu`: our ways and transformers' own; others elsewhere; `table`: a result."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import plot, report
from ..bench.gpu import GpuBench, GpuPlan
from ..bench.harness import table as methods_table
from ..bench.harness.figures import document as document_of
from ..bench.harness.records import is_record_file, read_records
from ..bench.lookahead import plot as lookahead_plot
from ..bench.lookahead import report as lookahead_report
from ..bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from ..bench.ways import PEERS, check_peers, default_peers, name_method, parse_variants
from ..errors import OptionError
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from . import bench_common, bench_lookahead, bench_methods, terminal
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

BENCHMARKS = {"methods", "gpu", "lookahead", "table"}
EXAMPLES = """\
examples:
  selfdraft bench --quick                           what would I gain? (`selfdraft bench methods --help` tells more)
  selfdraft bench --strategies all --output result.jsonl
  selfdraft bench gpu --help                        speed on a GPU against transformers, and where the time goes
  selfdraft bench lookahead --help                  how far to draft: all rules, and the oracle
  selfdraft bench table result.json                 a result as Markdown tables
"""
GPU_EXAMPLES = """\
Meant for a GPU; runs on any device. Greedy, one text at a time, prompts through the chat template where there is one.
For each prompt all ways take turns in one process: selfdraft plainly (off), selfdraft with each variant, and
transformers' own (peers). Speeds are total tokens over total seconds. Every output is compared with that of `off`;
`different`, or a plot that cannot be drawn, makes the exit code 1. Single passes are timed first: with the rounds a
variant needed they give the bound its speed is held against. A table is printed, and one JSON document last.

A variant is a row of its own: NAME: AXIS=METHOD ... METHOD.OPTION=VALUE ...; what it leaves open is as the method
options of the command say. Without any, these options are the one variant.

peers: eager (the default cache), static (static cache, compiled on CUDA: the baseline), early-exit (two thirds of the
layers draft), lookup (10 tokens from the prompt)

examples:
  selfdraft bench gpu                                             the default model, the default method, our prompts
  selfdraft bench gpu --peers none --seconds 60 --per-domain 2    ours alone, a minute
  selfdraft bench gpu qwen2.5-coder-1.5b-instruct --peer-tokens 32 --soak 200 --output result.json \\
      --variant "chain: strategy=fixed fixed.skip=a4,a5,m3-8" --variant "tree: strategy=uniform tree=siblings"
"""
CONTEXT_HELP = (
    "time single passes behind a text of so many tokens, or fewer where its cache bucket (a power of two) has no room "
    "for 64 more (default: %(default)s)"
)
TABLE_EXAMPLES = """\
examples:
  selfdraft bench table result.json                 Markdown for a README
  selfdraft bench table result.json --plot speed.png
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure speed",
        description="Measure speed, always against plain decoding in the same run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    bench_methods.add_parser(benchmarks)
    _add_gpu_parser(benchmarks)
    bench_lookahead.add_parser(benchmarks)
    table = benchmarks.add_parser(
        "table",
        help="a result as Markdown",
        description="Print a result of `selfdraft bench ... --output FILE` as Markdown tables.",
        epilog=TABLE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("file", help='what `selfdraft bench ... --output` wrote; "-": standard input')
    table.add_argument("--plot", metavar="FILE.png", help="also draw it; needs matplotlib")
    table.set_defaults(run=run_table)


def with_default(arguments: Sequence[str]) -> list[str]:
    """`selfdraft bench ...` means `selfdraft bench methods ...` unless a benchmark is named."""
    first = list(arguments[1:2])
    if list(arguments[:1]) != ["bench"] or first == ["-h"] or first == ["--help"] or set(first) & BENCHMARKS:
        return list(arguments)
    return ["bench", "methods", *arguments[1:]]


def _add_gpu_parser(benchmarks: Any) -> None:
    parser = benchmarks.add_parser(
        "gpu",
        help="our ways and transformers' own, side by side, and where the time goes",
        description="Speed against transformers and against plain decoding, the bound, and what single passes cost.",
        epilog=f"{method_help()}\n{GPU_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    add, number = parser.add_argument, {"metavar": "N", "type": count}
    bench_common.add_prompt_options(parser, per_domain=None, max_new_tokens=256)
    add("--variant", metavar="TEXT", action="append", default=[], help="a row of its own, see below; repeatable")
    add("--peers", metavar="NAME", nargs="+", help=f"{', '.join(PEERS)} (default: all, static on CUDA only), or none")
    add("--peer-tokens", **number, help="fewer new tokens for slow peers; static always takes all")
    add("--warm-up-tokens", **number, help="default: all where something is compiled or captured, else 8")
    add("--context", **number, default=320, help=CONTEXT_HELP)
    add("--soak", **number, default=0, help="at the end N texts of mixed length; shows memory before and after")
    bench_common.add_run_options(parser)
    add_method_options(parser)
    parser.set_defaults(run=run_gpu)


def run_gpu(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    plan = _plan(options)
    bench_common.check_outputs(options)
    with terminal.Progress() as progress:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=progress)

    def save(document: dict[str, Any]) -> bool:
        return bench_common.save(bench_common.complete(document, options), options.output)

    name = options.model or DEFAULT_MODEL
    bench = GpuBench(model, tokenizer, plan, began, bench_common.say, save, name=name)
    document = bench_common.complete(bench.run(), options)
    is_saved = save(document)
    print(report.as_text(document))
    is_drawn = bench_common.draw(document, options.plot, plot.draw)
    print(json.dumps(document))
    if bench.is_interrupted:
        return 130
    is_different = any(row["kind"] == "ours" and row["total"]["different"] for row in document["rows"])
    return 1 if is_different or not is_drawn or not is_saved else 0


@dataclass(frozen=True)
class Kind:
    """How a document is shown."""

    as_markdown: Callable[[Mapping[str, Any]], str]
    draw: Callable[[Mapping[str, Any], str], None]


KINDS: Mapping[str, Kind] = {
    "gpu": Kind(report.as_markdown, plot.draw),
    "lookahead": Kind(lookahead_report.as_markdown, lookahead_plot.draw),
}
"""By what a document says of itself."""


def run_table(options: argparse.Namespace) -> int:
    if options.plot:
        plot.require_matplotlib()
    if is_record_file(options.file):
        if options.plot:
            raise OptionError(
                f"{options.file} is drawn by `selfdraft report {options.file} --png FOLDER`; leave out --plot"
            )
        print(methods_table.as_markdown(document_of(*read_records(options.file))))
        return 0
    document = _read_document(options.file)
    kind = KINDS[document["benchmark"]]
    try:
        text = kind.as_markdown(document)
    except (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise OptionError(
            f"{options.file} is damaged ({type(error).__name__}: {error}); it must be what "
            f"`selfdraft bench {document['benchmark']} --output` wrote"
        ) from None
    print(text)
    return 0 if bench_common.draw(document, options.plot, kind.draw) else 1


def _plan(options: argparse.Namespace) -> GpuPlan:
    """Everything that can be wrong with the command is, before it costs the time a model takes to load."""
    method = read_method(options)
    variants = parse_variants(options.variant, method)
    if not variants and method.get("strategy") != "off":
        variants = {name_method(method): method}
    for variant in variants.values():
        check_method_names(variant)
    check_method_names(method)
    device = loading.choose_device(options.device)
    loading.choose_dtype(options.dtype, device)
    return GpuPlan(
        prompts=_prompts(options),
        variants=variants,
        peers=check_peers(options.peers) if options.peers else default_peers(device.type),
        max_new_tokens=options.max_new_tokens,
        peer_tokens=options.peer_tokens,
        warm_up_tokens=options.warm_up_tokens,
        context=options.context,
        seconds=options.seconds,
        soak=options.soak,
    )


def _prompts(options: argparse.Namespace) -> list[BenchPrompt]:
    files = options.prompts or [str(OWN_PROMPTS)]
    return read_prompts(((Path(file).name, read_file(file)) for file in files), options.per_domain)


def _read_document(file: str) -> dict[str, Any]:
    commands = " or ".join(f"`selfdraft bench {name}`" for name in KINDS)
    try:
        document = json.loads(read_file(file))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{file} is no JSON document of {commands} ({error})") from None
    if not isinstance(document, dict) or str(document.get("benchmark")) not in KINDS:
        raise OptionError(f"{file} is no document of {commands}; make one with its --output")
    return document
