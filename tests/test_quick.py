"""Quick launches: what Triton compiled for a kind of arguments runs for all of that kind, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import needs_triton  # noqa: F401  skips this file without Triton
from selfdraft.kernels import quick as module
from selfdraft.kernels.quick import NotCompiledError, QuickKernel, collected, quick, relaunch

DRIVER = SimpleNamespace(active=SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77))


class Compiling:
    """Stands for a function under `triton.jit`: notes what it compiled and what that ran with."""

    def __init__(self) -> None:
        names = {"x": False, "count": True, "size": False, "scale": False, "BLOCK": False}
        self.params = [SimpleNamespace(name=name, do_not_specialize=is_free) for name, is_free in names.items()]
        self.compiled: list[tuple[Any, ...]] = []
        self.runs: list[tuple[int, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*values: Any, **options: Any) -> Any:
            number = len(self.compiled)
            self.compiled.append((grid, values, options))
            run = SimpleNamespace(
                launch=lambda *arguments: self.runs.append((number, arguments)),
                global_scratch_size=0,
                profile_scratch_size=0,
                launch_cooperative_grid=False,
                launch_pdl=True,
            )
            return SimpleNamespace(run=run, function=100 + number, packed_metadata=("packed", number))

        return launch


@pytest.fixture
def jit(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    monkeypatch.setattr(module, "driver", DRIVER)
    return Compiling()


def test_the_second_launch_of_a_kind_runs_what_the_first_compiled(jit: Compiling) -> None:
    kernel, x, y = QuickKernel(jit), torch.zeros(64), torch.ones(64)
    kernel[(3,)](x, 5, 48, 0.5, BLOCK=16, num_warps=2)
    assert (len(jit.compiled), jit.runs) == (1, [])
    kernel[(4, 2)](y, 9, 48, 0.25, BLOCK=16, num_warps=2)
    base = (4, 2, 1, 77, 100, False, True, None, None, ("packed", 0), None, None, None)
    assert jit.runs == [(0, (*base, y.data_ptr(), 9, 48, 0.25, 16))]
    assert len(jit.compiled) == 1


OTHERS: dict[str, tuple[Any, ...]] = {
    "another type of tensor": (torch.zeros(64, dtype=torch.int32), 5, 48, 0.5),
    "an odd address": (torch.zeros(65)[1:], 5, 48, 0.5),
    "another number that Triton compiles for": (torch.zeros(64), 5, 1, 0.5),
    "a number of more than 32 bits": (torch.zeros(64), 2**31, 48, 0.5),
    "a whole number instead of a fraction": (torch.zeros(64), 5, 48, 1),
    "nothing instead of a tensor": (None, 5, 48, 0.5),
}


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_what_triton_compiles_apart_is_told_apart(jit: Compiling, values: tuple[Any, ...]) -> None:
    kernel = QuickKernel(jit)
    for _ in range(2):
        kernel[(1,)](torch.zeros(64), 5, 48, 0.5, BLOCK=16)
        kernel[(1,)](*values, BLOCK=16)
    assert len(jit.compiled) == 2
    assert [number for number, _ in jit.runs] == [0, 1]


@pytest.mark.parametrize("options", [{"BLOCK": 32}, {"BLOCK": 16, "num_warps": 2}])
def test_constants_and_options_are_told_apart(jit: Compiling, options: dict[str, int]) -> None:
    kernel = QuickKernel(jit)
    kernel[(1,)](torch.zeros(64), 5, 48, 0.5, BLOCK=16)
    kernel[(1,)](torch.zeros(64), 5, 48, 0.5, **options)
    assert len(jit.compiled) == 2


def test_each_device_has_its_own(jit: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = QuickKernel(jit)
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(DRIVER.active, "get_current_device", lambda device=device: device)
        kernel[(1,)](torch.zeros(64), 5, 48, 0.5, BLOCK=16)
    assert (len(jit.compiled), [number for number, _ in jit.runs]) == (2, [0, 1])


def test_collected_launches_run_again_with_the_stream_of_then(jit: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = QuickKernel(jit), torch.zeros(64)
    with collected() as launches:
        kernel[(3,)](x, 5, 48, 0.5, BLOCK=16)
        kernel[(4, 2)](x, 6, 48, 0.5, BLOCK=16)
    kernel[(5,)](x, 7, 48, 0.5, BLOCK=16)
    assert (len(launches), len(jit.runs)) == (2, 2)
    monkeypatch.setattr(DRIVER.active, "get_current_stream", lambda device: 78)
    relaunch(launches)
    rest = (100, False, True, None, None, ("packed", 0), None, None, None, x.data_ptr())
    assert [run for _, run in jit.runs[2:]] == [
        (3, 1, 1, 78, *rest, 5, 48, 0.5, 16),
        (4, 2, 1, 78, *rest, 6, 48, 0.5, 16),
    ]


def test_what_is_only_collected_does_not_run(jit: Compiling) -> None:
    kernel, x = QuickKernel(jit), torch.zeros(64)
    with collected(is_run=False) as launches, pytest.raises(NotCompiledError):
        kernel[(3,)](x, 5, 48, 0.5, BLOCK=16)
    assert (launches, jit.compiled) == ([], [])
    kernel[(3,)](x, 5, 48, 0.5, BLOCK=16)
    with collected(is_run=False) as launches:
        kernel[(3,)](x, 5, 48, 0.5, BLOCK=16)
    assert (len(launches), jit.runs) == (1, [])


def test_versions_that_are_not_known_launch_as_ever() -> None:
    with mock.patch.object(module, "JITFunction", Compiling):
        function = Compiling()
        with mock.patch.object(module.triton, "__version__", "4.0.0"):
            assert quick(function) is function
        with mock.patch.object(module.triton, "__version__", "3.6.0"):
            assert isinstance(quick(function), QuickKernel)
    assert quick(test_versions_that_are_not_known_launch_as_ever) is test_versions_that_are_not_known_launch_as_ever
