"""The process that listens: when it is told to end, what was taken is answered first, and whoever asks is told so."""

from __future__ import annotations

import time
from types import FrameType
from typing import Any

import uvicorn

from .scheduler import Scheduler

_GRACE = 5
"""Seconds in which answers reach those who asked, and in which a round ends."""


class Server(uvicorn.Server):
    """At the first signal it takes no more (`/ready` and new requests: 503); what is left after `drain_seconds` is told
    that it will not be answered. A second signal ends that time.
    """

    def __init__(self, app: Any, scheduler: Scheduler, drain_seconds: float, **config: Any) -> None:
        super().__init__(uvicorn.Config(app, server_header=False, timeout_graceful_shutdown=_GRACE, **config))
        self._scheduler, self._drain_seconds = scheduler, drain_seconds
        self._end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._scheduler.take_no_more()
        self._end = time.monotonic() + (self._drain_seconds if self._end is None else 0)
        self.should_exit = False  # until the scheduler has ended

    async def on_tick(self, counter: int) -> bool:
        if self._end is not None:
            late = time.monotonic() - self._end
            if late >= 0:
                self._scheduler.stop()
            self.should_exit = not self._scheduler.is_running or late > _GRACE
        return await super().on_tick(counter)
