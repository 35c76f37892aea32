"""A model that is loaded within `--budget`."""

from __future__ import annotations

import argparse
from typing import Any

from ..engine.engine import Engine
from ..errors import OptionError
from ..measure.cores import Watch
from ..models.load.catalogue import CATALOGUE, DEFAULT_MODEL, is_ready, model_folder
from ..models.load.pull import pull
from ..progress import Budget
from . import terminal
from .inputs import load_engine


def load_within(options: argparse.Namespace, **engine: Any) -> tuple[Engine, Budget]:
    """What was loaded, and the budget: from the start of the command on, less fetching a model of the catalogue."""
    name, before = options.model or DEFAULT_MODEL, options.time.spent
    if name in CATALOGUE and not is_ready(model_folder(name)):
        with terminal.Progress() as progress:
            pull(name, progress=progress)
    watch, budget = Watch(), Budget(options.budget, before)
    loaded = load_engine(options, **engine)
    if warning := watch.warning(loaded.device):
        terminal.say(warning)
    if budget.left() <= 0:
        spent, given = f"{budget.spent:.0f} s", f"--budget {options.budget.words}"
        raise OptionError(f"loading the model took {spent}, and {given} was given; give more, nothing was measured")
    return loaded, budget
