"""`selfdraft bench`: measure. `gpu`: our ways and transformers' own, side by side; `table`: a result as Markdown."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .. import __version__
from ..bench import plot, report
from ..bench.gpu import GpuBench, GpuPlan
from ..bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from ..bench.ways import PEERS, check_peers, default_peers, name_method, parse_variants
from ..errors import OptionError
from ..models import loading
from ..models.catalogue import DEFAULT_MODEL
from . import terminal
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

EXAMPLES = """\
examples:
  selfdraft bench gpu --help                        speed on a GPU against transformers, and where the time goes
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
    _add_gpu_parser(benchmarks)
    table = benchmarks.add_parser(
        "table",
        help="a result as Markdown",
        description="Print a result of `selfdraft bench gpu --output FILE` as Markdown tables.",
        epilog=TABLE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("file", help='what `selfdraft bench gpu --output` wrote; "-": standard input')
    table.add_argument("--plot", metavar="FILE.png", help="also draw it; needs matplotlib")
    table.set_defaults(run=run_table)


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
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--per-domain", **number, help="the first N prompts of each domain (default: all)")
    add("--max-new-tokens", **number, default=256, help="default: %(default)s")
    add("--variant", metavar="TEXT", action="append", default=[], help="a row of its own, see below; repeatable")
    add("--peers", metavar="NAME", nargs="+", help=f"{', '.join(PEERS)} (default: all, static on CUDA only), or none")
    add("--peer-tokens", **number, help="fewer new tokens for slow peers; static always takes all")
    add("--warm-up-tokens", **number, help="default: all where something is compiled or captured, else 8")
    add("--context", **number, default=320, help=CONTEXT_HELP)
    add(
        "--seconds", metavar="N", type=_seconds, help="begin no prompt but the first later than so long after the start"
    )
    add("--soak", **number, default=0, help="at the end N texts of mixed length; shows memory before and after")
    add("--output", metavar="FILE", help="keep the JSON document here, rewritten after each prompt")
    add("--plot", metavar="FILE.png", help="draw tokens per second; needs matplotlib")
    add(
        "--commit",
        metavar="TEXT",
        help="what the JSON says was measured, where git does not know (default: git's word)",
    )
    add_method_options(parser)
    parser.set_defaults(run=run_gpu)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text!r}")
    return value


def run_gpu(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    plan = _plan(options)
    _check_outputs(options)
    with terminal.Progress() as progress:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=progress)

    def complete(document: dict[str, Any]) -> dict[str, Any]:
        asked = {"selfdraft": __version__, "model": _name(options.model), "options": _options(options)}
        return {**asked, **document, **({"commit": options.commit} if options.commit else {})}

    def save(document: dict[str, Any]) -> bool:
        return _save(complete(document), options.output)

    bench = GpuBench(model, tokenizer, plan, began, _say, save, name=options.model or DEFAULT_MODEL)
    document = complete(bench.run())
    is_saved = save(document)
    print(report.as_text(document))
    is_drawn = _draw(document, options.plot)
    print(json.dumps(document))
    if bench.is_interrupted:
        return 130
    is_different = any(row["kind"] == "ours" and row["total"]["different"] for row in document["rows"])
    return 1 if is_different or not is_drawn or not is_saved else 0


def _save(document: dict[str, Any], file: str | None) -> bool:
    """What cannot be kept can still be printed in the end."""
    try:
        if file:
            write_file(file, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        _say(f"selfdraft bench: error: cannot write {file}: {error}")
        return False
    return True


def _draw(document: dict[str, Any], file: str | None) -> bool:
    """Whatever goes wrong here must not cost the figures."""
    try:
        if file:
            plot.draw(document, file)
    except Exception as error:
        _say(f"selfdraft bench: error: cannot draw {file}: {type(error).__name__}: {error}")
        return False
    return True


def run_table(options: argparse.Namespace) -> int:
    if options.plot:
        plot.require_matplotlib()
    document = _read_document(options.file)
    try:
        text = report.as_markdown(document)
    except (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise OptionError(
            f"{options.file} is damaged ({type(error).__name__}: {error}); it must be what "
            "`selfdraft bench gpu --output` wrote"
        ) from None
    print(text)
    return 0 if _draw(document, options.plot) else 1


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


def _check_outputs(options: argparse.Namespace) -> None:
    if options.plot:
        plot.require_matplotlib()
    for file in filter(None, (options.output, options.plot)):
        folder = Path(file).absolute().parent
        if not folder.is_dir():
            raise OptionError(f"cannot write {file}: there is no folder {folder}")
        if Path(file).is_dir() or not os.access(folder, os.W_OK):
            raise OptionError(f"cannot write {file}; name a file in a folder that you may write to")


def _read_document(file: str) -> dict[str, Any]:
    try:
        document = json.loads(read_file(file))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{file} is no JSON document of `selfdraft bench gpu` ({error})") from None
    if not isinstance(document, dict) or document.get("benchmark") != "gpu":
        raise OptionError(f"{file} is no document of `selfdraft bench gpu`; make one with its --output")
    return document


def write_file(file: str, text: str) -> None:
    """Beside it first, then renamed: whoever reads it finds the old text or the new one. Not for pipes and devices."""
    target = Path(file).resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    beside = Path(f"{target}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _name(model: str | None) -> str:
    """A folder by its last part: where it lies says nothing to a reader."""
    if model is None:
        return DEFAULT_MODEL
    return Path(model).resolve().name if Path(model).exists() else model


def _options(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as far as it shapes the figures; files by name."""
    left_out = ("run", "command", "benchmark", "model", "output", "plot", "commit")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    return {**values, "prompts": [Path(file).name for file in options.prompts or [OWN_PROMPTS]]}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
