"""Reading GGUF files through transformers, without its words on the screen."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtraError
from ...progress import quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
