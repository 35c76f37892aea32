"""kernels/cpu/passes.c, compiled once for this machine (in about a second) by whatever C compiler it has."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import torch

from ..load.catalogue import cache_home

_LOGGER = logging.getLogger(__name__)
_COMPILERS = ("cc", "gcc", "clang")
_FUSED = ("-ffp-contract=fast", "--param=avoid-fma-max-bits=0")  # all sums, not only some of them
_FLAGS = ("-O3", *_FUSED, "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
_HELP = "Install gcc or clang, or name a C compiler in CC"
_SECONDS = 60.0


class CannotCompileError(Exception):
    """Why there is no library; torch's own operations do the same."""


def library() -> ctypes.CDLL | None:
    found = _found()
    return None if isinstance(found, str) else found


def why_not() -> str:
    """Why models do not use it: of another dtype, if the library is there."""
    found = _found()
    return found if isinstance(found, str) else "the kernels are for plain sub-layers in float32"


@functools.cache
def _found() -> ctypes.CDLL | str:
    try:
        return _load()
    except (CannotCompileError, OSError) as error:
        _LOGGER.warning("passes of a few tokens are slower than they could be: %s. %s", error, _HELP)
        return str(error)


def _load() -> ctypes.CDLL:
    source = resources.files("selfdraft.kernels.cpu").joinpath("passes.c").read_bytes()
    flags = [*_FLAGS, "-mcpu=native" if _is_arm() else "-march=native"]
    known = hashlib.sha256(b"\0".join([source, *map(str.encode, [*flags, os.environ.get("CC", ""), machine()])]))
    with _folder(cache_home() / "kernels") as folder:
        path = folder / f"passes-{known.hexdigest()[:20]}.so"
        with contextlib.suppress(OSError):  # not there, or damaged
            return ctypes.CDLL(str(path))
        _compile(flags, source, path)
        return ctypes.CDLL(str(path))


def _compile(flags: list[str], source: bytes, path: Path) -> None:
    """By the first compiler that can; whole or not at all."""
    problems = []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, given = Path(folder) / "passes.so", Path(folder) / "passes.c"
        given.write_bytes(source)
        for compiler in _compilers():
            problem = _problem_of([*compiler, *flags, str(given), "-o", str(made), "-lm"])
            if problem is None:
                made.replace(path)
                return
            problems.append(problem)
    raise CannotCompileError("; ".join(problems) or "there is no C compiler")


def _compilers() -> Iterator[list[str]]:
    """As commands: CC may name one with arguments."""
    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [[name] for name in _COMPILERS]:
        if found := shutil.which(command[0]):
            yield [found, *command[1:]]


def _problem_of(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} could not be run: {error}"
    lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit status {done.returncode}"]
    return f"{command[0]} failed: {lines[0]}" if done.returncode else None


@contextlib.contextmanager
def _folder(wanted: Path) -> Iterator[Path]:
    """Where the cache cannot be written, one that is gone once the library is loaded."""
    with contextlib.suppress(OSError):
        wanted.mkdir(parents=True, exist_ok=True)
    if os.access(wanted, os.W_OK):
        yield wanted
    else:
        with tempfile.TemporaryDirectory(prefix="selfdraft-") as folder:
            yield Path(folder)


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
