"""Where and with what something was measured: device, versions, commit, memory, graphs."""

from __future__ import annotations

import contextlib
import datetime
import gc
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..profiles import key
from ..profiles.key import cpu_name
from ..protocols import Runner

PACKAGE = Path(__file__).parents[1]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""What Linux takes for "the peak is what it is now"."""


def circumstances(runner: Runner) -> dict[str, Any]:
    return {
        "device": str(runner.device),
        "device_name": device_name(runner.device),
        "dtype": str(runner.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def shown_name(name: str) -> str:
    """A file or folder by its last part: where it lies says nothing to a reader."""
    return Path(name).resolve().name if name and Path(name).exists() else name


def device_name(device: torch.device) -> str:
    """Without the threads, which stand apart."""
    return cpu_name() if device.type == "cpu" else key.device_name(device)


def commit() -> str | None:
    """Of the repository this package is in, marked where files were changed; None where it is installed elsewhere."""
    place = _git("rev-parse", "--show-toplevel")
    if place is None or Path(place) / "src" / "selfdraft" != PACKAGE:
        return None
    return _git("describe", "--always", "--dirty", "--exclude", "*")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None


def memory_bytes(device: torch.device) -> dict[str, int | None]:
    """In use now (on a GPU by tensors, else by the process), held, and at the peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return {
            "used": torch.cuda.memory_allocated(device),
            "held": torch.cuda.memory_reserved(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "peak_held": torch.cuda.max_memory_reserved(device),
        }
    resident, peak = _process_bytes("VmRSS"), _process_bytes("VmHWM")
    return {"used": resident, "held": resident, "peak": peak, "peak_held": peak}


def _process_bytes(name: str) -> int | None:
    """What Linux says of this process; None elsewhere."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_FORGET_PEAK)


def peak_bytes(device: torch.device) -> int | None:
    """Since the last reset, with the weights and whatever else is kept; None where the system does not say."""
    if device.type == "cuda":
        # As it is kept: flattening all of the allocator's figures takes a hundred times as long.
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
    return _process_bytes("VmHWM")


def device_seconds(device: torch.device) -> float:
    """A clock that has waited for the device, whoever keeps it busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
