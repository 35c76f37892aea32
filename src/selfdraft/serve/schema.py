"""What may stand in a request's body, and what of it the engine is told. A field that is not known is an error."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from ..options import SEED_BITS
from .tools import AUTO, NONE, schema_of

MAX_CHOICES = 16
"""Texts of one prompt."""
MAX_STOPS = 16
_COMPLETION_TOKENS = 16
"""OpenAI's, where a completion does not say how many."""
ROLES: Mapping[str, str] = {"developer": "system", "function": "tool"}
"""As chat templates know them."""
FOR_OPERATORS = {"model"}
"""What would load other weights."""
_TEMPLATE_KEYS = {"chat_template", "add_generation_prompt", "continue_final_message", "tools"}
"""Of `chat_template_kwargs`: what says how the template works, not what it is told."""


def _refuse_true(value: bool) -> bool:
    if value:
        raise ValueError("must be false: it cannot be done here")
    return value


Never = Annotated[bool, AfterValidator(_refuse_true), WithJsonSchema({"type": "boolean", "const": False})]
"""`Literal[False]` would take 0."""
Score = Annotated[float, Field(ge=-2, le=2)]
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    include_usage: bool = False


class MethodOptions(Strict):
    """How it is decoded: the text is the same."""

    strategy: str | None = None
    lookahead: str | None = None
    drafter: str | None = None
    tree: str | None = None
    acceptance: str | None = None
    settings: dict[str, dict[str, Any]] | None = None

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, value: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
        if value and (kept := sorted(FOR_OPERATORS & value.keys())):
            raise ValueError(f"the settings of {kept[0]!r} are the server's own")
        return value

    @field_validator("drafter")
    @classmethod
    def _check_drafter(cls, value: str | None) -> str | None:
        if value in FOR_OPERATORS:
            raise ValueError(f"the drafter {value!r} is chosen where the server is started")
        return value


class SelfdraftOptions(MethodOptions):
    """`details`: a stream also says what became of each token, and what rounds did."""

    details: bool = False


class Schema(Strict):
    """`strict` says nothing here: a schema is always kept to."""

    name: str = Field("", max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class Definition(Strict):
    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1)


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: Schema


class GrammarFormat(Strict):
    type: Literal["grammar"]
    grammar: Definition


ResponseFormat = Annotated[PlainFormat | SchemaFormat | GrammarFormat, Field(discriminator="type")]


class Function(Strict):
    """`strict` says nothing here: where a call must come, its arguments always keep to the schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class ToolName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: ToolName


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Whatever else the model's template reads may stand beside these."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, Any]:
        content = self.content
        text = content if isinstance(content, str | None) else "".join(part.text for part in content)
        known = {**self.model_dump(exclude_unset=True), "role": ROLES.get(self.role, self.role), "content": text}
        if isinstance(calls := known.get("tool_calls"), list):
            known["tool_calls"] = [_as_templates_read(call) for call in calls]
        return known


def _as_templates_read(call: Any) -> Any:
    """Arguments are text for OpenAI's clients, and an object for chat templates."""
    try:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except (LookupError, TypeError, ValueError):
        return call


class Sampling(Strict, ABC):
    """What chats and completions have in common."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="the same seed, the same text")
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    frequency_penalty: Score = 0.0
    presence_penalty: Score = 0.0
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    logit_bias: dict[Annotated[int, Field(strict=False)], Annotated[float, Field(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = Field(None, description="requests of different users take turns")
    selfdraft: SelfdraftOptions = Field(default_factory=SelfdraftOptions)

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if not all(stops) or len(stops) > MAX_STOPS:
            raise ValueError(f"must be at most {MAX_STOPS} texts, none of them empty")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Sampling:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams: leave it out, or set stream to true")
        if self.selfdraft.details and not self.stream:
            raise ValueError("selfdraft.details are for streams: leave them out, or set stream to true")
        if self.form and self.min_tokens:
            raise ValueError(
                "min_tokens and response_format contradict each other where the text is over: leave one out"
            )
        return self

    @property
    def form(self) -> dict[str, Any] | None:
        """That the text must have."""
        if self.response_format is None or self.response_format.type == "text":
            return None
        return self.response_format.model_dump(by_alias=True)

    @property
    def limit(self) -> int | None:
        """Of new tokens, as asked for."""
        return self.max_tokens

    @property
    def usual(self) -> int | None:
        """Where nothing is asked for; None: as many as there is room for."""
        return None

    @property
    def for_template(self) -> dict[str, Any]:
        """What the chat template is told beside the messages."""
        return {}

    @property
    @abstractmethod
    def num_likeliest(self) -> int | None:
        """As the engine's `logprobs`."""

    @property
    @abstractmethod
    def prompts(self) -> Sequence[Any]:
        """As the engine takes them, each for itself."""

    def options(self, max_new_tokens: int) -> dict[str, Any]:
        """Of `Engine.generate`. A seed that is not given is drawn here: the text can go on after a failure."""
        asked = self.selfdraft.model_dump(exclude={"details"})
        method = {name: value for name, value in asked.items() if value is not None}
        return {
            **method,
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0),
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias or {},
            "logprobs": self.num_likeliest,
            "seed": secrets.randbits(SEED_BITS) if self.seed is None else self.seed % 2**64,
            "stop": self.stop or (),
        }


class ChatRequest(Sampling):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = Field(None, min_length=1, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _check_template(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """A template of the caller's own is a program."""
        if value and (kept := sorted(_TEMPLATE_KEYS & value.keys())):
            raise ValueError(f"{kept[0]} is not for requests")
        return value

    @model_validator(mode="after")
    def _check_lengths(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens differ: leave one out")
        return self

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or ()]
        if len({*names}) < len(names):
            raise ValueError("tools have a name twice")
        if self.tool_choice not in (None, NONE) and not names:
            raise ValueError("tool_choice needs tools")
        if isinstance(self.tool_choice, NamedTool) and self.choice not in names:
            raise ValueError(f"tool_choice names {self.choice!r}, which tools do not have")
        if self.parallel_tool_calls is False and self.choice == AUTO:
            raise ValueError("parallel_tool_calls=false needs a tool_choice that asks for one call: leave it out")
        if self.response_format and self.choice not in (NONE, AUTO):
            raise ValueError("response_format and a tool_choice that asks for a call contradict each other")
        return self

    @property
    def choice(self) -> str:
        """What becomes of the tools: none, auto, required, or the name of one."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        return self.tool_choice or (AUTO if self.tools else NONE)

    @property
    def told_tools(self) -> list[dict[str, Any]]:
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    @property
    def form(self) -> dict[str, Any] | None:
        if self.choice in (NONE, AUTO):
            return super().form
        return {"type": "json_schema", "json_schema": {"schema": schema_of(self.choice, self.told_tools)}}

    @property
    def for_template(self) -> dict[str, Any]:
        tools = {} if self.choice == NONE else {"tools": self.told_tools}
        return {**(self.chat_template_kwargs or {}), **tools}

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompts(self) -> Sequence[Any]:
        return [[message.plain() for message in self.messages]]


class CompletionRequest(Sampling):
    prompt: str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Never = False

    @property
    def usual(self) -> int | None:
        return _COMPLETION_TOKENS

    @property
    def num_likeliest(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> Sequence[Any]:
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return self.prompt if several else [self.prompt]
