"""Before a request is read: who asks, how much they send, and a number by which logs and answers name it."""

from __future__ import annotations

import hmac
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("selfdraft.serve")
_OPEN = ("/health", "/ready", "/version", "/", "/playground.css", "/playground.js")
"""What monitors ask, who have no key, and the page, which asks for one."""


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """As OpenAI's clients read it."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Guard:
    """ASGI middleware. `keys`: one of them must be sent, none: everybody may ask; `refused`: told of each status."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], max_body: int, refused: Callable[[int], None]) -> None:
        self._refused = refused
        self._app, self._keys, self._max_body = app, [key.encode() for key in keys], max_body
        self._too_large = f"the body is larger than {max_body} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        number, began, status = f"req_{uuid.uuid4().hex}", time.monotonic(), 500
        scope.setdefault("state", {})["number"] = number

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        try:
            if not self._is_known(scope["path"], headers.get(b"authorization", b"")):
                self._refused(401)
                await _refuse(numbered, 401, "no valid API key: send `Authorization: Bearer KEY`", "invalid_api_key")
            elif _length(headers) > self._max_body:
                self._refused(413)
                await _refuse(numbered, 413, self._too_large, "request_too_large")
            else:
                await self._app(scope, self._counted(receive), numbered)
        finally:
            seconds = time.monotonic() - began
            log.info("%s %s %s -> %d in %.3f s", number, scope["method"], quote(scope["path"]), status, seconds)

    def _is_known(self, path: str, sent: bytes) -> bool:
        """All keys are compared, each in the same time whatever was sent."""
        if not self._keys or path in _OPEN:
            return True
        scheme, _, key = sent.partition(b" ")
        found = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(found)

    def _counted(self, receive: Receive) -> Receive:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise HTTPException(413, self._too_large)
            return message

        return counted


def _length(headers: dict[bytes, bytes]) -> int:
    sent = headers.get(b"content-length", b"0")
    return int(sent) if sent.isdigit() else 0


async def _refuse(send: Send, status: int, message: str, code: str) -> None:
    body = json.dumps(error_body(message, status, code=code)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
