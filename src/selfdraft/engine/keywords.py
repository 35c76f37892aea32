"""The keywords of a call and of a method, typed once: editors complete them, `help()` shows them, typos are errors.

`GenerateOptions` says what each keyword of a call may be and validates it, `registry.AXES` what a method consists of. A
function that takes them says so in one line, `**options: Unpack[CallOptions]`, and `@keywords_of(CallOptions)` spells
them out in its signature and docstring. A test compares all three.
"""

from __future__ import annotations

import inspect
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from ..errors import OptionError, unknown_name
from ..options import LOAD_HELP, GenerateOptions, LoadOptions, Settings, describe, make, refused_load_option
from ..protocols import Lookahead
from ..registry import AXES, AXIS_HELP, check_settings
from ..types import Generation
from .method import Acceptance

_CHAT = "chat_template_kwargs"
_HELP = {
    "seed": "the same seed, the same text, drafting on or off; None draws one (the result's `seed`)",
    "settings": "options of methods by name, for example {'uniform': {'ratio': 0.3}}",
    _CHAT: "for messages: what the chat template takes, for example {'enable_thinking': False, 'tools': [...]}",
}
F = TypeVar("F", bound=Callable[..., Any])


class Event(Protocol):
    """What `threading.Event`, `asyncio.Event` and `multiprocessing.Event` have in common."""

    def is_set(self) -> bool: ...


class MethodOptions(TypedDict, total=False):
    """What names a method; what is left out or None is the engine's own, or what the strategy pairs with."""

    strategy: str | None
    lookahead: str | Lookahead | None
    drafter: str | None
    tree: str | None
    acceptance: str | Acceptance | None
    settings: Settings | None


class CallOptions(MethodOptions, total=False):
    """What one call may set: the fields of `GenerateOptions`, what the chat template takes, and a method."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    logprobs: int | None
    seed: int | None
    sequence: int
    stop: str | Sequence[str]
    processors: Sequence[Callable[..., Any]]
    cancel: Callable[[], bool] | Event | None
    chat_template_kwargs: Mapping[str, Any] | None


class PretrainedOptions(MethodOptions, LoadOptions, total=False):
    """What `from_pretrained` takes beside its own: a method, and what it passes on to transformers."""


METHOD_NAMES = (*AXES, "settings")
_DEFAULTS = {name: default for name, default, _ in describe(GenerateOptions)}
CALL_NAMES = (*_DEFAULTS, _CHAT, *METHOD_NAMES)


def keywords_of(options: type[Any]) -> Callable[[F], F]:
    """Spell the keywords of `**options` out: in the signature, with types and defaults, and in the docstring."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *own, rest = (one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_POSITIONAL)
        assert rest.kind is inspect.Parameter.VAR_KEYWORD
        hints = typing.get_type_hints(options)
        names = [name for name in (*CALL_NAMES, *LOAD_HELP) if name in hints]
        spelled = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=hints[name])
            for name in names
        ]
        function.__signature__ = signature.replace(parameters=[*own, *spelled])  # type: ignore[attr-defined]
        listed = "\n".join(f"    {name}: {_help(name)}" for name in names)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nKeywords:\n{listed}"
        return function

    return decorate


def _help(name: str) -> str:
    texts = {known: text for known, _, text in describe(GenerateOptions)} | _HELP | LOAD_HELP
    return texts[name] if name in texts else f"{AXIS_HELP[name]}: {', '.join(AXES[name])}"


class Call(typing.NamedTuple):
    """The keywords of a call, read: what to generate, with which method, and what the chat template takes."""

    settings: GenerateOptions
    method: dict[str, Any]
    chat: Mapping[str, Any]


def read_call(options: Mapping[str, Any]) -> Call:
    """Raise for a keyword that does not exist, with the nearest one, and for a value that cannot be."""
    for name in options:
        if name not in CALL_NAMES:
            raise unknown_name("option of generate", name, CALL_NAMES)
    chat = options.get(_CHAT)
    if chat is not None and not isinstance(chat, Mapping):
        raise OptionError(f"{_CHAT} must be a dict like {{'enable_thinking': False}}, got {chat!r}")
    settings = {name: value for name, value in options.items() if name in _DEFAULTS}
    method = {name: value for name, value in options.items() if name in METHOD_NAMES}
    return Call(make(GenerateOptions, settings, "generate"), method, chat or {})


def with_seed(options: Mapping[str, Any], *outputs: Any) -> dict[str, Any]:
    """What is judged was made with its own seed, where it knows it and none is given."""
    seeds = [output.seed for output in outputs if isinstance(output, Generation)]
    if options.get("seed") is None and seeds:
        return {**options, "seed": seeds[0]}
    if "seed" in options and options["seed"] is None and options.get("temperature"):
        raise OptionError("seed=None draws a new seed, but a text is judged by the one it was made with; pass that")
    return dict(options)


def check_method(
    method: Mapping[str, Any], owner: str = "Engine", call: str = "engine.generate(prompt"
) -> dict[str, Any]:
    """The options that name a method, without those left at None; `owner` and `call` are for the messages."""
    if not isinstance(method, Mapping):
        raise OptionError(f"a method must be a dict like {{'drafter': 'lookup'}}, got {reprlib.repr(method)}")
    for name in method:
        if name in METHOD_NAMES:
            continue
        if name in CALL_NAMES:
            raise OptionError(f"{name!r} belongs to a call: {call}, {name}={method[name]!r})")
        raise unknown_name(f"option of {owner}", name, METHOD_NAMES)
    settings = method.get("settings")
    check_settings({} if settings is None else settings)
    return {name: value for name, value in method.items() if value is not None}


def read_pretrained(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """(what names a method, what goes to transformers); raise for all else before anything is loaded."""
    for name in options:
        if name not in (*LOAD_HELP, *CALL_NAMES):
            own = ("device", "dtype", "graphs", "profile", "economics", "shared_skip", "prefix_cache", "packed_weights")
            raise refused_load_option(name, (*own, *METHOD_NAMES, *LOAD_HELP))
    method = check_method({name: value for name, value in options.items() if name not in LOAD_HELP})
    return method, {name: value for name, value in options.items() if name in LOAD_HELP}
