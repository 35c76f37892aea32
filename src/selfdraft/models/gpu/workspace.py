"""Where the kernels of a fused pass leave their results, and the launches that are ready for the next pass.

In fixed places a sub-layer is the same launches whichever sub-layers ran before it, so that a new skip set is put
together from launches that are kept: Python takes 50 us to a launch, a kept one a few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch

from ...kernels.launch import Room, fresh
from ...kernels.quick import Launch, NotCompiledError, collected, relaunch
from .memory import Rooms

T = TypeVar("T")
_KEPT = ("stream", "parts")
"""What the second half of a pass takes over from the first."""


class Workspace(Protocol):
    @property
    def room(self) -> Room: ...

    def launch(self, key: Hashable, function: Callable[[], T]) -> T:
        """What `function` launches and returns; `key` stands for all that it depends on in this workspace."""
        ...


class Fresh:
    """Every result has memory of its own and can be captured; `function` runs each time."""

    room: Room = staticmethod(fresh)

    def launch(self, key: Hashable, function: Callable[[], T]) -> T:
        return function()


class Fixed:
    """All results of one name and size have the same memory. The launches of a key are kept.

    `shared`: of results that are used up before anything else runs; all workspaces may share it.
    """

    def __init__(self, shared: Rooms) -> None:
        self._shared, self._own = shared, Rooms()
        self._ready: dict[Hashable, tuple[list[Launch], Any]] = {}
        self._is_complete = False

    def room(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return (self._own if name in _KEPT else self._shared)(name, shape, dtype, device)

    def launch(self, key: Hashable, function: Callable[[], T]) -> T:
        ready = self._ready.get(key)
        if ready is None:
            return self.collect(key, function)
        relaunch(ready[0])
        known: T = ready[1]
        return known

    def collect(self, key: Hashable, function: Callable[[], T], is_run: bool = True) -> T:
        with collected(is_run) as launches:
            result = function()
        if launches:  # none: these kernels are launched the usual way
            self._ready[key] = launches, result
        return result

    def complete(self, launch_all: Callable[[Workspace], object]) -> None:
        """Once: keep what `launch_all` would launch in this workspace, without launching it."""
        if self._is_complete or not self._ready:
            return
        with suppress(NotCompiledError):  # those come when they first run
            launch_all(_Unlaunched(self))
        self._is_complete = True


class _Unlaunched:
    """A fixed workspace where everything is kept and nothing runs."""

    def __init__(self, space: Fixed) -> None:
        self._space, self.room = space, space.room

    def launch(self, key: Hashable, function: Callable[[], T]) -> T:
        return self._space.collect(key, function, is_run=False)
