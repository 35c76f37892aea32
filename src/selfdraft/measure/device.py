"""The device under an engine: a clock that waits for it, its memory, and how fast it copies."""

from __future__ import annotations

import contextlib
import gc
import time
from pathlib import Path

import torch

_NUM_COPIES, _REPEATS = 4, 6


def device_seconds(device: torch.device) -> float:
    """A clock that has waited for the device, whoever keeps it busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # what Linux takes for "the peak is what it is now"


def peak_bytes(device: torch.device) -> int | None:
    """Since the last reset, with the weights and whatever else is kept; None where the system does not say."""
    if device.type == "cuda":
        # As it is kept: flattening all of the allocator's figures takes a hundred times as long.
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
    return _process_bytes("VmHWM")


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy on the device: what memory gives at best."""
    num_bytes = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_REPEATS):
        began = device_seconds(device)
        for _ in range(_NUM_COPIES):
            target.copy_(source)
        best = max(best, _NUM_COPIES * 2 * num_bytes / (device_seconds(device) - began))
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return best
