"""The parsers of `calibrate` and `profile`."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from ...registry import AXES, AXIS_HELP, STRATEGIES
from .arguments import Help, add_command, add_model, add_settings, completes, count

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
SHORT = 512  # tokens of a text
LEARNED = ("disco", "fixed", "confidence", "perplexity")

CALIBRATE = """\
What passes take is measured, the model continues some prompts, strategies are
fitted to these texts and tried on prompts held out. The profile, what is known
of this model on this device, is kept in the cache folder; every command finds
it there. The same command goes on after an interruption, or with more budget,
which is for all that the command does. More: docs/calibration.md.

How far to draft (--lookahead):
  disco        train the network that foretells what is kept (arXiv:2405.04304)
  fixed        how many tokens to draft in every round
  confidence   at which probability of the draft's best token to stop
  perplexity   at which perplexity of the draft to stop

examples:
  selfdraft calibrate qwen2.5-coder-1.5b-instruct --domain code
  selfdraft calibrate --prompts mine.jsonl --budget 1h
  selfdraft calibrate --strategy knn --prompts code.jsonl math.jsonl
  selfdraft calibrate --lookahead disco --strategy prune
"""


def add_calibrate(commands: Any) -> None:
    text = "learn on this device what to skip, how far to draft"
    about = "Learn on this device which sub-layers a draft may skip, or how far to draft."
    parser = add_command(commands, "calibrate", text, about, CALIBRATE)
    add: Any = parser.add_argument
    add_model(parser)
    text = "what to fit and try, see info --methods (default: prune)"
    completes(add("--strategy", metavar="NAME", nargs="+", help=text), STRATEGIES)
    text = f"how far to draft instead: {', '.join(LEARNED)}"
    completes(add("--lookahead", metavar="NAME", help=text), LEARNED)
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--domain", metavar="NAME", nargs="+", help="the prompts of these domains (default: of all)")
    budget = "90s, 10m, 1h (default: 20m; with --lookahead 10m)"
    add("--budget", metavar="TIME", type=seconds, help=budget)
    add_settings(parser)
    tokens = "to fit to (default: 2048, on a CPU 512); with --lookahead: of each text (128)"
    add("--tokens", metavar="N", type=count, help=tokens)
    group = parser.add_argument_group("with --strategy")
    field = "what a line calls its domain (default: domain)"
    group.add_argument("--domain-field", metavar="NAME", help=field)
    trying = "try with N of those held out; 0: none (default: all)"
    group.add_argument("--trial-prompts", metavar="N", type=partial(count, minimum=0), help=trying)
    group.add_argument("--again", action="store_true", help="start again, whatever was measured or kept before")
    group = parser.add_argument_group("with --lookahead")
    for axis in ("drafter", "tree"):
        text = f"{AXIS_HELP[axis]}: {', '.join(AXES[axis])}"
        completes(group.add_argument(f"--{axis}", metavar="NAME", help=text), AXES[axis])
    longest = "the longest drafts to try (default: 15; a pass verifies 62 at most)"
    group.add_argument("--max-tokens", metavar="N", type=count, help=longest)
    labels = "of disco: equal tokens (default), or total variation"
    group.add_argument("--label", choices=("match", "tv"), help=labels)
    group.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


class Time(float):
    """Seconds, and the words they were given in: `90s`, `10m`."""

    words = ""


def seconds(text: str) -> Time:
    """The type of an argument that is a time."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"cannot read the time {text!r}; write it like 90s, 10m or 1h")
    time = Time(float(found[1]) * _UNITS[found[2]])
    time.words = text.strip() if found[2] else f"{text.strip()}s"
    return time


PROFILE = """\
A profile belongs to a model's weights, a device, a dtype and a version of
selfdraft: `show`, `plot` and `remove` load the model to find its own.

examples:
  selfdraft profile list                         what is known of which models
  selfdraft profile show --context 4096          after a text of 4096 tokens
  selfdraft profile plot --output sets.png --set a3-9,m4 a10-20
"""


def add_profile(commands: Any) -> None:
    text = "show what was learned about models"
    about = "Show, draw and forget what `selfdraft calibrate` learned on this device."
    parser = add_command(commands, "profile", text, about, PROFILE)
    parser.set_defaults(run="run_list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, prog="selfdraft profile")
    actions.add_parser("list", help="every profile there is", description="List every profile there is.")
    show = _add_action(actions, "show", "seconds of passes, skip sets and their speed-ups", "run_show")
    show.add_argument("--brief", action="store_true", help="some of the skip sets (default: every one)")
    drawing = "draw skip sets, what they keep and cost, and seconds; needs matplotlib"
    plot = _add_action(actions, "plot", drawing, "run_plot")
    plot.add_argument("--output", metavar="FILE.png", required=True, help="where to write it")
    of = "sets: of prune and fixed; knn: domains and anchors; swift: steps and timeline (default: %(default)s)"
    plot.add_argument("--of", choices=("sets", "knn", "swift"), default="sets", help=of)
    sets = "these skip sets, like a3,m4-6 (default: some of the profile's)"
    plot.add_argument("--set", metavar="SET", nargs="+", default=[], help=sets)
    for one in (show, plot):
        text = "costs and speed-ups after a text of N tokens (default: %(default)s)"
        one.add_argument("--context", metavar="N", type=count, default=SHORT, help=text)
    _add_action(actions, "remove", "forget what was learned about a model on this device", "run_remove")


def _add_action(actions: Any, name: str, text: str, run: str) -> argparse.ArgumentParser:
    about = f"{text[0].upper()}{text[1:]}."
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=about, formatter_class=Help)
    add_model(parser)
    parser.set_defaults(run=run, parser=parser)
    return parser
