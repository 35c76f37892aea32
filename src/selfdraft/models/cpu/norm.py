"""The norms of one token in float32: few operations, no questions, and numbers that torch has as tensors already."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ...kernels.features import Norm


@dataclass(frozen=True, eq=False)
class TokenNorm(Norm):
    """Not centred. A dot product, a number and one operation instead of six small ones."""

    def of_token(self, token: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self._zeros, token, self.factors, value=self._scale(token))

    def add_token(self, token: torch.Tensor, hidden: torch.Tensor, multiplier: float) -> torch.Tensor:
        """What the token becomes, times `multiplier`, added to `hidden`."""
        return torch.addcmul(hidden, token, self.factors, value=multiplier * self._scale(token))

    def scale_heads(self, heads: torch.Tensor) -> None:
        """Each head of a token by itself to a mean square of 1, in place."""
        lengths = torch.linalg.vector_norm(heads, 2, -1, True)
        heads.mul_(torch.addcmul(self._eps, lengths, lengths, value=1 / self._size).rsqrt_())

    @property
    def factors(self) -> torch.Tensor:
        """What is scaled is multiplied by them; in float32 where it is not rounded before."""
        weight = self.weight if self.rounds_first else self.weight.float()
        return weight + self._offsets if self.offset else weight

    def _scale(self, token: torch.Tensor) -> float:
        vector = token.view(-1)
        scale: float = (torch.dot(vector, vector).item() / self._size + self.eps) ** -0.5
        return scale

    @cached_property
    def _size(self) -> int:
        return self.weight.numel()

    @cached_property
    def _zeros(self) -> torch.Tensor:
        return torch.zeros_like(self.weight)

    @cached_property
    def _eps(self) -> torch.Tensor:
        return torch.full_like(self.weight[:1], self.eps)

    @cached_property
    def _offsets(self) -> torch.Tensor:
        """To add a number takes torch twice as long."""
        return torch.full_like(self.weight, self.offset, dtype=torch.float32)
