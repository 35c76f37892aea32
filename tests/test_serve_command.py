"""`selfdraft serve` as its users run it: a process that answers until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ASKED = {"model": "small", "prompt": "zyxw", "max_tokens": 150, "temperature": 0, "stream": True}


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def server(folder: str, port: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    words = ["serve", "--model", folder, "--name", "small", "--port", str(port), "--threads", "1"]
    environment = {**os.environ, "SELFDRAFT_HOME": str(tmp_path / "home"), "SELFDRAFT_API_KEYS": "one,two"}
    command = [sys.executable, "-m", "selfdraft", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/ready").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        yield process
        process.kill()


def test_a_stream_ends_before_the_server_does(server: subprocess.Popen[str], port: int) -> None:
    headers = {"authorization": "Bearer two"}
    with httpx.stream(
        "POST", f"http://127.0.0.1:{port}/v1/completions", json=ASKED, headers=headers, timeout=30
    ) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        server.send_signal(signal.SIGTERM)
        told = [line.removeprefix("data: ") for line in (first, *lines) if line]
    assert told[-1] == "[DONE]"
    assert json.loads(told[-2])["choices"][0]["finish_reason"] == "length"
    server.wait(30)
    assert server.stderr is not None
    logged = server.stderr.read()
    assert f"serving small at http://127.0.0.1:{port}/v1" in logged
    assert "POST /v1/completions -> 200" in logged
    assert "zyxw" not in logged
    assert "Traceback" not in logged


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGINT])
def test_it_ends_at_once_where_nothing_is_to_be_done(server: subprocess.Popen[str], sent: int) -> None:
    began = time.monotonic()
    server.send_signal(sent)
    server.wait(30)
    assert time.monotonic() - began < 10
