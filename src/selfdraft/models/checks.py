"""What a model must be like to be attached to, and how closely two computations of its scores must agree."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedModelError

SUPPORTED_ATTENTION = ("eager", "sdpa")
_ROUNDING_MODULES = ("Linear8bitLt",)  # LLM.int8 of bitsandbytes
_OUTSIDE = (
    "{name} adds something outside the model's layers (a trained prompt or prefix), which selfdraft cannot follow. Use "
    "model.generate, or an adapter inside the layers (LoRA, IA3)"
)
_SELF_TEST_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1.5e-1}


def tolerance_of(dtype: torch.dtype) -> float:
    """By how much two computations of the same scores may differ."""
    return _SELF_TEST_TOLERANCE.get(dtype, 1e-1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of the expectation: rounding stays small, a wrong part does not."""
    difference = (found.double() - expected.double()).square().mean().sqrt()
    return float(difference / expected.double().square().mean().sqrt().clamp(min=1e-12))


def check_ready(model: Any) -> None:
    """Looked at before every text."""
    if model.training:
        raise UnsupportedModelError(
            "the model is in training mode, where dropout makes its output random; call model.eval() first"
        )
    # While PEFT's generate runs with a prompt that was trained, it prepares the model's inputs itself.
    inputs = vars(model).get("prepare_inputs_for_generation")
    if getattr(inputs, "__self__", model) is not model:
        raise UnsupportedModelError(_OUTSIDE.format(name=type(getattr(inputs, "__self__", None)).__name__))


def check_attention(implementation: str) -> None:
    if implementation not in SUPPORTED_ATTENTION:
        raise UnsupportedModelError(
            f"attention implementation {implementation!r} builds its own masks and positions. "
            "Load the model with attn_implementation='sdpa' (or 'eager' where the family has no sdpa)"
        )


def check_weights(model: Any) -> None:
    """They must be here, on one device (what accelerate offloads comes to it), and read activations as they are."""
    embedding = model.get_input_embeddings().weight
    if embedding.is_meta:
        raise UnsupportedModelError(
            "the model's embedding is on the meta device: its weights are not loaded, or offloaded. Load the model "
            "with from_pretrained; where device_map names the embedding, name a device for it"
        )
    devices = {str(weight.device) for weight in model.parameters() if not weight.is_meta}
    if len(devices) > 1:
        raise UnsupportedModelError(
            f"the model is spread over {' and '.join(sorted(devices))}, and passes run on one device. Load it on one "
            f"(device={str(embedding.device)!r}), or with device_map='auto' and max_memory, which offloads the rest"
        )
    for name, module in model.named_modules():
        if type(module).__name__ in _ROUNDING_MODULES or _rounds_activations(getattr(module, "weight", None)):
            raise UnsupportedModelError(
                f"{name} ({type(module).__name__}) quantises activations on the way, so that rounding alone may change "
                "a token's scores by whole steps and no exact speculation is possible. Quantise the weights only: "
                "BitsAndBytesConfig(load_in_4bit=True), TorchAoConfig(Int8WeightOnlyConfig())"
            )


def _rounds_activations(weight: Any) -> bool:
    """A quantised weight of torchao says how the activations that meet it are quantised; None: they are not."""
    return any(getattr(weight, name, None) is not None for name in ("act_quant_kwargs", "activation_quantization"))


@torch.inference_mode()
def unwrapped(model: Any) -> Any:
    """The model inside a `torch.compile`d one or one of PEFT's. Adapters inside its layers stay; they are its modules.

    What a wrapper adds outside the layers (trained prompts and prefixes) is not there without it: refused.
    """
    model = getattr(model, "_orig_mod", model)
    if not (hasattr(model, "get_base_model") and hasattr(model, "peft_config")):
        return model
    inner = model.get_base_model()
    check_ready(inner)
    tokens = torch.arange(4, device=inner.get_input_embeddings().weight.device)[None]
    expected, found = (one(input_ids=tokens, use_cache=False).logits for one in (model, inner))
    if expected.shape != found.shape or relative_error(found, expected) > tolerance_of(expected.dtype):
        raise UnsupportedModelError(_OUTSIDE.format(name=type(model).__name__))
    return inner
