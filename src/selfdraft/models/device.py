"""Memory that stays where it is, and how the host waits for it: the little that differs between CPU and GPU."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


class Device:
    """Makes what outlives a pass: tensors on the device, tensors on the host that it can write by itself, signals."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"

    @torch.inference_mode(False)  # so that it may be written inside and outside of that mode
    def zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @torch.inference_mode(False)
    def host_zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_cuda)

    def signal(self) -> Signal:
        return Signal(self)

    def wait(self) -> None:
        """Until everything launched so far is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


class Signal:
    """`wait` returns when the device has done all that was launched before the last `set`."""

    def __init__(self, device: Device) -> None:
        self._device = device.device
        self._event: Any = torch.cuda.Event() if device.is_cuda else None  # type: ignore[no-untyped-call]

    def set(self) -> None:
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class Readback:
    """One tensor's way to the host: started when it is launched, waited for when it is read."""

    def __init__(self, device: Device, source: torch.Tensor) -> None:
        self._source = source
        self._host = device.host_zeros(*source.shape, dtype=source.dtype)
        self._values: npt.NDArray[Any] = self._host.numpy()
        self._signal = device.signal()

    def start(self) -> None:
        self._host.copy_(self._source, non_blocking=True)
        self._signal.set()

    def read(self) -> npt.NDArray[Any]:
        """The values; the next `start` overwrites them."""
        self._signal.wait()
        return self._values
