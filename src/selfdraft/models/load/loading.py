"""Finds a model and loads it: a catalogue name, a folder, a GGUF file, or an id of the Hugging Face hub.

What the caller asks for is checked before anything is fetched; what goes wrong later is one ModelError that
says what was tried. Code that comes with a model is not run unless `trust_remote_code` says so.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...errors import ModelError, OptionError, SelfdraftError
from ...options import LOAD_HELP, LoadOptions, check_load_value, read_object, refused_load_option
from ...progress import Progress, quiet
from ..checks import check_attention
from .catalogue import CATALOGUE, DEFAULT_MODEL, is_ready, model_folder
from .gguf import read_gguf
from .pull import pull

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase | None]

CATALOGUE_MODEL, GGUF_FILE, FOLDER, HUB_ID = "a model of the catalogue", "a GGUF file", "a folder", "an id of the hub"
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""And how they are called in short."""

_HUB_TIMEOUT_SECONDS = 5
_HUB_ONLY = ("revision", "token", "cache_dir", "subfolder", "variant")
_FOR_TOKENIZER = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "trust_remote_code")
_WITH_DEVICE_MAP = ("max_memory", "offload_folder")
_BASE = "base_model_name_or_path"
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "spiece.model", "sentencepiece*", "*.tiktoken")


def load(
    name_or_path: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: Progress | None = None,
    pull_missing: bool = True,
    **options: Unpack[LoadOptions],
) -> Loaded:
    """The model, ready for inference on `device`, and its tokenizer; None: its folder has none.

    Nothing named: the default model of the catalogue. A catalogue model that is not there yet is pulled
    (`progress(done_bytes, total_bytes, label)`) unless `pull_missing` is False. `options` go to transformers.
    """
    source = DEFAULT_MODEL if name_or_path is None else name_or_path
    kind = _kind_of(source)
    given = {name: value for name, value in options.items() if value is not None}
    check_options(given, kind, device)
    place = choose_device(_only_device(given.get("device_map")) or device)
    if "quantization_config" in given:
        given.setdefault("device_map", {"": str(place)})  # quantised where it will stay
    given["dtype"] = choose_dtype(dtype, place)
    path = Path(source).expanduser()
    if kind == CATALOGUE_MODEL:
        model, tokenizer = _from_catalogue(str(source), given, progress, pull_missing)
    elif kind == HUB_ID:
        model, tokenizer = _from_hub(str(source), given)
    else:
        model, tokenizer = (_from_gguf if kind == GGUF_FILE else _from_folder)(path, given)
    placed = model if "device_map" in given else _on_device(model, place)
    return placed.eval().requires_grad_(False), tokenizer


def _kind_of(source: str | Path) -> str:
    if isinstance(source, str) and source in CATALOGUE:
        return CATALOGUE_MODEL
    if str(source).endswith(".gguf"):
        return GGUF_FILE
    is_path = isinstance(source, Path) or source.startswith((".", "/", "~")) or source.count("/") > 1
    return FOLDER if is_path or Path(source).exists() else HUB_ID


def check_options(options: Mapping[str, Any], kind: str = HUB_ID, device: Any = None) -> None:
    """Refuse, by name and with the reason, what this kind of source or the engine cannot use."""
    for name, value in options.items():
        if name not in LOAD_HELP:
            raise refused_load_option(name, ("device", "dtype", *LOAD_HELP))
        check_load_value(name, value)
        if name in _HUB_ONLY and kind != HUB_ID:
            raise OptionError(f"{name!r} is for models of the Hugging Face hub, and this is {kind}; leave it out")
        if kind == GGUF_FILE and name != "attn_implementation":
            raise OptionError(
                f"{name!r} does not go with a GGUF file: its weights are unpacked to `dtype` and put on `device` as a "
                f"whole. Leave it out, or save the model as a folder (model.save_pretrained) and load that"
            )
        if name in _WITH_DEVICE_MAP and "device_map" not in options:
            raise OptionError(f"{name!r} says nothing without device_map; add device_map='auto', or leave it out")
    if device is not None and "device_map" in options:
        raise OptionError(f"device={str(device)!r} and device_map both say where the model goes; give one of them")
    if "attn_implementation" in options:
        check_attention(options["attn_implementation"])


def _only_device(device_map: Any) -> str | None:
    """Of a map that names one; others may spread the model."""
    whole = device_map.get("") if isinstance(device_map, Mapping) else device_map
    return str(whole) if whole is not None and str(whole) in _possible_devices() else None


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, if this machine has it; asked for none: CUDA where there is one, else the CPU."""
    import torch

    possible = _possible_devices()
    if device is None:
        return torch.device("cuda" if "cuda" in possible else "cpu")
    if str(device) not in possible:
        raise OptionError(f"unknown or absent device {str(device)!r}. Possible here: {', '.join(possible)}")
    return torch.device(device)


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype asked for; asked for none: bfloat16 on CUDA (float16 where that is missing), else float32."""
    import torch

    if dtype is None and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    name = next((known for known, short in DTYPES.items() if short == name), name)
    if name not in DTYPES:
        raise OptionError(f"unknown dtype {name!r}. Possible: {', '.join((*DTYPES, *DTYPES.values()))}")
    chosen: torch.dtype = getattr(torch, name)
    return chosen


def _possible_devices() -> list[str]:
    import torch

    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _from_catalogue(name: str, options: dict[str, Any], progress: Progress | None, pull_missing: bool) -> Loaded:
    folder = model_folder(name)
    if not is_ready(folder):
        if not pull_missing:
            raise ModelError(f"the model {name} is not on this machine. Fetch it with: selfdraft pull {name}")
        folder = pull(name, progress=progress)
    try:
        return _from_folder(folder, options)
    except ModelError as error:
        raise ModelError(f"{error}. Bring it again with: selfdraft pull --force {name}") from error


def _from_folder(folder: Path, options: dict[str, Any]) -> Loaded:
    """A folder of PEFT's has an adapter alone: transformers loads the model that it names, then the adapter."""
    if not folder.is_dir():
        raise ModelError(f"no model at {folder}: not a folder")
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        gguf_files = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f" To load a GGUF file, name it: {folder / gguf_files[0]}" if gguf_files else ""
        raise ModelError(f"no model in {folder}: it has no config.json.{hint}")
    with _as_model_error(f"could not load the model in {folder}"), quiet():
        return _from_pretrained(folder, options, _tokenizer_of(folder))


def _tokenizer_of(folder: Path) -> str | Path | None:
    """Where it is: in the folder, or with the model that an adapter is for; None: nowhere."""
    base = _base_of(folder / "adapter_config.json")
    if any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return folder
    return _tokenizer_of(Path(base)) if base and Path(base).is_dir() else base


def _base_of(file: Path) -> str | None:
    if not file.is_file():
        return None
    remedy = "save the adapter again with PEFT's save_pretrained"
    base = read_object(file.read_text("utf-8"), f"{file} is not an adapter's config", remedy).get(_BASE)
    if not isinstance(base, str):
        raise ModelError(f"{file} does not say which model the adapter is for ({_BASE}: {base!r}); {remedy}")
    return base


def _from_gguf(path: Path, options: dict[str, Any]) -> Loaded:
    if not path.is_file():
        raise ModelError(f"no model at {path}: there is no such file")
    with _as_model_error(f"could not read the GGUF file {path}"):
        return read_gguf(path.absolute(), **options)


def _from_hub(name: str, options: dict[str, Any]) -> Loaded:
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    tried = f"the catalogue, which has {', '.join(sorted(CATALOGUE))}; a folder {name!r}, not there"
    with _as_model_error(f"could not load {name!r}.{hint} Tried: {tried}; the Hugging Face hub, which said"):
        # Offline, transformers would retry for most of a minute before it looks at earlier downloads.
        local = options.get("local_files_only") or not _is_hub_reachable()
        return _from_pretrained(name, {**options, "local_files_only": local}, name)


@contextlib.contextmanager
def _as_model_error(what: str) -> Iterator[None]:
    try:
        yield
    except SelfdraftError:
        raise
    except Exception as error:
        raise ModelError(f"{what}: {_one_line(error)}") from error


def _is_hub_reachable() -> bool:
    """Whether the hub answers at all, whatever it says."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT_SECONDS)
    except Exception:
        return False
    return True


def _from_pretrained(source: str | Path, options: dict[str, Any], tokenizer_source: str | Path | None) -> Loaded:
    """Load with transformers. Weights that the checkpoint lacks would be random numbers: an error here."""
    from transformers import AutoModelForCausalLM

    options = {"trust_remote_code": False, "local_files_only": True, **options}
    for_tokenizer = {name: options[name] for name in _FOR_TOKENIZER if name in options}
    tokenizer = tokenizer_source and _tokenizer(tokenizer_source, for_tokenizer)
    model, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"the weights of {source} are incomplete: {len(missing)} tensors are missing, the first is {missing[0]}"
        )
    return model, tokenizer


def _tokenizer(source: str | Path, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    remedy = "complete its files, or remove them (tokenizer*, vocab*) to load the model for token ids"
    with _as_model_error(f"the tokenizer of {source} cannot be read; {remedy}"):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        if tokenizer is not None and len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("it has special tokens only")
        return tokenizer


def _on_device(model: Any, device: torch.device) -> Any:
    import torch

    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the model does not fit on {device}: {_one_line(error)}") from error
    except (RuntimeError, ValueError) as error:  # quantised weights stay where they were made
        instead = f"load it with device_map={str(device)!r} instead of device"
        raise ModelError(f"the model cannot be moved to {device}; {instead}: {_one_line(error)}") from error


def _one_line(error: BaseException, limit: int = 300) -> str:
    """What a library said at length, in one line: how it begins, and how it ends, where the remedy is."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
