"""Whose profile it is: the model by what it computes with, the device by its name, the dtype, our version.

A model is known by its config and by samples of all its weights, so it has one fingerprint wherever it lies and
whatever it is called, on a CPU as on a GPU, before and after an engine was attached. Weights count as they are in
memory: cast to another dtype it is another model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import torch

from ..version import __version__

NUM_SAMPLES = 64
"""Values looked at in each weight, evenly spread from its first to its last."""

_SAYS_NOTHING_ABOUT_SCORES = {
    *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
_THREADS = ", threads "
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@functools.cache
def installed_version(package: str) -> str:
    if package == "selfdraft":  # also where it runs without being installed
        return __version__
    try:
        return version_of(package)
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class ProfileKey:
    """`name` is what a user calls the model: it stands in messages and is not compared."""

    fingerprint: str
    device: str
    dtype: str
    version: str = field(default_factory=lambda: installed_version("selfdraft"))
    name: str = field(default="MODEL", compare=False)

    @classmethod
    def of(cls, model: Any, name: str | None = None) -> ProfileKey:
        dtype = str(model.dtype).removeprefix("torch.")
        called = name or getattr(model.config, "_name_or_path", None) or "MODEL"
        return cls(fingerprint(model), device_name(model.device), dtype, name=str(called))

    @property
    def options(self) -> str:
        """Of a command that loads the model so, where they are not the defaults."""
        is_cpu = _THREADS in self.device
        device = " --device cpu" if is_cpu and torch.cuda.is_available() else ""
        return device + ("" if self.dtype == ("float32" if is_cpu else "bfloat16") else f" --dtype {self.dtype}")

    @property
    def stem(self) -> str:
        """The key as a file name."""
        return "-".join(map(as_file_name, (self.fingerprint, self.device, self.dtype, self.version)))


def as_file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.") or "unnamed"


# ------------------------------------------------------------------------------------------------ the model


def fingerprint(model: Any) -> str:
    """`llama-` and 32 hexadecimal digits. The time goes with the number of tensors, not with their sizes."""
    config = json.dumps(_essence(model.config.to_diff_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256(f"{type(model).__name__}\n{config}\n".encode())
    for name, weight in sorted(model.state_dict().items()):
        if isinstance(weight, torch.Tensor):
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
            digest.update(_samples(weight.detach()))
    return f"{model.config.model_type}-{digest.hexdigest()[:32]}"


def _essence(config: Any) -> Any:
    """The config, also those inside it, without what leaves every score as it is."""
    if isinstance(config, Mapping):
        kept = {str(name): value for name, value in config.items() if name not in _SAYS_NOTHING_ABOUT_SCORES}
        return {name: _essence(value) for name, value in kept.items()}
    return config


def _samples(weight: torch.Tensor) -> bytes:
    """Bytes of some values. Of what is not here as a whole (offloaded, sharded) name and shape must do."""
    if weight.is_meta or hasattr(weight, "device_mesh") or weight.numel() == 0:
        return b""
    whole_numbers = weight.view(_SAME_SIZE[weight.element_size()])
    if not weight.ndim:
        whole_numbers = whole_numbers.reshape(1)
    count = min(NUM_SAMPLES, weight.numel())
    steps = torch.arange(count, device=weight.device)
    positions = steps * (weight.numel() - 1) // max(1, count - 1)
    taken = whole_numbers[torch.unravel_index(positions, whole_numbers.shape)]
    return bytes(taken.cpu().numpy().tobytes())


# ------------------------------------------------------------------------------------------------ the device


def device_name(device: torch.device) -> str:
    """What speed depends on: which GPU, or which CPU and how many threads torch uses of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{cpu_name()}{_THREADS}{torch.get_num_threads()}"
    return f"{platform.machine()} {device.type}"


def cpu_name() -> str:
    """`aarch64 0x41 0xd0c` (implementer and part) where Linux has no better name for it."""
    known = dict(_cpu_facts())
    arm = [known[name] for name in ("CPU implementer", "CPU part") if name in known]
    other = " ".join((platform.machine() or "cpu", *arm))
    return known.get("model name") or (other if arm else platform.processor() or other)


def _cpu_facts() -> Iterator[tuple[str, str]]:
    """What Linux says about its first CPU; elsewhere nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()
