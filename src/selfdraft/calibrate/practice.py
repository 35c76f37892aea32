"""Practice: a strategy that learns while it generates is let to, until it has learned enough or time is up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine.engine import Engine
from ..fitting import CalibrationPrompt
from ..options import Settings
from ..progress import Progress
from ..registry import find

NUM_TOKENS = 128
"""Of each text."""


def practise(
    engine: Engine,
    name: str,
    settings: Settings,
    prompts: Sequence[CalibrationPrompt],
    *,
    has_time: Callable[[], bool],
    keep: Callable[[Mapping[str, Any]], object] = lambda found: None,
    progress: Progress = lambda done, total, label: None,
) -> dict[str, Any]:
    """The strategy's state at the end. It goes on behind what the engine's profile knows, prompt after prompt.

    All of the time may be spent on learning: the strategy's `practice` options see to it. `keep` is called behind every
    text, so that an interruption costs at most one.
    """
    own = {**settings.get(name, {}), **find("strategy", name).practice}
    method = {"strategy": name, "settings": {**settings, name: own}}
    strategy: Any = engine.method(**method).strategy
    num_idle, progressed = 0, strategy.progress
    for prompt in itertools.cycle(prompts):
        if strategy.is_settled or not has_time() or num_idle >= len(prompts):
            break
        engine.generate(prompt.tokens, max_new_tokens=NUM_TOKENS, **method)
        num_idle = 0 if strategy.progress != progressed else num_idle + 1  # texts may be too short to learn from
        progressed = strategy.progress
        keep({**strategy.state(), "is_complete": strategy.is_settled})
        progress(round(100 * strategy.progress), 100, f"practising {name}, percent")
    return {**strategy.state(), "is_complete": strategy.is_settled}
