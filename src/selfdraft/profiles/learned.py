"""What strategies learn while they generate, kept for the next process: counts, seconds and sets, no text.

It stands beside the profile, which is what calibration makes. To lose it costs a few rounds, so what cannot be read or
written is told to the log and nobody else.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files import replace_file
from ..models.load.catalogue import cache_home
from .key import ProfileKey

SWITCH = "SELFDRAFT_LEARNED"
"""An environment variable; `off`: nothing is read or kept."""
_FORMAT = 1
_LOGGER = logging.getLogger(__name__)


def is_on() -> bool:
    return os.environ.get(SWITCH, "").lower() not in ("off", "0", "false")


def folder() -> Path:
    return cache_home() / "learned"


def path_of(key: ProfileKey) -> Path:
    return folder() / f"{key.stem}.json"


def read(key: ProfileKey) -> dict[str, Any]:
    """By strategy."""
    try:
        document = json.loads(path_of(key).read_text(encoding="utf-8"))
        if document["selfdraft_learned"] == _FORMAT:
            return dict(document["strategies"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError) as error:
        _LOGGER.info("what was learned is not used, for %s cannot be read: %s", path_of(key), error)
    return {}


def keep(key: ProfileKey, name: str, state: Mapping[str, Any]) -> Path | None:
    """In place of what was kept of this strategy; None: it could not be written."""
    path = path_of(key)
    document = {"selfdraft_learned": _FORMAT, "model": key.name, "strategies": {**read(key), name: state}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(document).encode())
    except OSError as error:
        _LOGGER.info("what was learned is not kept: %s", error)
        return None
    return path


def keep_all(strategies: Mapping[str, Any], key: Callable[[], ProfileKey | None]) -> None:
    """The states of those that have learned something; none where the model is gone."""
    states = {name: state for name, strategy in strategies.items() if (state := strategy.state())}
    if states and (found := key()):
        for name, state in states.items():
            keep(found, name, state)


class WeakKey:
    """The key of a model that it does not keep alive."""

    def __init__(self, model: Any, name: str | None) -> None:
        self._model, self._name = weakref.ref(model), name

    def __call__(self) -> ProfileKey | None:
        model = self._model()
        return None if model is None else ProfileKey.of(model, self._name)
