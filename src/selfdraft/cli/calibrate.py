"""`selfdraft calibrate`: learn about a model on this device, once: what passes take, what to skip, how far to draft."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from typing import Any

from ..calibrate.calibrate import (
    GO_ON,
    USUAL_TOKENS,
    USUAL_TOKENS_ON_CPU,
    CalibrateOptions,
    calibrate,
    check_strategies,
)
from ..calibrate.lookahead import USUAL_TOKENS as LOOKAHEAD_TOKENS
from ..calibrate.training import LABELS
from ..calibrate.tuning import TUNABLE
from ..errors import OptionError
from ..models.load import loading
from ..options import parse_settings
from ..profiles.profile import Profile
from ..profiles.store import Store
from ..prompts.tokens import encoded
from ..registry import DRAFTERS, STRATEGIES, TREES, check_settings
from . import lookahead, terminal
from .budget import load_within, seconds
from .inputs import (
    add_command,
    add_label_options,
    add_model,
    add_prompt_options,
    add_settings,
    count,
    read_learning_prompts,
)
from .profile_text import as_text

_TOKENS = f"default: {USUAL_TOKENS}, on a CPU {USUAL_TOKENS_ON_CPU}"
_FOR_STRATEGIES = ("domain_field", "trial_prompts", "again")
_FOR_LOOKAHEADS = ("drafter", "tree", "label", "json")
DEFAULT_STRATEGY, BUDGET = "prune", "20m"

EXAMPLES = f"""\
Which sub-layers to skip (--strategy): what passes take is measured, the model continues some prompts, and each strategy
is fitted to these texts and tried on prompts that were held out. The result, the profile of this model on this device,
is kept in the cache folder; every command finds it there. What is interrupted, or ended by the budget, goes on when the
same command is given again.

How far to draft (--lookahead):
{lookahead.EXPLAINED}
examples:
  selfdraft calibrate                                             the default model, our prompts, strategy prune
  selfdraft calibrate qwen2.5-coder-1.5b-instruct --domain code   for code alone
  selfdraft calibrate --prompts mine.jsonl --budget 1h            JSON lines: {{"domain": "chat", "prompt": "..."}}
  selfdraft calibrate --strategy prune knapspec                   also try knapspec, which needs no fit
  selfdraft calibrate --strategy knn --domain-field task --prompts mine.jsonl    a skip set for each value of "task"
  selfdraft calibrate --strategy knn --prompts code.jsonl math.jsonl             one file per domain
  selfdraft calibrate --strategy knn --prompts any.jsonl --set knn.clusters=4    not labelled: four clusters
  selfdraft calibrate --strategy knn --prompts law.jsonl          adds the domain that its lines name, keeps the others
  selfdraft calibrate --lookahead disco --strategy prune          train the classifier of disco for the drafts of prune
  selfdraft calibrate --lookahead confidence --domain code        the best settings of confidence, for code
  selfdraft generate --strategy prune "Hello"                     uses the profile
"""


def add_parser(commands: Any) -> None:
    text = "learn about a model on this device: what to skip, how far to draft"
    about = "Learn what passes take on this device, which sub-layers a draft may skip, how far to draft."
    parser = add_command(commands, "calibrate", run, text, about, EXAMPLES)
    add: Any = parser.add_argument
    add_model(parser)
    add("--strategy", metavar="NAME", nargs="+", help=f"of {', '.join(STRATEGIES)} (default: {DEFAULT_STRATEGY})")
    names = ", ".join(("disco", *TUNABLE))
    add("--lookahead", metavar="NAME", help=f"learn how far to draft instead: {names}")
    add_prompt_options(parser)
    add("--budget", metavar="TIME", type=seconds, help="90s, 10m, 1h (default: 20m; with --lookahead 10m)")
    add_settings(parser)
    add("--tokens", metavar="N", type=count, help=f"that the model generates to fit to ({_TOKENS}); with --lookahead: "
        f"of each text (default: {LOOKAHEAD_TOKENS})")  # fmt: skip
    group = parser.add_argument_group("with --strategy")
    add_label_options(group)
    trying = "try with N of the prompts held out, a quarter of each domain; 0: try nothing (default: all)"
    group.add_argument("--trial-prompts", metavar="N", type=partial(count, minimum=0), help=trying)
    group.add_argument("--again", action="store_true", help="start again, whatever was measured or kept before")
    group = parser.add_argument_group("with --lookahead")
    group.add_argument("--drafter", metavar="NAME", help=f"what drafts: {', '.join(DRAFTERS)}")
    group.add_argument("--tree", metavar="NAME", help=f"what is verified beside the draft: {', '.join(TREES)}")
    labels = "of disco; match: 1 where the draft's token is the target's; tv: 1 - total variation (default: match)"
    group.add_argument("--label", choices=LABELS, help=labels)
    group.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(options: argparse.Namespace) -> int:
    """Options of the other kind of calibration would be ignored."""
    for name in _FOR_STRATEGIES if options.lookahead else _FOR_LOOKAHEADS:
        if getattr(options, name) not in (None, False):
            flag = name.replace("_", "-")
            what = "does not go with --lookahead" if options.lookahead else "needs --lookahead NAME"
            raise OptionError(f"--{flag} {what}; leave it out, or see selfdraft calibrate --help")
    return lookahead.run(options) if options.lookahead else _run_strategies(options)


def _run_strategies(options: argparse.Namespace) -> int:
    options.strategy = options.strategy or [DEFAULT_STRATEGY]
    options.budget = options.budget or seconds(BUDGET)
    settings = parse_settings(options.set)
    check_strategies(options.strategy)  # the whole command, before the model is loaded
    check_settings(settings)
    loading.choose_dtype(options.dtype, loading.choose_device(options.device))
    prompts = read_learning_prompts(options)
    engine, budget = load_within(options, profile=None, strategy="off")
    asked = [encoded(prompt, engine) for prompt in prompts]
    wanted = CalibrateOptions(budget.left(), options.tokens, options.trial_prompts, options.again, settings)
    try:
        with terminal.Progress(unit="") as progress:
            profile = calibrate(engine, asked, options.strategy, wanted, progress=progress, say=terminal.say)
    except KeyboardInterrupt:
        command = "the same command without --again" if options.again else "the same command"
        terminal.say(f"\ninterrupted: what was found so far is kept; {command} goes on from there")
        return 130
    terminal.say(f"took {budget.spent:.0f} s of the budget of {options.budget.words}")
    print("\n".join([as_text(profile, engine.runner.num_layers), "", *_advice(profile, options)]))
    return 0


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
        *(f"{name}: the budget of {options.budget.words} ended the fit; {GO_ON}" for name in incomplete),
        f'use it with: selfdraft generate{model} --strategy {options.strategy[0]}{told} "Why is the sky blue?"',
    ]
