"""What is dear to skip changes with the length of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...economics import LatencyFit


def weights_at(fit: LatencyFit, length: int) -> Mapping[str, Any]:
    """What KnapSpec's knapsack weighs sub-layers with behind so many tokens, and the seconds it follows from."""
    attention, mlp = fit.at(length).weights
    return {
        "attention": attention,
        "mlp": mlp,
        "attention_seconds": fit.attention.at(length),
        "mlp_seconds": fit.mlp_seconds,
    }
