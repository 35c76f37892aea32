"""Finds a model and loads it: a catalogue name, a folder, a GGUF file, or an id of the Hugging Face hub.

What the caller asks for is checked before anything is fetched; what goes wrong later is one ModelError that
says what was tried. Code that comes with a model is never run.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError, OptionError, SelfdraftError
from ...progress import Progress
from .catalogue import CATALOGUE, DEFAULT_MODEL, is_ready, model_folder
from .gguf import quiet, read_gguf
from .pull import pull

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""And how they are called in short."""

_HUB_TIMEOUT_SECONDS = 5


def load(
    name_or_path: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: Progress | None = None,
    pull_missing: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, ready for inference on `device`, and its tokenizer.

    Nothing named: the default model of the catalogue. A catalogue model that is not there yet is pulled
    (`progress(done_bytes, total_bytes, label)`) unless `pull_missing` is False.
    """
    place = choose_device(device)
    precision = choose_dtype(dtype, place)
    source = DEFAULT_MODEL if name_or_path is None else name_or_path
    if isinstance(source, str) and source in CATALOGUE:
        model, tokenizer = _from_catalogue(source, precision, progress, pull_missing)
    elif str(source).endswith(".gguf"):
        model, tokenizer = _from_gguf(Path(source).expanduser(), precision)
    elif (folder := Path(source).expanduser()).exists() or _is_path(source):
        model, tokenizer = _from_folder(folder, precision)
    else:
        model, tokenizer = _from_hub(str(source), precision)
    return _on_device(model, place).eval().requires_grad_(False), tokenizer


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


def _is_path(source: str | Path) -> bool:
    """Whether only a place on disk can be meant; a hub id is `name` or `owner/name`."""
    return isinstance(source, Path) or source.startswith((".", "/", "~")) or source.count("/") > 1


def _from_catalogue(
    name: str, dtype: torch.dtype, progress: Progress | None, pull_missing: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = _catalogue_folder(name, progress, pull_missing)
    try:
        return _from_folder(folder, dtype)
    except ModelError as error:
        raise ModelError(f"{error}. Bring it again with: selfdraft pull --force {name}") from error


def _catalogue_folder(name: str, progress: Progress | None, pull_missing: bool) -> Path:
    folder = model_folder(name)
    if is_ready(folder):
        return folder
    if not pull_missing:
        raise ModelError(f"the model {name} is not on this machine. Fetch it with: selfdraft pull {name}")
    return pull(name, progress=progress)


def _from_folder(folder: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if not folder.is_dir():
        raise ModelError(f"no model at {folder}: not a folder")
    if not (folder / "config.json").is_file():
        gguf_files = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f" To load a GGUF file, name it: {folder / gguf_files[0]}" if gguf_files else ""
        raise ModelError(f"no model in {folder}: it has no config.json.{hint}")
    try:
        with quiet():
            return _from_pretrained(folder, dtype)
    except SelfdraftError:
        raise
    except Exception as error:
        raise ModelError(f"could not load the model in {folder}: {_one_line(error)}") from error


def _from_gguf(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if not path.is_file():
        raise ModelError(f"no model at {path}: there is no such file")
    try:
        return read_gguf(path.absolute(), dtype)
    except SelfdraftError:
        raise
    except Exception as error:
        raise ModelError(f"could not read the GGUF file {path}: {_one_line(error)}") from error


def _from_hub(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    try:
        # Offline, transformers would retry for most of a minute before it looks at earlier downloads.
        return _from_pretrained(name, dtype, local_files_only=not _is_hub_reachable())
    except SelfdraftError:
        raise
    except Exception as error:
        near = difflib.get_close_matches(name.lower(), CATALOGUE, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"could not load {name!r}.{hint} Tried: the catalogue, which has {', '.join(sorted(CATALOGUE))}; "
            f"a folder {name!r}, not there; the Hugging Face hub, which said: {_one_line(error)}"
        ) from error


def _is_hub_reachable() -> bool:
    """Whether the hub answers at all, whatever it says."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT_SECONDS)
    except Exception:
        return False
    return True


def _from_pretrained(
    source: str | Path, dtype: torch.dtype, local_files_only: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load with transformers. Weights that the checkpoint lacks would be random numbers: an error here."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": False, "local_files_only": local_files_only}
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    model, report = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"the weights of {source} are incomplete: {len(missing)} tensors are missing, the first is {missing[0]}"
        )
    return model, tokenizer


def _on_device(model: Any, device: torch.device) -> Any:
    import torch

    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the model does not fit on {device}: {_one_line(error)}") from error


def _one_line(error: BaseException, limit: int = 300) -> str:
    """What a library said at length, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
