"""Which sub-layers to skip: the strategies side by side, the frontier that `prune` finds, and long texts.

    python benchmarks/selection.py --prompts code.jsonl math.jsonl chat.jsonl --max-new-tokens 64 --output result.json
    python benchmarks/selection.py MODEL --prompts code.jsonl --articles summarization.jsonl --contexts 512 2048 4096
    python benchmarks/selection.py --table result.json --plot selection.png

Runs on a CPU or a GPU. Prompts are JSON lines with `domain` and `prompt`. Of each domain the last --calibration prompts
are what `prune` is calibrated on, and the first --per-domain are measured. For each prompt all
strategies take turns with plain decoding (`off`) in one process, each warmed up first; every output is compared with
that of `off`, and `different` makes the exit code 1.

Table A gives all the same lookahead; table B gives each what it is meant to be used with. The frontier's match is
measured again on the texts of the measured prompts. --contexts continues articles cut to so many tokens.

The tables are printed last. --output keeps one JSON document, rewritten after every prompt; --profile FILE keeps what
calibration found, and a second run with it begins at once. Nothing else is written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import selfdraft
from selfdraft.bench.plot import require_matplotlib
from selfdraft.bench.prompts import OWN_PROMPTS, read_prompts, split
from selfdraft.bench.selection.calibration import Recipe
from selfdraft.bench.selection.plot import draw
from selfdraft.bench.selection.report import as_markdown
from selfdraft.bench.selection.run import ALL, CONTEXTS, PARTS, TABLES, SelectionBench, SelectionPlan, has_difference
from selfdraft.bench.ways import parse_variants
from selfdraft.cli.inputs import MODEL_HELP, add_device_options, read_file
from selfdraft.cli.outputs import write_file
from selfdraft.errors import OptionError, SelfdraftError
from selfdraft.models.latency import BUDGET_SECONDS, LENGTHS
from selfdraft.models.load.catalogue import DEFAULT_MODEL
from selfdraft.models.load.loading import load

LONG_LATENCY_SECONDS = 180.0
"""For measuring passes behind long texts, too: reading them takes its time."""


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        document = read_document(options.table) if options.table else measure(options)
    except (SelfdraftError, OSError) as error:
        print(f"selection: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say(f"interrupted; what was complete is in {options.output}" if options.output else "interrupted")
        return 130
    print(as_markdown(document))
    if options.plot:
        draw(document, options.plot)
    return 1 if has_difference(document) else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(found)
    add, number = found.add_argument, {"metavar": "N", "type": count}
    add("--part", choices=PARTS, default=ALL, help="default: %(default)s; long texts only where --contexts names some")
    add("--prompts", metavar="FILE", nargs="+", default=[str(OWN_PROMPTS)], help="default: ours, too few for 8 and 4")
    add("--per-domain", **number, default=8, help="measure the first N prompts of each domain (default: %(default)s)")
    add("--calibration", **number, default=4, help="calibrate on the last N of each domain (default: %(default)s)")
    add("--max-new-tokens", **number, default=128, help="default: %(default)s")
    add("--variant", metavar="TEXT", action="append", default=[], help='"NAME: strategy=fixed fixed.skip=a4,m1-3"')
    add("--calibration-tokens", **number, default=2048, help="generated tokens to fit with (default: %(default)s)")
    add(
        "--budget",
        metavar="SECONDS",
        type=seconds,
        default=600.0,
        help="for the fit (default: %(default)g)",
    )
    add("--held-out-tokens", **number, default=64, help="of each text, to judge the frontier (default: %(default)s)")
    add("--profile", metavar="FILE", type=Path, help="read what calibration found, or keep it where it does not exist")
    add("--contexts", **number, nargs="+", default=[], help="lengths of long texts, new tokens included")
    add("--context-tokens", **number, default=64, help="new tokens of each long text (default: %(default)s)")
    add("--context-prompts", **number, default=2, help="texts of each length (default: %(default)s)")
    add("--articles", metavar="FILE", help="prompts to make long texts of (default: the measured prompts)")
    add("--seconds", metavar="N", type=seconds, help="begin no prompt but the first later than so long after the start")
    add("--output", metavar="FILE", help="keep the JSON document here")
    add("--commit", metavar="TEXT", help="what the document says was measured (default: git's word)")
    add("--table", metavar="FILE", help="measure nothing: print the tables of this document")
    add("--plot", metavar="FILE.png", help="draw them; needs matplotlib")
    return found


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """`60` or `60s`."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds like 60 or 60s, got {text!r}")
    return value


def measure(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    plan = make_plan(options)
    if options.plot:
        require_matplotlib()
    model, tokenizer = load(options.model, device=options.device, dtype=options.dtype)
    asked = {"selfdraft": selfdraft.__version__, "model": name_of(options.model), "options": shown(options)}

    def complete(document: dict[str, Any]) -> dict[str, Any]:
        found = {**asked, **document, **({"commit": options.commit} if options.commit else {})}
        return json.loads(json.dumps(found))  # what is printed now is what --table prints

    def save(document: dict[str, Any]) -> None:
        if options.output:
            write_file(options.output, (json.dumps(complete(document), indent=1) + "\n").encode())

    bench = SelectionBench(model, tokenizer, plan, began, say, save, options.model)
    document = bench.run()
    save(document)
    return complete(document)


def make_plan(options: argparse.Namespace) -> SelectionPlan:
    """What is wrong with the command is said before a model is loaded."""
    found = read_prompts((Path(file).name, read_file(file)) for file in options.prompts)
    measured, kept_apart = split(found, options.per_domain, options.calibration)
    contexts = sorted(set(options.contexts)) if options.part != TABLES else []
    if options.part == CONTEXTS and not contexts:
        raise OptionError("--part contexts needs lengths, for example --contexts 512 2048 4096")
    parse_variants(options.variant, {})
    is_long = bool(contexts) and contexts[-1] >= LENGTHS[-1]
    recipe = Recipe(
        prompts=kept_apart,
        num_tokens=options.calibration_tokens,
        fit_seconds=options.budget,
        lengths=sorted({*LENGTHS, *contexts}),
        latency_seconds=LONG_LATENCY_SECONDS if is_long else BUDGET_SECONDS,
        file=options.profile,
    )
    articles = measured
    if options.articles:
        articles = read_prompts([(Path(options.articles).name, read_file(options.articles))])
    return SelectionPlan(
        recipe=recipe,
        prompts=[] if options.part == CONTEXTS else measured,
        variants=options.variant,
        max_new_tokens=options.max_new_tokens,
        held_out_tokens=options.held_out_tokens,
        contexts=contexts,
        articles=[prompt.text for prompt in articles],
        context_prompts=options.context_prompts,
        context_tokens=options.context_tokens,
        seconds=options.seconds,
    )


def name_of(model: str | None) -> str:
    """A folder by its last part: where it lies says nothing to a reader."""
    if model is None:
        return DEFAULT_MODEL
    return Path(model).resolve().name if Path(model).exists() else model


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as far as it shapes the figures; files by name."""
    left_out = ("model", "output", "plot", "table", "commit")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    files = {name: Path(values[name]).name if values[name] else None for name in ("articles", "profile")}
    return {**values, **files, "prompts": [Path(file).name for file in options.prompts]}


def read_document(file: str) -> dict[str, Any]:
    try:
        document = json.loads(read_file(file))
    except ValueError as error:
        raise OptionError(f"{file} is no JSON document ({error})") from None
    if not isinstance(document, dict) or document.get("benchmark") != "selection":
        raise OptionError(f"{file} is no document of this benchmark; make one with its --output")
    return document


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
