"""Launching a compiled kernel in little time of the host: what was compiled for such arguments is found by a short key.

A new skip set is a hundred and more launches, and Triton's own way to each takes 20 to 40 us. What decides which
compiled kernel runs is the same here as there: types, alignment, small whole numbers, constants. The first launch of a
key is Triton's own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

KNOWN = "3.6."
"""Versions of Triton whose compiled kernels are called as below: they promise nothing about that."""


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
        if compiled is None:
            self._compiled[key] = self._compile(grid, values, options)
            return
        run, function, metadata, constants = compiled
        first, second, third = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        # The three after the metadata are for profilers.
        run(first, second, third, stream, function, metadata, None, None, None, *passed, *constants)

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
        return compiled.run, compiled.function, compiled.packed_metadata, constants


def _fits(value: float) -> bool:
    """Into 32 bits: a longer whole number is of another type. A fraction's value never matters."""
    return -(2**31) <= value < 2**31 if isinstance(value, int) else True


def quick(function: Any) -> Any:
    """A decorator above `triton.jit`. Under Triton's interpreter, and with versions not known, it changes nothing."""
    is_known = isinstance(function, JITFunction) and triton.__version__.startswith(KNOWN)
    return QuickKernel(function) if is_known else function
