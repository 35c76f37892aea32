"""What strategies learn while they generate, kept for the next process: counts, seconds and sets, no text.

It stands beside the profile, which is what calibration makes. To lose it costs a few rounds, so what cannot be read, or
written when the process ends, is told to the log and nobody else.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError, ProfileError
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
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        _LOGGER.info("what was learned is not used, for %s cannot be read: %s", path_of(key), error)
    return {}


def keep(key: ProfileKey, name: str, state: Mapping[str, Any]) -> None:
    """In place of what was kept of this strategy, unless that knows more rounds."""
    known = read(key)
    if isinstance(earlier := known.get(name), dict) and earlier.get("rounds", 0) > state["rounds"]:
        return
    document = {"selfdraft_learned": _FORMAT, "model": key.name, "strategies": {**known, name: state}}
    path_of(key).parent.mkdir(parents=True, exist_ok=True)
    replace_file(path_of(key), json.dumps(document).encode())


def keep_all(strategies: Mapping[str, Any], key: ProfileKey) -> None:
    """The states of those that have learned something, at the end: nothing that goes wrong may stop that."""
    for name, strategy in strategies.items():
        try:
            if state := strategy.state():
                keep(key, name, state)
        except Exception as error:
            _LOGGER.info("what %s learned is not kept: %s", name, error)


def save(key: ProfileKey, name: str, state: Mapping[str, Any]) -> Path:
    """The same when somebody asks for it, and where that is."""
    if not state:
        raise OptionError(f"the strategy {name!r} has learned nothing yet, so there is nothing to save; generate first")
    try:
        keep(key, name, state)
    except OSError as error:
        raise ProfileError(
            f"could not write {path_of(key)}: {error}. Free some space or set SELFDRAFT_HOME to another folder"
        ) from error
    return path_of(key)


def refuse() -> Path:
    raise OptionError(f"nothing is kept with a profile of your own, with profile=None or with {SWITCH}=off")
