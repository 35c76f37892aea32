"""A faithful stand-in for CUDA graphs on a CPU: every operation is noted with its very tensors and run again.

Python values and branches are frozen as in a graph, and what a graph cannot hold is refused: reading a value on the
host, shapes that depend on values, tensors made from host data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

T = TypeVar("T")
_DEPENDS_ON_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_NESTED = (list, tuple, dict)
_FROM_HOST = ("aten::lift_fresh", "aten::lift")


def tensors_in(values: Any) -> list[torch.Tensor]:
    """In lists, tuples and dictionaries, also in those inside others."""
    found: list[torch.Tensor] = []
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, _NESTED):
            found += tensors_in(value)
    return found


@functools.cache
def always_needs_host(function: Any) -> bool:
    return any(tag in function.tags for tag in _DEPENDS_ON_VALUES) or function.name() in _FROM_HOST


def needs_host(function: Any, arguments: Any) -> bool:
    if function is torch.ops.aten.index.Tensor:  # its shape depends on values where the index is a mask
        return any(index.dtype == torch.bool for index in tensors_in(arguments[1]))
    return always_needs_host(function)


class Tape(TorchDispatchMode):
    """The recording: (function, arguments, keywords, results that are no view of an argument).

    A pass is thousands of calls, and what this file adds to each of them is a good part of the suite's time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[tuple[int, torch.Tensor]]]] = []
        self.num_bytes = 0
        self.num_replays = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while a tape runs: no call needs to be guarded against it."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        if needs_host(function, arguments):
            raise RuntimeError(f"{function.name()} cannot be recorded: it needs the host")
        results = function(*arguments, **keywords)
        known = {tensor.untyped_storage()._cdata for tensor in tensors_in((*arguments, *keywords.values()))}
        fresh = [
            (index, tensor)
            for index, tensor in enumerate(tensors_in((results,)))
            if tensor.untyped_storage()._cdata not in known
        ]
        if fresh or function._schema.is_mutable:
            self._calls.append((function, arguments, keywords, fresh))
        self.num_bytes += sum(tensor.nbytes for _, tensor in fresh)
        return results

    def note(self, launch: Callable[[], object]) -> None:
        """Something on the very same tensors that torch knows nothing of."""
        self._calls.append((launch, (), {}, []))

    @torch.inference_mode()
    def replay(self) -> None:
        self.num_replays += 1
        for function, arguments, keywords, fresh in self._calls:
            results = function(*arguments, **keywords)
            for index, tensor in fresh:
                tensor.copy_(results if isinstance(results, torch.Tensor) else tensors_in(results)[index])


class TapeRecorder:
    def __init__(self, device: torch.device | None = None) -> None:
        self.tapes: list[Tape] = []

    def __call__(
        self, function: Callable[[], T], reset: Callable[[], None] | None = None, is_warm: bool = False
    ) -> tuple[Tape, T]:
        reset = reset or (lambda: None)
        reset()
        if not is_warm:
            function()
            reset()
        tape = Tape()
        with tape:
            result = function()
        reset()
        self.tapes.append(tape)
        return tape, result


class NotedKernel:
    """An interpreted kernel whose launches go on the tape that runs, if one does."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        def launch(*values: Any, **options: Any) -> None:
            tape = _get_current_dispatch_mode()
            again = functools.partial(self._kernel[grid], *values, **options)
            with _disable_current_modes():
                again()
            if isinstance(tape, Tape):
                tape.note(again)

        return launch
