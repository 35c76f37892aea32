"""Launching a compiled kernel in little time of the host: what was compiled for such arguments is found by a short key.

A new skip set is a hundred and more launches, and Triton's own way to each takes 20 to 40 us. What decides which
compiled kernel runs is the same here as there: types, alignment, small whole numbers, constants. The first launch of a
key is Triton's own. Launches can be collected, and launched again with no key at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

KNOWN = "3.6."
"""Versions of Triton whose compiled kernels are called as below: they promise nothing about that."""

Launch = tuple[Any, tuple[int, int, int], tuple[Any, ...]]
"""What runs, its grid, and what it is passed after the stream: addresses, so whoever keeps it keeps the tensors."""
_collected: ContextVar[tuple[list[Launch], bool] | None] = ContextVar("collected", default=None)


class NotCompiledError(Exception):
    """A kernel that is only to be collected has never run for such arguments."""


class QuickKernel:
    """`kernel[grid](...)` as of a function under `triton.jit`: values by place, then constants and options by name."""

    def __init__(self, jit: Any) -> None:
        self.jit = jit
        self._is_free = [param.do_not_specialize for param in jit.params]
        self._compiled: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
        device = driver.active.get_current_device()
        key, passed = self._key(device, values, options)
        compiled = self._compiled.get(key)
        launches, is_run = _collected.get() or (None, True)
        if compiled is not None:
            launch = _launch_of(compiled, grid, passed)
            if is_run:
                relaunch([launch])
        elif is_run:
            compiled = self._compiled[key] = self._compile(grid, values, options)
            launch = _launch_of(compiled, grid, passed)
        else:
            raise NotCompiledError(self.jit)
        if launches is not None:
            launches.append(launch)

    def _key(self, device: int, values: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """What decides which compiled kernel runs, and the values as they are passed: tensors by address."""
        key: list[Any] = [device, *options, *options.values()]
        passed = []
        for value, is_free in zip(values, self._is_free, strict=False):
            if isinstance(value, torch.Tensor):
                address = value.data_ptr()
                key += (value.dtype, address % 16 == 0)
                passed.append(address)
            else:
                key += (type(value), _fits(value) if is_free or isinstance(value, float) else value)
                passed.append(value)
        return tuple(key), passed

    def _compile(self, grid: tuple[int, ...], values: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        compiled = self.jit[grid](*values, **options)
        constants = tuple(options[param.name] for param in self.jit.params[len(values) :])
        run, leading = compiled.run, (compiled.packed_metadata, None, None, None)  # the last three are for profilers
        if run.global_scratch_size or run.profile_scratch_size:
            return run, (compiled.function, *leading), constants
        how = (run.launch_cooperative_grid, run.launch_pdl, None, None)
        return run.launch, (compiled.function, *how, *leading), constants


def _launch_of(compiled: tuple[Any, ...], grid: tuple[int, ...], passed: list[Any]) -> Launch:
    run, leading, constants = compiled
    first, second, third = (*grid, 1, 1)[:3]
    return run, (first, second, third), (*leading, *passed, *constants)


def relaunch(launches: Iterable[Launch]) -> None:
    """On the current stream."""
    stream = driver.active.get_current_stream(driver.active.get_current_device())
    for run, grid, arguments in launches:
        run(*grid, stream, *arguments)


@contextmanager
def collected(is_run: bool = True) -> Iterator[list[Launch]]:
    """The launches of quick kernels inside, in order; unless `is_run` they are not launched.

    Where kernels are not quick, it stays empty.
    """
    launches: list[Launch] = []
    token = _collected.set((launches, is_run))
    try:
        yield launches
    finally:
        _collected.reset(token)


def _fits(value: float) -> bool:
    """Into 32 bits: a longer whole number is of another type. A fraction's value never matters."""
    return -(2**31) <= value < 2**31 if isinstance(value, int) else True


def quick(function: Any) -> Any:
    """A decorator above `triton.jit`. Under Triton's interpreter, and with versions not known, it changes nothing."""
    is_known = isinstance(function, JITFunction) and triton.__version__.startswith(KNOWN)
    return QuickKernel(function) if is_known else function
