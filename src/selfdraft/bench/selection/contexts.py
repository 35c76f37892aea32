"""What is dear to skip changes with the length of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...models.payoff import integer_weights
from ...types import LatencyFit


def weights_at(fit: LatencyFit, length: int) -> Mapping[str, Any]:
    """What KnapSpec's knapsack weighs sub-layers with behind so many tokens, and the seconds it follows from."""
    attention, mlp = integer_weights(fit, length)
    return {
        "attention": attention,
        "mlp": mlp,
        "attention_seconds": fit.attention_seconds(length),
        "mlp_seconds": fit.mlp_seconds,
    }
