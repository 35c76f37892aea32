"""A model's rotary module: its answers for one pass, and tables of all positions."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import torch

from ..kernels.features import Rotary

MAX_POSITIONS = 1 << 17
"""Where a model does not say how long its context is."""

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin


class Rotaries:
    """By layer type where the module is asked with one; by None: one for all layers. `like`: the embedding."""

    def __init__(self, module: Any, layer_types: Collection[str], like: torch.Tensor) -> None:
        self._module, self._layer_types, self._like = module, layer_types, like
        self._tables: dict[tuple[int, str | None], Angles] = {}

    def of(self, hidden: torch.Tensor, positions: torch.Tensor) -> dict[str | None, Angles]:
        if self._module is None:
            return {}
        if not self._layer_types:
            return {None: self._module(hidden, positions)}
        return {kind: self._module(hidden, positions, kind) for kind in self._layer_types}

    def table(self, num_positions: int, kind: str | None = None) -> Angles:
        """cos and sin [positions, n] of half-split rotary over 2n numbers, as the model rounds them."""
        key = num_positions, kind
        if key not in self._tables:
            positions = torch.arange(num_positions, device=self._like.device)[None]
            cos, sin = (part[0, :, : part.shape[-1] // 2] for part in self.of(self._like[:1, None], positions)[kind])
            self._tables[key] = cos.contiguous(), sin.contiguous()
        return self._tables[key]


class RotaryTable(Rotary):
    """Computed when it is first read: torch's own operations take the angles of their pass instead."""

    def __init__(self, rotaries: Rotaries, num_positions: int, kind: str | None) -> None:
        vars(self).update(_of=(rotaries, num_positions, kind))

    @cached_property
    def _angles(self) -> Angles:
        rotaries, num_positions, kind = vars(self)["_of"]
        angles: Angles = rotaries.table(num_positions, kind)
        return angles

    @property
    def cos(self) -> torch.Tensor:
        return self._angles[0]

    @property
    def sin(self) -> torch.Tensor:
        return self._angles[1]


def no_rotary(size: int, like: torch.Tensor) -> Rotary:
    """One position that turns nothing."""
    cos = torch.ones(1, size // 2, dtype=like.dtype, device=like.device)
    return Rotary(cos, torch.zeros_like(cos))
