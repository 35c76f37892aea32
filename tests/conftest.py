"""What many tests share: a saved pico model, profiles of their own, prompts, and commands that must be refused.

Two workers share two cores: each computes with one thread. Timing is never judged, so nothing has a deadline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

settings.register_profile("selfdraft", deadline=None)
settings.load_profile("selfdraft")

if os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and by the processes that tests start


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
        assert main(command) == status
        captured = capsys.readouterr()
        silent, told = (captured.out, captured.err) if status == 2 else (captured.err, captured.out)
        assert silent == ""
        return told

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a wrong command: it must exit with 2 before a model is loaded. What it said."""
    from selfdraft.cli.main import main

    def run(*command: str) -> str:
        for read in ("_from_catalogue", "_from_pretrained", "_from_hub"):
            loaded = mock.Mock(side_effect=AssertionError("loaded"))
            monkeypatch.setattr(f"selfdraft.models.load.loading.{read}", loaded)
        try:
            status = main(command)
        except SystemExit as ended:  # argparse
            status = ended.code
        assert status == 2
        return capsys.readouterr().err

    return run
