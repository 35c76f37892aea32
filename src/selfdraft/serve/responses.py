"""`/v1/responses`, without a memory: what is asked is one chat, and its answer is told as OpenAI's items and events."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from openai.types import responses as told
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from ..engine.session import Event
from ..types import Generation
from .answers import Answer, Decode, reason_of
from .schema import ChatRequest, Function, MethodOptions, Never, Strict, ToolName
from .tools import Call, Reader

Kept = Literal["in_progress", "completed", "incomplete"]


class Part(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Item(Strict):
    """One that an answer had may come back as it was."""

    id: str | None = None
    status: Kept | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, value: Any) -> Any:
        """What is not known here and says nothing: clients send back all that an answer had."""
        if not isinstance(value, dict):
            return value
        return {name: one for name, one in value.items() if one is not None or name in cls.model_fields}


class Said(Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]

    def messages(self) -> list[dict[str, Any]]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return [{"role": self.role, "content": text}]


class Called(Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def messages(self) -> list[dict[str, Any]]:
        function = {"name": self.name, "arguments": self.arguments}
        return [{"role": "assistant", "tool_calls": [{"id": self.call_id, "type": "function", "function": function}]}]


class Returned(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": self.call_id, "content": self.output}]


class FlatTool(Function):
    type: Literal["function"]


class FlatName(ToolName):
    type: Literal["function"]


class FlatFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    def nested(self) -> dict[str, Any]:
        named = {"name": self.name, "schema": self.schema_}
        return {"type": self.type, **({"json_schema": named} if self.type == "json_schema" else {})}


class TextOptions(Strict):
    format: FlatFormat | None = None


class ResponsesRequest(Strict):
    """Nothing is kept here from one request to the next."""

    model: str
    input: str | Annotated[list[Said | Called | Returned], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stream: bool = False
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatName | None = None
    parallel_tool_calls: bool | None = None
    store: Never | None = None
    truncation: Literal["disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    selfdraft: MethodOptions | None = None
    _chat: ChatRequest = PrivateAttr()

    @model_validator(mode="after")
    def _read(self) -> ResponsesRequest:
        items = self.input if isinstance(self.input, list) else [Said(role="user", content=self.input)]
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        chat: dict[str, Any] = {
            **{name: getattr(self, name) for name in ("model", "temperature", "top_p", "seed", "stream", "user")},
            "messages": [*first, *(message for item in items for message in item.messages())],
            "max_completion_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls,
            "selfdraft": self.selfdraft.model_dump() if self.selfdraft else {},
        }
        if self.text and self.text.format:
            chat["response_format"] = self.text.format.nested()
        if self.tools:
            functions = [one.model_dump(exclude={"type"}, exclude_none=True) for one in self.tools]
            chat["tools"] = [{"type": "function", "function": function} for function in functions]
        if self.tool_choice:
            choice = self.tool_choice
            named = {"name": choice.name} if isinstance(choice, FlatName) else None
            chat["tool_choice"] = {"type": "function", "function": named} if named else choice
        self._chat = ChatRequest.model_validate(chat)
        return self

    @property
    def chat(self) -> ChatRequest:
        return self._chat


class ResponsesAnswer(Answer):
    """Items as they are written; each event has a number."""

    has_mark, tells_always = False, True

    def __init__(self, body: ResponsesRequest, decode: Decode, reader: Callable[[], Reader] | None) -> None:
        super().__init__(body.model, decode, "resp")
        self._body, self._reader = body, reader() if reader else None
        self._items: list[Any] = []
        self._number = 0
        self._status: Kept = "in_progress"

    def begin(self, index: int) -> list[BaseModel]:
        known = {"response": self._response()}
        return [self._told(kind, **known) for kind in (told.ResponseCreatedEvent, told.ResponseInProgressEvent)]

    def piece(self, event: Event, index: int) -> list[BaseModel]:
        return self._write(event.text, event.generation)

    def last(self, figures: Mapping[str, Any]) -> list[BaseModel]:
        is_whole = self._status == "completed"
        kind = told.ResponseCompletedEvent if is_whole else told.ResponseIncompleteEvent
        return [self._told(kind, response=self._response(figures))]

    def whole(self, generations: Sequence[Generation], figures: Mapping[str, Any]) -> BaseModel:
        (one,) = generations
        self._write(one.text, one)
        return self._response(figures)

    def _write(self, text: str, one: Generation | None) -> list[BaseModel]:
        content, calls = self._reader.read(text, one is not None) if self._reader else (text, [])
        events = self._text(content) if content or (one and not self._items and not calls) else []
        for call in calls:
            events += self._call(call)
        if one is None:
            return events
        self._status = "completed" if reason_of(one) == "stop" else "incomplete"
        return events + self._close()

    def _text(self, content: str) -> list[BaseModel]:
        events = []
        if not self._items or self._items[-1].type != "message":
            events = self._close()
            item = told.ResponseOutputMessage(
                id=f"msg_{uuid.uuid4().hex}", content=[], role="assistant", status="in_progress", type="message"
            )
            events += self._open(item)
            events.append(self._told(told.ResponseContentPartAddedEvent, **self._place, part=_part("")))
            item.content.append(_part(""))
        self._items[-1].content[0].text += content
        return [*events, self._told(told.ResponseTextDeltaEvent, **self._place, delta=content, logprobs=[])]

    def _call(self, call: Call) -> list[BaseModel]:
        events = []
        if call.id:
            events = self._close()
            item = told.ResponseFunctionToolCall(
                id=f"fc_{uuid.uuid4().hex}", arguments="", call_id=call.id, name=call.name or "", type="function_call"
            )
            events += self._open(item)
        self._items[-1].arguments += call.arguments
        place = {name: value for name, value in self._place.items() if name != "content_index"}
        return [*events, self._told(told.ResponseFunctionCallArgumentsDeltaEvent, **place, delta=call.arguments)]

    def _open(self, item: Any) -> list[BaseModel]:
        item.status = "in_progress"
        self._items.append(item)
        return [self._told(told.ResponseOutputItemAddedEvent, item=item.model_copy(deep=True), output_index=self._last)]

    def _close(self) -> list[BaseModel]:
        """What is being written ends here."""
        if not self._items or self._items[-1].status != "in_progress":
            return []
        item, place = self._items[-1], self._place
        item.status = "completed" if self._status != "incomplete" else "incomplete"
        if item.type == "function_call":
            del place["content_index"]
            said = {"arguments": item.arguments, "name": item.name}
            events = [self._told(told.ResponseFunctionCallArgumentsDoneEvent, **place, **said)]
        else:
            (part,) = item.content
            events = [self._told(told.ResponseTextDoneEvent, **place, text=part.text, logprobs=[])]
            events.append(self._told(told.ResponseContentPartDoneEvent, **place, part=part))
        return [*events, self._told(told.ResponseOutputItemDoneEvent, item=item, output_index=self._last)]

    @property
    def _last(self) -> int:
        return len(self._items) - 1

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": self._last, "content_index": 0}

    def _told(self, kind: type[BaseModel], **known: Any) -> BaseModel:
        self._number += 1
        return kind(**known, sequence_number=self._number - 1, type=get_args(kind.model_fields["type"].annotation)[0])

    def _response(self, figures: Mapping[str, Any] | None = None) -> told.Response:
        body, is_cut = self._body, self._status == "incomplete"
        more = {name: getattr(body, name) for name in ("instructions", "max_output_tokens", "metadata", "user")}
        if figures:
            more |= {"usage": _usage(figures["usage"]), "metrics": figures["metrics"]}
        choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, FlatName) else body.chat.choice
        known = {
            "id": self.head["id"],
            "created_at": self.head["created"],
            "model": body.model,
            "object": "response",
            "output": [item.model_dump() for item in self._items],
            "status": self._status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tool_choice": choice,
            "tools": [{"parameters": None, "strict": None, **one.model_dump()} for one in body.tools or ()],
            "error": None,
        }
        return told.Response.model_validate({**{name: one for name, one in more.items() if one is not None}, **known})


def _part(text: str) -> told.ResponseOutputText:
    return told.ResponseOutputText(annotations=[], text=text, type="output_text", logprobs=[])


def _usage(usage: Any) -> told.ResponseUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return told.ResponseUsage.model_validate(
        {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }
    )
