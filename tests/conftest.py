"""What many tests share: a saved pico model, profiles of their own, prompts, and running a command.

Two workers share two cores: each computes with one thread. Timing is never judged, so nothing has a deadline.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("selfdraft", deadline=None)
settings.load_profile("selfdraft")

os.environ["SELFDRAFT_CONFIG"] = ""  # whoever runs the tests may have a config file
os.environ["SELFDRAFT_LEARNED"] = "off"  # and what is learned here is nobody's
if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and by the processes that tests start


gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """What has been imported stays: it is not searched for garbage again and again while tests run."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs on this machine is not told, as on systems without /proc."""
    monkeypatch.setattr("selfdraft.measure.cores.PROC", Path("/proc/none"))


@pytest.fixture(autouse=True)
def quickly_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no profile tells what passes take they are timed, and no figure of that is judged."""
    monkeypatch.setattr("selfdraft.engine.knowledge.QUICK_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def always_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches draft whatever it costs here: the clock must not decide what a test tests."""
    monkeypatch.setattr("selfdraft.engine.worth.Worth.of", lambda worth, state: None)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pico Llama as a Hugging Face folder, with a tokenizer of single characters. Copy it to change it."""
    from pico import pico, save  # imports torch

    return save(pico("llama"), tmp_path_factory.mktemp("models") / "pico-llama")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models and profiles of the test's own."""
    path = tmp_path / "home"
    monkeypatch.setenv("SELFDRAFT_HOME", str(path))
    return path


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of a pass are known; none is timed."""
    import learned

    learned.know_latency(monkeypatch)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """A file of three prompts in each of two domains."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"domain": domain, "prompt": f"{domain}bc{number}"} for domain in ("code", "chat") for number in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must exit with a status. What it printed; of one that could not run (2), the error."""
    from selfdraft.cli.main import main

    def run(*command: str, status: int = 0) -> str:
        capsys.readouterr()
        try:
            ended = main(command)
        except SystemExit as end:  # argparse
            ended = end.code
        captured = capsys.readouterr()
        assert ended == status, captured.err
        silent, told = (captured.err, captured.out) if captured.out else (captured.out, captured.err)
        assert silent == ""
        assert status != 2 or captured.out == ""
        return told

    return run
