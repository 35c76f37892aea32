"""Strategies that search: `swift` on a stream, `knn` on several domains, all methods at equal calibration time.

    python benchmarks/search.py --prompts code.jsonl math.jsonl story.jsonl sql.jsonl chat.jsonl --output result.json
    python benchmarks/search.py MODEL --prompts *.jsonl --part swift --stream-domain code --stream-prompts 100
    python benchmarks/search.py --table result.json --plot-folder pictures

Runs on a CPU or a GPU. Prompts are JSON lines with `domain` and `prompt`. Each domain is shuffled (--seed); its last
--calibration prompts are what strategies learn from, and the first --per-domain are measured. For each prompt all ways
take turns with plain decoding (`off`) in one process, each warmed up first on other prompts, which teach it nothing;
every output is compared with that of `off`, and `different` makes the exit code 1, a part that fails 2.

swift: one domain, one prompt after the other, `swift` as it is by default and as its paper has it, beside evenly
spaced layers. knn: `knn`, `draft-verify` and `prune` learn for --fit-seconds each; routing, the sets of the domains,
the matrix of sets and tasks, and mixed streams follow. equal: every method learns for --equal-seconds.

The tables are printed last. --output keeps one JSON document, rewritten after every prompt; --profile-folder keeps what
was learned, and a second run that asks the same begins at once. Time (--seconds) is shared among the parts that are
left; what a part cannot begin is left out, and the document says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import selfdraft
from selfdraft.bench.circumstances import shown_name
from selfdraft.bench.plot import require_matplotlib
from selfdraft.bench.prompts import OWN_PROMPTS, read_prompts
from selfdraft.bench.search.plot import draw
from selfdraft.bench.search.prompts import Wanted, choose
from selfdraft.bench.search.report import as_markdown
from selfdraft.bench.search.run import EQUAL, KNN, PARTS, SWIFT, SearchBench, SearchPlan, has_difference
from selfdraft.bench.streams import RATIOS
from selfdraft.cli.bench_common import say, seconds
from selfdraft.cli.inputs import MODEL_HELP, add_device_options, count, read_file
from selfdraft.cli.outputs import check_output, write_file
from selfdraft.errors import OptionError, SelfdraftError
from selfdraft.models.latency import BUDGET_SECONDS
from selfdraft.models.load.catalogue import DEFAULT_MODEL
from selfdraft.models.load.loading import load


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        document = read_document(options.table) if options.table else measure(options)
        print(as_markdown(document))
        if options.plot_folder:
            draw(document, options.plot_folder)
    except (SelfdraftError, OSError) as error:
        print(f"search: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say(f"interrupted; what was complete is in {options.output}" if options.output else "interrupted")
        return 130
    return 1 if has_difference(document) else 2 if document["errors"] else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(found)
    add, number = found.add_argument, {"metavar": "N", "type": count}
    time_ = {"metavar": "SECONDS", "type": seconds}
    add("--part", choices=PARTS, nargs="+", default=list(PARTS), help="in this order (default: all)")
    add("--prompts", metavar="FILE", nargs="+", default=[str(OWN_PROMPTS)], help="default: ours, which are few")
    add("--domains", metavar="NAME", nargs="+", default=[], help="for knn and equal (default: the first five)")
    add("--stream-domain", metavar="NAME", help="for swift (default: the first of --domains)")
    add("--stream-prompts", **number, default=100, help="of that domain (default: %(default)s)")
    add("--per-domain", **number, default=8, help="measure the first N prompts of each domain (default: %(default)s)")
    add("--calibration", **number, default=24, help="learn from the last N of each domain (default: %(default)s)")
    add("--mixed-prompts", **number, help="length of the mixed streams (default: all that are measured)")
    add(
        "--ratios",
        metavar="R",
        type=share,
        nargs="+",
        default=list(RATIOS),
        help="of these streams (default: %(default)s)",
    )
    add("--max-prompt-chars", **number, help="leave out longer prompts")
    add("--max-new-tokens", **number, default=128, help="default: %(default)s")
    add("--learned-tokens", **number, help="of the texts to learn from (default: 2048, on a CPU 512)")
    add("--held-out-tokens", **number, default=64, help="of each text, to judge sets by (default: %(default)s)")
    add("--fit-seconds", **time_, help="for each strategy of knn (default: 60 on a GPU, 600 elsewhere)")
    add("--equal-seconds", **time_, help="for each strategy of equal (default: 60 on a GPU, 600 elsewhere)")
    add("--latency-seconds", **time_, default=BUDGET_SECONDS, help="for measuring passes (default: %(default)g)")
    add("--seed", metavar="N", type=int, default=0, help="of the choice of prompts, the streams, the intervals")
    add("--profile-folder", metavar="DIR", type=Path, help="read what was learned here, and keep it")
    add("--seconds", **time_, help="begin no prompt but the first later than so long after the start")
    add("--output", metavar="FILE", help="keep the JSON document here")
    add("--commit", metavar="TEXT", help="what the document says was measured (default: git's word)")
    add("--table", metavar="FILE", help="measure nothing: print the tables of this document")
    add("--plot-folder", metavar="DIR", type=Path, help="draw pictures there; needs matplotlib")
    return found


def share(text: str) -> float:
    value = seconds(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, got {text!r}")
    return value


def measure(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    plan = make_plan(options)
    if options.plot_folder:
        require_matplotlib()
    if options.output:
        check_output(options.output)
    model, tokenizer = load(options.model, device=options.device, dtype=options.dtype)
    asked = {
        "selfdraft": selfdraft.__version__,
        "model": shown_name(options.model or DEFAULT_MODEL),
        "options": shown(options),
    }

    def complete(document: dict[str, Any]) -> dict[str, Any]:
        found = {**asked, **document, **({"commit": options.commit} if options.commit else {})}
        text = json.dumps(found)  # what is printed now is what --table prints; JSON has no word for NaN
        return json.loads(text, parse_constant=lambda name: None)

    def save(document: dict[str, Any], indent: int | None = None) -> None:
        if options.output:
            write_file(options.output, (json.dumps(complete(document), indent=indent) + "\n").encode())

    document = SearchBench(model, tokenizer, plan, began, say, save, options.model).run()
    save(document, indent=1)
    return complete(document)


def make_plan(options: argparse.Namespace) -> SearchPlan:
    """What is wrong with the command is said before a model is loaded."""
    parts = list(dict.fromkeys(options.part))
    wanted = Wanted(
        domains=options.domains,
        per_domain=options.per_domain,
        calibration=options.calibration,
        stream_domain=options.stream_domain,
        stream_prompts=options.stream_prompts,
        max_prompt_chars=options.max_prompt_chars,
        seed=options.seed,
        has_stream=SWIFT in parts,
        has_domains=KNN in parts or EQUAL in parts,
    )
    found = read_prompts((Path(file).name, read_file(file)) for file in options.prompts)
    return SearchPlan(
        prompts=choose(found, wanted),
        parts=parts,
        max_new_tokens=options.max_new_tokens,
        held_out_tokens=options.held_out_tokens,
        learned_tokens=options.learned_tokens,
        mixed_length=options.mixed_prompts,
        ratios=options.ratios,
        fit_seconds=options.fit_seconds,
        equal_seconds=options.equal_seconds,
        latency_seconds=options.latency_seconds,
        seconds=options.seconds,
        seed=options.seed,
        folder=options.profile_folder,
    )


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as far as it shapes the figures; files by name."""
    left_out = ("model", "output", "plot_folder", "table", "commit")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    folder = options.profile_folder.name if options.profile_folder else None
    return {**values, "profile_folder": folder, "prompts": [Path(file).name for file in options.prompts]}


def read_document(file: str) -> dict[str, Any]:
    try:
        document = json.loads(read_file(file))
    except ValueError as error:
        raise OptionError(f"{file} is no JSON document ({error})") from None
    if not isinstance(document, dict) or document.get("benchmark") != "search":
        raise OptionError(f"{file} is no document of this benchmark; make one with its --output")
    return document


if __name__ == "__main__":
    sys.exit(main())
