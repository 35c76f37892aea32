"""Ctrl-C at any moment: one line, exit code 130.

While things are imported there is nothing to clean up, and a library may swallow a KeyboardInterrupt and go on half
imported: the process ends at once. A command that runs gets a KeyboardInterrupt, to keep what it has; an error that
follows from one that was swallowed is not reported as an error. Afterwards nothing is said twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

INTERRUPTED = 130
_seen = threading.Event()


def leave_at_once() -> None:
    """From now on."""
    _handle(_leave)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt here."""
    _seen.clear()
    before = _handle(_raise)
    try:
        yield
    finally:
        _handle(_leave_silently if before is _leave else before)


def was_interrupted() -> bool:
    """Whether Ctrl-C came while the last command ran."""
    return _seen.is_set()


def _handle(handler: Any) -> Any:
    """Where signals can be handled: in the main thread. What it was before."""
    if handler is None or threading.current_thread() is not threading.main_thread():
        return None
    with contextlib.suppress(ValueError):
        return signal.signal(signal.SIGINT, handler)


def _raise(*_: object) -> None:
    _seen.set()
    raise KeyboardInterrupt


def _leave(*_: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)


def _leave_silently(*_: object) -> None:
    os._exit(INTERRUPTED)
