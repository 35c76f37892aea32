"""`selfdraft calibrate`: learn about a model on this device, once: what passes take, what to skip, how far to draft."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from ..calibrate.calibrate import GO_ON, CalibrateOptions, calibrate, check_strategies
from ..errors import OptionError
from ..models.load import loading
from ..profiles.contents import fastest_method, has_trials
from ..profiles.profile import Profile
from ..profiles.store import Store
from ..prompts.tokens import encoded
from ..registry import check_settings, read_settings, settings_of, unused_text
from ..strategies.auto import INNER
from . import lookahead, terminal
from .budget import load_within
from .inputs import read_learning_prompts
from .parsers.learn import seconds
from .profile_text import as_text

_FOR_STRATEGIES = ("domain_field", "trial_prompts", "again")
_FOR_LOOKAHEADS = ("drafter", "tree", "max_tokens", "label", "json")
DEFAULT_STRATEGY, BUDGET = "prune", "20m"


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
    check_strategies(options.strategy)  # the whole command, before the model is loaded
    settings = _settings(options)
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
    print("\n".join([as_text(profile, engine.runner.num_layers), "", *advice(profile, options)]))
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Those that the strategies read; of the config file others may be for other commands."""
    given, settings = read_settings(options.set), read_settings([*options.configured, *options.set])
    check_settings(settings)
    read = {key: value for name in options.strategy for key, value in settings_of("strategy", name, settings).items()}
    for name in given:
        if name not in read:
            raise OptionError(unused_text(name, next(iter(given[name]))))
    return read


def _default(profile: Profile, known: Mapping[str, Mapping[str, Any]]) -> str:
    """What the default makes of it."""
    used = next((name for name in INNER if name in known and _is_usable(known[name])), None)
    sets = f"`auto`, the default, drafts with the sets of `{used}` from now on" if used else "`auto` stays the default"
    fastest = fastest_method(profile).get("strategy")
    if not has_trials(profile):
        return sets
    tried = f"{fastest} was the fastest" if fastest else "nothing was surely faster than plain decoding"
    return f"{sets}; of what was tried {tried}"


def advice(profile: Profile, options: argparse.Namespace) -> list[str]:
    """Where it is, how to go on with what the budget ended, and how to use it."""
    known = {name: artefact.values for name, artefact in profile.artefacts.items()}
    incomplete = [name for name in options.strategy if not known.get(name, {}).get("is_complete")]
    model = f" --model {shlex.quote(options.model)}" if options.model else ""
    model += profile.key.options
    settings = [text for text in options.set if text.partition(".")[0].strip() == options.strategy[0]]
    told = "".join(f" --set {shlex.quote(text)}" for text in settings)
    command = f'selfdraft generate{model} --strategy {options.strategy[0]}{told} "Why is the sky blue?"'
    return [
        f"kept in {Store().path_of(profile.key)}",
        _default(profile, known),
        *(f"{name}: the budget of {options.budget.words} ended the fit; {GO_ON}" for name in incomplete),
        *([f"use it with: {command}"] if _is_usable(known.get(options.strategy[0], {})) else []),
    ]


def _is_usable(values: Mapping[str, Any]) -> bool:
    """Unless the budget ended it before it found a skip set."""
    return "frontier" not in values or any(point["skip"] for point in values["frontier"])
