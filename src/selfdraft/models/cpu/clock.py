"""What is measured on a CPU, where others may run beside it, and kept for the next process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..load.catalogue import cache_home
from .library import machine

Name = TypeVar("Name", bound=Hashable)
_LOGGER = logging.getLogger(__name__)


def interleaved(runs: Mapping[Name, Callable[[], Any]], rounds: int = 5) -> dict[Name, float]:
    """The median seconds of each, after a first round that does not count."""
    taken: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def remembered(key: str, find: Callable[[], str]) -> str:
    """What `find` says, on this machine; it is kept once it has said the same twice."""
    known = _read()
    if key in known:
        return known[key]
    found = find()
    if found == find():
        _write({**_read(), key: found})
    return found


def _path() -> Path:
    return cache_home() / "measured" / f"{hashlib.sha256(machine().encode()).hexdigest()[:20]}.json"


def _read() -> dict[str, str]:
    try:
        known = json.loads(_path().read_text())
        return {str(key): str(found) for key, found in known.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(known: Mapping[str, str]) -> None:
    """Whole or not at all; where it cannot be kept, the next process measures again."""
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(known, file)
        os.replace(file.name, path)
    except OSError as error:
        _LOGGER.info("what was measured is not kept: %s", error)
