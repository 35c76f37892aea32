"""Where and with what something was measured: device, versions, commit."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..profiles import key
from ..protocols import Runner

PACKAGE = Path(__file__).parents[1]
SHAPING = ("device_name", "dtype", "threads", "torch", "transformers", "commit")  # what figures depend on


def circumstances(runner: Runner) -> dict[str, Any]:
    return machine_circumstances(runner.device, runner.dtype)


def machine_circumstances(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "device": str(device),
        # without the threads, which stand apart
        "device_name": key.cpu_name() if device.type == "cpu" else key.device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Of the repository this package is in, marked where files were changed; None where it is installed elsewhere."""
    repository = PACKAGE.parents[1]
    if not (repository / ".git").exists():
        return None
    command = ["git", "-C", str(repository), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None
