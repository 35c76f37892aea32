"""What a caller may set. A dataclass of `setting(...)` fields is the only source for validation, `--help` and docs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import numbers
import reprlib
import secrets
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypedDict, TypeVar

from .errors import OptionError, unknown_name

T = TypeVar("T")
MIN_TEMPERATURE = 1e-4
MAX_BIAS = 1e4
MAX_LOGPROBS = 20
SEED_BITS = 32
"""Of a seed that is drawn: short enough to be typed again."""
Settings = Mapping[str, Mapping[str, Any]]
"""Options by method name: `{"uniform": {"ratio": 0.3}}`, on the command line `--set uniform.ratio=0.3`."""


def setting(default: T, help: str, *, minimum: float | None = None, maximum: float | None = None) -> T:  # noqa: A002
    """A dataclass field that knows its own help text and range."""
    metadata = {"help": help, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata)


class LoadOptions(TypedDict, total=False):
    """What `Engine.from_pretrained` passes on to transformers; what cannot be used is refused by name."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | PathLike[str] | None
    subfolder: str | None
    variant: str | None
    local_files_only: bool | None
    trust_remote_code: bool | None
    use_safetensors: bool | None
    attn_implementation: str | None
    quantization_config: Any
    device_map: str | dict[str, Any] | None
    max_memory: dict[int | str, Any] | None
    offload_folder: str | PathLike[str] | None


LOAD_HELP = {
    "revision": "of a hub id: a branch, a tag or a commit",
    "token": "of a hub id: your access token",
    "cache_dir": "of a hub id: where downloads are kept",
    "subfolder": "of a hub id: where in the repository the model is",
    "variant": "of a hub id: which weights, for example 'fp16'",
    "local_files_only": "download nothing",
    "trust_remote_code": "run code that comes with the model; never unless asked for",
    "use_safetensors": "load no other kind of weights",
    "attn_implementation": "'sdpa' or 'eager'",
    "quantization_config": "of transformers, for example BitsAndBytesConfig(load_in_4bit=True)",
    "device_map": "where the parts go, instead of `device`: 'auto', or a device by part",
    "max_memory": "with device_map: for example {0: '20GB', 'cpu': '60GB'}",
    "offload_folder": "with device_map: where weights lie that fit nowhere",
}
_LOAD_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("revision", "subfolder", "variant"), (str, "text")),
    **dict.fromkeys(("cache_dir", "offload_folder"), ((str, PathLike), "a path")),
    **dict.fromkeys(("local_files_only", "trust_remote_code", "use_safetensors"), (bool, "True or False")),
    "max_memory": (Mapping, "a dict like {0: '20GB', 'cpu': '60GB'}"),
}
_OWN_MODEL = "load the model with transformers and pass it on: Engine(model, tokenizer)"
_ONE_DEVICE = "passes run on one device; load the model there with device, or offload the rest with device_map='auto'"
_ALWAYS = "models are always loaded that way; leave it out"
_REFUSED_LOAD = {
    **dict.fromkeys(("config", "state_dict", "generation_config", "code_revision", "key_mapping"), _OWN_MODEL),
    **dict.fromkeys(("adapter_name", "adapter_kwargs", "experts_implementation", "weights_only"), _OWN_MODEL),
    **dict.fromkeys(("use_kernels", "allow_all_kernels", "kernel_config", "fusion_config"), _OWN_MODEL),
    **dict.fromkeys(("disable_mmap", "tqdm_class"), _OWN_MODEL),
    **dict.fromkeys(("tp_plan", "tp_size", "device_mesh", "distributed_config"), _ONE_DEVICE),
    **dict.fromkeys(("use_fast", "tokenizer", "padding_side"), f"to choose the tokenizer, {_OWN_MODEL}"),
    **dict.fromkeys(("low_cpu_mem_usage", "offload_state_dict"), _ALWAYS),
    "torch_dtype": "it is called dtype",
    "use_auth_token": "it is called token",
    "load_in_4bit": "transformers takes quantization_config=BitsAndBytesConfig(load_in_4bit=True) for it",
    "load_in_8bit": "it rounds activations, so that no exact speculation is possible; quantise the weights only: "
    "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "offload_buffers": "buffers stay on the device; leave it out",
    "output_loading_info": "weights that are missing are an error here; leave it out",
    "ignore_mismatched_sizes": "weights of another size would be random numbers; leave it out",
    "proxies": "downloads go by the environment; set HTTPS_PROXY",
    "force_download": "it is downloaded again after you remove it from the cache: hf cache rm",
    "resume_download": "downloads are always resumed; leave it out",
    "gguf_file": "name the file itself: from_pretrained('folder/model.gguf')",
}
"""What transformers takes and `from_pretrained` does not: why, and what to do."""


def refused_load_option(name: str, known: Iterable[str]) -> OptionError:
    """The error for an option of `from_pretrained` that is not among the known ones."""
    if name in _REFUSED_LOAD:
        return OptionError(f"from_pretrained does not take {name!r}: {_REFUSED_LOAD[name]}")
    return unknown_name("option of from_pretrained", name, known)


def check_load_value(name: str, value: Any) -> None:
    """`trust_remote_code="no"` would be true."""
    kinds, what = _LOAD_KINDS.get(name, (object, ""))
    if not isinstance(value, kinds):
        raise OptionError(f"{name} of from_pretrained must be {what}, got {value!r} ({LOAD_HELP[name]})")
    if name == "quantization_config" and not (isinstance(value, Mapping) or hasattr(value, "quant_method")):
        raise OptionError(f"quantization_config must be a config {LOAD_HELP[name]}, got {value!r}")


@dataclass(frozen=True)
class NoOptions:
    """For methods with nothing to set."""


@dataclass(frozen=True)
class GenerateOptions:
    """One call of `Engine.generate`. Greedy unless `temperature` is above 0."""

    max_new_tokens: int = setting(256, "stop after this many new tokens", minimum=1)
    min_new_tokens: int = setting(0, "no end of the text before this many", minimum=0)
    temperature: float = setting(0.0, "0 is greedy; above 0 samples", minimum=0.0, maximum=1e3)
    top_k: int = setting(0, "sample from the k likeliest; 0: all", minimum=0)
    top_p: float = setting(1.0, "keep the likeliest up to this probability", minimum=0.0, maximum=1.0)
    min_p: float = setting(0.0, "drop what is below this share of the best", minimum=0.0, maximum=1.0)
    repetition_penalty: float = setting(1.0, "divide the scores of seen tokens by this", minimum=1e-3, maximum=1e3)
    presence_penalty: float = setting(0.0, "lower scores of generated tokens by this", minimum=-2.0, maximum=2.0)
    frequency_penalty: float = setting(0.0, "the same for each time that they occur", minimum=-2.0, maximum=2.0)
    logit_bias: tuple[tuple[int, float], ...] = setting((), "add to the scores of tokens, by id")
    logprobs: int | None = setting(
        None, "log-probability of each token and the N likeliest", minimum=0, maximum=MAX_LOGPROBS
    )
    seed: int = setting(0, "the same seed, the same text", minimum=0, maximum=2**64 - 1)
    sequence: int = setting(
        0, "number of the first prompt: row i of a batch is a single call with sequence i", minimum=0, maximum=2**31
    )
    stop: tuple[str, ...] = setting((), "end at these strings; the text stops before them")
    processors: tuple[Callable[..., Any], ...] = setting((), "pure functions (prefix [1, n], scores [1, v]) -> scores")
    cancel: Callable[[], bool] | None = setting(
        None, "asked once a round; True (or an event that is set) ends the generation"
    )

    def __post_init__(self) -> None:
        stop: str | Sequence[str] = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else _as_tuple("stop", stop))
        object.__setattr__(self, "processors", _as_tuple("processors", self.processors))
        object.__setattr__(self, "logit_bias", read_bias(self.logit_bias))
        seed: int | None = self.seed
        if seed is None:
            object.__setattr__(self, "seed", secrets.randbits(SEED_BITS))
        if self.cancel is not None:
            ask = getattr(self.cancel, "is_set", self.cancel)
            check_function("generate.cancel", ask, 0, "an event or a function that returns True to stop", self.cancel)
            object.__setattr__(self, "cancel", ask)
        check(self, "generate")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise OptionError(f"a stop string must be text that is not empty, got {text!r}; leave it out")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise OptionError(
                f"generate.temperature={self.temperature!r} is too small to divide by; use 0 for greedy decoding, "
                f"or {MIN_TEMPERATURE:g} and more"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise OptionError(
                f"min_new_tokens={self.min_new_tokens} is above max_new_tokens={self.max_new_tokens}; lower one of them"
            )


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Iterable):
        raise OptionError(f"generate.{name} must be a list, got {value!r}")
    return tuple(value)


def read_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """A logit bias in the order of its ids: of a dict, of pairs, or of a command line's `ID:BIAS,ID:BIAS`."""
    pairs = _bias_pairs(value)
    for token, bias in pairs:
        check_value("a token id in generate.logit_bias", token, int, minimum=0)
        check_value(f"generate.logit_bias of token {token}", bias, float, -MAX_BIAS, MAX_BIAS)
    twice = next((token for token, count in Counter(token for token, _ in pairs).items() if count > 1), None)
    if twice is not None:
        raise OptionError(f"generate.logit_bias has token {twice} more than once; leave one out")
    return tuple(sorted((token, float(bias)) for token, bias in pairs))


def _bias_pairs(value: Any) -> list[tuple[Any, Any]]:
    try:
        if isinstance(value, str):
            texts = [part.split(":") for part in value.split(",")]
            return [(int(token), float(bias)) for token, bias in texts]
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain_number(token), _plain_number(bias)) for token, bias in pairs]
    except (TypeError, ValueError):
        form = "a dict {ID: BIAS}, on the command line ID:BIAS,ID:BIAS"
        raise OptionError(f"generate.logit_bias must be {form}, got {reprlib.repr(value)}") from None


def check_function(name: str, value: Any, num_arguments: int, what: str, given: Any = None) -> None:
    """Raise for what cannot be called with that many arguments, or answers with a coroutine; `what` it must be."""
    is_function = callable(value) and not isinstance(value, type) and _takes(value, num_arguments)
    if is_function and not any(map(inspect.iscoroutinefunction, (value, type(value).__call__))):
        return
    call = f"; it is called with {num_arguments} arguments, and may not be async or a class" if callable(value) else ""
    raise OptionError(f"{name} must be {what}, got {reprlib.repr(value if given is None else given)}{call}")


def _takes(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in one that does not tell
        return True
    return True


# Every call asks for those of some classes, and Python compiles them each time.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def check(options: Any, owner: str) -> None:
    """Raise where a value is of the wrong type or outside its range."""
    hints = _hints(type(options))
    for item in dataclasses.fields(options):
        limits = {name: item.metadata.get(name) for name in ("minimum", "maximum")}
        check_value(f"{owner}.{item.name}", getattr(options, item.name), hints[item.name], **limits)


def check_value(name: str, value: Any, kind: Any, minimum: float | None = None, maximum: float | None = None) -> None:
    if value is None and type(None) in typing.get_args(kind):
        return
    kind = _without_none(kind)
    if kind in (int, float):
        accepted = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise OptionError(f"{name} must be {_kind_name(kind)}, got {value!r}")
        if not value == value or (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            raise OptionError(f"{name} must be {_range_text(minimum, maximum)}, got {value!r}")
    elif kind in (str, bool) and not isinstance(value, kind):
        raise OptionError(f"{name} must be {_kind_name(kind)}, got {value!r}")


def make(options_class: type[T], values: Mapping[str, Any], owner: str, *, reads_text: bool = False) -> T:
    """Build an options dataclass; `reads_text`: text (of a command line) is converted to each field's type."""
    fields = {item.name for item in dataclasses.fields(typing.cast(Any, options_class))}
    hints = _hints(options_class)
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise (
                unknown_name(f"option of {owner}", name, fields)
                if fields
                else OptionError(f"{owner} has no options, got {name}={value!r}; leave it out")
            )
        is_text = reads_text and isinstance(value, str)
        converted[name] = convert(f"{owner}.{name}", value, hints[name]) if is_text else _plain_number(value)
    options = options_class(**converted)
    check(options, owner)
    return options


def typed_call(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `GenerateOptions` as a command line has them, each of its type; raise for what cannot be."""
    made = make(GenerateOptions, values, "generate", reads_text=True)
    return {name: getattr(made, name) for name in values}


def _plain_number(value: Any) -> Any:
    """NumPy's numbers as Python's; all else as it is."""
    if type(value) in (bool, int, float) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def convert(name: str, value: str, kind: Any) -> Any:
    """Text to the field's type; what has no such form stays text, for `check` to judge."""
    kind = _without_none(kind)
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} must be true or false, got {value!r}")
        return value.lower() == "true"
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise OptionError(f"{name} must be {_kind_name(kind)}, got {value!r}") from None
    return value


@functools.cache
def _without_none(kind: Any) -> Any:
    """Of `X | None`: X."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return next(part for part in typing.get_args(kind) if part is not type(None))


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """`["uniform.ratio=0.3"]` -> `{"uniform": {"ratio": "0.3"}}`."""
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, dot, option = name.partition(".")
        if not (equals and dot and method and option):
            raise OptionError(f"cannot read --set {text!r}; write METHOD.OPTION=VALUE, for example uniform.ratio=0.3")
        settings.setdefault(method.strip(), {})[option.strip()] = value.strip()
    return settings


def read_object(text: str, claim: str, hint: str) -> dict[str, Any]:
    """A JSON object. Where there is none, `claim` ("FILE is not a document") is said, the reason and the hint."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{claim} ({error}); {hint}") from None
    if not isinstance(content, dict):
        raise OptionError(f"{claim}, got {reprlib.repr(content)}; {hint}")
    return content


def describe(options_class: type[Any]) -> Sequence[tuple[str, Any, str]]:
    """(name, default, help) of each option, for `--help` and the docs."""
    settable = [item for item in dataclasses.fields(options_class) if item.init]
    return [(item.name, item.default, item.metadata.get("help", "")) for item in settable]


def _kind_name(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]


def _range_text(minimum: float | None, maximum: float | None) -> str:
    low, high = (None if bound is None else _number(bound) for bound in (minimum, maximum))
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else "a number"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
