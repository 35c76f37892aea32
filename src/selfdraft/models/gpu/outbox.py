"""What the host reads of a pass, and whether it has: mails that every pass overwrites, read when somebody asks."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .memory import Device, Readback


class Launches:
    """Whether the device may be busy with something whose result nobody has read."""

    def __init__(self) -> None:
        self.num_launched, self.num_awaited = 0, 0

    @property
    def are_pending(self) -> bool:
        return self.num_launched > self.num_awaited

    def launched(self) -> None:
        self.num_launched += 1

    def awaited(self, number: int | None = None) -> None:
        """All (or the first `number`) launches are known to be done."""
        self.num_awaited = max(self.num_awaited, self.num_launched if number is None else number)


class Mail:
    """A tensor [rows, width, ...] that every pass writes; `post` it in the recording, or two readbacks take turns."""

    def __init__(self, device: Device, *shape: int, dtype: torch.dtype = torch.long, is_posted: bool = False) -> None:
        self.tensor, self._is_posted = device.zeros(*shape, dtype=dtype), is_posted
        self._readbacks = [Readback(device, self.tensor, is_posted) for _ in range(1 if is_posted else 2)]

    def post(self) -> None:
        if self._is_posted:
            self._readbacks[0].copy()

    def next_readback(self) -> Readback:
        self._readbacks.reverse()
        return self._readbacks[0]


class Outbox:
    """What the host reads of the last pass: its choices [rows, width].

    Where they are asked for: `verdicts` [rows, 1 + width] (see `kernels/top.reject`) instead, and `logprobs(count)` of
    all tokens chosen [rows, width, 1 + 2 count] (see `kernels/top.logprobs`).
    """

    def __init__(self, device: Device, rows: int, width: int) -> None:
        is_posted = width > 1  # one column may run again before its choices are read
        self.choices = Mail(device, rows, width, is_posted=is_posted)
        self.verdicts = Mail(device, rows, 1 + width, is_posted=is_posted)
        self.logprobs = functools.cache(lambda count: Mail(device, rows, width, 1 + 2 * count, dtype=torch.float64))


class Sent:
    """What one pass left in a mail: sent to the host once, after `num_launched` launches, read when somebody asks."""

    def __init__(self, launches: Launches, mail: Mail, rows: int, width: int) -> None:
        self._launches, self._readback, self._size = launches, mail.next_readback(), (rows, width)
        self._is_sent, self.num_launched = False, 0
        self._values: list[list[Any]] | None = None

    def send(self) -> None:
        if not self._is_sent:
            self._readback.start()
            self._is_sent, self.num_launched = True, self._launches.num_launched

    def __call__(self) -> list[list[Any]]:
        if self._values is None:
            self.send()
            rows, width = self._size
            self._values = self._readback.read()[:rows, :width].tolist()
            self._launches.awaited(self.num_launched)
        return self._values
