"""The parsers of `calibrate` and `profile`."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from ...registry import DRAFTERS, STRATEGIES, TREES
from .arguments import Help, add_command, add_label_options, add_model, add_prompt_options, add_settings, count

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
SHORT = 512  # tokens of a text

LOOKAHEADS = """\
The target continues the prompts, and after each of its tokens the draft, with the strategy and the drafter that you
name, proposes one; rounds are timed. So it is known what every setting would have done: replay ranks all of them, and
the best are measured, with the usual one and with plain decoding, in turns.
  disco        (arXiv:2405.04304) a small network is trained to foretell whether the target will keep a token, then its
               threshold and most tokens are tuned on prompts held out; kept in the profile, one for each drafter
  fixed        how many tokens to draft in every round ("static SL-opt" in the DISCO paper)
  confidence   below which probability of the draft's best token to stop, and the most tokens
  perplexity   above which perplexity of the draft to stop, and the most tokens
Others need no tuning: heuristic, adaptive, roc and tpt follow the text. Tune on prompts like those you will ask, but do
not judge by them: on prompts that a setting was chosen for it looks better than it is.
"""


CALIBRATE = f"""\
Which sub-layers to skip (--strategy): what passes take is measured, the model continues some prompts, and each strategy
is fitted to these texts and tried on prompts that were held out. The result, the profile of this model on this device,
is kept in the cache folder; every command finds it there. What is interrupted, or ended by the budget, goes on when the
same command is given again.

How far to draft (--lookahead):
{LOOKAHEADS}
The --budget is for all that the command does, from its start to its table: loading the model, measuring passes, writing
texts, fitting, trials. Fetching a model that is not here yet is not part of it. Where it is short, texts and trials are
shorter; where a single pass is too slow for it, it is refused.

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


def add_calibrate(commands: Any) -> None:
    text = "learn about a model on this device: what to skip, how far to draft"
    about = "Learn what passes take on this device, which sub-layers a draft may skip, how far to draft."
    parser = add_command(commands, "calibrate", text, about, CALIBRATE)
    add: Any = parser.add_argument
    add_model(parser)
    add("--strategy", metavar="NAME", nargs="+", help=f"of {', '.join(STRATEGIES)} (default: prune)")
    add("--lookahead", metavar="NAME", help="learn how far to draft instead: disco, fixed, confidence, perplexity")
    add_prompt_options(parser)
    budget = "90s, 10m, 1h, kept within a tenth (default: 20m; with --lookahead 10m); see below what counts"
    add("--budget", metavar="TIME", type=seconds, help=budget)
    add_settings(parser)
    tokens = "that the model generates to fit to (default: 2048, on a CPU 512); with --lookahead: of each text (128)"
    add("--tokens", metavar="N", type=count, help=tokens)
    group = parser.add_argument_group("with --strategy")
    add_label_options(group)
    trying = "try with N of the prompts held out, a quarter of each domain; 0: try nothing (default: all)"
    group.add_argument("--trial-prompts", metavar="N", type=partial(count, minimum=0), help=trying)
    group.add_argument("--again", action="store_true", help="start again, whatever was measured or kept before")
    group = parser.add_argument_group("with --lookahead")
    group.add_argument("--drafter", metavar="NAME", help=f"what drafts: {', '.join(DRAFTERS)}")
    group.add_argument("--tree", metavar="NAME", help=f"what is verified beside the draft: {', '.join(TREES)}")
    labels = "of disco; match: 1 where the draft's token is the target's; tv: 1 - total variation (default: match)"
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
A profile belongs to a model's weights, a device, a dtype and a version of selfdraft: `show`, `plot` and `remove` load
the model to find its own.

examples:
  selfdraft profile list                                   what is known about which models
  selfdraft profile show smollm2-135m-instruct             seconds of passes, skip sets, speed-ups
  selfdraft profile show --context 4096                    predicted after a text of 4096 tokens
  selfdraft profile plot --output profile.png              the same as a picture
  selfdraft profile plot --output sets.png --set a3-9,m4 a10-20
  selfdraft profile plot --output domains.png --of knn     domains, their anchors and sets; swift: its timeline
  selfdraft profile remove smollm2-135m-instruct           forget it; `selfdraft calibrate` learns again
"""


def add_profile(commands: Any) -> None:
    text = "show what was learned about models"
    about = "Show, draw, check and forget what `selfdraft calibrate` learned about models on this device."
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
