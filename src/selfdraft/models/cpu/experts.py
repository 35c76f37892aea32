"""A mixture of experts for a few tokens: those that the router names, not the module that runs all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..gpu.memory import reads_are_free

MAX_TOKENS = 3
"""Up to here experts that nobody chose are worth passing by, one token after the other."""


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture of experts: its own forward, or for a few tokens its own routing and the experts that it names."""

    module: Any
    experts: Any
    classes: tuple[type, type]  # of both, when they were attached
    ups: Sequence[torch.Tensor]  # gate and up of each expert
    downs: Sequence[torch.Tensor]
    activation: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        num_tokens, is_changed = (
            hidden.shape[0] * hidden.shape[1],
            (type(self.module), type(self.experts)) != self.classes,
        )
        is_many = num_tokens > MAX_TOKENS or hidden.dtype != torch.float32 or not reads_are_free(hidden)
        if is_changed or is_many:
            output: torch.Tensor = self.module(hidden)
            return output
        tokens = hidden.view(num_tokens, 1, -1)
        _, shares, chosen = self.module.gate(hidden.view(num_tokens, -1))
        parts = map(self._of_token, tokens, chosen.tolist(), shares.tolist())
        return torch.stack(list(parts)).view(hidden.shape)

    def _of_token(self, token: torch.Tensor, chosen: Sequence[int], shares: Sequence[float]) -> torch.Tensor:
        output = torch.zeros_like(token)
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = F.linear(token, self.ups[expert]).chunk(2, dim=-1)
            output.add_(F.linear(self.activation(gate).mul_(up), self.downs[expert]), alpha=share)
        return output


def few_experts(module: Any, experts: Any, activation: Callable[[torch.Tensor], torch.Tensor]) -> Experts | None:
    """Where transformers' own code has gate and up, one after the other, and down of all experts; else None."""
    if not all(type(part).__module__.startswith("transformers.models.") for part in (module, experts)):
        return None
    weights = {name: weight.detach() for name, weight in experts.named_parameters()}
    if set(weights) != {"gate_up_proj", "down_proj"} or not hasattr(module, "gate"):
        return None
    up, down = weights["gate_up_proj"], weights["down_proj"]
    is_usual = up.shape == (len(down), 2 * down.shape[2], down.shape[1])
    if (
        not is_usual
        or getattr(experts, "is_transposed", False)
        or {type(up), type(down)} != {torch.Tensor}
        or up.device.type != "cpu"
    ):
        return None
    return Experts(module, experts, (type(module), type(experts)), up.unbind(), down.unbind(), activation)
