"""Reading GGUF files through transformers, without its words on the screen."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_quiet_lock = threading.RLock()


def read_gguf(path: Path, dtype: torch.dtype, **others: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A GGUF file as transformers' model and tokenizer; the weights are no longer quantised after it."""
    require_gguf()
    import transformers

    options = {"gguf_file": path.name, "dtype": dtype, **others}
    if hasattr(transformers, "GgufConfig"):
        # Releases that know this class may keep the weights packed unless told not to.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)
    vars(model.config).pop("_model_name_or_path", None)
    return model, tokenizer


def require_gguf() -> None:
    """Refuse, before any work, when what reads GGUF files is not installed."""
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingExtraError(
            f'reading GGUF weights needs {" and ".join(missing)}. Install with: pip install "selfdraft[gguf]"'
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' log lines and progress bars off the screen, one thread at a time."""
    from transformers.utils import logging

    with _quiet_lock:
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            # One of the bars cannot be switched off; it writes to what sys.stderr is at that moment.
            with contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
