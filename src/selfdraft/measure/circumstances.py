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
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() if device.type == "cpu" else f"{platform.machine()} {device.type}"


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
    resident, peak = _process_bytes()
    return {"used": resident, "held": resident, "peak": peak, "peak_held": peak}


def _process_bytes() -> tuple[int | None, int | None]:
    """(resident now, at the peak), where the system says so."""
    try:
        import resource
    except ImportError:
        return None, None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    statm = Path("/proc/self/statm")
    resident = int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else None
    return resident, peak


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
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    return int(peak.split()[1]) * 1024 if peak else None


def device_seconds(device: torch.device) -> float:
    """A clock that has waited for the device, whoever keeps it busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
