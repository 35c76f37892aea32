"""One writer at a time, processes and threads alike.

The system's own file lock where there is one: it is free again when its holder dies. Elsewhere a file that only one
can create; a killed holder leaves it, so waiting ends with an error that names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ProfileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_POLL_SECONDS = 0.01
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def locked(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock `path`. Its holders are quick; one who does not let go is a ProfileError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            is_locked = _wait(lambda: _try_system_lock(file.fileno()), timeout_seconds)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
        else:
            if not is_locked:
                raise ProfileError(
                    f"another process has been holding {path} for {timeout_seconds:g} seconds. "
                    "Try again when it is done."
                )
            yield
            return
    with _exclusive_file(Path(f"{path}ed"), timeout_seconds):
        yield


def _try_system_lock(handle: int) -> bool:
    if fcntl is None:
        raise OSError(errno.ENOSYS, "no file locks")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _exclusive_file(path: Path, timeout_seconds: float) -> Iterator[None]:
    if not _wait(lambda: _try_create(path), timeout_seconds):
        raise ProfileError(
            f"another process has been holding {path} for {timeout_seconds:g} seconds. "
            "Try again when it is done; if there is none, delete that file."
        )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _try_create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except PermissionError:
        if os.name == "nt":  # it is being deleted there
            return False
        raise
    return True


def _wait(is_done: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
