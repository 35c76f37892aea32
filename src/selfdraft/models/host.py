"""Reading values back to the host: free on a CPU, a wait on other devices, impossible while work is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_is_recording: ContextVar[bool] = ContextVar("is_recording", default=False)


def reads_are_free(tensor: torch.Tensor) -> bool:
    """Whether a shortcut may look at the values of `tensor`: what is recorded must do without."""
    return tensor.device.type == "cpu" and not _is_recording.get()


@contextmanager
def recording() -> Iterator[None]:
    """What runs inside will be replayed with other values."""
    token = _is_recording.set(True)
    try:
        yield
    finally:
        _is_recording.reset(token)
