"""`selfdraft train-lookahead`: train the classifier of `disco` for a model and what drafts for it, on this device."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..calibrate.lookahead import LookaheadOptions, Trained, check_enough, train_lookahead
from ..calibrate.training import LABELS
from ..lookahead.disco import artefact_name
from ..profiles.store import Store
from . import lookahead as shared
from . import terminal
from .lookahead import circumstances, generate_command, load, read_before_loading, say, table

EXAMPLES = """\
The lookahead `disco` (DISCO, arXiv:2405.04304) asks a small network behind each drafted token whether to draft another.
It is trained here: the target continues the prompts, and behind each of its tokens the draft, with the strategy and the
drafter that you name, proposes one. From the draft's ten largest probabilities, their entropy and the position in the
text the network learns whether the target will keep a token. Training takes seconds, collecting takes minutes.

About a quarter of the prompts of each domain is held out: on these the training is ended, the threshold and the most
tokens are tuned, and milliseconds a token are measured against plain decoding and the best fixed length. F1 is that of
foretelling which drafted tokens are kept; the fixed length foretells that so many of every round are.

The classifier is kept in the profile of this model on this device, one for each drafter. It may be used for other
domains than it was trained on.

examples:
  selfdraft train-lookahead                                       the default model, our prompts, strategy uniform
  selfdraft train-lookahead --domain code                         train on code, use it on anything
  selfdraft train-lookahead --strategy prune --prompts mine.jsonl JSON lines: {"domain": "chat", "prompt": "..."}
  selfdraft train-lookahead --drafter model --set model.source=HuggingFaceTB/SmolLM2-135M-Instruct MODEL
  selfdraft generate --lookahead disco "Hello"                    uses it
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "train-lookahead",
        help="train the classifier of the lookahead disco",
        description="Train the classifier that decides how far to draft (the lookahead `disco`), tune it, keep it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared.add_options(parser)
    labels = "match: 1 where the draft's token is the target's; tv: 1 - total variation between both (default: match)"
    parser.add_argument("--label", choices=LABELS, default="match", help=labels)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    prompts, method = read_before_loading(options)
    check_enough((prompt.domain, prompt.text) for prompt in prompts)
    engine, asked = load(options, prompts, method)
    wanted = LookaheadOptions(options.tokens, options.budget, label=options.label)
    try:
        with terminal.Progress(unit="") as progress:
            found = train_lookahead(engine, method, asked, wanted, progress=progress, say=say)
    except KeyboardInterrupt:
        say("\ninterrupted: nothing was kept; the profile is as it was")
        return 130
    print(_text(found))
    path = Store().path_of(engine.knowledge.key)
    print(f"kept in {path} as {artefact_name(found.facts['drafter'])}")
    print(f"use it with: {generate_command(engine, options, '--lookahead disco')}")
    if options.json:
        rows = [row.to_json() for row in found.rows]
        document = {**found.facts, "kept_share": found.counts.kept_share, "rows": rows}
        print(json.dumps({**circumstances(engine, method, options), **document, "path": str(path)}, default=str))
    return 0


def _text(found: Trained) -> str:
    facts, best = found.facts, found.fastest("disco")
    plain, static, disco = (f"{1000 * facts['seconds_per_token'][way]:.2f}" for way in ("plain", "static", "disco"))
    tokens = f"{facts['num_tokens']} to train with, {facts['num_validation_tokens']} held out"
    kept = f"{found.counts.kept_share:.1%} of the drafted tokens were the target's"
    own = f"{facts['f1']:.3f} on tokens held out ({facts['f1_at_half']:.3f} at 0.5)"
    fixed = f"{facts['f1_static']:.3f} of the best fixed length, {facts['static_tokens']}"
    rows = {
        "tokens": f"{tokens} ({', '.join(facts['domains'])}); {kept}",
        "F1": f"{own}; {fixed} (of any length at most {facts['f1_any_static']:.3f})",
        "tuned": f"threshold {facts['threshold']:g}, at most {terminal.number(facts['max_tokens'], 'token')}",
        "ms a token": f"disco {disco}, best fixed length {static}, plain decoding {plain}",
    }
    lines = [*(f"{label:12}{value}" for label, value in rows.items()), "", table(found.rows, best), ""]
    if best.seconds_per_token > found.plain.seconds_per_token:
        lines.append("plain decoding is faster here: this draft costs more than it saves, however far it goes")
    return "\n".join(lines)
