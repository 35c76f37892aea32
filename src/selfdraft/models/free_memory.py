"""Memory that is free on a device, for those who decide how much of it to take."""

from __future__ import annotations

import os
from pathlib import Path

import torch

UNKNOWN = 4 << 30
"""Bytes, where the system says nothing."""


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        counts = torch.cuda.memory_stats_as_nested_dict(device)  # asked by name, all are sorted first
        held, used = (counts[name]["all"]["current"] for name in ("reserved_bytes", "allocated_bytes"))
        return int(torch.cuda.mem_get_info(device)[0] + held - used)
    return min(_free_in_system(), _free_in_container())


def _free_in_system() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4  # what is free it does not tell
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


def _free_in_container(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What its limit leaves; files that are read often are counted as used, though they would make room."""
    try:
        used, most = (int((folder / f"memory.{name}").read_text()) for name in ("current", "max"))
        cached = next(
            int(line.split()[1])
            for line in (folder / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file")
        )
    except (OSError, ValueError, StopIteration):  # no container, or no limit
        return 1 << 62
    return max(0, most - used + cached)
