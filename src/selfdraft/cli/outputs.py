"""Files that commands write: refused before any work where they cannot be written, and never left half written."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import OptionError


def check_output(file: str) -> None:
    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise OptionError(f"cannot write {file}: there is no folder {folder}")
    if Path(file).is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(f"cannot write {file}; name a file in a folder that you may write to")


def write_file(file: str, content: bytes) -> None:
    """Beside it first, then renamed: whoever reads it finds the old file or the new one. Not for pipes and devices."""
    target = Path(file).resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    beside = Path(f"{target}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
