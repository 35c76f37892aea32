"""The routes: OpenAI's, and those that monitors ask."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as OpenAIResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..errors import SelfdraftError
from ..registry import AXES
from ..version import __version__
from .answers import Answer, ChatAnswer, CompletionAnswer
from .details import Details
from .guard import Guard, error_body
from .responses import ResponsesAnswer, ResponsesRequest
from .scheduler import BrokenError, ClosedError, FullError
from .schema import FOR_OPERATORS, ChatRequest, CompletionRequest, Sampling
from .service import Asked, GoneError, Service, all_texts
from .work import LateError

log = logging.getLogger("selfdraft.serve")
_GONE = 499
"""Nobody reads it."""
PAGE = {
    "/": ("playground.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
}
"""Path -> file and kind."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
}


def create_app(service: Service, keys: Sequence[str] = (), origins: Sequence[str] = ()) -> FastAPI:
    """`keys`: one of them must be sent; `origins`: pages of these may ask from a browser."""

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        service.scheduler.start()
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="selfdraft", version=__version__, lifespan=alive, redoc_url=None)
    app.add_middleware(Guard, keys=keys, max_body=service.limits.max_body, refused=service.metrics.refused)
    if origins:  # a browser asks without a key whether it may
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    _add_errors(app, service)
    _add_answers(app, service)
    _add_monitoring(app, service)
    _add_page(app)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    told: dict[int | str, dict[str, Any]] = {status: {"description": text} for status, text in _REFUSALS.items()}
    told[200] = {"content": {EventSourceResponse.media_type: {}}, "description": "as JSON, or with `stream` as events"}

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=told)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """An answer to messages."""
        return await _answer(service, body, request, ChatAnswer(body.model, service.decode, service.reader(body)))

    @app.post("/v1/completions", response_model=Completion, responses=told)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """The continuation of a text, of each where there are several."""
        return await _answer(service, body, request, CompletionAnswer(body.model, service.decode))

    @app.post("/v1/responses", response_model=OpenAIResponse, responses=told)
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        """An answer to messages, told as items; nothing is kept of it."""
        answer = ResponsesAnswer(body, service.decode, service.reader(body.chat))
        return await _answer(service, body.chat, request, answer)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{name:path}", responses={404: {"description": "there is no such model"}})
    async def model(name: str) -> dict[str, Any]:
        _check_model(service, name)
        return _model(service)


def _model(service: Service) -> dict[str, Any]:
    model = Model(id=service.model, created=service.created, object="model", owned_by="selfdraft")
    engine = service.engine
    own = {
        "num_layers": engine.runner.num_layers,
        "can_chat": bool(getattr(engine.tokenizer, "chat_template", None)),
        "strategies": list(AXES["strategy"]),
        "drafters": [name for name in AXES["drafter"] if name not in FOR_OPERATORS],
    }
    return {**model.model_dump(exclude_unset=True), "max_model_len": engine.context_length, "selfdraft": own}


def _check_model(service: Service, name: str) -> None:
    if name != service.model:
        raise HTTPException(404, f"the model {name!r} is not served here; there is {service.model!r}")


async def _answer(service: Service, body: Sampling, request: Request, answer: Answer) -> Response:
    _check_model(service, body.model)
    client = body.user or (request.client.host if request.client else "")
    asked = await service.ask(body, answer, client)
    events = service.events(asked)
    try:
        first = await service.while_there(request, anext(events))
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            return EventSourceResponse(_stream(service, asked, events, first, usage, body.selfdraft.details))
        await service.while_there(request, _exhaust(events))
    except BaseException:
        service.give_up(asked)
        raise
    whole = answer.whole(all_texts(asked.groups), answer.figures(asked.groups))
    return JSONResponse(whole.model_dump(mode="json"))


async def _exhaust(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def _stream(
    service: Service, asked: Asked, events: AsyncIterator[Any], first: Any, with_usage: bool, with_details: bool
) -> AsyncIterator[bytes]:
    """An error that comes now is told as an event: the answer has begun."""
    answer, seen = asked.answer, set[int]()
    details = defaultdict[int, Details](Details) if with_details else None
    try:
        item = first
        while item is not None:
            index, told = item
            more = {} if details is None else {"selfdraft": details[index].of(told)}
            for start in answer.begin(index) if index not in seen else ():
                yield _event(start)
            seen.add(index)
            for piece in answer.piece(told, index):
                yield _event(piece, **more)
            item = await anext(events, None)
        for last in answer.last(answer.figures(asked.groups)) if with_usage or answer.tells_always else ():
            yield _event(last)
        if answer.has_mark:
            yield format_sse_event(data_str="[DONE]")
    except (BrokenError, ClosedError, LateError, SelfdraftError) as error:
        status, message = _status(error)
        service.metrics.refused(status)
        yield format_sse_event(data_str=json.dumps(error_body(message, status)))
    finally:
        service.give_up(asked)


def _event(item: Any, **more: Any) -> bytes:
    known = {**item.model_dump(mode="json", exclude_unset=True), **more}
    return format_sse_event(data_str=json.dumps(known), event=known.get("type"))


# ------------------------------------------------------------------------------------------------ errors

_REFUSALS = {
    400: "something in the body is not right",
    401: "no valid API key",
    404: "there is no such model",
    413: "the body is too large",
    429: "too many requests are waiting",
    500: "the model failed on this request",
    503: "the server is shutting down",
    504: "the time for this request is over",
}

_NO_BODY = {
    "json_invalid": "the body is not valid JSON",
    "model_attributes_type": "the body must be a JSON object, sent with `Content-Type: application/json`",
}


def _status(error: Exception) -> tuple[int, str]:
    """And what is said of it."""
    statuses = {SelfdraftError: 400, FullError: 429, ClosedError: 503, LateError: 504, GoneError: _GONE}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
    return status, str(error) if status < 500 or status in (503, 504) else "the model failed on this request"


def _add_errors(app: FastAPI, service: Service) -> None:
    def refuse(status: int, message: str, **more: Any) -> JSONResponse:
        service.metrics.refused(status)
        headers = more.pop("headers", None)
        return JSONResponse(error_body(message, status, **more), status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        if first["type"] in _NO_BODY:
            return refuse(400, _NO_BODY[first["type"]])
        message = "is not known here" if first["type"] == "extra_forbidden" else first["msg"]
        return refuse(400, f"{place}: {message}" if place else message, param=place)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return refuse(error.status_code, str(error.detail), headers=error.headers)

    async def other(request: Request, error: Exception) -> JSONResponse:
        status, message = _status(error)
        if status == 500 and not isinstance(error, BrokenError):
            log.error("%s failed", request.state.number, exc_info=error)
        retry = {"retry-after": str(int(error.retry_after + 1))} if isinstance(error, FullError) else None
        return refuse(status, message, headers=retry)

    for kind in (SelfdraftError, FullError, ClosedError, LateError, BrokenError, GoneError, Exception):
        app.add_exception_handler(kind, other)


# ------------------------------------------------------------------------------------------------ the playground


def _add_page(app: FastAPI) -> None:
    """It holds nothing of anybody; what it asks for goes by the routes above."""

    def add(path: str, name: str, kind: str) -> None:
        content = (files(__package__) / "page" / name).read_bytes()

        @app.get(path, include_in_schema=False, name=name)
        async def page() -> Response:
            return Response(content, media_type=kind, headers=PAGE_HEADERS)

    for path, (name, kind) in PAGE.items():
        add(path, name, kind)


# ------------------------------------------------------------------------------------------------ monitoring


def _add_monitoring(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "it takes no requests"}})
    async def ready() -> Response:
        """Whether it takes requests: not while it is shutting down."""
        is_ready = service.scheduler.is_ready
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
