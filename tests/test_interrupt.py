"""Ctrl-C at any moment: one line, exit code 130, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from selfdraft.cli import interrupt

IMPORTS = """
import os, signal, sys
module = sys.argv[1]
class Finder:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
AT_THE_END = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""
RUN = """
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["selfdraft", *sys.argv[2:]]
import runpy
runpy.run_module("selfdraft", run_name="__main__")
"""
DEFAULT = ["selfdraft.cli.main", "torch"]
MORE = ["argparse", "torch.nn", "transformers"]
MORE += [f"transformers.models.llama.{name}_llama" for name in ("modeling", "configuration")]
"""For `make test-full`."""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code + RUN, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize("module", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_while_something_is_imported(module: str, folder: str) -> None:
    """A library that swallows it goes on half imported; what follows is not reported as an error."""
    ran = run(IMPORTS, module, "generate", "--model", folder, "abc")
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "", "interrupted"), module


@pytest.mark.full
def test_after_everything_was_said(folder: str) -> None:
    """A second Ctrl-C, while Python ends."""
    ran = run(AT_THE_END, "-", "generate", "--json", "--max-new-tokens", "2", "--model", folder, "abc")
    assert json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (130, "")


def test_a_command_that_runs_gets_a_keyboard_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    with pytest.raises(KeyboardInterrupt), interrupt.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    assert interrupt.was_interrupted()
    with interrupt.interruptible():
        assert not interrupt.was_interrupted()
    assert signal.getsignal(signal.SIGINT) is before, "as it was"


def test_another_thread_handles_no_signals() -> None:
    found = []

    def work() -> None:
        with interrupt.interruptible():
            found.append(interrupt.was_interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
