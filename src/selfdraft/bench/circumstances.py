"""Where and with what something was measured: device, versions, commit, memory, graphs."""

from __future__ import annotations

import datetime
import gc
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..profiles.key import cpu_name
from ..protocols import Runner

PACKAGE = Path(__file__).parents[1]
_GRAPH_FIGURES = ("num_graphs", "num_bytes", "num_captures", "capture_seconds", "fallback_reason")


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


def graph_figures(runner: Runner) -> dict[str, Any]:
    """What a runner that captures graphs says about them; None where it has nothing to say."""
    return {**dict.fromkeys(_GRAPH_FIGURES), **runner.graph_figures()}


@dataclass
class GraphWatch:
    """What a runner records while it is watched; `num_captures` is None where it records nothing at all."""

    runner: Runner
    num_captures: int | None = None
    recorded: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        before, keys = graph_figures(self.runner)["num_captures"], set(self.runner.graph_keys)
        yield
        after = graph_figures(self.runner)["num_captures"]
        if before is not None and after is not None:
            self.num_captures = (self.num_captures or 0) + max(0, after - before)
            self.recorded += [_describe_graph(key) for key in self.runner.graph_keys if key not in keys]

    def figures(self) -> dict[str, Any]:
        return {"num_captures": self.num_captures, "recorded": self.recorded}


def _describe_graph(key: Any) -> dict[str, Any]:
    kind = key.kind if isinstance(key.kind, str) else "draft"
    return {"kind": kind, "rows": key.rows, "width": key.width, "end": key.end, "skip": str(key.skip)}
