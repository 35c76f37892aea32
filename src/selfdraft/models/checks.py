"""What a model must be like to be attached to, and how closely two computations of its scores must agree."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedModelError

SUPPORTED_ATTENTION = ("eager", "sdpa")
_ROPE_BY_LENGTH = ("dynamic", "longrope")
_SELF_TEST_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1.5e-1}


def tolerance_of(dtype: torch.dtype) -> float:
    """By how much two computations of the same scores may differ."""
    return _SELF_TEST_TOLERANCE.get(dtype, 1e-1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of the expectation: rounding stays small, a wrong part does not."""
    difference = (found.double() - expected.double()).square().mean().sqrt()
    return float(difference / expected.double().square().mean().sqrt().clamp(min=1e-12))


def check_eval(model: Any) -> None:
    if model.training:
        raise UnsupportedModelError(
            "the model is in training mode, where dropout makes its output random; call model.eval() first"
        )


def check_rotary(rotary: Any) -> None:
    """Frequencies must belong to a position, not to the longest position of whatever shares its pass."""
    kinds = getattr(rotary, "rope_type", "default")
    for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
        if kind in _ROPE_BY_LENGTH:
            raise UnsupportedModelError(
                f"rope type {kind!r} changes its frequencies with the length of a pass, so that a token's scores "
                "depend on what is computed beside it and no exact speculation is possible. Load the model with its "
                "default rope parameters (context up to the original length), or use model.generate"
            )


def check_attention(config: Any) -> None:
    implementation = getattr(config, "_attn_implementation", "eager")
    if implementation not in SUPPORTED_ATTENTION:
        raise UnsupportedModelError(
            f"attention implementation {implementation!r} builds its own masks and positions. "
            "Load the model with attn_implementation='sdpa' (or 'eager' where the family has no sdpa)"
        )
