"""`selfdraft serve` as its users run it: a process that answers until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
def server(folder: str, port: int, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A row, so that prompts sent together are answered one after the other; `request.param`: more options."""
    words = ["serve", "--model", folder, "--name", "small", "--port", str(port), "--threads", "1", "--max-rows", "1"]
    words += getattr(request, "param", [])
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


def test_what_was_taken_is_answered_before_it_ends(server: subprocess.Popen[str], port: int) -> None:
    """Meanwhile monitors and new requests are told 503, not left outside."""
    address, body = f"http://127.0.0.1:{port}", {**ASKED, "prompt": ["zyxw"] * 12}
    with (
        httpx.Client(base_url=address, headers={"authorization": "Bearer two"}, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        first = next(lines)
        server.send_signal(signal.SIGTERM)
        _until(lambda: client.get("/ready").status_code == 503)
        refused = client.post("/v1/completions", json=ASKED)
        assert client.get("/health").status_code == 200
        told = [line.removeprefix("data: ") for line in (first, *lines) if line]
    assert refused.status_code == 503
    assert "shutting down" in refused.json()["error"]["message"]
    assert told[-1] == "[DONE]"
    choices = [choice for line in told[:-1] for choice in json.loads(line)["choices"]]
    assert [one["index"] for one in choices if one["finish_reason"] == "length"] == list(range(12))
    server.wait(30)
    assert server.stderr is not None
    logged = server.stderr.read()
    assert f"serving small at http://127.0.0.1:{port}/v1" in logged
    assert "POST /v1/completions -> 200" in logged
    assert "POST /v1/completions -> 503" in logged
    assert "zyxw" not in logged
    assert "Traceback" not in logged


@pytest.mark.full
@pytest.mark.parametrize("server", [["--drain-seconds", "0.1"]], indirect=True)
def test_what_is_not_answered_in_time_is_told_so(server: subprocess.Popen[str], port: int) -> None:
    address, body = f"http://127.0.0.1:{port}", {**ASKED, "prompt": ["zyxw"] * 64}
    with (
        ThreadPoolExecutor() as threads,
        httpx.Client(base_url=address, headers={"authorization": "Bearer one"}, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        whole = threads.submit(client.post, "/v1/completions", json={**body, "stream": False})
        _until(lambda: _num_waiting(client) > 64)
        server.send_signal(signal.SIGTERM)
        told = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        refused = whole.result()
    assert "shut down before this was answered" in json.loads(told[-1])["error"]["message"]
    assert refused.status_code == 503
    assert "shut down before this was answered" in refused.json()["error"]["message"]
    server.wait(30)


def _num_waiting(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("selfdraft:num_requests_waiting{"))


def _until(has_come: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not has_come():
        assert time.monotonic() < end


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_where_nothing_is_to_be_done(server: subprocess.Popen[str], sent: int) -> None:
    began = time.monotonic()
    server.send_signal(sent)
    server.wait(30)
    assert time.monotonic() - began < 10
