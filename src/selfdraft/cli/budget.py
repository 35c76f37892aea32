"""`--budget`: a time as people write it, and a model that is loaded within it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..progress import Budget
from . import terminal

if TYPE_CHECKING:
    from ..engine.engine import Engine

_UNITS = {"": (1, "s"), "s": (1, "s"), "m": (60, "min"), "h": (3600, "h")}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")


class Time(float):
    """Seconds, and the words they were given in: `90s` is 90 s, `10m` is 10 min."""

    words = ""


def seconds(text: str) -> Time:
    """The type of an argument that is a time."""
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"cannot read the time {text!r}; write it like 90s, 10m or 1h")
    factor, unit = _UNITS[found[2]]
    time = Time(float(found[1]) * factor)
    time.words = f"{found[1]} {unit}"
    return time


def load_within(options: argparse.Namespace, **engine: Any) -> tuple[Engine, Budget]:
    """What was loaded, and its budget, of which that is part; fetching a model of the catalogue is not."""
    from ..engine.cores import Watch
    from ..models.load.catalogue import CATALOGUE, DEFAULT_MODEL, is_ready, model_folder
    from ..models.load.pull import pull
    from .inputs import load_engine

    name = options.model or DEFAULT_MODEL
    if name in CATALOGUE and not is_ready(model_folder(name)):
        with terminal.Progress() as progress:
            pull(name, progress=progress)
    watch, budget = Watch(), Budget(options.budget)
    loaded = load_engine(options, **engine)
    if warning := watch.warning(loaded.device):
        terminal.say(warning)
    if budget.left() <= 0:
        spent, given = f"{budget.spent:.0f} s", f"--budget {options.budget.words}"
        raise OptionError(f"loading the model took {spent}, and {given} was given; give more, nothing was measured")
    return loaded, budget
