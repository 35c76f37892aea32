"""The most memory that a call takes: of tensors on a GPU, of the process elsewhere."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""What Linux takes for "the peak is what it is now"."""


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
