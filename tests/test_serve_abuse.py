"""Random abuse of a server that also answers people: their texts stay what they are, and nothing else is a 5xx.

A minute of it; SELFDRAFT_ABUSE_SECONDS=600 for more.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("fastapi")
from selfdraft import Engine
from selfdraft.serve.service import Limits, Service
from test_serve import expected, new_engine, serving, wait_until

pytestmark = pytest.mark.full
SECONDS = float(os.environ.get("SELFDRAFT_ABUSE_SECONDS", "60"))
LIMITS = Limits(max_rows=6, max_waiting=12, max_tokens=200, max_body=2**19, seconds=30)
NUM_ASKING, NUM_ABUSING = 4, 6
PLANTED = "ZYZYZ"
"""A prompt with this makes the model fail; so long that no text and no draft has it by chance."""
JUNK = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"a"',
    b"\xff\xfe",
    b'{"model":',
    b'{"model": "pico", "prompt": 1e999}',
    b"{" * 5000,
)
FIELDS: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"temperature": float("1e300")},
    {"n": 0},
    {"n": 10**9},
    {"max_tokens": 10**12},
    {"max_tokens": 0},
    {"stop": [""]},
    {"logit_bias": {"99999999": 1}},
    {"logit_bias": {"a": 1}},
    {"seed": 2**70},
    {"unheard_of": 1},
    {"model": "another"},
    {"prompt": ["a"] * 500},
    {"prompt": [[10**9]]},
    {"prompt": []},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
    {"response_format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(" * 50}}},
    {"selfdraft": {"strategy": "none such"}},
    {"selfdraft": {"drafter": "model", "settings": {"model": {"source": "/etc/passwd"}}}},
)


class Abuse:
    """What is done to one server, and what it answered: statuses by what was done."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.random = f"{url}/v1/completions", random.Random(seed)
        self.address = urlsplit(url).hostname, urlsplit(url).port
        self.statuses: collections.Counter[tuple[str, int]] = collections.Counter()

    def any(self) -> None:
        kinds: list[Callable[[], None]] = [
            *(self.junk, self.fields, self.large, self.planted, self.killed, self.slow, self.half, self.lost, self.odd)
        ]
        kind = self.random.choice(kinds)
        with contextlib.suppress(httpx.TransportError, OSError):  # a connection that the server has closed
            kind()

    def body(self, **more: Any) -> dict[str, Any]:
        return {"model": "pico", "prompt": "abc", "max_tokens": 120, "temperature": 0.9, **more}

    def post(self, kind: str, **request: Any) -> None:
        answer = httpx.post(self.url, timeout=60, **request)
        self.statuses[kind, answer.status_code] += 1
        if answer.status_code >= 400:
            error = answer.json()["error"]["message"]
            assert "Traceback" not in error
            assert "secret" not in error
            assert "site-packages" not in error

    def junk(self) -> None:
        self.post("junk", content=self.random.choice(JUNK), headers={"content-type": "application/json"})

    def fields(self) -> None:
        self.post("fields", json=self.body(**self.random.choice(FIELDS)))

    def large(self) -> None:
        """Some megabytes, or a prompt that is just longer than the context."""
        self.post("large", json=self.body(prompt="a" * self.random.choice((300, 2**18, 2**20, 3 * 2**20))))

    def planted(self) -> None:
        self.post("planted", json=self.body(prompt=f"ab{PLANTED}c"))

    def killed(self) -> None:
        """In the middle of a stream."""
        with httpx.stream("POST", self.url, json=self.body(stream=True, n=2), timeout=60) as answer:
            self.statuses["killed", answer.status_code] += 1
            for _ in itertools.islice(answer.iter_lines(), self.random.randrange(8)):
                pass

    def slow(self) -> None:
        """Who reads a line now and then."""
        with httpx.stream("POST", self.url, json=self.body(stream=True, n=4), timeout=60) as answer:
            self.statuses["slow", answer.status_code] += 1
            for _ in itertools.islice(answer.iter_lines(), 10):
                time.sleep(self.random.random() / 10)

    def half(self) -> None:
        """A request of which only a part comes."""
        headers = b"host: x\r\ncontent-type: application/json\r\ncontent-length: 400\r\n"
        whole = b"POST /v1/completions HTTP/1.1\r\n" + headers + b'\r\n{"model":'
        with socket.create_connection(self.address, timeout=5) as wire:
            wire.sendall(whole[: self.random.randrange(1, len(whole) + 1)])
            time.sleep(self.random.random() / 4)

    def lost(self) -> None:
        """Who does not wait for the answer."""
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.post(self.url, json=self.body(), timeout=httpx.Timeout(60, read=self.random.random() / 20))

    def odd(self) -> None:
        """Other methods, paths and headers."""
        path = self.random.choice(("/v1/completions", "/v1/models/..%2f..", "/%00", "/v1/chat/completions/", "/docs"))
        method, name = self.random.choice(("GET", "PUT", "DELETE", "TRACE", "POST")), "x-" + "a" * 200
        answer = httpx.request(method, self.url.removesuffix("/v1/completions") + path, headers={name: "b" * 4000})
        self.statuses["odd", answer.status_code] += 1


def plant(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    bad, real = " ".join(map(str, engine.tokenizer(PLANTED).input_ids)), engine.runner.forward

    def forward(request: Any, *rest: Any, **named: Any) -> Any:
        if any(bad in " ".join(str(int(token)) for token in row) for row in request.tokens):
            raise RuntimeError("planted: the device is lost in /secret/path")
        return real(request, *rest, **named)

    monkeypatch.setattr(engine.runner, "forward", forward)


def ask(url: str, number: int) -> tuple[str, dict[str, Any], list[str]]:
    """As people do, until it is answered; 429 says when to come again."""
    asked = {"temperature": 0} if number % 2 else {"temperature": 0.8, "seed": number}
    prompt, body = "abcdefghijk"[number % 7 : number % 7 + 4], {"model": "pico", "max_tokens": 40, "n": 2, **asked}
    while True:
        answer = httpx.post(f"{url}/v1/completions", json={**body, "prompt": prompt}, timeout=60)
        if answer.status_code != 429:
            assert answer.status_code == 200, answer.text
            return prompt, asked, [choice["text"] for choice in answer.json()["choices"]]
        assert int(answer.headers["retry-after"]) >= 1
        time.sleep(0.1)


def test_abuse_is_nobodys_but_the_abusers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    service, alone, found = Service(new_engine(), "pico", LIMITS), new_engine(), []
    plant(monkeypatch, service.engine)
    with serving(service) as url, ThreadPoolExecutor(NUM_ASKING + NUM_ABUSING) as pool:
        end, numbers = time.monotonic() + SECONDS, itertools.count()
        abuses = [Abuse(url, seed) for seed in range(NUM_ABUSING)]

        def go_on(what: Callable[[], Any]) -> None:
            while time.monotonic() < end:
                what()

        works = [pool.submit(go_on, lambda: found.append(ask(url, next(numbers)))) for _ in range(NUM_ASKING)]
        works += [pool.submit(go_on, abuse.any) for abuse in abuses]
        for work in works:
            work.result()
        wait_until(lambda: not service.scheduler.num_running + service.scheduler.num_waiting)
        assert httpx.get(f"{url}/ready").status_code == 200
        assert service.scheduler.cache_usage == 0
        told = httpx.get(f"{url}/metrics").text
    statuses = sum((abuse.statuses for abuse in abuses), collections.Counter[tuple[str, int]]())
    with capsys.disabled():
        print(f"\n{len(found)} texts of people; abuse: {sorted(statuses.items())}")
    check_texts(found, alone)
    assert {kind for kind, status in statuses if status >= 500} == {"planted"}
    assert 'selfdraft:num_requests_running{model_name="pico"} 0.0' in told
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"selfdraft-serve"})


def check_texts(found: list[tuple[str, dict[str, Any], list[str]]], alone: Engine) -> None:
    """What each is alone."""
    right: dict[str, list[str]] = {}
    for prompt, asked, texts in found:
        key = json.dumps([prompt, asked])
        if key not in right:
            right[key] = [one.text for one in expected(alone, [prompt], asked, 40, n=2)]
        assert texts == right[key]
    assert found
