"""`selfdraft calibrate`: learn about a model on this device, once: what passes take, and what may be skipped."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from functools import partial
from typing import Any

from ..bench.prompts import BenchPrompt
from ..calibrate.calibrate import (
    GO_ON,
    USUAL_TOKENS,
    USUAL_TOKENS_ON_CPU,
    CalibrateOptions,
    calibrate,
    check_strategies,
)
from ..engine.engine import Engine
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from ..options import parse_settings
from ..profiles.profile import Profile
from ..profiles.store import Store
from ..registry import STRATEGIES, check_settings
from . import terminal
from .inputs import MODEL_HELP, add_device_options, count
from .profile_text import as_text
from .prompts import add_label_options, add_prompt_options, for_calibration, read

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_TOKENS = f"default: {USUAL_TOKENS}, on a CPU {USUAL_TOKENS_ON_CPU}"

EXAMPLES = """\
What passes take is measured, the model continues some prompts, and each strategy is fitted to these texts and tried on
prompts that were held out. The result, the profile of this model on this device, is kept in the cache folder; every
command finds it there. What is interrupted, or ended by the budget, goes on when the same command is given again.

examples:
  selfdraft calibrate                                             the default model, our prompts, strategy prune
  selfdraft calibrate qwen2.5-coder-1.5b-instruct --domain code   for code alone
  selfdraft calibrate --prompts mine.jsonl --budget 1h            JSON lines: {"domain": "chat", "prompt": "..."}
  selfdraft calibrate --strategy prune knapspec                   also try knapspec, which needs no fit
  selfdraft calibrate --strategy knn --domain-field task --prompts mine.jsonl    a skip set for each value of "task"
  selfdraft calibrate --strategy knn --prompts code.jsonl math.jsonl             one file per domain
  selfdraft calibrate --strategy knn --prompts any.jsonl --set knn.clusters=4    not labelled: four clusters
  selfdraft calibrate --strategy knn --prompts law.jsonl          adds the domain that its lines name, keeps the others
  selfdraft generate --strategy prune "Hello"                     uses the profile
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="learn about a model on this device",
        description="Learn what passes take on this device and which sub-layers a draft may skip; keep it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    add("--strategy", metavar="NAME", nargs="+", default=["prune"], help=f"of {', '.join(STRATEGIES)} (default: prune)")
    add_prompt_options(parser)
    add_label_options(parser)
    add("--budget", metavar="TIME", type=seconds, default="20m", help="90s, 10m, 1h (default: %(default)s)")
    add("--tokens", metavar="N", type=count, help=f"fit to so many tokens that the model generates ({_TOKENS})")
    add(
        "--trial-prompts",
        metavar="N",
        type=partial(count, minimum=0),
        help="try with so many of the prompts held out, a quarter of each domain; 0: try nothing (default: all)",
    )
    add("--set", metavar="METHOD.OPTION=VALUE", action="append", default=[], help="an option of a strategy; repeatable")
    add("--again", action="store_true", help="begin anew, whatever was measured or kept before")
    parser.set_defaults(run=run)


def seconds(text: str) -> float:
    """The type of an argument that is a time."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"cannot read the time {text!r}; write it like 90s, 10m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def run(options: argparse.Namespace) -> int:
    prompts = _read_before_loading(options)
    with terminal.Progress() as loaded:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=loaded)
    name = options.model or DEFAULT_MODEL
    engine = Engine(model, tokenizer, profile=None, name=name, strategy="off")
    asked = [for_calibration(prompt, engine) for prompt in prompts]
    settings = parse_settings(options.set)
    wanted = CalibrateOptions(options.budget, options.tokens, options.trial_prompts, options.again, settings)
    try:
        with terminal.Progress(unit="") as progress:
            profile = calibrate(engine, asked, options.strategy, wanted, progress=progress, say=_say)
    except KeyboardInterrupt:
        command = "the same command without --again" if options.again else "the same command"
        _say(f"\ninterrupted: what was found so far is kept; {command} goes on from there")
        return 130
    print(as_text(profile, engine.runner.num_layers))
    print()
    for line in _advice(profile, options):
        print(line)
    return 0


def _read_before_loading(options: argparse.Namespace) -> list[BenchPrompt]:
    """Everything that can be wrong with the command is, before it costs the time a model takes to load."""
    check_strategies(options.strategy)
    check_settings(parse_settings(options.set))
    loading.choose_dtype(options.dtype, loading.choose_device(options.device))
    return read(options)


def _advice(profile: Profile, options: argparse.Namespace) -> list[str]:
    """Where it is, how to go on with what the budget ended, and how to use it."""
    known = {name: artefact.values for name, artefact in profile.artefacts.items()}
    incomplete = [name for name in options.strategy if not known.get(name, {}).get("is_complete")]
    model = f" --model {shlex.quote(options.model)}" if options.model else ""
    model += profile.key.options
    settings = [text for text in options.set if text.partition(".")[0].strip() == options.strategy[0]]
    told = "".join(f" --set {shlex.quote(text)}" for text in settings)
    return [
        f"kept in {Store().path_of(profile.key)}",
        *(f"{name}: the budget of {terminal.duration(options.budget)} ended the fit; {GO_ON}" for name in incomplete),
        f'use it with: selfdraft generate{model} --strategy {options.strategy[0]}{told} "Why is the sky blue?"',
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
