"""`selfdraft profile lemma`: KnapSpec's lemma 4.1, that a state close enough drafts the same token, on real states."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from ..calibrate.lemma import Judged, Lemma, Row, counterexamples, median_needed, table
from ..calibrate.texts import Text
from ..engine.engine import Engine
from ..engine.text import encode_prompts
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from . import terminal
from .inputs import MODEL_HELP, add_device_options, as_message, count, read_file

EXAMPLES = """\
The model continues some prompts greedily. Behind each token, the dynamic programme of KnapSpec finds a sub-network for
every number of sub-layers skipped, up to half of them. A pair is one sub-network at one token: the premise holds where
the cosine of its state and the target's is at least 1 - xi^2 / (2 |x|^2 max |w_i - w_j|^2), xi being the margin of the
target's choice; then it must choose the same token. One that does not is a counterexample, and the exit code is 1.

States and head weights are taken as the model has them and compared in float64. A head that divides or softcaps its
scores changes no choice; a head with a bias is refused: for it the lemma says nothing.

examples:
  selfdraft profile lemma                                       the default model, our prompts
  selfdraft profile lemma Qwen/Qwen2.5-1.5B-Instruct --texts 12 --tokens 32
  selfdraft profile lemma --prompts mine.jsonl --json | jq .rows
"""
MAX_TOLD = 5


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "lemma",
        help="check KnapSpec's lemma 4.1 on the model's states",
        description="Check KnapSpec's lemma 4.1 on real states: a state close enough to the target's drafts its token.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    add, number = parser.add_argument, {"metavar": "N", "type": count}
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--texts", **number, default=6, help="of so many prompts (default: %(default)s)")
    add("--tokens", **number, default=16, help="let the model write so many tokens behind each (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    files = options.prompts or [str(OWN_PROMPTS)]
    prompts = read_prompts((Path(file).name, read_file(file)) for file in files)[: options.texts]
    with terminal.Progress() as progress:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=progress)
    lemma = Lemma(model)
    engine = Engine(model, tokenizer, strategy="off", profile=None, graphs=False)
    with terminal.Progress(unit="texts") as progress:
        judged = []
        for done, prompt in enumerate(prompts):
            progress(done, len(prompts), "examining")
            judged.append(lemma.examine(_continued(prompt, engine, options.tokens)))
    rows = table(judged, lemma.num_sublayers)
    dtype = str(engine.dtype).removeprefix("torch.")
    circumstances = {"model": options.model or DEFAULT_MODEL, "device": str(engine.device), "dtype": dtype}
    if options.json:
        print(json.dumps({"version": __version__, **circumstances, **_document(judged, rows)}, ensure_ascii=False))
    else:
        print(_text(judged, rows, "{model} ({device}, {dtype})".format(**circumstances)))
    return 1 if rows[-1].num_violations else 0


def _continued(prompt: BenchPrompt, engine: Engine, num_tokens: int) -> Text:
    (tokens,), _ = encode_prompts(as_message(prompt.text, engine, is_raw=False), engine.tokenizer)
    written = engine.generate(tokens, max_new_tokens=num_tokens).tokens
    return Text((*tokens, *written), len(tokens))


def _num_tokens(judged: Sequence[Judged]) -> int:
    return sum(len(text.check.allowed) for text in judged)


def _document(judged: Sequence[Judged], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "num_texts": len(judged),
        "num_tokens": _num_tokens(judged),
        "median_needed_cosine": median_needed(judged),
        "rows": [dataclasses.asdict(row) for row in rows[:-1]],
        "total": dataclasses.asdict(rows[-1]),
        "counterexamples": [dataclasses.asdict(one) for one in counterexamples(judged)],
    }


def _text(judged: Sequence[Judged], rows: Sequence[Row], model: str) -> str:
    title = f"lemma 4.1 of KnapSpec, {model}: {_num_tokens(judged)} tokens in {len(judged)} texts"
    columns = {"sub-networks": 13, "pairs": 8, "cosine": 9, "premise": 10, "same choice": 13, "violations": 12}
    header = f"{'skipped':12}" + "".join(f"{name:>{width}}" for name, width in columns.items())
    return "\n".join([title, "", header, *map(_row_text, rows), "", *_conclusion(judged, rows[-1])])


def _row_text(row: Row) -> str:
    label = "all" if row.up_to is None else f"up to {row.up_to:.0%}"
    shares = f"{row.mean_cosine:9.4f}{row.premise_share:10.2%}{row.same_share:13.1%}"
    return f"{label:12}{row.num_networks:13}{row.num_pairs:8}{shares}{row.num_violations:12}"


def _conclusion(judged: Sequence[Judged], total: Row) -> list[str]:
    num_close = round(total.premise_share * total.num_pairs)
    if total.num_violations:
        told = counterexamples(judged)[:MAX_TOLD]
        return [
            f"The lemma is violated in {total.num_violations} of {num_close} pairs in which its premise holds. It is "
            "proven, so this is a bug of selfdraft: please report it.",
            *(
                f"  text {one.text}, token {one.token}, without {one.skip}: cosine {one.cosine:.6f}, needed "
                f"{one.needed:.6f}, another choice"
                for one in told
            ),
        ]
    if not num_close:
        return [
            f"The premise holds in none of {total.num_pairs} pairs (it asks for a cosine of "
            f"{median_needed(judged):.6f} at the median token), so nothing was put to the test. Try more --texts."
        ]
    return [
        f"The premise holds in {num_close} of {total.num_pairs} pairs, and the choice is the same in all of these: no "
        f"violation. It asks for a cosine of {median_needed(judged):.6f} at the median token; the choice was the same "
        f"in {total.same_share:.0%} of all pairs, so the lemma is safe, but far from necessary."
    ]
