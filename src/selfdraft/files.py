"""A file is replaced as a whole: whoever reads it finds the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Beside it first, safe on the disk, then renamed: there is always the old file or the new one."""
    beside = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    _keep_renames(path.parent)


def _keep_renames(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can be asked to."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
