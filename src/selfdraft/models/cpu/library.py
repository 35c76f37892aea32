"""kernels/cpu/passes.c, compiled once for this machine (in about a second) by whatever C compiler it has."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch

from ..load.catalogue import cache_home

_LOGGER = logging.getLogger(__name__)
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
_SECONDS = 60.0


class CannotCompileError(Exception):
    """Why there is no library; torch's own operations do the same."""


def library() -> ctypes.CDLL | None:
    found = _found()
    return None if isinstance(found, str) else found


def why_not() -> str:
    """Why models do not use it: of another dtype, if the library is there."""
    found = _found()
    return found if isinstance(found, str) else "the kernels are for plain weights in float32"


@functools.cache
def _found() -> ctypes.CDLL | str:
    try:
        return ctypes.CDLL(str(_compiled()))
    except (CannotCompileError, OSError) as error:
        _LOGGER.warning("passes of a few tokens are slower than they could be: %s", error)
        return str(error)


def _compiled() -> Path:
    source = resources.files("selfdraft.kernels.cpu").joinpath("passes.c").read_bytes()
    command = [_compiler(), *_FLAGS, "-mcpu=native" if _is_arm() else "-march=native"]
    known = hashlib.sha256(b"\0".join([source, *map(str.encode, [*command, machine()])])).hexdigest()[:20]
    folder = _writable(cache_home() / "kernels")
    path = folder / f"passes-{known}.so"
    if not path.is_file():
        _compile(command, source, path)
    return path


def _compiler() -> str:
    names = filter(None, [os.environ.get("CC"), *_COMPILERS])
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise CannotCompileError("there is no C compiler (install gcc or clang, or name one in CC)")
    return found


def _compile(command: list[str], source: bytes, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, given = Path(folder) / "passes.so", Path(folder) / "passes.c"
        given.write_bytes(source)
        try:
            done = subprocess.run(
                [*command, str(given), "-o", str(made), "-lm"], capture_output=True, text=True, timeout=_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotCompileError(f"{command[0]} could not be run: {error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
            raise CannotCompileError(f"{command[0]} failed: {lines[0]}")
        made.replace(path)


def _writable(folder: Path) -> Path:
    """A folder of its own for each process where the cache cannot be written."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="selfdraft-"))


def _is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def machine() -> str:
    """What a binary made for this machine depends on: another one may share its folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.platform(), torch.__version__, *sorted({one for one in lines if one.startswith(kinds)})])
